//! Up to five streams, whose buffers and gaps arrive in any relative order. The model has all streams from the start, and decides
//! for every millisecond whether it is recorded.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A span after a pause, with a length, both in ms. `is_delta` is for coded streams.
    Span {
        pause: u64,
        length: u64,
        is_delta: bool,
    },
    /// Sets `record`, or resets it.
    Toggle,
}

/// Constant data of a run.
#[derive(Debug, Clone)]
struct Script {
    /// The main stream, then the others.
    streams: Vec<(Media, Vec<Step>)>,
    /// The stream that gets each turn.
    turns: Vec<usize>,
    is_input_live: bool,
    is_live: bool,
}

/// A part that passed, ms: stream, number in it, start, end, shift, whether it is the first in its recording.
type Part = (usize, usize, u64, u64, i64, bool);

fn spans(max: usize) -> impl Strategy<Value = Vec<Step>> {
    let span = (
        prop_oneof![4 => Just(0), 1 => 1..30u64],
        1..60u64,
        any::<bool>(),
    );
    let span = span.prop_map(|(pause, length, is_delta)| Step::Span {
        pause,
        length,
        is_delta,
    });
    prop::collection::vec(span, 0..max)
}

fn script() -> impl Strategy<Value = Script> {
    let media = || prop_oneof![Just(Media::Audio), Just(Media::Video), Just(Media::Coded)];
    let main = spans(40).prop_flat_map(|spans| {
        let places = prop::collection::vec(any::<bool>(), spans.len());
        (Just(spans), places).prop_map(|(spans, places)| {
            let steps = spans.into_iter().zip(places);
            steps
                .flat_map(|(span, toggles)| {
                    toggles.then_some(Step::Toggle).into_iter().chain([span])
                })
                .collect::<Vec<_>>()
        })
    });
    let others = prop::collection::vec((media(), spans(40)), 0..5);
    let turns = prop::collection::vec(0..5usize, 0..300);
    ((media(), main), others, turns, any::<bool>(), any::<bool>()).prop_map(
        |(main, others, turns, is_input_live, is_live)| Script {
            streams: [main].into_iter().chain(others).collect(),
            turns,
            is_input_live,
            is_live,
        },
    )
}

/// Returns the current time, ms, after this many steps of the main stream. It advances more slowly than the streams.
fn now_ms(steps: usize) -> u64 {
    steps as u64 * 7
}

/// Takes the next change of `record` early, for a main stream that is held until then. Returns `None` if none follows.
fn pull_toggle(steps: &mut VecDeque<Step>) -> Option<()> {
    let at = steps.iter().position(|step| matches!(step, Step::Toggle))?;
    steps.remove(at);
    Some(())
}

/// Returns the spans of a stream, ms, in order: start, end, whether it is a delta unit.
fn timed(media: Media, steps: &[Step]) -> Vec<(u64, u64, bool)> {
    let mut end = 0;
    let spans = steps.iter().filter_map(|step| match *step {
        Step::Span {
            pause,
            length,
            is_delta,
        } => {
            let begin = end + pause;
            end = begin + length;
            Some((begin, end, is_delta && media == Media::Coded))
        }
        Step::Toggle => None,
    });
    spans.collect()
}

/// Joins parts of one buffer that follow each other in one recording: where they are split depends on the order.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        match all.last_mut() {
            Some(last)
                if (last.0, last.1, last.3, last.4) == (part.0, part.1, part.2, part.4)
                    && !part.5 =>
            {
                last.3 = part.3;
            }
            _ => all.push(part),
        }
    }
    all
}

/// A run of the core.
struct World {
    core: RecordCore,
    queues: Vec<VecDeque<Step>>,
    ends: Vec<u64>,
    counts: Vec<usize>,
    /// The held item of each stream.
    held: Vec<Option<Span>>,
    media: Vec<Media>,
    main_steps: usize,
    passed: Vec<Part>,
    has_ended: bool,
}

impl World {
    fn new(script: &Script) -> World {
        let Bench { mut core, .. } = bench(script.is_input_live, script.is_live);
        core.handle_settings(
            0,
            Settings {
                is_live: script.is_live,
                // Streams arrive in any order. If a stream's data comes after that of all others, the stream has not stalled.
                stall_timeout_ns: u64::MAX,
            },
        );
        for id in [AUDIO, OTHER] {
            core.handle_remove(0, id);
        }
        for id in 1..script.streams.len() as StreamId {
            core.handle_add(0, id);
            core.handle_liveness(id, script.is_input_live);
        }
        let count = script.streams.len();
        World {
            core,
            queues: (script.streams.iter())
                .map(|(_, steps)| steps.iter().copied().collect())
                .collect(),
            ends: vec![0; count],
            counts: vec![0; count],
            held: vec![None; count],
            media: script.streams.iter().map(|(media, _)| *media).collect(),
            main_steps: 0,
            passed: Vec::new(),
            has_ended: false,
        }
    }

