//! Converts calls to types of the HTTP API. Names of fields contain units, and SRTP keys are left out.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use threadbare_base::NS_PER_MS;

use serde::Serialize;
use threadbare_control::calls::{SideRecord, StreamId, StreamRecord};
use threadbare_relay::Loudness;
use threadbare_watch::{Alarm, Level};
use utoipa::ToSchema;

use super::measured::{Measured, MeasuredSide};
use super::media::StreamNow;
use super::reports::{ListenerReport, SenderReport};

/// An `m=` line between two parties.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Stream {
    /// The kind of media, for example `audio`.
    media: String,
    /// Whether the stream runs.
    running: bool,
    /// Whether the stream is being recorded.
    recorded: bool,
    /// Whether the stream can be listened to.
    decoded: bool,
    /// The party that offered first, then the one that answered.
    #[schema(inline, min_items = 2, max_items = 2)]
    sides: Vec<StreamSide>,
}

/// A party according to its signalling.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Party {
    /// SIP tag of the party. Bytes that are not UTF-8 are replaced.
    tag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// The audio codec sent to the party, such as `PCMU/8000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<String>,
    /// The address at which the party receives media, according to its SDP.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    signalled_address: Option<SocketAddr>,
}

/// A party of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamSide {
    #[serde(flatten)]
    party: Party,
    /// The relay's address, to which the party must send.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    local_address: Option<SocketAddr>,
    /// The SRTP crypto suite. Absent: no SRTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    crypto_suite: Option<&'static str>,
    /// Whether the party's media are kept from the other party, because of its SDP or on request. Absent: the stream does not
    /// run.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<bool>,
    /// Whether the other party hears silence in place of this party. Absent: the stream does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    muted: Option<bool>,
    /// The raised alarms about the party's media.
    alarms: Vec<SideAlarm>,
    /// The media of the party. Absent: the stream has not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    media: Option<SideMedia>,
}

/// A raised alarm of a party.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SideAlarm {
    /// `no-packets`, `silence` or `loss`.
    alarm: &'static str,
    /// s since 1970.
    since_unix_s: u64,
    /// The worst value so far; absent: silence.
    #[serde(skip_serializing_if = "Option::is_none")]
    worst: Option<f64>,
    /// Unit of the value.
    unit: &'static str,
    is_acknowledged: bool,
}

impl From<&Alarm> for SideAlarm {
    fn from(alarm: &Alarm) -> SideAlarm {
        SideAlarm {
            alarm: alarm.kind.name(),
            since_unix_s: alarm.since_unix_s,
            worst: alarm.worst.is_finite().then_some(alarm.worst),
            unit: alarm.kind.unit(),
            is_acknowledged: alarm.is_acknowledged,
        }
    }
}

/// The media of a party.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SideMedia {
    /// Destination of media sent to the party: learned, or signalled.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_address: Option<SocketAddr>,
    /// SSRC of the party's media.
    #[serde(skip_serializing_if = "Option::is_none")]
    ssrc: Option<u32>,
    packets_received: u64,
    bytes_received: u64,
    packets_sent: u64,
    rtcp_packets_received: u64,
    /// Datagrams that were refused.
    datagrams_refused: u64,
    packets_lost: u64,
    packets_late: u64,
    /// Audio that was concealed because the party's packets were lost.
    concealed_ms: u64,
    /// Whether the other party hears the fallback in place of this party, because no packets come from it.
    fallback: bool,
    /// Time of the last RTP packet, ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_packet_unix_ms: Option<u64>,
    /// Current interarrival jitter (RFC 3550).
    jitter_ms: f64,
    /// The last round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    /// Loudness of the party's audio (EBU R128). Absent: `meter` in `[calls]` is not set, the codec is not decoded, or no packets yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    loudness: Option<SideLoudness>,
    /// Mean opinion score (G.107), averaged over all reports. Absent: no report yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
    /// Loss, averaged over all reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_percent: Option<f64>,
    /// Our report on the media from the party. Absent: no media came.
    #[serde(skip_serializing_if = "Option::is_none")]
    sender_report: Option<SenderReport>,
    /// The party's last report on the media sent to it. Absent: none came.
    #[serde(skip_serializing_if = "Option::is_none")]
    listener_report: Option<ListenerReport>,
}

