//! `/v1/calls`: what is up, page by page; one call with its media; its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use threadbare_control::calls::{CallId, CallView, SideRecord, StreamId, StreamRecord};
use threadbare_relay::Reply;
use threadbare_runtime::clock_now_ns;
use utoipa::ToSchema;

use super::app::{App, within};
use super::id::{CALLS, CallPath, Id, decode, encode};
use super::problem::Problem;
use crate::serve::reading::{Reading, SideReading};
use crate::serve::service::Service;

/// A page of calls, by their ids.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallPage {
    calls: Vec<CallSummary>,
    /// Path and query of the next page; absent: there are no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A call in short.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallSummary {
    /// Its Call-ID, as far as it is UTF-8.
    id: String,
    /// The path of the call, with its id in percent-encoding.
    path: String,
    /// When it was offered, ms since 1970.
    created_unix_ms: u64,
    /// When it was answered first; absent: it rings.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_unix_ms: Option<u64>,
    /// Since the offer.
    duration_ms: u64,
    streams: usize,
}

/// A call.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallDetail {
    /// Its Call-ID, as far as it is UTF-8.
    id: String,
    /// The path of the call, with its id in percent-encoding.
    path: String,
    /// When it was offered, ms since 1970.
    created_unix_ms: u64,
    /// When it was signalled last.
    signalled_unix_ms: u64,
    /// When it was answered first; absent: it rings.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_unix_ms: Option<u64>,
    /// Since the offer.
    duration_ms: u64,
    /// When it ends by itself if nothing more comes; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_unix_ms: Option<u64>,
    /// Why it would end then.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_reason: Option<&'static str>,
    /// Those that have ended included.
    streams: Vec<Stream>,
}

/// An `m=` line between two parties.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Stream {
    /// Such as `audio`.
    media: String,
    /// It is carried now.
    running: bool,
    /// The party that offered first, and the one that answers.
    #[schema(inline, min_items = 2, max_items = 2)]
    sides: Vec<StreamSide>,
}

/// A party of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamSide {
    /// Its SIP tag, as far as it is UTF-8.
    tag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// The audio codec that it is sent, such as `PCMU/8000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<String>,
    /// Where it said that it receives.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    signalled_address: Option<SocketAddr>,
    /// Where it was told to send.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    local_address: Option<SocketAddr>,
    /// The suite of its SRTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    crypto_suite: Option<&'static str>,
    /// Absent: the stream does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    media: Option<SideMedia>,
}

/// The media of a party.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SideMedia {
    /// Where it is sent to: as learned, or as signalled.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_address: Option<SocketAddr>,
    /// Of its media.
    #[serde(skip_serializing_if = "Option::is_none")]
    ssrc: Option<u32>,
    packets_received: u64,
    bytes_received: u64,
    packets_sent: u64,
    rtcp_packets_received: u64,
    /// Datagrams that did not belong.
    datagrams_refused: u64,
    packets_lost: u64,
    packets_late: u64,
    /// Audio made up for its losses.
    concealed_ms: u64,
    /// When the last RTP packet came, ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_packet_unix_ms: Option<u64>,
    /// Interarrival jitter now (RFC 3550).
    jitter_ms: f64,
    /// The last round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    /// Mean opinion score (G.107), of all reports; absent: there was none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
    /// Of all reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_percent: Option<f64>,
}

/// From the monotonic clock to the wall.
#[derive(Debug, Clone, Copy)]
struct Wall {
    unix_at_zero_ns: u64,
    now_ns: u64,
}

impl Wall {
    fn of(service: &Service) -> Wall {
        Wall {
            unix_at_zero_ns: service.calls.settings().unix_at_zero_ns,
            now_ns: clock_now_ns(),
        }
    }

    fn unix_ms(self, at_ns: u64) -> u64 {
        self.unix_at_zero_ns.saturating_add(at_ns) / NS_PER_MS
    }

    fn since_ms(self, at_ns: u64) -> u64 {
        self.now_ns.saturating_sub(at_ns) / NS_PER_MS
    }
}

/// Which page.
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
                other => return Err(Problem::value("query", other, "after, limit")),
            }
        }
        Ok(page)
    }
}

