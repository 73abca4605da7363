//! Scenarios in milliseconds of virtual time, and random interleavings compared with a simple model that sees everything at once.

mod random;

use super::*;

const MS: u64 = 1_000_000;
const AUDIO: StreamId = 1;
const OTHER: StreamId = 2;

struct Bench {
    core: RecordCore,
    now_ms: u64,
}

/// Creates a main stream and two others, with live inputs or not, and a stall timeout of 1 s.
fn bench(is_input_live: bool, is_live: bool) -> Bench {
    let mut core = RecordCore::default();
    core.handle_settings(
        0,
        Settings {
            is_live,
            stall_timeout_ns: 1000 * MS,
        },
    );
    core.handle_add(0, AUDIO);
    core.handle_add(0, OTHER);
    for id in [MAIN, AUDIO, OTHER] {
        core.handle_liveness(id, is_input_live);
    }
    Bench { core, now_ms: 0 }
}

fn span(media: Media, begin_ms: u64, end_ms: u64) -> Arrival {
    Arrival {
        begin_ns: Some(begin_ms * MS),
        end_ns: Some(end_ms * MS),
        media,
        ..Arrival::default()
    }
}

fn key(begin_ms: u64, end_ms: u64) -> Arrival {
    span(Media::Coded, begin_ms, end_ms)
}

fn delta(begin_ms: u64, end_ms: u64) -> Arrival {
    Arrival {
        is_delta: true,
        ..key(begin_ms, end_ms)
    }
}

fn audio(begin_ms: u64, end_ms: u64) -> Arrival {
    span(Media::Audio, begin_ms, end_ms)
}

fn video(begin_ms: u64, end_ms: u64) -> Arrival {
    span(Media::Video, begin_ms, end_ms)
}

/// Parts that pass at once: start, end, shift, ms.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    parts: Vec<(u64, u64, i64)>,
    /// Decision on the remaining part.
    rest: Verdict,
}

impl Bench {
    fn arrive(&mut self, id: StreamId, arrival: Arrival) -> Span {
        self.core.handle_arrival(self.now_ms * MS, id, &arrival)
    }

    /// Takes all parts until one is held.
    fn take(&mut self, id: StreamId, span: &mut Span) -> Got {
        let mut parts = Vec::new();
        loop {
            match self.core.decide(self.now_ms * MS, id, span) {
                Verdict::Pass(piece) => {
                    let shift_ms = piece.shift_ns / MS.cast_signed();
                    parts.push((piece.from_ns / MS, piece.to_ns / MS, shift_ms));
                    span.from_ns = piece.to_ns;
                    if piece.is_last {
                        let rest = Verdict::Drop;
                        return Got { parts, rest };
                    }
                }
                rest => return Got { parts, rest },
            }
        }
    }

    fn feed(&mut self, id: StreamId, arrival: Arrival) -> Got {
        let mut span = self.arrive(id, arrival);
        self.take(id, &mut span)
    }

    fn record(&mut self, record: bool) {
        self.core.handle_record(self.now_ms * MS, record);
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }
}

fn passes(from_ms: u64, to_ms: u64, shift_ms: i64) -> Got {
    Got {
        parts: vec![(from_ms, to_ms, shift_ms)],
        rest: Verdict::Drop,
    }
}

fn nothing(rest: Verdict) -> Got {
    Got {
        parts: Vec::new(),
        rest,
    }
}

#[test]
fn a_recording_begins_with_a_keyframe_of_the_main_stream() {
    let mut bench = bench(true, true);
    assert_eq!(bench.feed(MAIN, key(0, 40)), nothing(Verdict::Drop));
    bench.record(true);
    assert_eq!(bench.feed(MAIN, delta(40, 80)), nothing(Verdict::Drop));
    assert_eq!(bench.actions(), [Action::RequestKeyframe]);
    assert_eq!(bench.feed(MAIN, key(80, 120)), passes(80, 120, 0));
    assert_eq!(bench.actions(), [Action::RecordingChanged]);
    assert_eq!(bench.feed(MAIN, delta(120, 160)), passes(120, 160, 0));
    // This picture is shown before that keyframe, and depends on missing pictures.
    assert_eq!(bench.feed(MAIN, delta(60, 70)), nothing(Verdict::Drop));
}

