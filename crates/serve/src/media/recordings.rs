//! Recordings of calls. The recorder gets either audio, as other listeners do, or packets.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use threadbare_control::calls::{CallId, Recording, StreamId, StreamKind, StreamSpec};
use threadbare_rtp::call::Side;
use threadbare_rtp::codec::Encoding;
use threadbare_rtp::leg::Carries;

use super::{MediaWorkers, Running};
use crate::names;
use threadbare_config::{RecordSpec, RecordingFormat, Template};
use threadbare_recording::{
    Coding, NewRecording, PacketRecorder, Recorder, RecordingId, Source, Subject, WayEnd,
};

/// Settings of recordings of calls.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    recorder: Recorder,
    /// Folder and format for recordings that are requested during a call.
    on_demand: Option<(PathBuf, RecordingFormat)>,
    /// Settings for all calls.
    policy: Option<Arc<RecordSpec>>,
    /// Settings for calls that are about to be made. They replace the policy.
    wishes: HashMap<CallId, Arc<RecordSpec>>,
}

/// The recording of a stream, or one recording for each side.
#[derive(Debug)]
pub(super) struct Recorded {
    ids: Vec<RecordingId>,
    /// Receives the stream's packets. `None`: the recorder gets audio.
    packet_recorder: Option<PacketRecorder>,
}

/// Runs a closure when it is dropped. This happens on the thread of a media session, or on the sender's if the session is gone.
struct Dropped<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Dropped<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

impl Running {
    fn source(&self, format: RecordingFormat) -> Source {
        if format == RecordingFormat::Pcap {
            return Source::Packets {
                local: self.local,
                end: WayEnd::default(),
            };
        }
        let (rate_hz, listening) = self.listen();
        Source::Audio {
            listening,
            rate_hz,
            sides: 2,
            channels: 1,
            law: law(&self.spec),
        }
    }
}

/// Returns the G.711 law of the first party that uses G.711, or µ-law if no party does.
fn law(spec: &StreamSpec) -> Coding {
    let encodings = spec.sides.iter().filter_map(|side| {
        let audio = side.sends.as_ref()?.audio();
        match audio.carries {
            Carries::Audio(format) => Some(format.encoding),
            _ => None,
        }
    });
    let mut laws = encodings.filter_map(|encoding| match encoding {
        Encoding::Pcma => Some(Coding::ALaw),
        Encoding::Pcmu => Some(Coding::ULaw),
        _ => None,
    });
    laws.next().unwrap_or(Coding::ULaw)
}

impl MediaWorkers {
    /// Enables recording. `on_demand` is the folder and default format for requested recordings. `policy` is the settings for all calls.
    pub(crate) fn record_with(
        &mut self,
        recorder: Recorder,
        on_demand: Option<(PathBuf, RecordingFormat)>,
        policy: Option<RecordSpec>,
    ) {
        self.recordings.recorder = recorder;
        self.recordings.on_demand = on_demand;
        self.set_policy(policy);
    }

    /// Sets how calls that start from now on are recorded.
    pub(crate) fn set_policy(&mut self, policy: Option<RecordSpec>) {
        self.recordings.policy = policy.map(Arc::new);
    }

    /// Returns the settings for all calls.
    pub(crate) fn policy(&self) -> Option<&Arc<RecordSpec>> {
        self.recordings.policy.as_ref()
    }

    /// Sets recording settings for a call that is about to be made.
    pub(crate) fn wish(&mut self, call: CallId, spec: RecordSpec) {
        self.recordings.wishes.insert(call, Arc::new(spec));
    }

    /// Drops the settings of a call, because it has ended or was not made.
    pub(crate) fn forget_wish(&mut self, call: &CallId) {
        self.recordings.wishes.remove(call);
    }

    /// Returns the folder and the default format for requested recordings. `None`: they are not configured.
    pub(crate) fn on_demand(&self) -> Option<(&Path, RecordingFormat)> {
        let recordings = &self.recordings;
        let asked = recordings.on_demand.as_ref();
        let asked = asked.map(|(folder, format)| (folder.as_path(), *format));
        let policy = recordings.policy.as_ref();
        asked.or_else(|| policy.map(|spec| (spec.to.root(), spec.format)))
    }

