#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use threadbare_rtp_types::learn::{Learn, Method, Once};
use threadbare_rtp_types::payload_map::PayloadMap;
use threadbare_rtp_types::side::Side;
use threadbare_rtp_types::srtp::{MasterKey, Suite};

use super::super::dialog::{AudioOffer, Dialog, Exchange, Plan};
use super::super::options::{Options, Tos};
use super::super::spec::{Copied, Fallback, SideSpec, StreamKind};
use super::super::{Family, PortUse};
use super::*;
use crate::fuzzing::{with_unknown_fields, without_field};
use crate::sdp::Direction;

/// States of the call in `tests/it/calls/saved.rs` for a node of a cluster: after the first offer, and while an offer of Bob waits for its
/// answer. The clock started at 3600 s, and advanced by 1 s before each request.
const OFFER: &[u8] = include_bytes!("../../../tests/data/positional-offer.bin");
const CALL: &[u8] = include_bytes!("../../../tests/data/positional-call.bin");

/// The same states as release 0.3.0 writes them, with field names.
const OFFER_0_3_0: &[u8] = include_bytes!("../../../tests/data/release-0.3.0-offer.bin");
const CALL_0_3_0: &[u8] = include_bytes!("../../../tests/data/release-0.3.0-call.bin");

const S: u64 = 1_000_000_000;
/// The decoded base64 text of Alice's `a=crypto`.
const ALICE_KEY: &[u8] = b"YS___semctl () {\t220;}\n}\nunles";
/// The decoded base64 text of Bob's `a=crypto`.
const BOB_KEY: &[u8] = b"=-n@%^x!Bjufr9)?,#5h\\`=&]{qiPQ";

fn read(bytes: &[u8]) -> SavedCall<Live<()>> {
    FORMAT.read(bytes).unwrap()
}

/// Returns the key, whose suite must be AES_CM_128_HMAC_SHA1_80.
fn bytes_of(key: &MasterKey) -> &[u8] {
    assert_eq!(key.suite(), Suite::AesCm128HmacSha1_80);
    assert!(key.mki().is_empty());
    key.expose_secret()
}

fn audio(offer: &Exchange<()>) -> &AudioOffer {
    match &offer.media[0].plan {
        Plan::Audio(audio) => audio,
        other => panic!("{other:?}"),
    }
}

#[test]
fn states_of_release_0_3_0_are_read() {
    for (released, same) in [(OFFER_0_3_0, OFFER), (CALL_0_3_0, CALL)] {
        assert_eq!(FORMAT.write(&read(released)), FORMAT.write(&read(same)));
    }
}

/// The bytes change only with the version of the format.
#[test]
fn states_for_a_node_have_no_field_names() {
    for state in [OFFER, CALL] {
        assert_eq!(FORMAT.write_for(Reader::Node, &read(state)), state);
    }
}

#[test]
fn head_and_times_without_field_names_are_read() {
    let SavedCall { head, call } = read(OFFER);
    assert_eq!(head.unix_at_zero_ns, 1_790_000_000 * S);
    assert_eq!(head.last_stream, 1);
    assert_eq!(call.id, CallId::new(b"c"));
    assert_eq!((call.created_ns, call.signalled_ns), (3601 * S, 3601 * S));
    assert_eq!((call.answered_ns, call.heard_ns), (None, None));
    assert_eq!((call.drops_traffic, call.is_paused), (false, false));
    let recording = call.recording.unwrap();
    assert_eq!(recording.metadata.as_deref(), Some("x"));
    assert_eq!((recording.destination, recording.directory), (None, None));
    assert_eq!(call.metadata.as_deref(), Some("x"));
    assert!(call.past.is_empty());
    let SavedCall { head, call } = read(CALL);
    // Alice and Bob have one stream, and a second one in the offer that waits for its answer. The recorder has the third.
    assert_eq!((head.last_stream, call.dialogs.len()), (3, 2));
    assert_eq!(
        (call.created_ns, call.answered_ns),
        (3601 * S, Some(3602 * S))
    );
    assert_eq!(call.signalled_ns, 3608 * S);
}