#[test]
fn other_streams_are_cut_at_the_start_and_stop_of_the_main_stream() {
    let mut bench = bench(true, true);
    bench.record(true);
    let mut early = bench.arrive(AUDIO, audio(30, 50));
    assert_eq!(bench.take(AUDIO, &mut early), nothing(Verdict::Hold));
    bench.feed(MAIN, key(40, 80));
    assert_eq!(bench.take(AUDIO, &mut early), passes(40, 50, 0));
    let mut beyond = bench.arrive(AUDIO, audio(70, 90));
    let cut = passes(70, 80, 0).rest(Verdict::Hold);
    assert_eq!(bench.take(AUDIO, &mut beyond), cut);
    bench.record(false);
    assert_eq!(bench.take(AUDIO, &mut beyond), nothing(Verdict::Hold));
    bench.feed(MAIN, key(80, 120));
    assert_eq!(bench.take(AUDIO, &mut beyond), nothing(Verdict::Drop));
}

#[test]
fn a_picture_is_recorded_whole_or_not_at_all() {
    let mut bench = bench(true, true);
    bench.record(true);
    bench.feed(MAIN, audio(25, 65));
    bench.record(false);
    bench.feed(MAIN, audio(65, 200));
    assert_eq!(bench.feed(AUDIO, video(0, 40)), nothing(Verdict::Drop));
    // This picture is shown at the start of the recording.
    assert_eq!(bench.feed(AUDIO, video(20, 30)), passes(25, 30, 0));
    assert_eq!(bench.feed(AUDIO, video(40, 80)), passes(40, 80, 0));
    // This picture starts at the end of the recording, except for rounding.
    assert_eq!(bench.feed(AUDIO, video(64, 84)), nothing(Verdict::Drop));
}

#[test]
fn a_coded_stream_passes_whole_buffers_from_a_keyframe_on() {
    let mut bench = bench(true, true);
    bench.record(true);
    bench.feed(MAIN, audio(10, 60));
    assert_eq!(bench.feed(OTHER, key(0, 20)), nothing(Verdict::Drop));
    assert_eq!(bench.feed(OTHER, delta(20, 40)), nothing(Verdict::Drop));
    assert_eq!(bench.feed(OTHER, key(40, 60)), passes(40, 60, 0));
    let mut next = bench.arrive(OTHER, delta(60, 80));
    assert_eq!(bench.take(OTHER, &mut next), nothing(Verdict::Hold));
    bench.feed(MAIN, audio(60, 70));
    bench.record(false);
    // This buffer starts before the end.
    assert_eq!(bench.take(OTHER, &mut next), passes(60, 80, 0));
    bench.feed(MAIN, audio(70, 200));
    assert_eq!(bench.feed(OTHER, delta(80, 100)), nothing(Verdict::Drop));
}

/// In decoding order, the keyframe that ends a recording comes before some pictures that are shown before it.
#[test]
fn pictures_that_are_decoded_after_the_ending_keyframe_but_shown_before_it_are_recorded() {
    let mut bench = bench(true, true);
    for other in [AUDIO, OTHER] {
        bench.core.handle_eos(0, other);
    }
    bench.record(true);
    let coded = |begin: u64, decode: u64, is_delta| Arrival {
        decode_ns: Some(decode * MS),
        is_delta,
        ..key(begin, begin + 10)
    };
    bench.feed(MAIN, coded(20, 0, false));
    bench.feed(MAIN, coded(50, 10, true));
    bench.record(false);
    assert_eq!(bench.feed(MAIN, coded(30, 20, true)), passes(30, 40, 0));
    assert_eq!(bench.feed(MAIN, coded(80, 30, true)), passes(80, 90, 0));
    assert_eq!(bench.feed(MAIN, coded(40, 40, true)), passes(40, 50, 0));
    let keyframe = coded(110, 50, false);
    assert_eq!(bench.feed(MAIN, keyframe), nothing(Verdict::Drop));
    assert!(bench.core.is_recording());
    assert_eq!(bench.feed(MAIN, coded(70, 60, true)), passes(70, 80, 0));
    let last = coded(120, 95, true);
    assert_eq!(bench.feed(MAIN, last), nothing(Verdict::Drop));
    assert!(!bench.core.is_recording());
}

