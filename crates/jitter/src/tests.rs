use super::ring::Slot;
use super::*;

const MS: u64 = 1_000_000;
const A: u32 = 0xa;
const B: u32 = 0xb;
const C: u32 = 0xc;

/// A buffer with packets of 20 ms at 8 kHz. Packets are numbered in the order in which they are handed in.
struct Bed {
    buffer: JitterBuffer<u64>,
    now_ms: u64,
    packets: u64,
}

impl Bed {
    fn new(config: Config) -> Bed {
        Bed {
            buffer: JitterBuffer::new(config).unwrap(),
            now_ms: 1_000,
            packets: 0,
        }
    }

    fn in_order(latency_ms: u64) -> Bed {
        Bed::new(Config {
            release: Release::InOrder,
            ..Config::new(8_000, latency_ms * MS)
        })
    }

    fn at_deadline(latency_ms: u64) -> Bed {
        Bed::new(Config::new(8_000, latency_ms * MS))
    }

    /// Hands in one packet now and returns the outputs, abbreviated.
    fn arrive(&mut self, ssrc: u32, seq: u16, time: u32) -> Vec<String> {
        self.arrive_marked(ssrc, seq, time, false)
    }

    fn arrive_marked(&mut self, ssrc: u32, seq: u16, time: u32, marker: bool) -> Vec<String> {
        self.hand_in(ssrc, seq, time, marker);
        self.drain()
    }

    fn hand_in(&mut self, ssrc: u32, seq: u16, time: u32, marker: bool) {
        let arrival = Arrival {
            ssrc: Ssrc(ssrc),
            seq: SeqNum(seq),
            time: RtpTime(time),
            marker,
            arrival_ns: None,
            packet: self.packets,
        };
        self.packets += 1;
        self.buffer.handle_packet(self.now_ms * MS, arrival);
    }

    /// Hands in `count` packets of A, 20 ms apart, from `seq` on. Timestamps are 160 times the sequence number. After this, the
    /// time is that of the next packet.
    fn stream(&mut self, seq: u16, count: u16) -> Vec<String> {
        let mut outputs = Vec::new();
        for n in 0..count {
            let seq = seq.wrapping_add(n);
            let time = i32::from(seq as i16) * 160;
            outputs.extend(self.arrive(A, seq, time as u32));
            self.now_ms += 20;
        }
        outputs
    }

    fn drain(&mut self) -> Vec<String> {
        let mut outputs = Vec::new();
        while let Some(output) = self.buffer.poll_output(self.now_ms * MS) {
            outputs.push(match output {
                Output::Packet { seq, discont, .. } => {
                    format!("{seq}{}", if discont { "!" } else { "" })
                }
                Output::Lost {
                    first,
                    packets,
                    duration_ns,
                    ..
                } => format!("lost {first} {packets} {}ms", duration_ns / MS),
                Output::Resync { cause, ssrc } => format!("{cause:?} {:x}", ssrc.0),
                Output::Dropped { packet, reason } => format!("#{packet} {reason:?}"),
            });
        }
        outputs
    }

    fn wait(&mut self, ms: u64) -> Vec<String> {
        self.now_ms += ms;
        self.drain()
    }
}

#[test]
fn a_stream_in_order_needs_no_timer() {
    let mut bed = Bed::in_order(100);
    assert_eq!(bed.stream(65_534, 4), ["65534!", "65535", "0", "1"]);
    assert_eq!(bed.buffer.next_timeout(), None);
}

#[test]
fn packets_leave_at_their_deadline_in_sending_order() {
    let mut bed = Bed::at_deadline(60);
    assert_eq!(bed.stream(10, 3), [""; 0]);
    assert_eq!(bed.buffer.next_timeout(), Some(1_060 * MS));
    assert_eq!(bed.drain(), ["10!"]);
    assert_eq!(bed.wait(19), [""; 0]);
    assert_eq!(bed.wait(1), ["11"]);
    assert_eq!(bed.buffer.next_timeout(), Some(1_100 * MS));
}

