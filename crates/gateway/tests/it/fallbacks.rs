//! Streams with fallbacks, observed at the far end. The receiver hears one input at a time, in a single stream without a gap in its
//! numbers.
//!
//! The reference is the definition of a tone: the received audio is projected onto the sine and cosine of each frequency.

use std::f64::consts::TAU;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::http::Relay;
use crate::common::{LIMIT, Received, Running, free_port, receive, socket};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use threadbare_rtp::g711;

/// Frequency of the main sender's tone. The frequencies in these tests are not multiples of each other.
const MAIN_HZ: f64 = 997.0;
const OTHER_HZ: f64 = 661.0;
const TONE_HZ: f64 = 440.0;
const FILE_HZ: f64 = 1429.0;

/// Loudness of a sine with 0 dBm0 in one channel. With full scale, the sine has 3.14 dBm0 (ITU-T G.711) and measures -3.01 LUFS (EBU Tech
/// 3341).
const FULL_SCALE_LUFS_AT_0_DBM0: f64 = -6.15;

/// Returns a free address for a stream.
fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Sends a tone of PCMA or PCMU, at the pace of a call, until dropped.
struct Talker {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Talker {
    fn start(to: SocketAddr, payload_type: u8, hz: f64) -> Talker {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        let thread = std::thread::spawn(move || {
            let (from, begin) = (socket(), Instant::now());
            let mut number = 0_u32;
            while !flag.load(Ordering::Relaxed) {
                let sample = |n: u32| {
                    let angle = TAU * hz * f64::from(number * 160 + n) / 8000.0;
                    (8192.0 * angle.sin()) as i16
                };
                let code = |n| match payload_type {
                    8 => g711::linear_to_alaw(sample(n)),
                    _ => g711::linear_to_ulaw(sample(n)),
                };
                let payload: Vec<u8> = (0..160).map(code).collect();
                let packet = crate::common::rtp(payload_type, number as u16, &payload);
                // The port may not be open yet.
                let _ = from.send_to(&packet, to);
                number += 1;
                let due = begin + Duration::from_millis(20) * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Talker {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends");
        }
    }
}

/// The far end of a stream of PCMU.
struct FarEnd {
    socket: UdpSocket,
    last: Option<Received>,
}

impl FarEnd {
    fn new() -> FarEnd {
        FarEnd {
            socket: socket(),
            last: None,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    /// Returns the next packet, which must belong to the same stream and directly follow the previous one.
    fn next(&mut self) -> Received {
        let packet = receive(&self.socket);
        if let Some(last) = &self.last {
            assert_eq!(packet.ssrc, last.ssrc);
            assert_eq!(packet.sequence, last.sequence.wrapping_add(1));
        }
        assert_eq!(packet.payload_type, 0);
        self.last = Some(packet.clone());
        packet
    }

    /// Waits until 300 ms of only this frequency were heard. Returns whether a marker came before that.
    fn wait_for(&mut self, hz: f64) -> bool {
        let (begin, mut pcm, mut has_marker) = (Instant::now(), Vec::new(), false);
        loop {
            let packet = self.next();
            has_marker |= packet.marker;
            let linear = |code: &u8| f64::from(g711::ULAW_TO_LINEAR[usize::from(*code)]);
            pcm.extend(packet.payload.iter().map(linear));
            let excess = pcm.len().saturating_sub(2400);
            pcm.drain(..excess);
            let is_heard = |other: &f64| level(&pcm, *other) > 4000.0;
            let heard: Vec<f64> = [MAIN_HZ, OTHER_HZ, TONE_HZ, FILE_HZ]
                .into_iter()
                .filter(is_heard)
                .collect();
            if pcm.len() == 2400 && heard == [hz] && level(&pcm, hz) > 6000.0 {
                return has_marker;
            }
            assert!(begin.elapsed() < LIMIT, "{heard:?} are heard, not {hz} Hz");
        }
    }
}

/// Returns the amplitude of a tone of `hz`, sampled at 8000 Hz.
fn level(pcm: &[f64], hz: f64) -> f64 {
    let angle = |n: usize| TAU * hz * n as f64 / 8000.0;
    let part = |wave: fn(f64) -> f64| {
        let product = pcm
            .iter()
            .enumerate()
            .map(|(n, sample)| sample * wave(angle(n)));
        2.0 * product.sum::<f64>() / pcm.len().max(1) as f64
    };
    part(f64::sin).hypot(part(f64::cos))
}

fn statistics(running: &mut Running) -> Value {
    running.signal(Signal::SIGUSR1);
    running.wait_for("statistics")
}

/// The inputs are the main sender, another sender with another codec, and a file. The stream uses each of them in turn, and returns to the
/// main sender. The log and the statistics name the active input.
fn write_tone(file: &Path, seconds: u32) {
    let wav = hound::WavSpec {
        channels: 2,
        sample_rate: 44_100,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(file, wav).expect("a file");
    for n in 0..seconds * 44_100 {
        let sample = 8192.0 * (TAU * FILE_HZ * f64::from(n) / 44_100.0).sin();
        for _ in 0..2 {
            writer.write_sample(sample as i16).expect("written");
        }
    }
    writer.finalize().expect("written");
}

/// The inputs are the sender, another sender with another codec, and a file. The stream uses them in turn, and returns to the
/// first one. Log and statistics name the active input.
#[test]
fn the_best_input_is_sent_and_named_in_the_log() {
    let (main, other, mut far_end) = (address(), address(), FarEnd::new());
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("please-wait.wav");
    write_tone(&file, 1);
    let config = format!(
        "[contexts]\nwait = 10\n[[stream]]\nname = \"a\"\nlisten = \"{main}\"\ndestination = \"{}\"\n\
         codec = \"PCMU\"\n\
         [[stream.fallback]]\nlisten = \"{other}\"\ncodec = \"PCMA\"\ntimeout = 200\nrecover-after = 300\n\
         [[stream.fallback]]\nfile = \"{}\"\ntimeout = 200\nrecover-after = 300\n",
        far_end.address(),
        file.display()
    );
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    // No packet was sent yet.
    let names = [
        "main".to_owned(),
        format!("fallback 1: {other}"),
        format!("fallback 2: {}", file.display()),
    ];
    let assert_change = |line: Value, from: usize, to: usize| {
        assert_eq!(
            (&line["stream"], &line["from"], &line["to"]),
            (
                &"a".into(),
                &names[from].clone().into(),
                &names[to].clone().into()
            )
        );
    };
    assert_change(
        running.wait_for("the input is silent, so another one replaces it"),
        0,
        2,
    );
    assert!(far_end.wait_for(FILE_HZ));
    let talker = Talker::start(main, 0, MAIN_HZ);
    assert_change(
        running.wait_for("the stream returns to a better input"),
        2,
        0,
    );
    assert!(far_end.wait_for(MAIN_HZ));
    let stats = statistics(&mut running);
    assert_eq!(
        (&stats["active"], &stats["switches"]),
        (&"main".into(), &2.into()),
        "{stats}"
    );
    let other_talker = Talker::start(other, 8, OTHER_HZ);
    // Packets of this input arrive, but are not used while a better input is present.
    for _ in 0..30 {
        far_end.next();
    }
    far_end.wait_for(MAIN_HZ);
    drop(talker);
    assert_change(
        running.wait_for("the input is silent, so another one replaces it"),
        0,
        1,
    );
    assert!(far_end.wait_for(OTHER_HZ));
    let stats = statistics(&mut running);
    assert_eq!(stats["active"], names[1], "{stats}");
    drop(other_talker);
    assert_change(
        running.wait_for("the input is silent, so another one replaces it"),
        1,
        2,
    );
    assert!(far_end.wait_for(FILE_HZ));
    running.signal(Signal::SIGTERM);
    running.wait_for("stopped");
}

/// A file replaces the sender's audio in a running stream, and then the sender is heard again: one RTP stream, without a gap in its
/// numbers.
#[test]
fn a_file_is_played_into_a_running_stream() {
    let [converted, unchanged] = [address(), address()];
    let mut far_end = FarEnd::new();
    let directory = tempfile::tempdir().expect("a directory");
    let (short, long) = (
        directory.path().join("short.wav"),
        directory.path().join("long.wav"),
    );
    write_tone(&short, 2);
    write_tone(&long, 60);
    let config = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n\
         [interfaces.default]\naddress = \"127.0.0.1\"\nports = \"20000-59999\"\n\
         [[stream]]\nname = \"a\"\nlisten = \"{converted}\"\ndestination = \"{}\"\n\
         codec = \"PCMA\"\ncodec-out = \"PCMU\"\n\
         [[stream]]\nname = \"unchanged\"\nlisten = \"{unchanged}\"\ndestination = \"127.0.0.1:9\"\ncodec = \"PCMU\"\n",
        far_end.address(),
    );
    let (running, _directory) = Running::start(&config, &[]);
    let relay = Relay::of(running);
    let _talker = Talker::start(converted, 8, MAIN_HZ);
    far_end.wait_for(MAIN_HZ);
    let play = |name: &str, file: &Path, times: u32| {
        let body = json!({"file": file.display().to_string(), "times": times});
        relay.post(&format!("/v1/streams/{name}/play"), &body)
    };
    // The list of the page may not show the running stream yet.
    crate::common::wait_until(|| play("a", &short, 1).status == 204);
    far_end.wait_for(FILE_HZ);
    far_end.wait_for(MAIN_HZ);
    assert_eq!(play("a", &long, 1000).status, 204);
    far_end.wait_for(FILE_HZ);
    let stopped = relay.post("/v1/streams/a/play/stop", &json!({}));
    assert_eq!(stopped.status, 204, "{}", stopped.text());
    far_end.wait_for(MAIN_HZ);
    for (name, file, times, status, says) in [
        ("nobody", &short, 1, 404, "nobody"),
        ("a", &directory.path().join("none.wav"), 1, 400, "none.wav"),
        ("a", &short, 0, 400, "a number from 1"),
        ("unchanged", &short, 1, 409, "forwards packets unchanged"),
    ] {
        let refused = play(name, file, times).problem(status);
        assert!(refused.to_string().contains(says), "{refused}");
    }
    far_end.wait_for(MAIN_HZ);
}

/// Metering and loudness adjustment apply to the outgoing audio.
#[test]
fn a_tone_is_measured_and_brought_to_the_target() {
    let [plain, target] = [address(), address()];
    let far_end = socket();
    let stream = |name: &str, listen: SocketAddr, keys: &str| {
        format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{}\"\nrtcp = false\n\
             codec = \"PCMU\"\n{keys}[[stream.fallback]]\ntone = 997\ntimeout = 100\n",
            far_end.local_addr().expect("bound")
        )
    };
    let config = stream("plain", plain, "codec-out = \"L16/16000/1\"\n")
        + &stream("target", target, "loudness-target = -30\n");
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT, "not at its target");
        running.signal(Signal::SIGUSR1);
        let [plain, target] = [(); 2].map(|()| running.wait_for("statistics"));
        let lufs = |stats: &Value| stats["momentary_lufs"].as_f64();
        let is_near = |lufs: Option<f64>, expected: f64| {
            lufs.is_some_and(|lufs| (lufs - expected).abs() < 0.5)
        };
        if is_near(lufs(&plain), -10.0 + FULL_SCALE_LUFS_AT_0_DBM0) && is_near(lufs(&target), -30.0)
        {
            assert_eq!(plain["active"], "fallback 1: tone 997");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// If a file is missing, the failure names it. The stream starts when the file exists.
#[test]
fn a_file_that_is_missing_is_named_and_tried_again() {
    let (main, mut far_end) = (address(), FarEnd::new());
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("late.wav");
    let config = format!(
        "[restart]\nfirst = 50\nmax = 50\n[[stream]]\nname = \"a\"\nlisten = \"{main}\"\ndestination = \"{}\"\ncodec = \"PCMU\"\n\
         [[stream.fallback]]\nfile = \"{}\"\ntimeout = 100\n",
        far_end.address(),
        file.display()
    );
    let (mut running, _directory) = Running::start(&config, &[]);
    let failure = running.wait_for("the stream failed");
    assert!(
        failure["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("late.wav")),
        "{failure}"
    );
    let wav = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let other = directory.path().join("other.wav");
    let mut writer = hound::WavWriter::create(&other, wav).expect("a file");
    for n in 0..8000 {
        let sample = 8192.0 * (TAU * FILE_HZ * f64::from(n) / 8000.0).sin();
        writer.write_sample(sample as i16).expect("written");
    }
    writer.finalize().expect("written");
    std::fs::rename(other, file).expect("renamed");
    far_end.wait_for(FILE_HZ);
}
