//! `/v1/wall`: a summary of all streams, ten times a second, and of the media threads, once a second, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use threadbare_runtime::clock_now_ns;
use utoipa::ToSchema;

use super::alarms::RaisedAlarms;
use super::app::App;
use super::problem::Problem;
use threadbare_watch::{Frames, ThreadTrack, View};

/// The data of an event; its kind is the name of the event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the description")]
pub(super) enum WallEvent<'a> {
    Streams(WallStreams),
    Tiles(WallTiles<'a>),
    Threads(WallThreads),
    Alarms(RaisedAlarms),
}

/// The event `streams`: the list of streams to which the next `tiles` refer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WallStreams {
    /// Number of this list; another list has another number.
    generation: u64,
    streams: Vec<WallStream>,
}

/// A stream of the wall.
#[derive(Debug, Serialize, ToSchema)]
struct WallStream {
    name: String,
    /// Target loudness.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_lufs: Option<f64>,
}

/// The event `tiles`: the current values of all streams.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WallTiles<'a> {
    /// `generation` of the list of streams to which the columns belong.
    generation: u64,
    /// Columns in Base64, little-endian. Each column has a value for each stream. 1. State: a byte (0 stopped, 1 waiting, 2
    /// heard, 3 fallback). 2. Unacknowledged alarms: a byte (bits 0 to 5: no-packets, silence, loudness, true-peak, loss,
    /// drift; bit 7: the stream has acknowledged alarms). 3 to 5. Momentary loudness, true peak and short-term loudness: signed
    /// 16 bits, in tenths of a decibel; -32768: no value. 6. Loss of the last 10 s: 16 bits, in thousandths.
    columns: &'a str,
}

/// The event `threads`, once a second: the load of the media threads.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WallThreads {
    /// s since 1970.
    unix_s: u64,
    threads: Vec<WallThread>,
}

/// A media thread. Each list has a value for each second since the last event; in the first event, for all known seconds.
#[derive(Debug, Serialize, ToSchema)]
struct WallThread {
    name: String,
    /// Share of the second in which the thread was not asleep.
    busy_percent: Vec<f64>,
    /// Lateness of the thread's slices.
    lateness_ms: Vec<f64>,
    /// Number of packets that the thread handled.
    packets: Vec<u32>,
    /// The last time that work blocked the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<WallBlocked>,
}

/// An occasion on which work blocked a media thread.
#[derive(Debug, Serialize, ToSchema)]
struct WallBlocked {
    by: String,
    for_ms: f64,
    ago_s: u64,
}

