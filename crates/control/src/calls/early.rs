//! Media before the answer: ringback and announcements for the party that offers.
//!
//! The offer contains its author's address and codecs. The stream starts as if the other party had answered with a supported codec, but
//! without an address. So nothing is sent to that party or accepted from it. The real answer then changes the stream, as any later answer
//! does.

use std::fmt::Write;

use super::dialog::{Exchange, Offered, Plan};
use super::reach;
use super::signals::{carry_out, take_over};
use super::{CallId, Calls, answer};
use crate::codec::is_supported;
use crate::sdp::Sdp;

/// Starts the audio streams of a dialog whose offer has no answer.
pub(super) fn begin<P>(calls: &mut Calls<P>, id: &CallId, at: usize) {
    let dialog = calls.calls.get(id).and_then(|call| call.dialogs.get(at));
    let Some(dialog) = dialog else {
        return;
    };
    let Some(exchange) = dialog.unanswered() else {
        return;
    };
    let Ok(sdp) = Sdp::parse(expected(exchange).as_bytes()) else {
        return;
    };
    let Ok(mut prepared) = answer::prepare(dialog, exchange, &exchange.options, sdp) else {
        return;
    };
    let other = exchange.author.other();
    for spec in prepared.specs.iter_mut().flatten() {
        spec.sides[other as usize].forget_party();
    }
    reach::finish_specs(calls, id, at, &mut prepared);
    let Some(call) = calls.calls.get_mut(id) else {
        return;
    };
    let mutes = call.mutes_of_all();
    let recording = call.recording.clone().filter(|_| !call.is_paused);
    let dialog = &mut call.dialogs[at];
    for (index, spec) in prepared.specs.into_iter().enumerate() {
        let Some(mut spec) = spec else {
            continue;
        };
        mutes.apply(&dialog.parties, dialog.echo, &mut spec);
        let changed = take_over(dialog, index, Some(spec));
        let (actions, streams) = (&mut calls.actions, &mut calls.streams);
        carry_out(actions, streams, id, changed, recording.as_ref());
    }
}

/// Returns an answer that the other party could give.
fn expected<P>(exchange: &Exchange<P>) -> String {
    let mut sdp =
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n".to_owned();
    for Offered { plan, .. } in &exchange.media {
        let audio = match plan {
            Plan::Audio(audio) => {
                let mut codecs = audio.codecs.codecs();
                let codec = codecs.find(|codec| codec.is_audio() && is_supported(codec));
                codec.map(|codec| (audio, codec))
            }
            Plan::Packets | Plan::Rejected | Plan::Direct => None,
        };
        // Writing to a string does not fail.
        let _ = match audio {
            Some((audio, codec)) => {
                let (number, protocol) = (codec.payload_type.0, audio.transports[1].name());
                let rtpmap = codec.rtpmap();
                let cryptos = audio.own.iter().map(|own| {
                    let value = own.to_value(&exchange.options.sdes);
                    format!("a=crypto:{value}\r\n")
                });
                let cryptos: String = cryptos.collect();
                write!(
                    sdp,
                    "m=audio 9 {protocol} {number}\r\na=rtpmap:{number} {rtpmap}\r\n{cryptos}"
                )
            }
            None => write!(sdp, "m=audio 0 RTP/AVP 0\r\n"),
        };
    }
    sdp
}
