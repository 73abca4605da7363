//! What the owner of the registry does for it, and what it tells.

use std::net::SocketAddr;
use std::sync::Arc;

use threadbare_rtp::call::Side;

use super::id::{CallId, StreamId};
use super::record::CallRecord;
use super::spec::StreamSpec;

/// What the registry's owner is to do, in this order.
#[derive(Debug)]
pub enum Action<P> {
    /// Carry a stream from now on.
    Create {
        /// Its name in later actions.
        stream: StreamId,
        /// The call that it belongs to.
        call: CallId,
        /// What to do.
        spec: Box<StreamSpec>,
        /// Of side A and side B.
        ports: [P; 2],
    },
    /// The stream goes on by this specification.
    Update {
        /// Which one.
        stream: StreamId,
        /// The whole of it.
        spec: Box<StreamSpec>,
    },
    /// The stream ends; its ports are closed.
    Remove {
        /// Which one.
        stream: StreamId,
    },
    /// Something to be done once.
    Command {
        /// To which stream.
        stream: StreamId,
        /// What.
        command: StreamCommand,
    },
    /// A call has ended. All of its streams were removed before.
    Ended {
        /// What is known of it.
        record: Box<CallRecord>,
    },
}

/// Something that a stream is to do once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamCommand {
    /// Play to a party instead of what the other one sends. What is played to it ends.
    Play {
        /// Who hears it.
        to: Side,
        /// What.
        source: MediaSource,
        /// How often, from 1.
        times: u32,
        /// No more than this on the whole, ms.
        duration_ms: Option<u64>,
        /// The frame to begin with, the first time.
        start_frame: u64,
    },
    /// End what is played to a party.
    StopPlay {
        /// Who hears it.
        to: Side,
    },
    /// A key pressed by a party, for the other one to hear.
    PlayKey {
        /// Whose key it is.
        of: Side,
        /// 0 to 15: `0` to `9`, `*`, `#`, `A` to `D` (RFC 4733, section 3.2).
        key: u8,
        /// How long, ms.
        duration_ms: u32,
        /// How loud, dBm0; 0 or less.
        volume_dbm0: i8,
        /// Before the next key, ms.
        pause_ms: u32,
    },
    /// Write the stream to a file, or go on with a recording that pauses.
    StartRecording(Recording),
    /// The recording pauses; its file stays open.
    PauseRecording,
    /// The recording ends.
    StopRecording {
        /// Its files are deleted.
        discard: bool,
    },
}

/// What is played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaSource {
    /// A file of the machine.
    File(String),
    /// The bytes of a file.
    Bytes(Arc<[u8]>),
}

/// How a call is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Recording {
    /// The file's name as the request has it; `None`: one of the recorder's choice.
    pub destination: Option<String>,
    /// The folder as the request has it; `None`: the recorder's.
    pub directory: Option<String>,
    /// To be kept beside the recording.
    pub metadata: Option<String>,
}

/// When media of a stream arrived last, told some times a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Media {
    /// From side A and side B, ns on the registry's clock; `None`: none yet.
    pub heard_ns: [Option<u64>; 2],
}

/// Counters of a stream, for `query` and `delete`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StreamStats {
    /// Of side A and side B.
    pub sides: [SideStats; 2],
}

/// Of what came from one party.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SideStats {
    /// RTP, or datagrams.
    pub rtp: Counts,
    /// RTCP.
    pub rtcp: Counts,
    /// When the last RTP packet came, ns on the registry's clock.
    pub heard_ns: Option<u64>,
    /// Where RTP is sent: as learned, or as signalled.
    pub rtp_to: Option<SocketAddr>,
    /// Its sources of media, with their quality.
    pub sources: Vec<SourceStats>,
}

/// Packets of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Taken.
    pub packets: u64,
    /// Of them, headers included.
    pub bytes: u64,
    /// Refused.
    pub errors: u64,
}

/// The quality of one source's media, by the reports about it. The lowest and the highest are those with the lowest and highest mean
/// opinion score.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceStats {
    /// Its SSRC.
    pub ssrc: u32,
    /// How many reports there were.
    pub samples: u32,
    /// The means of all reports; `None`: there was none yet.
    pub average: Option<Quality>,
    /// The worst report, and when it came, ns on the registry's clock.
    pub lowest: Option<(u64, Quality)>,
    /// The best one.
    pub highest: Option<(u64, Quality)>,
}

/// Measures of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quality {
    /// Mean opinion score in tenths: 10 to 45.
    pub mos_tenths: u32,
    /// Interarrival jitter, ms.
    pub jitter_ms: u32,
    /// Round trip, µs.
    pub round_trip_us: u32,
    /// Packets lost, percent.
    pub loss_percent: u32,
}
