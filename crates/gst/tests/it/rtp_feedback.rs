//! Early feedback (RFC 4585, RFC 5104, RFC 5506) at `ts-rtpsrc` and `ts-rtpsink`: requests for lost packets and pictures in both
//! directions. The peers are a test peer, a stock one, and an independent reader.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;

/// SSRC of the peer.
const SSRC: u32 = 7;

fn rtp(number: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend(number.to_be_bytes());
    packet.extend((u32::from(number) * 1800).to_be_bytes());
    packet.extend(SSRC.to_be_bytes());
    packet.extend([0xff; 50]);
    packet
}

fn rtcp_counted(element: &gst::Element, field: &str) -> u64 {
    let stats = element.property::<gst::Structure>("stats");
    let rtcp = stats.get::<gst::Structure>("rtcp").unwrap();
    rtcp.get::<u64>(field)
        .unwrap_or_else(|error| panic!("{field}: {error}"))
}

fn stat_held(source: &gst::Element) -> u32 {
    let stats = source.property::<gst::Structure>("stats");
    stats.get("num-held").unwrap()
}

/// A source of 50 pictures a second with these properties, a peer that has sent it `packets`, and its output.
struct Call {
    pipe: Pipe,
    seen: Receiver<Seen>,
    peer: (UdpSocket, UdpSocket),
    target: SocketAddr,
}

impl Call {
    fn new(line: &str, caps: &str, packets: &[u16]) -> Call {
        let pipe = Pipe::parse(&format!(
            "ts-rtpsrc name=src address=127.0.0.1 port=0 context={} {line} \
             caps=\"application/x-rtp,media=video,payload=96,clock-rate=90000,encoding-name=VP8{caps}\" \
             ! tee name=t ! fakesink name=sink sync=false async=false",
            context()
        ));
        let seen = watch(&pipe.pad("sink", "sink"));
        pipe.play();
        let target = rtp_address(&pipe.get("src"));
        let call = Call {
            pipe,
            seen,
            peer: pair(),
            target,
        };
        packets.iter().for_each(|number| call.send(*number));
        call
    }

    fn send(&self, number: u16) {
        self.peer.0.send_to(&rtp(number), self.target).unwrap();
    }

    fn next(&self) -> u16 {
        let bytes = bytes(&next_buffer(&self.seen));
        u16::from_be_bytes([bytes[2], bytes[3]])
    }

    /// Sends the request of a decoder that cannot continue.
    fn force_key_unit(&self, all_headers: bool) -> bool {
        let structure =
            gst::Structure::builder("GstForceKeyUnit").field("all-headers", all_headers);
        let event = gst::event::CustomUpstream::new(structure.build());
        self.pipe.pad("sink", "sink").push_event(event)
    }

    /// Returns the next packet of the peer's RTCP with feedback in it, of this type.
    fn feedback(&self, packet_type: u8) -> Vec<u8> {
        loop {
            let packet = received(&self.peer.1);
            if parts(&packet).any(|part| part[1] == packet_type) {
                return packet;
            }
        }
    }
}

const RTPFB: u8 = 205;
const PSFB: u8 = 206;

/// Splits a compound into its packets, by their lengths.
fn parts(compound: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = compound;
    std::iter::from_fn(move || {
        let length = rest.get(2..4)?;
        let bytes = (usize::from(u16::from_be_bytes([length[0], length[1]])) + 1) * 4;
        let (part, after) = rest.split_at(bytes);
        rest = after;
        Some(part)
    })
}

/// tshark's view of an RTCP packet: nothing malformed, and the requested fields.
fn dissected(packet: &[u8], fields: &[&str]) -> String {
    const PORT: u16 = 5005;
    // https://www.ietf.org/archive/id/draft-gharris-opsawg-pcap-01.html; link type 101 is raw IP.
    let length = 20 + 8 + packet.len() as u16;
    let mut file = Vec::new();
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101];
    for word in header
        .into_iter()
        .chain([0, 0, length.into(), length.into()])
    {
        file.extend(u32::to_le_bytes(word));
    }
    // IPv4 without checksum, from and to 127.0.0.1, then UDP without checksum.
    file.extend([0x45, 0]);
    file.extend(length.to_be_bytes());
    file.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    for word in [PORT, PORT, length - 20, 0] {
        file.extend(word.to_be_bytes());
    }
    file.extend(packet);
    let mut command = Command::new("tshark");
    command.args(["-r", "-", "-d", &format!("udp.port=={PORT},rtcp")]);
    command.args([
        "-T",
        "fields",
        "-e",
        "_ws.malformed",
        "-e",
        "rtcp.length_check",
    ]);
    for field in fields {
        command.args(["-e", field]);
    }
    let mut tshark = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs tshark: sudo apt install tshark");
    tshark.stdin.take().unwrap().write_all(&file).unwrap();
    let output = tshark.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let (malformed, rest) = said.trim_end_matches('\n').split_once('\t').unwrap();
    assert_eq!(malformed, "", "{said}");
    let (check, rest) = rest.split_once('\t').unwrap();
    assert!(matches!(check, "1" | "True"), "{said}");
    rest.to_owned()
}