/// Calls that are up, page by page
#[utoipa::path(get, path = "/v1/calls", tag = "calls", params(
    ("after" = Option<String>, Query, description = "Begin behind this id"),
    ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Calls of a page; 50 without it")),
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
            .map(|last| format!("{CALLS}?after={}&limit={}", encode(last), page.limit));
        let view = |id: CallId| Some((service.calls.view(&id)?, id));
        let views: Vec<(CallView, CallId)> = ids.into_iter().filter_map(view).collect();
        (views, next, Wall::of(service))
    });
    let (views, next, wall) = found.await?;
    let summary = |(view, id): (CallView, CallId)| CallSummary {
        id: id.to_string(),
        path: path(&id),
        created_unix_ms: wall.unix_ms(view.created_ns),
        answered_unix_ms: view.answered_ns.map(|at_ns| wall.unix_ms(at_ns)),
        duration_ms: wall.since_ms(view.created_ns),
        streams: view.streams.len(),
    };
    let calls = views.into_iter().map(summary).collect();
    Ok(axum::Json(CallPage { calls, next }))
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
    let (view, readings, wall) = found.await?.ok_or_else(|| unknown(&id))?;
    let mut read = BTreeMap::new();
    for (stream, reading) in readings {
        // A stream that ends meanwhile has no reading.
        if let Ok(reading) = within(reading).await? {
            read.insert(stream, reading);
        }
    }
    let (ends, reason) = view.end.unzip();
    let streams = view.streams.into_iter();
    Ok(axum::Json(CallDetail {
        id: id.to_string(),
        path: path(&id),
        created_unix_ms: wall.unix_ms(view.created_ns),
        signalled_unix_ms: wall.unix_ms(view.signalled_ns),
        answered_unix_ms: view.answered_ns.map(|at_ns| wall.unix_ms(at_ns)),
        duration_ms: wall.since_ms(view.created_ns),
        ends_unix_ms: ends.map(|at_ns| wall.unix_ms(at_ns)),
        end_reason: reason.map(|reason| reason.name()),
        streams: streams.map(|one| shown(wall, one, &read)).collect(),
    }))
}

/// End a call
#[utoipa::path(delete, path = "/v1/calls/{id}", tag = "calls", params(CallPath),
    responses((status = 204, description = "It has ended"),
    (status = 404, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn end(State(app): State<App>, Id(id): Id) -> Result<StatusCode, Problem> {
    let name = id.clone();
    match app
        .ask(move |service: &mut Service| service.end(&name))
        .await?
    {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown(&id)),
    }
}

/// There is no such call.
pub(super) fn unknown(id: &CallId) -> Problem {
    let name: String = id.to_string().chars().take(ID_CHARS_MAX).collect();
    let problem = Problem::new(
        StatusCode::NOT_FOUND,
        format!("{name}: there is no such call"),
    );
    problem.about("id", format!("those of GET {CALLS}"))
}

/// Where a call is found.
pub(super) fn path(id: &CallId) -> String {
    format!("{CALLS}/{}", encode(id))
}

type Looked = (CallView, Vec<(StreamId, Reply<Reading>)>, Wall);

fn look(service: &mut Service, id: &CallId) -> Option<Looked> {
    let view = service.calls.view(id)?;
    let streams = view.streams.iter().map(|one| one.stream);
    let readings = service.media.ask(streams).collect();
    Some((view, readings, Wall::of(service)))
}

fn shown(wall: Wall, stream: StreamRecord, read: &BTreeMap<StreamId, Reading>) -> Stream {
    let reading = read.get(&stream.stream);
    let side = |(place, side): (usize, SideRecord)| StreamSide {
        tag: side.tag,
        label: side.label,
        codec: side.codec,
        signalled_address: side.rtp,
        local_address: side.advertised,
        crypto_suite: side.crypto_suite,
        media: reading.map(|reading| media(wall, &reading.sides[place])),
    };
    Stream {
        media: stream.media,
        running: reading.is_some(),
        sides: stream.sides.into_iter().enumerate().map(side).collect(),
    }
}

fn media(wall: Wall, side: &SideReading) -> SideMedia {
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
        last_packet_unix_ms: side.heard_ns.map(|at_ns| wall.unix_ms(at_ns)),
        jitter_ms: side.jitter_ms,
        round_trip_ms: side.round_trip_ms,
        mos: side.mean.mos,
        loss_percent: side.mean.loss_percent,
    }
}

const NS_PER_MS: u64 = 1_000_000;
const LIMIT_USUAL: usize = 50;
/// A page is made by the thread that answers proxies: some 2 ms.
const LIMIT_MAX: usize = 200;
/// Of an id that is nobody's, in an error.
const ID_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_and_odd_ones_refused_with_what_is_allowed() {
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
