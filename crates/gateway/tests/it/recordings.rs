//! Recordings of streams and calls, read with other programs (ffmpeg and ffprobe).
//!
//! The senders send tones. Each file must have the right tone at the right level in the right track. The reference for loudness
//! is ffmpeg's ebur128.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::http::Relay;
use crate::common::plain::{made, side};
use crate::common::{LIMIT, Running, free_port, socket, wait_until};
use nix::sys::signal::Signal;
use rtp_types::RtpPacketBuilder;
use serde_json::{Value, json};
use threadbare_rtp::codec::{Encoder, EncoderSettings, Encoding, Format};
use threadbare_s3::{Credentials, Endpoint, Store, StoreSettings, Timeouts};

/// Level of the senders' tones, relative to full scale.
const LEVEL: f32 = 0.25;
const HZ: [f32; 2] = [400.0, 1000.0];
/// The tone that is sent in a pause of the recording.
const SECRET_HZ: f32 = 2000.0;

/// A gateway with a configuration file, a folder for recordings, and HTTP.
struct Gateway {
    relay: Relay,
    folder: tempfile::TempDir,
}

impl Gateway {
    /// Starts a gateway. In `rest`, `DIR` stands for the folder of recordings.
    fn start(rest: &str) -> Gateway {
        let folder = tempfile::tempdir().expect("a folder");
        Gateway::start_in(folder, rest)
    }

    fn start_in(folder: tempfile::TempDir, rest: &str) -> Gateway {
        let running = spawn(folder.path(), rest);
        Gateway {
            relay: Relay::of(running),
            folder,
        }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("rec")
    }

    fn recordings(&self, query: &str) -> Vec<Value> {
        let page = self.relay.get_json(&format!("/v1/recordings?{query}"));
        page["recordings"].as_array().expect("a list").clone()
    }

    /// Waits until this many recordings are in a state.
    fn wait_for(&self, state: &str, count: usize) -> Vec<Value> {
        let query = format!("state={state}");
        wait_until(|| self.recordings(&query).len() >= count);
        self.recordings(&query)
    }

    fn path(&self, recording: &Value) -> PathBuf {
        self.root()
            .join(recording["file"].as_str().expect("a name"))
    }

    fn patch(&self, path: &str, body: &Value) -> u16 {
        let kind = "Content-Type: application/json\r\n";
        let answer = self
            .relay
            .request("PATCH", path, kind, body.to_string().as_bytes());
        answer.status
    }

    /// Sets up a call between two parties that send. Returns the reply and the parties.
    fn call(&self, codecs: [&str; 2], more: &Value) -> (Value, [Speaker; 2]) {
        let sockets = [socket(), socket()];
        let sides = [side(&sockets[0], codecs[0]), side(&sockets[1], codecs[1])];
        let mut body = json!({"sides": sides});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        let call = made(&self.relay.post("/v1/calls", &body));
        let [a, b] = sockets;
        let mut places = [0, 1].into_iter();
        let speakers = [a, b].map(|socket| {
            let place: usize = places.next().expect("two");
            let side = &call["sides"][place];
            let to = side["local_address"].as_str().expect("an address");
            let payload_type = side["payload_type"].as_u64().expect("a number") as u8;
            let format = Format::from_rtpmap(codecs[place]).expect("a codec");
            Speaker::start(
                socket,
                to.parse().expect("an address"),
                payload_type,
                format,
                HZ[place],
            )
        });
        (call, speakers)
    }
}

fn spawn(folder: &Path, rest: &str) -> Running {
    Running::spawn(command(folder, rest))
}

fn command(folder: &Path, rest: &str) -> Command {
    let root = folder.join("rec").display().to_string();
    let text = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n{}",
        rest.replace("DIR", &root)
    );
    let path = folder.join("gateway.toml");
    std::fs::write(&path, text).expect("written");
    let mut command = crate::common::threadbare();
    command.arg("run").arg(&path);
    command
}

/// Sends a tone at the pace of a call, on a separate thread, until dropped.
struct Speaker {
    speech: Arc<Speech>,
    thread: Option<JoinHandle<()>>,
}

/// A speaker's state, shared with its thread.
#[derive(Default)]
struct Speech {
    ends: AtomicBool,
    is_silent: AtomicBool,
    /// The tone's frequency, as bits of an `f32`.
    hz: AtomicU32,
    /// Number of packets of 20 ms that have become due, whether they were sent or not.
    packets: AtomicU32,
}

impl Speaker {
    fn start(
        socket: UdpSocket,
        to: SocketAddr,
        payload_type: u8,
        format: Format,
        hz: f32,
    ) -> Speaker {
        let speech = Arc::<Speech>::default();
        speech.hz.store(hz.to_bits(), Relaxed);
        let state = speech.clone();
        let thread = std::thread::spawn(move || {
            let hz = || f32::from_bits(state.hz.load(Relaxed));
            let mut tone = Tone::new(payload_type, format, hz());
            let begin = Instant::now();
            for number in 0.. {
                if state.ends.load(Relaxed) {
                    return;
                }
                tone.hz = hz();
                let packet = tone.packet();
                if !state.is_silent.load(Relaxed) {
                    let _ = socket.send_to(&packet, to);
                }
                state.packets.store(number + 1, Relaxed);
                let due = begin + Duration::from_millis(20) * (number + 1);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Speaker {
            speech,
            thread: Some(thread),
        }
    }
}

impl Speaker {
    fn end(&self) {
        self.speech.ends.store(true, Relaxed);
    }

    fn says(&self, hz: f32) {
        self.speech.hz.store(hz.to_bits(), Relaxed);
    }
}

/// Waits until `count` more packets of each speaker have become due.
fn wait_for_packets<'a>(speakers: impl IntoIterator<Item = &'a Speaker>, count: u32) {
    let due = |one: &Speaker| one.speech.packets.load(Relaxed);
    let goals: Vec<_> = speakers
        .into_iter()
        .map(|one| (one, due(one) + count))
        .collect();
    wait_until(|| goals.iter().all(|(one, goal)| due(one) >= *goal));
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it sends");
        }
    }
}

/// A tone, as packets of 20 ms.
struct Tone {
    encoder: Encoder,
    format: Format,
    payload_type: u8,
    ssrc: u32,
    hz: f32,
    frame: u64,
    number: u16,
    time: u32,
}

impl Tone {
    fn new(payload_type: u8, format: Format, hz: f32) -> Tone {
        Tone {
            encoder: Encoder::new(format, &EncoderSettings::default()).expect("an encoder"),
            format,
            payload_type,
            ssrc: hz as u32,
            hz,
            frame: 0,
            number: 0,
            time: 0,
        }
    }

    fn packet(&mut self) -> Vec<u8> {
        let frames = self.format.frames_per_packet(20_000).expect("20 ms");
        let channels = usize::from(self.format.channels);
        let mut pcm = Vec::with_capacity(frames * channels);
        for _ in 0..frames {
            let turns = self.hz as f64 * self.frame as f64 / f64::from(self.format.sample_rate_hz);
            let sample = LEVEL * (turns.fract() as f32 * std::f32::consts::TAU).sin();
            pcm.extend(std::iter::repeat_n(sample, channels));
            self.frame += 1;
        }
        let mut payload = Vec::new();
        self.encoder.encode(&pcm, &mut payload).expect("encoded");
        let packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(self.payload_type)
            .sequence_number(self.number)
            .timestamp(self.time)
            .ssrc(self.ssrc)
            .payload(&payload[..])
            .write_vec()
            .expect("a packet");
        self.number = self.number.wrapping_add(1);
        self.time = self
            .time
            .wrapping_add(self.format.clock_units(frames as u32));
        packet
    }
}

/// Returns the table of a stream for the configuration file, and its port. The latency is so long that nothing is lost if a
/// busy machine sends late.
fn stream(name: &str, codec: &str, record: &str) -> (String, SocketAddr) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let table = format!(
        "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ncodec = \"{codec}\"\nlatency = 400\nrtcp = false\nrecord = {record}\n"
    );
    (table, listen)
}

