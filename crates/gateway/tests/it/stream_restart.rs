//! Streams whose listeners notice a restart of the gateway only as a gap: the RTP stream continues.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rtp_types::RtpPacket;

use crate::common::{Running, free_port, rtp, socket, threadbare, wait_until};

/// Settings of the streams, with the clock rate of their output in Hz.
const STREAMS: [(&str, u32); 4] = [
    ("codec = \"PCMU\"\ncodec-out = \"PCMA\"", 8_000),
    ("codec = \"PCMU\"\ncodec-out = \"OPUS\"", 48_000),
    ("codec = \"PCMU\"\ncodec-out = \"L16/16000/1\"", 16_000),
    (
        "codec = \"PCMU\"\ncodec-out = \"G722\"\n[[stream.fallback]]\nsilence = true",
        8_000,
    ),
];

/// A packet of an output.
#[derive(Clone, Copy, Debug)]
struct Heard {
    ssrc: u32,
    seq: u16,
    time: u32,
    at: Instant,
}

/// Streams with one sender for all, and a listener for each.
struct Scene {
    listeners: Vec<UdpSocket>,
    config: String,
    ends: Arc<AtomicBool>,
}

impl Scene {
    fn new(restart: &str) -> Scene {
        let listeners: Vec<UdpSocket> = STREAMS.iter().map(|_| socket()).collect();
        let mut config = format!("[restart]\n{restart}\n");
        let mut to = Vec::new();
        for (number, ((settings, _), listener)) in STREAMS.iter().zip(&listeners).enumerate() {
            let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let destination = listener.local_addr().expect("bound");
            config += &format!(
                "[[stream]]\nname = \"s{number}\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\nrtcp = false\n{settings}\n"
            );
            to.push(listen);
        }
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        std::thread::spawn(move || send(&told, &to));
        Scene {
            listeners,
            config,
            ends,
        }
    }

    fn start(&self, folder: &Path) -> Running {
        let path = folder.join("gateway.toml");
        std::fs::write(&path, &self.config).expect("written");
        let mut command = threadbare();
        command.arg("run").arg(path);
        let mut running = Running::spawn(command);
        running.wait_for("running");
        running
    }

    /// Returns the next packets of each listener.
    fn hear(&self, count: usize) -> Vec<Vec<Heard>> {
        let next = |listener: &UdpSocket| {
            let mut buffer = [0; 2048];
            let len = listener.recv(&mut buffer).expect("a packet in time");
            let packet = RtpPacket::parse(&buffer[..len]).expect("RTP");
            Heard {
                ssrc: packet.ssrc(),
                seq: packet.sequence_number(),
                time: packet.timestamp(),
                at: Instant::now(),
            }
        };
        let all = self.listeners.iter();
        all.map(|listener| (0..count).map(|_| next(listener)).collect())
            .collect()
    }

    /// Returns the packets that wait at each listener.
    fn hear_rest(&self) -> Vec<Vec<Heard>> {
        let rest = self.listeners.iter().map(|listener| {
            let mut rest = Vec::new();
            listener.set_nonblocking(true).expect("a socket");
            let mut buffer = [0; 2048];
            while let Ok(len) = listener.recv(&mut buffer) {
                let packet = RtpPacket::parse(&buffer[..len]).expect("RTP");
                rest.push(Heard {
                    ssrc: packet.ssrc(),
                    seq: packet.sequence_number(),
                    time: packet.timestamp(),
                    at: Instant::now(),
                });
            }
            listener.set_nonblocking(false).expect("a socket");
            rest
        });
        rest.collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
    }
}

