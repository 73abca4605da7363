//! Cost of one packet in the jitter buffer: `handle_packet`, then `poll_output` until it returns `None`.
//!
//! "Warm" handles packets of one stream. "Cold" handles packets of thousands of streams in turn, as a gateway does. Its cost
//! depends on the number of cache lines that each packet touches.

// criterion_group generates a public function without documentation.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use threadbare_jitter::{Arrival, Config, JitterBuffer, Output, Release};
use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

const MS: u64 = 1_000_000;
const COLD_STREAMS: usize = 10_000;

/// It is as large as a pointer to a buffer, and is not zero, so that an `Option` of it has the same size.
type Handle = std::num::NonZeroU64;

struct Stream {
    buffer: JitterBuffer<Handle>,
    now_ns: u64,
    seq: SeqNum,
    time: RtpTime,
}

impl Stream {
    fn new(config: Config, number: usize) -> Stream {
        Stream {
            buffer: JitterBuffer::new(config).expect("valid settings"),
            now_ns: 1_000 * MS,
            seq: SeqNum(number as u16),
            time: RtpTime(number as u32),
        }
    }

    fn arrive(&mut self) {
        self.buffer.handle_packet(
            self.now_ns,
            Arrival {
                ssrc: Ssrc(1),
                seq: self.seq,
                time: self.time,
                marker: false,
                arrival_ns: None,
                packet: Handle::MIN,
            },
        );
    }

    /// Hands in one packet and takes the outputs that are due.
    fn step(&mut self) {
        self.now_ns += 20 * MS;
        self.seq = self.seq.plus(1);
        self.time = self.time.plus(160);
        self.arrive();
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.buffer.poll_output(self.now_ns) {
            // Reads the fields that a caller reads. `black_box` on the whole output would add a copy.
            let Output::Packet {
                packet, play_ns, ..
            } = output
            else {
                panic!("only packets come out: {output:?}");
            };
            black_box((packet, play_ns));
        }
        black_box(self.buffer.next_timeout());
    }

    /// Hands in two packets in the wrong order.
    fn step_swapped(&mut self) {
        let (seq, time) = (self.seq, self.time);
        self.now_ns += 20 * MS;
        (self.seq, self.time) = (seq.plus(2), time.plus(320));
        self.arrive();
        self.drain();
        self.now_ns += 20 * MS;
        (self.seq, self.time) = (seq.plus(1), time.plus(160));
        self.arrive();
        self.drain();
        (self.seq, self.time) = (seq.plus(2), time.plus(320));
    }
}

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("jitter");
    for release in [Release::InOrder, Release::AtDeadline] {
        let config = Config {
            release,
            ..Config::new(8_000, 100 * MS)
        };
        let name = format!("{release:?}");
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("warm", &name), |bencher| {
            let mut stream = Stream::new(config, 0);
            bencher.iter(|| stream.step());
        });
        group.bench_function(BenchmarkId::new("cold", &name), |bencher| {
            let mut streams: Vec<Stream> = (0..COLD_STREAMS)
                .map(|number| Stream::new(config, number))
                .collect();
            let mut turn = 0;
            bencher.iter(|| {
                // The next stream is far from the last one, so that the processor fetches nothing ahead.
                turn = (turn + 7_919) % COLD_STREAMS;
                streams[turn].step();
            });
        });
        group.throughput(Throughput::Elements(2));
        group.bench_function(BenchmarkId::new("swapped", &name), |bencher| {
            let mut stream = Stream::new(config, 0);
            // The first packet begins the stream.
            stream.step();
            bencher.iter(|| stream.step_swapped());
        });
    }
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
