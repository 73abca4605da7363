//! What is measured of a stream, in the units that operators are told.

use std::net::SocketAddr;

use threadbare_relay::{ForwardSideStats, ListenerView, MediaCall, Medium, SenderView};
use threadbare_rtp::call::{CallStats, Side};
use threadbare_rtp::quality::{Quality, Range};

/// Of both sides.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reading {
    pub(super) sides: [SideReading; 2],
}

/// Of one party: what came from it, and what was sent to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SideReading {
    pub(super) counts: SideCounts,
    /// When the last RTP packet came.
    pub(super) heard_ns: Option<u64>,
    /// Where it is sent to: as learned, or as signalled.
    pub(super) rtp_to: Option<SocketAddr>,
    pub(super) ssrc: Option<u32>,
    /// Now.
    pub(super) jitter_ms: f64,
    /// The last one.
    pub(super) round_trip_ms: Option<f64>,
    /// Means since the beginning.
    pub(super) mean: Means,
    /// The sum of the scores that the mean is of, and their number.
    pub(super) scores: (f64, u64),
    /// What our reports say of it.
    pub(super) sender: Option<SenderView>,
    /// What it last said of what it is sent.
    pub(super) listener: Option<ListenerView>,
    /// Of what it is sent, Hz.
    pub(super) clock_rate_hz: Option<u32>,
}

/// Means of a party's media since the beginning. `None`: there was no report yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Means {
    pub(super) mos: Option<f64>,
    pub(super) jitter_ms: Option<f64>,
    pub(super) round_trip_ms: Option<f64>,
    pub(super) loss_percent: Option<f64>,
}

/// Declares what only grows once: the numbers, and how they differ from earlier ones.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What only grows.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(super) struct SideCounts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl SideCounts {
            /// What has been added. A stream that was begun anew, which has fewer packets than before, counts from 0, all of it.
            pub(super) fn since(&self, before: &SideCounts) -> SideCounts {
                if self.packets < before.packets {
                    return *self;
                }
                SideCounts { $($name: added(self.$name, before.$name),)* }
            }
        }
    };
}

counts! {
    /// RTP packets, or datagrams, of the party.
    packets,
    /// Their bytes, headers included.
    bytes,
    /// Datagrams that did not belong.
    refused,
    rtcp_packets,
    /// RTP packets sent to it.
    packets_sent,
    lost,
    late,
    /// Audio made up for its losses.
    concealed_ns,
}

fn added(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

impl Reading {
    /// Of a stream, on its thread.
    pub(super) fn of(medium: &mut Medium) -> Reading {
        let sides = match medium {
            Medium::Audio(media) => {
                let stats = media.stats().call;
                Side::BOTH.map(|side| audio(media, &stats, side))
            }
            Medium::Forward(forward) => forward.stats().map(|side| forwarded(&side)),
            Medium::Diverted(_) => Default::default(),
        };
        Reading { sides }
    }
}

fn audio(media: &MediaCall, stats: &CallStats, side: Side) -> SideReading {
    let own = media.call().leg(side);
    let leg = &stats.legs[side as usize];
    let direction = &stats.directions[side as usize];
    SideReading {
        counts: SideCounts {
            packets: leg.packets,
            bytes: leg.bytes,
            refused: leg.refused.total(),
            rtcp_packets: leg.session.rtcp_received,
            packets_sent: leg.session.packets_sent,
            lost: leg.jitter.lost,
            late: leg.jitter.late,
            concealed_ns: direction.concealed_ns,
        },
        heard_ns: leg.heard_ns,
        rtp_to: leg.rtp_to,
        ssrc: leg.source.map(|(_, ssrc)| ssrc.0),
        jitter_ms: leg.jitter.jitter_ns as f64 / NS_PER_MS,
        round_trip_ms: leg.session.rtt_ns.map(|ns| ns as f64 / NS_PER_MS),
        mean: leg.quality.as_ref().map(means).unwrap_or_default(),
        scores: leg.quality.as_ref().map(scores).unwrap_or_default(),
        sender: SenderView::of(own),
        listener: ListenerView::of(own),
        clock_rate_hz: Some(own.takes().audio().clock_rate_hz),
    }
}

fn means(quality: &Quality) -> Means {
    let mean = |range: &Option<Range>| range.map(|range| range.average);
    Means {
        mos: mean(&quality.mos),
        jitter_ms: mean(&quality.jitter_ms),
        round_trip_ms: mean(&quality.round_trip_ms),
        loss_percent: mean(&quality.loss_percent),
    }
}

fn scores(quality: &Quality) -> (f64, u64) {
    let of = |mos: Range| (mos.average * mos.samples as f64, mos.samples);
    quality.mos.map(of).unwrap_or_default()
}

fn forwarded(side: &ForwardSideStats) -> SideReading {
    let [rtp, rtcp] = side.received;
    SideReading {
        counts: SideCounts {
            packets: rtp.packets,
            bytes: rtp.bytes,
            refused: side.refused.total(),
            rtcp_packets: rtcp.packets,
            packets_sent: side.sent[0].packets,
            ..SideCounts::default()
        },
        heard_ns: rtp.last_ns,
        rtp_to: side.to,
        ..SideReading::default()
    }
}

const NS_PER_MS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_begins_anew_takes_nothing_back() {
        let counts = |packets, lost| SideCounts {
            packets,
            lost,
            ..SideCounts::default()
        };
        assert_eq!(counts(7, 2).since(&counts(4, 2)), counts(3, 0));
        assert_eq!(counts(5, 0).since(&counts(900, 3)), counts(5, 0));
        // More of the other one than before belongs to the new one, too.
        assert_eq!(counts(5, 4).since(&counts(900, 3)), counts(5, 4));
    }
}