/// Checks the table of inputs and outputs: whether data is dropped or held, and the output's time afterwards.
#[test]
fn gaps_between_recordings_follow_the_table_of_live_inputs_and_outputs() {
    // The columns are: `is-live`, and for a live input, the shifts of the first and of the second recording.
    for (is_live, shifts) in [(false, [-20, -60]), (true, [0, 0])] {
        let mut bench = bench(true, is_live);
        assert_eq!(bench.feed(MAIN, audio(0, 20)), nothing(Verdict::Drop));
        bench.record(true);
        assert_eq!(bench.feed(MAIN, audio(20, 40)), passes(20, 40, shifts[0]));
        bench.record(false);
        assert_eq!(bench.feed(MAIN, audio(40, 80)), nothing(Verdict::Drop));
        bench.record(true);
        assert_eq!(bench.feed(MAIN, audio(80, 99)), passes(80, 99, shifts[1]));
    }
    for (is_live, shifts) in [(false, [0, 0]), (true, [100, 300])] {
        let mut bench = bench(false, is_live);
        let mut first = bench.arrive(MAIN, audio(0, 20));
        assert_eq!(bench.take(MAIN, &mut first), nothing(Verdict::Hold));
        bench.now_ms = 100;
        bench.record(true);
        assert_eq!(bench.take(MAIN, &mut first), passes(0, 20, shifts[0]));
        bench.record(false);
        let mut second = bench.arrive(MAIN, audio(20, 40));
        assert_eq!(bench.take(MAIN, &mut second), nothing(Verdict::Hold));
        bench.now_ms = 300;
        bench.record(true);
        assert_eq!(bench.take(MAIN, &mut second), passes(20, 40, shifts[1]));
    }
}

/// A source runs ahead of the clock, or behind it. Its times shift only by the time for which it is held.
#[test]
fn an_input_that_is_not_blocked_keeps_its_timestamps() {
    let mut bench = bench(false, true);
    bench.now_ms = 10;
    bench.record(true);
    assert_eq!(bench.feed(MAIN, audio(0, 500)), passes(0, 500, 0));
    bench.record(false);
    bench.now_ms = 100;
    bench.record(true);
    assert_eq!(bench.feed(MAIN, audio(500, 600)), passes(500, 600, 0));
}

#[test]
fn while_the_main_stream_is_held_other_files_continue_to_the_end_of_its_buffer() {
    let mut bench = bench(false, true);
    bench.record(true);
    assert_eq!(bench.feed(MAIN, audio(0, 20)), passes(0, 20, 0));
    assert_eq!(bench.feed(AUDIO, audio(0, 20)), passes(0, 20, 0));
    let mut other = bench.arrive(AUDIO, audio(20, 40));
    assert_eq!(bench.take(AUDIO, &mut other), nothing(Verdict::Hold));
    bench.record(false);
    let mut main = bench.arrive(MAIN, audio(20, 40));
    assert_eq!(bench.take(MAIN, &mut main), nothing(Verdict::Hold));
    assert_eq!(bench.take(AUDIO, &mut other), passes(20, 40, 0));
    let mut next = bench.arrive(AUDIO, audio(40, 60));
    assert_eq!(bench.take(AUDIO, &mut next), nothing(Verdict::Hold));
    bench.now_ms = 42;
    bench.record(true);
    assert_eq!(bench.take(MAIN, &mut main), passes(20, 40, 42));
    assert_eq!(bench.feed(MAIN, audio(40, 60)), passes(40, 60, 42));
    assert_eq!(bench.take(AUDIO, &mut next), passes(40, 60, 42));
    // Before the first recording, all streams are held.
    let mut fresh = super::tests::bench(false, false);
    for id in [MAIN, AUDIO] {
        let mut first = fresh.arrive(id, audio(0, 20));
        assert_eq!(fresh.take(id, &mut first), nothing(Verdict::Hold));
    }
}

