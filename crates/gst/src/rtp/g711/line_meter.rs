//! Measures the loudness of packets of PCMU, PCMA and L16.

use gst::glib;
use threadbare_loudness::{BuildError, Meter, Mode, Resolution};
use threadbare_rtp::recode::Config;

use crate::loudness::readings::add_readings;

/// The meter of one stream. Some tens of KB, for any duration.
///
/// With thousands of streams taking turns, a meter has left the cache by the next packet, and memory costs it more time
/// than computation. So samples are collected for some packets and measured together; readings include all of them.
#[derive(Debug)]
pub(super) struct LineMeter {
    meter: Meter,
    rate_hz: u32,
    samples: Box<[i16; BATCH_SAMPLES]>,
    collected: usize,
    /// Size of a batch. The first one's length is random, so that streams that began together do not all measure in the
    /// same slice.
    batch: usize,
}

impl LineMeter {
    /// Ensures that `slot` has a meter for this rate; another rate starts a new one.
    pub(super) fn fit(slot: &mut Option<LineMeter>, rate_hz: u32) -> Result<&mut Self, BuildError> {
        if slot
            .as_ref()
            .is_none_or(|fitting| fitting.rate_hz != rate_hz)
        {
            let everything = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK | Mode::HISTOGRAM;
            let meter = Meter::builder(rate_hz, 1)
                .mode(everything)
                .resolution(Resolution::Block)
                .build()?;
            *slot = Some(LineMeter {
                meter,
                rate_hz,
                samples: Box::new([0; BATCH_SAMPLES]),
                collected: 0,
                batch: glib::random_int_range(1, BATCH_SAMPLES as i32) as usize,
            });
        }
        Ok(slot.as_mut().expect("it has just been filled"))
    }

    /// A packet written by the recoder. Telephone events and comfort noise, which pass unchanged, are not measured.
    pub(super) fn add_packet(&mut self, packet: &[u8], config: &Config) {
        let Some((header, mut payload)) = packet.split_at_checked(HEADER_BYTES) else {
            return;
        };
        if header[1] & PAYLOAD_TYPE_BITS != config.payload_type.0 {
            return;
        }
        let sample_bytes = config.to.sample_bytes();
        while payload.len() >= sample_bytes {
            let room = &mut self.samples[self.collected..self.batch];
            let taken = config.to.to_linear(payload, room);
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

/// RFC 3550, section 5.1: the recoder writes neither contributing sources nor extensions.
const HEADER_BYTES: usize = 12;
const PAYLOAD_TYPE_BITS: u8 = 0x7f;
/// 200 ms at 8000 Hz.
const BATCH_SAMPLES: usize = 1_600;