#[test]
fn lost_picture_is_requested_in_the_peers_form() {
    let both = ",rtcp-fb-nack-pli=true,rtcp-fb-ccm-fir=true";
    for (reduced, caps, all_headers, is_full) in [
        (false, "", false, false),
        (true, "", true, false),
        (false, both, true, true),
        (true, both, false, false),
        (true, ",rtcp-fb-ccm-fir=true", false, true),
    ] {
        let line = format!("rtp-profile=avpf rtcp-reduced-size={reduced}");
        let call = Call::new(&line, caps, &[0, 1, 2]);
        // The peer's address is known when this packet leaves.
        call.next();
        assert!(call.force_key_unit(all_headers));
        let packet = call.feedback(PSFB);
        let types = parts(&packet).map(|part| part[1]).collect::<Vec<_>>();
        let alone: &[u8] = &[PSFB];
        let expected = if reduced { alone } else { &[201, 202, PSFB] };
        assert_eq!(types, expected);
        let last = parts(&packet).last().unwrap();
        let ssrc = SSRC.to_be_bytes();
        let format = if is_full { 4 } else { 1 };
        assert_eq!(last[0], 0x80 | format);
        if is_full {
            assert_eq!((&last[8..12], &last[12..16]), (&[0; 4][..], &ssrc[..]));
        } else {
            assert_eq!((&last[8..12], last.len()), (&ssrc[..], 12));
        }
        let read = dissected(&packet, &["rtcp.psfb.fmt"]);
        assert_eq!(read, format.to_string());
        let source = call.pipe.get("src");
        let counted = ["sent-pli-count", "sent-fir-count"].map(|name| rtcp_counted(&source, name));
        assert_eq!(counted, [u64::from(!is_full), u64::from(is_full)]);
    }
}

#[test]
fn a_decoder_that_asks_for_each_frame_does_not_flood_the_network() {
    let call = Call::new("rtp-profile=avpf", "", &[0, 1, 2]);
    call.next();
    let asked = 100;
    for _ in 0..asked {
        call.force_key_unit(false);
    }
    call.feedback(PSFB);
    let source = call.pipe.get("src");
    // There is at most one early packet between two regular ones (RFC 4585, section 3.5.2).
    assert!(rtcp_counted(&source, "sent-pli-count") < asked / 4);
}

#[test]
fn without_the_avpf_profile_no_packet_is_requested_again() {
    let call = Call::new("", "", &[0, 1, 2]);
    call.next();
    assert!(!call.force_key_unit(true));
    // Only reports are sent, without feedback.
    let packet = received(&call.peer.1);
    assert!(parts(&packet).all(|part| !matches!(part[1], RTPFB | PSFB)));
    let source = call.pipe.get("src");
    assert_eq!(rtcp_counted(&source, "sent-pli-count"), 0);
    assert_eq!(rtcp_counted(&source, "feedback-dropped"), 0);
}

#[test]
fn lost_packets_are_requested_and_fill_their_gap() {
    let call = Call::new(
        "rtp-profile=avpf rtcp-reduced-size=true do-retransmission=true latency=60000 clock-skew=none",
        "",
        &[0, 1, 2, 4, 5, 7, 8],
    );
    // All requests are in one packet, unless this machine was busy while the packets were sent.
    let mut asked = BTreeSet::new();
    while asked.len() < 2 {
        let packet = call.feedback(RTPFB);
        assert_eq!(dissected(&packet, &["rtcp.rtpfb.fmt"]), "1");
        let last = parts(&packet).last().unwrap();
        assert_eq!(last[8..12], SSRC.to_be_bytes());
        for entry in last[12..].chunks(4) {
            let first = u16::from_be_bytes([entry[0], entry[1]]);
            let following = u16::from_be_bytes([entry[2], entry[3]]);
            let others = (0..16).filter(|bit| following >> bit & 1 == 1);
            asked.insert(first);
            asked.extend(others.map(|bit| first + bit + 1));
        }
    }
    assert_eq!(asked, BTreeSet::from([3, 6]));
    call.send(3);
    call.send(6);
    let source = call.pipe.get("src");
    eventually("all are there", || stat_held(&source) == 9);
    // With a latency of 0, held packets are due at once. The next packet releases them.
    source.set_property("latency", 0_u32);
    call.send(9);
    for number in 0..=9 {
        assert_eq!(call.next(), number);
    }
    assert_eq!(stat(&source, "num-lost"), 0);
    assert!(rtcp_counted(&source, "sent-nack-count") >= 2);
}