#[test]
fn consecutive_losses_are_one_event_at_the_first_deadline() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 3);
    bed.now_ms += 60;
    // 13, 14 and 15 are missing; 13 was due to arrive at 1060.
    assert_eq!(bed.arrive(A, 16, 16 * 160), [""; 0]);
    assert_eq!(bed.buffer.next_timeout(), Some(1_160 * MS));
    assert_eq!(bed.wait(39), [""; 0]);
    assert_eq!(bed.wait(1), ["lost 13 3 60ms", "16!"]);
    assert_eq!(bed.arrive(A, 14, 14 * 160), ["#4 Late"]);
    assert_eq!(bed.buffer.stats().lost, 3);
}

#[test]
fn a_loss_before_a_silence_is_one_packet_long() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 10);
    bed.now_ms += 600_000;
    let time = 20 * 160 + 600_000 * 8;
    assert_eq!(
        bed.arrive_marked(A, 21, time + 160, true),
        ["lost 20 1 20ms", "21!"]
    );
    bed.now_ms += 20;
    assert_eq!(bed.arrive(A, 22, time + 320), ["22"]);
}

/// RFC 3551, section 4.1: the marker is on the first packet of a talkspurt. The packet that overtook it has no marker.
#[test]
fn a_packet_overtaken_at_a_talkspurts_start_is_waited_for() {
    for silence_ms in [100_u32, 1_000, 60_000] {
        let mut bed = Bed::in_order(100);
        bed.stream(10, 3);
        bed.now_ms += u64::from(silence_ms);
        let start = 13 * 160 + silence_ms * 8;
        bed.now_ms += 20;
        assert_eq!(bed.arrive(A, 14, start + 160), [""; 0], "{silence_ms}");
        assert_eq!(bed.wait(79), [""; 0]);
        assert_eq!(bed.arrive_marked(A, 13, start, true), ["13", "14"]);
    }
}

/// If the packet does not arrive, its loss is at its own time, which is 20 ms before the next packet.
#[test]
fn loss_at_a_talkspurt_start_precedes_the_next_packet() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 3);
    bed.now_ms += 1_020;
    bed.arrive(A, 14, 14 * 160 + 8_000);
    assert_eq!(bed.buffer.next_timeout(), Some((bed.now_ms + 80) * MS));
    bed.now_ms += 80;
    let lost = bed.buffer.poll_output(bed.now_ms * MS).unwrap();
    let sent_ns = (bed.now_ms - 100) * MS;
    assert!(
        matches!(lost, Output::Lost { first: SeqNum(13), packets: 1, time, play_ns, duration_ns }
            if time == RtpTime(13 * 160 + 8_000) && play_ns == sent_ns && duration_ns == 20 * MS),
        "{lost:?}"
    );
}

#[test]
fn silence_is_not_a_loss() {
    for mut bed in [Bed::in_order(100), Bed::at_deadline(0)] {
        bed.stream(10, 10);
        bed.now_ms += 600_000;
        let time = 20 * 160 + 600_000 * 8;
        assert_eq!(bed.arrive_marked(A, 20, time, true), ["20"]);
        assert_eq!(bed.buffer.stats().resyncs, 0);
    }
}

#[test]
fn single_implausible_packet_changes_nothing() {
    // These packets have another source, numbers far ahead or far behind, or the next number with a future timestamp.
    for (ssrc, seq, time) in [
        (B, 20, 20 * 160),
        (A, 30_000, 20 * 160),
        (A, 50_000, 20 * 160),
        (A, 20, 0x7000_0000),
        (A, 20, 0x9000_0000),
        (A, 19, 0x1234_5678),
        (A, 300, 300 * 160),
    ] {
        for mut bed in [Bed::in_order(100), Bed::at_deadline(0)] {
            bed.stream(10, 10);
            let before = (bed.buffer.stats(), bed.buffer.next_timeout());
            assert_eq!(bed.arrive(ssrc, seq, time), [""; 0], "{seq} {time:x}");
            let after = (bed.buffer.stats(), bed.buffer.next_timeout());
            assert_eq!((after.0.received, after.0.held_packets), (11, 1));
            assert_eq!(
                (before.0.skew_ns, before.0.jitter_ns, before.1),
                (after.0.skew_ns, after.0.jitter_ns, after.1)
            );
            assert_eq!(bed.stream(20, 3), ["20", "21", "22"], "{seq} {time:x}");
            bed.buffer.flush();
            assert_eq!(bed.drain(), ["#10 Flushed"]);
        }
    }
}

