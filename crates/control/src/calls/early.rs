//! Media before the answer: ringback and announcements for the party that offers.
//!
//! The offer contains its author's address and codecs. The stream starts as if the other party had answered with a supported
//! codec but without an address. So nothing is sent to that party or accepted from it. The answer then changes the stream like
//! any later answer.

use std::fmt::Write;

use threadbare_rtp_types::side::Side;

use super::dialog::{Dialog, Exchange, Offered, Plan};
use super::live::Live;
use super::signals::{carry_out, take_over};
use super::{CallId, Calls, answer};
use crate::codec::is_supported;
use crate::sdp::Sdp;

impl<P> Calls<P> {
    /// Starts the audio streams of a dialog whose offer has no answer.
    pub(super) fn begin_early(&mut self, id: &CallId, at: usize) {
        let dialog = self.calls.get(id).and_then(|call| call.dialogs.get(at));
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
        self.finish_specs(id, at, &mut prepared);
        let Some(call) = self.calls.get_mut(id) else {
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
            let (actions, streams) = (&mut self.actions, &mut self.streams);
            carry_out(actions, streams, id, changed, recording.as_ref());
        }
    }
}

impl<P> Live<P> {
    /// The latest of these dialogs that has an unanswered offer by this side and no started streams.
    pub(super) fn find_early(&self, sides: &[(usize, Side)]) -> Option<usize> {
        let is_early = |(at, side): &&(usize, Side)| {
            let offer = self.dialogs[*at].unanswered();
            offer.is_some_and(|offer| offer.author == *side)
        };
        let found = sides.iter().rev().find(is_early)?;
        Some(found.0)
    }
}

impl<P> Dialog<P> {
    /// The first offer, if it has no answer and no stream has started.
    fn unanswered(&self) -> Option<&Exchange<P>> {
        let offer = self.offer.as_ref()?;
        let is_new = !self.is_answered && self.streams().next().is_none();
        is_new.then_some(offer)
    }
}

/// An answer as the other party could give it.
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