#[test]
fn retransmission_without_the_profile_causes_a_warning() {
    let call = Call::new("do-retransmission=true", "", &[0, 1]);
    let warning = text(&call.pipe.expect(gst::MessageType::Warning));
    assert!(
        warning.contains("has no effect without rtp-profile=avpf"),
        "{warning}"
    );
}

#[test]
fn either_element_of_a_session_may_set_the_profile() {
    let name = context();
    let peer = socket();
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let reports = socket();
    let sink = format!(
        "t. ! queue ! ts-rtpsink host=127.0.0.1 port={} rtcp-port={} session={name} rtp-profile=avpf",
        port(&peer),
        port(&reports),
    );
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={name} session={name} \
         caps=application/x-rtp,clock-rate=90000 ! tee name=t ! fakesink name=sink sync=false async=false {sink}"
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let source = pipe.get("src");
    for number in 0..3 {
        peer.send_to(&rtp(number), rtp_address(&source)).unwrap();
    }
    next_buffer(&seen);
    let structure = gst::Structure::new_empty("GstForceKeyUnit");
    let event = gst::event::CustomUpstream::new(structure);
    assert!(pipe.pad("sink", "sink").push_event(event));
    eventually("the request is sent", || {
        rtcp_counted(&source, "sent-pli-count") == 1
    });
}

/// Returns the custom events that go upstream through a pad: name and SSRC, and the number if it is about a packet.
fn watch_upstream(pad: &gst::Pad) -> Receiver<(String, u32, Option<u32>)> {
    let (send, seen) = channel();
    pad.add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
        if let Some(gst::PadProbeData::Event(event)) = &info.data
            && event.type_() == gst::EventType::CustomUpstream
            && let Some(structure) = event.structure()
            && let Ok(ssrc) = structure.get("ssrc")
        {
            let seq = structure.get("seqnum").ok();
            let _ = send.send((structure.name().to_string(), ssrc, seq));
        }
        gst::PadProbeReturn::Ok
    });
    seen
}

#[test]
fn feedback_of_a_peer_goes_upstream_and_is_counted() {
    let peer = socket();
    let port = peer.local_addr().unwrap().port();
    let pipe = Pipe::parse(&format!(
        "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000 ! mulawenc \
         ! rtppcmupay name=pay ssrc=4711 ! ts-rtpsink name=sink host=127.0.0.1 port={port} context={} \
         rtp-profile=avpf rtcp-reduced-size=true",
        context()
    ));
    let events = watch_upstream(&pipe.pad("pay", "src"));
    pipe.play();
    let (_, from) = peer.recv_from(&mut [0; 1500]).unwrap();
    let to = SocketAddr::new(from.ip(), from.port() + 1);
    let ours = 4711_u32.to_be_bytes();
    let ask = |head: [u8; 4], media: [u8; 4], entries: &[u8]| {
        let packet = [&head[..], &SSRC.to_be_bytes(), &media, entries].concat();
        peer.send_to(&packet, to).unwrap();
    };
    let next = || events.recv_timeout(DEADLINE).expect("an event");
    let key_unit = ("GstForceKeyUnit".to_owned(), 4711, None);
    ask([0x81, PSFB, 0, 2], ours, &[]);
    assert_eq!(next(), key_unit);
    let fir = [&ours[..], &[9, 0, 0, 0]].concat();
    ask([0x84, PSFB, 0, 4], [0; 4], &fir);
    assert_eq!(next(), key_unit);
    // Send the same requests again: one about packets that are not ours, the others about ours.
    ask([0x84, PSFB, 0, 4], [0; 4], &fir);
    ask([0x81, RTPFB, 0, 3], [1; 4], &[0, 5, 0, 0]);
    ask([0x81, RTPFB, 0, 3], ours, &[0xff, 0xff, 0, 0b10]);
    for seq in [0xffff, 1] {
        let lost = "GstRTPRetransmissionRequest".to_owned();
        assert_eq!(next(), (lost, 4711, Some(seq)));
    }
    let sink = pipe.get("sink");
    let counted = ["recv-pli-count", "recv-fir-count", "recv-nack-count"];
    assert_eq!(counted.map(|name| rtcp_counted(&sink, name)), [1, 1, 2]);
    assert_eq!(rtcp_counted(&sink, "rtcp-errors"), 0);
}