fn format_of(text: &str) -> Format {
    Format::from_rtpmap(text).expect("a codec")
}

/// Decodes a track with ffmpeg. Returns the samples, interleaved, with full scale 1, the sample rate, and the number of channels.
fn decoded(path: &Path, track: usize) -> (Vec<f32>, u32, u16) {
    let probed = probe(path);
    let stream = &probed["streams"][track];
    let rate_hz = stream["sample_rate"]
        .as_str()
        .and_then(|text| text.parse().ok());
    let channels = stream["channels"].as_u64().expect("audio");
    (
        samples_of(path, track),
        rate_hz.expect("audio"),
        channels as u16,
    )
}

fn samples_of(path: &Path, track: usize) -> Vec<f32> {
    let output = Command::new("ffmpeg")
        .args(["-v", "error", "-i"])
        .arg(path)
        .args(["-map", &format!("0:{track}"), "-f", "f32le", "-"])
        .output()
        .expect("ffmpeg");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{}: {said}",
        path.display()
    );
    let samples = output.stdout.chunks_exact(4);
    let samples = samples.map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    samples.collect()
}

fn probe(path: &Path) -> Value {
    let output = Command::new("ffprobe")
        .args([
            "-v",
            "error",
            "-of",
            "json",
            "-show_streams",
            "-show_format",
        ])
        .arg(path)
        .output()
        .expect("ffprobe");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{}: {said}",
        path.display()
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the level of a frequency in the longest part of a channel without a gap. Uses at most half a second from the middle of that
/// part. 1 is the level of the senders.
fn level(samples: &[f32], rate_hz: u32, hz: f32) -> f32 {
    let heard = heard(samples, rate_hz);
    let longest = heard.iter().max_by_key(|part| part.len());
    let longest = longest.expect("somebody is heard");
    let half = longest.len().min(rate_hz as usize / 2);
    assert!(half >= rate_hz as usize / 20, "{heard:?}");
    let begin = (longest.start + longest.end - half) / 2;
    level_of(&samples[begin..begin + half], rate_hz, hz)
}

fn level_of(part: &[f32], rate_hz: u32, hz: f32) -> f32 {
    let angle = |n: usize| f64::from(hz) * n as f64 / f64::from(rate_hz) * std::f64::consts::TAU;
    let sum = |wave: fn(f64) -> f64| -> f64 {
        let each = part.iter().enumerate();
        each.map(|(n, sample)| f64::from(*sample) * wave(angle(n)))
            .sum()
    };
    (sum(f64::sin).hypot(sum(f64::cos)) * 2.0 / part.len() as f64) as f32 / LEVEL
}

/// Returns the parts of a channel that contain a tone, as ranges of samples. They are exact to 10 ms.
fn heard(samples: &[f32], rate_hz: u32) -> Vec<Range<usize>> {
    let piece = rate_hz as usize / 100;
    let mut parts: Vec<Range<usize>> = Vec::new();
    for (n, samples) in samples.chunks_exact(piece).enumerate() {
        if !samples.iter().any(|one| one.abs() > LEVEL / 4.0) {
            continue;
        }
        match parts.last_mut() {
            Some(last) if last.end == n * piece => last.end += piece,
            _ => parts.push(n * piece..(n + 1) * piece),
        }
    }
    parts
}

/// Returns the duration of the longest part of a channel with a tone, s.
fn heard_longest(samples: &[f32], rate_hz: u32) -> f64 {
    let longest = heard(samples, rate_hz).iter().map(Range::len).max();
    longest.unwrap_or(0) as f64 / f64::from(rate_hz)
}

/// Returns the path under which a recording can be read.
fn path_of(recording: &Value) -> &str {
    recording["path"].as_str().expect("a path")
}

/// Returns the number of pieces of 50 ms that contain this frequency.
fn pieces_with(samples: &[f32], rate_hz: u32, hz: f32) -> usize {
    let pieces = samples.chunks_exact(rate_hz as usize / 20);
    pieces
        .filter(|piece| level_of(piece, rate_hz, hz) > 0.3)
        .count()
}

fn channel(samples: &[f32], channels: u16, at: usize) -> Vec<f32> {
    samples
        .iter()
        .skip(at)
        .step_by(channels.into())
        .copied()
        .collect()
}

/// Returns the integrated loudness and the true peak of a whole file, measured by ffmpeg.
fn ebur128(path: &Path) -> (f64, f64) {
    let output = Command::new("ffmpeg")
        .args(["-nostats", "-i"])
        .arg(path)
        .args(["-map", "0:0", "-af", "ebur128=peak=true", "-f", "null", "-"])
        .output()
        .expect("ffmpeg");
    let said = String::from_utf8_lossy(&output.stderr);
    let summary = said.rsplit("Summary:").next().expect("a summary");
    let value = |key: &str| {
        let rest = summary
            .split(key)
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        rest.and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("{summary}"))
    };
    (value("I:"), value("Peak:"))
}

fn assert_near(found: f32, due: f32, what: &str) {
    assert!(
        (found - due).abs() < 0.06,
        "{what}: {found} instead of {due}"
    );
}

/// Records a second and a half of each stream, in each format.
#[test]
fn streams_are_recorded_in_each_format_with_their_loudness() {
    let codecs = [
        ("PCMU", "PCMU/8000", 0),
        ("PCMA", "PCMA/8000", 8),
        ("G722", "G722/8000", 9),
        ("L16/16000/2", "L16/16000/2", 96),
        ("Opus", "opus/48000/2", 96),
    ];
    let formats = ["wav", "wav-g711", "mka", "mka-g711"];
    let (mut tables, mut speakers, mut names) = (String::new(), Vec::new(), Vec::new());
    for (codec, rtpmap, payload_type) in codecs {
        for format in formats {
            let name = format!("{}-{format}", codec.replace('/', "-"));
            let record = format!("{{ to = \"DIR/{{name}}/{{time}}\", format = \"{format}\" }}");
            let (table, listen) = stream(&name, codec, &record);
            tables.push_str(&table);
            speakers.push((listen, payload_type, format_of(rtpmap)));
            names.push((name, format_of(rtpmap), format));
        }
    }
    let mut gateway = Gateway::start(&tables);
    assert_eq!(gateway.recordings("state=running").len(), names.len());
    let speakers: Vec<Speaker> = speakers
        .into_iter()
        .map(|(to, payload_type, format)| Speaker::start(socket(), to, payload_type, format, HZ[0]))
        .collect();
    let told = RecordingEvents::listen(&gateway.relay);
    wait_for_packets(&speakers, 95);
    drop(speakers);
    // The streams continue after their recordings.
    for (name, ..) in &names {
        assert_eq!(
            gateway.patch(
                &format!("/v1/streams/{name}"),
                &json!({"recording": "stopped"})
            ),
            204
        );
    }
    let complete = gateway.wait_for("complete", names.len());
    for (name, format, kind) in &names {
        let one = complete
            .iter()
            .find(|one| one["stream"] == **name)
            .expect("its file");
        let path = gateway.path(one);
        let (samples, rate_hz, channels) = decoded(&path, 0);
        assert_eq!(
            (rate_hz, channels),
            (format.sample_rate_hz, format.channels.into()),
            "{name}"
        );
        let probed = probe(&path);
        let codec = &probed["streams"][0]["codec_name"];
        let is_g711 = kind.ends_with("g711") && rate_hz == 8000;
        let due = match format.encoding {
            Encoding::Pcma if is_g711 => "pcm_alaw",
            Encoding::Pcmu if is_g711 => "pcm_mulaw",
            _ => "pcm_s16le",
        };
        assert_eq!(*codec, due, "{name}");
        for at in 0..usize::from(channels) {
            assert_near(
                level(&channel(&samples, channels, at), rate_hz, HZ[0]),
                1.0,
                name,
            );
        }
        let (lufs, dbtp) = ebur128(&path);
        let told_lufs = one["loudness"]["integrated_lufs"]
            .as_f64()
            .expect("it is measured");
        assert!(
            (told_lufs - lufs).abs() <= 0.1,
            "{name}: {told_lufs}, ffmpeg says {lufs}"
        );
        let told_dbtp = one["loudness"]["true_peak_dbtp"]
            .as_f64()
            .expect("it is measured");
        assert!(
            (told_dbtp - dbtp).abs() <= 0.2,
            "{name}: {told_dbtp}, ffmpeg says {dbtp}"
        );
        let tags = probed["format"]["tags"].to_string();
        assert!(tags.contains(&format!("{told_lufs:.2} LUFS")), "{tags}");
        assert_eq!(
            one["bytes"].as_u64(),
            Some(std::fs::metadata(&path).expect("there").len())
        );
        let seconds = samples.len() as f64 / f64::from(channels) / f64::from(rate_hz);
        assert!((one["duration_ms"].as_f64().expect("a time") / 1000.0 - seconds).abs() < 0.002);
    }
    let events = told.take(names.len());
    assert!(events.iter().all(|event| event["state"] == "complete"));
    let metrics = gateway.relay.get("/metrics");
    let line = format!("threadbare_recordings_complete_total {}", names.len());
    assert!(metrics.text().contains(&line), "{}", metrics.text());
    gateway.relay.running.signal(Signal::SIGTERM);
    assert!(
        gateway
            .relay
            .running
            .child
            .wait()
            .expect("it ends")
            .success()
    );
}