    fn now_ns(&self) -> u64 {
        now_ms(self.main_steps) * MS
    }

    fn toggle(&mut self) {
        let record = !self.core.record();
        self.core.handle_record(self.now_ns(), record);
    }

    /// Gives a stream a turn. Returns whether anything happened.
    fn turn(&mut self, of: usize) -> bool {
        if let Some(span) = self.held[of].take() {
            return self.decide(of, span);
        }
        let Some(step) = self.queues[of].pop_front() else {
            if of == 0 && !std::mem::replace(&mut self.has_ended, true) {
                self.core.handle_eos(self.now_ns(), MAIN);
                return true;
            }
            return false;
        };
        self.main_steps += usize::from(of == 0);
        let Step::Span {
            pause,
            length,
            is_delta,
        } = step
        else {
            self.toggle();
            return true;
        };
        let begin = self.ends[of] + pause;
        self.ends[of] = begin + length;
        self.counts[of] += 1;
        let arrival = Arrival {
            is_delta: is_delta && self.media[of] == Media::Coded,
            ..super::span(self.media[of], begin, begin + length)
        };
        let now_ns = self.now_ns();
        let span = self.core.handle_arrival(now_ns, of as StreamId, &arrival);
        self.decide(of, span);
        true
    }

    /// Decides on an item. Returns whether anything passed or was dropped.
    fn decide(&mut self, of: usize, mut span: Span) -> bool {
        let mut has_moved = false;
        loop {
            match self.core.decide(self.now_ns(), of as StreamId, &span) {
                Verdict::Pass(piece) => {
                    has_moved = true;
                    span.from_ns = piece.to_ns;
                    self.passed.push((
                        of,
                        self.counts[of] - 1,
                        piece.from_ns / MS,
                        piece.to_ns / MS,
                        piece.shift_ns / MS.cast_signed(),
                        piece.is_first,
                    ));
                    if piece.is_last {
                        return true;
                    }
                }
                Verdict::Hold => {
                    self.held[of] = Some(span);
                    // Only a change of `record` lets it continue.
                    if of == 0 {
                        let pulled = pull_toggle(&mut self.queues[0]);
                        self.main_steps += usize::from(pulled.is_some());
                        self.toggle();
                    }
                    return has_moved;
                }
                Verdict::Drop | Verdict::Ended => return true,
            }
        }
    }

    fn run(mut self, turns: &[usize]) -> (Vec<Part>, RecordCore) {
        for of in turns {
            if *of < self.queues.len() {
                self.turn(*of);
            }
        }
        // Afterwards all other items are decided, those of the last stream first, until nothing changes any more.
        while (0..self.queues.len()).rev().any(|of| self.turn(of)) {}
        assert!(self.held.iter().all(Option::is_none), "held for ever");
        self.passed.sort_unstable();
        (joined(self.passed), self.core)
    }
}

/// A recording as an observer of all streams sees it: start, stop, shift, ms.
type Recorded = (u64, u64, i64);

struct Twin<'a> {
    script: &'a Script,
    recorded: Vec<Recorded>,
    passed: Vec<Part>,
}