#[test]
fn a_stream_with_delta_units_stops_before_its_next_keyframe() {
    let mut bench = bench(true, false);
    bench.record(true);
    bench.feed(MAIN, key(0, 20));
    bench.feed(MAIN, delta(20, 40));
    bench.actions();
    bench.record(false);
    assert_eq!(bench.feed(MAIN, delta(40, 60)), passes(40, 60, 0));
    assert_eq!(bench.actions(), [Action::RequestKeyframe]);
    assert_eq!(bench.feed(AUDIO, audio(0, 50)), passes(0, 50, 0));
    assert!(bench.core.is_recording());
    // `record` is set again, so the recording continues.
    bench.record(true);
    assert_eq!(bench.feed(MAIN, key(60, 80)), passes(60, 80, 0));
    bench.record(false);
    assert_eq!(bench.feed(MAIN, key(80, 100)), nothing(Verdict::Drop));
    assert_eq!(bench.feed(AUDIO, audio(50, 100)).parts, [(50, 80, 0)]);
    assert!(!bench.core.is_recording());
}

#[test]
fn stop_without_a_keyframe_ends_with_the_stall_timeout() {
    let mut bench = bench(true, true);
    bench.record(true);
    bench.feed(MAIN, key(0, 20));
    bench.feed(MAIN, delta(20, 40));
    bench.record(false);
    let mut across = bench.arrive(AUDIO, audio(30, 60));
    let cut = passes(30, 40, 0).rest(Verdict::Hold);
    assert_eq!(bench.take(AUDIO, &mut across), cut);
    bench.now_ms = 1000;
    assert_eq!(bench.take(AUDIO, &mut across), passes(40, 60, 0));
    assert_eq!(bench.feed(AUDIO, audio(60, 80)), nothing(Verdict::Drop));
    // The recording does not wait for this end any longer, either.
    bench.now_ms = 2000;
    bench.core.handle_timeout(2000 * MS);
    assert!(!bench.core.is_recording());
    // The main stream is back, but none of it is recorded any more.
    assert_eq!(bench.feed(MAIN, delta(80, 100)), nothing(Verdict::Drop));
}

#[test]
fn a_start_requests_a_keyframe_once_a_second() {
    let mut bench = bench(true, false);
    let asked = |bench: &mut Bench| {
        let actions = bench.actions();
        let is_request = |action: &&Action| **action == Action::RequestKeyframe;
        actions.iter().filter(is_request).count()
    };
    bench.feed(MAIN, delta(0, 20));
    assert_eq!(asked(&mut bench), 0, "nothing is to be recorded");
    bench.record(true);
    while bench.now_ms < 2000 {
        let now_ms = bench.now_ms;
        assert_eq!(
            bench.feed(MAIN, delta(now_ms, now_ms + 20)),
            nothing(Verdict::Drop)
        );
        let expected = usize::from(now_ms.is_multiple_of(1000));
        assert_eq!(asked(&mut bench), expected, "{now_ms}");
        bench.now_ms += 20;
    }
    // Raw video may have delta units, too.
    let picture = Arrival {
        is_delta: true,
        ..video(2000, 2020)
    };
    assert_eq!(bench.feed(MAIN, picture), nothing(Verdict::Drop));
    bench.actions();
    bench.feed(MAIN, key(2020, 2040));
    bench.feed(MAIN, delta(2040, 2060));
    assert_eq!(asked(&mut bench), 0);
}

