//! Once it is built, a jitter buffer allocates nothing, whatever arrives. A peer's duplicate filter grew to megabytes per
//! stream.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter::{Adaptive, Arrival, Config, JitterBuffer};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator; the counter is a plain thread-local without a destructor, so
// that it can be reached at any time and allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is the one that is asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    let before = ALLOCATIONS.with(Cell::get);
    assert!(before > 0, "allocations are counted");
    let mut outputs = 0_u64;
    for n in 0..360_000_u32 {
        let now_ns = 1_000 * MS + u64::from(n) * 20 * MS;
        let lost = n % 17 == 0;
        // Now and then another source, and anything at all.
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
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
    assert!(outputs > 700_000, "{outputs}");
    assert!(buffer.stats().duplicates > 300_000);
}
