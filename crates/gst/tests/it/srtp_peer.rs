//! SRTP of `threadbare-rtp` with an independent peer: the stock elements `srtpenc` and `srtpdec`, which use libsrtp.

use std::sync::mpsc::Receiver as Queue;
use std::sync::mpsc::channel;

use crate::common::*;
use gst::prelude::*;
use threadbare_rtp::srtp::{
    MASTER_KEY_BYTES_MAX, MasterKey, RTCP_TRAILER_BYTES_MAX, RTP_TRAILER_BYTES_MAX, Receiver,
    Sender, Suite,
};

const SSRC: u32 = 0x0a0b_0c0d;
/// Number of packets. The sequence number wraps, and the rollover counter increases.
const PACKETS: u16 = 200;
const FIRST: u16 = 65_400;

/// Returns the suite as the elements name it: cipher, authentication of RTP, authentication of RTCP.
fn words(suite: Suite) -> (&'static str, &'static str, &'static str) {
    match suite {
        Suite::AesCm128HmacSha1_80 => ("aes-128-icm", "hmac-sha1-80", "hmac-sha1-80"),
        Suite::AesCm128HmacSha1_32 => ("aes-128-icm", "hmac-sha1-32", "hmac-sha1-80"),
        Suite::AesCm256HmacSha1_80 => ("aes-256-icm", "hmac-sha1-80", "hmac-sha1-80"),
        Suite::AeadAes128Gcm => ("aes-128-gcm", "null", "null"),
        Suite::AeadAes256Gcm => ("aes-256-gcm", "null", "null"),
    }
}

fn key(suite: Suite) -> MasterKey {
    let random: [u8; MASTER_KEY_BYTES_MAX] =
        std::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ 0x5c);
    MasterKey::from_random(suite, &random)
}

fn rtp(number: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend(FIRST.wrapping_add(number).to_be_bytes());
    packet.extend((u32::from(number) * 160).to_be_bytes());
    packet.extend(SSRC.to_be_bytes());
    packet.extend((0..160).map(|at: u16| at.wrapping_mul(number) as u8));
    packet
}

/// Returns a sender report without blocks (RFC 3550, section 6.4.1).
fn rtcp(number: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 200, 0, 6];
    packet.extend(SSRC.to_be_bytes());
    packet.extend((0..20).map(|at: u16| at.wrapping_mul(number) as u8));
    packet
}

/// An element between two pads of ours.
struct Way {
    element: gst::Element,
    feed: gst::Pad,
    /// The output.
    out: Queue<Vec<u8>>,
    /// Holds the pad that the element pushes to.
    _drain: gst::Pad,
}

impl Way {
    /// Uses pads of these names; the first may be a request pad.
    fn new(element: gst::Element, sink: &str, src: &str, caps: &gst::Caps) -> Way {
        let sink = element
            .static_pad(sink)
            .or_else(|| element.request_pad_simple(sink))
            .expect("a sink pad");
        let (send, out) = channel();
        let drain = gst::Pad::builder(gst::PadDirection::Sink)
            .chain_function(move |_, _, buffer| {
                let map = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
                let _ = send.send(map.to_vec());
                Ok(gst::FlowSuccess::Ok)
            })
            .event_function(|_, _, _| true)
            .build();
        drain.set_active(true).unwrap();
        element
            .static_pad(src)
            .expect("a source pad")
            .link(&drain)
            .unwrap();
        let feed = gst::Pad::builder(gst::PadDirection::Src).build();
        feed.set_active(true).unwrap();
        feed.link(&sink).unwrap();
        element.set_state(gst::State::Playing).unwrap();
        assert!(feed.push_event(gst::event::StreamStart::new("a-stream")));
        assert!(feed.push_event(gst::event::Caps::new(caps)));
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        assert!(feed.push_event(gst::event::Segment::new(&segment)));
        Way {
            element,
            feed,
            out,
            _drain: drain,
        }
    }

    /// Returns the element's output for a packet. The element answers before the push returns.
    fn push(&self, packet: &[u8]) -> Option<Vec<u8>> {
        self.feed
            .push(gst::Buffer::from_slice(packet.to_vec()))
            .unwrap();
        self.out.try_recv().ok()
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let _ = self.element.set_state(gst::State::Null);
    }
}