/// The stream of events, of which those about ended recordings are read.
struct RecordingEvents(BufReader<TcpStream>);

impl RecordingEvents {
    fn listen(relay: &Relay) -> RecordingEvents {
        let mut stream = TcpStream::connect(relay.http).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("valid");
        let head = format!("GET /v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", relay.http);
        stream.write_all(head.as_bytes()).expect("sent");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a header");
        }
        RecordingEvents(reader)
    }

    fn take(mut self, count: usize) -> Vec<Value> {
        let (mut found, mut is_it) = (Vec::new(), false);
        while found.len() < count {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("an event");
            if let Some(data) = line.strip_prefix("data:").filter(|_| is_it) {
                let event: Value = serde_json::from_str(data).expect("JSON");
                if event["state"] != "running" {
                    found.push(event);
                }
            }
            is_it = line.starts_with("event: recording") || (is_it && !line.starts_with("event:"));
        }
        found
    }
}

/// The parties are in separate tracks, or both in one track.
#[test]
fn calls_are_recorded_as_configured_or_requested() {
    let gateway = Gateway::start(
        "[calls]\nrecord = { to = \"DIR/{date}/{call}-{id}\", on = \"call\" }\n[timeouts]\ndelete-delay = 0\n\
         [limits]\nlateness-limit = 1000\n",
    );
    let mut calls = Vec::new();
    for (codecs, format) in [
        (["G722/8000", "opus/48000/2"], "wav"),
        (["G722/8000", "opus/48000/2"], "mka"),
        (["L16/16000/1", "PCMU/8000"], "mka-g711"),
        (["PCMA/8000", "L16/16000/1"], "wav"),
    ] {
        for tracks in ["sides", "mixed"] {
            let id = format!("a/..{}-{format}-{tracks}", codecs.join("-"));
            let more = json!({"id": id, "record": {"tracks": tracks, "format": format}});
            let (call, speakers) = gateway.call(codecs, &more);
            calls.push((call, speakers, id, format, tracks));
        }
    }
    for format in [None, Some("wav-g711"), Some("mka"), Some("mka-g711")] {
        for tracks in ["sides", "mixed"] {
            let id = format!("a/../{format:?}-{tracks}");
            let mut more = json!({"id": id, "record": {"tracks": tracks}});
            if let Some(format) = format {
                more["record"]["format"] = format.into();
            }
            if (format, tracks) == (None, "sides") {
                more["record"] = Value::Null;
            }
            let (call, speakers) = gateway.call(["PCMU/8000", "PCMA/8000"], &more);
            calls.push((call, speakers, id, format.unwrap_or("wav"), tracks));
        }
    }
    gateway.wait_for("running", calls.len());
    wait_for_packets(calls.iter().flat_map(|(_, speakers, ..)| speakers), 90);
    for (call, speakers, ..) in &mut calls {
        let path = call["path"].as_str().expect("a path");
        assert_eq!(gateway.relay.request("DELETE", path, "", b"").status, 204);
        speakers.iter().for_each(Speaker::end);
    }
    gateway.wait_for("complete", calls.len());
    for (_, _, id, format, tracks) in &calls {
        let query = format!("call={}", id.replace('/', "%2F").replace('"', "%22"));
        let one = gateway.recordings(&query).remove(0);
        assert_eq!((&one["call"], &one["format"]), (&json!(id), &json!(format)));
        let path = gateway.path(&one);
        let name = path.file_name().expect("a name").to_string_lossy();
        assert!(name.starts_with("a_.."), "{name}");
        let what = format!("{id} {format} {tracks}");
        let (first, rate_hz, channels) = decoded(&path, 0);
        assert_eq!(one["rate_hz"], rate_hz);
        let heard: Vec<Vec<f32>> = match (format.starts_with("mka"), *tracks) {
            (false, "sides") => {
                assert_eq!(channels, 2);
                [0, 1].map(|at| channel(&first, 2, at)).into()
            }
            (true, "sides") => [first, decoded(&path, 1).0].into(),
            _ => vec![first],
        };
        for (track, samples) in heard.iter().enumerate() {
            for (party, hz) in HZ.into_iter().enumerate() {
                let is_there = *tracks == "mixed" || track == party;
                let due = if is_there { 1.0 } else { 0.0 };
                assert_near(level(samples, rate_hz, hz), due, &what);
            }
        }
    }
    for (key, value, allowed) in [
        ("format", "mp3", "mka-g711"),
        ("tracks", "both", "mixed"),
        ("rotate", "often", "1h"),
        ("on", "never", "loss"),
    ] {
        let sides = calls_sides();
        let body = json!({"sides": sides, "record": {key: value}});
        let problem = gateway.relay.post("/v1/calls", &body).problem(400);
        assert_eq!(problem["field"], format!("record.{key}"), "{problem}");
        assert!(
            problem["allowed"].to_string().contains(allowed),
            "{problem}"
        );
    }
}

/// Only owner and group may read recorded media and the names of calls.
#[test]
fn other_users_cannot_read_recordings() {
    for (keys, of_files) in [("", 0o640), (", permissions = \"0600\"", 0o600)] {
        let gateway = Gateway::start(&format!(
            "[calls]\nrecord = {{ to = \"DIR/{{date}}/{{call}}-{{id}}\"{keys} }}\n[timeouts]\ndelete-delay = 0\n"
        ));
        let formats = ["wav", "mka", "pcap"];
        for format in formats {
            let more = json!({"id": format, "record": {"format": format}});
            let (call, speakers) = gateway.call(["PCMU/8000", "PCMA/8000"], &more);
            gateway.wait_for("running", 1);
            let path = call["path"].as_str().expect("a path");
            assert_eq!(gateway.relay.request("DELETE", path, "", b"").status, 204);
            speakers.iter().for_each(Speaker::end);
        }
        for one in gateway.wait_for("complete", formats.len()) {
            let path = gateway.path(&one);
            let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
            assert_eq!(mode(&path), of_files, "{}", path.display());
            let folder = path.parent().expect("of the day");
            assert_eq!(mode(folder) & 0o007, 0, "{}", folder.display());
        }
    }
}

fn calls_sides() -> [Value; 2] {
    let sockets = [socket(), socket()];
    [
        side(&sockets[0], "PCMU/8000"),
        side(&sockets[1], "PCMU/8000"),
    ]
}

