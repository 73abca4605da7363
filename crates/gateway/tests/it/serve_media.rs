//! Playback and recordings of `threadbare serve`. The tests observe playback at the party that hears it, and read recordings with other
//! programs.
//!
//! Another encoder (ffmpeg) makes the files from a tone. The reference is the definition of a tone: the received audio is projected onto
//! its sine and cosine.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{LIMIT, Running, receive, socket, threadbare};
use hound::{SampleFormat, WavSpec, WavWriter};
use rtp_types::RtpPacketBuilder;
use threadbare_rtp::g711;

const TONE_HZ: f64 = 997.0;
/// Level of the tones: -12 dB.
const LEVEL: f64 = 0.251_188_6;

/// A relay, with a proxy that sends requests to it.
struct Relay {
    running: Running,
    ng: SocketAddr,
    proxy: UdpSocket,
    cookie: u32,
}

impl Relay {
    fn start(arguments: &[&str]) -> Relay {
        Relay::start_as(threadbare(), arguments)
    }

    fn start_as(mut command: Command, arguments: &[&str]) -> Relay {
        command.args(["serve", "--ng", "127.0.0.1:0"]);
        command.args(arguments);
        let mut running = Running::spawn(command);
        let line = running.wait_for("serving");
        let ng = line["ng"].as_str().expect("an address");
        Relay {
            running,
            ng: ng.parse().expect("an address"),
            proxy: socket(),
            cookie: 0,
        }
    }

    fn send(&mut self, command: &str, keys: &[(&str, &[u8])]) -> String {
        self.cookie += 1;
        let mut all: BTreeMap<&str, &[u8]> = keys.iter().copied().collect();
        all.insert("command", command.as_bytes());
        let mut bytes = format!("c{} d", self.cookie).into_bytes();
        for (key, value) in all {
            bytes.extend(format!("{}:{key}{}:", key.len(), value.len()).bytes());
            bytes.extend(value);
        }
        bytes.push(b'e');
        self.proxy.send_to(&bytes, self.ng).expect("sent");
        format!("c{} ", self.cookie)
    }

    /// Waits for the next reply, and returns it without its cookie.
    fn reply(&mut self, cookie: &str) -> String {
        let mut room = [0; 65_536];
        let len = self.proxy.recv(&mut room).expect("a reply");
        let reply = String::from_utf8_lossy(&room[..len]).into_owned();
        let rest = reply.strip_prefix(cookie);
        rest.unwrap_or_else(|| panic!("{cookie}: {reply}"))
            .to_owned()
    }

    fn ask(&mut self, command: &str, keys: &[(&str, &[u8])]) -> String {
        let cookie = self.send(command, keys);
        self.reply(&cookie)
    }

    fn ask_ok(&mut self, command: &str, keys: &[(&str, &[u8])]) -> String {
        let reply = self.ask(command, keys);
        assert!(reply.contains("6:result2:ok"), "{command}: {reply}");
        reply
    }

    /// Sets up a call. Returns its two parties, A and B.
    fn call(&mut self, id: &str) -> [Party; 2] {
        let parties = ["a", "b"].map(Party::new);
        let keys = |sdp: &'_ String| sdp.clone().into_bytes();
        let [a, b] = [&parties[0], &parties[1]].map(|party| keys(&party.sdp()));
        let id = id.as_bytes();
        let to_b = self.ask_ok("offer", &[("call-id", id), ("from-tag", b"a"), ("sdp", &a)]);
        let to_a = self.ask_ok(
            "answer",
            &[
                ("call-id", id),
                ("from-tag", b"a"),
                ("to-tag", b"b"),
                ("sdp", &b),
            ],
        );
        let [mut a, mut b] = parties;
        (a.relay, b.relay) = (Some(port_of(&to_a)), Some(port_of(&to_b)));
        [a, b]
    }
}

/// Returns the relay's port for a party's media.
fn port_of(reply: &str) -> SocketAddr {
    let rest = reply.split("m=audio ").nth(1).expect("audio");
    let port = rest.split(' ').next().expect("a port");
    SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")))
}