#[test]
fn second_consecutive_packet_confirms_a_restart_without_loss() {
    for (seq, time) in [
        (30_000, 0),
        (50_000, 1),
        (20, 0x7000_0000),
        (21, 0x7000_0000),
        (15, 0x7000_0000),
        (65_500, 0x5000_0000),
    ] {
        let mut bed = Bed::in_order(100);
        bed.stream(10, 10);
        bed.arrive(A, seq, time);
        bed.now_ms += 20;
        let expected = [
            "Restart a".to_owned(),
            format!("{seq}!"),
            format!("{}", seq + 1),
        ];
        assert_eq!(bed.arrive(A, seq + 1, time + 160), expected);
        bed.now_ms += 20;
        assert_eq!(bed.arrive(A, seq + 2, time + 320), [format!("{}", seq + 2)]);
    }
}

/// After a restart with lower numbers, other implementations dropped packets as late until the numbers had caught up. If neither
/// numbers nor timestamps show the restart, the buffer detects it after four packets.
#[test]
fn a_restart_with_slightly_lower_numbers_is_detected_after_few_packets() {
    let mut bed = Bed::in_order(100);
    bed.stream(0, 60);
    let outputs = bed.stream(0, 10);
    let late = ["#60 Duplicate", "#61 Duplicate", "#62 Duplicate"];
    assert_eq!(outputs[..3], late);
    assert_eq!(
        outputs[3..],
        ["Restart a", "3!", "4", "5", "6", "7", "8", "9"]
    );
}

#[test]
fn burst_of_late_packets_is_not_a_restart() {
    let mut bed = Bed::in_order(40);
    bed.stream(0, 20);
    bed.now_ms += 400;
    // The fast path has delivered 40, so 20 to 39 are lost. Then the slow path delivers them all at the same time.
    assert_eq!(bed.arrive(A, 40, 40 * 160), ["lost 20 20 400ms", "40!"]);
    for seq in 20..40 {
        let late = bed.arrive(A, seq, u32::from(seq) * 160);
        assert_eq!(late, [format!("#{} Late", seq + 1)]);
    }
    bed.now_ms += 20;
    assert_eq!(bed.arrive(A, 41, 41 * 160), ["41"]);
}

#[test]
fn another_source_takes_over_with_its_first_packet() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 10);
    assert_eq!(bed.arrive(B, 500, 99), [""; 0]);
    bed.now_ms += 20;
    assert_eq!(bed.arrive(B, 501, 259), ["NewSource b", "500!", "501"]);
    // While the new source sends, stragglers of the old one do not bring it back, even if they are consecutive.
    assert_eq!(bed.arrive(A, 20, 20 * 160), ["#12 OldSource"]);
    assert_eq!(bed.arrive(A, 21, 21 * 160), ["#13 OldSource"]);
    bed.now_ms += 20;
    assert_eq!(bed.arrive(B, 502, 419), ["502"]);
    // After the new source has been silent for a while, packets of the old source bring it back.
    bed.now_ms += 3_000;
    bed.arrive(A, 22, 22 * 160);
    assert_eq!(bed.arrive(A, 23, 23 * 160), ["NewSource a", "22!", "23"]);
}

#[test]
fn first_packets_of_a_new_source_may_be_reordered() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 10);
    bed.arrive(B, 501, 259);
    assert_eq!(bed.arrive(B, 500, 99), ["NewSource b", "500!", "501"]);
}

#[test]
fn old_source_is_drained_before_the_new_one() {
    let mut bed = Bed::at_deadline(200);
    assert_eq!(bed.stream(10, 5), [""; 0]);
    bed.arrive(B, 500, 0);
    bed.now_ms += 20;
    bed.arrive(B, 501, 160);
    assert_eq!(
        bed.wait(400),
        ["10!", "11", "12", "13", "14", "NewSource b", "500!", "501"]
    );
}

