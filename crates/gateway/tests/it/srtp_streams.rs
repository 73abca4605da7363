//! Streams with SRTP, observed at the far end: the tone, the numbers, and the RTCP of both sides.
//!
//! The parties encrypt with threadbare-srtp, whose tests have the vectors of RFC 3711, 6188 and 7714; `real_tools.rs` has ffmpeg as
//! a party. The frequency is found by the definition of a tone.

use std::f64::consts::TAU;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use threadbare_rtp::g711;
use threadbare_rtp::id::{SeqNum, Ssrc};
use threadbare_rtp::srtp::{
    Crypto, MASTER_KEY_BYTES_MAX, MasterKey, PacketIndex, RTP_TRAILER_BYTES_MAX, Receiver, Sender,
    SourceState, Suite,
};

use crate::common::{LIMIT, Running, free_port, port_pair, rtp, threadbare};

const HZ: f64 = 997.0;
/// SSRC of the senders: that of `common::rtp`.
const SSRC: Ssrc = Ssrc(0x1234);
/// Number of sequence numbers that wrapped before the gateway started.
const WRAPS: u32 = 9;

fn key(suite: Suite, seed: u8) -> MasterKey {
    let random: [u8; MASTER_KEY_BYTES_MAX] =
        std::array::from_fn(|at| seed.wrapping_mul(31).wrapping_add(at as u8));
    MasterKey::from_random(suite, &random)
}

/// Writes a key as the documentation of `srtp-in-key-file` says, and returns the setting.
fn setting(folder: &Path, name: &str, stream: usize, key: &MasterKey) -> String {
    let crypto = Crypto {
        tag: 1,
        key: key.clone(),
        lifetime_packets: None,
    };
    let value = crypto.to_value();
    let path = folder.join(format!("{name}-{stream}"));
    std::fs::write(&path, value.strip_prefix("1 ").expect("the tag")).expect("written");
    format!("{name} = \"{}\"\n", path.display())
}

/// A party: it speaks or listens, with a key or without.
struct Party {
    rtp: UdpSocket,
    rtcp: UdpSocket,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    heard: Vec<f64>,
    sequences: Vec<u16>,
    ssrcs: Vec<u32>,
    /// RTCP packets that were authentic, or plain without a key.
    reports: usize,
    is_alaw: bool,
}

impl Party {
    fn new(send: Option<&MasterKey>, receive: Option<&MasterKey>, is_alaw: bool) -> Party {
        let [rtp, rtcp] = port_pair();
        for socket in [&rtp, &rtcp] {
            socket.set_nonblocking(true).expect("a mode of sockets");
        }
        let sender = send.map(|key| {
            let mut sender = Sender::new(key);
            let state = SourceState {
                ssrc: SSRC,
                rtp: Some(PacketIndex::new(WRAPS, SeqNum(0))),
                rtp_missing: 0,
                rtcp: None,
            };
            sender.restore(state).expect("a new sender");
            sender
        });
        Party {
            rtp,
            rtcp,
            sender,
            receiver: receive.map(Receiver::new),
            heard: Vec::new(),
            sequences: Vec::new(),
            ssrcs: Vec::new(),
            reports: 0,
            is_alaw,
        }
    }

    fn say(&mut self, number: u16, to: SocketAddr) {
        let sample = |n: u32| {
            let angle = TAU * HZ * f64::from(u32::from(number) * 160 + n) / 8000.0;
            g711::linear_to_ulaw((8192.0 * angle.sin()) as i16)
        };
        let payload: Vec<u8> = (0..160).map(sample).collect();
        let mut packet = rtp(0, number, &payload);
        if let Some(sender) = &mut self.sender {
            let bytes = packet.len();
            packet.resize(bytes + RTP_TRAILER_BYTES_MAX, 0);
            let bytes = sender.protect_rtp(&mut packet, bytes).expect("protected");
            packet.truncate(bytes);
        }
        // The port may not be open yet.
        let _ = self.rtp.send_to(&packet, to);
    }