/// A party that uses PCMU.
struct Party {
    name: &'static str,
    socket: UdpSocket,
    relay: Option<SocketAddr>,
    sent: u16,
    time: u32,
    payload_type: u8,
    marker: bool,
}

impl Party {
    fn new(name: &'static str) -> Party {
        let socket = socket();
        Party {
            name,
            socket,
            relay: None,
            sent: 0,
            time: 0,
            payload_type: 0,
            marker: false,
        }
    }

    fn sdp(&self) -> String {
        let port = self.socket.local_addr().expect("bound").port();
        format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns={}\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n",
            self.name
        )
    }

    fn send(&mut self, payload: &[u8]) {
        let relay = self.relay.expect("a call");
        let packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(self.payload_type)
            .marker_bit(self.marker)
            .sequence_number(self.sent)
            .timestamp(self.time)
            .ssrc(0x1234)
            .payload(payload)
            .write_vec()
            .expect("a valid packet");
        self.socket.send_to(&packet, relay).expect("sent");
        self.sent += 1;
        self.time += payload.len() as u32;
    }

    /// Returns the samples of the next `packets` packets of 20 ms.
    fn hear(&self, packets: usize) -> Vec<f64> {
        let mut heard = Vec::new();
        for _ in 0..packets {
            let packet = receive(&self.socket);
            assert_eq!(packet.payload_type, 0);
            let sample = |code: &u8| f64::from(g711::ULAW_TO_LINEAR[usize::from(*code)]) / 32768.0;
            heard.extend(packet.payload.iter().map(sample));
        }
        heard
    }
}

/// Returns a tone of this many frames.
fn tone(rate_hz: u32, frames: usize) -> impl Iterator<Item = i16> {
    (0..frames).map(move |frame| {
        let angle = TAU * TONE_HZ * frame as f64 / f64::from(rate_hz);
        (LEVEL * 32768.0 * angle.sin()).round() as i16
    })
}

fn write_tone(path: &Path, rate_hz: u32, channels: u16, seconds: usize) {
    let spec = WavSpec {
        channels,
        sample_rate: rate_hz,
        bits_per_sample: 16,
        sample_format: SampleFormat::Int,
    };
    let mut writer = WavWriter::create(path, spec).expect("created");
    for sample in tone(rate_hz, seconds * rate_hz as usize) {
        for _ in 0..channels {
            writer.write_sample(sample).expect("written");
        }
    }
    writer.finalize().expect("finished");
}

/// Returns the level of a frequency, where 1 is that of [`tone`], and the level of the rest.
fn level(samples: &[f64], rate_hz: f64) -> (f64, f64) {
    let angle = |n: usize| TAU * TONE_HZ * n as f64 / rate_hz;
    let each = || samples.iter().enumerate();
    let half = samples.len() as f64 / 2.0;
    let sine: f64 = each().map(|(n, s)| s * angle(n).sin()).sum::<f64>() / half;
    let cosine: f64 = each().map(|(n, s)| s * angle(n).cos()).sum::<f64>() / half;
    let rest = |(n, s): (usize, &f64)| s - sine * angle(n).sin() - cosine * angle(n).cos();
    let noise: f64 = each().map(rest).map(|rest| rest * rest).sum();
    let noise = (noise / samples.len() as f64).sqrt();
    (sine.hypot(cosine) / LEVEL, noise / LEVEL)
}

#[test]
fn files_of_each_format_are_played() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let made = [
        ("tone.wav", 44_100, 2),
        ("tone.flac", 16_000, 1),
        ("tone.opus", 48_000, 2),
        ("tone.mp3", 32_000, 2),
    ];
    for (name, rate_hz, channels) in made {
        write_tone(&path("in.wav"), rate_hz, channels, 2);
        let done = Command::new("ffmpeg")
            .args(["-v", "error", "-y", "-i"])
            .arg(path("in.wav"))
            .args(["-b:a", "128k"])
            .arg(path(name))
            .status();
        assert!(done.expect("ffmpeg").success(), "{name}");
    }
    let mut relay = Relay::start(&[]);
    for (name, ..) in made {
        let parties = relay.call(name);
        let file = path(name).display().to_string();
        let keys: [(&str, &[u8]); 3] = [
            ("call-id", name.as_bytes()),
            ("from-tag", b"b"),
            ("file", file.as_bytes()),
        ];
        let reply = relay.ask_ok("play media", &keys);
        assert!(reply.contains("8:durationi2000e"), "{reply}");
        let heard = parties[1].hear(90);
        // Skip the start, to which encoders add silence.
        let (level, noise) = level(&heard[2400..14_400], 8000.0);
        // The tolerance covers 0.5 dB, and the noise of µ-law.
        assert!((0.94..1.06).contains(&level), "{name}: {level}");
        assert!(noise < 0.05, "{name}: {noise}");
    }
}

