//! `/v1/streams/{name}`: the details of a stream, such as source, destination, codecs, and the RTCP reports of both sides.

use std::net::SocketAddr;

use axum::extract::{Path, State};
use serde::Serialize;
use threadbare_rtp::leg::{Carries, Payload};
use threadbare_rtp::payload::static_payload;
use threadbare_runtime::clock_now_ns;
use utoipa::ToSchema;

use super::app::App;
use super::problem::Problem;
use super::streams::{StreamNow, unknown};
use crate::reports::{ListenerReport, SenderReport};
use threadbare_process::logging::{RecentLine, Subject, last_lines};
use threadbare_watch::{Track, Way};

/// The current values of a stream, with its details.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamWhole {
    #[serde(flatten)]
    now: StreamNow,
    #[serde(flatten)]
    way: StreamWay,
}

/// Source and destination of a stream.
#[derive(Debug, Serialize, ToSchema)]
struct StreamWay {
    /// Address at which the stream's RTP is received.
    #[schema(value_type = String)]
    local_address: SocketAddr,
    /// Address at which the stream's RTCP is received. It equals `local_address` if RTP and RTCP share a port. Absent: no RTCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    local_rtcp_address: Option<SocketAddr>,
    /// The sender's address. Absent: no packets yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    remote_address: Option<SocketAddr>,
    /// The sender's SSRC.
    #[serde(skip_serializing_if = "Option::is_none")]
    ssrc: Option<u32>,
    /// The configured destination: an address or `latched`; `nobody` if none is configured.
    destination: String,
    /// Address to which the destination was resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    destination_address: Option<SocketAddr>,
    /// The received codec, as configured.
    codec_in: String,
    /// Codec of the last received packet, such as `PCMA/8000`; for a dynamic number (RFC 3551, section 6), for example `payload
    /// type 97`. Absent: no packets yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_heard: Option<String>,
    /// The sent codec; `auto`: the received codec. Absent: the stream has no destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_out: Option<String>,
    /// Whether the stream can be listened to.
    is_decoded: bool,
    /// Our report on the sender. Absent: no packets yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    sender_report: Option<SenderReport>,
    /// The listener's last report. Absent: none came.
    #[serde(skip_serializing_if = "Option::is_none")]
    listener_report: Option<ListenerReport>,
}

/// The last lines of the log about a stream, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamLog {
    name: String,
    lines: Vec<LogLine>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogLine {
    /// ms since 1970.
    unix_ms: u64,
    /// `error`, `warn` or `info`; if `THREADBARE_LOG` enables them, also `debug` and `trace`.
    level: String,
    /// The message, with its fields as `name=value`.
    text: String,
}

/// A stream with its source and destination
#[utoipa::path(get, path = "/v1/streams/{name}", tag = "streams", params(("name" = String, Path, description = "Name in the configuration")),
    responses((status = 200, body = StreamWhole),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<axum::Json<StreamWhole>, Problem> {
    let now_ns = clock_now_ns();
    let way = app.view.read(|seen| {
        let track = seen.find(&name)?;
        Some(StreamWhole {
            now: StreamNow::new(track, now_ns),
            way: StreamWay::new(track),
        })
    });
    way.map(axum::Json).ok_or_else(|| unknown(&name))
}

/// The last log lines about a stream
///
/// At most 50 lines since the process started, newest first.
#[utoipa::path(get, path = "/v1/streams/{name}/log", tag = "streams", params(("name" = String, Path, description = "Name in the configuration")),
    responses((status = 200, body = StreamLog),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn log(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<axum::Json<StreamLog>, Problem> {
    if app.view.read(|seen| seen.find(&name).is_none()) {
        return Err(unknown(&name));
    }
    let lines = log_lines(Subject::Stream, &name);
    Ok(axum::Json(StreamLog { name, lines }))
}

/// Returns the stored log lines about a stream or call.
pub(super) fn log_lines(subject: Subject, name: &str) -> Vec<LogLine> {
    let lines = last_lines(subject, name).into_iter();
    lines.map(LogLine::from).collect()
}

impl StreamWay {
    fn new(track: &Track) -> StreamWay {
        let (way, snapshot): (&Way, _) = (&track.watched.way, &track.snapshot);
        StreamWay {
            local_address: way.listen,
            local_rtcp_address: way.listen_rtcp,
            remote_address: snapshot.source.map(|(address, _)| address),
            ssrc: snapshot.source.map(|(_, ssrc)| ssrc.0),
            destination: way.destination.clone(),
            destination_address: snapshot.rtp_to.filter(|_| way.codec_out.is_some()),
            codec_in: way.codec_in.clone(),
            codec_heard: snapshot.payload.as_ref().map(codec_of),
            codec_out: way.codec_out.clone(),
            is_decoded: way.is_decoded,
            sender_report: snapshot
                .sender
                .as_ref()
                .map(|sender| SenderReport::new(sender, way.listen_rtcp.is_some())),
            listener_report: snapshot
                .listener
                .as_ref()
                .map(|listener| ListenerReport::new(listener, way.clock_rate_out_hz)),
        }
    }
}

/// Formats a codec as in `rtpmap` (RFC 8866, section 6.6).
fn codec_of(payload: &Payload) -> String {
    let (rate_hz, number) = (payload.clock_rate_hz, payload.payload_type);
    let (name, channels) = match (payload.carries, static_payload(number)) {
        (Carries::Audio(format), _) => (format.encoding.name(), u32::from(format.channels)),
        (_, Some(fixed)) => (fixed.encoding_name, fixed.channels),
        (_, None) => return format!("payload type {}", number.0),
    };
    match channels {
        0 | 1 => format!("{name}/{rate_hz}"),
        more => format!("{name}/{rate_hz}/{more}"),
    }
}

impl From<RecentLine> for LogLine {
    fn from(line: RecentLine) -> LogLine {
        LogLine {
            unix_ms: line.unix_ms,
            level: line.level.as_str().to_ascii_lowercase(),
            text: line.text,
        }
    }
}
