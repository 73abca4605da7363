//! The gateway between common programs: ffmpeg sends and receives, and tshark reads the packets.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Running, free_port, knock, rtp, socket};
use nix::sys::signal::Signal;
use rtp_types::RtpPacket;
use threadbare_rtp::srtp::{Crypto, MasterKey, RTP_TRAILER_BYTES_MAX, Sender, Suite};

/// A codec with its names in the gateway, in ffmpeg and in SDP.
struct Codec {
    gateway: &'static str,
    ffmpeg: &'static [&'static str],
    /// Maximum length of a packet, with its RTP header. ffmpeg fills a packet as far as possible.
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

/// Frequency of the tone that ffmpeg sends, so that it can be recognised at the other end.
const TONE_HZ: u32 = 440;

#[test]
fn pcmu_of_ffmpeg_is_converted_to_pcma() {
    tone_goes_through(&PCMU, &PCMA);
}

#[test]
fn pcma_of_ffmpeg_is_converted_to_pcmu() {
    tone_goes_through(&PCMA, &PCMU);
}

#[test]
fn pcmu_of_ffmpeg_is_converted_to_opus() {
    tone_goes_through(&PCMU, &OPUS);
}

#[test]
fn opus_of_ffmpeg_is_converted_to_pcma() {
    tone_goes_through(&OPUS, &PCMA);
}

#[test]
fn srtp_of_ffmpeg_is_converted_and_encrypted_with_another_key() {
    let keys = [1, 2].map(|seed: u8| {
        let random = std::array::from_fn(|at| seed.wrapping_mul(31).wrapping_add(at as u8));
        let key = MasterKey::from_random(Suite::AesCm128HmacSha1_80, &random);
        let crypto = Crypto {
            tag: 1,
            key,
            lifetime_packets: None,
        };
        crypto.to_value().to_string()
    });
    tone_goes_between(&PCMU, &PCMA, Some(&keys));
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
        std::fs::write(&pcap, pcap_of(&packets, RTP_PORT)).expect("written");
        let said = tshark(&pcap, &["-q", "-z", "rtp,streams"]);
        // There is one stream. Its line contains the number of lost packets, and a mark if there is a problem.
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

/// The recording has the packets as they were before their encryption, whether the stream converts them or forwards them unchanged.
#[test]
fn tshark_reads_the_recorded_packets_of_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let random = std::array::from_fn(|at| at as u8);
    let key = MasterKey::from_random(Suite::AeadAes128Gcm, &random);
    let crypto = Crypto {
        tag: 1,
        key: key.clone(),
        lifetime_packets: None,
    };
    let key_file = folder.path().join("key");
    let value = crypto.to_value();
    std::fs::write(&key_file, value.strip_prefix("1 ").expect("the tag")).expect("written");
    let (mut config, mut streams) = (String::new(), Vec::new());
    for (name, keys) in [
        (
            "converted",
            "codec = \"PCMU\"\ncodec-out = \"PCMA\"\n".to_owned(),
        ),
        (
            "decrypted",
            format!(
                "codec = \"auto\"\nsrtp-in-key-file = \"{}\"\n",
                key_file.display()
            ),
        ),
    ] {
        let (listen, to) = (SocketAddr::from(([127, 0, 0, 1], free_port())), socket());
        let pcap = folder.path().join(format!("{name}.pcap"));
        config += &format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{}\"\n{keys}\
             record = {{ to = \"{}\" }}\n",
            to.local_addr().expect("bound"),
            pcap.display()
        );
        streams.push((listen, to, pcap));
    }
    let (mut running, _folder) = Running::start(&config, &[]);
    running.wait_for("running");
    let (from, mut sender) = (socket(), Sender::new(&key));
    let payload = |number: u16| [number as u8 ^ 0x5a; 160];
    for number in 1..=50 {
        let packet = rtp(0, number, &payload(number));
        let mut buffer = packet.clone();
        buffer.resize(packet.len() + RTP_TRAILER_BYTES_MAX, 0);
        let bytes = sender.protect_rtp(&mut buffer, packet.len());
        buffer.truncate(bytes.expect("protected"));
        for ((listen, ..), packet) in streams.iter().zip([&packet, &buffer]) {
            from.send_to(packet, listen).expect("sent");
        }
        // The pace of a sender: the jitter buffer drops the packets of a much slower one.
        std::thread::sleep(Duration::from_millis(20));
    }
    // A packet that was sent on has passed the recording.
    for (_, to, _) in &streams {
        for _ in 1..=50 {
            to.recv(&mut [0; 2048]).expect("a packet in time");
        }
    }
    running.signal(Signal::SIGTERM);
    running.wait_for("stopped");
    for (listen, _, pcap) in &streams {
        let port = format!("udp.port=={},rtp", listen.port());
        let fields = [
            "-T",
            "fields",
            "-e",
            "udp.srcport",
            "-e",
            "udp.dstport",
            "-e",
            "rtp.seq",
            "-e",
            "rtp.payload",
        ];
        let said = tshark(pcap, &[&["-d", port.as_str()], &fields[..]].concat());
        let source = from.local_addr().expect("bound").port();
        // The first packet only makes its sender a candidate (docs/gateway.md, "Who is heard").
        let lines = (2..=50).map(|number| {
            let bytes = payload(number).map(|byte| format!("{byte:02x}")).concat();
            format!("{source}\t{}\t{number}\t{bytes}\n", listen.port())
        });
        assert_eq!(said.replace(':', ""), lines.collect::<String>());
    }
}

