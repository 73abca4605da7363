//! Fallbacks of calls: what a party hears while the other party sends nothing. The sound of a file is set when the file has been read.

use std::collections::HashMap;
use std::sync::Arc;

use threadbare_config::{CallFallback, CallSound};
use threadbare_control::calls::{Fallback, StreamId, StreamSpec};
use threadbare_rtp::call::{Clip, Session, Side, Sound, Substitute};

use super::{Running, Streams};

/// The fallback of the configuration, and the files that are being read.
#[derive(Debug, Default)]
pub(super) struct Fallbacks {
    configured: Option<CallFallback>,
    /// The configured sound. `None`: there is none, or its file is being read.
    sound: Option<Arc<Substitute>>,
    /// The streams that wait for a file, by its name.
    waiting: HashMap<Arc<str>, Vec<StreamId>>,
    /// Files whose reading has not begun.
    unread: Vec<Arc<str>>,
}

/// The sound for a stream.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    /// This sound, or none.
    Sound(Option<Arc<Substitute>>),
    /// The sound of a file, which must be read first.
    File(Arc<str>),
}

impl Fallbacks {
    /// Sets the fallback for streams that start from now on.
    pub(super) fn configure(&mut self, configured: Option<CallFallback>) {
        if configured == self.configured {
            return;
        }
        self.configured = configured;
        self.sound = None;
        match self.configured.as_ref().map(|one| &one.sound) {
            Some(CallSound::Tone(tone)) => {
                self.sound = Some(self.substitute(Sound::Tone(tone.clone())));
            }
            // No stream waits yet, but the first one should not have to.
            Some(CallSound::File(path)) => self.read(path.to_string_lossy().into()),
            None => {}
        }
    }

    fn substitute(&self, sound: Sound) -> Arc<Substitute> {
        let timeout_ms = self.configured.as_ref().map(|one| one.timeout_ms);
        let timeout_ms = timeout_ms.unwrap_or(CallFallback::TIMEOUT_MS_DEFAULT);
        Arc::new(Substitute {
            after_ns: u64::from(timeout_ms) * 1_000_000,
            sound,
        })
    }

    fn read(&mut self, file: Arc<str>) {
        if !self.waiting.contains_key(&file) {
            self.unread.push(file.clone());
            self.waiting.insert(file, Vec::new());
        }
    }

    /// Returns the next file to be read.
    pub(super) fn next_unread(&mut self) -> Option<Arc<str>> {
        self.unread.pop()
    }

    /// Returns the sound for a stream.
    pub(super) fn choose(&self, spec: &StreamSpec) -> Choice {
        let is_complete = spec.sides.iter().all(|side| side.has_party());
        let file = match &spec.fallback {
            _ if !is_complete => return Choice::Sound(None),
            Fallback::Off => return Choice::Sound(None),
            Fallback::Default if self.sound.is_some() => {
                return Choice::Sound(self.sound.clone());
            }
            Fallback::Default => match self.configured.as_ref().map(|one| &one.sound) {
                Some(CallSound::File(path)) => path.to_string_lossy().into(),
                Some(CallSound::Tone(_)) | None => return Choice::Sound(None),
            },
            Fallback::File(file) => file.clone(),
        };
        Choice::File(file)
    }

    /// Lets a stream wait for its file, if it needs one.
    pub(super) fn wait(&mut self, stream: StreamId, choice: Choice) {
        if let Choice::File(file) = choice {
            self.read(file.clone());
            self.waiting.entry(file).or_default().push(stream);
        }
    }

    /// Handles the samples of a file. `None`: it cannot be read. Returns the sound, and the streams that wait for it.
    fn loaded(
        &mut self,
        file: &str,
        clip: Option<Clip>,
    ) -> Option<(Arc<Substitute>, Vec<StreamId>)> {
        let streams = self.waiting.remove(file).unwrap_or_default();
        let sound = self.substitute(Sound::Clip(Clip { times: 0, ..clip? }));
        let configured = self.configured.as_ref().map(|one| &one.sound);
        if let Some(CallSound::File(path)) = configured
            && path.to_string_lossy() == file
        {
            self.sound = Some(sound.clone());
        }
        Some((sound, streams))
    }