/// The request contains the file, the first frame, the number of repetitions, and the duration.
#[test]
fn part_of_a_blob_plays_the_requested_number_of_times() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tone.wav");
    write_tone(&path, 8000, 1, 1);
    let blob = std::fs::read(&path).expect("written");
    let mut relay = Relay::start(&[]);
    let parties = relay.call("blob");
    let keys: [(&str, &[u8]); 6] = [
        ("call-id", b"blob"),
        ("from-tag", b"b"),
        ("blob", &blob),
        ("repeat-times", b"9"),
        ("repeat-duration", b"1400"),
        ("start-pos", b"4000"),
    ];
    relay.ask_ok("play media", &keys);
    // The party hears half a second of the first repetition, 0.9 s of the second, and no more.
    let heard = parties[1].hear(70);
    let expected = tone(8000, 8000).skip(4000).chain(tone(8000, 7200));
    for (at, (heard, sent)) in heard.iter().zip(expected).enumerate() {
        // The difference is within a step of µ-law at this level.
        assert!(
            (heard * 32768.0 - f64::from(sent)).abs() < 260.0,
            "{at}: {heard} {sent}"
        );
    }
    let [mut a, b] = parties;
    // After the end of the file, the party hears the other party.
    assert!(is_heard(&mut a, &b) == 0, "more than was asked for");
}

/// Sends packets until the other party receives one. Returns the number of other packets that this party received before.
fn is_heard(from: &mut Party, to: &Party) -> usize {
    const SPOKEN: [u8; 160] = [0x2a; 160];
    let started = Instant::now();
    let wait = |wait| {
        let set = to.socket.set_read_timeout(Some(wait));
        set.expect("a valid time-out");
    };
    let mut others = 0;
    let mut room = [0; 2048];
    wait(Duration::from_millis(20));
    loop {
        assert!(started.elapsed() < LIMIT, "the other party is not heard");
        from.send(&SPOKEN);
        match to.socket.recv(&mut room) {
            // RTCP goes to another port.
            Ok(len) if room[12..len] == SPOKEN => break,
            Ok(_) => others += 1,
            Err(_) => {}
        }
    }
    wait(LIMIT);
    others
}

/// The file is a ringback: the offerer hears it before the answer, and then hears the other party.
#[test]
fn file_is_played_to_the_offerer_before_the_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ring.wav");
    write_tone(&path, 8000, 1, 1);
    let file = path.display().to_string();
    let mut relay = Relay::start(&[]);
    let [mut a, mut b] = ["a", "b"].map(Party::new);
    let sdps = [&a, &b].map(|party| party.sdp().into_bytes());
    let base: [(&str, &[u8]); 2] = [("call-id", b"early"), ("from-tag", b"a")];
    let to_b = relay.ask_ok("offer", &[&base[..], &[("sdp", &sdps[0])]].concat());
    let play: [(&str, &[u8]); 2] = [("file", file.as_bytes()), ("repeat-times", b"1000000")];
    let reply = relay.ask_ok("play media", &[&base[..], &play].concat());
    assert!(reply.contains("8:durationi1000e"), "{reply}");
    let heard = a.hear(50);
    let (level, noise) = level(&heard, 8000.0);
    assert!(
        (0.94..1.06).contains(&level) && noise < 0.05,
        "{level} {noise}"
    );
    let answer: [(&str, &[u8]); 2] = [("to-tag", b"b"), ("sdp", &sdps[1])];
    let to_a = relay.ask_ok("answer", &[&base[..], &answer].concat());
    (a.relay, b.relay) = (Some(port_of(&to_a)), Some(port_of(&to_b)));
    // The file plays until it is stopped.
    a.hear(10);
    relay.ask_ok("stop media", &base);
    is_heard(&mut b, &a);
    is_heard(&mut a, &b);
}

