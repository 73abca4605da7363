//! SRTP with another implementation. ffmpeg sends and receives SRTP on one side, and the other side uses plain RTP. A tone passes in both
//! directions.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::media::{MS, leg, party_keys};
use crate::common::{DEADLINE, engine, next, peer, range};
use threadbare_relay::{AudioSession, Engine, PortUse};
use threadbare_rtp::call::{DirectionConfig, SessionSpec, Side};
use threadbare_rtp::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format};
use threadbare_rtp::id::SeqNum;
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{AdmissionConfig, Destination, LegConfig};
use threadbare_rtp::srtp::{Crypto, MasterKey, Suite};

const RATE_HZ: u32 = 8000;
/// Frequency of the tone that ffmpeg sends. The next one is that of the tone that it receives.
const SAID_HZ: u32 = 440;
const HEARD_HZ: u32 = 600;

#[test]
fn a_tone_passes_to_and_from_ffmpeg_with_80_bit_tags() {
    tones_go_through(Suite::AesCm128HmacSha1_80);
}

#[test]
fn a_tone_passes_to_and_from_ffmpeg_with_32_bit_tags() {
    tones_go_through(Suite::AesCm128HmacSha1_32);
}

/// Returns ffmpeg's name of the suite. With the name of RFC 4568, ffmpeg's SRTCP would have a tag of 32 bits, but section 6.2.2 requires
/// 80.
fn name(suite: Suite) -> &'static str {
    match suite {
        Suite::AesCm128HmacSha1_32 => "SRTP_AES128_CM_HMAC_SHA1_32",
        other => other.name(),
    }
}

/// Returns the key in SDP's form: base64 of key and salt.
fn inline(key: &MasterKey) -> String {
    let crypto = Crypto {
        tag: 1,
        key: key.clone(),
        lifetime_packets: None,
    };
    let value = crypto.to_value();
    let (_, inline) = value.split_once("inline:").expect("RFC 4568, section 9.1");
    inline.to_owned()
}

