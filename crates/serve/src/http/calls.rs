//! `/v1/calls`: lists the current calls in pages, shows a call with its media, and ends a call.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use threadbare_control::calls::{CallId, CallView, StreamId};
use threadbare_runtime::clock_now_ns;
use utoipa::ToSchema;

use super::app::App;
use super::id::{CALLS, CallPath, Id};
use super::problem::Problem;
use super::way::{LogLine, log_lines};
use crate::call_name::{decode, encode};
use crate::measured::Measured;
use crate::media::StreamNow;
use crate::quality_history::QualityHistory;
use crate::service::Service;
use crate::views::{Party, Stream, Wall};
use threadbare_process::logging::Subject;
use threadbare_watch::AlarmKind;

/// A page of calls, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallPage {
    calls: Vec<CallSummary>,
    /// Path and query of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A summary of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallSummary {
    /// Call-ID. Bytes that are not UTF-8 are replaced.
    id: String,
    /// The path of the call, with its id in percent-encoding.
    path: String,
    /// Time of the offer, ms since 1970.
    created_unix_ms: u64,
    /// Time of the first answer, ms since 1970. Absent: the call is still ringing.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_unix_ms: Option<u64>,
    /// Time since the offer.
    duration_ms: u64,
    streams: usize,
    /// Whether a stream is being recorded.
    recorded: bool,
    /// Whether a party of a running stream is on hold.
    held: bool,
    /// Names of the alarms that are raised for a party, each once.
    alarms: Vec<&'static str>,
    /// Both parties of the first running stream; if no stream runs, of the first stream.
    #[schema(max_items = 2)]
    parties: Vec<Party>,
    /// The lower mean opinion score of the two parties over the last seconds. Absent: no report came.
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
    /// The higher loss of the two parties over the last seconds. Absent: no media came.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_percent: Option<f64>,
}

/// The quality of a call's streams over the last ten minutes, in the order of its `streams`; empty for streams that do not run.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallHistory {
    id: String,
    streams: Vec<StreamHistory>,
}

/// The quality of a stream: a value for each point in time, oldest first. Points are 5 to 10 s apart.
#[derive(Debug, Default, Serialize, ToSchema)]
struct StreamHistory {
    /// Time of each point, s since 1970.
    unix_s: Vec<u64>,
    /// The party that offered first, then the one that answered.
    #[schema(inline, min_items = 2, max_items = 2)]
    sides: [SideHistory; 2],
}

/// The quality of a party at each point: of its media since the previous point.
#[derive(Debug, Default, Serialize, ToSchema)]
struct SideHistory {
    /// Mean opinion score (G.107); null: no report was due.
    mos: Vec<Option<f64>>,
    /// Lost or late packets; null: no packets came.
    loss_percent: Vec<Option<f64>>,
    /// Interarrival jitter (RFC 3550); null: no packets came.
    jitter_ms: Vec<Option<f64>>,
}

/// A call with its streams.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallDetail {
    /// Call-ID. Bytes that are not UTF-8 are replaced.
    id: String,
    /// The path of the call, with its id in percent-encoding.
    path: String,
    /// Time of the offer, ms since 1970.
    created_unix_ms: u64,
    /// Time of the last signalling, ms since 1970.
    signalled_unix_ms: u64,
    /// Time of the first answer, ms since 1970. Absent: the call is still ringing.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_unix_ms: Option<u64>,
    /// Time since the offer.
    duration_ms: u64,
    /// Time at which a time-out ends the call if no more signalling or media come, ms since 1970. Absent: no time-out applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_unix_ms: Option<u64>,
    /// Reason of that time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_reason: Option<&'static str>,
    /// Streams, including ended ones.
    streams: Vec<Stream>,
}

/// The parameters of a page.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    after: Option<CallId>,
    limit: usize,
}

impl Page {
    fn read(query: &str) -> Result<Page, Problem> {
        let mut page = Page {
            after: None,
            limit: LIMIT_USUAL,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "after" => page.after = Some(decode(value)),
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    let allowed = format!("a whole number from 1 to {LIMIT_MAX}");
                    page.limit = limit.ok_or_else(|| Problem::value("limit", value, allowed))?;
                }
                // Without a cluster, the calls of this node are all calls.
                "cluster" if value == "1" => {}
                other => return Err(Problem::value("query", other, "after, limit, cluster=1")),
            }
        }
        Ok(page)
    }
}

/// Returns the path of the page that follows this call.
pub(super) fn list_path(last: &CallId, limit: usize) -> String {
    format!("{CALLS}?after={}&limit={limit}", encode(last))
}

/// Returns the number of calls that a query asks for.
///
/// # Errors
/// Fails if the query is invalid.
pub(super) fn limit_of(query: &str) -> Result<usize, Problem> {
    Ok(Page::read(query)?.limit)
}

