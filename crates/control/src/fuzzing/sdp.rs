//! Target `sdp`: a description is written as it was read. Edits stay within their lines, and the new values can be read back.

use std::net::{IpAddr, Ipv4Addr};

use super::Bench;
use crate::ng::{Dictionary, Reply, Request, Value};
use crate::sdp::{Address, Direction, Sdp, Section};

/// Handles an input, which is one description.
pub fn sdp(data: &[u8]) {
    let Ok(sdp) = Sdp::parse(data) else {
        return;
    };
    assert_eq!(sdp.to_bytes(), data, "written as it was read");
    look(&sdp);
    edits_to_the_same_change_nothing(&sdp);
    edit(sdp);
    lines_stand_alone(data);
}

/// Reads everything from a description. Nothing panics, whatever the lines contain.
fn look(sdp: &Sdp) {
    for index in 0..=sdp.media.len() {
        let _ = (sdp.address(index), sdp.direction(index));
        let _ = (sdp.has_ice(index), sdp.has_dtls(index));
    }
    for media in &sdp.media {
        let _ = (media.media_line(), media.rtcp(), media.codecs());
        let _ = (media.packet_time_ms("ptime"), media.has_rtcp_mux());
        let _ = (media.faults(true), media.outline());
    }
}

fn edits_to_the_same_change_nothing(sdp: &Sdp) {
    let mut same = sdp.clone();
    for media in &mut same.media {
        if let Some(direction) = media.own_direction() {
            media.set_direction(direction);
        }
        let codecs = media.codecs();
        // Writing omits formats that are not numbers, and repetitions.
        let formats = media.media_line().map(|line| line.formats.len());
        if formats == Ok(codecs.len()) {
            media.set_codecs(&codecs);
        }
    }
    assert_eq!(&same, sdp);
}

/// Edits a description. New values can be read back, the number of sections stays, and values cannot insert line breaks.
fn edit(mut sdp: Sdp) {
    let ip = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));
    let count = sdp.media.len();
    for media in &mut sdp.media {
        media.set_direction(Direction::Inactive);
        assert_eq!(media.own_direction(), Some(Direction::Inactive));
        media.set_attribute("rtcp", "1 IN IP4 192.0.2.1\r\nm=evil");
        media.set_connection(ip);
        assert_eq!(media.connection(), Ok(Some(Address::Ip(ip))));
        edit_media_line(media);
    }
    let again = Sdp::parse(&sdp.to_bytes()).ok();
    // The edited description may be longer than the parser allows.
    let again = again.unwrap_or_else(|| sdp.clone());
    assert_eq!(again.media.len(), count, "sections");
    assert_eq!(again.to_bytes(), sdp.to_bytes());
}

fn edit_media_line(media: &mut Section) {
    if media.media_line().is_err() {
        return;
    }
    media.set_port(1234);
    media.set_protocol("RTP/SAVP");
    let line = media.media_line().expect("it was one");
    assert_eq!((line.port, line.protocol), (1234, "RTP/SAVP"));
    let mut codecs = media.codecs();
    codecs.reverse();
    codecs.truncate(2);
    media.set_codecs(&codecs);
    assert_eq!(media.codecs(), codecs);
}

/// Also for target `sdp`: checks that an `m=` line of an offer that is usable alone gives the same result among any other lines.
///
/// # Panics
/// Panics if a line gives another result among others.
pub fn lines_stand_alone(data: &[u8]) {
    let Ok(sdp) = Sdp::parse(data) else {
        return;
    };
    // An offer with more lines is rejected.
    if sdp.media.len() > 16 {
        return;
    }
    let all = offered(&sdp);
    for (index, section) in sdp.media.iter().enumerate() {
        if section.media_line().is_ok_and(|line| line.port == 0) {
            continue;
        }
        let alone = Sdp {
            session: sdp.session.clone(),
            media: vec![section.clone()],
        };
        let Some(alone) = offered(&alone) else {
            continue;
        };
        let all = all.as_ref().expect("a line that can be used alone");
        assert_eq!(all[index], alone[0], "line {index} of {sdp:?}");
    }
}

/// Returns each `m=` line of the outgoing offer, without ports and keys. `None`: the offer is refused.
fn offered(sdp: &Sdp) -> Option<Vec<Vec<String>>> {
    let mut keys = Dictionary::new();
    for (key, value) in [
        ("command", "offer"),
        ("call-id", "c"),
        ("from-tag", "a"),
        (
            "rtpp-flags",
            "no-rtcp-attribute SDES-only-AES_CM_128_HMAC_SHA1_80",
        ),
    ] {
        keys.push(key, value);
    }
    keys.push("sdp", sdp.to_bytes());
    let request = Request::new(keys).ok()?;
    let Reply::Ok(keys) = Bench::default().request(&request) else {
        return None;
    };
    let Some(Value::Bytes(bytes)) = keys.get("sdp") else {
        panic!("an offer without a description: {keys:?}");
    };
    let out = Sdp::parse(bytes).expect("a description of ours");
    assert_eq!(out.media.len(), sdp.media.len(), "lines");
    let result = |(index, section): (usize, &Section)| {
        let line = section.media_line().expect("a line of ours");
        let mut texts: Vec<String> = line.formats.iter().map(ToString::to_string).collect();
        let is_carried = line.port > 0;
        texts.push(format!("{} {is_carried} {}", line.kind, line.protocol));
        texts.push(format!("{:?}", out.address(index)));
        let attributes = section.attributes().filter(|(name, _)| *name != "crypto");
        texts.extend(attributes.map(|(name, value)| format!("{name}:{value}")));
        texts
    };
    Some(out.media.iter().enumerate().map(result).collect())
}
