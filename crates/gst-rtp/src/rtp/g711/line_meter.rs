//! Measures the loudness of packets of PCMU, PCMA and L16.

use gst::glib;
use threadbare_loudness::{BuildError, Meter, Mode, Resolution};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::packet::Packet;
use threadbare_rtp::{g711, l16};

use crate::loudness::readings::add_readings;

/// The meter of one stream. It takes some tens of KB, however long the stream is.
///
/// With thousands of streams in turn, a meter's memory has left the cache before its next packet, and memory access costs more
/// time than computation. So the samples of several packets are collected and measured together. Readings include all collected
/// samples.
#[derive(Debug)]
pub(super) struct LineMeter {
    meter: Meter,
    /// Format of the audio.
    format: Format,
    payload_type: PayloadType,
    samples: Box<[i16; BATCH_SAMPLES]>,
    collected: usize,
    /// Size of a batch in samples. The first batch has a random length, so that streams that started together do not all measure
    /// in the same slice.
    batch: usize,
}

impl LineMeter {
    /// Ensures that `slot` has a meter for packets of this type. Another sample rate starts a new meter.
    pub(super) fn fit(
        slot: &mut Option<LineMeter>,
        format: Format,
        payload_type: PayloadType,
    ) -> Result<&mut Self, BuildError> {
        let is_fitting = |meter: &LineMeter| meter.format.sample_rate_hz == format.sample_rate_hz;
        if !slot.as_ref().is_some_and(is_fitting) {
            let everything = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK | Mode::HISTOGRAM;
            let meter = Meter::builder(format.sample_rate_hz, 1)
                .mode(everything)
                .resolution(Resolution::Block)
                .build()?;
            *slot = Some(LineMeter {
                meter,
                format,
                payload_type,
                samples: Box::new([0; BATCH_SAMPLES]),
                collected: 0,
                batch: glib::random_int_range(1, BATCH_SAMPLES as i32) as usize,
            });
        }
        let meter = slot.as_mut().expect("it has just been filled");
        (meter.format, meter.payload_type) = (format, payload_type);
        Ok(meter)
    }

    /// Adds an outgoing packet. Telephone events and comfort noise, which pass unchanged, are not measured.
    pub(super) fn add_packet(&mut self, packet: &[u8]) {
        let Ok(packet) = Packet::parse(packet) else {
            return;
        };
        if packet.payload_type() != self.payload_type {
            return;
        }
        let mut payload = packet.payload();
        let sample_bytes = self.format.payload_bytes(1).unwrap_or(1).max(1);
        while payload.len() >= sample_bytes {
            let room = &mut self.samples[self.collected..self.batch];
            let taken = to_linear(self.format.encoding, payload, room);
            payload = &payload[taken * sample_bytes..];
            self.collected += taken;
            if self.collected == self.batch {
                self.measure();
                self.batch = BATCH_SAMPLES;
            }
        }
    }

    fn measure(&mut self) {
        let taken = (self.meter).add_interleaved(&self.samples[..self.collected]);
        debug_assert!(taken.is_ok(), "one channel has whole frames only");
        self.collected = 0;
    }

    pub(super) fn add_readings(&mut self, structure: &mut gst::StructureRef) {
        self.measure();
        add_readings(structure, &self.meter);
    }
}

/// Decodes as many samples as fit; returns their number.
fn to_linear(encoding: Encoding, payload: &[u8], linear: &mut [i16]) -> usize {
    let table = match encoding {
        Encoding::Pcmu => &g711::ULAW_TO_LINEAR,
        Encoding::Pcma => &g711::ALAW_TO_LINEAR,
        _ => {
            l16::l16_to_linear(payload, linear);
            return linear.len().min(payload.len() / 2);
        }
    };
    for (sample, code) in linear.iter_mut().zip(payload) {
        *sample = table[usize::from(*code)];
    }
    linear.len().min(payload.len())
}

/// Samples in a batch: 200 ms at 8000 Hz.
const BATCH_SAMPLES: usize = 1_600;
