//! After its first packet, a jitter buffer does not allocate, whatever arrives. In another implementation, the memory for
//! recognising duplicates grew to megabytes per stream.

#[path = "../../../tests/counting.rs"]
mod counting;

use counting::allocations;
use threadbare_jitter::{Adaptive, Arrival, Config, JitterBuffer};
use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

const MS: u64 = 1_000_000;

#[test]
fn two_hours_of_duplicates_losses_and_sources_allocate_nothing() {
    let config = Config {
        adaptive: Some(Adaptive {
            min_ns: 20 * MS,
            max_ns: 200 * MS,
        }),
        ..Config::new(8_000, 60 * MS)
    };
    let mut buffer = JitterBuffer::new(config).unwrap();
    let mut before = 0;
    let mut outputs = 0_u64;
    for n in 0..360_000_u32 {
        if n == 1 {
            before = allocations();
        }
        let now_ns = 1_000 * MS + u64::from(n) * 20 * MS;
        let lost = n % 17 == 0;
        // The SSRC changes now and then, and some packets have an arbitrary number and SSRC.
        let ssrc = Ssrc(n / 10_000);
        let stray = n.is_multiple_of(97).then_some((n * 7919, Ssrc(n)));
        let packets = [Some((n, ssrc)), Some((n, ssrc)), stray];
        for (packet, ssrc) in packets.into_iter().flatten().skip(usize::from(lost)) {
            let arrival = Arrival {
                ssrc,
                seq: SeqNum(packet as u16),
                time: RtpTime(packet.wrapping_mul(160)),
                marker: false,
                arrival_ns: None,
                packet: u64::from(n),
            };
            buffer.handle_packet(now_ns, arrival);
            while buffer.poll_output(now_ns).is_some() {
                outputs += 1;
            }
        }
    }
    assert!(before > 0, "allocations are counted");
    assert_eq!(allocations(), before);
    assert!(outputs > 700_000, "{outputs}");
    assert!(buffer.stats().duplicates > 300_000);
}
