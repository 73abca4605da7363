//! Streams with GStreamer elements between decoder and encoder, observed at the far end.

use std::f64::consts::TAU;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::{LIMIT, Running, free_port, receive, rtp, socket, threadbare, wait_until};
use nix::sys::signal::Signal;
use threadbare_rtp::g711;

const HZ: f64 = 997.0;
const LEVEL: f64 = 8192.0;

fn stream(name: &str, listen: SocketAddr, to: &UdpSocket, keys: &str) -> String {
    format!(
        "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{}\"\nrtcp = false\ncodec = \"PCMU\"\n{keys}\n",
        to.local_addr().expect("bound")
    )
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Returns packet `number` of a tone, 20 ms of PCMU.
fn tone(number: u16) -> Vec<u8> {
    let sample = |n: u32| {
        let angle = TAU * HZ * f64::from(u32::from(number) * 160 + n) / 8000.0;
        g711::linear_to_ulaw((LEVEL * angle.sin()) as i16)
    };
    rtp(0, number, &(0..160).map(sample).collect::<Vec<_>>())
}

/// Sends a tone at the pace of a call until `is_done` returns true.
fn talk(to: &[SocketAddr], mut is_done: impl FnMut() -> bool) {
    let (from, begin) = (socket(), Instant::now());
    for number in 0.. {
        for to in to {
            // The port is closed while the stream restarts.
            let _ = from.send_to(&tone(number), to);
        }
        if is_done() {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "nothing comes of it");
        let due = begin + Duration::from_millis(20) * u32::from(number);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Returns the amplitude of a tone, relative to the sent one.
fn level(pcm: &[f64], hz: f64, rate_hz: f64) -> f64 {
    let angle = |n: usize| TAU * hz * n as f64 / rate_hz;
    let part = |wave: fn(f64) -> f64| {
        let product = pcm
            .iter()
            .enumerate()
            .map(|(n, sample)| sample * wave(angle(n)));
        2.0 * product.sum::<f64>() / pcm.len().max(1) as f64
    };
    part(f64::sin).hypot(part(f64::cos)) / LEVEL
}

fn decoded(payload_type: u8, payload: &[u8]) -> Vec<f64> {
    match payload_type {
        0 => payload
            .iter()
            .map(|code| f64::from(g711::ULAW_TO_LINEAR[usize::from(*code)]))
            .collect(),
        8 => payload
            .iter()
            .map(|code| f64::from(g711::ALAW_TO_LINEAR[usize::from(*code)]))
            .collect(),
        _ => payload
            .chunks_exact(2)
            .map(|pair| f64::from(i16::from_be_bytes([pair[0], pair[1]])))
            .collect(),
    }
}

/// This works with all codecs, and with all formats that the elements accept.
#[test]
fn the_audio_of_a_stream_passes_through_the_elements() {
    let half = "audioamplify amplification=0.5";
    let narrow = format!("capsfilter caps=audio/x-raw,format=S16LE,rate=8000 ! {half}");
    let twice = format!("{half} ! ts-queue context=gateway-0 ! {half}");
    let cases = [
        ("", half, 8000.0, 0.5),
        ("codec-out = \"PCMA\"\n", half, 8000.0, 0.5),
        ("codec-out = \"L16/16000/1\"\n", half, 16_000.0, 0.5),
        (
            "codec-out = \"L16/48000/1\"\nptime = 10\n",
            &narrow,
            48_000.0,
            0.5,
        ),
        ("codec-out = \"PCMA\"\n", &twice, 8000.0, 0.25),
    ];
    let mut config = String::new();
    let mut streams = Vec::new();
    for (number, (keys, description, rate_hz, expected)) in cases.into_iter().enumerate() {
        let (listen, answer) = (address(), socket());
        let keys = format!("{keys}pipeline = \"{description}\"");
        config += &stream(&number.to_string(), listen, &answer, &keys);
        streams.push((listen, answer, rate_hz, expected, description.to_owned()));
    }
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    let listens: Vec<_> = streams.iter().map(|(listen, ..)| *listen).collect();
    let mut heard = vec![Vec::new(); streams.len()];
    let mut last = vec![None; streams.len()];
    let mut room = [0; 2048];
    for (_, answer, ..) in &streams {
        answer.set_nonblocking(true).expect("non-blocking");
    }
    talk(&listens, || {
        for (number, (_, answer, ..)) in streams.iter().enumerate() {
            while let Ok(length) = answer.recv(&mut room) {
                let packet = rtp_types::RtpPacket::parse(&room[..length]).expect("RTP");
                let sequence = packet.sequence_number();
                let before = last[number].replace(sequence);
                assert!(before.is_none_or(|before: u16| sequence == before.wrapping_add(1)));
                heard[number].extend(decoded(packet.payload_type(), packet.payload()));
            }
        }
        let is_heard =
            |(pcm, stream): (&Vec<f64>, &(_, _, f64, _, _))| pcm.len() as f64 >= stream.2;
        heard.iter().zip(&streams).all(is_heard)
    });
    for (pcm, (_, _, rate_hz, expected, description)) in heard.iter().zip(&streams) {
        // Skip the start, because resamplers need time to settle.
        let settled = &pcm[*rate_hz as usize / 5..];
        let heard = level(settled, HZ, *rate_hz);
        assert!(
            (heard - expected).abs() < 0.02,
            "{description} to {rate_hz} Hz: {heard}"
        );
    }
}

/// If an element fails, the run of its stream ends, and the log has the reason. The stream restarts, and other streams are not affected.
#[test]
fn an_error_of_an_element_restarts_only_its_stream() {
    let (broken, fine) = (address(), address());
    let (answer, other) = (socket(), socket());
    let config = "[restart]\nfirst = 20\nmax = 20\n".to_owned()
        + &stream(
            "broken",
            broken,
            &answer,
            "codec-out = \"PCMA\"\npipeline = \"identity error-after=5\"",
        )
        + &stream("fine", fine, &other, "codec-out = \"PCMA\"");
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    let (sender, failures) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for _ in 0..3 {
            let failure = running.wait_for("the stream failed");
            sender.send(failure).expect("the test waits");
            running.wait_for("restarting the stream");
        }
        running
    });
    let mut seen = Vec::new();
    talk(&[broken, fine], || {
        seen.extend(failures.try_iter());
        seen.len() == 3
    });
    for failure in &seen {
        assert_eq!(failure["stream"], "broken");
        let reason = failure["reason"].as_str().expect("a text");
        assert!(reason.starts_with("identity"), "{reason}");
    }
    let running = reader.join().expect("it ends");
    let first = receive(&other).sequence;
    other
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a valid time-out");
    let mut next = first;
    let mut room = [0; 2048];
    while let Ok(length) = other.recv(&mut room) {
        next = next.wrapping_add(1);
        let packet = rtp_types::RtpPacket::parse(&room[..length]).expect("RTP");
        assert_eq!(packet.sequence_number(), next);
    }
    drop(running);
}

/// At the end, elements release what they hold. `audioloudnorm` delays audio by 3 s.
#[test]
fn audio_queued_in_elements_is_sent_when_the_stream_ends() {
    let (listen, answer) = (address(), socket());
    let keys = "codec-out = \"PCMA\"\npipeline = \"audioloudnorm loudness-target=-23\"";
    let (mut running, _directory) = Running::start(&stream("a", listen, &answer, keys), &[]);
    running.wait_for("running");
    let from = socket();
    for number in 0..50 {
        from.send_to(&tone(number), listen).expect("sent");
    }
    running.signal(Signal::SIGTERM);
    let stats = running.wait_for("statistics");
    assert_eq!(stats["received"], 50, "{stats}");
    running.wait_for("stopped");
    for _ in 0..50 {
        receive(&answer);
    }
}

/// A fallback's tone passes through the elements too.
#[test]
fn the_audio_of_a_fallback_passes_through_the_elements() {
    let (listen, answer) = (address(), socket());
    let keys = "pipeline = \"audioamplify amplification=0.5\"\n[[stream.fallback]]\ntone = 440\ntimeout = 100";
    let (mut running, _directory) = Running::start(&stream("a", listen, &answer, keys), &[]);
    running.wait_for("the input is silent, so another one replaces it");
    let mut pcm = Vec::new();
    while pcm.len() < 8000 {
        let packet = receive(&answer);
        pcm.extend(decoded(packet.payload_type, &packet.payload));
    }
    // The tone has -10 dBm0, whereas a full-scale sine has 3.14 dBm0. The element halves the amplitude.
    let full_scale = level(&pcm[800..], 440.0, 8000.0) * LEVEL / 32_124.0;
    let level_db = 20.0 * full_scale.log10();
    assert!((level_db + 13.14 + 6.02).abs() < 0.3, "{level_db} dB");
}

/// Streams with elements need no threads of their own.
#[test]
fn elements_of_a_stream_start_no_thread() {
    let start = |count: usize| {
        let answer = socket();
        let keys = "codec-out = \"PCMA\"\npipeline = \"audioamplify amplification=0.5\"";
        let listens: Vec<_> = (0..count).map(|_| address()).collect();
        let each = |listen: &SocketAddr| stream(&listen.to_string(), *listen, &answer, keys);
        let config: String = listens.iter().map(each).collect();
        let (mut running, directory) = Running::start(&config, &[]);
        running.wait_for("running");
        (running, directory)
    };
    let threads_of = |running: &Running| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", running.child.id()));
        tasks.expect("it runs").count()
    };
    let ((one, _one), (eight, _eight)) = (start(1), start(8));
    // The threads that prepare streams end after a while.
    wait_until(|| threads_of(&one) == threads_of(&eight));
}