/// The loudness of each party, while the call runs. A sine of 1000 Hz and full scale has -3.01 LUFS (EBU Tech 3341), and K-weighting
/// changes 1000 Hz by less than 0.1 dB.
#[test]
fn a_call_shows_the_loudness_of_its_parties() {
    for meter in [true, false] {
        let gateway = Gateway::start(&format!("[calls]\nmeter = {meter}\n"));
        let (call, speakers) = gateway.call(["PCMU/8000", "PCMA/8000"], &json!({}));
        wait_for_packets(&speakers, 60);
        let shown = gateway
            .relay
            .get_json(call["path"].as_str().expect("a path"));
        let loudness = |side: usize| {
            shown["streams"][0]["sides"][side]["media"]
                .get("loudness")
                .cloned()
        };
        if !meter {
            assert_eq!([loudness(0), loudness(1)], [None, None], "{shown}");
            continue;
        }
        let loudness = loudness(1).expect("of the party with 1000 Hz");
        let expected = -3.01 + 20.0 * f64::from(LEVEL).log10();
        for key in ["momentary_lufs", "integrated_lufs"] {
            let measured = loudness[key].as_f64().expect("a level");
            assert!(
                (measured - expected).abs() < 0.3,
                "{key}: {measured}, expected {expected}"
            );
        }
    }
}

#[test]
fn each_party_has_its_own_file_if_the_name_asks_for_it() {
    let gateway = Gateway::start(
        "[calls]\nrecord = { to = \"DIR/{call}-{side}.wav\" }\n[timeouts]\ndelete-delay = 0\n",
    );
    let (call, speakers) = gateway.call(["PCMU/8000", "PCMA/8000"], &json!({"id": "x"}));
    wait_for_packets(&speakers, 90);
    let path = call["path"].as_str().expect("a path");
    assert_eq!(gateway.relay.request("DELETE", path, "", b"").status, 204);
    drop(speakers);
    gateway.wait_for("complete", 2);
    for (party, name) in ["x-a.wav", "x-b.wav"].into_iter().enumerate() {
        let (samples, rate_hz, channels) = decoded(&gateway.root().join(name), 0);
        assert_eq!((rate_hz, channels), (8000, 1));
        assert_near(level(&samples, rate_hz, HZ[party]), 1.0, name);
        assert_near(level(&samples, rate_hz, HZ[1 - party]), 0.0, name);
    }
}

#[test]
fn audio_of_a_pause_is_not_recorded() {
    let (table, listen) = stream("s", "PCMU", "{ to = \"DIR/{id}.wav\" }");
    let hook = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/", hook.local_addr().expect("bound"));
    let posted = std::thread::spawn(move || posts(&hook, 2));
    let gateway = Gateway::start(&format!(
        "{table}[alarms]\nwebhook = \"{url}\"\n[alarms.no-packets]\nenabled = false\n[calls]\nrecord = {{ to = \"DIR/{{id}}.wav\" }}\n[timeouts]\ndelete-delay = 0\n"
    ));
    let speaker = Speaker::start(socket(), listen, 0, format_of("PCMU/8000"), HZ[0]);
    let (call, speakers) = gateway.call(["PCMU/8000", "PCMU/8000"], &json!({}));
    let call = call["path"].as_str().expect("a path");
    let both = |recording: &str| {
        for path in ["/v1/streams/s", call] {
            assert_eq!(
                gateway.patch(path, &json!({"recording": recording})),
                204,
                "{path}"
            );
        }
    };
    let all = || speakers.iter().chain([&speaker]);
    let second = || wait_for_packets(all(), 50);
    second();
    both("paused");
    all().for_each(|one| one.says(SECRET_HZ));
    second();
    all().for_each(|one| one.speech.is_silent.store(true, Relaxed));
    // Wait for the packets that are still on their way.
    second();
    all().for_each(|one| one.says(HZ[1]));
    all().for_each(|one| one.speech.is_silent.store(false, Relaxed));
    both("running");
    second();
    both("stopped");
    let complete = gateway.wait_for("complete", 2);
    let posted = posted.join().expect("it is told");
    for one in &complete {
        let told = posted.iter().find(|told| told["recording"] == one["id"]);
        let told = told.unwrap_or_else(|| panic!("{posted:?}"));
        assert_eq!(
            (&told["state"], &told["path"]),
            (&json!("complete"), &one["file"])
        );
        assert_eq!(told["integrated_lufs"], one["loudness"]["integrated_lufs"]);
    }
    // The stream continues in another file.
    both("running");
    second();
    drop((speaker, speakers));
    both("stopped");
    let all = gateway.wait_for("complete", 4);
    // Count the pieces of each tone in each file: the tones from before, during and after the pause.
    let pieces = |one: &Value| {
        let (samples, rate_hz, channels) = decoded(&gateway.path(one), 0);
        let first = channel(&samples, channels, 0);
        [HZ[0], SECRET_HZ, HZ[1]].map(|hz| pieces_with(&first, rate_hz, hz))
    };
    for one in &complete {
        let [before, meanwhile, behind] = pieces(one);
        assert!(before > 4 && behind > 4, "{before}, {behind} of {one}");
        assert_eq!(meanwhile, 0, "{one}");
    }
    for one in all.iter().filter(|one| !complete.contains(one)) {
        let [before, meanwhile, behind] = pieces(one);
        assert_eq!((before, meanwhile), (0, 0), "{one}");
        assert!(behind > 4, "{behind} of {one}");
    }
    for (path, body, status) in [
        ("/v1/streams/s", json!({"recording": "off"}), 400),
        ("/v1/streams/s", json!({"record": "paused"}), 400),
        ("/v1/streams/t", json!({"recording": "paused"}), 404),
        ("/v1/calls/nobody", json!({"recording": "paused"}), 404),
    ] {
        assert_eq!(gateway.patch(path, &body), status, "{path} {body}");
    }
}