#[test]
fn offer_without_field_names_is_read() {
    let SavedCall { call, .. } = read(OFFER);
    let [dialog] = &call.dialogs[..] else {
        panic!("{} dialogs", call.dialogs.len());
    };
    assert_eq!(dialog.branch.as_deref(), Some(&b"first"[..]));
    assert_eq!((dialog.is_answered, dialog.offered_ns), (false, 3601 * S));
    assert_eq!((dialog.tos, dialog.delete_ns), (Some(184), None));
    assert!(dialog.slots.is_empty() && dialog.copies.is_empty());
    let [alice, bob] = &dialog.parties;
    assert_eq!(alice.tag.as_deref(), Some(&b"a"[..]));
    assert_eq!((alice.label.as_deref(), &bob.tag), (Some("caller"), &None));
    assert_eq!(
        bob.origin.line.as_deref(),
        Some("- 1 1 IN IP4 198.51.100.1")
    );
    assert_eq!(bob.origin.address, "203.0.113.7".parse().ok());
    let offer = dialog.offer.as_ref().unwrap();
    assert_eq!((offer.author, offer.is_answered), (Side::A, false));
    assert_eq!(&*offer.places[1].interface.0, "default");
    assert_eq!(offer.places[1].family, Family::V4);
    let fresh = offer.fresh[0].as_ref().unwrap();
    assert_eq!((fresh.stream, fresh.kind), (StreamId(1), StreamKind::Audio));
    // Alice lets RTP and RTCP share a port, so her leg needs only one.
    let local = fresh.local.each_ref();
    assert_eq!(local[0].request.port_use, PortUse::Single);
    assert_eq!(local[0].rtp, "203.0.113.7:30000".parse().unwrap());
    assert_eq!(local[1].rtcp, "203.0.113.7:30003".parse().ok());
    assert!(offer.fresh[1].is_none() && fresh.running.is_none());
    let line = &offer.media[0];
    assert_eq!(line.outline.kind, "audio");
    assert_eq!(line.outline.protocol, "RTP/SAVP");
    assert_eq!(line.outline.formats, ["0", "9", "101"]);
    assert_eq!(line.remote.rtp, "198.51.100.1:4000".parse().ok());
    assert_eq!(line.remote.direction, Direction::SendRecv);
    assert!(line.remote.has_mux && !line.remote.is_zero);
    assert_eq!(bytes_of(&line.remote.cryptos[0].key), ALICE_KEY);
    let audio = audio(offer);
    let names = audio.codecs.codecs().map(|codec| codec.name.as_str());
    // `codec-mask-G722` and `codec-transcode-PCMA`.
    assert!(names.eq(["PCMU", "PCMA", "telephone-event"]));
    assert!(audio.codecs.outgoing[1].is_added && audio.codecs.is_engaged);
    assert_eq!(audio.ptimes_ms, [Some(20), Some(30)]);
    assert!(audio.transports[1].is_secure && !audio.transports[1].has_dtls);
    let accepted = audio.accepted.as_ref().unwrap();
    assert_eq!(
        (accepted.tag, bytes_of(&accepted.keys.receive)),
        (1, ALICE_KEY)
    );
    let suites: Vec<_> = audio
        .own
        .iter()
        .map(|own| (own.tag, own.key.suite()))
        .collect();
    let expected = [(1, Suite::AesCm128HmacSha1_80), (2, Suite::AeadAes256Gcm)];
    assert_eq!(suites, expected);
    assert!(matches!(offer.media[1].plan, Plan::Rejected));
}