/// `srtpenc` with the suite's key.
fn encoder(suite: Suite, protocol: &str) -> Way {
    let (cipher, auth, rtcp_auth) = words(suite);
    let element = make("srtpenc");
    element.set_property_from_str("rtp-cipher", cipher);
    element.set_property_from_str("rtcp-cipher", cipher);
    element.set_property_from_str("rtp-auth", auth);
    element.set_property_from_str("rtcp-auth", rtcp_auth);
    element.set_property(
        "key",
        gst::Buffer::from_slice(key(suite).expose_secret().to_vec()),
    );
    let caps = gst::Caps::builder(format!("application/x-{protocol}")).field("ssrc", SSRC);
    Way::new(
        element,
        &format!("{protocol}_sink_0"),
        &format!("{protocol}_src_0"),
        &caps.build(),
    )
}

/// `srtpdec` with the suite's key.
fn decoder(suite: Suite, protocol: &str) -> Way {
    let (cipher, auth, rtcp_auth) = words(suite);
    let element = make("srtpdec");
    let caps = gst::Caps::builder(format!("application/x-s{protocol}"))
        .field("ssrc", SSRC)
        .field(
            "srtp-key",
            gst::Buffer::from_slice(key(suite).expose_secret().to_vec()),
        )
        .field("srtp-cipher", cipher)
        .field("srtcp-cipher", cipher)
        .field("srtp-auth", auth)
        .field("srtcp-auth", rtcp_auth);
    Way::new(
        element,
        &format!("{protocol}_sink"),
        &format!("{protocol}_src"),
        &caps.build(),
    )
}

#[test]
fn stock_decoder_accepts_our_srtp() {
    for suite in Suite::ALL {
        let (rtp_way, rtcp_way) = (decoder(suite, "rtp"), decoder(suite, "rtcp"));
        let mut sender = Sender::new(&key(suite));
        for number in 0..PACKETS {
            let mut buffer = [rtp(number), vec![0; RTP_TRAILER_BYTES_MAX]].concat();
            let bytes = sender.protect_rtp(&mut buffer, 172).unwrap();
            assert_eq!(rtp_way.push(&buffer[..bytes]), Some(rtp(number)), "{suite}");
            let mut buffer = [rtcp(number), vec![0; RTCP_TRAILER_BYTES_MAX]].concat();
            let bytes = sender.protect_rtcp(&mut buffer, 28).unwrap();
            assert_eq!(
                rtcp_way.push(&buffer[..bytes]),
                Some(rtcp(number)),
                "{suite}"
            );
        }
        assert_eq!(sender.sources().next().unwrap().rtp.unwrap().rollover(), 1);
    }
}

#[test]
fn srtp_of_the_stock_encoder_is_accepted() {
    for suite in Suite::ALL {
        let (rtp_way, rtcp_way) = (encoder(suite, "rtp"), encoder(suite, "rtcp"));
        let mut receiver = Receiver::new(&key(suite));
        for number in 0..PACKETS {
            let mut packet = rtp_way.push(&rtp(number)).expect("a packet");
            assert_ne!(packet[12..172], rtp(number)[12..], "{suite}");
            let bytes = receiver.unprotect_rtp(&mut packet).unwrap();
            assert_eq!(packet[..bytes], rtp(number), "{suite}");
            let mut packet = rtcp_way.push(&rtcp(number)).expect("a packet");
            let bytes = receiver.unprotect_rtcp(&mut packet).unwrap();
            assert_eq!(packet[..bytes], rtcp(number), "{suite}");
        }
        assert_eq!(
            receiver.sources().next().unwrap().rtp.unwrap().rollover(),
            1
        );
    }
}

/// With the same key and the same index, the bytes are the same.
#[test]
fn our_srtp_equals_the_stock_encoders() {
    for suite in Suite::ALL {
        let way = encoder(suite, "rtp");
        let mut sender = Sender::new(&key(suite));
        for number in 0..PACKETS {
            let mut buffer = [rtp(number), vec![0; RTP_TRAILER_BYTES_MAX]].concat();
            let bytes = sender.protect_rtp(&mut buffer, 172).unwrap();
            assert_eq!(
                way.push(&rtp(number)).as_deref(),
                Some(&buffer[..bytes]),
                "{suite}"
            );
        }
    }
}