/// Returns the bodies of the next `count` requests about recordings.
fn posts(hook: &std::net::TcpListener, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    while found.len() < count {
        let (stream, _) = hook.accept().expect("a request");
        let mut reader = BufReader::new(stream);
        let (mut length, mut line) = (0, String::new());
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a header");
            let lower = line.to_ascii_lowercase();
            if let Some(text) = lower.strip_prefix("content-length:") {
                length = text.trim().parse().expect("a number");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        reader.get_mut().write_all(answer).expect("sent");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        found.extend(body.get("recording").is_some().then_some(body));
    }
    found
}

/// When a sender falls silent, the seconds before and after are recorded. Another test, in virtual time, checks exactly what is recorded.
#[test]
fn the_seconds_around_an_interruption_are_recorded() {
    let record = "{ to = \"DIR/{id}.wav\", on = \"loss\", before = 1, after = 1 }";
    let (table, listen) = stream("s", "PCMU", record);
    let gateway = Gateway::start(&table);
    let speaker = Speaker::start(socket(), listen, 0, format_of("PCMU/8000"), HZ[0]);
    wait_for_packets([&speaker], 100);
    speaker.speech.is_silent.store(true, Relaxed);
    gateway.wait_for("running", 1);
    speaker.speech.is_silent.store(false, Relaxed);
    let one = gateway.wait_for("complete", 1).remove(0);
    let (samples, rate_hz, _) = decoded(&gateway.path(&one), 0);
    let parts = heard(&samples, rate_hz);
    let mut gaps = parts.windows(2).map(|two| two[0].end..two[1].start);
    let is_long = |gap: Range<usize>| gap.len() > rate_hz as usize * 2 / 5;
    assert!(gaps.any(is_long), "{parts:?}");
}

/// Checks that the whole file and parts of it can be read (RFC 9110, section 14).
fn check_parts(relay: &Relay, path: &str, file: &[u8]) {
    let whole = relay.get(path);
    assert_eq!((whole.status, &whole.body[..]), (200, file));
    assert_eq!(whole.headers["content-type"], "audio/wav");
    assert_eq!(whole.headers["accept-ranges"], "bytes");
    let part = |range: &str| relay.request("GET", path, &format!("Range: {range}\r\n"), b"");
    let some = part("bytes=100-299");
    assert_eq!((some.status, &some.body[..]), (206, &file[100..300]));
    assert_eq!(
        some.headers["content-range"],
        format!("bytes 100-299/{}", file.len())
    );
    assert_eq!(part("bytes=-8").body, file[file.len() - 8..]);
    assert_eq!(part("bytes=200-").body, file[200..]);
    let none = part("bytes=99999999-");
    assert_eq!(
        (none.status, &none.headers["content-range"]),
        (416, &format!("bytes */{}", file.len()))
    );
}

#[test]
fn recordings_are_listed_read_in_parts_and_deleted() {
    let (table, listen) = stream(
        "a b",
        "PCMU",
        "{ to = \"DIR/{name}/{id}.wav\", rotate = \"1s\" }",
    );
    // Files of the first stream may end while a request is being answered. The stream of this file has a single recording, so the file
    // keeps growing.
    let (growing, _) = stream("grows", "PCMU", "{ to = \"DIR/{name}/{id}.wav\" }");
    let gateway = Gateway::start(&format!("{table}{growing}"));
    let speaker = Speaker::start(socket(), listen, 0, format_of("PCMU/8000"), HZ[0]);
    gateway.wait_for("complete", 3);
    assert_eq!(
        gateway.patch("/v1/streams/a%20b", &json!({"recording": "stopped"})),
        204
    );
    wait_until(|| gateway.recordings("stream=a%20b&state=running").is_empty());
    drop(speaker);
    let all = gateway.recordings("stream=a%20b");
    let (mut paged, mut next) = (
        Vec::new(),
        Some("/v1/recordings?stream=a%20b&limit=2".to_owned()),
    );
    while let Some(path) = next {
        let page = gateway.relay.get_json(&path);
        paged.extend(page["recordings"].as_array().expect("a list").clone());
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(paged, all);
    assert_eq!(gateway.recordings("stream=other"), [] as [Value; 0]);
    let path = all[1]["path"].as_str().expect("a path");
    let file = std::fs::read(gateway.path(&all[1])).expect("there");
    check_parts(&gateway.relay, path, &file);
    for odd in [
        "/v1/recordings/..%2F..%2Fgateway.toml",
        "/v1/recordings/0",
        "/v1/recordings/%00",
    ] {
        gateway.relay.get(odd).problem(404);
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("state=odd", "state"),
        ("path=x", "query"),
    ] {
        let problem = gateway
            .relay
            .get(&format!("/v1/recordings?{query}"))
            .problem(400);
        assert_eq!(problem["field"], field, "{problem}");
    }
    assert_eq!(gateway.relay.request("DELETE", path, "", b"").status, 204);
    assert!(!gateway.path(&all[1]).exists());
    gateway.relay.request("DELETE", path, "", b"").problem(404);
    assert_eq!(gateway.recordings("stream=a%20b").len(), all.len() - 1);
    // A growing file can be read, but not deleted.
    let growing = gateway.recordings("stream=grows&state=running").remove(0);
    let path = path_of(&growing);
    wait_until(|| gateway.relay.get(path).body.len() > 1024);
    gateway.relay.request("DELETE", path, "", b"").problem(409);
    assert_eq!(gateway.relay.get(path).status, 200);
}

/// Recordings are accessible only with the token.
#[test]
fn recordings_need_the_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef").expect("written");
    let relay = Relay::start(&["--http-token-file", token.to_str().expect("a path")]);
    for (method, path) in [
        ("GET", "/v1/recordings"),
        ("GET", "/v1/recordings/1"),
        ("DELETE", "/v1/recordings/1"),
        ("PATCH", "/v1/streams/a"),
    ] {
        relay.request(method, path, "", b"").problem(401);
    }
}

/// Recordings that were announced as complete are complete. All others can be played up to their last second, and are complete after the
/// next start of the gateway.
#[test]
fn recordings_of_a_killed_gateway_are_complete_or_playable_to_the_last_second() {
    const STREAMS: usize = 100;
    let (mut tables, mut ports) = (String::new(), Vec::new());
    for n in 0..STREAMS {
        let ending = ["wav", "mka"][n % 2];
        // Some streams start new files, so that some files are complete before the kill.
        let rotate = if n < 10 { ", rotate = \"1s\"" } else { "" };
        let record = format!("{{ to = \"DIR/{{name}}-{{id}}.{ending}\"{rotate} }}");
        let (table, listen) = stream(&format!("s{n}"), "PCMU", &record);
        tables.push_str(&table);
        ports.push(listen);
    }
    let mut gateway = Gateway::start(&tables);
    let (ends, from) = (Arc::<AtomicBool>::default(), socket());
    let told = ends.clone();
    let sender = std::thread::spawn(move || {
        let mut tone = Tone::new(0, format_of("PCMU/8000"), HZ[0]);
        let begin = Instant::now();
        while !told.load(Relaxed) {
            let packet = tone.packet();
            for to in &ports {
                let _ = from.send_to(&packet, to);
            }
            let due = begin + Duration::from_millis(20) * u32::from(tone.number);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    });
    // Wait for three files of each stream that rotates every second. The other recordings then have three seconds.
    gateway.wait_for("complete", 30);
    let complete = gateway.recordings("state=complete&limit=500");
    let running = gateway.recordings("state=running&limit=500");
    // A rotating stream may be between two files, or may just have ended one.
    assert!(running.len() >= STREAMS - 10, "{}", running.len());
    let killed_unix_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as u64;
    gateway.relay.running.signal(Signal::SIGKILL);
    gateway.relay.running.child.wait().expect("it ends");
    ends.store(true, Relaxed);
    sender.join().expect("it sends");
    for one in &complete {
        let path = gateway.path(one);
        assert_eq!(
            std::fs::metadata(&path).expect("it is there").len(),
            one["bytes"].as_u64().expect("a number")
        );
    }
    // Two tracks of one channel have the same number of samples.
    let seconds_of = |path: &Path| samples_of(path, 0).len() as f64 / 8000.0;
    let mut parts = 0;
    for one in &running {
        let path = gateway.path(one);
        let id = one["id"].as_str().expect("an id");
        let stem = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let ending = path
            .extension()
            .expect("an ending")
            .to_string_lossy()
            .into_owned();
        let part = path.with_file_name(format!("{stem}.{id}.part.{ending}"));
        // The file may have been renamed just before the kill.
        let there = if part.exists() { part } else { path };
        let started = one["started_unix_ms"].as_u64().expect("a time");
        let age_s = killed_unix_ms.saturating_sub(started) as f64 / 1000.0;
        if age_s < 1.5 {
            continue;
        }
        parts += 1;
        // Check only every third file, because each check takes some time.
        if parts % 3 > 0 {
            continue;
        }
        let seconds = seconds_of(&there);
        // Allow for the last second, and for the delay of an overloaded machine.
        assert!(seconds > age_s - 1.5, "{seconds} of {age_s} s: {one}");
    }
    assert!(parts >= STREAMS - 10, "{parts}");
    let folder = gateway.folder;
    let gateway = Gateway::start_in(folder, "");
    let mut names = std::fs::read_dir(gateway.root()).expect("a folder");
    // Without `record`, the folder is not checked.
    assert!(names.any(|one| {
        one.expect("a file")
            .file_name()
            .to_string_lossy()
            .contains(".part.")
    }));
    let folder = gateway.folder;
    drop(gateway.relay);
    let idle = "[calls]\nrecording-dir = \"DIR\"\n";
    let gateway = Gateway::start_in(folder, idle);
    let names = std::fs::read_dir(gateway.root()).expect("a folder");
    let names = names.map(|one| {
        one.expect("a file")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    assert_eq!(names.filter(|name| name.contains(".part.")).count(), 0);
    let recovered = gateway.recordings("state=recovered&limit=500");
    assert!(recovered.len() >= parts, "{}", recovered.len());
    for one in recovered.iter().step_by(7) {
        let seconds = seconds_of(&gateway.path(one));
        let told_s = one["duration_ms"].as_f64().expect("a time") / 1000.0;
        assert!(
            (seconds - told_s).abs() < 0.01,
            "{seconds} instead of {told_s} s: {one}"
        );
    }
    let again = gateway.recordings("state=complete&limit=500");
    assert!(complete.iter().all(|one| again.contains(one)));
}

/// Starts a gateway whose folder of recordings is a separate file system. `mount` is a bash command that mounts it on `$1`. The stream
/// `other` is not recorded, and is forwarded to `answer`. Also returns the address of that stream.
fn start_mounted(mount: &str, tables: &str, answer: &UdpSocket) -> (Gateway, SocketAddr) {
    let folder = tempfile::tempdir().expect("a folder");
    let other = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n{}[[stream]]\nname = \"other\"\nlisten = \"{other}\"\ndestination = \"{}\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\nrtcp = false\n",
        tables.replace("DIR", &folder.path().join("rec").display().to_string()),
        answer.local_addr().expect("bound"),
    );
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, text).expect("written");
    let rec = folder.path().join("rec");
    std::fs::create_dir(&rec).expect("made");
    // The mounts are visible only to the gateway.
    let mut command = Command::new("unshare");
    let script = format!("{mount} && exec \"$0\" run \"$2\" --log-format json");
    command.args(["--user", "--map-root-user", "--mount", "bash", "-c"]);
    command
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_threadbare"))
        .arg(&rec)
        .arg(&path);
    let gateway = Gateway {
        relay: Relay::of(Running::spawn_as(command)),
        folder,
    };
    (gateway, other)
}

/// Asserts that each packet directly follows the previous one.
fn assert_in_order(numbers: &[u16]) {
    let is_next = |pair: &[u16]| pair[1] == pair[0].wrapping_add(1);
    assert!(numbers.windows(2).all(is_next), "{numbers:?}");
}

/// On a file system of 100 KiB, recordings are cut off, and continue when there is space again. A stream that is not recorded loses no
/// packets.
#[test]
fn a_full_disk_cuts_off_recordings_and_affects_no_stream() {
    let (table, listen) = stream("full", "L16/16000/1", "{ to = \"DIR/{id}.wav\" }");
    let answer = socket();
    let mount = "mount -t tmpfs -o size=100k none \"$1\"";
    let (gateway, other) = start_mounted(mount, &table, &answer);
    let speakers = [
        Speaker::start(socket(), listen, 96, format_of("L16/16000/1"), HZ[0]),
        Speaker::start(socket(), other, 0, format_of("PCMU/8000"), HZ[0]),
    ];
    let begin = Instant::now();
    let mut numbers = Vec::new();
    // The streams write 32 kB a second, so the disk is full after some seconds.
    let mut is_cut = false;
    while !is_cut || numbers.len() < 100 {
        assert!(begin.elapsed() < LIMIT, "it is not full");
        numbers.push(crate::common::receive(&answer).sequence);
        is_cut = is_cut || (numbers.len() % 50 == 0 && !gateway.recordings("state=cut").is_empty());
    }
    for _ in 0..50 {
        numbers.push(crate::common::receive(&answer).sequence);
    }
    drop(speakers);
    assert_in_order(&numbers);
    let cut = gateway.recordings("state=cut").remove(0);
    assert!(
        cut["error"].as_str().expect("a reason").contains("ENOSPC"),
        "{cut}"
    );
    assert!(cut["duration_ms"].as_u64() > Some(1000), "{cut}");
    // The file that was cut off can be played.
    let read = gateway.relay.get(cut["path"].as_str().expect("a path"));
    let copy = gateway.folder.path().join("copy.wav");
    std::fs::write(&copy, &read.body).expect("written");
    let (samples, rate_hz, _) = decoded(&copy, 0);
    assert_near(level(&samples, rate_hz, HZ[0]), 1.0, "what was cut");
}

/// Number of streams that are recorded on the stalling disk.
const STALLED: usize = 4;
/// Number of packets of 20 ms in the five seconds of the stall.
const STALL_PACKETS: usize = 250;

/// The server of a file system (bindfs, by FUSE) stops for five seconds, so that writes block. A stream that is not recorded loses nothing,
/// and a recording on another disk does not wait. The files contain the audio of the five seconds, because the rings and the page cache had
/// space for it.
#[test]
fn stalled_disk_stops_no_stream_and_loses_no_audio() {
    let answer = socket();
    let (mut tables, mut places) = (String::new(), Vec::new());
    for number in 0..=STALLED {
        // The last stream is recorded on another disk.
        let folder = if number < STALLED { "DIR" } else { "DIR.well" };
        let record = format!("{{ to = \"{folder}/{{id}}.wav\" }}");
        let (table, listen) = stream(&format!("s{number}"), "PCMU", &record);
        tables.push_str(&table);
        places.push(listen);
    }
    // The server ends with the gateway.
    let mount = "mkdir \"$1.disk\" && { setpriv --pdeathsig KILL bindfs -f \"$1.disk\" \"$1\" & echo $! >\"$1.pid\"; until mountpoint -q \"$1\"; do sleep 0.01; done; }";
    let (gateway, other) = start_mounted(mount, &tables, &answer);
    let mut speakers: Vec<Speaker> = places
        .iter()
        .map(|listen| Speaker::start(socket(), *listen, 0, format_of("PCMU/8000"), HZ[0]))
        .collect();
    let stream_of = |one: &Value| one["stream"].as_str().expect("a name").to_owned();
    let length = |one: &Value| gateway.relay.get(path_of(one)).body.len();
    wait_until(|| {
        let running = gateway.recordings("state=running");
        running.len() == STALLED + 1 && running.iter().all(|one| length(one) > 16_044)
    });
    let well = format!("stream=s{STALLED}");
    let well = gateway.recordings(&well).remove(0);
    let pid = std::fs::read_to_string(gateway.folder.path().join("rec.pid")).expect("a number");
    let server = nix::unistd::Pid::from_raw(pid.trim().parse().expect("a number"));
    let signal = |signal| nix::sys::signal::kill(server, signal).expect("it runs");
    let on_disk = || {
        let files = std::fs::read_dir(gateway.folder.path().join("rec.disk")).expect("a folder");
        let bytes = |file: std::io::Result<std::fs::DirEntry>| {
            let file = file.expect("read");
            (file.file_name(), file.metadata().expect("there").len())
        };
        files.map(bytes).collect::<BTreeMap<_, _>>()
    };
    let came = Arc::new(Mutex::new(Vec::new()));
    let (heard, hears) = (came.clone(), answer);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let receiver = std::thread::spawn(move || {
        while !over.load(Relaxed) {
            let number = crate::common::receive(&hears).sequence;
            heard.lock().expect("no panic").push(number);
        }
    });
    speakers.push(Speaker::start(
        socket(),
        other,
        0,
        format_of("PCMU/8000"),
        HZ[0],
    ));
    let wait_for = |packets: usize| {
        let since = came.lock().expect("no panic").len();
        wait_until(|| came.lock().expect("no panic").len() >= since + packets);
    };
    wait_for(50);
    let before = length(&well);
    signal(Signal::SIGSTOP);
    wait_for(25);
    let stalled = on_disk();
    wait_for(STALL_PACKETS);
    // Then at least two seconds of 16 bits at 8 kHz have been written.
    wait_until(|| length(&well) > before + 32_000);
    assert_eq!(on_disk(), stalled, "nothing was written");
    signal(Signal::SIGCONT);
    wait_for(50);
    is_over.store(true, Relaxed);
    receiver.join().expect("packets come");
    assert_in_order(&came.lock().expect("no panic"));
    for number in 0..=STALLED {
        let path = format!("/v1/streams/s{number}");
        assert_eq!(gateway.patch(&path, &json!({"recording": "stopped"})), 204);
    }
    drop(speakers);
    for recording in gateway.wait_for("complete", STALLED + 1) {
        let name = stream_of(&recording);
        assert_eq!(recording["missed_ms"], 0, "{recording}");
        let read = gateway.relay.get(path_of(&recording));
        let copy = gateway.folder.path().join("copy.wav");
        std::fs::write(&copy, &read.body).expect("written");
        let (samples, rate_hz, _) = decoded(&copy, 0);
        let longest = heard_longest(&samples, rate_hz);
        assert!(longest > 5.5, "{name}: {longest} s without a break");
        assert_near(level(&samples, rate_hz, HZ[0]), 1.0, &name);
    }
}

/// Each mistake is reported before the start, with its name, its value, and the allowed values.
#[test]
fn folders_that_cannot_be_used_are_refused_before_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("file"), "").expect("written");
    let (table, _) = stream("s", "PCMU", "{ to = \"DIR/{id}.wav\" }");
    let bad = folder.path().join("file/below");
    let path = folder.path().join("bad.toml");
    std::fs::write(&path, table.replace("DIR", &bad.display().to_string())).expect("written");
    for more in [&["--check"][..], &[]] {
        let output = crate::common::threadbare()
            .arg("run")
            .arg(&path)
            .args(more)
            .output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).replace(['\n', '│', ' '], "");
        assert!(!output.status.success(), "{said}");
        let name = bad.display().to_string().replace(' ', "");
        assert!(said.contains(&name), "{said}");
    }
    // Two processes must not share a folder.
    let good = table.replace("DIR", &folder.path().join("rec").display().to_string());
    std::fs::write(&path, good).expect("written");
    let mut command = crate::common::threadbare();
    command.arg("run").arg(&path);
    let mut first = Running::spawn(command);
    first.wait_for("recording");
    let output = crate::common::threadbare()
        .arg("run")
        .arg(&path)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("another process"),
        "{said}"
    );
}

