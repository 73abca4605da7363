//! The codec rules. Each has a quotation from the public documentation of the ng protocol (docs/ng_control_protocol.md of rtpengine,
//! "Optionally included codec manipulations" and "Transcoding").

use proptest::prelude::*;
use threadbare_control::codec::{Answer, NoCommonCodec, Offer, Route, Rules, Then, answer, offer};
use threadbare_control::ng::{Dictionary, Request};
use threadbare_control::sdp::{Codec, Sdp};

const OPUS: &str = "96 opus/48000/2";
const EVENTS: &str = "101 telephone-event/8000";
/// A codec that cannot be transcoded here.
const G729: &str = "18 G729/8000";
const PCMU: &str = "0 PCMU/8000";
const PCMA: &str = "8 PCMA/8000";
const G722: &str = "9 G722/8000";

/// Creates the codecs of a list of `NUMBER RTPMAP`.
fn codecs(list: &[&str]) -> Vec<Codec> {
    let numbers: Vec<_> = list
        .iter()
        .filter_map(|one| one.split(' ').next())
        .collect();
    let maps: String = list.iter().map(|one| format!("a=rtpmap:{one}\n")).collect();
    let text = format!("v=0\nm=audio 4000 RTP/AVP {}\n{maps}", numbers.join(" "));
    Sdp::parse(text.as_bytes()).unwrap().media[0].codecs()
}

fn shown<'a>(codecs: impl IntoIterator<Item = &'a Codec>) -> Vec<String> {
    let one = |codec: &Codec| format!("{} {}", codec.payload_type.0, codec.rtpmap());
    codecs.into_iter().map(one).collect()
}

fn rules(flags: &str) -> Rules {
    let mut dictionary = Dictionary::new();
    dictionary.push("command", "offer");
    dictionary.push("rtpp-flags", flags.to_owned());
    Rules::of_request(&Request::new(dictionary).unwrap()).unwrap()
}

fn offered(list: &[&str], flags: &str) -> Offer {
    offer(&codecs(list), &rules(flags))
}

fn outgoing(list: &[&str], flags: &str) -> Vec<String> {
    shown(offered(list, flags).codecs())
}

fn answered(offer: &Offer, list: &[&str]) -> Answer {
    answer(offer, &codecs(list), false).unwrap()
}

/// Describes routes, for example as `RECEIVED passes as SENT`.
fn routes(routes: &[Route]) -> Vec<String> {
    let one = |route: &Route| {
        let then = match &route.then {
            Then::Pass(number) => format!("passes as {}", number.0),
            Then::Transcode(codec) => {
                format!("becomes {} {}", codec.payload_type.0, codec.rtpmap())
            }
            Then::Tones => "is heard as tones".to_owned(),
            Then::Drop => "is dropped".to_owned(),
        };
        format!("{} {then}", route.received.payload_type.0)
    };
    routes.iter().map(one).collect()
}

#[test]
fn without_rules_the_parties_negotiate_the_codecs() {
    // "Normally rtpengine leaves codec negotiation up to the clients involved in the call and does not interfere. In this case, if the clients
    // fail to agree on a codec, the call will fail."
    let list = [G729, PCMU, EVENTS];
    let offer = offered(&list, "");
    assert_eq!(shown(offer.codecs()), list);
    assert!(!offer.is_engaged);
    let found = answered(&offer, &[G729, "97 telephone-event/8000"]);
    assert_eq!(shown(&found.to_offerer), [G729, EVENTS]);
    // Payload types belong to the side that gave them (RFC 3264, section 5.1).
    assert_eq!(
        routes(&found.from_offerer),
        ["18 passes as 18", "101 passes as 97"]
    );
    assert_eq!(
        routes(&found.from_answerer),
        ["18 passes as 18", "97 passes as 101"]
    );
    assert_eq!(found.detects_keys, [false; 2]);
    for list in [&[PCMA][..], &[EVENTS], &[]] {
        assert_eq!(answer(&offer, &codecs(list), false), Err(NoCommonCodec));
    }
}

