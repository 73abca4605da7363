//! A tone passes through the gateway, for each pair of codecs. The receiver gets the same frequency and level. The packets fit an Ethernet
//! frame, and have no gap in their numbers or timestamps.
//!
//! The reference is the definition of a tone. Each channel is projected onto the sine and cosine that were sent, and the rest is noise.
//! Many streams run at the same time, at the pace of a call.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{Background, LIMIT, socket};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rtp_types::{RtpPacket, RtpPacketBuilder};
use threadbare_config::codec::Codec;
use threadbare_rtp::g711;
use threadbare_streams::pipeline::Elements;

/// Frequencies of the left and the right channel. Mono uses the first. They are not multiples of each other, and are below half of 8000 Hz.
const TONES_HZ: [f64; 2] = [997.0, 661.0];
/// Level of the tones: 12 dB below full scale.
const LEVEL: f64 = 8192.0;
/// Seconds of a stream before its packets repeat. Both tones have a whole number of periods in this time.
const SENT_S: usize = 3;
/// Seconds of each stream that are checked, after [`SETTLED_S`].
const HEARD_S: f64 = 1.2;
/// Time that is not checked, because encoders begin with silence, and resamplers with a lower level.
const SETTLED_S: f64 = 0.3;

fn codec(name: &str) -> Codec {
    name.parse().expect("a codec")
}

fn channels(codec: Codec) -> usize {
    match codec {
        Codec::L16 { channels, .. } | Codec::L24 { channels, .. } => channels as usize,
        Codec::Opus => 2,
        _ => 1,
    }
}

/// Returns the sample rate of the codec.
fn rate_hz(codec: Codec) -> usize {
    match codec {
        Codec::G722 => 16_000,
        _ => codec.clock_rate_hz() as usize,
    }
}

/// Returns interleaved samples of the tones.
fn tones(rate_hz: usize, channels: usize) -> Vec<i16> {
    let sample = |index: usize| {
        let (frame, channel) = (index / channels, index % channels);
        let angle = TAU * TONES_HZ[channel] * frame as f64 / rate_hz as f64;
        (LEVEL * angle.sin()).round() as i16
    };
    (0..SENT_S * rate_hz * channels).map(sample).collect()
}

/// Returns the longest packet time that fits an Ethernet frame, microseconds.
fn packet_us(codec: Codec) -> usize {
    let width = if matches!(codec, Codec::L24 { .. }) {
        3
    } else {
        2
    };
    let fits = |us: &usize| rate_hz(codec) * us / 1_000_000 * channels(codec) * width <= 1388;
    match codec {
        Codec::L16 { .. } | Codec::L24 { .. } => [20_000, 10_000, 5_000, 2_000, 1_000]
            .into_iter()
            .find(fits)
            .expect("1 ms fits"),
        _ => 20_000,
    }
}

/// Returns the payloads of a call in this codec.
fn encoded(codec: Codec, packet_us: usize) -> Vec<Vec<u8>> {
    let samples = tones(rate_hz(codec), channels(codec));
    let per_packet = rate_hz(codec) * packet_us / 1_000_000 * channels(codec);
    let packets = samples.chunks_exact(per_packet);
    match codec {
        Codec::Pcmu => packets
            .map(|p| p.iter().map(|s| g711::linear_to_ulaw(*s)).collect())
            .collect(),
        Codec::Pcma => packets
            .map(|p| p.iter().map(|s| g711::linear_to_alaw(*s)).collect())
            .collect(),
        Codec::L16 { .. } => packets
            .map(|p| p.iter().flat_map(|s| s.to_be_bytes()).collect())
            .collect(),
        Codec::L24 { .. } => packets
            .map(|p| {
                let triple = |s: &i16| [s.to_be_bytes()[0], s.to_be_bytes()[1], 0];
                p.iter().flat_map(triple).collect()
            })
            .collect(),
        Codec::G722 => {
            let pcm: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
            let coded = by_ffmpeg(&pcm, ["s16le", "g722"]);
            let packets = coded.chunks_exact(packet_us * 8 / 1000);
            packets.map(<[u8]>::to_vec).collect()
        }
        Codec::Opus => {
            let caps = raw_caps(48_000, 2);
            let buffers = packets.map(|p| p.iter().flat_map(|s| s.to_le_bytes()).collect());
            // The encoder is in its music mode, with a bit rate that preserves the tones.
            let line = "opusenc bitrate=128000 audio-type=generic";
            through_element(line, caps, buffers.collect())
        }
    }
}