/// All files, joined one after another, contain the whole tone without a break.
#[test]
fn no_sample_is_lost_between_files() {
    let (by_time, first) = stream(
        "time",
        "L16/16000/1",
        "{ to = \"DIR/{name}/{id}.wav\", rotate = \"1s\" }",
    );
    let (by_size, second) = stream(
        "size",
        "L16/16000/1",
        "{ to = \"DIR/{name}/{id}.mka\", rotate = \"64kB\" }",
    );
    let mut gateway = Gateway::start(&format!("{by_time}{by_size}"));
    let speakers =
        [first, second].map(|to| Speaker::start(socket(), to, 96, format_of("L16/16000/1"), HZ[1]));
    wait_until(|| {
        gateway.recordings("stream=time").len() > 4 && gateway.recordings("stream=size").len() > 3
    });
    drop(speakers);
    gateway.relay.running.signal(Signal::SIGTERM);
    assert!(
        gateway
            .relay
            .running
            .child
            .wait()
            .expect("it ends")
            .success()
    );
    let rest = "[limits]\n";
    let folder = gateway.folder;
    let gateway = Gateway::start_in(folder, &format!("{by_time}{by_size}{rest}"));
    for name in ["time", "size"] {
        let all = gateway.recordings(&format!("stream={name}&state=complete"));
        assert!(all.len() > 2, "{all:?}");
        let (mut whole, mut joints) = (Vec::new(), Vec::new());
        for (at, one) in all.iter().enumerate() {
            let (samples, rate_hz, _) = decoded(&gateway.path(one), 0);
            let is_inner = at > 0 && at + 1 < all.len();
            match name {
                "time" if is_inner => assert_eq!(samples.len(), rate_hz as usize, "{at}"),
                "size" => assert!(one["bytes"].as_u64() <= Some(64_000)),
                _ => {}
            }
            whole.extend(samples);
            joints.push(whole.len());
        }
        let parts = heard(&whole, 16_000);
        let heard_until = parts.last().expect("a tone").end;
        assert!(heard_until > 16_000, "{parts:?}");
        // 16 samples are one period of the tone, so each sample equals the one 16 samples before. Breaks that are not at a joint may come
        // from a late machine. The audio after the tone comes from the second gateway.
        let inner = joints.iter().filter(|joint| **joint + 3200 < heard_until);
        for joint in inner {
            for at in joint - 16..joint + 16 {
                let step = (whole[at] - whole[at - 16]).abs();
                assert!(step < 0.001, "{name}: a break at {at}: {parts:?}");
            }
        }
    }
}