/// Current calls, page by page
#[utoipa::path(get, path = "/v1/calls", tag = "calls", params(
    ("after" = Option<String>, Query, description = "Start after this id"),
    ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Calls in a page; default 50"),
    ("cluster" = Option<u32>, Query, minimum = 1, maximum = 1, description = "1: the calls of all nodes, each with its `node`; `missing` has the nodes that did not answer")),
    responses((status = 200, body = CallPage),
    (status = 400, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): State<App>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<CallPage>, Problem> {
    let page = Page::read(query.as_deref().unwrap_or_default())?;
    let found = app.ask(move |service: &mut Service| {
        let ids = service.calls.ids(page.after.as_ref());
        let mut ids: Vec<CallId> = ids.take(page.limit + 1).cloned().collect();
        let has_more = ids.len() > page.limit;
        ids.truncate(page.limit);
        let next = ids
            .last()
            .filter(|_| has_more)
            .map(|last| list_path(last, page.limit));
        let view = |id: CallId| {
            let view = service.calls.view(&id)?;
            let streams = view.streams.iter();
            let now = streams.map(|one| service.media.now(one.stream)).collect();
            Some((id, view, now))
        };
        let views: Vec<_> = ids.into_iter().filter_map(view).collect();
        (views, next, wall(service))
    });
    let (views, next, wall) = found.await?;
    let summary = |(id, view, now): (CallId, CallView, Vec<_>)| summary(wall, &id, view, &now);
    let calls = views.into_iter().map(summary).collect();
    Ok(axum::Json(CallPage { calls, next }))
}

/// Summarises a call. `now` contains the last known state of each stream.
fn summary(wall: Wall, id: &CallId, view: CallView, now: &[Option<StreamNow>]) -> CallSummary {
    let running = || now.iter().flatten();
    let heard = || {
        running()
            .filter_map(|one| one.last)
            .flat_map(|one| one.sides)
    };
    let raised = running().flat_map(|one| one.alarms.iter().flatten());
    let kinds: BTreeSet<_> = raised.map(|alarm| alarm.kind).collect();
    let first = now.iter().position(Option::is_some).unwrap_or(0);
    let streams = view.streams.len();
    let sides = view.streams.into_iter().nth(first).map(|one| one.sides);
    CallSummary {
        id: id.to_string(),
        path: path(id),
        created_unix_ms: wall.unix_ms(view.created_ns),
        answered_unix_ms: view.answered_ns.map(|at_ns| wall.unix_ms(at_ns)),
        duration_ms: wall.since_ms(view.created_ns),
        streams,
        recorded: running().any(|one| one.is_recorded),
        held: running().any(|one| one.is_held.contains(&true)),
        alarms: kinds.into_iter().map(AlarmKind::name).collect(),
        parties: sides.into_iter().flatten().map(Party::from).collect(),
        mos: heard().filter_map(|side| side.mos()).reduce(f64::min),
        loss_percent: heard()
            .filter_map(|side| side.loss_percent())
            .reduce(f64::max),
    }
}

/// A call with its media
#[utoipa::path(get, path = "/v1/calls/{id}", tag = "calls", params(CallPath),
    responses((status = 200, body = CallDetail),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(app): State<App>,
    Id(id): Id,
) -> Result<axum::Json<CallDetail>, Problem> {
    let name = id.clone();
    let found = app.ask(move |service: &mut Service| look(service, &name));
    let looked = found.await?.ok_or_else(|| unknown(&id))?;
    let Looked {
        view,
        measured,
        now,
        wall,
    } = looked;
    let (ends, reason) = view.end.unzip();
    let streams = view.streams.into_iter().zip(now);
    Ok(axum::Json(CallDetail {
        id: id.to_string(),
        path: path(&id),
        created_unix_ms: wall.unix_ms(view.created_ns),
        signalled_unix_ms: wall.unix_ms(view.signalled_ns),
        answered_unix_ms: view.answered_ns.map(|at_ns| wall.unix_ms(at_ns)),
        duration_ms: wall.since_ms(view.created_ns),
        ends_unix_ms: ends.map(|at_ns| wall.unix_ms(at_ns)),
        end_reason: reason.map(|reason| reason.name()),
        streams: streams
            .map(|(one, now)| Stream::of(wall, one, &measured, now))
            .collect(),
    }))
}

/// The quality of a call's parties over the last ten minutes
#[utoipa::path(get, path = "/v1/calls/{id}/history", tag = "calls", operation_id = "history_of_call", params(CallPath),
    responses((status = 200, body = CallHistory),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn history(
    State(app): State<App>,
    Id(id): Id,
) -> Result<axum::Json<CallHistory>, Problem> {
    let name = id.clone();
    let found = app.ask(move |service: &mut Service| {
        let view = service.calls.view(&name)?;
        let wall = wall(service);
        let of = |stream: StreamId| {
            let history = service.media.history(stream);
            history.map_or_else(StreamHistory::default, |history| {
                StreamHistory::of(wall, history)
            })
        };
        let streams = view.streams.iter().map(|one| of(one.stream));
        Some(streams.collect())
    });
    let streams = found.await?.ok_or_else(|| unknown(&id))?;
    let id = id.to_string();
    Ok(axum::Json(CallHistory { id, streams }))
}

impl StreamHistory {
    fn of(wall: Wall, quality: &QualityHistory) -> StreamHistory {
        let mut history = StreamHistory::default();
        for point in quality.points() {
            let at_ns = u64::from(point.at_s) * 1_000_000_000;
            history.unix_s.push(wall.unix_ms(at_ns) / 1000);
            for (side, heard) in history.sides.iter_mut().zip(point.sides) {
                side.mos.push(heard.mos());
                side.loss_percent.push(heard.loss_percent());
                side.jitter_ms.push(heard.jitter_ms());
            }
        }
        history
    }
}

/// The last log lines about a call.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallLog {
    /// Call-ID. Bytes that are not UTF-8 are replaced.
    id: String,
    lines: Vec<LogLine>,
}

/// The last log lines about a call
///
/// At most 50 lines, newest first. DTMF digits are not among them. Lines about ended calls stay until others replace them.
#[utoipa::path(get, path = "/v1/calls/{id}/log", tag = "calls", operation_id = "log_of_call", params(CallPath), responses((status = 200, body = CallLog)))]
pub(super) async fn log(Id(id): Id) -> axum::Json<CallLog> {
    let id = id.to_string();
    let lines = log_lines(Subject::Call, &id);
    axum::Json(CallLog { id, lines })
}

/// End a call
#[utoipa::path(delete, path = "/v1/calls/{id}", tag = "calls", params(CallPath),
    responses((status = 204, description = "The call has ended"),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn end(State(app): State<App>, Id(id): Id) -> Result<StatusCode, Problem> {
    let name = id.clone();
    if app
        .ask(move |service: &mut Service| service.end(&name))
        .await?
    {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(unknown(&id))
    }
}

/// Creates the error for a call that does not exist.
pub(super) fn unknown(id: &CallId) -> Problem {
    let name: String = id.to_string().chars().take(ID_CHARS_MAX).collect();
    let problem = Problem::new(
        StatusCode::NOT_FOUND,
        format!("the call {name} does not exist"),
    );
    problem.about("id", format!("those of GET {CALLS}"))
}

/// Returns the path of a call.
pub(super) fn path(id: &CallId) -> String {
    format!("{CALLS}/{}", encode(id))
}

fn wall(service: &Service) -> Wall {
    Wall {
        unix_at_zero_ns: service.calls.settings().unix_at_zero_ns,
        now_ns: clock_now_ns(),
    }
}

/// A call with the latest statistics of its streams.
struct Looked {
    view: CallView,
    measured: BTreeMap<StreamId, Measured>,
    now: Vec<Option<StreamNow>>,
    wall: Wall,
}

fn look(service: &mut Service, id: &CallId) -> Option<Looked> {
    let view = service.calls.view(id)?;
    let media = &service.media;
    let streams = || view.streams.iter().map(|one| one.stream);
    let measured = streams().filter_map(|one| Some((one, media.measured(one)?)));
    let measured = measured.collect();
    let now = streams().map(|one| media.now(one)).collect();
    Some(Looked {
        view,
        measured,
        now,
        wall: wall(service),
    })
}

const LIMIT_USUAL: usize = 50;
/// Maximum number of calls in a page. Such a page takes some 2 ms of the thread that answers proxies.
const LIMIT_MAX: usize = 200;
/// Maximum number of characters of an unknown id that an error quotes.
const ID_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_an_invalid_page_states_the_allowed_values() {
        let page = |after: Option<&[u8]>, limit| Page {
            after: after.map(CallId::new),
            limit,
        };
        assert_eq!(Page::read(""), Ok(page(None, 50)));
        assert_eq!(
            Page::read("limit=200&after=a%20b%FF"),
            Ok(page(Some(b"a b\xff"), 200))
        );
        for (query, words) in [
            ("limit=0", "1 to 200"),
            ("limit=201", "1 to 200"),
            ("limit=", "1 to 200"),
            ("limit=x", "1 to 200"),
            ("page=2", "after, limit"),
        ] {
            let said = format!("{:?}", Page::read(query).expect_err(query));
            assert!(said.contains(words), "{said}");
        }
    }
}