#[test]
fn audio_waits_for_the_end_of_the_main_streams_buffer_unless_that_is_stuck() {
    let mut bench = bench(true, true);
    bench.core.handle_clock(true);
    bench.record(true);
    bench.feed(MAIN, audio(0, 20));
    bench.core.handle_pushed(MAIN);
    let mut across = bench.arrive(AUDIO, audio(5, 25));
    assert_eq!(bench.take(AUDIO, &mut across), nothing(Verdict::Hold));
    bench.now_ms = 500;
    assert_eq!(bench.take(AUDIO, &mut across), nothing(Verdict::Hold));
    // A push that takes long may be the wait of a muxer for audio.
    bench.feed(MAIN, audio(20, 24));
    assert_eq!(bench.take(AUDIO, &mut across), nothing(Verdict::Hold));
    let due_ms = bench.core.next_timeout(AUDIO).unwrap() / MS;
    assert!((500..600).contains(&due_ms));
    bench.now_ms = due_ms;
    let got = bench.take(AUDIO, &mut across);
    assert_eq!(
        (&got.parts[..], got.rest),
        (&[(5, 24, 0)][..], Verdict::Hold)
    );
}

#[test]
fn held_data_of_a_file_is_not_lost() {
    let mut bench = bench(false, false);
    bench.record(true);
    bench.feed(MAIN, audio(0, 40));
    let mut across = bench.arrive(AUDIO, audio(30, 60));
    bench.record(false);
    let cut = passes(30, 40, 0).rest(Verdict::Hold);
    assert_eq!(bench.take(AUDIO, &mut across), cut);
    let mut next = bench.arrive(MAIN, audio(40, 80));
    assert_eq!(bench.take(MAIN, &mut next), nothing(Verdict::Hold));
    assert_eq!(bench.take(AUDIO, &mut across), passes(40, 60, 0));
    let mut later = bench.arrive(AUDIO, audio(60, 100));
    // No data is missing, so nothing stalls, however long the pause is.
    bench.now_ms = 1_000_000;
    assert_eq!(bench.take(AUDIO, &mut later), nothing(Verdict::Hold));
    assert_eq!(bench.core.next_timeout(AUDIO), None);
    bench.record(true);
    assert_eq!(bench.take(MAIN, &mut next), passes(40, 80, 0));
    let cut = passes(60, 80, 0).rest(Verdict::Hold);
    assert_eq!(bench.take(AUDIO, &mut later), cut);
}

/// Like a muxer, this sink accepts more of the main stream only when it has data of the other one.
#[test]
fn a_longer_buffer_of_another_stream_begins_with_the_main_one() {
    for (arrival, got) in [
        (audio(0, 90), passes(0, 20, 0).rest(Verdict::Hold)),
        (video(0, 90), passes(0, 90, 0)),
        (key(0, 90), passes(0, 90, 0)),
    ] {
        let mut bench = bench(false, false);
        bench.record(true);
        bench.feed(MAIN, audio(0, 20));
        let mut first = bench.arrive(AUDIO, arrival);
        assert_eq!(bench.take(AUDIO, &mut first), got);
    }
}

#[test]
fn live_stream_is_not_held_with_the_main_stream() {
    let mut bench = bench(false, false);
    bench.core.handle_liveness(AUDIO, true);
    let mut main = bench.arrive(MAIN, audio(0, 20));
    assert_eq!(bench.take(MAIN, &mut main), nothing(Verdict::Hold));
    assert_eq!(bench.feed(AUDIO, audio(0, 20)), nothing(Verdict::Drop));
    assert_eq!(bench.feed(OTHER, audio(0, 20)), nothing(Verdict::Hold));
}

#[test]
fn the_end_of_the_main_stream_ends_the_other_streams() {
    let mut bench = bench(true, false);
    bench.record(true);
    bench.feed(MAIN, audio(0, 40));
    bench.feed(AUDIO, audio(0, 20));
    bench.feed(OTHER, audio(0, 40));
    bench.core.handle_eos(0, MAIN);
    assert!(bench.core.is_over(OTHER) && !bench.core.is_over(AUDIO));
    assert!(bench.core.is_recording(), "one is behind");
    let cut = passes(20, 40, 0).rest(Verdict::Ended);
    assert_eq!(bench.feed(AUDIO, audio(20, 50)), cut);
    assert!(!bench.core.is_recording());
    assert_eq!(bench.feed(AUDIO, audio(50, 60)), nothing(Verdict::Ended));
    // Another stream starts on each pad.
    for id in [MAIN, AUDIO] {
        bench.core.handle_stream_start(id);
    }
    assert_eq!(bench.feed(MAIN, audio(60, 80)), passes(60, 80, -20));
    assert_eq!(bench.feed(AUDIO, audio(60, 80)), passes(60, 80, -20));
}

