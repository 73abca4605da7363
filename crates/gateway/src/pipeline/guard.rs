//! Guards between a stream's codec elements and the network: only the codec's audio reaches the decoder, made-up audio
//! does not outgrow the received audio, and the timestamps continue from packet to packet.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gst::prelude::*;
use rtp_types::RtpPacket;
use threadbare_rtp::id::{PayloadType, RtpTime};
use threadbare_rtp::payload::COMFORT_NOISE;

use crate::codec::Codec;
use crate::config::StreamSpec;

/// The payload type of a packet, if it is RTP.
pub(super) fn payload_type(buffer: &gst::BufferRef) -> Option<u8> {
    let bytes = buffer.map_readable().ok()?;
    RtpPacket::parse(&bytes)
        .ok()
        .map(|packet| packet.payload_type())
}

/// Keeps other packets than audio from the decoder: a depayloader takes packets of any type for its own.
pub(super) fn keep_to_codec(source: &gst::Element, spec: &StreamSpec) {
    let Some(pad) = source.static_pad("src") else {
        return;
    };
    let (stream, dtmf) = (spec.name.clone(), PayloadType(spec.dtmf_payload_type));
    let has_warned = AtomicBool::new(false);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let Some(gst::PadProbeData::Buffer(buffer)) = &info.data else {
            return gst::PadProbeReturn::Ok;
        };
        match payload_type(buffer).map(PayloadType) {
            Some(payload_type) if [dtmf, COMFORT_NOISE].contains(&payload_type) => {
                if !has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        stream,
                        %payload_type,
                        "dropping telephone events and comfort noise: they pass between PCMU, PCMA and L16/8000/1 only"
                    );
                }
                gst::PadProbeReturn::Handled
            }
            _ => gst::PadProbeReturn::Ok,
        }
    });
}

/// Limits the output to the received audio and as much again. Decoders, resamplers and the normaliser fill gaps by
/// timestamps and durations, which come from the sender's packets.
pub(super) fn keep_to_what_came(
    source: &gst::Element,
    sink: &gst::Element,
    codec_in: Codec,
    spec: &StreamSpec,
) {
    let (Some(source), Some(sink)) = (source.static_pad("src"), sink.static_pad("sink")) else {
        return;
    };
    let codec_out = spec.codec_out.unwrap_or(codec_in);
    let outgoing = Arc::new(Mutex::new(Outgoing::new(codec_in, codec_out)));
    let incoming = outgoing.clone();
    source.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &info.data
            && let Ok(bytes) = buffer.map_readable()
            && let Ok(packet) = RtpPacket::parse(&bytes)
        {
            lock(&incoming).handle_received(packet.payload());
        }
        gst::PadProbeReturn::Ok
    });
    let (stream, start) = (spec.name.clone(), Instant::now());
    let types = gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST;
    sink.add_probe(types, move |_, info| {
        let mut outgoing = lock(&outgoing);
        let now_us = start.elapsed().as_micros() as u64;
        let goes = match &mut info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => outgoing.pass(now_us, buffer),
            Some(gst::PadProbeData::BufferList(list)) => {
                list.make_mut().foreach_mut(|mut buffer, _| {
                    let goes = outgoing.pass(now_us, &mut buffer);
                    ControlFlow::Continue(goes.then_some(buffer))
                });
                true
            }
            _ => true,
        };
        if goes {
            return gst::PadProbeReturn::Ok;
        }
        if !std::mem::replace(&mut outgoing.has_warned, true) {
            tracing::warn!(
                stream,
                "dropping packets: filled losses and pauses would more than double the received audio"
            );
        }
        // Not `Drop`: with GStreamer 1.22 that unrefs what the bindings have dropped.
        gst::PadProbeReturn::Handled
    });
}

fn lock(outgoing: &Mutex<Outgoing>) -> MutexGuard<'_, Outgoing> {
    outgoing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The budget for output, and the next timestamp.
#[derive(Debug)]
struct Outgoing {
    codec_in: Codec,
    codec_out: Codec,
    /// Microseconds of audio that may still go out.
    balance_us: u64,
    /// Microseconds of audio that may go out by the clock, and when that was, microseconds.
    pace_us: u64,
    paced_us: u64,
    /// Where the next packet begins.
    next: Option<RtpTime>,
    has_warned: bool,
}

impl Outgoing {
    fn new(codec_in: Codec, codec_out: Codec) -> Outgoing {
        Outgoing {
            codec_in,
            codec_out,
            balance_us: BALANCE_US_FIRST,
            pace_us: PACE_US_MAX,
            paced_us: 0,
            next: None,
            has_warned: false,
        }
    }

    fn handle_received(&mut self, payload: &[u8]) {
        let bytes_us = (payload.len() as u64 + RTP_HEADER_BYTES) * US_PER_BYTE_MAX;
        let audio_us = self.codec_in.audio_us(payload).min(bytes_us);
        let balance_us = self.balance_us + SENT_PER_RECEIVED * audio_us;
        self.balance_us = balance_us.min(BALANCE_US_MAX);
    }

