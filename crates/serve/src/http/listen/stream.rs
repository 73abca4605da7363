//! `/v1/streams/{name}/listen`: the audio of a stream.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use threadbare_relay::{Listening, Portion};
use tokio::time::{Instant, sleep, timeout};

use super::{NS_PER_MS, Sound, TURN, Wav, file, place};
use crate::http::app::App;
use crate::http::problem::Problem;
use crate::http::streams::unknown;
use threadbare_recording::Coding;

/// Listen to a stream
///
/// Returns an endless WAV file of 16 bits, starting with the current audio, with the rate and channels of the decoded audio. The reply is
/// not sent before there is some audio. While the stream is silent or does not run, the file contains silence, a second at a time. The file
/// ends when the stream is removed from the configuration, when its settings change, or when the format of its audio changes. A slow reader
/// misses some audio. At most 16 listeners at a time, including those of `/v1/calls/{id}/listen`.
#[utoipa::path(get, path = "/v1/streams/{name}/listen", tag = "streams", operation_id = "listen_to_stream", params(("name" = String, Path, description = "Name in the configuration")),
    responses((status = 200, body = Wav, content_type = "audio/wav"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The stream is not decoded here, or has no audio"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The limit of listeners is reached")))]
pub(in crate::http) async fn listen(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let begun = app.view.read(|seen| {
        let watched = &seen.find(&name)?.watched;
        let is_decoded = watched.way.is_decoded;
        // The snapshot is dropped before waiting. Otherwise, the end of the stream would not be noticed.
        Some(is_decoded.then(|| watched.snapshot.clone()))
    });
    let snapshot = begun.ok_or_else(|| unknown(&name))?.ok_or_else(|| {
        let detail = format!(
            "clients cannot listen to the stream {name}, which is forwarded without decoding (`codec = \"auto\"`)"
        );
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    let place = place(&app)?;
    let mut listening = snapshot.listen();
    drop(snapshot);
    let first = timeout(FIRST_TIME_MAX, first(&mut listening)).await;
    let Some(first) = first.unwrap_or(None) else {
        let seconds = FIRST_TIME_MAX.as_secs();
        let detail = format!("the stream {name} has had no audio for {seconds} s");
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    tracing::debug!(stream = name, "a client starts to listen to the stream");
    let line = Line {
        name,
        listening,
        first,
        heard_at: Instant::now(),
    };
    Ok(file(line, place))
}

/// Waits for the first audio. Returns `None` if the stream ends before.
async fn first(listening: &mut Listening) -> Option<Portion> {
    loop {
        match listening.peek() {
            None if listening.is_over() => return None,
            None => sleep(TURN).await,
            heard => return heard,
        }
    }
}

/// The audio of a stream, for one listener.
struct Line {
    name: String,
    listening: Listening,
    /// The first portion, which states the format.
    first: Portion,
    /// Time of the last audio.
    heard_at: Instant,
}

impl Sound for Line {
    fn format(&self) -> (u32, u16) {
        let format = self.first.format;
        (format.sample_rate_hz, u16::from(format.channels))
    }

    fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        // Check this before reading samples, so that samples that have arrived are still sent.
        let mut goes_on = !self.listening.is_over();
        let first = self.first;
        self.listening.take_coded(|portion, heard| {
            goes_on &= portion.is_like(&first);
            if portion.is_like(&first) {
                Coding::Linear.write(portion.format, heard, bytes);
            }
        });
        if bytes.is_empty() && goes_on && self.heard_at.elapsed() >= SILENCE {
            let (rate_hz, channels) = self.format();
            let frames = u64::from(rate_hz) * SILENCE.as_millis() as u64 / 1000;
            bytes.resize(frames as usize * usize::from(channels) * SAMPLE_BYTES, 0);
        }
        if !bytes.is_empty() {
            self.heard_at = Instant::now();
        }
        goes_on
    }

    fn end(&self) {
        let missed_ms = self.listening.missed_ns() / NS_PER_MS;
        if missed_ms > 0 {
            tracing::info!(
                stream = self.name,
                missed_ms,
                "a client that listens to the stream was too slow"
            );
        }
    }
}

/// Time limit for the first audio. The jitter buffer and the loudness target delay it by at most 3 s, and the sender may have
/// just started.
const FIRST_TIME_MAX: Duration = Duration::from_secs(5);
/// Duration of a gap after which silence is sent.
const SILENCE: Duration = Duration::from_secs(1);
const SAMPLE_BYTES: usize = 2;
