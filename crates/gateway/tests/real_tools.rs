//! The gateway between programs that people use: ffmpeg sends and receives, tshark reads.

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Running, free_port, knock, rtp, socket};
use rtp_types::RtpPacket;

/// A codec, as the gateway, as ffmpeg and as SDP call it.
struct Codec {
    gateway: &'static str,
    ffmpeg: &'static [&'static str],
    /// At most, with the RTP header; ffmpeg puts as much into one packet as fits.
    packet_bytes: u32,
    payload_type: u8,
    rtpmap: &'static str,
}

const PCMU: Codec = Codec {
    gateway: "PCMU",
    ffmpeg: &["-c:a", "pcm_mulaw", "-ar", "8000", "-ac", "1"],
    packet_bytes: 172,
    payload_type: 0,
    rtpmap: "PCMU/8000",
};
const PCMA: Codec = Codec {
    gateway: "PCMA",
    ffmpeg: &["-c:a", "pcm_alaw", "-ar", "8000", "-ac", "1"],
    packet_bytes: 172,
    payload_type: 8,
    rtpmap: "PCMA/8000",
};
const OPUS: Codec = Codec {
    gateway: "Opus",
    ffmpeg: &["-c:a", "libopus", "-ar", "48000", "-ac", "1"],
    packet_bytes: 1400,
    payload_type: 96,
    rtpmap: "opus/48000/2",
};

/// What ffmpeg sends, so that it is recognised at the other end.
const TONE_HZ: u32 = 440;

#[test]
fn ffmpeg_pcmu_in_pcma_out() {
    tone_goes_through(&PCMU, &PCMA);
}

#[test]
fn ffmpeg_pcma_in_pcmu_out() {
    tone_goes_through(&PCMA, &PCMU);
}

#[test]
fn ffmpeg_pcmu_in_opus_out() {
    tone_goes_through(&PCMU, &OPUS);
}

#[test]
fn ffmpeg_opus_in_pcma_out() {
    tone_goes_through(&OPUS, &PCMA);
}

#[test]
fn tshark_reads_clean_rtp() {
    for codec_out in [&PCMA, &OPUS] {
        let (answer, from) = (socket(), socket());
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let destination = answer.local_addr().expect("bound");
        let (mut running, directory) =
            Running::start(&config(&PCMU, codec_out, listen, destination.port()), &[]);
        running.wait_for("running");
        let next = knock(&from, listen, &answer, 0, 0, &[0xff; 160]);
        let mut packets = Vec::new();
        for number in next..next + 100 {
            from.send_to(&rtp(0, number, &[0xff; 160]), listen)
                .expect("sent");
            let mut buffer = [0; 2048];
            let length = answer.recv(&mut buffer).expect("a packet in time");
            packets.push(buffer[..length].to_vec());
        }
        let ssrc = RtpPacket::parse(&packets[0]).expect("RTP").ssrc();
        let pcap = directory.path().join("out.pcap");
        std::fs::write(&pcap, pcap_of(&packets)).expect("written");
        let said = tshark(&pcap);
        // One stream, and of its packets, by number: lost, and whether anything is a problem.
        let stream = said
            .lines()
            .find(|line| line.contains(&format!("0x{ssrc:08X}")))
            .expect(&said);
        let words = stream.split_whitespace().collect::<Vec<_>>();
        let packets_at = words.iter().position(|word| *word == "100").expect(&said);
        assert_eq!(
            words[packets_at + 1..packets_at + 3],
            ["0", "(0.0%)"],
            "{said}"
        );
        assert!(
            !stream.trim_end().ends_with('X'),
            "tshark sees a problem in\n{said}"
        );
    }
}

