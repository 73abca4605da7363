//! Measures the loudness of packets of PCMU, PCMA and L16.

use threadbare_loudness::{BuildError, Meter, Mode, Resolution};
use threadbare_rtp::recode::Config;

use crate::loudness::readings::add_readings;

/// The meter of one stream. Some tens of KB, however long the stream lasts.
#[derive(Debug)]
pub(super) struct LineMeter {
    meter: Meter,
    rate_hz: u32,
}

impl LineMeter {
    /// Makes sure that `slot` has one for this rate; another rate begins anew.
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
            *slot = Some(LineMeter { meter, rate_hz });
        }
        Ok(slot.as_mut().expect("it has just been filled"))
    }

    /// A packet as the recoder has written it. Telephone events and comfort noise, which pass as they are, are no samples.
    pub(super) fn add_packet(&mut self, packet: &[u8], config: &Config) {
        let Some((header, payload)) = packet.split_at_checked(HEADER_BYTES) else {
            return;
        };
        if header[1] & PAYLOAD_TYPE_BITS != config.payload_type.0 {
            return;
        }
        let mut linear = [0; CHUNK_SAMPLES];
        for chunk in payload.chunks(CHUNK_SAMPLES * config.to.sample_bytes()) {
            let samples = config.to.to_linear(chunk, &mut linear);
            let taken = self.meter.add_interleaved(&linear[..samples]);
            debug_assert!(taken.is_ok(), "one channel has whole frames only");
        }
    }

    pub(super) fn add_readings(&self, structure: &mut gst::StructureRef) {
        add_readings(structure, &self.meter);
    }
}

/// RFC 3550, section 5.1: the recoder writes neither contributing sources nor extensions.
const HEADER_BYTES: usize = 12;
const PAYLOAD_TYPE_BITS: u8 = 0x7f;
/// 30 ms at 8000 Hz: all of most packets.
const CHUNK_SAMPLES: usize = 240;