#[test]
fn strip_removes_codecs_from_the_offer() {
    // "the name of a codec or RTP payload type that should be removed from the SDP"
    let list = [OPUS, PCMU, PCMA, EVENTS];
    assert_eq!(
        outgoing(&list, "codec-strip-PCMU codec-strip-opus"),
        [PCMA, EVENTS]
    );
    assert_eq!(
        outgoing(&list, "codec-strip-8 codec-strip-telephone-event"),
        [OPUS, PCMU]
    );
    // "the codec will only be stripped if all of the format parameters match"
    assert_eq!(outgoing(&list, "codec-strip-opus/48000"), list);
    assert_eq!(outgoing(&list, "codec-strip-opus/48000/2"), list[1..]);
    // "are treated as if they had never been in the SDP"
    let offer = offered(&list, "codec-strip-PCMU codec-transcode-G722");
    assert_eq!(shown(&answered(&offer, &[G722]).to_offerer), [OPUS]);
}

#[test]
fn strip_all_keeps_excepted_codecs_or_is_ignored_if_none_is_left() {
    let list = [PCMU, PCMA, EVENTS];
    // "to block all codecs (strip -> all or mask -> all) except the ones given in the except whitelist"
    assert_eq!(outgoing(&list, "codec-strip-all codec-except-PCMA"), [PCMA]);
    // "Codecs that were not present in the original list of codecs offered by the client will be ignored."
    assert_eq!(
        outgoing(&list, "codec-strip-all codec-except-PCMA codec-except-G722"),
        [PCMA]
    );
    // "it is an error to strip all codecs and leave none that could be offered. In this case, the original list of codecs will be left
    // unchanged."
    for flags in [
        "codec-strip-all",
        "codec-strip-full",
        "codec-strip-all codec-offer-telephone-event",
    ] {
        let offer = offered(&list, flags);
        assert_eq!(shown(offer.codecs()), list, "{flags}");
        assert!(offer.is_unchanged && !offer.is_engaged);
    }
}

#[test]
fn offer_changes_the_order() {
    // "the first codec listed in offer will be the primary (preferred) codec in the output SDP, even if it wasn't originally so"
    let list = [PCMU, PCMA, EVENTS];
    assert_eq!(
        outgoing(&list, "codec-strip-all codec-offer-PCMA codec-offer-PCMU"),
        [PCMA, PCMU]
    );
    assert_eq!(outgoing(&list, "codec-offer-PCMA"), [PCMA, PCMU, EVENTS]);
    // "codec-except: same as codec-offer but preserves original order" (Kamailio).
    assert_eq!(
        outgoing(&list, "codec-strip-all codec-except-PCMA codec-except-PCMU"),
        [PCMU, PCMA]
    );
}

#[test]
fn transcode_adds_codecs() {
    // "allows codecs to be added to the list of offered codecs even if they were not present in the original list"
    let offer = offered(&[PCMU, EVENTS], "codec-transcode-PCMA codec-transcode-G722");
    assert_eq!(shown(offer.codecs()), [PCMU, PCMA, G722, EVENTS]);
    assert!(offer.is_engaged);
    let found = answered(&offer, &[PCMA]);
    assert_eq!(shown(&found.to_offerer), [PCMU]);
    assert_eq!(routes(&found.from_offerer), ["0 becomes 8 PCMA/8000"]);
    assert_eq!(routes(&found.from_answerer), ["8 becomes 0 PCMU/8000"]);
    // "Codecs that are supported by both sides will simply be passed through transparently"
    let found = answered(&offer, &[PCMU, PCMA]);
    assert_eq!(routes(&found.from_offerer), ["0 passes as 0"]);
    assert_eq!(
        routes(&found.from_answerer),
        ["0 passes as 0", "8 becomes 0 PCMU/8000"]
    );
    // "automatically stripping all unsupported codecs from the list of offered codecs"
    assert_eq!(
        outgoing(&[G729, PCMU], "codec-transcode-PCMA"),
        [PCMU, PCMA]
    );
    // "If all codecs given in the transcode list were present in the original list of offered codecs, then no transcoding will be done."
    let offer = offered(&[G729, PCMU], "codec-transcode-PCMU");
    assert_eq!(shown(offer.codecs()), [G729, PCMU]);
    assert!(!offer.is_engaged);
    // "Only codecs that are supported for both decoding and encoding can be added in this manner."
    let offer = offered(&[PCMU], "codec-transcode-G729");
    assert_eq!(
        (shown(offer.codecs()), offer.unsupported.len()),
        (vec![PCMU.to_owned()], 1)
    );
}

