//! Reads a party's addresses and settings from its description.

use std::net::{IpAddr, SocketAddr};

use super::dialog::Remote;
use super::ports::Family;
use super::sdes;
use super::transport::Transport;
use crate::sdp::{Address, Sdp, SdpError, Section};

/// Returns the author's addresses for the medium with this index, replaced by the request's address if there is one. The second value is
/// the reason why the first unusable `a=crypto` line is refused.
///
/// # Errors
/// Fails if the address is missing or malformed.
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
    // An offer that has no ICE candidates yet has port 9 and an address of all zeros (RFC 8840, section 4.1.1). This is not a hold.
    let is_trickle = line.port == DISCARD_PORT && sdp.has_ice(index);
    let is_zero = signalled.as_ref().is_some_and(Address::is_hold) && !is_trickle;
    let ip = match (address, &signalled) {
        (Some(address), _) => Some(address),
        (None, Some(Address::Ip(ip))) => Some(*ip),
        // The description has a host name. The party's packets will show its address.
        (None, _) => None,
    };
    let family = ip.map(Family::of);
    let ip = ip.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
    let has_rtcp = Transport::of(line.protocol).is_some();
    let rtcp = ip.filter(|_| has_rtcp).and_then(|ip| match media.rtcp() {
        None => Some(SocketAddr::new(ip, line.port.checked_add(1)?)),
        Some(rtcp) if rtcp.port > 0 => {
            // An address that replaces the signalled one applies to RTCP too.
            let own = match &rtcp.address {
                Some(Address::Ip(own)) if address.is_none() && !own.is_unspecified() => *own,
                _ => ip,
            };
            Some(SocketAddr::new(own, rtcp.port))
        }
        Some(_) => None,
    });
    let (cryptos, refused) = sdes::read(media);
    let remote = Remote {
        rtp: ip.map(|ip| SocketAddr::new(ip, line.port)),
        rtcp,
        family,
        direction: sdp.direction(index),
        is_zero,
        has_mux: media.has_rtcp_mux(),
        ptime_ms: media.packet_time_ms("ptime"),
        opus_bps_max: opus_bps_max(media),
        cryptos,
    };
    Ok((remote, refused))
}

/// The port of the discard service (RFC 863): a placeholder.
const DISCARD_PORT: u16 = 9;

/// Returns the highest bit rate of Opus that the author accepts. "maxaveragebitrate: Specifies the maximum average receive bitrate of a
/// session in bits per second (bit/s) [...] values outside the range of 6000 to 510000 SHOULD be ignored" (RFC 7587, section 6.1).
fn opus_bps_max(media: &Section) -> Option<u32> {
    let codecs = media.codecs();
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

/// The lowest and the highest bit rate (RFC 7587, section 6.1).
pub(super) const OPUS_BPS: [u32; 2] = [6_000, 510_000];