    fn listen(&mut self) {
        let mut buffer = [0; 2048];
        while let Ok(length) = self.rtp.recv(&mut buffer) {
            let length = match &mut self.receiver {
                Some(receiver) => {
                    let opened = receiver.unprotect_rtp(&mut buffer[..length]);
                    opened.expect("an authentic packet")
                }
                None => length,
            };
            let packet = rtp_types::RtpPacket::parse(&buffer[..length]).expect("RTP");
            assert_eq!(packet.payload_type(), if self.is_alaw { 8 } else { 0 });
            self.sequences.push(packet.sequence_number());
            self.ssrcs.push(packet.ssrc());
            let table = if self.is_alaw {
                &g711::ALAW_TO_LINEAR
            } else {
                &g711::ULAW_TO_LINEAR
            };
            let linear = |code: &u8| f64::from(table[usize::from(*code)]);
            self.heard.extend(packet.payload().iter().map(linear));
        }
        while let Ok(length) = self.rtcp.recv(&mut buffer) {
            let is_read = match &mut self.receiver {
                Some(receiver) => receiver.unprotect_rtcp(&mut buffer[..length]).is_ok(),
                None => matches!(buffer[1], 200 | 201),
            };
            assert!(is_read, "RTCP that is not authentic");
            self.reports += 1;
        }
    }

    /// The amplitude of the tone in the last quarter of a second.
    fn level(&self) -> f64 {
        let Some(start) = self.heard.len().checked_sub(2000) else {
            return 0.0;
        };
        let part = |wave: fn(f64) -> f64| {
            let of = |(n, sample): (usize, &f64)| sample * wave(TAU * HZ * n as f64 / 8000.0);
            self.heard[start..].iter().enumerate().map(of).sum::<f64>() / 1000.0
        };
        part(f64::sin).hypot(part(f64::cos))
    }
}

/// A stream of the test.
struct Stream {
    listen: SocketAddr,
    from: Party,
    /// `None`: back to the sender.
    to: Option<Party>,
}

impl Stream {
    fn far_end(&mut self) -> &mut Party {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// The way of the packets through a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Direct,
    /// Back to the sender.
    Latched,
    /// From a fallback, which has the stream's key.
    Fallback,
    /// From a fallback with a key in its table.
    FallbackWithKey,
}

/// Every pair of encrypted and plain sides that the check accepts, forwarded and re-encoded, and back to the sender. The sender has
/// been sending for hours, so its rollover counter is not zero.
#[test]
fn each_side_has_its_own_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut config, mut streams) = ("[contexts]\nwait = 5\n".to_owned(), Vec::new());
    let mut add = |suite: Suite, input: bool, output: bool, codec_out: &str, way: Way| {
        let number = streams.len();
        let in_key = input.then(|| key(suite, number as u8 * 2));
        let out_key = output.then(|| key(suite, number as u8 * 2 + 1));
        let is_alaw = codec_out == "PCMA";
        // A party's reports have the key of its media; a party that sends and receives has both.
        let (from, to) = if way == Way::Latched {
            (Party::new(in_key.as_ref(), out_key.as_ref(), is_alaw), None)
        } else {
            let from = Party::new(in_key.as_ref(), in_key.as_ref(), false);
            (from, Some(Party::new(None, out_key.as_ref(), is_alaw)))
        };
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let destination = match &to {
            Some(to) => to.rtp.local_addr().expect("bound").to_string(),
            None => "latched".to_owned(),
        };
        // With a fallback, the stream's own sender is silent.
        let own = match way {
            Way::FallbackWithKey | Way::Fallback => SocketAddr::from(([127, 0, 0, 1], free_port())),
            Way::Direct | Way::Latched => listen,
        };
        config += &format!(
            "[[stream]]\nname = \"{number}\"\nlisten = \"{own}\"\ndestination = \"{destination}\"\n\
             codec = \"PCMU\"\ncodec-out = \"{codec_out}\"\n"
        );
        let of_stream = match way {
            Way::FallbackWithKey => Some(key(suite, 200)),
            _ => in_key.clone(),
        };
        if let Some(key) = &of_stream {
            config += &setting(folder.path(), "srtp-in-key-file", number, key);
        }
        if let Some(key) = &out_key {
            config += &setting(folder.path(), "srtp-out-key-file", number, key);
        }
        if way == Way::Fallback || way == Way::FallbackWithKey {
            config += &format!("[[stream.fallback]]\nlisten = \"{listen}\"\ntimeout = 200\n");
        }
        if let (Way::FallbackWithKey, Some(key)) = (way, &in_key) {
            config += &setting(folder.path(), "srtp-in-key-file", number + 1000, key);
        }
        streams.push(Stream { listen, from, to });
    };
    for suite in Suite::ALL {
        for (input, output) in [(true, false), (false, true), (true, true)] {
            for codec_out in ["PCMU", "PCMA"] {
                add(suite, input, output, codec_out, Way::Direct);
            }
        }
        add(suite, true, true, "PCMA", Way::Latched);
    }
    let suite = Suite::AesCm128HmacSha1_80;
    add(suite, false, false, "PCMA", Way::Latched);
    add(suite, true, true, "PCMA", Way::Fallback);
    add(suite, true, false, "PCMU", Way::FallbackWithKey);
    let (mut running, _folder) = Running::start(&config, &[]);
    running.wait_for("running");
    let begin = Instant::now();
    let is_done = |stream: &mut Stream| {
        let has_reports = stream.from.reports > 0;
        let far_end = stream.far_end();
        has_reports && far_end.reports > 0 && far_end.level() > 7000.0
    };
    for number in 1.. {
        for stream in &mut streams {
            stream.from.say(number, stream.listen);
            stream.from.listen();
            stream.far_end().listen();
        }
        if number % 50 == 0 && streams.iter_mut().all(is_done) {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "not all streams carry the tone");
        let due = begin + Duration::from_millis(20) * u32::from(number);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let far_end = stream.far_end();
        let steps = far_end.sequences.windows(2);
        assert!(
            steps
                .into_iter()
                .all(|pair| pair[1] == pair[0].wrapping_add(1)),
            "stream {number}: numbers are missing"
        );
        assert!(far_end.ssrcs.windows(2).all(|pair| pair[0] == pair[1]));
    }
    running.signal(Signal::SIGTERM);
    running.wait_for("stopped");
}