#[test]
fn transcode_adds_no_codec_if_no_offered_codec_can_be_converted() {
    for flags in [
        "codec-transcode-PCMU",
        "codec-transcode-PCMU codec-mask-all",
        "codec-transcode-telephone-event",
        "codec-transcode-PCMU codec-strip-PCMA",
    ] {
        let list: &[&str] = if flags.contains("strip") {
            &[G729, PCMA]
        } else {
            &[G729]
        };
        let offer = offered(list, flags);
        assert_eq!(shown(offer.codecs())[0], G729, "{flags}");
        assert!(!shown(offer.codecs()).contains(&PCMU.to_owned()), "{flags}");
        let found = answered(&offer, &[G729]);
        assert_eq!(routes(&found.from_offerer), ["18 passes as 18"], "{flags}");
    }
    assert_eq!(
        offered(&[G729], "codec-transcode-PCMU").unsupported.len(),
        1
    );
}

#[test]
fn transcode_after_strip_all_restores_an_offered_codec_and_adds_others() {
    // "if the strip=all or mask=all option has been used and the transcode option is used on a codec that was originally present in the
    // offer, then rtpengine will treat this codec the same as if it had been used with the offer option"
    for flags in [
        "codec-strip-all codec-transcode-PCMU",
        "codec-mask-all codec-transcode-PCMU",
    ] {
        let offer = offered(&[PCMU, PCMA], flags);
        assert_eq!(shown(offer.codecs()), [PCMU], "{flags}");
        assert!(!offer.outgoing[0].is_added && !offer.is_engaged, "{flags}");
    }
    // "if a codec has been stripped explicitly by name [...] a new transcoded instance of the codec will be inserted into the offer. (This
    // special exception does not apply to mask=full or strip=full.)"
    for flags in [
        "codec-strip-PCMU codec-transcode-PCMU",
        "codec-mask-PCMU codec-transcode-PCMU",
        "codec-mask-full codec-except-PCMA codec-transcode-PCMU",
    ] {
        let offer = offered(&[PCMU, PCMA], flags);
        assert_eq!(shown(offer.codecs()), [PCMA, PCMU], "{flags}");
        assert!(offer.outgoing[1].is_added && offer.is_engaged, "{flags}");
    }
}

#[test]
fn transcode_flags_set_the_order_after_strip_mask_or_consume_all() {
    // A codec that stays because it is in `transcode` counts as one of `offer`, whose order is the order of preference. The same applies to
    // added codecs.
    for all in ["strip", "mask", "consume"] {
        let flags = format!("codec-{all}-all codec-transcode-G722 codec-transcode-PCMA");
        assert_eq!(outgoing(&[PCMU, PCMA], &flags), [G722, PCMA], "{flags}");
        // The codecs of `offer` come first.
        let flags = format!("{flags} codec-offer-PCMU");
        assert_eq!(
            outgoing(&[PCMA, PCMU], &flags),
            [PCMU, G722, PCMA],
            "{flags}"
        );
    }
    // Codecs that stay anyway precede those of `transcode` too, as in rtpengine.
    let flags = "codec-mask-all codec-except-PCMA codec-transcode-G722 codec-transcode-PCMU";
    assert_eq!(outgoing(&[PCMU, PCMA], flags), [PCMA, G722, PCMU]);
    // Without `all`, the offerer's preference stays.
    assert_eq!(
        outgoing(&[PCMU, PCMA], "codec-transcode-G722 codec-transcode-PCMA"),
        [PCMU, PCMA, G722]
    );
}