/// Other programs write WAV files through a pipe, with G.711, and with chunks of odd lengths.
#[test]
fn wav_files_of_other_programs_are_played() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    write_tone(&path("in.wav"), 8000, 1, 1);
    let plain = std::fs::read(path("in.wav")).expect("written");
    let ffmpeg = |arguments: &str| {
        let ran = Command::new("ffmpeg")
            .args("-v error -i in.wav".split(' ').chain(arguments.split(' ')))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
        ran.stdout
    };
    let piped = ffmpeg("-f wav -");
    assert!(
        piped
            .windows(8)
            .any(|bytes| bytes == b"data\xff\xff\xff\xff")
    );
    let mut unfilled = plain.clone();
    let at = plain
        .windows(4)
        .position(|bytes| bytes == b"data")
        .expect("a chunk");
    unfilled[at + 4..at + 8].fill(0);
    let odd = [&plain[..at], b"note\x05\0\0\0abcde\0", &plain[at..]].concat();
    let files = [
        ("piped.wav", piped),
        ("unfilled.wav", unfilled),
        ("odd.wav", odd),
        ("mulaw.wav", ffmpeg("-c:a pcm_mulaw -f wav -")),
        ("alaw.wav", ffmpeg("-c:a pcm_alaw -f wav -")),
        ("float.wav", ffmpeg("-c:a pcm_f64le -f wav -")),
        ("rf64.wav", ffmpeg("-rf64 always -f wav -")),
        ("bits.wav", ffmpeg("-c:a pcm_s24le -f wav -")),
    ];
    let mut relay = Relay::start(&[]);
    for (name, bytes) in files {
        std::fs::write(path(name), bytes).expect("written");
        let file = path(name).display().to_string();
        let parties = relay.call(name);
        let keys: [(&str, &[u8]); 3] = [
            ("call-id", name.as_bytes()),
            ("from-tag", b"b"),
            ("file", file.as_bytes()),
        ];
        relay.ask_ok("play media", &keys);
        for (at, (heard, sent)) in parties[1].hear(20).iter().zip(tone(8000, 8000)).enumerate() {
            // The difference is within a step of both laws at this level.
            let difference = heard * 32768.0 - f64::from(sent);
            assert!(difference.abs() < 600.0, "{name}, {at}: {heard} {sent}");
        }
    }
}

#[test]
fn unplayable_file_is_refused_with_name_and_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("text.wav"), "no audio, but long enough".repeat(99)).expect("written");
    std::fs::write(path("empty.wav"), "").expect("written");
    std::fs::write(path("cut.flac"), "fLaC").expect("written");
    std::fs::write(path("cut.opus"), "OggS").expect("written");
    std::fs::write(path("cut.wav"), "RIFF").expect("written");
    // This file is really empty. In a file that was written through a pipe, the length would be 0 too, but data would follow.
    write_tone(Path::new(&path("silent.wav")), 8000, 1, 0);
    let made = Command::new("mkfifo").arg(path("pipe")).status();
    assert!(made.expect("mkfifo").success());
    let mut relay = Relay::start(&[]);
    relay.call("refused");
    for (name, reason) in [
        ("none.wav", "No such file"),
        ("text.wav", "known format"),
        ("empty.wav", "known format"),
        ("cut.flac", "FLAC"),
        ("cut.opus", "Opus"),
        ("cut.wav", "WAV"),
        ("silent.wav", "no audio"),
        ("pipe", "regular file"),
        ("", "regular file"),
    ] {
        let file = path(name);
        let keys: [(&str, &[u8]); 3] = [
            ("call-id", b"refused"),
            ("from-tag", b"b"),
            ("file", file.as_bytes()),
        ];
        let reply = relay.ask("play media", &keys);
        assert!(reply.contains("6:result5:error"), "{name}: {reply}");
        assert!(
            reply.contains(&file) && reply.contains(reason),
            "{name}: {reply}"
        );
    }
    let keys: [(&str, &[u8]); 3] = [
        ("call-id", b"refused"),
        ("from-tag", b"b"),
        ("blob", b"nothing"),
    ];
    let reply = relay.ask("play media", &keys);
    assert!(reply.contains("blob: ") && reply.contains("known format"));
}