#[test]
fn another_stream_may_end_first() {
    let mut bench = bench(true, false);
    bench.record(true);
    bench.feed(MAIN, audio(0, 40));
    bench.feed(AUDIO, audio(0, 20));
    bench.core.handle_eos(0, AUDIO);
    assert_eq!(bench.feed(MAIN, audio(40, 60)), passes(40, 60, 0));
    bench.record(false);
    assert!(!bench.core.is_recording(), "it is not waited for");
}

#[test]
fn stalled_main_stream_is_reported_and_blocks_no_stream() {
    let mut bench = bench(true, true);
    bench.record(true);
    bench.feed(MAIN, audio(0, 40));
    bench.actions();
    let mut next = bench.arrive(AUDIO, audio(40, 60));
    assert_eq!(bench.take(AUDIO, &mut next), nothing(Verdict::Hold));
    assert_eq!(bench.core.next_timeout(AUDIO), Some(1000 * MS));
    bench.now_ms = 999;
    assert_eq!(bench.take(AUDIO, &mut next), nothing(Verdict::Hold));
    bench.now_ms = 1000;
    assert_eq!(bench.take(AUDIO, &mut next), passes(40, 60, 0));
    assert_eq!(bench.actions(), [Action::Stalled]);
    assert_eq!(bench.feed(AUDIO, audio(60, 80)), passes(60, 80, 0));
    // The recording ends at the position of the other streams. A stream that is behind reaches that position, too.
    bench.record(false);
    assert_eq!(bench.feed(OTHER, audio(0, 90)), passes(0, 80, 0));
    assert_eq!(bench.feed(AUDIO, audio(80, 100)), nothing(Verdict::Drop));
    // The main stream returns late.
    assert_eq!(bench.feed(MAIN, audio(40, 60)), passes(40, 60, 0));
    assert_eq!(bench.actions(), [Action::Resumed]);
    assert_eq!(bench.feed(MAIN, audio(60, 90)), passes(60, 80, 0));
    assert_eq!(bench.actions(), [Action::RecordingChanged]);
}

impl Got {
    fn rest(mut self, rest: Verdict) -> Self {
        self.rest = rest;
        self
    }
}

/// A stream that delivers no more data does not keep `recording` set.
#[test]
fn recording_end_is_reported_when_all_streams_reach_it_or_time_out() {
    for is_given_up in [false, true] {
        let mut bench = bench(true, false);
        bench.record(true);
        bench.feed(MAIN, audio(0, 40));
        bench.feed(AUDIO, audio(0, 20));
        bench.actions();
        bench.now_ms = 10;
        bench.record(false);
        assert_eq!(bench.actions(), []);
        if is_given_up {
            assert_eq!(bench.core.next_timeout(MAIN), Some(1010 * MS));
            bench.core.handle_timeout(1010 * MS);
        } else {
            assert_eq!(bench.feed(AUDIO, audio(20, 40)), passes(20, 40, 0));
        }
        assert_eq!(bench.actions(), [Action::RecordingChanged]);
        assert_eq!(bench.core.next_timeout(MAIN), None);
        // This data is late, and still belongs to the recording.
        if is_given_up {
            assert_eq!(bench.feed(AUDIO, audio(20, 40)), passes(20, 40, 0));
        }
    }
}

#[test]
fn flush_restarts_the_stream() {
    for (resets_time, shift_ms) in [(true, -10), (false, 30)] {
        let mut bench = bench(true, false);
        bench.record(true);
        bench.feed(MAIN, audio(0, 40));
        for id in [MAIN, AUDIO, OTHER] {
            bench.core.handle_flush_start(0, id);
            bench.core.handle_flush_stop(0, id, resets_time);
        }
        assert!(!bench.core.is_recording());
        assert_eq!(bench.feed(MAIN, delta(0, 10)), nothing(Verdict::Drop));
        assert_eq!(bench.feed(MAIN, key(10, 20)), passes(10, 20, shift_ms));
        assert_eq!(bench.feed(AUDIO, audio(5, 15)), passes(10, 15, shift_ms));
    }
}