/// A sender with another key is not heard, and operators see why. The key comes from the environment and is never shown.
#[test]
fn packets_with_another_key_are_refused_and_reported() {
    let suite = Suite::AesCm128HmacSha1_80;
    let folder = tempfile::tempdir().expect("a folder");
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut listener = Party::new(None, None, false);
    let destination = listener.rtp.local_addr().expect("bound");
    let file = folder.path().join("gateway.toml");
    let config = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[[stream]]\nname = \"s\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n\
         codec = \"PCMU\"\nsrtp-in-key-env = \"STUDIO_KEY\"\n"
    );
    std::fs::write(&file, config).expect("written");
    let crypto = Crypto {
        tag: 1,
        key: key(suite, 1),
        lifetime_packets: None,
    };
    let value = crypto.to_value();
    let secret = value.rsplit(':').next().expect("the key");
    let mut command = threadbare();
    command.arg("run").arg(&file).env("STUDIO_KEY", secret);
    let mut running = Running::spawn(command);
    running.wait_for("running");
    let mut stranger = Party::new(Some(&key(suite, 2)), None, false);
    for number in 1..400 {
        stranger.say(number, listen);
        std::thread::sleep(Duration::from_millis(2));
    }
    let said = running.wait_for(
        "refusing SRTP packets that are not authentic: the party has another key or another suite, or sends plain RTP",
    );
    assert_eq!(said["stream"], "s");
    listener.listen();
    assert!(listener.heard.is_empty(), "a stranger is heard");
    running.signal(Signal::SIGTERM);
    let stats = running.wait_for("statistics");
    // The first packets may come before the port is open.
    let refused = stats["srtp_refused"].as_u64();
    assert!(stats["received"] == 0 && refused > Some(250), "{stats}");
    // The check reads the key, too.
    let mut command = threadbare();
    command.args(["run", "--check", "--print"]).arg(&file);
    let checked = command
        .env("STUDIO_KEY", &secret[1..])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(
        !checked.status.success() && said.contains("`srtp-in-key-env` cannot be \"STUDIO_KEY\""),
        "{said}"
    );
    assert!(!said.contains(&secret[1..9]), "{said}");
}