#[test]
fn playback_ends_by_request_or_replacement() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tone.wav");
    write_tone(&path, 8000, 1, 1);
    let file = path.display().to_string();
    let mut relay = Relay::start(&[]);
    let [mut a, b] = relay.call("ends");
    let keys: [(&str, &[u8]); 4] = [
        ("call-id", b"ends"),
        ("from-tag", b"b"),
        ("file", file.as_bytes()),
        ("repeat-times", b"1000000"),
    ];
    for _ in 0..3 {
        relay.ask_ok("play media", &keys);
        b.hear(5);
    }
    relay.ask_ok("stop media", &keys[..2]);
    // The party hears the other party again instead of the tone, which would otherwise last for days.
    is_heard(&mut a, &b);
}

/// Lets both parties send packets. `speaks` decides whether B sends a packet. Returns how late the latest packet was.
fn talk(
    [a, b]: &mut [Party; 2],
    packets: std::ops::Range<usize>,
    speaks: impl Fn(usize) -> bool,
) -> Duration {
    let mut late = Duration::ZERO;
    let codes: Vec<u8> = tone(8000, packets.end * 160)
        .map(g711::linear_to_ulaw)
        .collect();
    let start = Instant::now();
    for (at, number) in packets.enumerate() {
        let payload = &codes[number * 160..(number + 1) * 160];
        // Packets are sent at the pace of a call.
        let due = start + Duration::from_millis(20 * at as u64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        late = late.max(due.elapsed());
        a.send(payload);
        if speaks(number) {
            b.send(payload)
        } else {
            b.time += 160
        }
    }
    late
}

/// Returns the left and the right channel of a recording.
fn recorded(path: &Path) -> [Vec<f64>; 2] {
    let mut file = hound::WavReader::open(path).expect("a WAV file");
    assert_eq!(file.spec().channels, 2);
    assert_eq!(file.spec().sample_rate, 8000);
    // The header of a truncated file states a length that is too long.
    let samples: Vec<i16> = file.samples::<i16>().map_while(Result::ok).collect();
    let channel = |at: usize| {
        let own = samples.iter().skip(at).step_by(2);
        own.map(|sample| f64::from(*sample) / 32768.0).collect()
    };
    [channel(0), channel(1)]
}

/// Returns the loud parts of a channel, each with its first and last frame. 100 ms of silence end a part.
fn stretches(samples: &[f64]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (at, _) in samples.iter().enumerate().filter(|(_, s)| s.abs() > 0.1) {
        match found.last_mut() {
            Some((_, end)) if at - *end < 800 => *end = at,
            _ => found.push((at, at)),
        }
    }
    found
}

/// Returns the recorded files in a folder, without the journal.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let entries = entries.map(|entry| entry.expect("a file"));
    let others = entries.filter(|one| !one.file_name().to_string_lossy().starts_with('.'));
    others.map(|one| one.path()).collect()
}

fn only_file(folder: &Path) -> std::path::PathBuf {
    let paths = files(folder);
    let [path] = &paths[..] else {
        panic!("{paths:?}");
    };
    path.clone()
}

#[test]
fn both_sides_are_recorded_in_synchrony() {
    // If the machine kept this program from sending in time, the test proves nothing about the recording, so it runs again.
    let is_judged = (0..10).any(|_| both_sides_are_recorded());
    assert!(is_judged, "ten times, packets left late");
}

