//! Data common to all sessions of this process, and the sender of a buffer.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use gio::prelude::*;
use gst::glib;
use threadbare_rtp::id::{NtpTime, Ssrc};
use threadbare_runtime::{RawAddr, clock_now_ns};

/// Returns the canonical name of all sessions of this process, which is unique to the process (RFC 7022, section 4.2: 96 random
/// bits, in base 64; ours are in base 16).
pub(super) fn cname() -> Arc<str> {
    static CNAME: LazyLock<Arc<str>> = LazyLock::new(|| {
        let words = (0..3).map(|_| format!("{:08x}", glib::random_int()));
        words.collect::<String>().into()
    });
    CNAME.clone()
}

/// Seed of a random number generator.
pub(super) fn seed() -> u64 {
    u64::from(glib::random_int()) << 32 | u64::from(glib::random_int())
}

/// Returns the wall clock at monotonic time 0. All streams of a participant, which the canonical name identifies, have the same
/// wall clock (RFC 3550, section 6.4.1).
pub(super) fn ntp_at_zero() -> NtpTime {
    static AT_ZERO: LazyLock<NtpTime> = LazyLock::new(|| {
        let since_1970_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        NtpTime::at_unix_ns(since_1970_ns.saturating_sub(clock_now_ns()))
    });
    *AT_ZERO
}

/// Returns the sender's SSRC of a valid RTCP packet: that of its first report (RFC 3550, section 6.4).
pub(super) fn sender_of(bytes: &[u8]) -> Option<Ssrc> {
    let bytes = bytes.get(4..8)?.try_into().ok()?;
    Some(Ssrc(u32::from_be_bytes(bytes)))
}

/// Returns a buffer's sender address, if the receiver attached it.
pub(super) fn sender_address(buffer: &gst::BufferRef) -> Option<SocketAddr> {
    let meta = buffer.meta::<gst_net::NetAddressMeta>()?;
    let address = meta.addr().downcast::<gio::InetSocketAddress>().ok()?;
    Some(SocketAddr::new(address.address().into(), address.port()))
}

/// Converts the kernel's address.
#[inline]
pub(super) fn address_of(raw: &RawAddr) -> SocketAddr {
    // A datagram socket always provides the sender. If it did not, all senders would look the same.
    raw.to_socket_addr()
        .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
}