#[test]
fn a_masked_codec_is_not_offered_but_transcoded() {
    // The documentation's example, with PCMA in place of G.723: "if an offer advertises Opus and the options mask=opus, transcode=G723 are
    // given, then the rewritten outgoing offer will contain only G.723 as offered codec, and transcoding will happen".
    let offer = offered(&[OPUS], "codec-mask-opus codec-transcode-PCMA");
    assert_eq!(shown(offer.codecs()), [PCMA]);
    let found = answered(&offer, &[PCMA]);
    assert_eq!(shown(&found.to_offerer), [OPUS]);
    assert_eq!(routes(&found.from_offerer), ["96 becomes 8 PCMA/8000"]);
    assert_eq!(routes(&found.from_answerer), ["8 becomes 96 opus/48000/2"]);
    // "if only transcode=G723 were given, then the rewritten outgoing offer would contain both Opus and G.723"
    assert_eq!(outgoing(&[OPUS], "codec-transcode-PCMA"), [OPUS, PCMA]);
    // "if strip=opus, transcode=G723 were given, then Opus would be unavailable for transcoding"
    let offer = offered(&[OPUS], "codec-strip-opus codec-transcode-PCMA");
    assert_eq!(answer(&offer, &codecs(&[PCMA]), false), Err(NoCommonCodec));
}

#[test]
fn a_consumed_codec_is_not_offered_and_enables_transcoding() {
    // "Identical to mask but enables the transcoding engine even if no other transcoding related options are given."
    let masked = offered(&[OPUS, PCMU], "codec-mask-opus");
    let consumed = offered(&[OPUS, PCMU], "codec-consume-opus");
    assert_eq!(
        (shown(masked.codecs()), masked.is_engaged),
        (vec![PCMU.to_owned()], false)
    );
    assert_eq!(
        (shown(consumed.codecs()), consumed.is_engaged),
        (vec![PCMU.to_owned()], true)
    );
    assert_eq!(shown(&answered(&masked, &[PCMU]).to_offerer), [PCMU]);
    let found = answered(&consumed, &[PCMU]);
    assert_eq!(shown(&found.to_offerer), [OPUS, PCMU]);
    assert_eq!(
        routes(&found.from_offerer),
        ["96 becomes 0 PCMU/8000", "0 passes as 0"]
    );
}

#[test]
fn an_accepted_codec_is_offered_and_used_even_if_refused() {
    // "a codec listed under accept will still be offered to the remote peer, but if the remote peer rejects it, it will still be accepted
    // towards the original offerer and then used for transcoding". The order is that of the offerer.
    let list = [OPUS, PCMU, EVENTS];
    let offer = offered(&list, "codec-accept-opus");
    assert_eq!(shown(offer.codecs()), list);
    let found = answered(&offer, &[PCMU]);
    assert_eq!(shown(&found.to_offerer), [OPUS, PCMU]);
    assert_eq!(
        routes(&found.from_offerer),
        ["96 becomes 0 PCMU/8000", "0 passes as 0"]
    );
    // A codec that cannot be transcoded is still offered, together with the others.
    let passed = [G729, PCMU, EVENTS];
    for flags in ["codec-accept-G729", "codec-accept-PCMU", "always-transcode"] {
        let offer = offered(&passed, flags);
        assert_eq!(shown(offer.codecs()), passed, "{flags}");
        // If the other side accepts only this codec, the relay has nothing to convert to.
        let found = answered(&offer, &[G729]);
        assert_eq!(shown(&found.to_offerer), [G729], "{flags}");
        assert_eq!(routes(&found.from_offerer), ["18 passes as 18"], "{flags}");
        assert_eq!(found.detects_keys, [false; 2], "{flags}");
    }
    assert!(!offered(&passed, "codec-accept-G729").is_engaged);
    assert_eq!(outgoing(&passed, "codec-consume-PCMU"), [G729, EVENTS]);
    // "always transcode: Legacy flag, synonymous to codec-accept=all."
    assert_eq!(rules("always-transcode"), rules("codec-accept=all"));
    let offer = offered(&list, "always-transcode");
    assert_eq!(
        shown(&answered(&offer, &[PCMU]).to_offerer),
        [OPUS, PCMU, EVENTS]
    );
}

