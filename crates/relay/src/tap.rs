//! Audio of a leg on its way to a meter and to listeners.

use std::sync::{Arc, Mutex};

use threadbare_rtp::call::{Mode, Tapped, TappedAudio};

use crate::loudness::LineMeter;
use crate::sync::lock;

/// The tapped audio of a leg, and its meter.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    pub(crate) unreported: Unreported,
    pub(crate) meter: Metering,
}

impl Tap {
    /// Starts again. Returns what is known about the audio until now, and the meter.
    pub(crate) fn begin(&mut self) -> (Unreported, &mut Metering) {
        (std::mem::take(&mut self.unreported), &mut self.meter)
    }
}

/// Tapped audio of a leg that was not passed to the listeners yet. It waits for the next packets, because the listeners' rings leave the
/// processor's cache between two packets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unreported {
    pub(crate) samples: usize,
    /// Time of the last sample.
    pub(crate) until_ns: u64,
    pub(crate) mode: Mode,
}

impl Unreported {
    /// Notes that `samples` samples are queued.
    #[inline]
    pub(crate) fn note(&mut self, samples: usize, now_ns: u64, mode: Mode) {
        if samples != self.samples {
            *self = Unreported {
                samples,
                until_ns: now_ns,
                mode,
            };
        }
    }

    /// Whether there is audio, and no more has followed for `than_ns`.
    #[inline]
    pub(crate) fn is_older(&self, now_ns: u64, than_ns: u64) -> bool {
        self.samples > 0 && now_ns.saturating_sub(self.until_ns) >= than_ns
    }

    /// Whether the next packet completes a portion of `samples` samples.
    #[inline]
    pub(crate) fn is_nearly_due(&self, samples: usize) -> bool {
        self.samples + PACKET_SAMPLES >= samples
    }

    /// Returns the audio as listeners hear it. A leg that is muted or held is silent.
    pub(crate) fn heard<'a>(&self, tapped: Tapped<'a>) -> Tapped<'a> {
        let audio = match self.mode {
            Mode::Pass => tapped.audio,
            _ => TappedAudio::Silence(tapped.audio.len()),
        };
        Tapped { audio, ..tapped }
    }
}

/// The measurement of a leg's audio.
#[derive(Debug, Default)]
pub(crate) enum Metering {
    #[default]
    Off,
    /// Measures the audio itself.
    Incoming(Box<LineMeter>),
    /// Measures what a loudness target puts out.
    Target(Arc<Mutex<LineMeter>>),
}

impl Metering {
    /// Whether the meter gets tapped audio.
    pub(crate) fn is_incoming(&self) -> bool {
        matches!(self, Metering::Incoming(_))
    }

    pub(crate) fn with<T>(&mut self, read: impl FnOnce(&mut LineMeter) -> T) -> Option<T> {
        match self {
            Metering::Off => None,
            Metering::Incoming(meter) => Some(read(meter)),
            Metering::Target(meter) => Some(read(&mut lock(meter))),
        }
    }
}

/// Number of samples in 20 ms of G.711.
const PACKET_SAMPLES: usize = 160;
/// Number of samples to gather. It is five packets of G.711, or one or two packets of other codecs.
pub(crate) const GATHERED_SAMPLES: usize = 5 * PACKET_SAMPLES;
/// Maximum time for which audio waits for more, ns.
pub(crate) const GATHER_NS: u64 = 100_000_000;
/// Maximum gap in continuous audio, ns. Slices and network jitter cause shorter gaps.
pub(crate) const PAUSE_NS: u64 = 60_000_000;