/// Runs the test. Returns `false` if packets left late, so that the result proves nothing.
fn both_sides_are_recorded() -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut relay = Relay::start(&["--recording-dir", &folder]);
    let mut parties = relay.call("both");
    let id: (&str, &[u8]) = ("call-id", b"both");
    relay.ask_ok("start recording", &[id, ("recording-file", b"two.wav")]);
    // B is silent in the third and fourth half second.
    let late = talk(&mut parties, 0..150, |number| !(50..100).contains(&number));
    relay.ask_ok("stop recording", &[id]);
    relay.running.wait_for("the recording has ended");
    if late > Duration::from_millis(40) {
        return false;
    }
    let [left, right] = recorded(&directory.path().join("two.wav"));
    let (a, b) = (stretches(&left), stretches(&right));
    assert_eq!((a.len(), b.len()), (1, 2), "{a:?} {b:?}");
    // The tolerance is a tenth of a second: a slice, and the offset that a channel may have before it is corrected.
    let near = |one: usize, other: usize| one.abs_diff(other) <= 800;
    assert!(near(a[0].0, b[0].0), "{a:?} {b:?}");
    assert!(near(a[0].1, b[1].1), "{a:?} {b:?}");
    assert!(near(b[1].0 - b[0].1, 8000), "{b:?}");
    assert!(near(a[0].1 - a[0].0, 24_000 - 320), "{a:?}");
    for (samples, at) in [(&left, a[0].0 + 12_000), (&right, b[1].0 + 1600)] {
        let (level, noise) = level(&samples[at..at + 4000], 8000.0);
        assert!((0.94..1.06).contains(&level), "{level}");
        assert!(noise < 0.05, "{noise}");
    }
    true
}

#[test]
fn recordings_pause_end_with_the_call_and_are_discarded() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut relay = Relay::start(&["--recording-dir", &folder]);
    let mut parties = relay.call("a/../b");
    let id: (&str, &[u8]) = ("call-id", b"a/../b");
    relay.ask_ok("start recording", &[id]);
    talk(&mut parties, 0..50, |_| true);
    relay.ask_ok("pause recording", &[id]);
    talk(&mut parties, 50..100, |_| true);
    relay.ask_ok("start recording", &[id]);
    talk(&mut parties, 100..125, |_| true);
    let end: [(&str, &[u8]); 3] = [id, ("from-tag", b"a"), ("delete-delay", b"0")];
    relay.ask_ok("delete", &end);
    relay.running.wait_for("the recording has ended");
    let path = only_file(directory.path());
    let name = path.file_name().and_then(|name| name.to_str());
    assert!(name.is_some_and(|name| name.starts_with("a____b-") && name.ends_with(".wav")));
    let [left, _] = recorded(&path);
    // The file has a second and a half, without the pause.
    assert!((11_000..=13_500).contains(&left.len()), "{}", left.len());
    std::fs::remove_file(&path).expect("there");

    let mut parties = relay.call("gone");
    let id: (&str, &[u8]) = ("call-id", b"gone");
    relay.ask_ok("start recording", &[id, ("metadata", b"of the call")]);
    relay.running.wait_for("recording");
    talk(&mut parties, 0..5, |_| true);
    relay.ask_ok("stop recording", &[id, ("flags", b"discard-recording")]);
    relay.running.wait_for("the recording has ended");
    assert_eq!(
        files(directory.path()),
        [""; 0].map(std::path::PathBuf::from)
    );
}

#[test]
fn the_recording_of_a_killed_relay_can_be_read_by_other_programs() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut relay = Relay::start(&["--recording-dir", &folder]);
    let mut parties = relay.call("killed");
    relay.ask_ok("start recording", &[("call-id", b"killed")]);
    talk(&mut parties, 0..150, |_| true);
    relay.running.signal(nix::sys::signal::Signal::SIGKILL);
    relay.running.child.wait().expect("it ends");
    let path = only_file(directory.path());
    let [left, right] = recorded(&path);
    // The file has at least three seconds, of which the last one may be missing.
    assert!(left.len() >= 16_000, "{}", left.len());
    for samples in [left, right] {
        let (level, _) = level(&samples[8000..12_000], 8000.0);
        assert!((0.94..1.06).contains(&level), "{level}");
    }
    let read = Command::new("ffmpeg")
        .args(["-v", "error", "-i"])
        .arg(&path)
        .args(["-f", "null", "-"])
        .output()
        .expect("ffmpeg");
    assert!(read.status.success() && read.stderr.is_empty(), "{read:?}");
}