#[test]
fn events_become_tones_and_tones_become_events() {
    // "In the forward direction, DTMF transcoding is enabled by adding the codec telephone-event to the list of codecs offered for
    // transcoding."
    let offer = offered(&[PCMU], "codec-transcode-telephone-event");
    assert_eq!(shown(offer.codecs()), [PCMU, "96 telephone-event/8000"]);
    let found = answered(&offer, &[PCMU, "96 telephone-event/8000"]);
    assert_eq!(shown(&found.to_offerer), [PCMU]);
    assert_eq!(
        routes(&found.from_answerer),
        ["0 passes as 0", "96 is heard as tones"]
    );
    assert_eq!(found.detects_keys, [true, false]);
    // "In the reverse direction [...] always transcode [...] If the receiving RTP client then rejects the offered telephone-event codec, DTMF
    // transcoding is then enabled".
    let offer = offered(&[PCMU, EVENTS], "always-transcode");
    let found = answered(&offer, &[PCMU]);
    assert_eq!(shown(&found.to_offerer), [PCMU, EVENTS]);
    assert_eq!(
        routes(&found.from_offerer),
        ["0 passes as 0", "101 is heard as tones"]
    );
    assert_eq!(found.detects_keys, [false, true]);
}

#[test]
fn events_have_the_clock_of_their_audio() {
    // The clock rate of Opus is 48 kHz (RFC 7587, section 4.1). rtpengine 10.5.3.5 offers the same codecs, with payload type 97.
    let offer = offered(&[PCMU, EVENTS], "codec-transcode-opus");
    let events = "97 telephone-event/48000";
    assert_eq!(shown(offer.codecs()), [PCMU, OPUS, EVENTS, events]);
    let found = answered(&offer, &[OPUS, events]);
    assert_eq!(shown(&found.to_offerer), [PCMU, EVENTS]);
    assert_eq!(
        routes(&found.from_offerer),
        [
            "0 becomes 96 opus/48000/2",
            "101 becomes 97 telephone-event/48000"
        ]
    );
    assert_eq!(
        routes(&found.from_answerer),
        [
            "96 becomes 0 PCMU/8000",
            "97 becomes 101 telephone-event/8000"
        ]
    );
    assert_eq!(found.detects_keys, [false; 2]);
    // An offerer without events gets none.
    assert_eq!(outgoing(&[PCMU], "codec-transcode-opus"), [PCMU, OPUS]);
    // If the request adds events, they are added for each clock rate of the audio, as in rtpengine.
    let transcode = "codec-transcode-telephone-event";
    assert_eq!(
        outgoing(&[PCMU, OPUS], transcode),
        [
            PCMU,
            OPUS,
            "97 telephone-event/8000",
            "98 telephone-event/48000"
        ]
    );
    assert_eq!(
        outgoing(&[OPUS, PCMU, EVENTS], transcode),
        [OPUS, PCMU, EVENTS]
    );
    assert_eq!(
        outgoing(&[PCMU], &format!("{transcode} codec-transcode-opus")),
        [
            PCMU,
            OPUS,
            "97 telephone-event/8000",
            "98 telephone-event/48000"
        ]
    );
}

