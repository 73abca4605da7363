//! Play requests that wait for their file. A request is answered when the format of the file is known, and the file is played when it has
//! been decoded.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use threadbare_control::calls::{MediaSource, StreamId};
use threadbare_control::ng::Reply;
use threadbare_rtp::call::{Clip, Part, Side};

use super::asker::PendingReply;
use super::clips::{Clips, JobId, News};

/// A file that is to be played to a party.
#[derive(Debug, Clone)]
pub(super) struct Play {
    pub(super) stream: StreamId,
    pub(super) to: Side,
    /// Number of the play for this party. A play or stop with a higher number replaces it.
    pub(super) number: u64,
    /// The name of the file. `None`: the next process cannot find the file.
    pub(super) file: Option<Arc<str>>,
    /// Number of repetitions.
    pub(super) times: u32,
    pub(super) part: Part,
}

/// A request that waits for its reply.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) pending: PendingReply,
    /// The reply if the file can be played.
    pub(super) reply: Reply,
}

impl Unanswered {
    /// Adds the duration to the reply, in milliseconds. "the response dictionary may contain the key `duration` if the length of the media
    /// file could be determined".
    fn answer(mut self, duration_ms: Option<u64>) -> Step {
        if let (Reply::Ok(keys), Some(ms)) = (&mut self.reply, duration_ms) {
            keys.push("duration", i64::try_from(ms).unwrap_or(i64::MAX));
        }
        Step::Answer(self)
    }
}

fn duration_ms(clip: &Clip) -> u64 {
    let frames = clip.pcm.len() / usize::from(clip.channels.max(1));
    frames as u64 * 1000 / u64::from(clip.rate_hz.max(1))
}

/// What to do next about a request or file.
#[derive(Debug)]
pub(super) enum Step {
    Answer(Unanswered),
    Play(Play, Clip),
    /// The play failed. The text is for the log. `None`: the reply contains the reason.
    Failed(Play, Option<String>),
    /// The file of a fallback was decoded. The error says why it cannot be played.
    Fallback(Arc<str>, Result<Clip, String>),
}

/// Files that are being loaded.
#[derive(Debug)]
pub(super) struct Plays {
    clips: Clips,
    waiting: BTreeMap<JobId, Waiting>,
    /// Files that no request waits for, and that wait because too many files are being loaded now.
    later: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The request that waits for its reply, and the time at which it must be answered.
    unanswered: Option<(Unanswered, u64)>,
    plays: Vec<Play>,
    /// Whether the file is that of a fallback.
    is_fallback: bool,
    name: String,
}

impl Plays {
    /// Starts the threads.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or descriptors.
    pub(super) fn new() -> std::io::Result<Plays> {
        Ok(Plays {
            clips: Clips::new()?,
            waiting: BTreeMap::new(),
            later: VecDeque::new(),
        })
    }

    /// Returns a descriptor that is readable when [`poll`](Self::poll) has something.
    pub(super) fn wake(&self) -> &UnixStream {
        self.clips.wake()
    }

