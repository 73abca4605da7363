//! Measures the cost per packet of the session and of the demultiplexer. One is measured with warm caches, and thousands are used in turn,
//! as on a context thread.
#![allow(missing_docs)] // for the macros of criterion

use std::hint::black_box;
use std::net::SocketAddr;

use criterion::{Criterion, criterion_group, criterion_main};
use threadbare_rtp::demux::{Demux, Filter};
use threadbare_rtp::id::{PayloadType, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::session::{Config, RtcpSession, RtpHeader};

const STREAMS: u32 = 3000;
/// Step from one stream to the next. It is coprime to the number of streams, so that every stream is visited, and too large for a
/// prefetcher.
const STRIDE: u32 = 1223;
const PACKET_NS: u64 = 20_000_000;

fn from(stream: u32) -> SocketAddr {
    SocketAddr::from((
        (0xc000_0200 | stream >> 8).to_be_bytes(),
        10_000 + stream as u16,
    ))
}

fn arrival(stream: u32, number: u64) -> RtpHeader {
    RtpHeader {
        ssrc: Ssrc(stream.wrapping_mul(0x9e37_79b9)),
        seq: SeqNum(number as u16),
        time: RtpTime((number as u32).wrapping_mul(160)),
        payload_type: PayloadType(0),
    }
}

fn sessions(count: u32) -> Vec<RtcpSession> {
    (0..count)
        .map(|stream| {
            let mut session = RtcpSession::new(0, Config::call(Ssrc(1), "us", 8000, stream.into()));
            for number in 0..4 {
                session.handle_rtp(number * PACKET_NS, from(stream), arrival(stream, number));
                session.handle_rtp_sent(number * PACKET_NS, RtpTime(0), 160, 1);
            }
            session
        })
        .collect()
}

fn session(bench: &mut Criterion) {
    for count in [1, STREAMS] {
        let mut sessions = sessions(count);
        let (mut number, mut stream) = (3, 0);
        let mut step = move || {
            stream = (stream + STRIDE) % count;
            number += u64::from(stream == 0);
            (stream, number)
        };
        bench.bench_function(
            &format!("handle_rtp, {count} sessions in turn"),
            |bencher| {
                bencher.iter(|| {
                    let (stream, number) = step();
                    let now_ns = number * PACKET_NS + u64::from(stream);
                    let packet = black_box(arrival(stream, number));
                    sessions[stream as usize].handle_rtp(now_ns, black_box(from(stream)), packet)
                });
            },
        );
        bench.bench_function(
            &format!("handle_rtp_sent, {count} sessions in turn"),
            |bencher| {
                bencher.iter(|| {
                    let (stream, number) = step();
                    let session = &mut sessions[stream as usize];
                    session.handle_rtp_sent(
                        number * PACKET_NS,
                        RtpTime(number as u32),
                        black_box(160),
                        1,
                    );
                });
            },
        );
    }
}

fn reports(bench: &mut Criterion) {
    let mut session = sessions(1).remove(0);
    let mut out = [0; 1500];
    let mut number = 4;
    bench.bench_function("poll_transmit, SR with a block and CNAME", |bencher| {
        bencher.iter(|| {
            number += 1;
            let at_ns = session
                .next_timeout()
                .expect("it stays")
                .max(number * PACKET_NS);
            session.handle_rtp(at_ns, from(0), arrival(0, number));
            session.handle_rtp_sent(at_ns, RtpTime(0), 160, 1);
            session.poll_transmit(at_ns, &mut out)
        });
    });
    let mut other = RtcpSession::new(0, Config::call(Ssrc(2), "them", 8000, 9));
    other.handle_rtp_sent(0, RtpTime(0), 160, 1);
    let report = loop {
        let at_ns = other.next_timeout().expect("it stays");
        if let Some(bytes) = other.poll_transmit(at_ns, &mut out) {
            break out[..bytes].to_vec();
        }
    };
    let mut session = sessions(1).remove(0);
    bench.bench_function("handle_rtcp, SR and CNAME", |bencher| {
        bencher.iter(|| {
            let result = session.handle_rtcp(PACKET_NS, from(1), black_box(&report));
            while session.poll_event().is_some() {}
            result
        });
    });
}

fn demux(bench: &mut Criterion) {
    for (name, count, with_ssrc, with_address) in [
        ("by SSRC, 1", 1, true, false),
        ("by SSRC, 10000", 10_000, true, false),
        ("by address, 10000", 10_000, false, true),
        ("by both, 10000", 10_000, true, true),
    ] {
        let mut demux = Demux::new(None, 1);
        for stream in 0..count {
            let filter = Filter {
                ssrc: with_ssrc.then_some(arrival(stream, 0).ssrc),
                from: with_address.then_some(from(stream)),
                payload_type: None,
            };
            demux.add(filter, stream).expect("room");
        }
        let mut stream = 0;
        bench.bench_function(&format!("demux {name} in turn"), |bencher| {
            bencher.iter(|| {
                stream = (stream + STRIDE) % count;
                let packet = black_box(arrival(stream, 0));
                demux.lookup(1, black_box(from(stream)), packet.ssrc, packet.payload_type)
            });
        });
    }
    // The routes use two kinds of filters. In this case, the table remembers flows.
    let mut demux = Demux::new(None, 1);
    for stream in 0..10_000 {
        let by_ssrc = stream % 2 == 0;
        let filter = Filter {
            ssrc: by_ssrc.then_some(arrival(stream, 0).ssrc),
            from: (!by_ssrc).then_some(from(stream)),
            payload_type: None,
        };
        demux.add(filter, stream).expect("room");
    }
    let mut stream = 0;
    bench.bench_function("demux by SSRC or address, 10000 in turn", |bencher| {
        bencher.iter(|| {
            stream = (stream + STRIDE) % 10_000;
            let packet = black_box(arrival(stream, 0));
            demux.lookup(1, black_box(from(stream)), packet.ssrc, packet.payload_type)
        });
    });
}

criterion_group!(benches, session, reports, demux);
criterion_main!(benches);
