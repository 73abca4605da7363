//! `/v1/events`: call events and stream alarms, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;
use threadbare_base::NS_PER_MS;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use threadbare_control::calls::{CallId, StreamId};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;

use super::app::App;
use super::calls::path;
use super::problem::Problem;
use super::recordings::Recording;
use crate::events::{Event, What};
use crate::service::Service;
use threadbare_recording::FileEvent;
use threadbare_watch::{Change, MovedSession, SessionMove, TimedChange};

/// A call event; its kind is the name of the server-sent event.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallEvent {
    /// Call-ID. Bytes that are not UTF-8 are replaced.
    id: String,
    path: String,
    /// ms since 1970.
    unix_ms: u64,
    /// The tag of the party concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// For `media`: the address that the party sends from.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_address: Option<String>,
    /// For `media`: the SSRC of the party's stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    ssrc: Option<u32>,
    /// For `dtmf`: the digit, 0 to 9, *, #, A to D.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<char>,
    /// For `timeout` and `down`: why the call ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// For `down`: time since the offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
}

/// The data of an event; its kind is the name of the event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the description")]
pub(super) enum EventData {
    Call(CallEvent),
    Alarm(AlarmEvent),
    Recording(Recording),
    Moved(MovedEvent),
}

/// An alarm of a stream or of a party was raised (`alarm`), or has ended (`alarm-ended`).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AlarmEvent {
    /// The stream's name in the file. Absent: the alarm is that of a party.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    /// Call-ID of the party's call.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The path of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The party of the call: 0 is the one that offered first.
    #[serde(skip_serializing_if = "Option::is_none")]
    side: Option<usize>,
    /// The tag of the party, if its stream still runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Name of the alarm, as in `/v1/alarms`.
    alarm: &'static str,
    /// ms since 1970.
    unix_ms: u64,
    /// Time at which the alarm was raised, s since 1970.
    since_unix_s: u64,
    /// The worst value so far. Absent: silence.
    #[serde(skip_serializing_if = "Option::is_none")]
    worst: Option<f64>,
    /// Unit of the value.
    unit: &'static str,
}

/// A stream, or a stream of a call, was moved to another media thread (`moved`).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovedEvent {
    /// The stream's name in the file. Absent: it is a stream of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    /// Call-ID. Bytes that are not UTF-8 are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Path of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Name of the thread that carried the stream.
    from: String,
    /// Name of the thread that carries the stream now.
    to: String,
    /// ms since 1970.
    unix_ms: u64,
}