    /// Returns the time at which to call [`poll`](Self::poll) even if the descriptor is not readable.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let waiting = self.waiting.values();
        let due = waiting.filter_map(|one| one.unanswered.as_ref().map(|(_, due_ns)| *due_ns));
        due.min()
    }

    /// Starts to load a source. The request is answered later. If too many files are being loaded, returns the reply at once.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        source: MediaSource,
        plays: Vec<Play>,
        mut unanswered: Unanswered,
    ) -> Option<Unanswered> {
        let name = name_of(&source);
        let Some(id) = self.clips.fetch(source) else {
            let reason = format!("{name}: too many files are being read");
            unanswered.reply = Reply::Error(reason);
            return Some(unanswered);
        };
        let waiting = Waiting {
            unanswered: Some((unanswered, now_ns + OPEN_NS_MAX)),
            plays,
            is_fallback: false,
            name,
        };
        self.waiting.insert(id, waiting);
        None
    }

    /// Starts to load a file that the previous process was playing. No request waits for it.
    pub(super) fn resume(&mut self, file: &str, plays: Vec<Play>) {
        self.load(file, plays, false);
    }

    /// Starts to load the file of a fallback.
    pub(super) fn load_fallback(&mut self, file: &str) {
        self.load(file, Vec::new(), true);
    }

    fn load(&mut self, file: &str, plays: Vec<Play>, is_fallback: bool) {
        self.later.push_back(Waiting {
            unanswered: None,
            plays,
            is_fallback,
            name: file.to_owned(),
        });
        self.go_on();
    }

    fn go_on(&mut self) {
        while let Some(waiting) = self.later.pop_front() {
            let source = MediaSource::File(waiting.name.clone());
            let Some(id) = self.clips.fetch(source) else {
                // It is tried again when a file has been loaded.
                self.later.push_front(waiting);
                return;
            };
            self.waiting.insert(id, waiting);
        }
    }

    /// Returns the next steps.
    pub(super) fn poll(&mut self, now_ns: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, news) in self.clips.poll() {
            let Some(waiting) = self.waiting.get_mut(&id) else {
                continue; // Nothing waits for this file any more.
            };
            let unanswered = waiting.unanswered.take().map(|(one, _)| one);
            match news {
                News::Opened(duration_ms) => {
                    steps.extend(unanswered.map(|one| one.answer(duration_ms)));
                }
                News::Decoded(clip) => {
                    let duration_ms = duration_ms(&clip);
                    steps.extend(unanswered.map(|one| one.answer(Some(duration_ms))));
                    let plays = waiting.plays.drain(..);
                    steps.extend(plays.map(|play| Step::Play(play, clip.clone())));
                    if waiting.is_fallback {
                        steps.push(Step::Fallback(waiting.name.as_str().into(), Ok(clip)));
                    }
                    self.waiting.remove(&id);
                }
                News::Failed(reason) => {
                    let told = unanswered.is_none().then(|| reason.clone());
                    let plays = waiting.plays.drain(..);
                    steps.extend(plays.map(|play| Step::Failed(play, told.clone())));
                    if waiting.is_fallback {
                        let file = waiting.name.as_str().into();
                        steps.push(Step::Fallback(file, Err(reason.clone())));
                    }
                    if let Some(mut unanswered) = unanswered {
                        unanswered.reply = Reply::Error(reason);
                        steps.push(Step::Answer(unanswered));
                    }
                    self.waiting.remove(&id);
                }
            }
        }
        steps.extend(self.give_up(now_ns));
        self.go_on();
        steps
    }

    /// Answers the requests whose files were not opened in time.
    fn give_up(&mut self, now_ns: u64) -> Vec<Step> {
        let is_late = |_: &JobId, waiting: &mut Waiting| {
            let unanswered = waiting.unanswered.as_ref();
            unanswered.is_some_and(|(_, due_ns)| *due_ns <= now_ns)
        };
        let late = self.waiting.extract_if(.., is_late);
        let steps = |(_, waiting): (JobId, Waiting)| {
            let answer = waiting.unanswered.map(|(mut unanswered, _)| {
                let ms = OPEN_NS_MAX / 1_000_000;
                let reason = format!("{}: the file was not read within {ms} ms", waiting.name);
                unanswered.reply = Reply::Error(reason);
                Step::Answer(unanswered)
            });
            let plays = waiting.plays.into_iter();
            plays.map(|play| Step::Failed(play, None)).chain(answer)
        };
        late.flat_map(steps).collect()
    }
}

fn name_of(source: &MediaSource) -> String {
    match source {
        MediaSource::File(name) => name.clone(),
        MediaSource::Bytes(_) => "blob".to_owned(),
    }
}

/// Time limit for the reply. A proxy repeats a request after half a second, and treats a relay as dead after several
/// repetitions.
const OPEN_NS_MAX: u64 = 1_000_000_000;