/// Returns the samples of a codec's payloads, interleaved.
fn decoded(codec: Codec, payloads: &[Vec<u8>]) -> Vec<f64> {
    let bytes = payloads.iter().flatten().copied();
    match codec {
        Codec::Pcmu => bytes
            .map(|code| f64::from(g711::ULAW_TO_LINEAR[usize::from(code)]))
            .collect(),
        Codec::Pcma => bytes
            .map(|code| f64::from(g711::ALAW_TO_LINEAR[usize::from(code)]))
            .collect(),
        Codec::L16 { .. } => payloads
            .concat()
            .chunks_exact(2)
            .map(|pair| f64::from(i16::from_be_bytes([pair[0], pair[1]])))
            .collect(),
        Codec::L24 { .. } => payloads
            .concat()
            .chunks_exact(3)
            .map(|s| f64::from(i32::from_be_bytes([s[0], s[1], s[2], 0])) / 65_536.0)
            .collect(),
        Codec::G722 => by_ffmpeg(&payloads.concat(), ["g722", "s16le"])
            .chunks_exact(2)
            .map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])))
            .collect(),
        Codec::Opus => {
            let caps = gst::Caps::builder("audio/x-opus")
                .field("channel-mapping-family", 0)
                .field("channels", 2)
                .field("rate", 48_000);
            through_element("opusdec", caps.build(), payloads.to_vec())
                .concat()
                .chunks_exact(2)
                .map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])))
                .collect()
        }
    }
}

