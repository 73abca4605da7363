//! `/v1/alarms`: the raised alarms, and their acknowledgement.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::id::{CallPath, Id};
use super::problem::Problem;
use crate::service::Service;
use threadbare_watch::{Alarm, AlarmKind, Gatherer};

/// The alarms that are currently raised.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RaisedAlarms {
    alarms: Vec<RaisedAlarm>,
}

/// An alarm of a stream, or of a party of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RaisedAlarm {
    /// Name of the stream. Absent: the alarm is that of a party.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    /// Call-ID of the party's call.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    /// The party of the call: 0 is the one that offered first.
    #[serde(skip_serializing_if = "Option::is_none")]
    side: Option<usize>,
    /// `no-packets`, `silence`, `loudness`, `true-peak`, `loss` or `drift`.
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

impl RaisedAlarms {
    /// Collects the raised alarms of all streams.
    pub(super) fn of(seen: &Gatherer) -> RaisedAlarms {
        let of_stream = |track: &threadbare_watch::Track| {
            let name = track.watched.name.to_string();
            let shown = |alarm: &Alarm| RaisedAlarm {
                stream: Some(name.clone()),
                ..RaisedAlarm::from(alarm)
            };
            track.alarms.raised().map(shown).collect::<Vec<_>>()
        };
        RaisedAlarms {
            alarms: seen.tracks().flat_map(of_stream).collect(),
        }
    }
}

impl From<&Alarm> for RaisedAlarm {
    fn from(alarm: &Alarm) -> RaisedAlarm {
        RaisedAlarm {
            stream: None,
            call: None,
            side: None,
            alarm: alarm.kind.name(),
            since_unix_s: alarm.since_unix_s,
            worst: alarm.worst.is_finite().then_some(alarm.worst),
            unit: alarm.kind.unit(),
            is_acknowledged: alarm.is_acknowledged,
        }
    }
}

/// The raised alarms of streams and calls
#[utoipa::path(get, path = "/v1/alarms", tag = "streams", responses((status = 200, body = RaisedAlarms)))]
pub(super) async fn list(State(app): State<App>) -> axum::Json<RaisedAlarms> {
    let mut raised = app.view.read(RaisedAlarms::of);
    let of_calls = app.view.calls().raised().into_iter();
    raised.alarms.extend(of_calls.map(|one| RaisedAlarm {
        call: Some(one.call.to_string()),
        side: Some(one.party.side),
        ..RaisedAlarm::from(&one.alarm)
    }));
    axum::Json(raised)
}

/// Acknowledge an alarm of a call
///
/// Applies to all parties with this alarm. The alarm stays in the lists until it ends, with `is_acknowledged`.
#[utoipa::path(post, path = "/v1/calls/{id}/alarms/{alarm}/acknowledge", tag = "calls", operation_id = "acknowledge_of_call", params(
    CallPath, ("alarm" = String, Path, description = "Name of the alarm in `/v1/alarms`")),
    responses((status = 204),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "The alarm is not raised")))]
pub(super) async fn acknowledge_of_call(
    State(app): State<App>,
    Id(id): Id,
    Path((_, alarm)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let name = id.to_string();
    let streams = app.ask(move |service: &mut Service| {
        let view = service.calls.view(&id);
        let streams = view.into_iter().flat_map(|view| view.streams);
        streams.map(|one| one.stream.0).collect::<Vec<_>>()
    });
    let (streams, kind) = (streams.await?, kind_of(&alarm));
    let calls = app.view.calls();
    let known = |kind: AlarmKind| {
        let known = streams.iter().filter(|one| calls.acknowledge(**one, kind));
        known.count() > 0
    };
    acknowledged(kind.is_some_and(known), &name, &alarm)
}

/// Acknowledge an alarm
///
/// It stays in the list until it ends, but no longer moves its stream to the top of the wall.
#[utoipa::path(post, path = "/v1/streams/{name}/alarms/{alarm}/acknowledge", tag = "streams", params(
    ("name" = String, Path, description = "Name of the stream"), ("alarm" = String, Path, description = "Name of the alarm in `/v1/alarms`")),
    responses((status = 204),
    (status = 404, body = Problem, content_type = "application/problem+json", description = "The alarm is not raised")))]
pub(super) async fn acknowledge(
    State(app): State<App>,
    Path((name, alarm)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let kind = kind_of(&alarm);
    let is_raised = kind.is_some_and(|kind| app.view.acknowledge(&name, kind));
    acknowledged(is_raised, &name, &alarm)
}

fn kind_of(alarm: &str) -> Option<AlarmKind> {
    let mut kinds = AlarmKind::ALL.into_iter();
    kinds.find(|kind| kind.name() == alarm)
}

fn acknowledged(is_raised: bool, name: &str, alarm: &str) -> Result<StatusCode, Problem> {
    if is_raised {
        return Ok(StatusCode::NO_CONTENT);
    }
    let detail = format!("{name} {alarm}");
    let problem = Problem::value("alarm", &detail, "one of /v1/alarms");
    Err(problem.with_status(StatusCode::NOT_FOUND))
}
