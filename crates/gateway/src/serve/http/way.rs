//! The way of a stream: from where, to where, in which codecs, and what the reports of RTCP say of both sides.

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
use crate::logging::{KeptLine, Subject, last_lines};
use crate::serve::reports::{ListenerReport, SenderReport};
use crate::watch::{Track, Way};

/// What a stream is like, with its way.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamWhole {
    #[serde(flatten)]
    now: StreamNow,
    #[serde(flatten)]
    way: StreamWay,
}

/// Where a stream comes from and goes to.
#[derive(Debug, Serialize, ToSchema)]
struct StreamWay {
    /// Where its RTP is received.
    #[schema(value_type = String)]
    local_address: SocketAddr,
    /// Where its RTCP is received; the same: on one port. Absent: no RTCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    local_rtcp_address: Option<SocketAddr>,
    /// Who is heard. Absent: nobody yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    remote_address: Option<SocketAddr>,
    /// The SSRC of who is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    ssrc: Option<u32>,
    /// As in the file: an address, `latched` or `nobody`.
    destination: String,
    /// Where it is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    destination_address: Option<SocketAddr>,
    /// The codec that comes, as in the file.
    codec_in: String,
    /// The codec that came last, such as `PCMA/8000`; `payload type 97` where the number has no meaning of its own (RFC 3551, section 6). Absent: nobody is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_heard: Option<String>,
    /// The codec that leaves; `auto`: as it comes. Absent: nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_out: Option<String>,
    /// Whether it can be listened to.
    is_decoded: bool,
    /// What our reports say of who sends. Absent: nobody was heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    sender_report: Option<SenderReport>,
    /// What who hears it last said of it. Absent: nothing.
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
    /// `error`, `warn`, `info`; with `THREADBARE_LOG` also `debug`, `trace`.
    level: String,
    /// The message, and what belongs to it as `name=value`.
    text: String,
}

/// What a stream is like, where it comes from and goes to
#[utoipa::path(get, path = "/v1/streams/{name}", tag = "streams", params(("name" = String, Path, description = "As in the file")),
    responses((status = 200, body = StreamWhole),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<axum::Json<StreamWhole>, Problem> {
    let now_ns = clock_now_ns();
    let shown = app.view.read(|seen| {
        let track = seen.find(&name)?;
        Some(StreamWhole {
            now: StreamNow::new(track, now_ns),
            way: StreamWay::new(track),
        })
    });
    shown.map(axum::Json).ok_or_else(|| unknown(&name))
}

/// The last lines of the log about a stream
///
/// Those that the log has, 50 at most, newest first, since the process began.
#[utoipa::path(get, path = "/v1/streams/{name}/log", tag = "streams", params(("name" = String, Path, description = "As in the file")),
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

/// Those that are kept of it.
pub(super) fn log_lines(subject: Subject, name: &str) -> Vec<LogLine> {
    let lines = last_lines(subject, name).into_iter();
    lines.map(LogLine::from).collect()
}

impl StreamWay {
    fn new(track: &Track) -> StreamWay {
        let (way, shown): (&Way, _) = (&track.watched.way, &track.shown);
        StreamWay {
            local_address: way.listen,
            local_rtcp_address: way.listen_rtcp,
            remote_address: shown.source.map(|(address, _)| address),
            ssrc: shown.source.map(|(_, ssrc)| ssrc.0),
            destination: way.destination.clone(),
            destination_address: shown.rtp_to.filter(|_| way.codec_out.is_some()),
            codec_in: way.codec_in.clone(),
            codec_heard: shown.payload.as_ref().map(codec_of),
            codec_out: way.codec_out.clone(),
            is_decoded: way.is_decoded,
            sender_report: shown
                .sender
                .as_ref()
                .map(|sender| SenderReport::new(sender, way.listen_rtcp.is_some())),
            listener_report: shown
                .listener
                .as_ref()
                .map(|listener| ListenerReport::new(listener, way.clock_rate_out_hz)),
        }
    }
}

/// As in `rtpmap` (RFC 8866, section 6.6).
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

impl From<KeptLine> for LogLine {
    fn from(line: KeptLine) -> LogLine {
        LogLine {
            unix_ms: line.unix_ms,
            level: line.level.as_str().to_ascii_lowercase(),
            text: line.text,
        }
    }
}