/// Each byte is recorded unchanged. Decoding and encoding would change the minus zero of µ-law (ITU-T G.711, table 2b: 0x7f) to plus zero.
#[test]
fn g711_is_recorded_without_decoding() {
    let records = |name: &str, codec: &str| {
        let record = "{ to = \"DIR/{name}.wav\", format = \"wav-g711\" }";
        stream(name, codec, record)
    };
    let (ulaw, first) = records("u", "PCMU");
    let (alaw, second) = records("a", "PCMA");
    let gateway = Gateway::start(&format!("{ulaw}{alaw}"));
    let codes: Vec<u8> = (0..PACKETS * 160).map(|n| n as u8).collect();
    let sends = [(first, 0), (second, 8)].map(|(to, payload_type)| {
        let (socket, codes) = (socket(), codes.clone());
        std::thread::spawn(move || {
            let begin = Instant::now();
            for (number, payload) in (0_u32..).zip(codes.chunks(160)) {
                let packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
                    .payload_type(payload_type)
                    .sequence_number(number as u16)
                    .timestamp(number * 160)
                    .ssrc(7)
                    .payload(payload)
                    .write_vec()
                    .expect("a packet");
                socket.send_to(&packet, to).expect("sent");
                let due = begin + Duration::from_millis(20) * (number + 1);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        })
    });
    for sender in sends {
        sender.join().expect("it sends");
    }
    // After this much silence, all codes have been written. The recording lags by the latency, a portion and a slice.
    let silence = [0xff, 0xd5];
    let data = |name: &str| {
        let of = gateway.recordings(&format!("stream={name}"));
        let answer = gateway.relay.get(of[0]["path"].as_str().expect("a path"));
        let begin = answer.body.windows(4).position(|four| four == b"data");
        answer.body[begin.expect("a chunk") + 8..].to_vec()
    };
    for (name, silence) in ["u", "a"].into_iter().zip(silence) {
        wait_until(|| {
            let found = data(name);
            found.len() >= codes.len() && found.ends_with(&[silence; 800])
        });
        // The payloads must be in order. On a late machine, some are missing or are divided in two.
        let (found, mut at, mut whole) = (data(name), 0, 0);
        for payload in codes.chunks(160) {
            let there = found[at..].windows(160).position(|bytes| bytes == payload);
            if let Some(behind) = there {
                at += behind + 160;
                whole += 1;
            }
        }
        assert!(whole > PACKETS / 2, "{name}: {whole} of {PACKETS}");
    }
}

/// Number of packets in two seconds.
const PACKETS: usize = 100;

/// A real S3 server (moto, which scripts/setup installs) with the bucket `bucket`.
struct ObjectStore(Child);

impl ObjectStore {
    fn start(port: u16) -> ObjectStore {
        ObjectStore::start_with(port, &[])
    }

    /// Starts a server with TLS. Its certificate is signed by `ca.pem` in the folder.
    fn start_tls(port: u16, folder: &Path) -> ObjectStore {
        let mut of_ca = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        of_ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        // The name must differ from the server's name. Otherwise, OpenSSL would think that the server's certificate is
        // self-signed.
        let mut name = rcgen::DistinguishedName::new();
        name.push(rcgen::DnType::CommonName, "authority");
        of_ca.distinguished_name = name;
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let ca = of_ca.self_signed(&ca_key).expect("signed");
        let issuer = rcgen::Issuer::new(of_ca, ca_key);
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]);
        let signed = names.expect("a name").signed_by(&key, &issuer);
        let files = [
            ("store.pem", signed.expect("signed").pem()),
            ("store.key", key.serialize_pem()),
            ("ca.pem", ca.pem()),
        ];
        let paths = files.map(|(name, text)| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        });
        let [certificate, key, ca] = &paths;
        ObjectStore::start_with(port, &["--tls", certificate, key, "--ca", ca])
    }

    fn start_with(port: u16, more: &[&str]) -> ObjectStore {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let python = folder
            .parent()
            .expect("target")
            .join("venv-moto/bin/python");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../gst/tests/common/store.py");
        let mut child = Command::new(python)
            .args([script, "--port", &port.to_string()])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/setup test installs it");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("it starts");
        assert!(line.contains("port"), "{line}");
        ObjectStore(child)
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Returns another client for the store.
fn other_client(endpoint: &str, ca: Option<&Path>) -> Store {
    let settings = StoreSettings {
        endpoint: Endpoint::new(Some(endpoint), "us-east-1", "bucket", true).expect("a bucket"),
        credentials: Credentials::given(Some("access"), Some("secret"), None).expect("two"),
        ca_file: ca.map(Path::to_owned),
    };
    Store::shared(settings).expect("a client")
}

fn done<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(work)
}

