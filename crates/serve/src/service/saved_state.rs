//! Calls that outlive the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use threadbare_runtime::clock_now_ns;

use super::Service;
use crate::plays::Play;
use crate::store::{Saved, Store};

impl Service {
    /// Restores the calls of the previous process, and saves all calls in the store from now on. Call this before
    /// [`run`](Service::run).
    pub(crate) fn save_in(&mut self, store: Store, saved: Saved) {
        let now_ns = clock_now_ns();
        let write_queue = store.write_queue().clone();
        self.media
            .save_states(write_queue.clone(), saved.before, saved.streams);
        let mut restored = Vec::new();
        let mut lost = 0_usize;
        for (id, bytes) in saved.calls {
            match self.calls.restore(now_ns, &bytes, &mut self.interfaces) {
                Ok(id) => restored.push(id),
                Err(error) => {
                    lost += 1;
                    tracing::error!(call = %id, %error, "a call is not restored");
                    write_queue.put_call(id, None);
                }
            }
            self.carry_out();
        }
        for (stream, media) in self.media.take_heard() {
            self.calls.handle_media(now_ns, stream, media);
        }
        write_queue.sweep();
        self.calls.track_changes();
        // Now the times of the last media are known.
        for id in &restored {
            write_queue.put_call(id.clone(), self.calls.export(id));
        }
        self.store = Some(store);
        // Calls whose time is over end now.
        self.calls.handle_timeout(now_ns);
        self.carry_out();
        self.play_on();
        self.save_states();
        let calls = restored.len();
        if calls + lost > 0 {
            let ms = clock_now_ns().saturating_sub(now_ns) / 1_000_000;
            tracing::info!(calls, lost, ms, "calls restored");
        }
    }

    /// Resumes the files that the previous process was playing, at their saved position, so that no part of an announcement is
    /// lost.
    pub(super) fn play_on(&mut self) {
        let mut by_file: BTreeMap<Arc<str>, Vec<Play>> = BTreeMap::new();
        for (stream, to, state) in self.media.take_unplayed() {
            let (times, part) = (state.times, state.part());
            let file = Some(state.file.clone());
            let play = self.media.new_play(stream, to, file, times, part);
            by_file.entry(state.file).or_default().extend(play);
        }
        for (file, plays) in by_file {
            self.plays.resume(&file, plays);
        }
    }

    /// Hands changed states to the store.
    pub(super) fn save_states(&mut self) {
        self.note_changes();
        if self.store.is_some() || self.has_copier() {
            self.media.take_states(clock_now_ns());
        }
    }

    /// Reports changed calls to the store and the cluster.
    pub(super) fn note_changes(&mut self) {
        while let Some(id) = self.calls.poll_changed() {
            if let Some(store) = self.store.as_ref().filter(|_| !self.homes.has(&id)) {
                let state = self.calls.export(&id);
                store.write_queue().put_call(id.clone(), state);
            }
            self.note_claim(&id);
        }
    }

    /// Leaves all calls to the next process, or ends them if they are not saved.
    pub(crate) fn leave_all(&mut self) {
        self.save_states();
        match self.store.take() {
            Some(store) => {
                self.media.leave();
                store.close(true);
            }
            None => self.end_all(),
        }
    }
}