/// Wireshark's command line program reads a party's packets in the file (addresses, numbers and payloads), and checks the checksums of the
/// headers.
#[test]
fn packets_are_recorded_as_wireshark_reads_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut relay = Relay::start(&["--recording-dir", &folder, "--recording-format", "pcap"]);
    let mut parties = relay.call("packets");
    // The parties' addresses are known when the recording begins.
    talk(&mut parties, 0..10, |_| true);
    relay.ask_ok("start recording", &[("call-id", b"packets")]);
    let first = parties[0].sent;
    talk(&mut parties, 10..60, |_| true);
    // The process was killed, so this file was not ended.
    let file = only_file(directory.path());
    let count = || {
        read_packets(&file, &parties)
            .iter()
            .filter(|one| one.side == 0)
            .count()
    };
    let begin = Instant::now();
    while count() < 45 {
        assert!(begin.elapsed() < LIMIT, "{} packets", count());
    }
    relay.running.signal(nix::sys::signal::Signal::SIGKILL);
    assert!(file.extension().is_some_and(|ending| ending == "pcap"));
    for side in 0..2 {
        let own: Vec<Packet> = read_packets(&file, &parties)
            .into_iter()
            .filter(|one| one.side == side)
            .collect();
        let numbers: Vec<u16> = own.iter().map(|one| one.number).collect();
        // The recording begins when it is requested.
        assert!(numbers[0].abs_diff(first) <= 3, "{numbers:?}");
        assert!(
            numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{numbers:?}"
        );
        let gaps = own.windows(2).map(|pair| pair[1].at_s - pair[0].at_s);
        assert!(
            gaps.clone().all(|gap| gap >= 0.0),
            "{:?}",
            gaps.collect::<Vec<_>>()
        );
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let age = now.expect("after 1970").as_secs_f64() - own[0].at_s;
        assert!((0.0..LIMIT.as_secs_f64()).contains(&age), "{age} s ago");
    }
}

/// An RTP packet in a file.
#[derive(Debug)]
struct Packet {
    at_s: f64,
    side: usize,
    number: u16,
}

