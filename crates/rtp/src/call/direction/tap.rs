//! A copy of what a party says, for the owner: as the far side hears it, where it is made anew for that.

use super::Direction;
use crate::call::TAP_NS_MAX;
use crate::codec::{Decoder, Format};
use crate::id::NS_PER_S;
use crate::leg::{Carries, Payload};

#[derive(Debug)]
pub(super) struct Tap {
    /// Where nobody else decodes.
    decoder: Option<Decoder>,
    /// Of the samples.
    format: Option<Format>,
    pcm: Vec<f32>,
}

impl Tap {
    /// What the far side hears.
    pub(super) fn add(&mut self, format: Format, pcm: &[f32]) {
        self.fit(format);
        self.pcm.extend_from_slice(pcm);
    }

    fn fit(&mut self, format: Format) {
        if self.format == Some(format) {
            return;
        }
        let is_alike = |known: &Format| {
            (known.sample_rate_hz, known.channels) == (format.sample_rate_hz, format.channels)
        };
        if !self.format.as_ref().is_some_and(is_alike) {
            self.pcm.clear();
        }
        self.format = Some(format);
        self.decoder = None;
    }
}

impl Direction {
    /// A tap that is on goes on with its decoder.
    #[inline]
    pub(in crate::call) fn tap(&mut self, is_on: bool) {
        if is_on == self.tap.is_some() {
            return;
        }
        self.tap = is_on.then(|| {
            Box::new(Tap {
                decoder: None,
                format: None,
                pcm: Vec::new(),
            })
        });
    }

    pub(super) fn note_tapped(&mut self, payload: &Payload, bytes: &[u8]) {
        let (Some(tap), Carries::Audio(format)) = (&mut self.tap, payload.carries) else {
            return;
        };
        tap.fit(format);
        if tap.decoder.is_none() {
            tap.decoder = Decoder::new(format).ok();
        }
        let Some(decoder) = &mut tap.decoder else {
            return;
        };
        // Counted where it is decoded for the far side; here it is a hole.
        let _ = decoder.decode(bytes, &mut tap.pcm);
        self.bound_tap();
    }

    pub(super) fn conceal_tapped(&mut self, ns: u64) {
        let Some(tap) = &mut self.tap else { return };
        let Some(decoder) = &mut tap.decoder else {
            return;
        };
        let frames = ns * u64::from(decoder.format().sample_rate_hz) / NS_PER_S;
        decoder.conceal(frames as usize, &mut tap.pcm);
        self.bound_tap();
    }

    /// In place of a loss that there is no time to conceal.
    pub(super) fn silence_tapped(&mut self, ns: u64) {
        let Some(tap) = &mut self.tap else { return };
        let Some(format) = tap.format else { return };
        let frames = (ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        let samples = tap.pcm.len() + frames * usize::from(format.channels);
        tap.pcm.resize(samples, 0.0);
        self.bound_tap();
    }

    /// The oldest goes when nobody takes it.
    pub(super) fn bound_tap(&mut self) {
        let Some(tap) = &mut self.tap else { return };
        let Some(format) = tap.format else {
            return;
        };
        let per_s = u64::from(format.sample_rate_hz) * u64::from(format.channels);
        let most = (per_s * TAP_NS_MAX / NS_PER_S) as usize;
        let excess = tap.pcm.len().saturating_sub(most);
        if excess > 0 {
            tap.pcm.drain(..excess);
            self.stats.tap_dropped_ns += excess as u64 * NS_PER_S / per_s;
        }
    }

    pub(in crate::call) fn take_tapped(&mut self, samples: &mut Vec<f32>) -> Option<Format> {
        let tap = self.tap.as_mut()?;
        let format = tap.format?;
        samples.append(&mut tap.pcm);
        Some(format)
    }

    pub(in crate::call) fn tapped(&self) -> usize {
        self.tap.as_ref().map_or(0, |tap| tap.pcm.len())
    }
}
