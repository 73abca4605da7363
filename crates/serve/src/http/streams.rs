//! `/v1/streams`: the streams of the configuration file, their current values, and their history of minutes up to a day.

use std::ops::RangeInclusive;
use threadbare_base::NS_PER_MS;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use threadbare_relay::Loudness;
use threadbare_runtime::clock_now_ns;
use utoipa::ToSchema;

use super::app::App;
use super::problem::Problem;
use crate::reports::tenths;
use threadbare_watch::{Level, RECENT_SECONDS, Second, Track, merged};

/// All streams, in the order of the configuration file.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Streams {
    streams: Vec<StreamNow>,
}

/// The current values of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamNow {
    /// Name of the stream in the configuration file.
    name: String,
    /// `heard`: packets of the sender arrive; `fallback`: a fallback is active; `waiting`: no packet has arrived for 3 s;
    /// `stopped`: the stream has failed, and will be restarted.
    state: &'static str,
    /// Why the stream is `stopped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The active input, if there are fallbacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<String>,
    /// Target loudness, LUFS.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_lufs: Option<f64>,
    /// Loudness and peak. Absent: not measured, or no packets yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    loudness: Option<StreamLoudness>,
    /// RTP packets received since the stream started.
    packets: u64,
    /// Packets that had not arrived by their time to be played.
    packets_lost: u64,
    /// Packets that arrived after their time to be played.
    packets_late: u64,
    /// Datagrams that were refused.
    packets_refused: u64,
    /// Loss of the last 10 s.
    loss_percent: f64,
    /// Audio that was concealed because packets were lost.
    concealed_ms: u64,
    /// Interarrival jitter (RFC 3550, A.8).
    jitter_ms: f64,
    /// Mean opinion score of the audio since the last RTCP report (ITU-T G.107), 1 to 4.5. Absent: without RTCP, or before the first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
    /// Packets in the jitter buffer.
    packets_held: u32,
    /// Delay of the jitter buffer.
    latency_ms: f64,
    /// How far the sender's clock has fallen behind since the stream started; negative: it is ahead.
    skew_ms: f64,
    /// Round-trip time, measured with RTCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    /// Time since the last packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_packet_ms: Option<u64>,
}

/// Loudness and peak (EBU R128). A value is `null` during silence.
#[derive(Debug, Serialize, ToSchema)]
struct StreamLoudness {
    /// Loudness of the last 400 ms.
    momentary_lufs: Option<f64>,
    /// Loudness of the last 3 s.
    short_term_lufs: Option<f64>,
    /// Integrated loudness of the programme.
    integrated_lufs: Option<f64>,
    /// Loudness range of the programme.
    range_lu: Option<f64>,
    /// True peak of the programme, in the loudest channel.
    true_peak_dbtp: Option<f64>,
    /// Time of the last reset, with which the current programme started (`loudness-reset`, `/loudness/reset`), s since 1970.
    /// Absent: the programme started with the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    programme_unix_s: Option<u64>,
}

/// The history of a stream: a value for every second (or for every `step` seconds), oldest first. `null`: silence, or not
/// measured.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct History {
    name: String,
    /// End of each second, s since 1970.
    unix_s: Vec<u64>,
    is_heard: Vec<bool>,
    /// Loudness of the loudest 400 ms of the second.
    momentary_lufs: Vec<Option<f64>>,
    /// Loudness of the 3 s that end with the second.
    short_term_lufs: Vec<Option<f64>>,
    integrated_lufs: Vec<Option<f64>>,
    range_lu: Vec<Option<f64>>,
    true_peak_dbtp: Vec<Option<f64>>,
    packets: Vec<u32>,
    packets_lost: Vec<u32>,
    jitter_ms: Vec<f64>,
    packets_held: Vec<u32>,
}

/// All streams of the file
#[utoipa::path(get, path = "/v1/streams", tag = "streams", responses((status = 200, body = Streams)))]
pub(super) async fn list(State(app): State<App>) -> axum::Json<Streams> {
    let now_ns = clock_now_ns();
    let streams = app.view.read(|seen| {
        let streams = seen.tracks().map(|track| StreamNow::new(track, now_ns));
        streams.collect()
    });
    axum::Json(Streams { streams })
}

/// A stream's last seconds
#[utoipa::path(get, path = "/v1/streams/{name}/history", tag = "streams", params(
    ("name" = String, Path, description = "Name in the configuration"),
    ("seconds" = Option<u32>, Query, minimum = 1, maximum = 86400, description = "Number of seconds; default 600. More than 600 only if \
    `[history]` stores them on the disk"),
    ("until" = Option<u64>, Query, description = "End of the time span, s since 1970; default now"),
    ("step" = Option<u32>, Query, minimum = 1, maximum = 3600,
        description = "Number of seconds for each value. A value has the highest level and jitter, and the sum of packets and losses; \
        default 1")),
    responses((status = 200, body = History),
    (status = 400, body = Problem, content_type = "application/problem+json"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 500, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn history(
    State(app): State<App>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<History>, Problem> {
    let span = Span::of(query.as_deref().unwrap_or_default())?;
    let known = tokio::task::spawn_blocking(move || {
        let seconds = app.view.seconds(&name, span.seconds, span.until_s);
        seconds.map(|seconds| match seconds {
            Some(seconds) => Ok(History::new(name, &merged(&seconds, span.step_s))),
            None => Err(unknown(&name)),
        })
    });
    match known.await {
        Ok(Ok(known)) => known.map(axum::Json),
        Ok(Err(error)) => Err(unreadable(&error)),
        Err(error) => Err(unreadable(&error)),
    }
}

/// Restart the loudness of a stream
///
/// Resets integrated loudness, loudness range and the highest true peak for a new programme. The setting `loudness-reset` does
/// this at fixed times of day.
#[utoipa::path(post, path = "/v1/streams/{name}/loudness/reset", tag = "streams", params(("name" = String, Path, description = "Name in the configuration")),
    responses((status = 204),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "Nothing was measured yet")))]
