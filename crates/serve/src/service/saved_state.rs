//! Saves and restores calls, so that they outlive the process.

use std::collections::BTreeMap;
use std::sync::Arc;
use threadbare_control::saved::Reader;

use threadbare_runtime::clock_now_ns;

use super::Service;
use crate::plays::Play;
use crate::store::{Saved, Store};

/// Restores the calls of the previous process, and saves all calls in the store from now on. Call this before
/// [`run`](Service::run).
pub(crate) fn restore(service: &mut Service, store: Store, saved: Saved) {
    let now_ns = clock_now_ns();
    let write_queue = store.write_queue().clone();
    service
        .media
        .save_states(write_queue.clone(), saved.before, saved.streams);
    let mut restored = Vec::new();
    let mut lost = 0_usize;
    for (id, bytes) in saved.calls {
        match service
            .calls
            .restore(now_ns, &bytes, &mut service.interfaces)
        {
            Ok(id) => restored.push(id),
            Err(error) => {
                lost += 1;
                tracing::error!(call = %id, %error, "a call is not restored");
                write_queue.put_call(id, None);
            }
        }
        service.carry_out();
    }
    for (stream, media) in service.media.take_heard() {
        service.calls.handle_media(now_ns, stream, media);
    }
    write_queue.sweep();
    service.calls.track_changes();
    // The restored streams have shown when their media were last received.
    for id in &restored {
        write_queue.put_call(id.clone(), service.calls.export(id, Reader::Later));
    }
    service.store = Some(store);
    // This ends the calls that have timed out meanwhile.
    service.calls.handle_timeout(now_ns);
    service.carry_out();
    play_on(service);
    save_changes(service);
    let calls = restored.len();
    if calls + lost > 0 {
        let ms = clock_now_ns().saturating_sub(now_ns) / 1_000_000;
        tracing::info!(calls, lost, ms, "calls restored");
    }
}

/// Resumes the files that the previous process was playing. They resume at the saved position, so that parties miss no part of an
/// announcement.
pub(super) fn play_on(service: &mut Service) {
    let mut by_file: BTreeMap<Arc<str>, Vec<Play>> = BTreeMap::new();
    for (stream, to, state) in service.media.take_unplayed() {
        let (times, part) = (state.times, state.part());
        let file = Some(state.file.clone());
        let play = service.media.new_play(stream, to, file, times, part);
        by_file.entry(state.file).or_default().extend(play);
    }
    for (file, plays) in by_file {
        service.plays.resume(&file, plays);
    }
}

/// Saves the states of changed calls, and of the streams that are due.
pub(super) fn save_changes(service: &mut Service) {
    note_changes(service);
    if service.store.is_some() || service.has_copier() {
        service.media.take_states(clock_now_ns());
    }
}

/// Reports changed calls to the store and the cluster.
pub(super) fn note_changes(service: &mut Service) {
    while let Some(id) = service.calls.poll_changed() {
        if let Some(store) = service.store.as_ref().filter(|_| !service.homes.has(&id)) {
            let state = service.calls.export(&id, Reader::Later);
            store.write_queue().put_call(id.clone(), state);
        }
        service.note_claim(&id);
    }
}

/// Leaves all calls to the next process, or ends them if they are not saved.
pub(crate) fn leave_all(service: &mut Service) {
    save_changes(service);
    match service.store.take() {
        Some(store) => {
            service.media.leave();
            store.close(true);
        }
        None => service.end_all(),
    }
}