fn send(ends: &AtomicBool, to: &[SocketAddr]) {
    let (from, begun) = (socket(), Instant::now());
    for number in 0..u16::MAX {
        if ends.load(Relaxed) {
            return;
        }
        for to in to {
            // An error only says that the gateway is not running.
            let _ = from.send_to(&rtp(0, number, &[0x55; 160]), to);
        }
        let due = begun + Duration::from_millis(20) * (u32::from(number) + 1);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Asserts that the second part continues the first one after a gap: one SSRC, increasing numbers, and timestamps that follow the time.
/// After `is_exact`, no number is left out.
fn assert_continues(before: &[Vec<Heard>], after: &[Vec<Heard>], is_exact: bool) {
    for (number, (before, after)) in before.iter().zip(after).enumerate() {
        let (last, first) = (before[before.len() - 1], after[0]);
        assert!(
            after.iter().all(|heard| heard.ssrc == last.ssrc),
            "s{number}"
        );
        let all: Vec<Heard> = before.iter().chain(after).copied().collect();
        for pair in all.windows(2) {
            let step = pair[1].seq.wrapping_sub(pair[0].seq);
            assert!((1..3000).contains(&step), "s{number}: {pair:?}");
            assert!(
                pair[1].time.wrapping_sub(pair[0].time) < 1 << 31,
                "s{number}: {pair:?}"
            );
        }
        if is_exact {
            assert_eq!(first.seq, last.seq.wrapping_add(1), "s{number}");
        }
        let ticks = f64::from(first.time.wrapping_sub(last.time));
        let gap_s = ticks / f64::from(STREAMS[number].1);
        let passed_s = (first.at - last.at).as_secs_f64();
        // Generous, because the machine may be busy. A new RTP stream would have random timestamps.
        assert!(
            (gap_s - passed_s).abs() < 5.0,
            "s{number}: {gap_s} s instead of {passed_s} s"
        );
    }
}

/// Returns all that was heard before, as one list for each listener.
fn joined(first: Vec<Vec<Heard>>, rest: Vec<Vec<Heard>>) -> Vec<Vec<Heard>> {
    let both = first.into_iter().zip(rest);
    both.map(|(first, rest)| first.into_iter().chain(rest).collect())
        .collect()
}

#[test]
fn streams_continue_after_a_stop_and_after_a_crash() {
    let folder = tempfile::tempdir().expect("a directory");
    let state = folder.path().join("streams.state");
    let scene = Scene::new(&format!("state = \"{}\"", state.display()));
    let mut running = scene.start(folder.path());
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGTERM] {
        let heard = scene.hear(20);
        if signal == Signal::SIGKILL {
            // The positions of streams that send are in the file from its second version on.
            for _ in 0..3 {
                let version = || {
                    std::fs::metadata(&state)
                        .and_then(|file| file.modified())
                        .ok()
                };
                let before = version();
                wait_until(|| version() != before);
            }
        }
        running.signal(signal);
        running.child.wait().expect("a child");
        let before = joined(heard, scene.hear_rest());
        running = scene.start(folder.path());
        let after = scene.hear(20);
        assert_continues(&before, &after, signal == Signal::SIGTERM);
    }
}

#[test]
fn streams_continue_with_changed_settings() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut scene = Scene::new("");
    let mut running = scene.start(folder.path());
    let heard = scene.hear(20);
    scene.config = scene
        .config
        .replace("rtcp = false", "rtcp = false\nlatency = 60");
    std::fs::write(folder.path().join("gateway.toml"), &scene.config).expect("written");
    running.signal(Signal::SIGHUP);
    running.wait_for("reloaded");
    let before = joined(heard, scene.hear_rest());
    let after = scene.hear(20);
    assert_continues(&before, &after, true);
}

#[test]
fn an_unusable_file_of_positions_is_named() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("missing").join("streams.state");
    let config = format!(
        "[restart]\nstate = \"{}\"\n[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:{}\"\ncodec = \"PCMU\"\n",
        path.display(),
        free_port()
    );
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, config).expect("written");
    let output = threadbare().arg("run").arg(file).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains("`state` of [restart]") && text.contains("streams.state"),
        "{text}"
    );
}
