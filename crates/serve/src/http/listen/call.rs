//! `/v1/calls/{id}/listen`: the audio of both parties of a call.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use threadbare_control::calls::{CallId, StreamId};
use threadbare_relay::Listening;
use threadbare_runtime::clock_now_ns;

use super::{NS_PER_MS, Sound, Wav, file, place};
use crate::http::app::App;
use crate::http::calls::unknown;
use crate::http::id::{CallPath, Id};
use crate::http::problem::Problem;
use crate::media::Unheard;
use crate::service::Service;
use threadbare_recording::Tracks;

/// Listen to both parties of a call
///
/// Returns an endless WAV file of 16 bits with two channels, starting with the current audio. The party that offered first is on the left,
/// as in recordings. Each channel has the audio of one party, as it is sent to the other party. So a muted or held party is silent, and
/// files that are played to a party are left out. The rate is the higher rate of both parties' audio. The file starts at once, is silent
/// while neither party speaks, and ends with the stream. A call may have several streams: several media, or several dialogs of a forked
/// call. The default is the first one in `streams` that runs and that the relay decodes; `stream` selects another one. SRTP with keys in
/// the SDP can be decoded. Media that are forwarded without decoding cannot be listened to. A slow reader misses some audio. At most 16
/// listeners at a time, including those of `/v1/streams/{name}/listen`.
#[utoipa::path(get, path = "/v1/calls/{id}/listen", tag = "calls", operation_id = "listen_to_call", params(CallPath,
    ("stream" = Option<u32>, Query, description = "Index in the call's `streams`, from 0")),
    responses((status = 200, body = Wav, content_type = "audio/wav"),
    (status = 400, body = Problem, content_type = "application/problem+json"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The call is not decoded here, or no stream is running"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The limit of listeners is reached")))]
pub(in crate::http) async fn listen(
    State(app): State<App>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let wanted = wanted(query.as_deref().unwrap_or_default())?;
    let place = place(&app)?;
    let call = id.clone();
    let found = app.ask(move |service: &mut Service| find(service, &call, wanted));
    let (rate_hz, listening) = found.await?.map_err(|refused| refused.told(&id))?;
    tracing::debug!(call = %id, "a client starts to listen to the call");
    let both = Both {
        call: id,
        listening,
        tracks: Tracks::new(rate_hz, clock_now_ns()),
        missed_ns: 0,
    };
    Ok(file(both, place))
}

/// Returns the index of the stream that a query asks for.
fn wanted(query: &str) -> Result<Option<usize>, Problem> {
    let mut wanted = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "stream" {
            return Err(Problem::value("query", name, "stream"));
        }
        let place = value.parse().ok();
        let allowed = "an index in the streams of the call, from 0";
        wanted = Some(place.ok_or_else(|| Problem::value("stream", value, allowed))?);
    }
    Ok(wanted)
}

/// The reason why a call cannot be listened to.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Unknown,
    /// The index is too high. The call has this many streams.
    NoPlace(usize),
    Unheard(Unheard),
}

/// Finds the requested stream, or else the first one that can be listened to.
fn find(
    service: &mut Service,
    id: &CallId,
    wanted: Option<usize>,
) -> Result<(u32, Listening), Refused> {
    let view = service.calls.view(id).ok_or(Refused::Unknown)?;
    let streams: Vec<StreamId> = view.streams.iter().map(|one| one.stream).collect();
    let media = &service.media;
    if let Some(place) = wanted {
        let stream = streams.get(place).ok_or(Refused::NoPlace(streams.len()))?;
        return media.listen(*stream).map_err(Refused::Unheard);
    }
    let mut why = Unheard::NotRunning;
    for stream in streams {
        match media.listen(stream) {
            Ok(heard) => return Ok(heard),
            Err(Unheard::NotRunning) => {}
            Err(other) => why = other,
        }
    }
    Err(Refused::Unheard(why))
}

