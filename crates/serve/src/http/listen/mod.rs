//! The audio of streams and calls as endless WAV files.

pub(super) mod call;
pub(super) mod stream;

use std::convert::Infallible;
use std::time::Duration;
use threadbare_base::NS_PER_MS;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;
use utoipa::ToSchema;

use super::app::App;
use super::problem::Problem;

/// The type of a RIFF WAVE body in the OpenAPI description.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "for the description")]
pub(super) struct Wav(Vec<u8>);

/// A source of audio for a listener.
trait Sound: Send + 'static {
    /// Returns the number of frames per second, and of samples per frame.
    fn format(&self) -> (u32, u16);

    /// Appends the audio since the last call, as little-endian samples of 16 bits. Returns whether more may come.
    fn take(&mut self, bytes: &mut Vec<u8>) -> bool;

    /// Notes that the listener has gone.
    fn end(&self);
}

/// Reserves a place for a listener.
fn place(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    app.listeners.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("the limit of {LISTENERS_MAX} listeners is reached");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(LISTENERS_S)
    })
}

/// Replies with an endless file of the audio from now on.
fn file(sound: impl Sound, place: OwnedSemaphorePermit) -> Response {
    let (rate_hz, channels) = sound.format();
    let player = Player {
        sound,
        head: Some(wav_head(rate_hz, channels)),
        is_over: false,
        _place: place,
    };
    let parts = unfold(player, |mut player| async move {
        let part = player.next().await?;
        Some((Ok::<_, Infallible>(part), player))
    });
    let kind = [(CONTENT_TYPE, "audio/wav")];
    (kind, Body::from_stream(parts)).into_response()
}

/// The state of a reply to a listener.
struct Player<S: Sound> {
    sound: S,
    /// The file's header. `None`: it has been sent.
    head: Option<Bytes>,
    /// Whether the last data have been taken.
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

impl<S: Sound> Player<S> {
    /// Returns the next data. It is called only when the client has taken the previous data.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        while !self.is_over {
            sleep(TURN).await;
            let mut bytes = Vec::new();
            self.is_over = !self.sound.take(&mut bytes);
            if !bytes.is_empty() {
                return Some(bytes.into());
            }
        }
        None
    }
}

impl<S: Sound> Drop for Player<S> {
    fn drop(&mut self) {
        self.sound.end();
    }
}

/// Returns the header of a RIFF WAVE file with 16 bits (Multimedia Programming Interface and Data Specifications 1.0, "WAVE" and "PCM
/// format"). The lengths are the maximum, because the file is endless.
fn wav_head(rate_hz: u32, channels: u16) -> Bytes {
    let frame_bytes = channels * 2;
    let mut head = Vec::with_capacity(44);
    head.extend(b"RIFF");
    head.extend(u32::MAX.to_le_bytes());
    head.extend(b"WAVEfmt ");
    head.extend(16_u32.to_le_bytes());
    // This is the format PCM.
    head.extend(1_u16.to_le_bytes());
    head.extend(channels.to_le_bytes());
    head.extend(rate_hz.to_le_bytes());
    head.extend((rate_hz * u32::from(frame_bytes)).to_le_bytes());
    head.extend(frame_bytes.to_le_bytes());
    head.extend(16_u16.to_le_bytes());
    head.extend(b"data");
    head.extend(u32::MAX.to_le_bytes());
    head.into()
}

/// Maximum number of listeners. Each one costs a decoder and a copy of the audio on the stream's thread, and polling on this
/// thread.
pub(super) const LISTENERS_MAX: usize = 16;
/// Retry-After, in s. Listeners leave when pages are closed.
const LISTENERS_S: u32 = 10;
/// Pause between polls. Each piece of audio has 20 to 140 ms.
const TURN: Duration = Duration::from_millis(50);