/// A summary of all streams, as server-sent events
///
/// `streams` comes first, and again when the list changes. `tiles` comes ten times a second, `threads` once a second. `alarms`
/// has all raised alarms, and comes when one is raised or ends. A slow reader misses some events. At most 32 readers at a time.
/// With `cluster=1`, each event has its `node`, and `left` means that a node no longer sends events. Details of a stream are at
/// its node: `/v1/streams/NAME...?node=NODE`.
#[utoipa::path(get, path = "/v1/wall", tag = "streams", params(
    ("cluster" = Option<u32>, Query, minimum = 1, maximum = 1, description = "1: the streams of all nodes")), responses(
    (status = 200, body = WallEvent, content_type = "text/event-stream"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The limit of readers is reached")))]
pub(super) async fn listen(
    State(app): State<App>,
) -> Result<Sse<impl Stream<Item = Result<Line, Infallible>>>, Problem> {
    let frames = app.view.frames().ok_or_else(|| {
        let detail = "the limit of readers of the wall is reached";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(READERS_S)
    })?;
    let reader = Reader {
        frames,
        view: app.view.clone(),
        generation: None,
        seconds: 0,
        pending: VecDeque::new(),
        alarm_changes: None,
    };
    let lines = unfold(reader, |mut reader| async move {
        let line = reader.next().await?;
        Some((Ok(line), reader))
    });
    Ok(Sse::new(lines).keep_alive(KeepAlive::new().interval(QUIET_MAX)))
}

struct Reader {
    frames: Frames,
    view: View,
    /// Generation of the list of streams that the reader has got. `None`: it has got none.
    generation: Option<u64>,
    /// Number of the seconds in `threads` that the reader has got.
    seconds: u64,
    /// Events that are sent next.
    pending: VecDeque<Line>,
    /// Number of alarm changes at the last `alarms` event. `None`: no such event was sent yet.
    alarm_changes: Option<u64>,
}

impl Reader {
    /// Returns the next event. `None`: the gateway ends.
    async fn next(&mut self) -> Option<Line> {
        if let Some(line) = self.pending.pop_front() {
            return Some(line);
        }
        self.frames.frames.changed().await.ok()?;
        let frame = self.frames.frames.borrow().clone();
        let threads = threads(&self.view, frame.unix_s, &mut self.seconds);
        self.pending
            .extend(threads.map(|threads| line("threads", &threads)));
        let alarms = self.alarms();
        self.pending
            .extend(alarms.map(|alarms| line("alarms", &alarms)));
        if self.generation == Some(frame.generation) {
            let tiles = WallTiles {
                generation: frame.generation,
                columns: &frame.columns,
            };
            return Some(line("tiles", &tiles));
        }
        let streams = streams(&self.view);
        // The next `tiles` refer to this list, unless the list changes again before.
        self.generation = Some(streams.generation);
        Some(line("streams", &streams))
    }

    /// Returns all raised alarms. `None`: the reader has got them already.
    fn alarms(&mut self) -> Option<RaisedAlarms> {
        self.view.read(|seen| {
            let changes = Some(seen.alarm_changes());
            let is_new = std::mem::replace(&mut self.alarm_changes, changes) != changes;
            is_new.then(|| RaisedAlarms::of(seen))
        })
    }
}

fn streams(view: &View) -> WallStreams {
    view.read(|seen| WallStreams {
        generation: seen.generation(),
        streams: seen
            .tracks()
            .map(|track| WallStream {
                name: track.watched.name.to_string(),
                target_lufs: track.watched.target_lufs,
            })
            .collect(),
    })
}

/// Returns the values of the seconds after `known`. `None`: there are no such seconds.
fn threads(view: &View, unix_s: u64, known: &mut u64) -> Option<WallThreads> {
    view.read_machine(|machine| {
        let new = machine.seconds.saturating_sub(*known);
        if new == 0 {
            return None;
        }
        *known = machine.seconds;
        let threads = machine.threads.iter();
        let threads = threads.map(|(name, track)| WallThread::new(name, track, new as usize));
        Some(WallThreads {
            unix_s,
            threads: threads.collect(),
        })
    })
}

impl WallThread {
    fn new(name: &str, track: &ThreadTrack, new: usize) -> WallThread {
        let skipped = track.recent.len().saturating_sub(new);
        let seconds = || track.recent.iter().skip(skipped);
        let blocked = track.blocked.as_ref().map(|blocked| WallBlocked {
            by: blocked.by.clone(),
            for_ms: blocked.for_ns as f64 / 1e6,
            ago_s: clock_now_ns().saturating_sub(blocked.at_ns) / 1_000_000_000,
        });
        WallThread {
            name: name.to_owned(),
            busy_percent: seconds()
                .map(|one| f64::from(one.busy_permille) / 10.0)
                .collect(),
            lateness_ms: seconds()
                .map(|one| f64::from(one.lateness_us) / 1000.0)
                .collect(),
            packets: seconds().map(|one| one.packets).collect(),
            blocked,
        }
    }
}

fn line(name: &str, data: &impl Serialize) -> Line {
    let text = serde_json::to_string(data).unwrap_or_default();
    Line::default().event(name).data(text)
}

/// Retry-After, in s. Readers leave when their pages are closed.
const READERS_S: u32 = 10;
/// Maximum silence before a comment is sent. Some HTTP proxies treat a connection as dead after a minute of silence.
const QUIET_MAX: Duration = Duration::from_secs(15);
