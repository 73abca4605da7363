//! `/v1/alarms`: the raised alarms, and their acknowledgement.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::problem::Problem;
use threadbare_watch::{Alarm, AlarmKind, Gatherer};

/// The alarms that are currently raised.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RaisedAlarms {
    alarms: Vec<RaisedAlarm>,
}

/// An alarm of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RaisedAlarm {
    stream: String,
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
    /// Collects all raised alarms.
    pub(super) fn of(seen: &Gatherer) -> RaisedAlarms {
        let of_stream = |track: &threadbare_watch::Track| {
            let name = track.watched.name.to_string();
            let shown = |alarm: &Alarm| RaisedAlarm {
                stream: name.clone(),
                alarm: alarm.kind.name(),
                since_unix_s: alarm.since_unix_s,
                worst: alarm.worst.is_finite().then_some(alarm.worst),
                unit: alarm.kind.unit(),
                is_acknowledged: alarm.is_acknowledged,
            };
            track.alarms.raised().map(shown).collect::<Vec<_>>()
        };
        RaisedAlarms {
            alarms: seen.tracks().flat_map(of_stream).collect(),
        }
    }
}

/// The raised alarms of streams
#[utoipa::path(get, path = "/v1/alarms", tag = "streams", responses((status = 200, body = RaisedAlarms)))]
pub(super) async fn list(State(app): State<App>) -> axum::Json<RaisedAlarms> {
    axum::Json(app.view.read(RaisedAlarms::of))
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
    let mut kinds = AlarmKind::ALL.into_iter();
    let kind = kinds.find(|kind| kind.name() == alarm);
    let is_raised = kind.is_some_and(|kind| app.view.acknowledge(&name, kind));
    if is_raised {
        return Ok(StatusCode::NO_CONTENT);
    }
    let detail = format!("{name} {alarm}");
    let problem = Problem::value("alarm", &detail, "one of /v1/alarms");
    Err(problem.with_status(StatusCode::NOT_FOUND))
}