/// Converts the monotonic clock to the wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wall {
    pub(super) unix_at_zero_ns: u64,
    pub(super) now_ns: u64,
}

impl Wall {
    pub(super) fn unix_ms(self, at_ns: u64) -> u64 {
        self.unix_at_zero_ns.saturating_add(at_ns) / NS_PER_MS
    }

    pub(super) fn since_ms(self, at_ns: u64) -> u64 {
        self.now_ns.saturating_sub(at_ns) / NS_PER_MS
    }
}

impl Stream {
    /// Converts a stream. `read` contains measurements of running streams, and `now` the last known state of this stream.
    pub(super) fn of(
        wall: Wall,
        stream: StreamRecord,
        read: &BTreeMap<StreamId, Measured>,
        now: Option<StreamNow>,
    ) -> Stream {
        let measured = read.get(&stream.stream);
        let mut sides = sides(wall, stream.sides, measured);
        if let Some(now) = &now {
            for (at, side) in sides.iter_mut().enumerate() {
                (side.held, side.muted) = (Some(now.is_held[at]), Some(now.is_muted[at]));
                side.alarms = now.alarms[at].iter().map(SideAlarm::from).collect();
            }
        }
        Stream {
            running: measured.is_some(),
            recorded: now.as_ref().is_some_and(|now| now.is_recorded),
            decoded: now.as_ref().is_some_and(|now| now.is_decoded),
            sides,
            media: stream.media,
        }
    }
}

/// Loudness and peak of a party (EBU R128). A value is `null` during silence.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SideLoudness {
    /// Loudness of the last 400 ms.
    momentary_lufs: Option<f64>,
    /// Loudness of the last 3 s.
    short_term_lufs: Option<f64>,
    /// Loudness since the start of the stream.
    integrated_lufs: Option<f64>,
    /// Highest true peak since the start of the stream.
    true_peak_dbtp: Option<f64>,
}

impl From<Loudness> for SideLoudness {
    fn from(loudness: Loudness) -> SideLoudness {
        let level = |db: f64| Level::new(db).db();
        SideLoudness {
            momentary_lufs: level(loudness.momentary_lufs),
            short_term_lufs: level(loudness.short_term_lufs),
            integrated_lufs: level(loudness.integrated_lufs),
            true_peak_dbtp: level(loudness.true_peak_dbtp),
        }
    }
}

/// Converts both parties of a stream.
pub(super) fn sides(
    wall: Wall,
    sides: [SideRecord; 2],
    measured: Option<&Measured>,
) -> Vec<StreamSide> {
    let side = |(place, side): (usize, SideRecord)| StreamSide {
        local_address: side.advertised,
        crypto_suite: side.crypto_suite,
        party: Party::from(side),
        held: None,
        muted: None,
        alarms: Vec::new(),
        media: measured.map(|measured| media(wall, &measured.sides[place])),
    };
    sides.into_iter().enumerate().map(side).collect()
}

impl From<SideRecord> for Party {
    fn from(side: SideRecord) -> Party {
        Party {
            tag: side.tag,
            label: side.label,
            codec: side.codec,
            signalled_address: side.rtp,
        }
    }
}

fn media(wall: Wall, side: &MeasuredSide) -> SideMedia {
    let counts = side.counts;
    SideMedia {
        remote_address: side.rtp_to,
        ssrc: side.ssrc,
        packets_received: counts.packets,
        bytes_received: counts.bytes,
        packets_sent: counts.packets_sent,
        rtcp_packets_received: counts.rtcp_packets,
        datagrams_refused: counts.refused,
        packets_lost: counts.lost,
        packets_late: counts.late,
        concealed_ms: counts.concealed_ns / NS_PER_MS,
        fallback: side.is_replaced,
        last_packet_unix_ms: side.heard_ns.map(|at_ns| wall.unix_ms(at_ns)),
        jitter_ms: side.jitter_ms,
        round_trip_ms: side.round_trip_ms,
        loudness: side.loudness.map(SideLoudness::from),
        mos: side.mean.mos,
        loss_percent: side.mean.loss_percent,
        sender_report: side
            .sender
            .as_ref()
            .map(|view| SenderReport::new(view, true)),
        listener_report: side
            .listener
            .as_ref()
            .map(|view| ListenerReport::new(view, side.clock_rate_hz)),
    }
}