impl Refused {
    fn told(self, id: &CallId) -> Problem {
        let why = match self {
            Refused::Unknown => return unknown(id),
            Refused::NoPlace(streams) => {
                let problem = Problem::new(
                    StatusCode::NOT_FOUND,
                    format!("the call has {streams} streams"),
                );
                return problem.about("stream", "an index in the streams of the call, from 0");
            }
            Refused::Unheard(Unheard::NotRunning) => {
                "none of its media are running, because the call is not answered or the media have ended".to_owned()
            }
            Refused::Unheard(Unheard::PassedOn) => {
                "its media are only forwarded, because they are not audio or are encrypted from party to party"
                    .to_owned()
            }
            Refused::Unheard(Unheard::NotDecoded { codecs }) => {
                let names: Vec<String> = codecs.into_iter().flatten().collect();
                format!("the gateway forwards {} without decoding it", names.join(", "))
            }
        };
        let detail = format!("clients cannot listen to the call: {why}");
        Problem::new(StatusCode::CONFLICT, detail)
    }
}

/// The audio of both parties of a call, for one listener.
struct Both {
    call: CallId,
    listening: Listening,
    tracks: Tracks,
    /// Duration of the audio that was skipped because the client did not read, ns.
    missed_ns: u64,
}

impl Both {
    /// Appends the audio up to `until_ns`. Returns whether more may come.
    fn take_until(&mut self, until_ns: u64, bytes: &mut Vec<u8>) -> bool {
        // Check this before reading samples, so that samples that have arrived are still sent.
        let is_over = self.listening.is_over();
        self.missed_ns += self.tracks.skip(until_ns, LATE_NS_MAX);
        let tracks = &mut self.tracks;
        self.listening
            .take_coded(|portion, heard| tracks.add(portion, heard));
        self.tracks.take(until_ns, bytes);
        !is_over
    }
}

impl Sound for Both {
    fn format(&self) -> (u32, u16) {
        (self.tracks.rate_hz(), 2)
    }

    fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.take_until(clock_now_ns() - DELAY_NS, bytes)
    }

    fn end(&self) {
        let missed_ms = self.missed_ns / NS_PER_MS;
        if missed_ms > 0 {
            tracing::info!(call = %self.call, missed_ms, "a client that listens to the call was too slow");
        }
    }
}

/// Delay after which the audio of both sides has arrived. Audio comes in pieces of up to 100 ms, in slices of 20 ms, and may be
/// shifted by the slack of [`Tracks`].
const DELAY_NS: u64 = 200_000_000;
/// Maximum lag of a client. If it has read nothing for longer than this, it gets the current audio next.
const LATE_NS_MAX: u64 = 2_000_000_000;

#[cfg(test)]
mod tests {
    use threadbare_relay::Listeners;

    use super::*;

    /// This happens when the machine with the page was suspended.
    #[test]
    fn stalled_listener_resumes_at_the_present() {
        const S: u64 = 1_000_000_000;
        let listeners = Listeners::default();
        let mut both = Both {
            call: CallId::new(b"1"),
            listening: listeners.listen(1000),
            tracks: Tracks::new(8000, S),
            missed_ns: 0,
        };
        let mut bytes = Vec::new();
        let mut frames_until = |both: &mut Both, until_ns| {
            bytes.clear();
            assert!(both.take_until(until_ns, &mut bytes));
            bytes.len() / 4
        };
        // If the client is two seconds late, all audio is still sent. If it is three seconds late, the audio is skipped.
        assert_eq!(frames_until(&mut both, 2 * S), 8000);
        assert_eq!(frames_until(&mut both, 4 * S), 16_000);
        assert_eq!(frames_until(&mut both, 7 * S), 0);
        assert_eq!(both.missed_ns, 3 * S);
        assert_eq!(frames_until(&mut both, 7 * S + S / 2), 4000);
        drop(listeners);
        assert!(!both.take_until(8 * S, &mut Vec::new()));
    }

    #[test]
    fn a_stream_is_chosen_by_its_index() {
        assert_eq!(wanted(""), Ok(None));
        assert_eq!(wanted("stream=2"), Ok(Some(2)));
        for odd in ["stream=", "stream=-1", "stream=x", "streams=1"] {
            assert!(wanted(odd).is_err(), "{odd}");
        }
    }
}