    /// Whether a packet may go out. If so, its timestamp continues that of the one before, unless there is a pause.
    fn pass(&mut self, now_us: u64, buffer: &mut gst::Buffer) -> bool {
        let stamped = {
            let Ok(bytes) = buffer.map_readable() else {
                return true;
            };
            let Ok(packet) = RtpPacket::parse(&bytes) else {
                return true;
            };
            let time = RtpTime(packet.timestamp());
            self.handle_sending(now_us, time, packet.payload())
        };
        let Some(time) = stamped else { return false };
        // A whole header is present: it was read.
        let _ = buffer
            .make_mut()
            .copy_from_slice(TIMESTAMP_AT, &time.0.to_be_bytes());
        true
    }

    fn handle_sending(&mut self, now_us: u64, time: RtpTime, payload: &[u8]) -> Option<RtpTime> {
        let since_us = now_us.saturating_sub(std::mem::replace(&mut self.paced_us, now_us));
        self.pace_us = (self.pace_us + since_us * PACE_PERCENT / 100).min(PACE_US_MAX);
        let rate_hz = self.codec_out.clock_rate_hz();
        let off_max = (u64::from(rate_hz) * STEP_US_MAX / 1_000_000) as u32;
        let audio_us = self.codec_out.audio_us(payload);
        let samples = self.codec_out.audio_samples(payload);
        let time = match self.next {
            Some(next) if (time.0.wrapping_sub(next.0) as i32).unsigned_abs() <= off_max => next,
            _ => time,
        };
        self.next = Some(time.plus(samples));
        let balance_us = self.balance_us.checked_sub(audio_us)?;
        self.pace_us = self.pace_us.checked_sub(audio_us)?;
        self.balance_us = balance_us;
        Some(time)
    }
}

/// Output audio per received audio: the audio itself, and as much for concealing losses and filling pauses.
const SENT_PER_RECEIVED: u64 = 2;
/// Additional budget at the start: the longest concealed loss.
const BALANCE_US_FIRST: u64 = 200_000;
/// Largest budget that a stream may save, for pauses in speech.
const BALANCE_US_MAX: u64 = 10_000_000;
/// An Opus packet of one byte may claim 60 ms, one of two bytes 120 ms. With its header, no packet counts for more than this
/// for each byte: 20 ms of 6 kbit/s (RFC 6716, section 2.1.1) have 27 bytes.
const US_PER_BYTE_MAX: u64 = 1_000;
/// Audio leaves as fast as it is played, and a little faster: to catch up after a slice that was late.
const PACE_PERCENT: u64 = 125;
/// And in bursts of so much, as senders do.
const PACE_US_MAX: u64 = 3_000_000;
/// Encoders and resamplers begin with less than a packet: not all that goes out lies on a grid. More is a pause.
const STEP_US_MAX: u64 = 30_000;
/// RFC 3550, section 5.1.
const RTP_HEADER_BYTES: u64 = 12;
const TIMESTAMP_AT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Audio that goes out, ms, for packets that come `every_us` and are filled up to ten times as much.
    fn sent_ms(codec_in: Codec, payload: &[u8], every_us: u64) -> u64 {
        let mut outgoing = Outgoing::new(codec_in, Codec::Pcma);
        let mut sent_ms = 0;
        for i in 0..1000 {
            outgoing.handle_received(payload);
            for _ in 0..10 {
                let sent = outgoing.handle_sending(i * every_us, RtpTime(0), &[0; 160]);
                sent_ms += if sent.is_some() { 20 } else { 0 };
            }
        }
        sent_ms
    }

    #[test]
    fn no_more_goes_out_than_twice_what_came() {
        // 20 s came, and took twice as long.
        let sent_ms = sent_ms(Codec::Pcmu, &[0; 160], 40_000);
        assert!(sent_ms <= 2 * 20_000 + 200, "{sent_ms}");
        assert!(sent_ms >= 2 * 20_000 - 200, "{sent_ms}");
    }

    #[test]
    fn a_claim_counts_for_no_more_than_its_bytes_can_hold() {
        // One byte that claims 60 ms (RFC 6716, section 3.1: configuration 3), with the RTP header 13 bytes.
        let sent_ms = sent_ms(Codec::Opus, &[3 << 3], 60_000);
        assert!(sent_ms <= 2 * 13 * 1000 + 200, "{sent_ms}");
    }

    #[test]
    fn a_flood_does_not_go_out_faster_than_it_is_played() {
        // 20 s of audio within a second.
        let sent_ms = sent_ms(Codec::Pcmu, &[0; 160], 1_000);
        assert!(sent_ms <= 3000 + 1250, "{sent_ms}");
    }

    #[test]
    fn timestamps_go_on_but_keep_a_pause() {
        let mut outgoing = Outgoing::new(Codec::Pcmu, Codec::Opus);
        let twenty_ms = &[1 << 3];
        // An encoder that begins 312 samples early, then a pause of 100 ms.
        let times = [1000, 1000 + 648, 1000 + 1608, 1000 + 2568 + 4800];
        let stamped = times.map(|time| {
            outgoing.handle_received(&[0; 160]);
            outgoing
                .handle_sending(0, RtpTime(time), twenty_ms)
                .map(|time| time.0)
        });
        assert_eq!(stamped, [1000, 1960, 2920, 8368].map(Some));
    }
}
