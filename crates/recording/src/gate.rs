//! Decides which audio is recorded: all of it, only calls, or only the time around interruptions. It reads no clock.

use std::collections::VecDeque;
use threadbare_base::NS_PER_S;

use threadbare_config::{RecordOn, RecordSpec};

/// The gate of one recording.
#[derive(Debug)]
pub(super) struct Gate {
    on: RecordOn,
    before_ns: u64,
    after_ns: u64,
    /// Whether a call has started. From then on, all audio is recorded, even if parties are silent.
    has_begun: bool,
    /// Time until which frames are recorded, in ns.
    open_until_ns: u64,
    /// Start of the current interruption, in ns.
    since_ns: Option<u64>,
    /// Frames that may still be recorded if an interruption follows, in the file's coding.
    waiting: VecDeque<u8>,
}

impl Gate {
    pub(super) fn new(spec: &RecordSpec) -> Gate {
        Gate {
            on: spec.on,
            before_ns: u64::from(spec.before_s) * NS_PER_S,
            after_ns: u64::from(spec.after_s) * NS_PER_S,
            has_begun: false,
            open_until_ns: 0,
            since_ns: None,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the time before which frames up to `until_ns` are recorded. Later frames must be passed to [`wait`](Self::wait).
    ///
    /// `heard_ns` contains the times at which each side was last heard.
    pub(super) fn keeps_until_ns(&mut self, until_ns: u64, heard_ns: &[Option<u64>]) -> u64 {
        let always = |is_kept| if is_kept { u64::MAX } else { 0 };
        match self.on {
            RecordOn::Always => u64::MAX,
            RecordOn::Call if heard_ns.len() > 1 => {
                self.has_begun |= heard_ns.iter().all(Option::is_some);
                always(self.has_begun)
            }
            RecordOn::Call => {
                let last_ns = heard_ns.iter().flatten().max();
                last_ns.map_or(0, |at_ns| at_ns.saturating_add(CALL_SILENCE_NS))
            }
            RecordOn::Loss => self.open_around_loss(until_ns, heard_ns),
        }
    }

    fn open_around_loss(&mut self, until_ns: u64, heard_ns: &[Option<u64>]) -> u64 {
        let silent = |at_ns: &u64| until_ns > at_ns.saturating_add(INTERRUPTION_NS);
        let since_ns = heard_ns.iter().flatten().copied().filter(silent).min();
        if let Some(at_ns) = since_ns {
            let begun_ns = *self.since_ns.get_or_insert(at_ns);
            let latest_ns = begun_ns.saturating_add(INTERRUPTION_NS_MAX);
            let until_ns = until_ns.min(latest_ns).saturating_add(self.after_ns);
            self.open_until_ns = self.open_until_ns.max(until_ns);
        } else if let Some(begun_ns) = self.since_ns.take()
            && until_ns.saturating_sub(begun_ns) < INTERRUPTION_NS_MAX
        {
            // The side has come back since the last turn.
            self.open_until_ns = until_ns.saturating_add(self.after_ns);
        }
        self.open_until_ns
    }

    /// Stores frames that are recorded if an interruption follows. The stored frames are as long as the time to record before an
    /// interruption, plus the time to detect the interruption.
    pub(super) fn wait(&mut self, frames: &[u8], rate_hz: u32, frame_bytes: usize) {
        if self.on != RecordOn::Loss {
            return;
        }
        self.waiting.extend(frames);
        let kept_ns = self.before_ns + INTERRUPTION_NS;
        let most = (kept_ns * u64::from(rate_hz) / NS_PER_S) as usize * frame_bytes;
        let over = self.waiting.len().saturating_sub(most);
        self.waiting.drain(..over);
    }

    /// Takes the stored frames.
    pub(super) fn take_waiting(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.waiting).into()
    }
}

/// Silence of a stream's sender after which the recording stops. It is longer than the pauses of senders with comfort noise (RFC 3389).
const CALL_SILENCE_NS: u64 = 10_000_000_000;
/// Silence after which a side counts as interrupted. The side must have been heard before.
const INTERRUPTION_NS: u64 = 500_000_000;
/// Maximum time of one interruption that is recorded.
const INTERRUPTION_NS_MAX: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use threadbare_config::{RecordingFormat, Template};