#[test]
fn single_codec_keeps_only_the_first_codec() {
    // "Using this flag in an answer message will leave only the first listed codec in place and will remove all others from the list."
    let offer = offered(&[PCMU, PCMA, EVENTS], "");
    let found = answer(&offer, &codecs(&[PCMA, PCMU, EVENTS]), true).unwrap();
    assert_eq!(shown(&found.to_offerer), [PCMA, EVENTS]);
    // The offerer must still accept all that it offered (RFC 3264, section 5.1).
    assert_eq!(
        routes(&found.from_answerer),
        ["8 passes as 8", "0 passes as 0", "101 passes as 101"]
    );
}

#[test]
fn packet_times_and_force_cause_transcoding() {
    // ptime: "It also engages the transcoding engine for supported codecs to provide repacketization functionality, even if no additional
    // codec has actually been requested". ptime-reverse: "the ptime to be used towards the endpoint who has sent the offer".
    let anew = [["0 becomes 0 PCMU/8000"], ["0 passes as 0"]];
    for (flags, [from_offerer, from_answerer]) in [
        ("ptime=30", anew),
        ("ptime-reverse=30", [anew[1], anew[0]]),
        // "it will always be transcoded (for example, between codecs G722 and G722)" (release notes of mr13.3.1).
        ("force-transcoding", [anew[0], anew[0]]),
    ] {
        let offer = offered(&[PCMU, G729], flags);
        assert_eq!(shown(offer.codecs()), [PCMU], "{flags}");
        let found = answered(&offer, &[PCMU]);
        assert_eq!(routes(&found.from_offerer), from_offerer, "{flags}");
        assert_eq!(routes(&found.from_answerer), from_answerer, "{flags}");
    }
}

#[test]
fn set_applies_options_to_matching_codecs() {
    // "to specify different bitrates for Opus for both mono and stereo output, one could use set=[opus/48000/1/16000,opus/48000/2/32000]"
    let rules = rules("codec-set-opus/48000/1/16000 codec-set-opus/48000/2/32000");
    let found = codecs(&[OPUS, "97 opus/48000", PCMU]);
    let bitrates = found
        .iter()
        .map(|codec| rules.options_of(codec)?.bitrate_bps);
    assert_eq!(
        bitrates.collect::<Vec<_>>(),
        [Some(32_000), Some(16_000), None]
    );
}

#[test]
fn an_answer_may_have_other_payload_types_than_the_offer() {
    // The same number SHOULD be used in the answer (RFC 3264, section 6.1), so another number is allowed.
    let offer = offered(&[OPUS, PCMU], "codec-transcode-PCMA");
    let found = answered(&offer, &["111 opus/48000/2"]);
    assert_eq!(shown(&found.to_offerer), [OPUS]);
    assert_eq!(routes(&found.from_offerer), ["96 passes as 111"]);
    assert_eq!(routes(&found.from_answerer), ["111 passes as 96"]);
}