#[test]
fn options_without_field_names_are_read() {
    let SavedCall { call, .. } = read(OFFER);
    let options: &Options = &call.dialogs[0].offer.as_ref().unwrap().options;
    assert_eq!(options.rules.transcode[0].name, "PCMA");
    assert_eq!(options.rules.mask.named[0].name, "G722");
    assert_eq!(options.rules.ptime_ms, Some(30));
    assert!(
        options
            .transport
            .is_some_and(|transport| transport.is_secure)
    );
    assert!(options.mux.offer && !options.mux.require);
    assert!(options.replace.origin && options.replace.session_name);
    assert!(!options.replace.username && !options.replace.zero_address);
    assert!(options.learning.is_strict && !options.learning.follows);
    assert_eq!(options.tos, Tos::To(184));
    let only = [Suite::AesCm128HmacSha1_80, Suite::AeadAes256Gcm];
    assert_eq!(options.sdes.only.as_deref(), Some(&only[..]));
    assert!(options.loop_protect && options.generate_mid && !options.single_codec);
    assert_eq!(options.record, Some(true));
    assert_eq!(options.label.as_deref(), Some("caller"));
    let edits = format!("{:?}", options.edits);
    assert_eq!(
        edits,
        "Edits([LevelEdit { level: Session, edit: Add(\"mine:1\") }, \
         LevelEdit { level: Media(\"audio\"), edit: Substitute { pattern: \"rtcp-mux\", text: \"rtcp-mux\" } }])"
    );
}

#[test]
fn streams_without_field_names_are_read() {
    let SavedCall { call, .. } = read(CALL);
    let [dialog, subscription]: &[Dialog<()>; 2] = call.dialogs[..].try_into().unwrap();
    let [alice, bob] = &dialog.parties;
    assert_eq!(bob.tag.as_deref(), Some(&b"b2"[..]));
    assert_eq!(bob.earlier_tags, [Box::from(&b"b"[..])]);
    assert!(alice.mutes.is_blocked && alice.mutes.blocks_keys && !alice.mutes.is_silenced);
    let running = |dialog: &Dialog<()>| dialog.slots[0].as_ref().unwrap().running.clone().unwrap();
    let spec = running(dialog);
    assert_eq!(
        (spec.kind, spec.tos, spec.copies),
        (StreamKind::Audio, None, None)
    );
    let once = Learn::Once(Once {
        method: Method::Heuristic,
        fixed_ms: Some(3000),
    });
    let map = |side: &Option<std::sync::Arc<PayloadMap>>| {
        let entries = side.iter().flat_map(|map| map.iter());
        let entry = |one: &threadbare_rtp_types::payload_map::Payload| {
            (one.payload_type.0, one.clock_rate_hz)
        };
        entries.map(entry).collect::<Vec<_>>()
    };
    let [a, b]: &[SideSpec; 2] = &spec.sides;
    assert_eq!((a.rtp, a.learn), ("198.51.100.1:4000".parse().ok(), once));
    assert_eq!(
        (b.rtp, b.rtcp),
        (
            "198.51.100.2:5000".parse().ok(),
            "198.51.100.2:5001".parse().ok()
        )
    );
    assert_eq!(
        (a.codec.as_deref(), b.codec.as_deref()),
        (Some("PCMU/8000"), Some("PCMA/8000"))
    );
    assert_eq!(
        (map(&a.sends), map(&b.takes)),
        (vec![(0, 8000)], vec![(8, 8000)])
    );
    assert_eq!((a.packet_ms, b.packet_ms), (Some(20), Some(30)));
    assert!(a.mux && !b.mux && a.is_blocked && a.blocks_keys && !b.is_blocked);
    assert!(a.may_send && a.may_receive && !a.waits_for_nat && !a.is_silenced);
    let keys = spec.sides.each_ref().map(|side| side.srtp.clone().unwrap());
    assert_eq!(bytes_of(&keys[0].receive), ALICE_KEY);
    assert_eq!(bytes_of(&keys[1].receive), BOB_KEY);
    // The registry's random generator filled the key with equal bytes.
    assert_eq!(bytes_of(&keys[0].send), [keys[0].send.expose_key()[0]; 30]);
    assert_ne!(keys[0].send, keys[1].send);
    let waiting = dialog.offer.as_ref().unwrap();
    assert_eq!((waiting.author, waiting.is_answered), (Side::B, false));
    assert_eq!(waiting.media[0].remote.direction, Direction::SendOnly);
    let copied = Copied {
        stream: StreamId(1),
        side: Side::A,
    };
    assert_eq!(subscription.copies, [copied]);
    let copy = running(subscription);
    assert_eq!(
        (copy.copies, copy.sides[0].learn),
        (Some(copied), Learn::Never)
    );
    assert_eq!(copy.sides[1].rtp, "198.51.100.9:7000".parse().ok());
    assert!(!copy.sides[0].may_receive && !copy.sides[1].may_send);
}

