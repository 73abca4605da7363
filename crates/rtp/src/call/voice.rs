//! The encoder of a direction. It gathers samples, encodes them, and gives the packets their timestamps.

use super::out::Out;
use super::time_map::TimeMap;
use crate::codec::{CodecError, Encoder, EncoderSettings, Format};
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::Payload;

/// Outgoing audio of one direction, encoded from samples.
#[derive(Debug)]
pub(super) struct Voice {
    pub(super) payload: Payload,
    pub(super) format: Format,
    /// Packet time that the settings asked for when the encoder was created, ns.
    pub(super) asked_ns: u64,
    encoder: Encoder,
    /// Frames per packet.
    frames: usize,
    /// Samples that were not sent yet, which are less than a packet.
    pcm: Vec<f32>,
    /// Timestamp of the first sample in `pcm`.
    time: RtpTime,
    play_ns: u64,
    marker: bool,
}

impl Voice {
    /// Creates an encoder for packets of `packet_ns`, or of 20 ms if it is 0.
    pub(super) fn new(
        payload: Payload,
        format: Format,
        settings: &EncoderSettings,
        packet_ns: u64,
    ) -> Result<Voice, CodecError> {
        Ok(Voice {
            payload,
            format,
            asked_ns: packet_ns,
            encoder: Encoder::new(format, settings)?,
            frames: packet_frames(format, packet_ns),
            pcm: Vec::new(),
            time: RtpTime(0),
            play_ns: 0,
            marker: true,
        })
    }

    /// Sets the bit rate from the next packet on.
    pub(super) fn set_bitrate(&mut self, settings: &EncoderSettings) -> Result<(), CodecError> {
        self.encoder.set_bitrate(settings)
    }

    /// Uses packets of this length from now on if the settings do not ask for another one.
    pub(super) fn prefer_packet_ns(&mut self, packet_ns: u64) {
        if self.pcm.is_empty() {
            self.frames = packet_frames(self.format, packet_ns);
        }
    }

    pub(super) fn packet_ns(&self) -> u64 {
        self.frames as u64 * NS_PER_S / u64::from(self.format.sample_rate_hz)
    }

    /// Gives the next sample the timestamp `time` and the play time `play_ns`, if no samples are gathered.
    pub(super) fn begin(&mut self, time: RtpTime, play_ns: u64) {
        if self.pcm.is_empty() {
            (self.time, self.play_ns) = (time, play_ns);
            self.marker = true;
        }
    }

    /// Appends `pcm` and sends all whole packets.
    pub(super) fn push(&mut self, pcm: &[f32], map: &mut TimeMap, out: &mut Out<'_>) {
        self.pcm.extend_from_slice(pcm);
        let samples = self.frames * usize::from(self.format.channels);
        let mut sent = 0;
        while self.pcm.len() - sent >= samples {
            self.send(sent..sent + samples, map, out);
            sent += samples;
        }
        self.pcm.drain(..sent);
    }

    /// Drops the gathered samples. A pause must follow.
    pub(super) fn clear(&mut self) {
        self.pcm.clear();
        self.marker = true;
    }

    /// Sends the gathered samples, padded with silence. A pause or the end must follow.
    pub(super) fn flush(&mut self, map: &mut TimeMap, out: &mut Out<'_>) {
        if !self.pcm.is_empty() {
            let samples = self.frames * usize::from(self.format.channels);
            self.pcm.resize(samples, 0.0);
            self.send(0..samples, map, out);
            self.pcm.clear();
        }
        self.marker = true;
    }

    /// Sends the gathered samples in a shorter packet, if the format allows one. The next audio starts right after it.
    pub(super) fn finish(&mut self, map: &mut TimeMap, out: &mut Out<'_>) {
        let channels = usize::from(self.format.channels);
        let frames = self.pcm.len() / channels;
        if frames > 0 {
            let of_ns = |ns: u64| (ns * u64::from(self.format.sample_rate_hz) / NS_PER_S) as usize;
            let usual = PACKET_NS_USUAL.into_iter().rev().map(of_ns);
            let fits = |whole: &usize| *whole >= frames && self.format.allows_frames(*whole);
            let whole = std::iter::once(frames).chain(usual).find(fits);
            self.pcm
                .resize(whole.unwrap_or(self.frames) * channels, 0.0);
            self.send(0..self.pcm.len(), map, out);
            self.pcm.clear();
        }
        self.marker = true;
    }

    fn send(&mut self, samples: std::ops::Range<usize>, map: &mut TimeMap, out: &mut Out<'_>) {
        let frames = samples.len() / usize::from(self.format.channels);
        let pcm = &self.pcm[samples];
        let encoder = &mut self.encoder;
        let (time, marker) = (self.time, self.marker);
        let units = self.format.clock_units(frames as u32);
        // The format allows this length, so only the library can refuse it. In that case, the packet is skipped.
        let encoded = encoder.encode(pcm, out.begin());
        let is_sent = encoded.is_ok_and(|encoded| !encoded.is_dtx);
        if is_sent {
            out.send(&self.payload, time, marker, 0);
        }
        self.marker = !is_sent;
        map.note_sent(time, units, self.play_ns);
        self.time = time.plus(units);
        self.play_ns += frames as u64 * NS_PER_S / u64::from(self.format.sample_rate_hz);
    }
}

/// Returns the number of frames in a packet of about this length that the format allows and that fits a datagram.
fn packet_frames(format: Format, packet_ns: u64) -> usize {
    let wanted_ns = if packet_ns == 0 {
        PACKET_NS_DEFAULT
    } else {
        packet_ns
    };
    let rate = u64::from(format.sample_rate_hz);
    let of_ns = |ns: u64| (ns * rate / NS_PER_S) as usize;
    let most = format
        .max_frames_for(PAYLOAD_BYTES_MAX)
        .unwrap_or(usize::MAX);
    let fits = |frames: &usize| *frames <= most && format.allows_frames(*frames);
    std::iter::once(of_ns(wanted_ns))
        .chain(
            PACKET_NS_USUAL
                .into_iter()
                .filter(|ns| *ns <= wanted_ns.max(PACKET_NS_DEFAULT))
                .map(of_ns),
        )
        .chain(PACKET_NS_USUAL.into_iter().map(of_ns))
        .find(fits)
        .unwrap_or(1)
}

/// Packet time if no other one is requested, ns. "The default packetization interval SHOULD have a duration of 20 ms" (RFC 3551, section
/// 4.2).
pub(super) const PACKET_NS_DEFAULT: u64 = 20_000_000;
/// Usual packet times, the longest first. Each encoding allows some of them.
const PACKET_NS_USUAL: [u64; 9] = [
    60_000_000, 40_000_000, 20_000_000, 10_000_000, 5_000_000, 4_000_000, 1_000_000, 250_000,
    125_000,
];
/// Maximum size of a payload: 1500 bytes of Ethernet without the headers of IPv6, UDP and RTP.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1_440;