#[test]
fn an_announced_source_is_accepted_with_its_first_packet() {
    for (ssrc, cause) in [(B, ResyncCause::NewSource), (A, ResyncCause::Restart)] {
        let mut bed = Bed::at_deadline(60);
        bed.stream(10, 5);
        bed.drain();
        bed.buffer.announce_source(cause);
        let mut out = bed.arrive(ssrc, 30_000, 5);
        bed.now_ms += 20;
        out.extend(bed.arrive(ssrc, 30_001, 165));
        out.extend(bed.wait(200));
        let resync = format!("{cause:?} {ssrc:x}");
        assert_eq!(out, ["13", "14", &resync, "30000!", "30001"]);
    }
}

#[test]
fn a_third_source_replaces_the_candidate() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 2);
    bed.arrive(B, 1, 0);
    assert_eq!(bed.arrive(C, 7, 0), ["#2 Unconfirmed"]);
    assert_eq!(bed.arrive(C, 8, 160), ["NewSource c", "7!", "8"]);
    assert_eq!(bed.buffer.stats().dropped_unconfirmed, 1);
}

#[test]
fn outage_longer_than_the_ring_is_one_loss_after_two_packets() {
    for mut bed in [Bed::in_order(100), Bed::at_deadline(0)] {
        bed.stream(10, 10);
        bed.now_ms += 500 * 20;
        assert_eq!(bed.arrive(A, 520, 520 * 160), [""; 0]);
        bed.now_ms += 20;
        assert_eq!(
            bed.arrive(A, 521, 521 * 160),
            ["lost 20 500 10000ms", "520!", "521"]
        );
        assert_eq!(bed.buffer.stats().resyncs, 0);
        // After a packet was declared lost, it cannot be inserted before others that are still held.
        assert_eq!(bed.arrive(A, 519, 519 * 160), ["#12 Late"]);
    }
}

#[test]
fn a_longer_step_than_max_dropout_is_a_restart() {
    let mut bed = Bed::in_order(100);
    bed.buffer.set_tolerance_ms(8_000, 2_000);
    bed.stream(10, 10);
    bed.now_ms += 500 * 20;
    bed.arrive(A, 520, 520 * 160);
    bed.now_ms += 20;
    assert_eq!(bed.arrive(A, 521, 521 * 160), ["Restart a", "520!", "521"]);
}

#[test]
fn stall_is_not_a_loss() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 10);
    // Five seconds of silence, then all packets at once.
    bed.now_ms += 5_000;
    for seq in 20..270_u16 {
        let outputs = bed.arrive(A, seq, u32::from(seq) * 160);
        assert_eq!(outputs, [format!("{seq}")]);
    }
    assert_eq!(bed.buffer.stats().resyncs, 0);
}

#[test]
fn packets_of_an_event_with_one_timestamp_are_not_late_and_add_no_jitter() {
    let mut bed = Bed::in_order(100);
    bed.stream(10, 10);
    // RFC 4733: a key pressed for four seconds, one packet every 50 ms.
    for seq in 20..100_u16 {
        bed.now_ms += 50;
        assert_eq!(bed.arrive(A, seq, 20 * 160), [format!("{seq}")]);
    }
    assert_eq!(bed.buffer.stats().jitter_ns, 50 * MS / 16);
}

#[test]
fn packets_before_the_first_are_in_time_until_it_is_output() {
    let mut bed = Bed::at_deadline(60);
    bed.arrive(A, 2, 320);
    bed.arrive(A, 0, 0);
    bed.arrive(A, 1, 160);
    assert_eq!(bed.wait(60), ["0!", "1", "2"]);
    assert_eq!(bed.arrive(A, 65_535, 0_u32.wrapping_sub(160)), ["#3 Late"]);
}

#[test]
fn full_ring_outputs_the_oldest_packet_early() {
    let mut bed = Bed::at_deadline(3_000);
    assert_eq!(bed.stream(0, 62), [""; 0]);
    assert_eq!(bed.stream(62, 2), ["0!", "1"]);
    assert_eq!(bed.buffer.held_packets(), 62);
}

