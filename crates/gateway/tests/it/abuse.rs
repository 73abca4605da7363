//! Traffic from unknown and broken senders. The gateway does not amplify it or send it to third parties, and no stream stops.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::{Background, Received, call, free_port, knock, receive, rtp, socket};
use threadbare_streams::pipeline::Elements;

/// Counts the packets and bytes from a gateway that has already stopped. All of them are in the socket's buffer by then.
fn all_that_came(answer: &UdpSocket) -> (usize, usize) {
    answer.set_nonblocking(true).expect("non-blocking");
    let mut buffer = [0; 65_536];
    let (mut packets, mut bytes) = (0, 0);
    while let Ok(length) = answer.recv(&mut buffer) {
        packets += 1;
        bytes += length;
    }
    (packets, bytes)
}

/// Returns an RTP packet whose timestamp fits packets of 20 ms at 8000 Hz.
fn at_20_ms(payload_type: u8, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = rtp(payload_type, number, payload);
    packet[4..8].copy_from_slice(&(u32::from(number) * 160).to_be_bytes());
    packet
}

/// A sender sends few packets with large gaps in their numbers. The concealment may send as many packets and as much audio (in the outgoing
/// encoding) as the sender sent, and no more. 200 ms, the longest concealed loss, may come on top once.
#[test]
fn gaps_in_sequence_numbers_cause_no_amplification() {
    for keys in [
        "codec = \"PCMU\"\ncodec-out = \"PCMA\"",
        "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nptime = 5",
        "codec = \"PCMU\"\ncodec-out = \"L16/8000/1\"",
        "codec = \"PCMU\"\ncodec-out = \"L16/16000/1\"",
        "codec = \"PCMU\"\ncodec-out = \"Opus\"",
        "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nloudness-target = -23",
        "codec = \"Opus\"\ncodec-out = \"PCMA\"",
        "codec = \"Opus\"\ncodec-out = \"L16/48000/2\"",
        "codec = \"PCMU\"",
    ] {
        let payload_type = if keys.contains("\"Opus\"\ncodec-out") {
            96
        } else {
            0
        };
        for gap in [9, 50] {
            let (gateway, from, to, answer) = call(keys);
            let mut number = 0_u16;
            for n in 0..20 {
                // The first two packets are in sequence, which validates the source (RFC 3550, A.1).
                number += if n == 1 { 1 } else { gap + 1 };
                // One byte is also a valid Opus packet: 20 ms without content (RFC 6716, section 3.1).
                let packet = at_20_ms(payload_type, number, &[0x08]);
                from.send_to(&packet, to).expect("sent");
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(gateway);
            let (packets, bytes) = all_that_came(&answer);
            println!("{keys:?}, gap {gap}: {packets} packets, {bytes} bytes");
            let audio_ms = 2 * if payload_type == 96 { 20 * 20 } else { 20 } + 200;
            // The two limits are the bytes per millisecond in the outgoing encoding, and the number of packets. The widest encoding needs
            // three packets for 20 ms, and the shortest packet time is 5 ms.
            let (wide, packets_max) = match keys {
                keys if keys.contains("48000/2") => (192, audio_ms / 20 * 3),
                keys if keys.contains("L16") => (32, audio_ms / 5),
                _ => (16, audio_ms / 5),
            };
            let packets_max = packets_max + 20;
            let bytes_max = packets_max * 12 + audio_ms * wide;
            assert!(
                packets <= packets_max,
                "{keys}, gap {gap}: {packets} packets"
            );
            assert!(bytes <= bytes_max, "{keys}, gap {gap}: {bytes} bytes");
        }
    }
}

/// If packets of GSM, G.729 and other codecs come to streams of G.711, they are dropped. The stream continues as if they had not come.
/// G.722 and L16 are accepted if the payload type selects the codec.
#[test]
fn packets_with_other_payload_types_stop_no_stream() {
    for keys in [
        "codec-out = \"PCMA\"",
        "codec-out = \"L16/8000/2\"",
        "codec = \"PCMU\"\ncodec-out = \"PCMA\"",
        "codec = \"PCMU\"\ncodec-out = \"L16/8000/2\"",
    ] {
        let (_gateway, from, to, answer) = call(keys);
        let next = knock(&from, to, &answer, 0, 0, &[0xff; 160]);
        let mut expected = None;
        let others: &[u8] = if keys.contains("codec = ") {
            &[0, 3, 9, 18, 96, 10, 0, 0]
        } else {
            &[0, 3, 18, 96, 0, 0]
        };
        for (number, payload_type) in (next..).zip(others.iter().copied()) {
            // This is not silence in any codec. As G.711, it would be as loud as possible.
            let payload = match payload_type {
                0 => [0xff; 160],
                _ => [0x80; 160],
            };
            from.send_to(&at_20_ms(payload_type, number, &payload), to)
                .expect("sent");
            if payload_type != 0 {
                continue;
            }
            let heard = receive(&answer);
            let next = expected.get_or_insert(heard.sequence);
            assert_eq!((heard.ssrc, heard.sequence), (heard.ssrc, *next), "{keys}");
            *next = next.wrapping_add(1);
            assert!(is_silent(&heard), "{keys}: {heard:?}");
        }
    }
}

/// Whether the packet is silence of PCMA, or of L16 with dither in the least significant bit.
fn is_silent(packet: &Received) -> bool {
    match packet.payload_type {
        8 => packet.payload.iter().all(|byte| *byte == 0xd5),
        _ => packet
            .payload
            .chunks_exact(2)
            .all(|pair| i16::from_be_bytes([pair[0], pair[1]]).abs() <= 2),
    }
}

/// The configuration can set the payload type that a sender uses for a codec.
#[test]
fn only_the_configured_payload_type_is_accepted() {
    let (_gateway, from, to, answer) =
        call("codec = \"PCMU\"\ncodec-out = \"PCMA\"\npayload-type-in = 111");
    let next = knock(&from, to, &answer, 111, 0, &[0xff; 160]);
    from.send_to(&at_20_ms(0, next, &[0x80; 160]), to)
        .expect("sent");
    from.send_to(&at_20_ms(111, next + 1, &[0xff; 160]), to)
        .expect("sent");
    assert_eq!(receive(&answer).payload, [0xd5; 160]);
}

/// Starts a stream that answers any sender, with RTCP on the same port. Returns the sender's socket and the destination.
fn answering(keys: &str) -> (Background, UdpSocket, SocketAddr) {
    let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let gateway = Background::start(
        &format!(
            "[contexts]\nwait = 5\n[[stream]]\nname = \"test\"\nlisten = \"{to}\"\n\
             destination = \"latched\"\ncodec = \"PCMU\"\nrtcp = \"mux\"\nlatency = 0\n{keys}"
        ),
        Elements::Threadbare,
    );
    (gateway, socket(), to)
}

/// Returns an empty receiver report (RFC 3550, section 6.4.2): the eight bytes that are valid RTCP.
fn empty_report(ssrc: u32) -> Vec<u8> {
    let mut report = vec![0x80, 201, 0, 1];
    report.extend(ssrc.to_be_bytes());
    report
}

/// The relay does not send media to the source of the report, and it accepts the true peer without delay.
#[test]
fn a_forged_rtcp_report_does_not_set_the_peers_address() {
    for ssrc in [0x1234, 0x9999] {
        let (_gateway, peer, to) = answering("");
        let stranger = socket();
        stranger.send_to(&empty_report(ssrc), to).expect("sent");
        // The first packet does not prove the source, and the second is answered (RFC 3550, A.1).
        for number in 0..3 {
            peer.send_to(&at_20_ms(0, number, &[0x11; 160]), to)
                .expect("sent");
        }
        assert_eq!(receive(&peer).payload, [0x11; 160]);
        stranger.set_nonblocking(true).expect("non-blocking");
        let drawn = stranger.recv(&mut [0; 2048]);
        assert!(drawn.is_err(), "{drawn:?}");
    }
}

/// A program that was restarted sends from another port, with another SSRC. It is accepted half a second after its earlier packets have
/// stopped, and need not wait three seconds.
#[test]
fn a_restarted_sender_is_accepted() {
    let (_gateway, peer, to) = answering("");
    for number in 0..10 {
        peer.send_to(&at_20_ms(0, number, &[0x11; 160]), to)
            .expect("sent");
    }
    receive(&peer);
    let again = socket();
    again
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a valid time-out");
    let mut number = 500;
    let mut answer = [0; 2048];
    while again.recv(&mut answer).is_err() {
        // 100 packets of 20 ms are 2 s.
        assert!(number < 600, "not heard");
        let mut packet = at_20_ms(0, number, &[0x22; 160]);
        packet[8..12].copy_from_slice(&[1, 2, 3, 4]);
        again.send_to(&packet, to).expect("sent");
        number += 1;
    }
}

/// If the stream uses another payload type for telephone events, their default payload type is free for audio.
#[test]
fn audio_may_use_the_default_payload_type_of_events() {
    let keys = "codec = \"PCMU\"\ncodec-out = \"L16/8000/2\"\npayload-type-in = 101\ndtmf-payload-type = 100";
    let (_gateway, from, to, answer) = call(keys);
    let next = knock(&from, to, &answer, 101, 0, &[0xff; 160]);
    for number in next..next + 5 {
        from.send_to(&at_20_ms(101, number, &[0xff; 160]), to)
            .expect("sent");
        let heard = receive(&answer);
        assert!(is_silent(&heard), "{heard:?}");
    }
}

/// While the caller is silent, for example on hold, other senders may take its place. An excluded sender is never heard.
#[test]
fn silent_caller_is_not_replaced_by_an_excluded_sender() {
    for (keys, takes_over) in [
        ("sources = [\"127.0.0.1\"]", false),
        ("latch-window = 1", false),
        ("", true),
    ] {
        let keys = format!("codec = \"PCMU\"\ncodec-out = \"PCMA\"\n{keys}");
        let (_gateway, from, to, answer) = call(&keys);
        knock(&from, to, &answer, 0, 0, &[0xff; 160]);
        // This address stands for another host. If it were not excluded, it would become the peer after three seconds of silence.
        let stranger = std::net::UdpSocket::bind("127.0.0.2:0").expect("loopback has it");
        answer
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a valid time-out");
        let (start, mut number, mut heard) = (Instant::now(), 0_u16, false);
        while !heard && start.elapsed() < Duration::from_secs(if takes_over { 30 } else { 5 }) {
            let mut packet = at_20_ms(0, number, &[0x11; 160]);
            packet[8..12].copy_from_slice(&[9; 4]);
            stranger.send_to(&packet, to).expect("sent");
            number += 1;
            heard = answer.recv(&mut [0; 2048]).is_ok();
        }
        assert_eq!(heard, takes_over, "{keys}");
    }
}