pub(super) async fn reset_loudness(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    if app.view.begin_programme(&name) {
        return Ok(StatusCode::NO_CONTENT);
    }
    if app.view.read(|seen| seen.find(&name).is_none()) {
        return Err(unknown(&name));
    }
    let detail = format!("the stream {name} was not measured yet");
    Err(Problem::new(StatusCode::CONFLICT, detail))
}

/// The span of time that a query asks for.
#[derive(Debug, Clone, Copy)]
struct Span {
    seconds: u64,
    until_s: Option<u64>,
    step_s: u64,
}

impl Span {
    fn of(query: &str) -> Result<Span, Problem> {
        let mut span = Span {
            seconds: RECENT_SECONDS as u64,
            until_s: None,
            step_s: 1,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = |allowed: RangeInclusive<u64>| {
                let number = value.parse().ok();
                let number = number.filter(|number| allowed.contains(number));
                let (least, most) = (allowed.start(), allowed.end());
                let allowed = format!("a whole number from {least} to {most}");
                number.ok_or_else(|| Problem::value(name, value, allowed))
            };
            match name {
                "seconds" => span.seconds = number(1..=86_400)?,
                "until" => span.until_s = Some(number(0..=u64::from(u32::MAX))?),
                "step" => span.step_s = number(1..=3600)?,
                _ => return Err(Problem::value("query", name, "seconds, until or step")),
            }
        }
        Ok(span)
    }
}

fn unreadable(error: &dyn std::error::Error) -> Problem {
    let detail = format!("cannot read the history: {error}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

pub(super) fn unknown(name: &str) -> Problem {
    let problem = Problem::value("name", name, "a stream of /v1/streams");
    problem.with_status(StatusCode::NOT_FOUND)
}

impl StreamNow {
    pub(super) fn new(track: &Track, now_ns: u64) -> StreamNow {
        let (snapshot, tile) = (&track.snapshot, &track.tile);
        let ms = |ns: u64| tenths(ns as f64 / NS_PER_MS as f64);
        let since = |at_ns: u64| now_ns.saturating_sub(at_ns) / NS_PER_MS as f64 as u64;
        StreamNow {
            name: track.watched.name.to_string(),
            state: tile.state.name(),
            reason: track.watched.stopped.as_deref().map(str::to_owned),
            active: track.active().map(str::to_owned),
            target_lufs: track.watched.target_lufs,
            loudness: snapshot
                .loudness
                .map(|loudness| StreamLoudness::new(&loudness, track.programme_s)),
            packets: snapshot.packets,
            packets_lost: snapshot.lost,
            packets_late: snapshot.late,
            packets_refused: snapshot.refused,
            loss_percent: f64::from(tile.lost_permille) / 10.0,
            concealed_ms: snapshot.concealed_ns / NS_PER_MS as f64 as u64,
            jitter_ms: ms(snapshot.jitter_ns),
            mos: snapshot.mos.map(|mos| (mos * 100.0).round() / 100.0),
            packets_held: snapshot.held_packets,
            latency_ms: ms(snapshot.latency_ns),
            skew_ms: tenths(snapshot.skew_ns as f64 / NS_PER_MS as f64),
            round_trip_ms: snapshot.round_trip_ns.map(ms),
            since_packet_ms: snapshot.heard_ns.map(since),
        }
    }
}

impl StreamLoudness {
    fn new(loudness: &Loudness, programme_unix_s: Option<u64>) -> StreamLoudness {
        let level = |db: f64| Level::new(db).db();
        StreamLoudness {
            momentary_lufs: level(loudness.momentary_lufs),
            short_term_lufs: level(loudness.short_term_lufs),
            integrated_lufs: level(loudness.integrated_lufs),
            range_lu: level(loudness.range_lu),
            true_peak_dbtp: level(loudness.true_peak_dbtp),
            programme_unix_s,
        }
    }
}

impl History {
    fn new(name: String, seconds: &[Second]) -> History {
        let levels = |of: fn(&Second) -> Level| seconds.iter().map(|one| of(one).db()).collect();
        let counts = |of: fn(&Second) -> u32| seconds.iter().map(of).collect();
        History {
            name,
            unix_s: seconds.iter().map(|one| one.unix_s).collect(),
            is_heard: seconds.iter().map(|one| one.is_heard).collect(),
            momentary_lufs: levels(|one| one.momentary_lufs),
            short_term_lufs: levels(|one| one.short_term_lufs),
            integrated_lufs: levels(|one| one.integrated_lufs),
            range_lu: levels(|one| one.range_lu),
            true_peak_dbtp: levels(|one| one.true_peak_dbtp),
            packets: counts(|one| one.packets),
            packets_lost: counts(|one| one.lost),
            jitter_ms: seconds
                .iter()
                .map(|one| f64::from(one.jitter_us) / 1000.0)
                .collect(),
            packets_held: counts(|one| one.held_packets),
        }
    }
}
