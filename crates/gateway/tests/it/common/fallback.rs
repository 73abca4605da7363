//! Parties of calls in any codec, and the events of a relay, for tests of the audio that a party hears.

use std::f64::consts::TAU;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hound::{SampleFormat, WavSpec, WavWriter};
use rtp_types::RtpPacketBuilder;
use serde_json::{Value, json};
use threadbare_rtp::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format};

use super::http::Relay;
use super::phones::Seen;
use super::{LIMIT, Running, socket, threadbare};

/// Frequencies of the parties and of the files.
pub const A_HZ: f64 = 437.0;
pub const B_HZ: f64 = 1013.0;
pub const FALLBACK_HZ: f64 = 620.0;
pub const PLAYED_HZ: f64 = 1500.0;
/// Amplitude of all tones, full scale 1.
pub const LEVEL: f64 = 0.25;

/// A party that sends a tone in its codec.
pub struct Phone {
    pub socket: UdpSocket,
    pub to: Option<SocketAddr>,
    pub payload_type: u8,
    pub hz: f64,
    pub talks: bool,
    /// Amplitude of the tone, relative to the usual one.
    pub amplitude: f64,
    format: Format,
    encoder: Encoder,
    decoder: Decoder,
    number: u16,
    time: u32,
    frames: u64,
    /// Samples of the first channel.
    pub heard: Vec<f32>,
    pub seen: Vec<Seen>,
}