#[test]
fn with_drop_on_latency_the_oldest_is_dropped() {
    let mut bed = Bed::at_deadline(100);
    bed.buffer.set_drop_on_latency(true);
    bed.stream(0, 150);
    // A sender that is too fast sends ten packets at once.
    let mut outputs = Vec::new();
    for seq in 150..160_u16 {
        outputs.extend(bed.arrive(A, seq, u32::from(seq) * 160));
    }
    // Only packets of the last 100 ms are still held.
    assert_eq!(bed.buffer.held_packets(), 6);
    assert_eq!(outputs[0], "145", "was due anyway");
    assert!(
        outputs[1..]
            .iter()
            .all(|output| output.ends_with("Latency"))
    );
    assert_eq!(bed.buffer.stats().dropped_latency, 8);
}

#[test]
fn a_new_latency_applies_at_once() {
    let mut bed = Bed::at_deadline(500);
    bed.stream(0, 2);
    bed.buffer.set_latency_ns(40 * MS).unwrap();
    assert_eq!(bed.buffer.next_timeout(), Some(1_040 * MS));
    assert_eq!(bed.drain(), ["0!"]);
    let refused = bed.buffer.set_latency_ns(LATENCY_NS_MAX + 1);
    assert_eq!(refused, Err(ConfigError::Latency(LATENCY_NS_MAX + 1)));
}

#[test]
fn packets_can_be_added_with_an_arrival_time() {
    let mut bed = Bed::at_deadline(50);
    let mut hand_in = |seq: u16, arrival_ms: u64, now_ms: u64| {
        let arrival = Arrival {
            ssrc: Ssrc(A),
            seq: SeqNum(seq),
            time: RtpTime(u32::from(seq) * 160),
            marker: false,
            arrival_ns: Some(arrival_ms * MS),
            packet: 0,
        };
        bed.buffer.handle_packet(now_ms * MS, arrival);
    };
    // Two packets of one slice, 20 ms apart.
    hand_in(0, 1_000, 1_030);
    hand_in(1, 1_020, 1_030);
    assert_eq!(bed.buffer.next_timeout(), Some(1_050 * MS));
    assert_eq!(bed.buffer.stats().jitter_ns, 0);
}

#[test]
fn adaptive_latency_covers_the_jitter() {
    let mut bed = Bed::new(Config {
        adaptive: Some(Adaptive {
            min_ns: 20 * MS,
            max_ns: 200 * MS,
        }),
        ..Config::new(8_000, 20 * MS)
    });
    let start_ms = bed.now_ms;
    let mut late = Vec::new();
    for seq in 0..3_000_u16 {
        // In the middle of the stream, every fourth packet is delayed by 90 ms and overtaken by three others.
        let delays = (500..1_000).contains(&seq);
        let arrives = start_ms + u64::from(seq) * 20;
        bed.now_ms = arrives;
        if delays && seq % 4 == 0 {
            continue;
        }
        bed.arrive(A, seq, u32::from(seq) * 160);
        if delays && seq % 4 == 3 {
            bed.now_ms = arrives + 30;
            let out = bed.arrive(A, seq - 3, u32::from(seq - 3) * 160);
            late.extend(
                out.into_iter()
                    .filter(|out| out.ends_with("Late"))
                    .map(|_| seq),
            );
        }
        if seq == 999 {
            assert_eq!(bed.buffer.latency_ns(), 95 * MS);
        }
    }
    // The latency grows because of late packets.
    assert!(
        !late.is_empty() && late.len() < 20 && late.iter().all(|seq| *seq < 600),
        "{late:?}"
    );
    // 40 s later it has decreased, in steps.
    assert!(
        bed.buffer.latency_ns() <= 25 * MS,
        "{}",
        bed.buffer.latency_ns()
    );
}

#[test]
fn a_buffer_that_was_not_drained_drops_packets_and_then_works_again() {
    let mut bed = Bed::in_order(100);
    for seq in 0..1_000_u16 {
        bed.hand_in(A, seq, u32::from(seq) * 160, false);
        bed.now_ms += 20;
    }
    let stats = bed.buffer.stats();
    assert_eq!(u64::from(stats.held_packets) + stats.dropped(), 1_000);
    assert!(bed.drain().len() > 60);
    assert!(
        bed.stream(1_000, 3)
            .ends_with(&["1001".into(), "1002".into()])
    );
}