    /// Runs a closure on each recording of a stream, after the recorder has got all audio so far. Returns whether the stream
    /// has recordings.
    pub(super) fn each_recording(
        &self,
        stream: StreamId,
        act: impl Fn(&Recorder, RecordingId) + Send + 'static,
    ) -> bool {
        let running = self.streams.get(&stream);
        let recorded = running.and_then(|one| Some((one, one.recording.as_ref()?)));
        let Some((running, recorded)) = recorded else {
            return false;
        };
        let recorder = self.recordings.recorder.clone();
        let ids = recorded.ids.clone();
        let act = Dropped(Some(move || ids.iter().for_each(|id| act(&recorder, *id))));
        let told = running.handle.with(move |session, _| {
            if let Some(media) = session.audio_mut() {
                media.flush_listeners();
            }
            drop(act);
        });
        // The results are not needed.
        drop(told);
        true
    }

    /// Starts to record a new stream, if the policy says so.
    pub(super) fn record_by_policy(&mut self, stream: StreamId) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let recordings = &self.recordings;
        let wish = recordings.wishes.get(&running.call);
        let Some(spec) = wish.or(recordings.policy.as_ref()).cloned() else {
            return;
        };
        // Copies for subscribers are not recorded, because they belong to no party.
        if running.spec.kind != StreamKind::Audio || running.spec.copies.is_some() {
            return;
        }
        if spec.format != RecordingFormat::Pcap && !running.is_decoded() {
            let call = running.call.to_string();
            return tracing::warn!(
                call,
                "the call is not recorded, because its codecs are not decoded here"
            );
        }
        self.begin_recording(stream, spec, None, true);
    }

    /// Starts or resumes a recording.
    pub(super) fn record(&mut self, stream: StreamId, recording: Recording) {
        if self.each_recording(stream, Recorder::resume) {
            return;
        }
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        if running.spec.kind != StreamKind::Audio {
            return;
        }
        let call = running.call.to_string();
        let Some((folder, usual)) = self.on_demand() else {
            // The service refuses such requests before they come here.
            return tracing::error!(call, "the call is not recorded: --recording-dir is not set");
        };
        let asked = recording.destination.as_deref();
        let random = threadbare_process::system::random_number();
        let name = names::file_name(asked, &call, random, usual);
        let (name, format) = match name {
            Ok(found) => found,
            Err(error) => return tracing::error!(call, %error, "the call is not recorded"),
        };
        let spec = RecordSpec::on_demand(Template::fixed(folder, &name), format);
        self.begin_recording(stream, Arc::new(spec), recording.metadata, false);
    }

    fn begin_recording(
        &mut self,
        stream: StreamId,
        spec: Arc<RecordSpec>,
        metadata: Option<String>,
        is_lasting: bool,
    ) {
        let Some(running) = self.streams.get_mut(&stream) else {
            return;
        };
        let is_split = spec.to.is_of_one_side() && spec.format != RecordingFormat::Pcap;
        let sides = if is_split {
            &[Some(Side::A), Some(Side::B)][..]
        } else {
            &[None]
        };
        let of = Subject::Call(running.call.to_string().into());
        let (mut ids, mut packet_recorder, mut metadata) = (Vec::new(), None, metadata);
        for side in sides {
            let new = NewRecording {
                of: of.clone(),
                source: running.source(spec.format),
                spec: spec.clone(),
                side: *side,
                metadata: metadata.take(),
                is_lasting,
            };
            let (id, own) = self.recordings.recorder.start(new);
            ids.push(id);
            packet_recorder = own;
        }
        running.recording = Some(Recorded {
            ids,
            packet_recorder,
        });
        running.update_listeners();
        self.tell_recording(stream);
    }

    /// Lets the media session of a stream send packets to its recording, if the recording consists of packets.
    pub(super) fn tell_recording(&self, stream: StreamId) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let recorded = running.recording.as_ref();
        let Some(packet_recorder) = recorded.and_then(|one| one.packet_recorder.clone()) else {
            return;
        };
        let _ = running.handle.command(move |session, _| {
            let Some(media) = session.audio_mut() else {
                return;
            };
            let listener = move |at_ns, side, from, packet: &[u8]| {
                packet_recorder.record_packet(at_ns, side, from, packet);
            };
            media.set_packet_listener(Some(Box::new(listener)));
        });
    }

    pub(super) fn stop_recording(&mut self, stream: StreamId, discard: bool) {
        let stop = move |recorder: &Recorder, id| recorder.stop(id, discard);
        if !self.each_recording(stream, stop) {
            return;
        }
        if let Some(running) = self.streams.get_mut(&stream) {
            running.recording = None;
            let _ = running.handle.command(|session, _| {
                if let Some(media) = session.audio_mut() {
                    media.set_packet_listener(None);
                }
            });
        }
    }
}
