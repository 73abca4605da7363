//! Converts requests of a session's peers to events, and events to requests. Names and fields are those of the stock elements.

use gst::prelude::*;
use threadbare_rtp::id::{SeqNum, Ssrc};
use threadbare_rtp::session::Event;
use threadbare_runtime::clock_now_ns;

use super::session::RtpSession;

/// Reports network feedback upstream from `pad`, to the elements that produce the packets.
pub(super) fn tell(pad: &gst::Pad, event: &Event) {
    match *event {
        Event::Collision { old, .. } => {
            push(
                pad,
                gst::Structure::builder("GstRTPCollision").field("ssrc", old.0),
            );
        }
        Event::Pli { media, .. } => push(pad, key_unit(media, false)),
        Event::Fir { media, .. } => push(pad, key_unit(media, true)),
        Event::Nack {
            media,
            first,
            following,
            ..
        } => {
            let others = (0..16).filter(|bit| following >> bit & 1 == 1);
            for step in std::iter::once(0).chain(others.map(|bit| bit + 1)) {
                let structure = gst::Structure::builder(RETRANSMISSION)
                    .field("seqnum", u32::from(first.plus(step).0))
                    .field("ssrc", media.0);
                push(pad, structure);
            }
        }
        _ => {}
    }
}

fn key_unit(media: Ssrc, all_headers: bool) -> gst::structure::Builder {
    gst::Structure::builder(KEY_UNIT)
        .field("ssrc", media.0)
        .field("all-headers", all_headers)
}

fn push(pad: &gst::Pad, structure: gst::structure::Builder) {
    pad.push_event(gst::event::CustomUpstream::new(structure.build()));
}

/// Sends an event from downstream to the peer as a request. Returns `None` if the event is not one that a peer can handle. `caps`
/// are those of the event's stream.
pub(super) fn ask(
    session: &RtpSession,
    caps: Option<&gst::Caps>,
    event: &gst::Event,
) -> Option<bool> {
    let structure = event
        .structure()
        .filter(|_| event.type_() == gst::EventType::CustomUpstream)?;
    let media = structure.get::<u32>("ssrc").ok().map(Ssrc);
    match structure.name().as_str() {
        KEY_UNIT => {
            let all_headers = structure.get::<bool>("all-headers").unwrap_or(false);
            let full = asks_in_full(caps, all_headers);
            Some(session.request_picture(media, full))
        }
        RETRANSMISSION => {
            let seq = structure.get::<u32>("seqnum").ok()?;
            let seq = SeqNum(u16::try_from(seq).ok()?);
            Some(session.request_packets(clock_now_ns(), media?, &[seq]))
        }
        _ => None,
    }
}

/// Whether to send a full intra request instead of a picture loss indication. The caps must show that the peer accepts full
/// requests. In addition, the event must request all headers, or the full request must be the only kind that the peer accepts.
fn asks_in_full(caps: Option<&gst::Caps>, all_headers: bool) -> bool {
    let takes = |field: &str| {
        let structure = caps.and_then(|caps| caps.structure(0));
        structure.is_some_and(|s| s.has_field(field) && s.get::<bool>(field) != Ok(false))
    };
    takes("rtcp-fb-ccm-fir") && (all_headers || !takes("rtcp-fb-nack-pli"))
}

const KEY_UNIT: &str = "GstForceKeyUnit";
const RETRANSMISSION: &str = "GstRTPRetransmissionRequest";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_picture_is_requested_if_the_peer_supports_it() {
        gst::init().expect("GStreamer starts");
        for (fields, of_all_headers, of_others) in [
            ("", false, false),
            (",rtcp-fb-nack-pli=true", false, false),
            (",rtcp-fb-ccm-fir=true", true, true),
            (",rtcp-fb-ccm-fir=true,rtcp-fb-nack-pli=true", true, false),
            (",rtcp-fb-ccm-fir=false,rtcp-fb-nack-pli=true", false, false),
        ] {
            let caps = format!("application/x-rtp,clock-rate=90000{fields}");
            let caps = caps.parse::<gst::Caps>().expect("caps");
            assert_eq!(asks_in_full(Some(&caps), true), of_all_headers, "{caps}");
            assert_eq!(asks_in_full(Some(&caps), false), of_others, "{caps}");
        }
        assert!(!asks_in_full(None, true));
    }
}