/// Call events and stream alarms, as server-sent events
///
/// Events of calls: `up` (the call's first stream runs), `media` (a party sends from a new source), `lost` (a party has sent
/// nothing for 10 s and is not on hold), `fallback` and `fallback-ended` (the other party hears the fallback in place of a party,
/// or no longer), `dtmf` (a party has sent a DTMF digit), `recording` (a file has started, is complete
/// or was cut off; `state` is as in `/v1/recordings`), `timeout` (a time-out is about to end the call), `down` (the call has
/// ended). Events of streams and calls: `alarm` and `alarm-ended`; `moved` (a busy media thread has handed the stream, or a stream
/// of the call, to another thread). The data are JSON. A reader that falls behind by 4096 events gets
/// `lagged` with the number of events that it missed. At most 32 readers at a time.
#[utoipa::path(get, path = "/v1/events", tag = "calls", params(
    ("cluster" = Option<u32>, Query, minimum = 1, maximum = 1, description = "1: the events of all nodes, each with its `node`")), responses(
    (status = 200, body = EventData, content_type = "text/event-stream"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The limit of readers is reached")))]
pub(super) async fn listen(
    State(app): State<App>,
) -> Result<Sse<impl Stream<Item = Result<Line, Infallible>>>, Problem> {
    let begun = app.ask(|service: &mut Service| {
        let unix_at_zero_ns = service.calls.settings().unix_at_zero_ns;
        (service.events.listen(), unix_at_zero_ns)
    });
    let (events, unix_at_zero_ns) = begun.await?;
    let events = events.ok_or_else(|| {
        let detail = "the limit of readers of events is reached";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(READERS_S)
    })?;
    let alarms = app.view.changes();
    let files = app.recorder.events();
    let moves = app.view.moves().subscribe();
    let lines = unfold(
        (app, events, alarms, files, moves),
        move |(app, mut events, mut alarms, mut files, mut moves)| async move {
            let line = tokio::select! {
                line = next(&app, &mut events, unix_at_zero_ns) => line?,
                told = alarms.recv() => alarm(&app, told).await?,
                told = files.recv() => recording(told)?,
                told = moves.recv() => moved(told)?,
            };
            Some((Ok(line), (app, events, alarms, files, moves)))
        },
    );
    Ok(Sse::new(lines).keep_alive(KeepAlive::new().interval(QUIET_MAX)))
}

/// Formats an alarm. Returns `None` if the gateway ends.
async fn alarm(app: &App, told: Result<TimedChange, RecvError>) -> Option<Line> {
    let (unix_s, told) = match told {
        Ok(told) => told,
        Err(RecvError::Lagged(missed)) => return Some(lagged(missed)),
        Err(RecvError::Closed) => return None,
    };
    let (name, alarm) = match told.change {
        Change::Raised(alarm) => ("alarm", alarm),
        Change::Cleared(alarm) => ("alarm-ended", alarm),
    };
    let mut data = AlarmEvent {
        stream: None,
        id: None,
        path: None,
        side: None,
        tag: None,
        alarm: alarm.kind.name(),
        unix_ms: unix_s * 1000,
        since_unix_s: alarm.since_unix_s,
        worst: alarm.worst.is_finite().then_some(alarm.worst),
        unit: alarm.kind.unit(),
    };
    match told.party {
        None => data.stream = Some(told.name.to_string()),
        Some(party) => {
            data.id = Some(told.name.to_string());
            data.side = Some(party.side);
            let stream = StreamId(party.stream);
            let call = app.ask(move |service: &mut Service| {
                service.calls.stream(stream).map(|(call, _)| call.clone())
            });
            if let Some(call) = call.await.ok().flatten() {
                data.path = Some(path(&call));
                data.tag = tag_of(app, call, stream, party.side).await;
            }
        }
    }
    let text = serde_json::to_string(&data).unwrap_or_default();
    Some(Line::default().event(name).data(text))
}

/// Formats a recording. Returns `None` if the gateway ends.
fn recording(told: Result<FileEvent, RecvError>) -> Option<Line> {
    let entry = match told {
        Ok(entry) => entry,
        Err(RecvError::Lagged(missed)) => return Some(lagged(missed)),
        Err(RecvError::Closed) => return None,
    };
    let text = serde_json::to_string(&Recording::of(&entry)).unwrap_or_default();
    Some(Line::default().event("recording").data(text))
}

/// Formats a move. Returns `None` if the gateway ends.
fn moved(told: Result<SessionMove, RecvError>) -> Option<Line> {
    let told = match told {
        Ok(told) => told,
        Err(RecvError::Lagged(missed)) => return Some(lagged(missed)),
        Err(RecvError::Closed) => return None,
    };
    let (stream, call) = match told.of {
        MovedSession::Stream(name) => (Some(name), None),
        MovedSession::Call(id) => (None, Some(CallId::new(&id))),
    };
    let data = MovedEvent {
        stream,
        id: call.as_ref().map(ToString::to_string),
        path: call.as_ref().map(path),
        from: told.from,
        to: told.to,
        unix_ms: told.unix_ms,
    };
    let text = serde_json::to_string(&data).unwrap_or_default();
    Some(Line::default().event("moved").data(text))
}

fn lagged(missed: u64) -> Line {
    let text = serde_json::json!({ "missed": missed }).to_string();
    Line::default().event("lagged").data(text)
}

/// Waits for the next call event, and formats it. Returns `None` if the relay ends.
async fn next(app: &App, events: &mut Receiver<Event>, unix_at_zero_ns: u64) -> Option<Line> {
    match events.recv().await {
        Ok(event) => {
            let tag = tag(app, &event).await;
            let data = shown(&event, tag, unix_at_zero_ns);
            let text = serde_json::to_string(&data).unwrap_or_default();
            Some(Line::default().event(name(event.what)).data(text))
        }
        Err(RecvError::Lagged(missed)) => Some(lagged(missed)),
        Err(RecvError::Closed) => None,
    }
}

/// Returns the tag of an event's party, if its stream still runs.
async fn tag(app: &App, event: &Event) -> Option<String> {
    let (stream, side) = match event.what {
        What::Media { stream, side, .. }
        | What::Lost { stream, side }
        | What::Fallback { stream, side, .. }
        | What::Key { stream, side, .. } => (stream, side),
        What::Up | What::Timeout { .. } | What::Down { .. } => return None,
    };
    tag_of(app, event.call.clone(), stream, side as usize).await
}

/// Returns the tag of a party, if its stream still runs.
async fn tag_of(app: &App, call: CallId, stream: StreamId, side: usize) -> Option<String> {
    let found = app.ask(move |service: &mut Service| {
        let streams = service.calls.view(&call)?.streams;
        let mut own = streams.into_iter().filter(|one| one.stream == stream);
        Some(own.next()?.sides[side].tag.clone())
    });
    found.await.ok().flatten()
}

fn name(what: What) -> &'static str {
    match what {
        What::Up => "up",
        What::Media { .. } => "media",
        What::Lost { .. } => "lost",
        What::Fallback { is_on: true, .. } => "fallback",
        What::Fallback { is_on: false, .. } => "fallback-ended",
        What::Key { .. } => "dtmf",
        What::Timeout { .. } => "timeout",
        What::Down { .. } => "down",
    }
}

fn shown(event: &Event, tag: Option<String>, unix_at_zero_ns: u64) -> CallEvent {
    let mut shown = CallEvent {
        id: event.call.to_string(),
        path: path(&event.call),
        unix_ms: unix_at_zero_ns.saturating_add(event.at_ns) / NS_PER_MS,
        tag,
        remote_address: None,
        ssrc: None,
        key: None,
        reason: None,
        duration_ms: None,
    };
    match event.what {
        What::Media { from, ssrc, .. } => {
            shown.remote_address = Some(from.to_string());
            shown.ssrc = Some(ssrc);
        }
        What::Key { key, .. } => shown.key = Some(key),
        What::Timeout { reason } => shown.reason = Some(reason.name()),
        What::Down { reason, lasted_ns } => {
            shown.reason = Some(reason.name());
            shown.duration_ms = Some(lasted_ns / NS_PER_MS);
        }
        What::Up | What::Lost { .. } | What::Fallback { .. } => {}
    }
    shown
}

/// Retry-After, in s. Readers leave when their programs end.
const READERS_S: u32 = 10;
/// Maximum silence before a comment is sent. Some HTTP proxies treat a connection as dead after a minute of silence.
const QUIET_MAX: Duration = Duration::from_secs(15);