fn read_packets(file: &Path, parties: &[Party; 2]) -> Vec<Packet> {
    let fields = [
        "frame.time_epoch",
        "udp.srcport",
        "udp.dstport",
        "rtp.seq",
        "rtp.p_type",
        "ip.src",
        "ip.checksum.status",
    ];
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(file)
        .args(["-o", "ip.check_checksum:TRUE", "-T", "fields"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let relay = parties
        .each_ref()
        .map(|party| party.relay.expect("a call").port());
    command.args(
        relay
            .iter()
            .flat_map(|port| ["-d".to_owned(), format!("udp.port=={port},rtp")]),
    );
    let output = command.output().expect("tshark");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("a text");
    let ports = parties
        .each_ref()
        .map(|party| party.socket.local_addr().expect("bound").port());
    let line = |line: &str| {
        let values: Vec<&str> = line.split('\t').collect();
        let port = |at: usize| values[at].parse::<u16>().expect("a port");
        let side = ports
            .iter()
            .position(|own| *own == port(1))
            .expect("a party");
        assert_eq!(port(2), relay[side]);
        // The values mean PCMU and "Good".
        assert_eq!(values[4..], ["0", "127.0.0.1", "1"]);
        Packet {
            at_s: values[0].parse().expect("a time"),
            side,
            number: values[3].parse().expect("a number"),
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_call() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut command = Command::new("bash");
    let limited = "trap '' XFSZ; ulimit -f 24; exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_threadbare")]);
    let mut relay = Relay::start_as(command, &["--recording-dir", &folder]);
    let mut parties = relay.call("full");
    relay.ask_ok("start recording", &[("call-id", b"full")]);
    talk(&mut parties, 0..100, |_| true);
    let line = relay.running.wait_for("the recording has ended");
    assert_eq!(
        (&line["call"], &line["level"]),
        (&"full".into(), &"ERROR".into())
    );
    let [mut a, b] = parties;
    is_heard(&mut a, &b);
    relay.ask_ok("stop recording", &[("call-id", b"full")]);
}

#[test]
fn recordings_without_a_folder_or_outside_of_it_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut without = Relay::start(&[]);
    without.call("none");
    let reply = without.ask("start recording", &[("call-id", b"none")]);
    assert!(reply.contains("--recording-dir"), "{reply}");
    let sdp = Party::new("c").sdp();
    let offer: [(&str, &[u8]); 4] = [
        ("call-id", b"other"),
        ("from-tag", b"c"),
        ("record-call", b"yes"),
        ("sdp", sdp.as_bytes()),
    ];
    let reply = without.ask("offer", &offer);
    assert!(reply.contains("--recording-dir"), "{reply}");

    let mut relay = Relay::start(&["--recording-dir", &folder]);
    relay.call("names");
    let id: (&str, &[u8]) = ("call-id", b"names");
    for (key, value) in [
        ("recording-file", "../out.wav"),
        ("output-destination", "/tmp/out.wav"),
        ("recording-file", "out.mp3"),
        ("recording-dir", "/tmp"),
    ] {
        let reply = relay.ask("start recording", &[id, (key, value.as_bytes())]);
        assert!(
            reply.contains("5:error") && reply.contains(value) && reply.contains("expected"),
            "{reply}"
        );
    }
    let mut parties = relay.call("offered");
    let sdp = parties[0].sdp();
    let again: [(&str, &[u8]); 5] = [
        ("call-id", b"offered"),
        ("from-tag", b"a"),
        ("to-tag", b"b"),
        ("record-call", b"yes"),
        ("sdp", sdp.as_bytes()),
    ];
    relay.ask_ok("offer", &again);
    relay.running.wait_for("recording");
    talk(&mut parties, 0..1, |_| true);
    // When the process ends, its recordings end too.
    relay.running.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(relay.running.child.wait().expect("it ends").success());
    let path = only_file(directory.path());
    assert_eq!(path.extension(), Some("wav".as_ref()));
    recorded(&path);
}

/// Some phones use these payload types. A packet of type 72 with the marker looks like a sender report, but here reports have their own
/// port.
#[test]
fn payload_types_64_to_95_pass_both_ways_without_mux() {
    let mut relay = Relay::start(&[]);
    let mut parties = ["a", "b"].map(Party::new);
    let sdp = |party: &Party| {
        let sdp = party.sdp().replace("RTP/AVP 0", "RTP/AVP 72");
        format!("{sdp}a=rtpmap:72 PCMU/8000\r\n").into_bytes()
    };
    let [a, b] = [sdp(&parties[0]), sdp(&parties[1])];
    let keys: [(&str, &[u8]); 3] = [("call-id", b"72"), ("from-tag", b"a"), ("sdp", &a)];
    let to_b = relay.ask_ok("offer", &keys);
    let keys: [(&str, &[u8]); 4] = [
        ("call-id", b"72"),
        ("from-tag", b"a"),
        ("to-tag", b"b"),
        ("sdp", &b),
    ];
    let to_a = relay.ask_ok("answer", &keys);
    for (party, reply) in parties.iter_mut().zip([&to_a, &to_b]) {
        assert!(
            reply.contains("RTP/AVP 72") && !reply.contains("warning"),
            "{reply}"
        );
        party.relay = Some(port_of(reply));
        party.payload_type = 72;
        party.marker = true;
    }
    for turn in 0..3 {
        let [a, b] = &mut parties;
        let (from, to) = if turn == 1 { (b, &*a) } else { (a, &*b) };
        is_heard(from, to);
        from.send(&[0x2b; 160]);
        let packet = loop {
            let packet = receive(&to.socket);
            if packet.payload == [0x2b; 160] {
                break packet;
            }
        };
        assert_eq!((packet.payload_type, packet.marker), (72, true));
    }
}