/// A later release may add a field to each struct.
#[test]
fn unknown_fields_are_ignored() {
    for old in [OFFER, CALL] {
        let bytes = FORMAT.write(&read(old));
        let later = with_unknown_fields(&bytes);
        assert!(later.len() > bytes.len() + 5000);
        assert_eq!(FORMAT.write(&read(&later)), bytes);
    }
}

/// An earlier release may lack an option, or a field that may be absent. A state without its times is refused.
#[test]
fn missing_optional_fields_have_defaults() {
    let bytes = FORMAT.write(&read(OFFER));
    let SavedCall { call, .. } = read(&without_field(&bytes, "metadata"));
    assert_eq!(
        (call.metadata, call.recording.unwrap().metadata),
        (None, None)
    );
    let SavedCall { call, .. } = read(&without_field(&bytes, "loop_protect"));
    assert!(!call.dialogs[0].offer.as_ref().unwrap().options.loop_protect);
    let error = checked::<()>(&without_field(&bytes, "signalled_ns")).unwrap_err();
    let expected =
        "the saved call is not readable: the state is damaged: missing field `signalled_ns`";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn nesting_and_false_lengths_are_refused() {
    let refused = |cbor: &[u8]| {
        let bytes = [&[FORMAT.version], cbor].concat();
        checked::<()>(&bytes).unwrap_err().to_string()
    };
    // The text {"x": [[[[... is an unknown field.
    let nested = [&[0xa1, 0x61, b'x'][..], &[0x81; 1 << 20]].concat();
    assert!(refused(&nested).ends_with("damaged: it is nested too deeply"));
    // A byte string, a text, a list and a map of 2^64 - 1 elements, in an unknown field.
    for kind in [0x5b, 0x7b, 0x9b, 0xbb] {
        let long = [&[0xa1, 0x61, b'x', kind][..], &[0xff; 8]].concat();
        assert!(refused(&long).contains("damaged"), "{kind:x}");
    }
    // A list of the same length is in place of the dialogs.
    let list = [&b"\xa1\x64call\xa1\x67dialogs\x9b"[..], &[0xff; 8]].concat();
    assert!(refused(&list).ends_with("damaged: it ends too early"));
}

proptest! {
    #[test]
    fn values_round_trip(
        times in any::<(u64, u64, Option<u64>, Option<u64>)>(), tag in any::<Option<Vec<u8>>>(), label in any::<Option<String>>(),
        tos: Option<u8>, flags: [bool; 4], file: Option<String>, id in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let SavedCall { head, mut call } = read(OFFER);
        (call.created_ns, call.signalled_ns, call.answered_ns, call.heard_ns) = times;
        call.id = CallId::new(&id);
        let party = &mut call.dialogs[0].parties[1];
        (party.tag, party.label) = (tag.map(Into::into), label.clone());
        let options = &mut call.dialogs[0].offer.as_mut().unwrap().options;
        (options.label, options.tos) = (label, tos.map_or(Tos::Unchanged, Tos::To));
        [options.single_codec, options.loop_protect, options.mux.offer, options.sdes.pads] = flags;
        options.fallback = file.as_deref().map(|file| Fallback::File(file.into()));
        call.dialogs[0].fallback = file.map_or(Fallback::Off, |file| Fallback::File(file.into()));
        let expected = format!("{call:?}");
        let read = read(&FORMAT.write(&SavedCall { head, call }));
        // The debug output names all fields. The keys, which it hides, are compared elsewhere.
        prop_assert_eq!(format!("{:?}", read.call), expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), is_named: bool) {
        let version = if is_named { 6 } else { 7 };
        let _ = checked::<()>(&[&[version], &bytes[..]].concat());
        let _ = checked::<()>(&bytes);
    }
}
