//! What a description says of where its author is.

use std::net::{IpAddr, SocketAddr};

use super::dialog::Remote;
use super::sdes;
use super::transport::Transport;
use crate::sdp::{Address, Sdp, SdpError, Section};

/// The author's place for the medium of number `index`, with another address if the request has one. And why its first unusable line
/// `a=crypto` is not taken.
///
/// # Errors
/// Address or RTCP attribute are malformed.
pub(super) fn remote(
    sdp: &Sdp,
    index: usize,
    address: Option<IpAddr>,
) -> Result<(Remote, Option<String>), SdpError> {
    let media = &sdp.media[index];
    let line = media.media_line()?;
    let signalled = match (sdp.address(index), address) {
        (Ok(signalled), _) => Some(signalled),
        (Err(_), Some(_)) => None,
        (Err(error), None) => return Err(error),
    };
    let is_zero = signalled.as_ref().is_some_and(Address::is_hold);
    let ip = match (address, &signalled) {
        (Some(address), _) => Some(address),
        (None, Some(Address::Ip(ip))) => Some(*ip).filter(|_| !is_zero),
        // The name of a host: its packets tell where it is.
        (None, _) => None,
    };
    let ip = ip.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
    let rtp = ip.map(|ip| SocketAddr::new(ip, line.port));
    let has_mux = media.has_rtcp_mux();
    let of_rtcp = media.rtcp()?;
    let has_rtcp = Transport::of(line.protocol).is_some();
    let rtcp = match (&of_rtcp, rtp) {
        _ if !has_rtcp => None,
        _ if has_mux => rtp,
        (None, Some(rtp)) => rtp
            .port()
            .checked_add(1)
            .map(|port| SocketAddr::new(rtp.ip(), port)),
        (Some(rtcp), _) if rtcp.port > 0 => {
            // An address in place of the signalled one holds for RTCP as well.
            let own = match &rtcp.address {
                Some(Address::Ip(ip)) if address.is_none() && !ip.is_unspecified() => Some(*ip),
                _ => ip,
            };
            own.map(|ip| SocketAddr::new(ip, rtcp.port))
        }
        _ => None,
    };
    let (cryptos, refused) = sdes::read(media);
    let remote = Remote {
        rtp,
        rtcp,
        direction: sdp.direction(index),
        is_zero,
        has_mux,
        ptime_ms: media.packet_time_ms("ptime"),
        opus_bps_max: opus_bps_max(media),
        cryptos,
    };
    Ok((remote, refused))
}

/// The highest bit rate of Opus that the author takes. "maxaveragebitrate: Specifies the maximum average receive bitrate of a session in bits per
/// second (bit/s) [...] values outside the range of 6000 to 510000 SHOULD be ignored" (RFC 7587, section 6.1).
fn opus_bps_max(media: &Section) -> Option<u32> {
    let codecs = media.codecs().ok()?;
    let opus = codecs
        .iter()
        .filter(|codec| codec.name.eq_ignore_ascii_case("opus"));
    let parameters = opus.flat_map(|codec| codec.fmtp.as_deref().unwrap_or_default().split(';'));
    let [least, most] = OPUS_BPS;
    parameters
        .filter_map(|parameter| parameter.split_once('='))
        .filter(|(name, _)| name.trim().eq_ignore_ascii_case("maxaveragebitrate"))
        .filter_map(|(_, bps)| bps.trim().parse().ok())
        .filter(|bps| (least..=most).contains(bps))
        .min()
}

/// The least and the highest (RFC 7587, section 6.1).
pub(super) const OPUS_BPS: [u32; 2] = [6_000, 510_000];