/// Converts mono at 16,000 Hz from one of ffmpeg's formats to another.
fn by_ffmpeg(bytes: &[u8], [from, to]: [&str; 2]) -> Vec<u8> {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-nostdin", "-f", from]);
    if from == "s16le" {
        ffmpeg.args(["-ar", "16000", "-ac", "1"]);
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    let output = ffmpeg
        .arg("-i")
        .arg(file.path())
        .args(["-ar", "16000", "-f", to, "-"])
        .output()
        .expect("ffmpeg is installed");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn raw_caps(rate_hz: i32, channels: i32) -> gst::Caps {
    gst::Caps::builder("audio/x-raw")
        .field("format", "S16LE")
        .field("layout", "interleaved")
        .field("rate", rate_hz)
        .field("channels", channels)
        .build()
}

/// Returns the output of a stock element that gets these buffers of 20 ms.
fn through_element(line: &str, caps: gst::Caps, buffers: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    threadbare_streams::init_gstreamer().expect("GStreamer");
    let mut harness = gst_check::Harness::new_parse(line);
    harness.set_src_caps(caps);
    let duration = gst::ClockTime::from_mseconds(20);
    for (index, bytes) in buffers.into_iter().enumerate() {
        let mut buffer = gst::Buffer::from_mut_slice(bytes);
        let writable = buffer.get_mut().expect("it is ours");
        writable.set_pts(duration * index as u64);
        writable.set_duration(duration);
        harness.push(buffer).expect("taken");
    }
    std::iter::from_fn(|| harness.try_pull())
        .map(|buffer| buffer.map_readable().expect("readable").to_vec())
        .collect()
}

/// One stream of the test: its settings and its output.
struct Stream {
    what: String,
    codec_in: Codec,
    codec_out: Codec,
    payload_type_in: u8,
    payload_type_out: u8,
    packet_us: usize,
    /// A socket that keeps the port free until the gateway starts.
    reserved: Option<UdpSocket>,
    to: SocketAddr,
    from: UdpSocket,
    answer: UdpSocket,
    received: Vec<Vec<u8>>,
    heard_s: f64,
    /// If set, one in this many packets is lost, and only [`LOSSY_PACKETS`] are sent.
    lost_every: Option<usize>,
}

impl Stream {
    /// Reads all packets that have arrived.
    fn receive(&mut self) {
        let mut buffer = [0; 65_536];
        while let Ok(length) = self.answer.recv(&mut buffer) {
            if self.lost_every.is_none() && self.heard_s >= HEARD_S + SETTLED_S {
                continue;
            }
            self.received.push(buffer[..length].to_vec());
            let packet = RtpPacket::parse(&buffer[..length]).expect("RTP");
            self.heard_s += samples_of(self.codec_out, packet.payload()) as f64
                / f64::from(self.codec_out.clock_rate_hz());
        }
    }
}

/// Returns the number of samples of each channel in a payload, by the clock of its RTP timestamps.
fn samples_of(codec: Codec, payload: &[u8]) -> usize {
    match codec {
        Codec::Pcmu | Codec::Pcma | Codec::G722 => payload.len(),
        Codec::L24 { .. } => payload.len() / 3 / channels(codec),
        Codec::L16 { .. } => payload.len() / 2 / channels(codec),
        Codec::Opus => opus_samples(payload),
    }
}

/// Returns the samples of an Opus packet at 48000 Hz. The first byte determines the length and number of frames (RFC 6716,
/// section 3.1).
fn opus_samples(payload: &[u8]) -> usize {
    let toc = payload[0];
    let frame = match toc >> 3 {
        config @ 0..=11 => [480, 960, 1920, 2880][usize::from(config % 4)],
        config @ 12..=15 => [480, 960][usize::from(config % 2)],
        config => [120, 240, 480, 960][usize::from(config % 4)],
    };
    match toc & 3 {
        0 => frame,
        1 | 2 => 2 * frame,
        _ => frame * usize::from(payload[1] & 0x3f),
    }
}

/// Returns the amplitude of a tone in a signal, and the amplitude of everything else.
fn tone_and_rest(samples: &[f64], hz: f64, rate_hz: usize) -> (f64, f64) {
    let count = samples.len() as f64;
    let angle = |n: usize| TAU * hz * n as f64 / rate_hz as f64;
    let on = |wave: fn(f64) -> f64| -> f64 {
        let product = samples.iter().enumerate().map(|(n, s)| s * wave(angle(n)));
        2.0 * product.sum::<f64>() / count
    };
    let (sine, cosine) = (on(f64::sin), on(f64::cos));
    let rest = samples
        .iter()
        .enumerate()
        .map(|(n, s)| (s - sine * angle(n).sin() - cosine * angle(n).cos()).powi(2));
    let rest = (2.0 * rest.sum::<f64>() / count).sqrt();
    (sine.hypot(cosine), rest)
}

/// Returns the expected share of both tones in each channel of `out`.
fn expected(codec_in: Codec, codec_out: Codec) -> Vec<[f64; 2]> {
    match (channels(codec_in), channels(codec_out)) {
        (1, out) => vec![[1.0, 0.0]; out],
        // The channels are mixed down with equal shares.
        (_, 1) => vec![[0.5, 0.5]],
        _ => vec![[1.0, 0.0], [0.0, 1.0]],
    }
}

/// Returns all faults of a stream's output.
fn complaints(stream: &Stream) -> Vec<String> {
    let mut found = Vec::new();
    if stream.heard_s < HEARD_S + SETTLED_S {
        found.push(format!("only {:.1} s came", stream.heard_s));
    }
    let packets = stream
        .received
        .iter()
        .map(|bytes| RtpPacket::parse(bytes).expect("RTP"))
        .collect::<Vec<_>>();
    for pair in packets.windows(2) {
        let samples = samples_of(stream.codec_out, pair[0].payload());
        let number = pair[1]
            .sequence_number()
            .wrapping_sub(pair[0].sequence_number());
        let time = pair[1].timestamp().wrapping_sub(pair[0].timestamp());
        if number != 1 || time as usize != samples {
            found.push(format!(
                "a step of {number} and {time} after {samples} samples"
            ));
            break;
        }
    }
    // If a packet arrived in IP fragments, it may leave in fragments too.
    let sent = stream.packet_us * rate_hz(stream.codec_in) / 1_000_000 * 2 + 12;
    let bytes_max = if stream.codec_in == stream.codec_out {
        sent.max(1472)
    } else {
        1472
    };
    if let Some(long) = stream.received.iter().find(|bytes| bytes.len() > bytes_max) {
        found.push(format!("{} bytes in a packet", long.len()));
    }
    if let Some(other) = packets
        .iter()
        .find(|packet| packet.payload_type() != stream.payload_type_out)
    {
        found.push(format!("payload type {}", other.payload_type()));
    }
    if stream.lost_every.is_some() {
        // The tolerance covers the look-ahead of a codec and a resampler, and a slice.
        let (sent_s, lasted_s) = (LOSSY_PACKETS as f64 * 0.02, lasted_s(stream));
        if (sent_s - lasted_s).abs() > 0.1 {
            found.push(format!("{sent_s:.2} s became {lasted_s:.2} s"));
        }
        return found;
    }
    let payloads = packets.iter().map(|packet| packet.payload().to_vec());
    let samples = decoded(stream.codec_out, &payloads.collect::<Vec<_>>());
    let (rate, width) = (rate_hz(stream.codec_out), channels(stream.codec_out));
    let settled = (SETTLED_S * rate as f64) as usize;
    for (channel, tones) in expected(stream.codec_in, stream.codec_out)
        .iter()
        .enumerate()
    {
        let heard = samples
            .iter()
            .skip(channel)
            .step_by(width)
            .skip(settled)
            .copied()
            .collect::<Vec<_>>();
        let mut rest = heard.clone();
        for (hz, share) in TONES_HZ.iter().zip(tones) {
            let (level, _) = tone_and_rest(&heard, *hz, rate);
            let level_db = 20.0 * (level / LEVEL).max(1e-3).log10();
            let wanted_db = 20.0 * share.max(1e-3).log10();
            // The tolerance covers lossy codecs, and both ends of the capture.
            let is_right = if *share > 0.0 {
                (level_db - wanted_db).abs() < 1.0
            } else {
                level_db < -26.0
            };
            if !is_right {
                found.push(format!(
                    "channel {channel}: {hz} Hz at {level_db:.1} dB, not {wanted_db:.1} dB"
                ));
            }
            rest = without(&rest, *hz, rate);
        }
        let (_, rest) = tone_and_rest(&rest, 1.0, rate);
        let rest_db = 20.0 * (rest / LEVEL).max(1e-4).log10();
        if rest_db > -20.0 {
            found.push(format!("channel {channel}: noise at {rest_db:.1} dB"));
        }
    }
    found
}

/// Returns a signal without its component at this frequency.
fn without(samples: &[f64], hz: f64, rate_hz: usize) -> Vec<f64> {
    let count = samples.len() as f64;
    let angle = |n: usize| TAU * hz * n as f64 / rate_hz as f64;
    let on = |wave: fn(f64) -> f64| -> f64 {
        let product = samples.iter().enumerate().map(|(n, s)| s * wave(angle(n)));
        2.0 * product.sum::<f64>() / count
    };
    let (sine, cosine) = (on(f64::sin), on(f64::cos));
    let rest = |(n, s): (usize, &f64)| s - sine * angle(n).sin() - cosine * angle(n).cos();
    samples.iter().enumerate().map(rest).collect()
}

/// Returns the duration of the output by its timestamps, from the first sample to the last, s.
fn lasted_s(stream: &Stream) -> f64 {
    let read = |bytes: &Vec<u8>| {
        let packet = RtpPacket::parse(bytes).expect("RTP");
        let samples = samples_of(stream.codec_out, packet.payload());
        (packet.timestamp(), samples)
    };
    let (Some(first), Some(last)) = (stream.received.first(), stream.received.last()) else {
        return 0.0;
    };
    let (time, samples) = read(last);
    let units = time.wrapping_sub(read(first).0) as usize + samples;
    units as f64 / rate_hz(stream.codec_out) as f64
}

/// Sends each stream's packets at the pace of a call until enough of each was received.
fn carry(streams: &mut [Stream]) {
    let mut payloads: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let key = |stream: &Stream| format!("{} {}", stream.codec_in, stream.packet_us);
    for stream in streams.iter() {
        payloads
            .entry(key(stream))
            .or_insert_with(|| encoded(stream.codec_in, stream.packet_us));
    }
    let mut sent = vec![0_usize; streams.len()];
    let start = Instant::now();
    let is_done = |stream: &Stream, sent: usize| match stream.lost_every {
        Some(_) => sent >= LOSSY_PACKETS,
        None => stream.heard_s >= HEARD_S + SETTLED_S,
    };
    while !streams
        .iter()
        .zip(&sent)
        .all(|(stream, sent)| is_done(stream, *sent))
    {
        let now = start.elapsed();
        if now > LIMIT {
            return;
        }
        for (stream, sent) in streams.iter().zip(&mut sent) {
            let payloads = &payloads[&key(stream)];
            let samples = stream.codec_in.clock_rate_hz() as usize * stream.packet_us / 1_000_000;
            while now.as_micros() as usize >= *sent * stream.packet_us {
                if let Some(every) = stream.lost_every
                    && (*sent % every == every - 1 || *sent >= LOSSY_PACKETS)
                {
                    *sent += 1;
                    continue;
                }
                let packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
                    .payload_type(stream.payload_type_in)
                    .sequence_number(*sent as u16)
                    .timestamp((*sent * samples) as u32)
                    .ssrc(0x1234)
                    .payload(&payloads[*sent % payloads.len()][..])
                    .write_vec()
                    .expect("a valid packet");
                let _ = stream.from.send_to(&packet, stream.to);
                *sent += 1;
            }
        }
        let mut fds = streams
            .iter()
            .map(|stream| PollFd::new(stream.answer.as_fd(), PollFlags::POLLIN))
            .collect::<Vec<_>>();
        let next = Duration::from_millis(1);
        poll(&mut fds, PollTimeout::try_from(next).expect("short")).expect("poll");
        for stream in streams.iter_mut() {
            stream.receive();
        }
    }
}

/// Returns the number of datagrams to each of these ports that the kernel dropped for lack of space (proc_net_udp(5)).
fn dropped(ports: &[u16]) -> Vec<u64> {
    let table = std::fs::read_to_string("/proc/net/udp").expect("proc");
    let by_port: BTreeMap<u16, u64> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (_, port) = fields.get(1)?.split_once(':')?;
            Some((
                u16::from_str_radix(port, 16).ok()?,
                fields.last()?.parse().ok()?,
            ))
        })
        .collect();
    ports
        .iter()
        .map(|port| by_port.get(port).copied().unwrap_or(0))
        .collect()
}