/// The mistake is reported before the start, with GStreamer's message.
#[test]
fn a_broken_description_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gateway.toml");
    let answer = socket();
    for (keys, says) in [
        (
            "pipeline = \"no-such-element\"",
            &[
                "`pipeline` cannot be \"no-such-element\"",
                "no element \"no-such-element\"",
            ][..],
        ),
        (
            "pipeline = \"audioamplify amplification=loud\"",
            &["could not set property \"amplification\"", "\"loud\""],
        ),
        ("pipeline = \"audioamplify ! \"", &["`pipeline` cannot be"]),
        ("pipeline = \"audiotestsrc\"", &["no unlinked sink pad"]),
        ("pipeline = \"fakesink\"", &["no unlinked source pad"]),
        ("pipeline = \" \"", &["elements as for gst-launch-1.0"]),
        (
            "codec-out = \"PCMA\"\nloudness-target = -23\npipeline = \"identity\"",
            &["cannot be combined with `loudness-target`", "audioloudnorm"],
        ),
    ] {
        std::fs::write(&path, stream("a", address(), &answer, keys)).expect("written");
        let checked = threadbare()
            .arg("run")
            .arg(&path)
            .arg("--check")
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&checked.stderr);
        let said = said
            .split_whitespace()
            .filter(|word| *word != "│")
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(checked.status.code(), Some(1), "{keys}");
        for words in says {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
    }
    let good = stream(
        "a",
        address(),
        &answer,
        "pipeline = \"audioamplify amplification=0.5\"",
    );
    std::fs::write(&path, good).expect("written");
    let checked = threadbare()
        .arg("run")
        .arg(&path)
        .args(["--check", "--print"])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        said.contains("pipeline = \"audioamplify amplification=0.5\""),
        "{said}"
    );
}