    /// Sets the sound of a file for the streams that wait for it. `None`: the file cannot be read.
    pub(super) fn set_loaded(&mut self, streams: &Streams, file: &str, clip: Option<Clip>) {
        let Some((sound, waiting)) = self.loaded(file, clip) else {
            return;
        };
        for running in waiting.iter().filter_map(|stream| streams.get(stream)) {
            // The stream may have got another fallback, or lost a party, in the meantime.
            let is_wanted = match self.choose(&running.spec) {
                Choice::Sound(chosen) => chosen.is_some_and(|one| Arc::ptr_eq(&one, &sound)),
                Choice::File(wanted) => &*wanted == file,
            };
            if is_wanted {
                send(running, Some(sound.clone()));
            }
        }
    }
}

/// Sends a sound to a running stream.
fn send(running: &Running, sound: Option<Arc<Substitute>>) {
    // The command fails if the stream is gone.
    let _ = running.handle.command(move |session, _| {
        if let Some(media) = session.audio_mut() {
            set(media.session_mut(), sound.as_ref());
        }
    });
}

/// Sets the sound for both parties.
pub(super) fn set(session: &mut Session, sound: Option<&Arc<Substitute>>) {
    for side in Side::BOTH {
        session.set_substitute(side, sound.cloned());
    }
}

/// Whether a change of a stream's specification may change its fallback.
pub(super) fn may_change(before: &StreamSpec, after: &StreamSpec) -> bool {
    let parties = |spec: &StreamSpec| spec.sides.each_ref().map(|side| side.has_party());
    before.fallback != after.fallback || parties(before) != parties(after)
}

impl Choice {
    /// Returns the sound, if it is known already.
    pub(super) fn sound(&self) -> Option<&Arc<Substitute>> {
        match self {
            Choice::Sound(sound) => sound.as_ref(),
            Choice::File(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use threadbare_control::calls::{SideSpec, StreamKind};
    use threadbare_rtp::leg::{Learn, Method, Once};

    use super::*;

    fn spec(fallback: Fallback) -> StreamSpec {
        let learn = Learn::Once(Once {
            method: Method::Heuristic,
            fixed_ms: None,
        });
        StreamSpec {
            kind: StreamKind::Audio,
            sides: [SideSpec::unknown(learn), SideSpec::unknown(learn)],
            tos: None,
            echoes: false,
            copies: None,
            fallback,
        }
    }

    fn clip() -> Option<Clip> {
        Some(Clip {
            pcm: [0.5; 8].into(),
            rate_hz: 8000,
            channels: 1,
            times: 1,
        })
    }

    #[test]
    fn each_file_is_read_once_for_all_streams_that_wait() {
        let mut fallbacks = Fallbacks::default();
        assert!(matches!(
            fallbacks.choose(&spec(Fallback::Default)),
            Choice::Sound(None)
        ));
        fallbacks.configure(Some(CallFallback {
            sound: CallSound::File("a.wav".into()),
            timeout_ms: 700,
        }));
        assert_eq!(fallbacks.next_unread().as_deref(), Some("a.wav"));
        for stream in [1, 2] {
            let choice = fallbacks.choose(&spec(Fallback::Default));
            assert!(choice.sound().is_none());
            fallbacks.wait(StreamId(stream), choice);
        }
        let other = spec(Fallback::File("b.wav".into()));
        let choice = fallbacks.choose(&other);
        fallbacks.wait(StreamId(3), choice);
        assert_eq!(fallbacks.next_unread().as_deref(), Some("b.wav"));
        assert_eq!(fallbacks.next_unread(), None);
        let (sound, streams) = fallbacks.loaded("a.wav", clip()).expect("a sound");
        assert_eq!(
            (sound.after_ns, streams),
            (700_000_000, vec![StreamId(1), StreamId(2)])
        );
        assert!(matches!(&sound.sound, Sound::Clip(clip) if clip.times == 0));
        // Later streams use the same samples.
        let choice = fallbacks.choose(&spec(Fallback::Default));
        assert!(choice.sound().is_some_and(|one| Arc::ptr_eq(one, &sound)));
        assert!(fallbacks.choose(&spec(Fallback::Off)).sound().is_none());
        assert!(fallbacks.loaded("b.wav", None).is_none());
        assert!(fallbacks.waiting.is_empty());
        // Before the answer, and in a copy, there is only one party.
        let mut early = spec(Fallback::Default);
        early.sides[1].learn = Learn::Never;
        assert!(fallbacks.choose(&early).sound().is_none());
        assert!(may_change(&early, &spec(Fallback::Default)));
        assert!(!may_change(&other, &other));
    }
}