/// The expected values are the offers and answers that Debian's rtpengine 10.5.3.5 wrote for the same requests to its ng port. Two cases
/// are omitted: codecs that rtpengine adds without a request (telephone events at Opus's rate), and answers in which it names only the
/// first of several codecs that the rules allow.
#[test]
fn rtpengine_gives_the_same_answers() {
    /// The columns: offered codecs, flags, codecs offered to the other side, the other side's answer, the resulting answer.
    type Row<'a> = (
        &'a [&'a str],
        &'a str,
        &'a [&'a str],
        &'a [&'a str],
        &'a [&'a str],
    );
    let all: &[Row<'_>] = &[
        (
            &[PCMU, PCMA, EVENTS],
            "",
            &[PCMU, PCMA, EVENTS],
            &[PCMA],
            &[PCMA],
        ),
        (&[OPUS, PCMU], "codec-strip-OPUS", &[PCMU], &[PCMU], &[PCMU]),
        (
            &[OPUS, PCMU, PCMA, EVENTS],
            "codec-strip-PCMU codec-transcode-G722",
            &[OPUS, PCMA, G722, EVENTS],
            &[G722],
            &[OPUS],
        ),
        (
            &[PCMU, PCMA, EVENTS],
            "codec-strip-all codec-except-PCMA",
            &[PCMA],
            &[PCMA],
            &[PCMA],
        ),
        (
            &[PCMU, PCMA, EVENTS],
            "codec-strip-all codec-offer-PCMA codec-offer-PCMU",
            &[PCMA, PCMU],
            &[PCMU],
            &[PCMU],
        ),
        (
            &[PCMU, EVENTS],
            "codec-transcode-PCMA",
            &[PCMU, PCMA, EVENTS],
            &[PCMA, EVENTS],
            &[PCMU, EVENTS],
        ),
        (
            &[G722, PCMU, EVENTS],
            "codec-transcode-PCMA",
            &[G722, PCMU, PCMA, EVENTS],
            &[PCMA, EVENTS],
            &[G722, EVENTS],
        ),
        (
            &[PCMU, PCMA],
            "codec-strip-all codec-transcode-PCMU",
            &[PCMU],
            &[PCMU],
            &[PCMU],
        ),
        (
            &[PCMU, PCMA],
            "codec-mask-PCMU codec-transcode-PCMU",
            &[PCMA, PCMU],
            &[PCMA],
            &[PCMA],
        ),
        (
            &[PCMU, PCMA],
            "codec-mask-full codec-except-PCMA codec-transcode-PCMU",
            &[PCMA, PCMU],
            &[PCMA],
            &[PCMA],
        ),
        (
            &[OPUS],
            "codec-mask-opus codec-transcode-PCMA",
            &[PCMA],
            &[PCMA],
            &[OPUS],
        ),
        (
            &[OPUS, PCMU, EVENTS],
            "codec-mask-opus codec-transcode-G722",
            &[PCMU, G722, EVENTS],
            &[PCMU],
            &[PCMU],
        ),
        (
            &[PCMU, EVENTS],
            "always-transcode",
            &[PCMU, EVENTS],
            &[PCMU],
            &[PCMU, EVENTS],
        ),
        (
            &[OPUS, PCMU],
            "codec-transcode-PCMA",
            &[OPUS, PCMU, PCMA],
            &["111 opus/48000/2"],
            &[OPUS],
        ),
        (
            &[G722, PCMU, EVENTS],
            "codec-mask-all codec-transcode-PCMA",
            &[PCMA],
            &[PCMA],
            &[G722],
        ),
        (
            &[PCMU, EVENTS],
            "codec-mask-all codec-transcode-PCMA codec-except-telephone-event",
            &[PCMA, EVENTS],
            &[PCMA, EVENTS],
            &[PCMU, EVENTS],
        ),
        (
            &[PCMU, PCMA, EVENTS],
            "codec-mask-all codec-transcode-opus codec-transcode-PCMU",
            &[OPUS, PCMU],
            &[OPUS],
            &[PCMU],
        ),
        (
            &[OPUS, PCMA, EVENTS],
            "codec-mask-all codec-transcode-G722 codec-transcode-PCMA codec-transcode-telephone-event",
            &[G722, PCMA, EVENTS],
            &[PCMA, EVENTS],
            &[PCMA, EVENTS],
        ),
    ];
    for (list, flags, outgoing, theirs, to_offerer) in all {
        let offer = offered(list, flags);
        assert_eq!(shown(offer.codecs()), *outgoing, "{flags}");
        assert_eq!(
            shown(&answered(&offer, theirs).to_offerer),
            *to_offerer,
            "{flags}"
        );
    }
}

/// Returns codecs that all differ, with payload types that all differ.
fn some_codecs() -> impl Strategy<Value = Vec<Codec>> {
    let all = vec![
        OPUS,
        EVENTS,
        G729,
        PCMU,
        PCMA,
        G722,
        "13 CN/8000",
        "97 L16/16000",
        "98 iLBC/8000",
        "99 opus/48000/2",
    ];
    let some = prop::sample::subsequence(all, 0..=10).prop_shuffle();
    some.prop_map(|list| codecs(&list))
}

