//! The budget of a slice for optional work, which is the concealment of losses.
//!
//! An overload must not reinforce itself. Dropped packets are losses, and concealing a loss costs more than the packet would have. So
//! concealment may use only a share of each slice, and a late slice gives up most of this share.

use threadbare_rtp::call::SPARE_UNIT_NS;

/// What is left of the slice's share.
#[derive(Debug)]
pub(super) struct Spare {
    units: u32,
    units_max: u32,
    late_ns: u64,
}

impl Spare {
    /// Creates the budget for slices of `wait_ns`, of which concealment may use `share_ns`.
    pub(super) fn new(wait_ns: u64, share_ns: u64) -> Spare {
        let units_max = ((share_ns / SPARE_UNIT_NS) as u32).max(UNITS_MIN);
        Spare {
            units: units_max,
            units_max,
            late_ns: wait_ns.max(LATE_NS_MIN),
        }
    }

    /// Starts a slice. `lateness_ns` is how late the recent slices were.
    pub(super) fn begin_slice(&mut self, lateness_ns: u64) {
        let is_late = lateness_ns >= self.late_ns;
        self.units = if is_late { UNITS_MIN } else { self.units_max };
    }

    /// Returns the budget in units of [`SPARE_UNIT_NS`].
    pub(super) fn units(&mut self) -> &mut u32 {
        &mut self.units
    }
}

/// Number of losses that even a late slice conceals. This takes less than a tenth of a millisecond, so a few streams do not make a slice
/// late.
const UNITS_MIN: u32 = 16;
/// Minimum lateness of a slice that counts as late, for contexts with short slices or none. Other work of the machine occasionally causes a
/// shorter delay.
const LATE_NS_MIN: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use threadbare_rtp::call::{Channel, DirectionConfig, Scratch, Session, SessionSpec, Target};
    use threadbare_rtp::codec::{Encoding, Format};
    use threadbare_rtp::id::{NtpTime, SeqNum, Ssrc};
    use threadbare_rtp::jitter;
    use threadbare_rtp::leg::{AdmissionConfig, Destination, LegConfig, Payload, PayloadMap};
    use threadbare_rtp::session::Profile;

    use super::*;

    const MS: u64 = 1_000_000;
    const PARTY: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5000);

    fn stream(number: u32) -> Session {
        let leg = |payload_type, encoding| LegConfig {
            ssrc: Ssrc(number),
            first_seq: SeqNum(0),
            cname: "spare@test".into(),
            seed: u64::from(number),
            ntp_at_zero: NtpTime(0),
            payloads: PayloadMap::new(&[Payload::audio(
                payload_type,
                Format::new(encoding, 8000, 1).expect("a format"),
            )])
            .expect("a map")
            .into(),
            takes: None,
            jitter: jitter::Config::new(8000, 40 * MS),
            admission: AdmissionConfig {
                peer: Some(PARTY),
                ..AdmissionConfig::default()
            },
            destination: Destination::Peer,
            mux: true,
            bandwidth_bps: 0,
            profile: Profile::Avp,
        };
        let other = Target::Other(Box::new(leg(8, Encoding::Pcma)));
        let source = leg(0, Encoding::Pcmu);
        let config = SessionSpec::stream(source, other, DirectionConfig::default());
        Session::new(0, config).expect("a stream")
    }

    /// Simulates streams that all lose every tenth packet at the same time. Returns the maximum number of losses that a slice concealed.
    fn most_in_a_slice(streams: u32, wait_ns: u64, lateness_ns: u64) -> u64 {
        let mut spare = Spare::new(wait_ns, wait_ns / 4);
        let mut scratch = Scratch::default();
        let mut streams: Vec<Session> = (0..streams).map(stream).collect();
        let (mut before, mut most) = (0, 0);
        for slice in 0..60_u16 {
            let now_ns = u64::from(slice) * wait_ns;
            spare.begin_slice(lateness_ns);
            for stream in &mut streams {
                let mut packet = [0; 172];
                packet[0] = 0x80;
                packet[2..4].copy_from_slice(&slice.to_be_bytes());
                packet[4..8].copy_from_slice(&(u32::from(slice) * 160).to_be_bytes());
                packet[11] = 1;
                if slice % 10 != 7 {
                    stream.handle_datagram(now_ns, now_ns, 0, Channel::Rtp, PARTY, &packet);
                }
                scratch.set_spare(*spare.units());
                stream.poll_transmit(now_ns, true, &mut scratch, &mut |_| ());
                *spare.units() = scratch.spare();
            }
            let concealed: u64 = streams
                .iter()
                .map(|stream| stream.stats().directions[0].concealed_ns / (20 * MS))
                .sum();
            most = most.max(concealed - before);
            before = concealed;
        }
        let lost: u64 = streams
            .iter()
            .map(|stream| stream.stats().directions[0].lost)
            .sum();
        let left: u64 = streams
            .iter()
            .map(|stream| stream.stats().directions[0].left_to_conceal)
            .sum();
        assert_eq!(lost, 6 * streams.len() as u64);
        assert_eq!(before + left, lost);
        most
    }

    /// The share is a quarter of 20 ms, which is 1000 units of 5 µs.
    #[test]
    fn a_slice_conceals_no_more_than_its_share() {
        assert_eq!(most_in_a_slice(100, 20 * MS, 0), 100);
        assert_eq!(most_in_a_slice(1_200, 20 * MS, 19 * MS), 1_000);
    }

    #[test]
    fn a_late_slice_conceals_almost_nothing() {
        assert_eq!(most_in_a_slice(100, 20 * MS, 20 * MS), u64::from(UNITS_MIN));
    }
}