/// ffmpeg sends a tone as one codec, and hears it as another.
fn tone_goes_through(codec_in: &Codec, codec_out: &Codec) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let hear_at = free_port();
    let (mut running, directory) =
        Running::start(&config(codec_in, codec_out, listen, hear_at), &[]);
    running.wait_for("running");

    let sdp = directory.path().join("hear.sdp");
    std::fs::write(
        &sdp,
        format!(
            "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=test\nc=IN IP4 127.0.0.1\nt=0 0\n\
             m=audio {hear_at} RTP/AVP {0}\na=rtpmap:{0} {1}\n",
            codec_out.payload_type, codec_out.rtpmap
        ),
    )
    .expect("written");
    let heard = directory.path().join("heard.raw");
    let hear = ffmpeg(|ffmpeg| {
        ffmpeg
            .args(["-protocol_whitelist", "file,rtp,udp", "-i"])
            .arg(&sdp)
            .args(["-t", "1", "-f", "s16le", "-ar", "8000", "-ac", "1"])
            .arg(&heard)
    });
    let tone = format!("sine=frequency={TONE_HZ}:sample_rate=48000");
    let say = ffmpeg(|ffmpeg| {
        ffmpeg
            .args(["-re", "-f", "lavfi", "-i", &tone])
            .args(codec_in.ffmpeg)
            .args(["-payload_type", &codec_in.payload_type.to_string()])
            .args([
                "-f",
                "rtp",
                &format!("rtp://{listen}?pkt_size={}", codec_in.packet_bytes),
            ])
    });
    let hear = hear.finish();
    drop(say);
    let samples = std::fs::read(&heard)
        .expect(&hear)
        .chunks_exact(2)
        .map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]]))
        .collect::<Vec<_>>();
    // About 8000: ffmpeg goes by time stamps, and without a jitter buffer these follow the arrival.
    assert!(
        samples.len() >= 7000,
        "one second was asked for: {} samples, {hear}",
        samples.len()
    );
    // The middle, because a codec may need a moment to settle.
    let hz = 2 * rising_crossings(&samples[2000..6000]);
    assert!(hz.abs_diff(TONE_HZ) <= 4, "{hz} Hz came back");
}

/// How often the signal goes from negative to positive.
fn rising_crossings(samples: &[i16]) -> u32 {
    samples
        .windows(2)
        .filter(|pair| pair[0] < 0 && pair[1] >= 0)
        .count() as u32
}

fn config(codec_in: &Codec, codec_out: &Codec, listen: SocketAddr, to_port: u16) -> String {
    format!(
        "[[stream]]\nname = \"test\"\nlisten = \"{listen}\"\ndestination = \"127.0.0.1:{to_port}\"\n\
         codec = \"{}\"\ncodec-out = \"{}\"\nptime = 20\n",
        codec_in.gateway, codec_out.gateway
    )
}

/// A running ffmpeg; killed when dropped.
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
    /// Waits until it is done; gives what it said.
    fn finish(mut self) -> String {
        let child = self.0.take().expect("not finished yet");
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

/// Its table of RTP streams.
fn tshark(pcap: &Path) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(pcap)
        .args([
            "-d",
            &format!("udp.port=={PCAP_PORT},rtp"),
            "-q",
            "-z",
            "rtp,streams",
        ])
        .output()
        .expect("this test needs tshark: sudo apt install tshark");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// Packets, 20 ms apart, as a capture file. Capturing for real would need privileges.
fn pcap_of(packets: &[Vec<u8>]) -> Vec<u8> {
    // https://www.ietf.org/archive/id/draft-gharris-opsawg-pcap-01.html; link type 101 is raw IP.
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 101_u32] {
        file.extend(word.to_le_bytes());
    }
    for (n, packet) in packets.iter().enumerate() {
        let length = 20 + 8 + packet.len() as u16;
        let micros = 20_000 * n as u32;
        for word in [
            micros / 1_000_000,
            micros % 1_000_000,
            length.into(),
            length.into(),
        ] {
            file.extend(word.to_le_bytes());
        }
        // IPv4 without checksum, from and to 127.0.0.1, then UDP without checksum.
        file.extend([0x45, 0]);
        file.extend(length.to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        for word in [PCAP_PORT, PCAP_PORT, length - 20, 0] {
            file.extend(word.to_be_bytes());
        }
        file.extend(packet);
    }
    file
}

/// In the capture file only.
const PCAP_PORT: u16 = 5004;