impl Twin<'_> {
    /// `held` is the time, ms, for which the main stream was held so far.
    fn shift(&self, start: u64, held: u64) -> i64 {
        let total: u64 = self
            .recorded
            .iter()
            .map(|(start, stop, _)| stop - start)
            .sum();
        let output = match (self.script.is_input_live, self.script.is_live) {
            (true, false) => total,
            (false, true) => start + held,
            _ => start,
        };
        output.cast_signed() - start.cast_signed()
    }

    /// Processes the main stream, step by step.
    fn lead(&mut self) {
        let (media, steps) = &self.script.streams[0];
        let spans = timed(*media, steps);
        let mut steps: VecDeque<Step> = steps.iter().copied().collect();
        let (mut record, mut taken, mut number, mut held) = (false, 0, 0, 0);
        // Start and shift of the running recording.
        let mut open = None;
        let (mut has_deltas, mut is_stopping) = (false, false);
        while let Some(step) = steps.pop_front() {
            taken += 1;
            if let Step::Toggle = step {
                record = !record;
                is_stopping = !record && has_deltas && open.is_some();
                if !record
                    && !is_stopping
                    && let Some((start, shift)) = open.take()
                {
                    let stop = spans[number - 1].1;
                    self.recorded.push((start, stop, shift));
                }
                continue;
            }
            let (begin, end, is_delta) = spans[number];
            has_deltas |= is_delta;
            if is_stopping
                && !is_delta
                && let Some((start, shift)) = open.take()
            {
                is_stopping = false;
                self.recorded.push((start, spans[number - 1].1, shift));
            }
            if !record && open.is_none() && !self.script.is_input_live {
                // The main stream is held until `record` is set.
                let since = now_ms(taken);
                taken += usize::from(pull_toggle(&mut steps).is_some());
                held += now_ms(taken) - since;
                record = true;
            }
            let is_first = record && open.is_none() && !is_delta;
            if is_first {
                open = Some((begin, self.shift(begin, held)));
            }
            if let Some((_, shift)) = open {
                self.passed.push((0, number, begin, end, shift, is_first));
            }
            number += 1;
        }
        if let Some((start, shift)) = open {
            self.recorded.push((start, spans[number - 1].1, shift));
        }
    }

    /// Returns the number of the recording at a time, ms.
    fn recording_at(&self, time: u64) -> Option<usize> {
        let mut all = self.recorded.iter();
        all.position(|(start, stop, _)| (*start..*stop).contains(&time))
    }

    /// Returns the passing part of a picture or a buffer.
    fn parts(&self, media: Media, begin: u64, end: u64) -> Vec<(usize, u64, u64)> {
        let mut parts: Vec<(usize, u64, u64)> = Vec::new();
        for time in begin..end {
            match (self.recording_at(time), parts.last_mut()) {
                (Some(of), Some(last)) if last.0 == of => last.2 = time + 1,
                (Some(of), _) => parts.push((of, time, time + 1)),
                (None, _) => {}
            }
        }
        if media == Media::Audio {
            return parts;
        }
        // The millisecond in which the buffer's half, or its first millisecond, ends.
        let of_point = self.recording_at(if end - begin > 1 { begin + 1 } else { begin });
        let is_shown = |(start, stop, _): &Recorded| {
            (begin + 1..end).contains(start) && start < stop && 2 * (end - start) >= end - begin
        };
        let of = match media {
            Media::Video => of_point.or_else(|| self.recorded.iter().position(is_shown)),
            _ => of_point,
        };
        let whole = of.map(|of| (of, begin.max(self.recorded[of].0), end));
        whole.into_iter().collect()
    }

    fn follow(&mut self, of: usize) {
        let (media, steps) = &self.script.streams[of];
        // The last recording that the stream was in.
        let mut last = None;
        for (number, (begin, end, is_delta)) in timed(*media, steps).into_iter().enumerate() {
            for (recording, from, to) in self.parts(*media, begin, end) {
                let is_first = last != Some(recording);
                if is_delta && is_first {
                    continue;
                }
                last = Some(recording);
                let shift = self.recorded[recording].2;
                self.passed.push((of, number, from, to, shift, is_first));
            }
        }
    }
}

proptest! {
    /// The passing parts of each stream, and their shifts, are the same in every order of arrival.
    #[test]
    fn every_order_of_arrival_records_the_same(script in script()) {
        let mut twin = Twin { script: &script, recorded: Vec::new(), passed: Vec::new() };
        twin.lead();
        for of in 1..script.streams.len() {
            twin.follow(of);
        }
        let (passed, core) = World::new(&script).run(&script.turns);
        prop_assert_eq!(passed, twin.passed);
        prop_assert_eq!(core.recordings(), twin.recorded.len() as u64);
    }

    /// Whatever the main stream does, no stream waits for it longer than the stall timeout, except if the main stream is held on
    /// purpose.
    #[test]
    fn waits_are_bounded_by_the_stall_timeout(
        script in script(),
        gives in 0..40usize,
        timeout_ms in 1..200u64,
    ) {
        let mut world = World::new(&script);
        let settings = Settings { is_live: script.is_live, stall_timeout_ns: timeout_ms * MS };
        world.core.handle_settings(0, settings);
        for _ in 0..gives {
            world.turn(0);
        }
        if world.held[0].is_some() {
            // `record` was set, so the main stream continues.
            world.turn(0);
        }
        let begun_ns = world.now_ns();
        for of in 1..world.queues.len() {
            while world.turn(of) {}
            let Some(span) = world.held[of].take() else { continue };
            match world.core.next_timeout(of as StreamId) {
                Some(due_ns) => {
                    prop_assert!(due_ns <= begun_ns + timeout_ms * MS);
                    let verdict = world.core.decide(due_ns, of as StreamId, &span);
                    prop_assert!(!matches!(verdict, Verdict::Hold));
                }
                // Otherwise the main stream is held as well, or would be.
                None => prop_assert!(!script.is_input_live && !world.core.record()),
            }
        }
    }
}
