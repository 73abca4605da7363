//! Actions that the registry asks its owner to carry out, and what the owner reports to the registry.

use std::net::SocketAddr;
use std::sync::Arc;

use threadbare_rtp_types::side::Side;

use super::id::{CallId, StreamId};
use super::record::CallRecord;
use super::spec::StreamSpec;

/// An action for the registry's owner, which must carry out the actions in order.
#[derive(Debug)]
pub enum Action<P> {
    /// Start a stream.
    Create {
        /// The stream's name in later actions.
        stream: StreamId,
        /// The call of the stream.
        call: CallId,
        /// The stream's specification.
        spec: Box<StreamSpec>,
        /// The ports of side A and side B.
        ports: [P; 2],
    },
    /// Change a running stream.
    Update {
        /// The stream.
        stream: StreamId,
        /// The complete new specification.
        spec: Box<StreamSpec>,
    },
    /// End a stream and close its ports.
    Remove {
        /// The stream.
        stream: StreamId,
    },
    /// Give a stream a single command.
    Command {
        /// The stream.
        stream: StreamId,
        /// The command.
        command: StreamCommand,
    },
    /// A call has ended. All of its streams were removed before.
    Ended {
        /// The record of the call.
        record: Box<CallRecord>,
    },
}

/// A single command for a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamCommand {
    /// Play media to a party instead of the other party's media. This ends an earlier playback to that party.
    Play {
        /// The party that hears the media.
        to: Side,
        /// The media.
        source: MediaSource,
        /// Number of repetitions, from 1.
        times: u32,
        /// Longest total duration, ms.
        duration_ms: Option<u64>,
        /// The frame at which the first repetition starts.
        start_frame: u64,
    },
    /// End the playback to a party.
    StopPlay {
        /// The party that hears the media.
        to: Side,
    },
    /// Send a DTMF digit to one party on behalf of the other.
    PlayKey {
        /// The party on whose behalf the digit is sent.
        of: Side,
        /// Event code, 0 to 15: `0` to `9`, `*`, `#`, `A` to `D` (RFC 4733, section 3.2).
        key: u8,
        /// Duration, ms.
        duration_ms: u32,
        /// Volume in dBm0, which is at most 0.
        volume_dbm0: i8,
        /// Pause before the next digit, ms.
        pause_ms: u32,
    },
    /// Record the stream to a file, or resume a paused recording.
    StartRecording(Recording),
    /// Pause the recording. Its file stays open.
    PauseRecording,
    /// End the recording.
    StopRecording {
        /// Whether the files of the recording are deleted.
        discard: bool,
    },
}

/// A source for playback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaSource {
    /// A local file.
    File(String),
    /// The bytes of a file.
    Bytes(Arc<[u8]>),
}

/// The settings of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Recording {
    /// The file's name from the request. `None`: the recorder chooses it.
    pub destination: Option<String>,
    /// The folder from the request. `None`: the recorder's default folder.
    pub directory: Option<String>,
    /// Metadata to store with the recording.
    pub metadata: Option<String>,
}

/// The times at which a stream's parties were last heard. The owner reports them a few times a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Media {
    /// Time of the last media from side A and from side B, ns on the registry's clock. `None`: none has come yet.
    pub heard_ns: [Option<u64>; 2],
}

/// Counters of a stream, for `query` and `delete`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StreamStats {
    /// Counters of side A and side B.
    pub sides: [SideStats; 2],
}

/// Counters of the packets from one party.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SideStats {
    /// RTP packets, or datagrams of other media.
    pub rtp: Counts,
    /// RTCP packets.
    pub rtcp: Counts,
    /// Time of the last RTP packet, ns on the registry's clock.
    pub heard_ns: Option<u64>,
    /// Destination of RTP to the party: its learned address, or else its signalled one.
    pub rtp_to: Option<SocketAddr>,
    /// The party's media sources, with their quality.
    pub sources: Vec<SourceStats>,
}

/// Packets of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Accepted packets.
    pub packets: u64,
    /// Bytes of the accepted packets, headers included.
    pub bytes: u64,
    /// Refused packets.
    pub errors: u64,
}

/// The quality of one media source, as its reports show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceStats {
    /// The source's SSRC.
    pub ssrc: u32,
    /// Number of reports.
    pub samples: u32,
    /// The means of all reports. `None`: no report has come yet.
    pub average: Option<Quality>,
    /// The report with the lowest mean opinion score and its time, ns on the registry's clock.
    pub lowest: Option<(u64, Quality)>,
    /// The report with the highest mean opinion score and its time.
    pub highest: Option<(u64, Quality)>,
}

/// The measures of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quality {
    /// Mean opinion score in tenths: 10 to 45.
    pub mos_tenths: u32,
    /// Interarrival jitter, ms.
    pub jitter_ms: u32,
    /// Round-trip time, µs.
    pub round_trip_us: u32,
    /// Packets lost, percent.
    pub loss_percent: u32,
}
