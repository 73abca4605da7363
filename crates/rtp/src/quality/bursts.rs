//! Bursts of losses and the gaps between them (RFC 3611, section 4.7.2).

/// Number of received packets in a row that end a burst. It is the value that RFC 3611, section 4.7.2, recommends.
pub const GMIN: u8 = 16;

/// Separates bursts from gaps, packet by packet. A burst begins and ends with a loss, and fewer than [`GMIN`] packets in a row are received
/// between its losses. A single loss with at least [`GMIN`] received packets on both sides belongs to a gap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bursts {
    packets: u64,
    lost: u64,
    /// Number of packets since the last loss.
    since_loss: u64,
    /// Number of packets from the first loss of a possible burst to the last one.
    candidate_packets: u64,
    candidate_lost: u64,
    bursts: u64,
    burst_packets: u64,
    burst_lost: u64,
}

/// The metrics of all packets so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BurstMetrics {
    /// Fraction of the packets within bursts that was lost.
    pub burst_density: f64,
    /// Fraction of the packets within gaps that was lost.
    pub gap_density: f64,
    /// Mean length of a burst, packets.
    pub burst_packets: f64,
    /// Mean length of a gap, packets.
    pub gap_packets: f64,
}

impl Bursts {
    /// Notes that this many packets in a row were received.
    pub fn received(&mut self, packets: u64) {
        self.packets += packets;
        self.since_loss += packets;
    }

    /// Notes that this many packets in a row were lost or too late.
    pub fn lost(&mut self, packets: u32) {
        let packets = u64::from(packets);
        if packets == 0 {
            return;
        }
        if self.candidate_lost == 0 || self.since_loss >= u64::from(GMIN) {
            self.end_candidate();
            self.candidate_packets = packets;
        } else {
            self.candidate_packets += self.since_loss + packets;
        }
        self.candidate_lost += packets;
        self.since_loss = 0;
        self.packets += packets;
        self.lost += packets;
    }

    fn end_candidate(&mut self) {
        if self.candidate_lost > 1 {
            self.bursts += 1;
            self.burst_packets += self.candidate_packets;
            self.burst_lost += self.candidate_lost;
        }
        (self.candidate_packets, self.candidate_lost) = (0, 0);
    }

    /// Returns the metrics of all packets so far. A possible burst at the end counts as a burst.
    #[must_use]
    pub fn metrics(&self) -> BurstMetrics {
        let mut all = *self;
        all.end_candidate();
        let ratio = |part: u64, whole: u64| match whole {
            0 => 0.0,
            whole => part as f64 / whole as f64,
        };
        let gap_packets = all.packets - all.burst_packets;
        BurstMetrics {
            burst_density: ratio(all.burst_lost, all.burst_packets),
            gap_density: ratio(all.lost - all.burst_lost, gap_packets),
            burst_packets: ratio(all.burst_packets, all.bursts),
            gap_packets: ratio(gap_packets, all.bursts + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Applies the definition to the whole list: losses that are closer than [`GMIN`] form a burst.
    fn naive(all: &[bool]) -> BurstMetrics {
        let losses: Vec<usize> = (0..all.len()).filter(|at| !all[*at]).collect();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for at in losses {
            match groups.last_mut() {
                Some(group) if at - group[group.len() - 1] <= usize::from(GMIN) => group.push(at),
                _ => groups.push(vec![at]),
            }
        }
        let (bursts, singles): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.len() > 1);
        let length: usize = bursts
            .iter()
            .map(|group| group[group.len() - 1] - group[0] + 1)
            .sum();
        let lost: usize = bursts.iter().map(Vec::len).sum();
        let ratio = |part: usize, whole: usize| match whole {
            0 => 0.0,
            whole => part as f64 / whole as f64,
        };
        BurstMetrics {
            burst_density: ratio(lost, length),
            gap_density: ratio(singles.len(), all.len() - length),
            burst_packets: ratio(length, bursts.len()),
            gap_packets: ratio(all.len() - length, bursts.len() + 1),
        }
    }

    proptest! {
        #[test]
        fn bursts_equal_those_of_a_simple_implementation(
            runs in prop::collection::vec((0..40_usize, 0..4_u32), 0..40),
        ) {
            let (mut bursts, mut all) = (Bursts::default(), Vec::new());
            for (received, lost) in runs {
                bursts.received(received as u64);
                all.extend(std::iter::repeat_n(true, received));
                bursts.lost(lost);
                all.extend(std::iter::repeat_n(false, lost as usize));
            }
            prop_assert_eq!(bursts.metrics(), naive(&all));
        }
    }
}