/// A case: incoming codec, its packet time, its payload type, the keys of the stream, outgoing codec.
struct Case {
    codec_in: Codec,
    packet_us: usize,
    payload_type_in: u8,
    keys: String,
    codec_out: Codec,
    lost_every: Option<usize>,
}

impl Case {
    fn new(codec_in: &str, codec_out: &str, more: &str) -> Case {
        let (codec_in, codec_out) = (codec(codec_in), codec(codec_out));
        Case {
            codec_in,
            packet_us: packet_us(codec_in),
            payload_type_in: codec_in.default_payload_type(),
            keys: format!("codec = \"{codec_in}\"\ncodec-out = \"{codec_out}\"\n{more}"),
            codec_out,
            lost_every: None,
        }
    }
}

/// Returns a socket on a free port below the kernel's automatic ports. Streams that only forward packets use an automatic port, and must
/// not get the port of a stream that starts later.
fn out_of_the_way() -> UdpSocket {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 10_000) as u16;
    (0..1000)
        .map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000)
        .find_map(|port| UdpSocket::bind(("127.0.0.1", port)).ok())
        .expect("a free port")
}

/// Lets only one test run at a time, because each test has dozens of calls.
static TURN: Mutex<()> = Mutex::new(());

/// Runs the cases, with a limited number of streams at a time, because the machine has other work too.
fn assert_heard(cases: Vec<Case>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut wrong = Vec::new();
    for cases in cases.chunks(STREAMS_MAX) {
        // If the buffer of a socket overflowed, the machine was too busy, and the case is repeated.
        let mut heard = hear(cases);
        for _ in 1..TRIES {
            if heard.dropped > 0 && !heard.wrong.is_empty() {
                heard = hear(cases);
            }
        }
        wrong.append(&mut heard.wrong);
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

struct Heard {
    wrong: Vec<String>,
    /// Number of packets that did not fit into a socket of the gateway or the receiver.
    dropped: u64,
}

fn hear(cases: &[Case]) -> Heard {
    let mut config = "[contexts]\nwait = 10\n[defaults]\nrtcp = false\n".to_owned();
    let mut streams = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let answer = socket();
        answer.set_nonblocking(true).expect("non-blocking");
        let reserved = out_of_the_way();
        let to = reserved.local_addr().expect("bound");
        config += &format!(
            "[[stream]]\nname = \"{index}\"\nlisten = \"{to}\"\ndestination = \"{}\"\n{}\n",
            answer.local_addr().expect("bound"),
            case.keys
        );
        streams.push(Stream {
            what: case.keys.replace('\n', " "),
            codec_in: case.codec_in,
            codec_out: case.codec_out,
            payload_type_in: case.payload_type_in,
            payload_type_out: case.codec_out.default_payload_type(),
            packet_us: case.packet_us,
            to,
            reserved: Some(reserved),
            from: socket(),
            answer,
            received: Vec::new(),
            heard_s: 0.0,
            lost_every: case.lost_every,
        });
    }
    for stream in &mut streams {
        stream.reserved = None;
    }
    let gateway = Background::start(&config, Elements::Threadbare);
    carry(&mut streams);
    let port = |address: SocketAddr| address.port();
    let at_gateway = dropped(&streams.iter().map(|s| port(s.to)).collect::<Vec<_>>());
    let here = |s: &Stream| port(s.answer.local_addr().expect("bound"));
    let here = dropped(&streams.iter().map(here).collect::<Vec<_>>());
    drop(gateway);
    for stream in &mut streams {
        stream.receive();
    }
    let drops = at_gateway.iter().zip(&here);
    let wrong = streams.iter().zip(drops).filter_map(|(stream, drops)| {
        let found = complaints(stream);
        let what = &stream.what;
        let found = found.join("; ");
        (!found.is_empty()).then(|| format!("{what}: {found} (the kernel dropped {drops:?})"))
    });
    Heard {
        wrong: wrong.collect(),
        dropped: at_gateway.iter().chain(&here).sum(),
    }
}

const CODECS: &[&str] = &[
    "PCMU",
    "PCMA",
    "L16/8000/1",
    "L16/8000/2",
    "L16/16000/1",
    "L16/44100/1",
    "L16/44100/2",
    "L16/48000/2",
    "L24/48000/2",
    "G722",
    "Opus",
];

#[test]
fn a_tone_is_kept_by_every_pair_of_codecs() {
    let pairs = CODECS
        .iter()
        .flat_map(|a| CODECS.iter().map(move |b| Case::new(a, b, "")));
    assert_heard(pairs.collect());
}

/// The test covers each packet time that the checks allow, for a phone's codec and for a browser's.
#[test]
fn a_tone_is_kept_at_every_packet_time() {
    let mut cases = Vec::new();
    for codec_out in CODECS {
        let out = codec(codec_out);
        for ptime_ms in out.ptimes_ms() {
            if out
                .payload_bytes(*ptime_ms)
                .is_some_and(|bytes| bytes > 1388)
            {
                continue;
            }
            for codec_in in ["PCMU", "Opus"] {
                cases.push(Case::new(
                    codec_in,
                    codec_out,
                    &format!("ptime = {ptime_ms}"),
                ));
            }
        }
    }
    assert_heard(cases);
}

/// Tests streams that take the codec from the payload type, with and without metering, unusual rates, and long packets.
#[test]
fn a_tone_is_kept_with_unusual_settings() {
    let mut cases = Vec::new();
    for codec_in in ["PCMU", "PCMA", "L16/44100/1", "L16/44100/2"] {
        for codec_out in CODECS {
            let mut case = Case::new(codec_in, codec_out, "");
            case.keys = format!("codec = \"auto\"\ncodec-out = \"{codec_out}\"\n");
            cases.push(case);
        }
    }
    for (codec_in, codec_out) in [
        ("PCMU", "L16/11025/2"),
        ("L16/96000/2", "Opus"),
        ("L16/192000/1", "PCMU"),
        ("Opus", "L16/192000/1"),
        ("PCMA", "L16/22050/1"),
    ] {
        cases.push(Case::new(codec_in, codec_out, "meter = false"));
    }
    // A packet of 20 ms would have 1764 bytes of audio, which do not fit an Ethernet frame.
    for codec_out in ["PCMU", "Opus", "L16/44100/1", "L16/48000/2"] {
        let mut case = Case::new("L16/44100/1", codec_out, "");
        case.packet_us = 20_000;
        cases.push(case);
    }
    assert_heard(cases);
}

/// If every ninth packet is lost, the output has no gap, and is as long as the input.
#[test]
fn losses_leave_no_gap_and_do_not_shorten_the_audio() {
    let mut cases = Vec::new();
    for (codec_in, codec_out, more) in [
        ("PCMU", "PCMA", ""),
        ("PCMU", "Opus", ""),
        ("PCMU", "L16/16000/1", ""),
        ("PCMU", "PCMU", "loudness-target = -23\nssrc = 1"),
        ("L16/16000/1", "Opus", ""),
        ("Opus", "PCMU", ""),
        ("Opus", "Opus", "ptime = 40"),
        ("Opus", "L16/48000/2", ""),
    ] {
        let mut case = Case::new(codec_in, codec_out, more);
        case.lost_every = Some(9);
        cases.push(case);
    }
    assert_heard(cases);
}

/// Maximum number of simultaneous streams.
const STREAMS_MAX: usize = 40;
/// Maximum number of attempts if the machine was too busy.
const TRIES: usize = 4;
/// Number of packets sent in a test with losses: 2 s.
const LOSSY_PACKETS: usize = 100;