fn some_flags() -> impl Strategy<Value = String> {
    let rule = prop::sample::select(vec![
        "strip",
        "mask",
        "consume",
        "accept",
        "except",
        "offer",
        "transcode",
        "set",
    ]);
    let codec = prop::sample::select(vec![
        "all",
        "full",
        "PCMU",
        "PCMA",
        "G722",
        "opus",
        "opus/48000",
        "telephone-event",
        "G729",
        "L16/16000",
        "0",
    ]);
    let codec_rule = (rule, codec).prop_map(|(rule, codec)| format!("codec-{rule}-{codec}"));
    let other = prop::sample::select(vec!["ptime=30", "ptime-reverse=40", "force-transcoding"]);
    let flag = prop_oneof![6 => codec_rule, 1 => other.prop_map(str::to_owned)];
    prop::collection::vec(flag, 0..6).prop_map(|flags| flags.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Whatever the rules are, each audio codec of an offer can be answered, and then both sides are heard.
    #[test]
    fn each_offered_codec_can_be_answered(list in some_codecs(), flags in some_flags()) {
        let offer = offer(&list, &rules(&flags));
        for codec in offer.codecs().filter(|codec| codec.is_audio()) {
            let found = answer(&offer, std::slice::from_ref(codec), false);
            prop_assert!(found.is_ok(), "{codec:?} of {:?}", offer.outgoing);
            let found = found.unwrap();
            let first = [&found.from_offerer[0], &found.from_answerer[0]];
            prop_assert!(first.iter().all(|route| route.then != Then::Drop), "{first:?}");
        }
    }

    /// Whatever the rules are, the payload types of a list differ, an answer has only codecs that were offered, and the receiver knows the
    /// payload type of each packet.
    #[test]
    fn each_side_has_its_own_payload_types(
        list in some_codecs(),
        theirs in some_codecs(),
        flags in some_flags(),
        takes in prop::collection::vec(any::<bool>(), 12),
        is_single in any::<bool>(),
    ) {
        let offer = offer(&list, &rules(&flags));
        let numbers: Vec<u8> = offer.codecs().map(|codec| codec.payload_type.0).collect();
        let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
        prop_assert_eq!(distinct.len(), numbers.len(), "{:?}", numbers);
        prop_assert!(list.is_empty() || !numbers.is_empty() || !list.iter().any(Codec::is_audio));

        let picked = offer.codecs().zip(&takes).filter(|(_, takes)| **takes).map(|(codec, _)| codec.clone());
        let mut answered: Vec<Codec> = picked.collect();
        let free: Vec<Codec> = theirs.into_iter().filter(|codec| !numbers.contains(&codec.payload_type.0)).collect();
        answered.extend(free);
        let Ok(found) = answer(&offer, &answered, is_single) else {
            return Ok(());
        };
        let knows = |codecs: &[Codec], number: u8| codecs.iter().any(|codec| codec.payload_type.0 == number);
        for codec in &found.to_offerer {
            prop_assert!(list.iter().any(|one| one.is_format_of(codec) && one.payload_type == codec.payload_type));
        }
        prop_assert!(found.to_offerer[0].is_audio());
        for (routes, receiver) in [(&found.from_offerer, &answered), (&found.from_answerer, &list)] {
            for route in routes {
                let number = match &route.then {
                    Then::Pass(number) => *number,
                    Then::Transcode(codec) => {
                        prop_assert!(offer.is_engaged, "transcoding that nobody asked for");
                        codec.payload_type
                    }
                    Then::Tones | Then::Drop => continue,
                };
                prop_assert!(knows(receiver, number.0), "{:?}", route);
            }
        }
        // The preferred codec must carry audio.
        let first = &found.from_offerer[0].then;
        prop_assert!(matches!(first, Then::Pass(_) | Then::Transcode(_)), "{:?}", found.from_offerer);
    }
}
