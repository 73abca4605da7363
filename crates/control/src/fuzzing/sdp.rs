//! Target `sdp`: what is read is written as it was; edits stay within their lines, and what they set is read.

use std::net::{IpAddr, Ipv4Addr};

use crate::sdp::{Address, Direction, Sdp, Section};

/// An input is one description.
pub fn sdp(data: &[u8]) {
    let Ok(sdp) = Sdp::parse(data) else {
        return;
    };
    assert_eq!(sdp.to_bytes(), data, "written as it was read");
    look(&sdp);
    edits_to_the_same_change_nothing(&sdp);
    edit(sdp);
}

/// Nothing panics, whatever a line says.
fn look(sdp: &Sdp) {
    for index in 0..=sdp.media.len() {
        let _ = (sdp.address(index), sdp.direction(index));
        let _ = (sdp.has_ice(index), sdp.has_dtls(index));
    }
    for media in &sdp.media {
        let _ = (media.media_line(), media.rtcp(), media.codecs());
        let _ = (media.packet_time_ms("ptime"), media.has_rtcp_mux());
    }
}

fn edits_to_the_same_change_nothing(sdp: &Sdp) {
    let mut same = sdp.clone();
    for media in &mut same.media {
        if let Some(direction) = media.own_direction() {
            media.set_direction(direction);
        }
        if let Ok(codecs) = media.codecs() {
            let formats = media.media_line().expect("it has codecs").formats.len();
            // A number that came twice is written once.
            if formats == codecs.len() {
                media.set_codecs(&codecs).expect("its own codecs");
            }
        }
    }
    assert_eq!(&same, sdp);
}

/// What is set is read; the number of sections stays; a line break does not get in.
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
    // Longer than a description may be, if not the same.
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
    let Ok(mut codecs) = media.codecs() else {
        return;
    };
    codecs.reverse();
    codecs.truncate(2);
    media.set_codecs(&codecs).expect("its own codecs");
    assert_eq!(media.codecs(), Ok(codecs));
}