/// Returns the object with this key. `None`: it does not exist.
fn object(store: &Store, key: &str) -> Option<Vec<u8>> {
    done(async {
        let mut download = match store.get(key, None, Timeouts::default()).await {
            Err(error) if error.code() == Some("NoSuchKey") => return None,
            got => got.expect("it is there"),
        };
        let mut bytes = Vec::new();
        while let Some(chunk) = download.chunk().await.expect("read") {
            bytes.extend_from_slice(&chunk);
        }
        Some(bytes)
    })
}

/// Returns a command that runs a gateway, which records to a store with a user's keys.
fn with_store(folder: &Path, endpoint: &str, more: &str, tables: &str) -> Command {
    let text = format!(
        "[s3]\nspool = \"{}\"\nendpoint = \"{endpoint}\"\npath-style = true\n{more}{tables}",
        folder.join("spool").display()
    );
    let mut command = command(folder, &text);
    command
        .env("AWS_ACCESS_KEY_ID", "access")
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    command
}

/// A secret key that appears nowhere else, so that it can be searched for.
const SECRET_KEY: &str = "SECRETofTheTests";

/// Requests for recordings in a store get the same replies as those for recordings on disk (RFC 9110, section 14).
#[test]
fn recordings_in_a_store_are_listed_read_in_parts_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let server = ObjectStore::start_tls(port, folder.path());
    let (endpoint, ca) = (
        format!("https://127.0.0.1:{port}"),
        folder.path().join("ca.pem"),
    );
    let record = "{ to = \"s3://us-east-1/bucket/{name}/{id}.wav\", rotate = \"1s\" }";
    let (table, listen) = stream("kept", "PCMU", record);
    let more = format!("ca = \"{}\"\n", ca.display());
    let command = with_store(folder.path(), &endpoint, &more, &table);
    let gateway = Gateway {
        relay: Relay::of(Running::spawn(command)),
        folder,
    };
    let speaker = Speaker::start(socket(), listen, 0, format_of("PCMU/8000"), HZ[0]);
    gateway.wait_for("complete", 4);
    let stopped = json!({"recording": "stopped"});
    assert_eq!(gateway.patch("/v1/streams/kept", &stopped), 204);
    drop(speaker);
    wait_until(|| {
        let all = gateway.recordings("");
        all.iter().all(|one| one["uri"].is_string())
    });
    let all = gateway.recordings("stream=kept");
    let (mut paged, mut next) = (Vec::new(), Some("/v1/recordings?limit=3".to_owned()));
    while let Some(path) = next {
        let page = gateway.relay.get_json(&path);
        paged.extend(page["recordings"].as_array().expect("a list").clone());
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(paged, all);

    let key = |one: &Value| one["file"].as_str().expect("a name").to_owned();
    let path = path_of(&all[1]);
    let store = other_client(&endpoint, Some(&ca));
    let file = object(&store, &key(&all[1])).expect("the store has it");
    assert_eq!(all[1]["bytes"].as_u64(), Some(file.len() as u64));
    check_parts(&gateway.relay, path, &file);

    assert_eq!(gateway.relay.request("DELETE", path, "", b"").status, 204);
    assert_eq!(object(&store, &key(&all[1])), None);
    gateway.relay.request("DELETE", path, "", b"").problem(404);
    gateway.relay.get(path).problem(404);
    assert_eq!(gateway.recordings("").len(), all.len() - 1);
    // If another client deletes an object, the recording stays listed until it is deleted here too.
    done(store.delete(&key(&all[2]), Timeouts::default())).expect("it is gone");
    gateway.relay.get(path_of(&all[2])).problem(404);
    let gone = gateway.relay.request("DELETE", path_of(&all[2]), "", b"");
    assert_eq!(gone.status, 204);
    assert_eq!(gateway.recordings("").len(), all.len() - 2);
    // If the store cannot be reached, the list stays, and missing objects are reported.
    drop(server);
    let left = path_of(&all[0]);
    let problem = gateway.relay.get(left).problem(503);
    assert!(!problem.to_string().contains(SECRET_KEY), "{problem}");
    let problem = gateway.relay.request("DELETE", left, "", b"").problem(503);
    assert!(!problem.to_string().contains(SECRET_KEY), "{problem}");
    assert_eq!(gateway.recordings("").len(), all.len() - 2);
}

/// While the store is unreachable, recordings stay in the folder, even if the gateway is killed. When the store is back, it
/// gets all recordings byte for byte, and the folder is empty.
#[test]
fn recordings_stay_on_the_disk_until_the_store_has_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let (table, listen) = stream(
        "kept",
        "PCMU",
        "{ to = \"s3://us-east-1/bucket/{name}/{id}.wav\" }",
    );
    let spool = folder.path().join("spool");
    let endpoint = format!("http://127.0.0.1:{port}");
    let of_user = |bucket: &str| {
        let table = table.replace("/bucket/", &format!("/{bucket}/"));
        with_store(folder.path(), &endpoint, "", &table)
    };
    let start = |folder| Gateway {
        relay: Relay::of(Running::spawn(of_user("bucket"))),
        folder,
    };
    // The store is not running.
    let gateway = start(tempfile::tempdir().expect("a folder"));
    let speaker = Speaker::start(socket(), listen, 0, format_of("PCMU/8000"), HZ[0]);
    let running = gateway.wait_for("running", 1);
    let path = running[0]["path"].as_str().expect("a path").to_owned();
    // By then there is a second of 16 bits at 8 kHz.
    wait_until(|| gateway.relay.request("GET", &path, "", b"").body.len() > 16_044);
    assert_eq!(
        gateway.patch("/v1/streams/kept", &json!({"recording": "stopped"})),
        204
    );
    let complete = gateway.wait_for("complete", 1);
    assert!(complete[0]["uri"].is_null());
    let name = complete[0]["file"].as_str().expect("a name").to_owned();
    let waiting = spool.join("us-east-1/bucket").join(&name);
    let bytes = std::fs::read(&waiting).expect("it waits");
    assert!(bytes.len() > 16_000, "{}", bytes.len());
    let Gateway {
        mut relay,
        folder: other,
    } = gateway;
    relay.running.signal(Signal::SIGKILL);
    relay.running.child.wait().expect("it ends");
    drop(speaker);

    let _server = ObjectStore::start(port);
    let gateway = start(other);
    let id = complete[0]["id"].as_str().expect("an id");
    let shown = || {
        let all = gateway.recordings("");
        all.into_iter()
            .find(|one| one["id"] == id)
            .expect("it is known")
    };
    wait_until(|| !shown()["uri"].is_null());
    assert_eq!(shown()["uri"], format!("s3://us-east-1/bucket/{name}"));
    assert!(!waiting.exists());
    assert!(object(&other_client(&endpoint, None), &name).as_ref() == Some(&bytes));
    let read = gateway.relay.get(&format!("/v1/recordings/{id}"));
    assert!(read.status == 200 && read.body == bytes);
    drop(gateway);

    // A missing bucket is reported before anything is recorded.
    let refused = of_user("no-bucket").output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        said.contains("NoSuchBucket") && said.contains("no-bucket"),
        "{said}"
    );
    assert!(!said.contains(SECRET_KEY));
}
