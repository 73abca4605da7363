//! Statistics of a stream, in the units that operators see.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use threadbare_base::{NS_PER_MS, lock};

use threadbare_control::calls::StreamStats;
use threadbare_relay::{
    AudioSession, AudioStats, Forward, ForwardSideStats, ListenerView, Loudness, MediaSession,
    Observer, SenderView,
};
use threadbare_rtp::call::Side;
use threadbare_rtp::quality::{Quality, Range};

use super::ng_stats::{audio_stats, forward_stats};

/// Statistics of both sides of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    pub(super) sides: [MeasuredSide; 2],
}

/// Statistics of one party: of the media received from it, and of those sent to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MeasuredSide {
    pub(super) counts: SideCounts,
    /// Time of the last RTP packet.
    pub(super) heard_ns: Option<u64>,
    /// Destination of the RTP for the party: its learned address, or else its signalled one.
    pub(super) rtp_to: Option<SocketAddr>,
    pub(super) ssrc: Option<u32>,
    /// Current interarrival jitter.
    pub(super) jitter_ms: f64,
    /// The last round-trip time.
    pub(super) round_trip_ms: Option<f64>,
    /// Means since the start.
    pub(super) mean: Means,
    /// Sum and number of the opinion scores that are in the mean.
    pub(super) scores: (f64, u64),
    /// Our reports on this party.
    pub(super) sender: Option<SenderView>,
    /// The party's last report on us.
    pub(super) listener: Option<ListenerView>,
    /// The loudness of the party's audio. `None`: not measured, or nothing was received yet.
    pub(super) loudness: Option<Loudness>,
    /// Clock rate of the media that are sent to the party, Hz.
    pub(super) clock_rate_hz: Option<u32>,
    /// Whether the other party hears the fallback in place of this party.
    pub(super) is_replaced: bool,
}

/// Averages over a party's media since the start. A value is `None` if no report has come yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Means {
    pub(super) mos: Option<f64>,
    pub(super) jitter_ms: Option<f64>,
    pub(super) round_trip_ms: Option<f64>,
    pub(super) loss_percent: Option<f64>,
}

/// Declares a struct of monotonic counters, with a method that returns their increase.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Monotonic counters of a side of a stream.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(super) struct SideCounts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl SideCounts {
            /// Returns the increase since `before`. If there are fewer packets than before, the stream has restarted, and all
            /// counts are new.
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
    /// Number of RTP packets, or other datagrams, from the party.
    packets,
    /// Number of bytes in `packets`, with headers.
    bytes,
    /// Number of datagrams that were refused.
    refused,
    rtcp_packets,
    /// Number of RTP packets that were sent to the party.
    packets_sent,
    lost,
    late,
    /// Duration of the audio that was concealed because the party's packets were lost, ns.
    concealed_ns,
}

fn added(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// The latest statistics of a stream. The stream's thread writes them, and the control thread reads them. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct LatestStats(Arc<Mutex<(Measured, StreamStats)>>);

impl LatestStats {
    /// Returns the statistics, which are zero before the stream's first turn.
    pub(super) fn measured(&self) -> Measured {
        lock(&self.0).0
    }

    /// Returns the counters for replies of the ng protocol.
    pub(super) fn counters(&self) -> StreamStats {
        lock(&self.0).1.clone()
    }

    /// Sets the statistics, unless they are just being read.
    fn try_set(&self, measured: Measured, counters: StreamStats) -> bool {
        let place = self.0.try_lock();
        place.map(|mut place| *place = (measured, counters)).is_ok()
    }

    /// Returns the observer of an audio session.
    pub(super) fn of_audio(&self) -> Observer<AudioSession> {
        let latest = self.clone();
        Box::new(move |media| {
            let stats = media.stats();
            latest.try_set(Measured::of_audio(media, &stats), audio_stats(&stats))
        })
    }

    /// Returns the observer of a session that forwards.
    pub(super) fn of_forward(&self) -> Observer<Forward> {
        let latest = self.clone();
        Box::new(move |forward| {
            let stats = forward.stats();
            latest.try_set(Measured::of_forward(&stats), forward_stats(&stats))
        })
    }
}

impl Measured {
    /// Reads the statistics of a stream. Runs on the stream's thread.
    pub(super) fn of(session: &mut MediaSession) -> Measured {
        match session {
            MediaSession::Audio(media) => {
                let stats = media.stats();
                Measured::of_audio(media, &stats)
            }
            MediaSession::Forward(forward) => Measured::of_forward(&forward.stats()),
            MediaSession::Diverted(_) => Measured::default(),
        }
    }

    fn of_audio(media: &AudioSession, stats: &AudioStats) -> Measured {
        Measured {
            sides: Side::BOTH.map(|side| audio(media, stats, side)),
        }
    }

    fn of_forward(stats: &[ForwardSideStats; 2]) -> Measured {
        Measured {
            sides: stats.each_ref().map(forwarded),
        }
    }
}

fn audio(media: &AudioSession, stats: &AudioStats, side: Side) -> MeasuredSide {
    let own = media.session().leg(side);
    let leg = &stats.session.legs[side as usize];
    let direction = &stats.session.directions[side as usize];
    MeasuredSide {
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
        jitter_ms: leg.jitter.jitter_ns as f64 / NS_PER_MS as f64,
        round_trip_ms: leg.session.rtt_ns.map(|ns| ns as f64 / NS_PER_MS as f64),
        mean: leg.quality.as_ref().map(means).unwrap_or_default(),
        scores: leg.quality.as_ref().map(scores).unwrap_or_default(),
        sender: SenderView::of(own),
        listener: ListenerView::of(own),
        loudness: stats.loudness[side as usize],
        clock_rate_hz: Some(own.takes().audio().clock_rate_hz),
        is_replaced: direction.is_substituted,
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
    quality.mos.map(|mos| mos.sum()).unwrap_or_default()
}

fn forwarded(side: &ForwardSideStats) -> MeasuredSide {
    let [rtp, rtcp] = side.received;
    MeasuredSide {
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
        ..MeasuredSide::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarted_stream_does_not_reduce_the_totals() {
        let counts = |packets, lost| SideCounts {
            packets,
            lost,
            ..SideCounts::default()
        };
        assert_eq!(counts(7, 2).since(&counts(4, 2)), counts(3, 0));
        assert_eq!(counts(5, 0).since(&counts(900, 3)), counts(5, 0));
        // The number of packets has fallen, so the stream was restarted, and the other counts start again too, even if they are larger than
        // before.
        assert_eq!(counts(5, 4).since(&counts(900, 3)), counts(5, 4));
    }
}
