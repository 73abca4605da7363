//! Cost of SRTP per packet of 20 ms of G.711, compared with the cost of copying the packet. It covers each suite, protecting and
//! unprotecting, with one key and with a thousand keys in turn.
#![allow(missing_docs)] // criterion's macros

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use threadbare_srtp::{
    MASTER_KEY_BYTES_MAX, MasterKey, RTP_TRAILER_BYTES_MAX, Receiver, Sender, Suite,
};

/// Header and 160 samples.
const PACKET_BYTES: usize = 172;
const KEYS: usize = 1000;
type Buffer = [u8; PACKET_BYTES + RTP_TRAILER_BYTES_MAX];

/// Returns packet `number` of a stream.
fn packet(number: usize) -> Buffer {
    let mut packet = [0x55; PACKET_BYTES + RTP_TRAILER_BYTES_MAX];
    packet[..2].copy_from_slice(&[0x80, 0]);
    packet[2..4].copy_from_slice(&(number as u16).to_be_bytes());
    packet
}

fn key(suite: Suite) -> MasterKey {
    MasterKey::from_random(suite, &[7; MASTER_KEY_BYTES_MAX])
}

fn copy(bench: &mut Criterion) {
    let (from, mut to) = (packet(1), packet(0));
    bench.bench_function("copy of 172 bytes", |bencher| {
        bencher.iter(|| {
            let from = &black_box(&from)[..PACKET_BYTES];
            black_box(&mut to)[..PACKET_BYTES].copy_from_slice(from);
        });
    });
}

fn protect(bench: &mut Criterion, suite: Suite, keys: usize) {
    let mut senders: Vec<_> = (0..keys).map(|_| Sender::new(&key(suite))).collect();
    let (mut made, mut sent) = (0, 0);
    bench.bench_function(&format!("protect, {suite}, {keys} in turn"), |bencher| {
        bencher.iter_batched_ref(
            || {
                made += 1;
                packet((made - 1) / keys)
            },
            |buffer| {
                let result = senders[sent % keys].protect_rtp(buffer, PACKET_BYTES);
                sent += 1;
                assert!(result.is_ok(), "{result:?}");
            },
            BatchSize::SmallInput,
        );
    });
}

fn unprotect(bench: &mut Criterion, suite: Suite, keys: usize) {
    // All streams are identical.
    let mut sender = Sender::new(&key(suite));
    let mut receivers: Vec<_> = (0..keys).map(|_| Receiver::new(&key(suite))).collect();
    let (mut made, mut received, mut protected) = (0, 0, (packet(0), 0));
    bench.bench_function(&format!("unprotect, {suite}, {keys} in turn"), |bencher| {
        bencher.iter_batched_ref(
            || {
                if made % keys == 0 {
                    let mut buffer = packet(made / keys);
                    let bytes = sender
                        .protect_rtp(&mut buffer, PACKET_BYTES)
                        .expect("the next packet");
                    protected = (buffer, bytes);
                }
                made += 1;
                protected
            },
            |(buffer, bytes)| {
                let result = receivers[received % keys].unprotect_rtp(&mut buffer[..*bytes]);
                received += 1;
                assert!(result.is_ok(), "{result:?}");
            },
            BatchSize::SmallInput,
        );
    });
}

fn srtp(bench: &mut Criterion) {
    copy(bench);
    for suite in Suite::ALL {
        for keys in [1, KEYS] {
            protect(bench, suite, keys);
            unprotect(bench, suite, keys);
        }
    }
}

criterion_group!(benches, srtp);
criterion_main!(benches);
