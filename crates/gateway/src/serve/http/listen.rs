//! `/v1/streams/{name}/listen`: what a stream carries, as a WAV file without an end.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use threadbare_relay::{Heading, Listening};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};
use utoipa::ToSchema;

use super::app::App;
use super::problem::Problem;
use super::streams::unknown;

/// RIFF WAVE.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "for the description")]
pub(super) struct Wav(Vec<u8>);

/// What a stream carries, to be listened to
///
/// A WAV file of 16 bits without an end, from now on: rate and channels are those of the audio as it is decoded. The answer begins with the first audio.
/// While the stream is silent or does not run, silence comes, a second at a time. The file ends when the stream is gone from the configuration or has other settings, or
/// its audio another format. Who reads too slowly misses some. 16 listeners at a time.
#[utoipa::path(get, path = "/v1/streams/{name}/listen", tag = "streams", params(("name" = String, Path, description = "As in the file")),
    responses((status = 200, body = Wav, content_type = "audio/wav"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "It is not decoded, or nothing is heard"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "There are enough listeners")))]
pub(super) async fn listen(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let begun = app.view.read(|seen| {
        let watched = &seen.find(&name)?.watched;
        let is_decoded = watched.way.is_decoded;
        // The board itself is not kept: the stream's end is the end of it.
        Some(is_decoded.then(|| watched.board.clone()))
    });
    let board = begun.ok_or_else(|| unknown(&name))?.ok_or_else(|| {
        let detail = format!(
            "{name} cannot be listened to: with `codec = \"auto\"` it is sent on as it comes, without decoding"
        );
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    let place = app.listeners.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("there are {LISTENERS_MAX} listeners, which is enough");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(LISTENERS_S)
    })?;
    let listening = board.listen();
    drop(board);
    let first = timeout(FIRST_TIME_MAX, first(&listening)).await;
    let Some(heading) = first.unwrap_or(None) else {
        let seconds = FIRST_TIME_MAX.as_secs();
        let detail = format!("{name}: nothing was heard within {seconds} s");
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    tracing::debug!(stream = name, "somebody listens");
    let player = Player {
        name,
        heading,
        head: Some(wav_head(heading)),
        listening,
        samples: Vec::new(),
        heard_at: Instant::now(),
        _place: place,
    };
    let parts = unfold(player, |mut player| async move {
        let part = player.next().await?;
        Some((Ok::<_, std::convert::Infallible>(part), player))
    });
    let kind = [(CONTENT_TYPE, "audio/wav")];
    Ok((kind, Body::from_stream(parts)).into_response())
}

/// The format, once something is heard.
async fn first(listening: &Listening) -> Option<Heading> {
    loop {
        match listening.heading() {
            None if listening.is_over() => return None,
            None => sleep(TURN).await,
            heard => return heard,
        }
    }
}

/// Somebody who listens.
struct Player {
    name: String,
    heading: Heading,
    /// Of the file, until it was sent.
    head: Option<Bytes>,
    listening: Listening,
    samples: Vec<i16>,
    /// When something came last.
    heard_at: Instant,
    _place: OwnedSemaphorePermit,
}

impl Player {
    /// Asked for only when the client has taken what came before.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        loop {
            sleep(TURN).await;
            // Before the samples: what came until then is still sent.
            let is_over = self.listening.is_over();
            self.samples.clear();
            self.listening.take(&mut self.samples);
            if self.samples.is_empty() && is_over {
                return None;
            }
            let is_silent = self.heard_at.elapsed() >= SILENCE;
            if self.samples.is_empty() && is_silent {
                let frames = u64::from(self.heading.rate_hz) * SILENCE.as_millis() as u64 / 1000;
                let samples = frames as usize * usize::from(self.heading.channels);
                self.samples.resize(samples, 0);
            }
            if !self.samples.is_empty() {
                self.heard_at = Instant::now();
                let bytes = self.samples.iter().flat_map(|one| one.to_le_bytes());
                return Some(bytes.collect());
            }
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let (stream, dropped) = (&self.name, self.listening.dropped());
        if dropped > 0 {
            let per_s = u64::from(self.heading.rate_hz) * u64::from(self.heading.channels);
            let missed_ms = dropped * 1000 / per_s.max(1);
            tracing::info!(stream, missed_ms, "a listener was too slow");
        }
    }
}

/// RIFF WAVE of 16 bits (Multimedia Programming Interface and Data Specifications 1.0, "WAVE" and "PCM format"). The lengths are the greatest there are: it
/// has no end.
fn wav_head(heading: Heading) -> Bytes {
    let frame_bytes = heading.channels * 2;
    let mut head = Vec::with_capacity(44);
    head.extend(b"RIFF");
    head.extend(u32::MAX.to_le_bytes());
    head.extend(b"WAVEfmt ");
    head.extend(16_u32.to_le_bytes());
    // PCM.
    head.extend(1_u16.to_le_bytes());
    head.extend(heading.channels.to_le_bytes());
    head.extend(heading.rate_hz.to_le_bytes());
    head.extend((heading.rate_hz * u32::from(frame_bytes)).to_le_bytes());
    head.extend(frame_bytes.to_le_bytes());
    head.extend(16_u16.to_le_bytes());
    head.extend(b"data");
    head.extend(u32::MAX.to_le_bytes());
    head.into()
}

/// Of the process: each costs the thread of its stream a decoder and a copy of the audio, and this one a turn.
pub(super) const LISTENERS_MAX: usize = 16;
/// A listener goes when somebody closes a page.
const LISTENERS_S: u32 = 10;
/// For audio of a stream that runs: its jitter buffer and its loudness target hold it back 3 s at most, and its sender may just begin.
const FIRST_TIME_MAX: Duration = Duration::from_secs(5);
/// Between looks: audio comes 20 to 140 ms at a time.
const TURN: Duration = Duration::from_millis(50);
/// So long without audio is silence, and no delay.
const SILENCE: Duration = Duration::from_secs(1);