/// Reports come while packets go both ways, and a BYE at the end.
#[test]
fn tshark_reads_clean_rtcp() {
    let from = socket();
    let hear_at = free_port();
    let rtp_socket = std::net::UdpSocket::bind(("127.0.0.1", hear_at)).expect("free");
    let rtcp_socket = std::net::UdpSocket::bind(("127.0.0.1", hear_at + 1)).expect("free");
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (mut running, directory) = Running::start(&config(&PCMU, &PCMA, listen, hear_at), &[]);
    running.wait_for("running");
    let mut number = knock(&from, listen, &rtp_socket, 0, 0, &[0xff; 160]);
    rtcp_socket
        .set_read_timeout(Some(std::time::Duration::from_millis(20)))
        .expect("a valid time-out");
    let mut packets = Vec::new();
    let mut buffer = [0; 2048];
    // Send a packet every 20 ms until two reports have come. The second comes after at most 3.1 + 6.2 s (RFC 3550, section
    // 6.3.1).
    while packets.len() < 2 {
        assert!(number < 1000, "no report after 20 s");
        from.send_to(&rtp(0, number, &[0xff; 160]), listen)
            .expect("sent");
        number += 1;
        while let Ok(length) = rtcp_socket.recv(&mut buffer) {
            packets.push(buffer[..length].to_vec());
        }
    }
    running.signal(Signal::SIGTERM);
    running.wait_for("stopped");
    while let Ok(length) = rtcp_socket.recv(&mut buffer) {
        packets.push(buffer[..length].to_vec());
    }
    let pcap = directory.path().join("rtcp.pcap");
    std::fs::write(&pcap, pcap_of(&packets, RTCP_PORT)).expect("written");
    let bad = "rtcp.length_check==0 || _ws.malformed || _ws.expert.severity >= 6291456";
    assert_eq!(tshark(&pcap, &["-Y", bad]), "");
    // There are sender reports, names, and the BYE. Reports about received packets are sent to the sender of those packets.
    let types = tshark(&pcap, &["-T", "fields", "-e", "rtcp.pt", "-e", "rtcp.rc"]);
    let lines = types.lines().collect::<Vec<_>>();
    assert_eq!(lines.len(), packets.len(), "{types}");
    assert!(lines[0].starts_with("200,202\t0"), "{types}");
    assert!(lines[lines.len() - 1].starts_with("201,202,203"), "{types}");
}

/// ffmpeg sends a tone in one codec, and receives it in another.
fn tone_goes_through(codec_in: &Codec, codec_out: &Codec) {
    tone_goes_between(codec_in, codec_out, None);
}