/// A buffer overlaps the previous one, because its times are rounded.
#[test]
fn recording_starts_at_the_end_of_the_last_one() {
    let mut bench = bench(true, false);
    for other in [AUDIO, OTHER] {
        bench.core.handle_eos(0, other);
    }
    bench.record(true);
    bench.feed(MAIN, audio(0, 40));
    bench.record(false);
    bench.record(true);
    assert_eq!(bench.feed(MAIN, audio(35, 60)), passes(40, 60, 0));
}

#[test]
fn an_empty_recording_has_no_picture() {
    let mut bench = bench(true, true);
    bench.record(true);
    bench.feed(MAIN, audio(10, 10));
    bench.record(false);
    bench.feed(MAIN, audio(10, 60));
    assert_eq!(bench.feed(AUDIO, video(0, 30)), nothing(Verdict::Drop));
}

/// The main stream has not started. A file is held without a limit while `record` is not set. With `record` set, it is dropped
/// after the stall timeout. A live stream is always dropped after that time.
#[test]
fn files_wait_for_a_main_stream_that_has_not_started() {
    for (is_live, record, rest) in [
        (false, false, Verdict::Hold),
        (false, true, Verdict::Drop),
        (true, false, Verdict::Drop),
        (true, true, Verdict::Drop),
    ] {
        let mut bench = bench(is_live, false);
        bench.record(record);
        let mut first = bench.arrive(AUDIO, audio(0, 20));
        assert_eq!(bench.take(AUDIO, &mut first), nothing(Verdict::Hold));
        bench.now_ms = 1000;
        assert_eq!(bench.take(AUDIO, &mut first), nothing(rest));
    }
}

/// A seek sets running time back.
#[test]
fn if_running_time_is_set_back_the_stall_timeout_restarts() {
    let mut bench = bench(true, false);
    bench.now_ms = 50_000;
    bench.record(true);
    bench.feed(MAIN, audio(0, 20));
    bench.now_ms = 0;
    let mut next = bench.arrive(AUDIO, audio(20, 40));
    assert_eq!(bench.take(AUDIO, &mut next), nothing(Verdict::Hold));
    assert_eq!(bench.core.next_timeout(AUDIO), Some(1000 * MS));
}

/// A stop resets everything except the streams and the application's settings.
#[test]
fn stop_resets_the_element() {
    let mut bench = bench(true, false);
    bench.record(true);
    bench.feed(MAIN, audio(100, 140));
    bench.actions();
    bench.core.handle_stop();
    assert_eq!(bench.actions(), [Action::RecordingChanged]);
    assert_eq!(bench.feed(MAIN, audio(0, 40)), passes(0, 40, 0));
    assert_eq!(bench.feed(AUDIO, audio(0, 40)), passes(0, 40, 0));
}

#[test]
fn item_without_a_time_follows_the_previous_one() {
    let mut bench = bench(true, true);
    bench.record(true);
    bench.feed(MAIN, key(10, 30));
    let untimed = Arrival::default();
    assert_eq!(bench.feed(MAIN, untimed), passes(30, 30, 0));
    bench.feed(AUDIO, audio(10, 20));
    assert_eq!(bench.feed(AUDIO, untimed), passes(20, 20, 0));
}

/// Keeps the maximum number of recordings, and everything newer.
#[test]
fn lagging_stream_loses_the_oldest_recordings() {
    let mut bench = bench(true, true);
    let count = RECORDINGS_MAX as u64 + 5;
    for i in 0..count {
        bench.record(true);
        bench.feed(MAIN, audio(i * 10, i * 10 + 5));
        bench.record(false);
    }
    let got = bench.feed(AUDIO, audio(0, count * 10 - 5));
    assert_eq!(got.parts.len(), RECORDINGS_MAX);
    assert_eq!(got.parts[0], (50, 55, 0));
}