impl Phone {
    /// Creates a party with a codec as in `rtpmap`.
    pub fn new(codec: &str, hz: f64) -> Phone {
        let format = match codec {
            "PCMU/8000" => Format::new(Encoding::Pcmu, 8000, 1),
            "PCMA/8000" => Format::new(Encoding::Pcma, 8000, 1),
            "G722/8000" => Format::new(Encoding::G722, 16_000, 1),
            "opus/48000/2" => Format::new(Encoding::Opus, 48_000, 2),
            other => panic!("{other}"),
        };
        let format = format.expect("a format");
        let socket = socket();
        socket.set_nonblocking(true).expect("non-blocking");
        Phone {
            socket,
            to: None,
            payload_type: 0,
            hz,
            talks: true,
            amplitude: 1.0,
            format,
            encoder: Encoder::new(format, &EncoderSettings::default()).expect("an encoder"),
            decoder: Decoder::new(format).expect("a decoder"),
            number: 65_500,
            time: 0,
            frames: 0,
            heard: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Sends 20 ms of the tone, if the party talks. Its time passes anyway.
    fn say(&mut self) {
        let frames = u64::from(self.format.sample_rate_hz / 50);
        let sample = |frame: u64| {
            let angle = TAU * self.hz * frame as f64 / f64::from(self.format.sample_rate_hz);
            (self.amplitude * LEVEL * angle.sin()) as f32
        };
        let channels = usize::from(self.format.channels);
        let pcm: Vec<f32> = (self.frames..self.frames + frames)
            .flat_map(|frame| std::iter::repeat_n(sample(frame), channels))
            .collect();
        self.frames += frames;
        let time = self.time;
        self.time = time.wrapping_add(self.format.clock_units(frames as u32));
        let Some(to) = self.to.filter(|_| self.talks) else {
            return;
        };
        let mut payload = Vec::new();
        self.encoder.encode(&pcm, &mut payload).expect("encoded");
        let packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(self.payload_type)
            .sequence_number(self.number)
            .timestamp(time)
            .ssrc(self.hz as u32)
            .payload(&payload[..])
            .write_vec()
            .expect("a valid packet");
        self.number = self.number.wrapping_add(1);
        self.socket.send_to(&packet, to).expect("sent");
    }

    fn listen(&mut self) {
        let mut room = [0; 2048];
        while let Ok(len) = self.socket.recv(&mut room) {
            let Ok(packet) = rtp_types::RtpPacket::parse(&room[..len]) else {
                continue;
            };
            if packet.payload_type() != self.payload_type {
                continue; // RTCP
            }
            let mut pcm = Vec::new();
            let decoded = self.decoder.decode(packet.payload(), &mut pcm);
            decoded.expect("decoded");
            let channels = usize::from(self.format.channels);
            self.heard.extend(pcm.iter().step_by(channels));
            self.seen.push(Seen {
                ssrc: packet.ssrc(),
                number: packet.sequence_number(),
                time: packet.timestamp(),
            });
        }
    }

    /// Duration of the audio that was heard, ms.
    pub fn heard_ms(&self) -> usize {
        self.heard.len() * 1000 / self.format.sample_rate_hz as usize
    }

    /// Returns the amplitude of a tone in the last second, relative to the sent amplitude.
    pub fn level(&self, hz: f64) -> f64 {
        let rate_hz = self.format.sample_rate_hz as usize;
        let pcm = &self.heard[self.heard.len().saturating_sub(rate_hz)..];
        let angle = |n: usize| TAU * hz * n as f64 / rate_hz as f64;
        let part = |wave: fn(f64) -> f64| {
            let all = pcm.iter().enumerate();
            let sum: f64 = all.map(|(n, one)| f64::from(*one) * wave(angle(n))).sum();
            2.0 * sum / pcm.len().max(1) as f64
        };
        part(f64::sin).hypot(part(f64::cos)) / LEVEL
    }

    /// Asserts that the party has heard only one of these tones in the last second.
    pub fn assert_hears(&self, expected_hz: f64, all_hz: &[f64], name: &str) {
        for hz in all_hz {
            let level = self.level(*hz);
            if *hz == expected_hz {
                assert!((level - 1.0).abs() < 0.06, "{name}: {hz} Hz at {level}");
            } else {
                assert!(level < 0.03, "{name}: {hz} Hz at {level}");
            }
        }
    }

    /// Asserts that all packets are one stream: one source, numbers without a gap, and timestamps that do not fall back.
    pub fn assert_one_stream(&self, name: &str) {
        for pair in self.seen.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            let step = next.time.wrapping_sub(one.time);
            let is_next = next.ssrc == one.ssrc && next.number == one.number.wrapping_add(1);
            // A minute is far longer than any pause of these tests.
            let is_later = step > 0 && step < 60 * self.format.clock_rate_hz;
            assert!(is_next && is_later, "{name}: {one:?} {next:?}");
        }
    }

    /// Asserts that the timestamps of the packets since `first` have no gap.
    pub fn assert_gapless_since(&self, first: usize, name: &str) {
        for pair in self.seen[first..].windows(2) {
            let step = pair[1].time.wrapping_sub(pair[0].time);
            assert_eq!(step, self.format.clock_rate_hz / 50, "{name}");
        }
    }
}

/// Starts a relay with these keys in `[calls]`, with `DIR` for the folder.
pub fn start(folder: &Path, keys: &str) -> Relay {
    write_tone(&folder.join("fallback.wav"), FALLBACK_HZ);
    write_tone(&folder.join("played.wav"), PLAYED_HZ);
    let keys = keys.replace("DIR", &folder.display().to_string());
    let text = format!(
        "[ng]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [interfaces.default]\naddress = \"127.0.0.1\"\nports = \"20000-59999\"\n\
         [timeouts]\ndelete-delay = 0\n[limits]\nlateness-limit = 1000\n[calls]\n{keys}"
    );
    std::fs::write(folder.join("calls.toml"), text).expect("written");
    start_again(folder)
}

/// Starts a relay with the configuration of an earlier one.
pub fn start_again(folder: &Path) -> Relay {
    let path = folder.join("calls.toml");
    let mut command = threadbare();
    command.arg("serve").arg(path).env_remove("STATE_DIRECTORY");
    Relay::of(Running::spawn(command))
}

/// Makes a call. Returns the reply and its parties.
pub fn call(relay: &Relay, codecs: [&str; 2]) -> (Value, [Phone; 2]) {
    let mut phones = [Phone::new(codecs[0], A_HZ), Phone::new(codecs[1], B_HZ)];
    let side = |at: usize| {
        let address = phones[at].socket.local_addr().expect("bound");
        json!({"address": address.to_string(), "codec": codecs[at]})
    };
    let answer = relay.post("/v1/calls", &json!({"sides": [side(0), side(1)]}));
    assert_eq!(answer.status, 201, "{}", answer.text());
    let made = answer.json();
    for (phone, side) in phones
        .iter_mut()
        .zip(made["sides"].as_array().expect("two"))
    {
        let to = side["local_address"].as_str().expect("an address");
        phone.to = to.parse().ok();
        phone.payload_type = side["payload_type"].as_u64().expect("a number") as u8;
    }
    (made, phones)
}

/// Lets the parties send at the pace of a call until `is_done`.
pub fn run(phones: &mut [Phone], mut is_done: impl FnMut(&mut [Phone]) -> bool) {
    let begin = Instant::now();
    for number in 0.. {
        phones.iter_mut().for_each(Phone::say);
        phones.iter_mut().for_each(Phone::listen);
        if is_done(phones) {
            return;
        }
        let heard: Vec<_> = phones.iter().map(Phone::heard_ms).collect();
        assert!(begin.elapsed() < LIMIT, "{heard:?} ms");
        let due = begin + Duration::from_millis(20) * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Writes a second of a tone as a WAV file.
pub fn write_tone(path: &Path, hz: f64) {
    let spec = WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: SampleFormat::Int,
    };
    let mut writer = WavWriter::create(path, spec).expect("created");
    for n in 0..16_000 {
        let sample = LEVEL * 32768.0 * (TAU * hz * f64::from(n) / 16_000.0).sin();
        writer.write_sample(sample as i16).expect("written");
    }
    writer.finalize().expect("finished");
}

/// The events of `/v1/events`, read by a thread.
pub struct EventReader(Receiver<(String, Value)>);

impl EventReader {
    /// Starts to read the events. When this returns, later events are read.
    pub fn start(http: SocketAddr) -> EventReader {
        let mut stream = TcpStream::connect(http).expect("it listens");
        let head = format!("GET /v1/events HTTP/1.1\r\nHost: {http}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a header");
        }
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let mut name = String::new();
            for line in reader.lines().map_while(Result::ok) {
                if let Some(text) = line.strip_prefix("event:") {
                    name = text.trim().to_owned();
                } else if let Some(data) = line.strip_prefix("data:") {
                    let data = serde_json::from_str(data).expect("JSON");
                    if tell.send((name.clone(), data)).is_err() {
                        return;
                    }
                }
            }
        });
        EventReader(told)
    }

    /// Returns the events that have arrived and have one of these names.
    pub fn take(&self, names: &[&str]) -> Vec<(String, Value)> {
        let events = self.0.try_iter();
        let wanted = events.filter(|(name, _)| names.contains(&name.as_str()));
        wanted.collect()
    }
}