/// [`tone_goes_through`], with SRTP if there are keys: values of `a=crypto` for the input and the output.
fn tone_goes_between(codec_in: &Codec, codec_out: &Codec, keys: Option<&[String; 2]>) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let hear_at = free_port();
    let key_files = tempfile::tempdir().expect("a folder");
    let mut text = config(codec_in, codec_out, listen, hear_at);
    for (setting, value) in ["srtp-in-key-file", "srtp-out-key-file"]
        .iter()
        .zip(keys.into_iter().flatten())
    {
        let file = key_files.path().join(setting);
        std::fs::write(&file, value.strip_prefix("1 ").expect("the tag")).expect("written");
        text += &format!("\n{setting} = \"{}\"\n", file.display());
    }
    let (profile, crypto) = match keys {
        Some([_, output]) => ("RTP/SAVP", format!("a=crypto:{output}\n")),
        None => ("RTP/AVP", String::new()),
    };
    let (mut running, directory) = Running::start(&text, &[]);
    running.wait_for("running");

    let sdp = directory.path().join("hear.sdp");
    std::fs::write(
        &sdp,
        format!(
            "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=test\nc=IN IP4 127.0.0.1\nt=0 0\n\
             m=audio {hear_at} {profile} {0}\na=rtpmap:{0} {1}\n{crypto}",
            codec_out.payload_type, codec_out.rtpmap
        ),
    )
    .expect("written");
    let heard = directory.path().join("heard.raw");
    let hear = ffmpeg(|ffmpeg| {
        ffmpeg
            .args(["-protocol_whitelist", "file,rtp,srtp,udp", "-i"])
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
            .args(["-f", "rtp"]);
        let scheme = match keys {
            Some([input, _]) => {
                let (_, key) = input.rsplit_once(':').expect("a key");
                ffmpeg.args([
                    "-srtp_out_suite",
                    "AES_CM_128_HMAC_SHA1_80",
                    "-srtp_out_params",
                    key,
                ]);
                "srtp"
            }
            None => "rtp",
        };
        ffmpeg.arg(format!(
            "{scheme}://{listen}?pkt_size={}",
            codec_in.packet_bytes
        ))
    });
    let hear = hear.finish();
    drop(say);
    running.signal(Signal::SIGTERM);
    let stats = running.wait_for("statistics");
    // ffmpeg sends a report of its clock with the first packet.
    assert!(
        keys.is_some() || stats["rtcp_received"].as_u64() >= Some(1),
        "{stats}"
    );
    let wrong = ["lost", "late", "rtcp_errors"].map(|key| &stats[key]);
    assert_eq!(wrong, [0, 0, 0], "{stats}");
    let samples = std::fs::read(&heard)
        .expect(&hear)
        .chunks_exact(2)
        .map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]]))
        .collect::<Vec<_>>();
    // There are about 8000 samples. The number varies, because ffmpeg follows the timestamps, and without a jitter buffer these follow the
    // arrival times.
    assert!(
        samples.len() >= 7000,
        "one second was asked for: {} samples, {hear}",
        samples.len()
    );
    // Use the middle, because a codec may need a moment to settle.
    let hz = 2 * rising_crossings(&samples[2000..6000]);
    assert!(hz.abs_diff(TONE_HZ) <= 4, "{hz} Hz came back");
}

/// The call begins after the gateway's first report. Because ffmpeg ends on a BYE of any SSRC, the reports must have the SSRC
/// of the later media.
#[test]
fn ffmpeg_listens_until_the_end() {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let hear_at = free_port();
    let (mut running, directory) = Running::start(&config(&PCMU, &PCMA, listen, hear_at), &[]);
    running.wait_for("running");
    // These reports come before the call.
    let rtcp = std::net::UdpSocket::bind(("127.0.0.1", hear_at + 1)).expect("free");
    rtcp.set_read_timeout(Some(crate::common::LIMIT))
        .expect("a time-out");
    rtcp.recv(&mut [0; 1500]).expect("a first report");
    drop(rtcp);
    let sdp = directory.path().join("hear.sdp");
    std::fs::write(
        &sdp,
        format!("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=test\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {hear_at} RTP/AVP 8\n"),
    )
    .expect("written");
    let heard = directory.path().join("heard.raw");
    let hear = ffmpeg(|ffmpeg| {
        ffmpeg
            .args(["-protocol_whitelist", "file,rtp,udp", "-i"])
            .arg(&sdp)
            .args(["-t", "7", "-f", "s16le"])
            .arg(&heard)
    });
    let say = ffmpeg(|ffmpeg| {
        ffmpeg
            .args(["-re", "-f", "lavfi", "-i", "sine=f=997:r=8000"])
            .args(PCMU.ffmpeg)
            .args(["-payload_type", "0", "-f", "rtp"])
            .arg(format!("rtp://{listen}?pkt_size=172"))
    });
    let said = hear.finish();
    drop(say);
    let samples = std::fs::metadata(&heard).expect(&said).len() / 2;
    // The audio lasts 7 s at 8000 Hz, and a report comes every 2.5 to 7.5 s.
    assert!(samples >= 55_000, "{samples} samples: {said}");
}

/// Returns the number of changes from negative to positive in the signal.
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

/// Runs tshark on a capture file. Returns its output.
fn tshark(pcap: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(pcap)
        .args(["-d", &format!("udp.port=={RTP_PORT},rtp")])
        .args(["-d", &format!("udp.port=={RTCP_PORT},rtcp")])
        .args(arguments)
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

/// Writes packets, 20 ms apart, as a capture file. Real capturing would need privileges.
fn pcap_of(packets: &[Vec<u8>], port: u16) -> Vec<u8> {
    // The format is described in https://www.ietf.org/archive/id/draft-gharris-opsawg-pcap-01.html, and link type 101 is raw IP.
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
        // Each packet has an IPv4 header without checksum, from and to 127.0.0.1, and a UDP header without checksum.
        file.extend([0x45, 0]);
        file.extend(length.to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        for word in [port, port, length - 20, 0] {
            file.extend(word.to_be_bytes());
        }
        file.extend(packet);
    }
    file
}

/// The destination port in the capture file.
const RTP_PORT: u16 = 5004;
const RTCP_PORT: u16 = 5005;
