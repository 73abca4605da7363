//! Recordings of streams: the recorder listens as others do, or is given packets.

use std::path::{Path, PathBuf};

use threadbare_control::calls::{Recording, StreamId, StreamKind};

use super::{MediaPlane, Running};
use crate::config::RecordingFormat;
use crate::serve::names;
use crate::serve::recorder::{Content, Ear, NewRecording, Recorder, RecordingId, WayEnd};

/// Where calls are recorded.
#[derive(Debug)]
pub(super) struct Recordings {
    recorder: Recorder,
    folder: PathBuf,
    usual: RecordingFormat,
}

/// A stream's recording.
#[derive(Debug)]
pub(super) struct Recorded {
    id: RecordingId,
    /// Of packets.
    ear: Option<Ear>,
}

impl Running {
    fn listen_for_file(&self) -> Content {
        let (rate_hz, listening) = self.listen();
        Content::Audio { rate_hz, listening }
    }
}

impl MediaPlane {
    /// Calls may be recorded to files of this folder.
    ///
    /// # Errors
    /// Threads run out.
    pub(in crate::serve) fn record_to(
        &mut self,
        folder: PathBuf,
        usual: RecordingFormat,
    ) -> std::io::Result<()> {
        self.recordings = Some(Recordings {
            recorder: Recorder::new()?,
            folder,
            usual,
        });
        Ok(())
    }

    /// Where calls are recorded.
    pub(in crate::serve) fn recording_folder(&self) -> Option<&Path> {
        let recordings = self.recordings.as_ref();
        recordings.map(|recordings| recordings.folder.as_path())
    }

    pub(super) fn recording_of(&self, stream: StreamId) -> Option<(&Recorder, RecordingId)> {
        let recorded = self.streams.get(&stream)?.recording.as_ref()?;
        Some((&self.recordings.as_ref()?.recorder, recorded.id))
    }

    /// Begins a recording, or goes on with one.
    pub(super) fn record(&mut self, stream: StreamId, recording: Recording) {
        if let Some((recorder, id)) = self.recording_of(stream) {
            return recorder.resume(id);
        }
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let call = running.call.to_string();
        if running.spec.kind != StreamKind::Audio {
            return;
        }
        let Some(recordings) = &mut self.recordings else {
            // The service refuses such requests.
            return tracing::error!(
                call,
                "the call is not recorded: there is no --recording-dir"
            );
        };
        let asked = recording.destination.as_deref();
        let random = crate::system::random_number();
        let name = names::file_name(asked, &call, random, recordings.usual);
        let (name, format) = match name {
            Ok(found) => found,
            Err(error) => return tracing::error!(call, %error, "the call is not recorded"),
        };
        let new = NewRecording {
            path: recordings.folder.join(name),
            content: match format {
                RecordingFormat::Wav => running.listen_for_file(),
                RecordingFormat::Pcap => Content::Packets {
                    local: running.local,
                    end: WayEnd::default(),
                },
            },
            metadata: recording.metadata,
            call,
        };
        let (id, ear) = recordings.recorder.start(new);
        if let Some(running) = self.streams.get_mut(&stream) {
            running.recording = Some(Recorded { id, ear });
        }
        self.tell_ears(stream);
        self.tell_recording(stream);
    }

    /// The medium of a stream whose packets are recorded gives them.
    pub(super) fn tell_recording(&self, stream: StreamId) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let recorded = running.recording.as_ref();
        let Some(ear) = recorded.and_then(|one| one.ear.clone()) else {
            return;
        };
        let _ = running.handle.command(move |medium, _| {
            let Some(media) = medium.audio_mut() else {
                return;
            };
            let listener = move |at_ns, side, from, packet: &[u8]| {
                ear.hear_packet(at_ns, side, from, packet);
            };
            media.set_packet_listener(Some(Box::new(listener)));
        });
    }

    pub(super) fn stop_recording(&mut self, stream: StreamId, discard: bool) {
        let Some((recorder, id)) = self.recording_of(stream) else {
            return;
        };
        recorder.stop(id, discard);
        if let Some(running) = self.streams.get_mut(&stream) {
            running.recording = None;
            let _ = running.handle.command(|medium, _| {
                if let Some(media) = medium.audio_mut() {
                    media.set_packet_listener(None);
                }
            });
        }
    }
}