fn tones_go_through(suite: Suite) {
    let directory = std::env::temp_dir().join(format!("relay-{}-{suite}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (heard, phone) = (directory.join("heard.raw"), peer());
    let hear_at = free_pair();
    let (keys, ..) = party_keys(suite, 1);

    // Side A is ffmpeg, which sends from one port and receives at another one.
    let fixed = LegConfig {
        destination: Destination::Fixed {
            rtp: hear_at,
            rtcp: None,
        },
        admission: AdmissionConfig::default(),
        jitter: jitter::Config::new(RATE_HZ, 40 * MS),
        // A receiver that starts after a wrap of the numbers does not know the rollover counter (RFC 3711, section 3.3.1).
        first_seq: SeqNum(100),
        ..leg(Side::A, 0, Encoding::Pcmu)
    };
    let plain = LegConfig {
        admission: AdmissionConfig {
            peer: phone.local_addr().ok(),
            ..AdmissionConfig::default()
        },
        ..leg(Side::B, 8, Encoding::Pcma)
    };
    let engine: Engine<AudioSession> = engine(10, -1);
    let ports = range(PortUse::Pair);
    let legs = vec![ports.lease().unwrap(), ports.lease().unwrap()];
    let [at_a, at_b] = [legs[0].rtp_address(), legs[1].rtp_address()];
    let config = SessionSpec::call([fixed, plain], [DirectionConfig::default(); 2])
        .with_keys(Side::A, Some(keys.clone()));
    let call = AudioSession::create(0, config, Duration::from_millis(10)).unwrap();
    let call = engine.create("ffmpeg", legs, call).unwrap();

    let hear = listen(&directory, &heard, hear_at, suite, &keys.send);
    let _say = ffmpeg(|ffmpeg| {
        ffmpeg
            .args([
                "-re",
                "-f",
                "lavfi",
                "-i",
                &format!("sine=f={SAID_HZ}:r=8000"),
            ])
            .args(["-c:a", "pcm_mulaw", "-payload_type", "0", "-f", "rtp"])
            .args(["-srtp_out_suite", name(suite), "-srtp_out_params"])
            .arg(inline(&keys.receive))
            .arg(format!("srtp://{at_a}?pkt_size=182"))
    });
    let talk = Talking::start(phone.try_clone().unwrap(), at_b);

    let pcm = hear_pcma(&phone, RATE_HZ as usize);
    let hz = frequency(&pcm[2000..6000]);
    assert!(hz.abs_diff(SAID_HZ) <= 4, "{hz} Hz came from ffmpeg");

    let said = hear.finish();
    talk.stop();
    let samples: Vec<f32> = std::fs::read(&heard)
        .expect(&said)
        .chunks_exact(2)
        .map(|bytes| f32::from(i16::from_le_bytes([bytes[0], bytes[1]])))
        .collect();
    // A second of audio was requested, but ffmpeg counts by timestamps.
    assert!(samples.len() >= 7000, "{} samples: {said}", samples.len());
    let hz = frequency(&samples[2000..6000]);
    assert!(hz.abs_diff(HEARD_HZ) <= 4, "{hz} Hz came to ffmpeg");

    let stats = call.with(|call, _| call.stats()).wait().unwrap();
    let counts = stats.protections[0].expect("the side is SRTP");
    assert!(counts.received > 40 && counts.sent > 40, "{counts:?}");
    assert_eq!(
        (
            counts.unauthentic,
            counts.replayed,
            counts.malformed,
            counts.unsent
        ),
        (0, 0, 0, 0)
    );
    // ffmpeg sends reports of its clock in SRTCP.
    assert!(
        stats.session.legs[0].session.rtcp_received >= 1,
        "{stats:?}"
    );
    assert_eq!(stats.protections[1], None);
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Returns an address with a free port, whose next port is free too. The program that uses them opens them itself.
fn free_pair() -> SocketAddr {
    let pair = range(PortUse::Pair).lease().expect("ports");
    pair.rtp_address()
}

/// Starts an ffmpeg that receives SRTP until it has a second of audio.
fn listen(directory: &Path, heard: &Path, at: SocketAddr, suite: Suite, key: &MasterKey) -> Ffmpeg {
    let sdp = directory.join("hear.sdp");
    let text = format!(
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=test\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {} RTP/SAVP 0\na=crypto:1 {} inline:{}\n",
        at.port(),
        name(suite),
        inline(key)
    );
    std::fs::write(&sdp, text).expect("written");
    ffmpeg(|ffmpeg| {
        ffmpeg
            .args(["-protocol_whitelist", "file,rtp,srtp,udp", "-i"])
            .arg(&sdp)
            .args(["-t", "1", "-f", "s16le"])
            .arg(heard)
    })
}

/// A sender of a tone in PCMA, with a packet every 20 ms, until it is stopped.
struct Talking {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Talking {
    fn start(socket: UdpSocket, to: SocketAddr) -> Talking {
        let (stop, stopped): (_, Queue<()>) = channel();
        let thread = std::thread::spawn(move || {
            let format = Format::new(Encoding::Pcma, RATE_HZ, 1).expect("a format");
            let mut encoder = Encoder::new(format, &EncoderSettings::default()).expect("a codec");
            let mut number = 0_u16;
            while stopped.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout)
            {
                let pcm: Vec<f32> = (0..160)
                    .map(|at| {
                        let at = f64::from(number) * 160.0 + f64::from(at);
                        let turns = at * f64::from(HEARD_HZ) / f64::from(RATE_HZ);
                        (turns.fract() * std::f64::consts::TAU).sin() as f32 * 0.25
                    })
                    .collect();
                let mut packet = crate::common::media::speech(8, 0x77, number);
                packet.truncate(12);
                encoder.encode(&pcm, &mut packet).expect("encoded");
                socket.send_to(&packet, to).expect("sent");
                number = number.wrapping_add(1);
            }
        });
        Talking { stop, thread }
    }

    fn stop(self) {
        drop(self.stop);
        self.thread.join().expect("it spoke");
    }
}

/// Receives `samples` samples of audio from a phone's socket.
fn hear_pcma(phone: &UdpSocket, samples: usize) -> Vec<f32> {
    let format = Format::new(Encoding::Pcma, RATE_HZ, 1).expect("a format");
    let mut decoder = Decoder::new(format).expect("a codec");
    let mut pcm = Vec::new();
    while pcm.len() < samples {
        let (packet, _) = next(phone);
        decoder.decode(&packet[12..], &mut pcm).expect("PCMA");
    }
    pcm
}

/// Returns the number of rising zero crossings in half a second.
fn frequency(samples: &[f32]) -> u32 {
    let crossings = samples
        .windows(2)
        .filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0);
    crossings.count() as u32 * RATE_HZ / samples.len() as u32
}

/// A running ffmpeg. The process is killed when this is dropped.
struct Ffmpeg(Option<Child>);

fn ffmpeg(arguments: impl FnOnce(&mut Command) -> &mut Command) -> Ffmpeg {
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-nostdin", "-loglevel", "warning", "-y"]);
    let child = arguments(&mut command)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("this test needs ffmpeg: sudo apt install ffmpeg");
    Ffmpeg(Some(child))
}

impl Ffmpeg {
    /// Waits until ffmpeg ends. Returns its output.
    fn finish(mut self) -> String {
        let begin = std::time::Instant::now();
        let mut child = self.0.take().expect("not finished yet");
        while child.try_wait().expect("a child").is_none() {
            if begin.elapsed() > DEADLINE {
                child.kill().expect("killed");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().expect("ends");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Ffmpeg {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