#[test]
fn flush_returns_all_packets_and_restarts() {
    let mut bed = Bed::at_deadline(100);
    bed.stream(10, 3);
    bed.arrive(B, 7, 0);
    bed.buffer.flush();
    assert_eq!(
        bed.drain(),
        ["#3 Flushed", "#0 Flushed", "#1 Flushed", "#2 Flushed"]
    );
    assert_eq!(bed.buffer.next_timeout(), None);
    bed.arrive(C, 1, 0);
    assert_eq!(bed.wait(100), ["1!"]);
    assert_eq!(bed.buffer.stats().resyncs, 0);
}

#[test]
fn at_the_end_all_packets_are_output_in_order() {
    let mut bed = Bed::at_deadline(100);
    bed.stream(10, 3);
    bed.arrive(A, 14, 14 * 160);
    bed.buffer.release_all();
    assert_eq!(bed.drain(), ["10!", "11", "12", "lost 13 1 20ms", "14!"]);
    bed.stream(15, 1);
    assert_eq!(bed.wait(200), ["15"]);
}

/// A process has thousands of jitter buffers, so each must be small.
#[test]
fn a_jitter_buffer_stays_small() {
    type Handle = std::num::NonZeroU64;
    let hot = size_of::<JitterBuffer<Handle>>();
    let slots = 64 * size_of::<Slot<Handle>>();
    let cold = size_of::<Cold<Handle>>();
    assert_eq!(hot, 4 * 64, "cache lines");
    assert!(hot + slots + cold <= 2_304, "{hot} + {slots} + {cold}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = Config::new(8_000, 100 * MS);
    let refused = |config| JitterBuffer::<u64>::new(config).err();
    assert_eq!(refused(good), None);
    let config = Config {
        clock_rate_hz: 0,
        ..good
    };
    assert_eq!(refused(config), Some(ConfigError::ClockRate(0)));
    for capacity_packets in [0, 32, 100, 16_384] {
        let config = Config {
            capacity_packets,
            ..good
        };
        assert_eq!(
            refused(config),
            Some(ConfigError::Capacity(capacity_packets))
        );
    }
    let (min_ns, max_ns) = (2, 1);
    let config = Config {
        adaptive: Some(Adaptive { min_ns, max_ns }),
        ..good
    };
    assert_eq!(
        refused(config),
        Some(ConfigError::Adaptive { min_ns, max_ns })
    );
}

/// Two hours at a clock rate so high that timestamps wrap every seven minutes.
#[test]
fn timestamps_continue_over_many_wraps() {
    let mut buffer = JitterBuffer::new(Config::new(CLOCK_RATE_HZ_MAX, 0)).unwrap();
    for n in 0..360_000_u32 {
        let now_ns = (1_000 + u64::from(n) * 20) * MS;
        let arrival = Arrival {
            ssrc: Ssrc(A),
            seq: SeqNum(n as u16),
            time: RtpTime(n.wrapping_mul(200_000)),
            marker: false,
            arrival_ns: None,
            packet: n,
        };
        buffer.handle_packet(now_ns, arrival);
        let output = buffer.poll_output(now_ns);
        assert!(
            matches!(output, Some(Output::Packet { packet, play_ns, .. }) if packet == n && play_ns == now_ns),
            "{n}: {output:?}"
        );
    }
    assert_eq!(buffer.stats().resyncs, 0);
}

#[test]
fn the_adaptive_latency_shrinks_at_a_talkspurts_start_and_not_before() {
    let mut bed = Bed::new(Config {
        adaptive: Some(Adaptive {
            min_ns: 20 * MS,
            max_ns: 200 * MS,
        }),
        ..Config::new(8_000, 120 * MS)
    });
    bed.stream(0, 50);
    assert_eq!(bed.buffer.latency_ns(), 120 * MS);
    bed.stream(50, 50);
    assert_eq!(bed.buffer.latency_ns(), 115 * MS);
    bed.arrive_marked(A, 100, 100 * 160, true);
    assert_eq!(bed.buffer.latency_ns(), 20 * MS);
}

#[test]
fn two_forged_packets_cost_half_a_second() {
    let mut bed = Bed::in_order(100);
    bed.stream(0, 100);
    bed.arrive(B, 7, 7);
    bed.arrive(B, 8, 8);
    let outputs = bed.stream(100, 100);
    let dropped = outputs
        .iter()
        .filter(|output| output.ends_with("OldSource"));
    assert_eq!(dropped.count(), 25);
    assert!(outputs.ends_with(&["198".into(), "199".into()]));
}

/// The caller's socket may still hold the missing packet. So `poll_before_loss` does not report the loss, but it returns other outputs.
#[test]
fn a_missing_packet_is_not_reported_as_lost_before_the_socket_is_drained() {
    let mut bed = Bed::in_order(0);
    bed.stream(0, 2);
    bed.hand_in(A, 3, 3 * 160, false);
    // Two packets of unknown sources arrive, and the first one is dropped.
    bed.hand_in(B, 70, 0, false);
    bed.hand_in(C, 90, 0, false);
    let now_ns = (bed.now_ms + 1_000) * MS;
    assert!(!bed.buffer.is_loss_due(now_ns), "a drop comes first");
    let dropped = bed.buffer.poll_before_loss(now_ns);
    assert!(
        matches!(dropped, Some(Output::Dropped { .. })),
        "{dropped:?}"
    );
    assert_eq!(bed.buffer.poll_before_loss(now_ns), None);
    assert!(bed.buffer.is_loss_due(now_ns));
    // The missing packet arrives now.
    bed.hand_in(A, 2, 2 * 160, false);
    assert!(!bed.buffer.is_loss_due(now_ns));
    assert_eq!(bed.drain(), ["2", "3"]);
}

#[test]
fn loss_from_a_full_ring_or_at_the_end_is_not_delayed() {
    let mut bed = Bed::new(Config {
        release: Release::InOrder,
        capacity_packets: 64,
        ..Config::new(8_000, 1_000 * MS)
    });
    bed.stream(0, 2);
    bed.hand_in(A, 63, 63 * 160, false);
    assert_eq!(bed.buffer.poll_before_loss(bed.now_ms * MS), None);
    bed.hand_in(A, 64, 64 * 160, false);
    let lost = bed.buffer.poll_before_loss(bed.now_ms * MS);
    assert!(
        matches!(lost, Some(Output::Lost { packets: 61, .. })),
        "{lost:?}"
    );
    bed.drain();
    bed.hand_in(A, 66, 66 * 160, false);
    bed.buffer.release_all();
    let lost = bed.buffer.poll_before_loss(bed.now_ms * MS);
    assert!(
        matches!(lost, Some(Output::Lost { packets: 1, .. })),
        "{lost:?}"
    );
}

/// A latency of ten seconds works in full, even with packets of 10 ms. If the latency grows, the buffer gets the places that it
/// needs.
#[test]
fn packets_wait_for_the_whole_of_a_long_latency() {
    const LATENCY_MS: u64 = 10_000;
    let capacity_packets = capacity_for(LATENCY_MS * MS, 10 * MS);
    let config = |latency_ms: u64, capacity_packets| Config {
        capacity_packets,
        ..Config::new(8_000, latency_ms * MS)
    };
    let mut beds = [
        Bed::new(config(LATENCY_MS, capacity_packets)),
        Bed::new(config(40, CAPACITY_PACKETS_MIN)),
    ];
    let held = LATENCY_MS as u16 / 20;
    for (bed, grows) in beds.iter_mut().zip([false, true]) {
        let mut heard = bed.stream(0, 100);
        if grows {
            bed.buffer.grow(capacity_packets).unwrap();
            bed.buffer.set_latency_ns(LATENCY_MS * MS).unwrap();
        }
        heard.extend(bed.stream(100, held + 100));
        assert_eq!(bed.buffer.stats().dropped(), 0);
        heard.extend(bed.stream(held + 200, 2 * held));
        let expected = (0..heard.len()).map(|seq| match seq {
            0 => "0!".to_owned(),
            seq => seq.to_string(),
        });
        assert_eq!(heard, expected.collect::<Vec<_>>());
        // All packets of the last ten seconds are held.
        assert_eq!(bed.buffer.held_packets(), u32::from(held));
    }
}