/// Both directions lose every tenth packet.
#[test]
fn feedback_works_in_both_directions_with_a_stock_rtpbin() {
    let ours = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={name} context-wait=20 session={name} latency=500 \
         rtp-profile=avpf do-retransmission=true \
         ! ts-rtpg711 name=g711 encoding-name=PCMA ! ts-rtpsink name=sink session={name}",
        name = context()
    ));
    ours.play();
    let target = rtp_address(&ours.get("src"));
    let (rtp_in, rtcp_in) = pair();
    let [rtp_port, rtcp_port] = [&rtp_in, &rtcp_in].map(|s| s.local_addr().unwrap().port());
    drop((rtp_in, rtcp_in));
    // The stock peer sends from the ports that it receives on, as phones do.
    let stock = Pipe::parse(&format!(
        "rtpbin name=bin rtp-profile=avpf do-retransmission=true latency=500 \
         audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000 ! mulawenc \
         ! rtppcmupay name=pay ! bin.send_rtp_sink_0 \
         bin.send_rtp_src_0 ! netsim drop-probability=0.1 \
         ! udpsink name=out host=127.0.0.1 port={} sync=false async=false \
         bin.send_rtcp_src_0 ! udpsink name=rtcpout host=127.0.0.1 port={} sync=false async=false \
         udpsrc name=rtcpin port={rtcp_port} ! bin.recv_rtcp_sink_0 \
         udpsrc name=in port={rtp_port} \
         caps=application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMA,payload=8,rtcp-fb-nack-pli=true \
         ! netsim drop-probability=0.1 ! bin.recv_rtp_sink_0",
        target.port(),
        target.port() + 1
    ));
    send_from(&stock, "out", "in");
    send_from(&stock, "rtcpout", "rtcpin");
    let played = Arc::new(Mutex::new(None));
    let buffers = Arc::new(AtomicU32::new(0));
    stock.get("bin").connect_pad_added({
        let (pipeline, played, buffers) = (stock.0.downgrade(), played.clone(), buffers.clone());
        move |_, pad| {
            if !pad.name().starts_with("recv_rtp_src") {
                return;
            }
            let sink = make("fakesink");
            sink.set_property("async", false);
            pipeline.upgrade().unwrap().add(&sink).unwrap();
            sink.sync_state_with_parent().unwrap();
            let sink_pad = sink.static_pad("sink").unwrap();
            pad.link(&sink_pad).unwrap();
            let buffers = buffers.clone();
            sink_pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                buffers.fetch_add(1, Ordering::Relaxed);
                gst::PadProbeReturn::Ok
            });
            *played.lock().unwrap() = Some(sink_pad);
        }
    });
    let of_stock = watch_upstream(&stock.pad("pay", "src"));
    let of_ours = watch_upstream(&ours.pad("g711", "src"));
    stock.play();
    eventually("sound comes through", || {
        buffers.load(Ordering::Relaxed) > 10
    });
    // Feedback may not be sent at all times, so a request at a bad moment is dropped. Repeat it.
    let key_unit = || gst::event::CustomUpstream::new(gst::Structure::new_empty("GstForceKeyUnit"));
    let all_of = |seen: &Receiver<(String, u32, Option<u32>)>| {
        seen.try_iter().map(|(name, ..)| name).collect::<Vec<_>>()
    };
    let (mut heard_by_stock, mut heard_by_us) = (Vec::new(), Vec::new());
    let has_both = |names: &[String]| {
        let has = |name: &str| names.iter().any(|known| known == name);
        has("GstForceKeyUnit") && has("GstRTPRetransmissionRequest")
    };
    eventually("each has asked for a picture and for packets", || {
        ours.pad("sink", "sink").push_event(key_unit());
        let pad = played.lock().unwrap().clone().unwrap();
        pad.push_event(key_unit());
        heard_by_stock.extend(all_of(&of_stock));
        heard_by_us.extend(all_of(&of_ours));
        has_both(&heard_by_stock) && has_both(&heard_by_us)
    });
    let source = ours.get("src");
    for name in [
        "sent-pli-count",
        "sent-nack-count",
        "recv-pli-count",
        "recv-nack-count",
    ] {
        assert!(rtcp_counted(&source, name) > 0, "{name}");
    }
    assert_eq!(rtcp_counted(&source, "rtcp-errors"), 0);
    stock.assert_no_error();
    ours.assert_no_error();
}