    const MS: u64 = 1_000_000;

    fn gate(on: RecordOn) -> Gate {
        let to = Template::usual(Path::new("/r"));
        let spec = RecordSpec::on_demand(to, RecordingFormat::Wav);
        Gate::new(&RecordSpec {
            on,
            before_s: 2,
            after_s: 1,
            ..spec
        })
    }

    /// Runs 200 steps of 100 ms. Returns the steps that are recorded. `heard` returns whether each side is heard in a step.
    fn kept(gate: &mut Gate, heard: impl Fn(u64) -> Vec<bool>) -> Vec<u64> {
        let mut last = vec![None; heard(0).len()];
        let mut kept = Vec::new();
        for n in 1..=1000 {
            let until_ns = n * 100 * MS;
            for (last, is_heard) in last.iter_mut().zip(heard(n)) {
                *last = if is_heard { Some(until_ns) } else { *last };
            }
            if until_ns < gate.keeps_until_ns(until_ns, &last) {
                kept.push(n);
            }
        }
        kept
    }

    #[test]
    fn recording_starts_when_both_parties_are_heard() {
        let all = kept(&mut gate(RecordOn::Always), |_| vec![false, false]);
        assert_eq!(all.len(), 1000);
        let call = kept(&mut gate(RecordOn::Call), |n| vec![n == 5, n == 20]);
        assert_eq!(call, (20..=1000).collect::<Vec<_>>());
        // A stream is recorded while its sender is heard, and for another 10 s.
        let stream = kept(&mut gate(RecordOn::Call), |n| vec![(20..30).contains(&n)]);
        assert_eq!(stream, (20..129).collect::<Vec<_>>());
    }

    #[test]
    fn only_audio_around_an_interruption_is_kept() {
        let none = kept(&mut gate(RecordOn::Loss), |n| vec![n < 1000, false]);
        assert!(none.is_empty(), "{none:?}");
        // A second is missing. Audio is recorded from the time at which this is detected until a second after the end of the interruption.
        let one = kept(&mut gate(RecordOn::Loss), |n| {
            vec![!(100..110).contains(&n)]
        });
        assert_eq!(one, (105..120).collect::<Vec<_>>());
        // Here the sender does not come back.
        let for_ever = kept(&mut gate(RecordOn::Loss), |n| vec![n < 100]);
        assert_eq!((for_ever[0], for_ever.len()), (105, 600 + 9 - 5));
    }

    /// Turns of any length must give this result. If a turn is longer than the time that is recorded after an interruption, only the first
    /// part of the turn is recorded.
    #[test]
    fn audio_after_an_interruption_is_recorded_to_the_frame() {
        for turn_ms in [20, 600, 1700] {
            let mut gate = gate(RecordOn::Loss);
            let last_heard_ms = |until_ms: u64| match until_ms {
                ..10_000 => until_ms,
                10_000..12_000 => 10_000,
                _ => until_ms,
            };
            let mut kept_until_ms = 0;
            for n in 1..50_000 / turn_ms {
                let until_ms = n * turn_ms;
                let heard_ns = last_heard_ms(until_ms) * MS;
                let keeps_ms = gate.keeps_until_ns(until_ms * MS, &[Some(heard_ns)]) / MS;
                if keeps_ms > until_ms - turn_ms {
                    kept_until_ms = keeps_ms.min(until_ms);
                }
            }
            // Recording ends a second after the first turn in which the side is back.
            let back_ms = 12_000_u64.next_multiple_of(turn_ms);
            assert_eq!(kept_until_ms, back_ms + 1000, "{turn_ms} ms");
        }
    }

    #[test]
    fn queued_audio_is_bounded() {
        let mut gate = gate(RecordOn::Loss);
        for n in 0..100 {
            gate.wait(&[n; 1600], 8000, 2);
        }
        // The last 2.5 s are stored, with two bytes for each frame.
        let waiting = gate.take_waiting();
        assert_eq!((waiting.len(), waiting[0]), (40_000, 75));
        assert!(gate.take_waiting().is_empty());
    }
}
