//! Calls that outlive the process.

use threadbare_runtime::clock_now_ns;

use super::Service;
use crate::serve::store::{Saved, Store};

impl Service {
    /// Goes on with the calls of the process before, and keeps all calls in the store from now on. To be called before [`run`](Service::run).
    pub(in crate::serve) fn keep_in(&mut self, store: Store, saved: Saved) {
        let now_ns = clock_now_ns();
        let shelf = store.shelf().clone();
        self.media
            .keep_states(shelf.clone(), saved.before, saved.streams);
        let mut restored = Vec::new();
        let mut lost = 0_usize;
        for (id, bytes) in saved.calls {
            match self.calls.restore(now_ns, &bytes, &mut self.interfaces) {
                Ok(id) => restored.push(id),
                Err(error) => {
                    lost += 1;
                    tracing::error!(call = %id, %error, "a call is not brought back");
                    shelf.put_call(id, None);
                }
            }
            self.carry_out();
        }
        for (stream, media) in self.media.take_heard() {
            self.calls.handle_media(now_ns, stream, media);
        }
        shelf.sweep();
        self.calls.track_changes();
        // When media came last is in them now.
        for id in &restored {
            shelf.put_call(id.clone(), self.calls.export(id));
        }
        self.store = Some(store);
        // Those whose time is over end now.
        self.calls.handle_timeout(now_ns);
        self.carry_out();
        self.keep_states();
        let calls = restored.len();
        if calls + lost > 0 {
            let ms = clock_now_ns().saturating_sub(now_ns) / 1_000_000;
            tracing::info!(calls, lost, ms, "calls were brought back");
        }
    }

    /// Hands over to the store what has changed.
    pub(super) fn keep_states(&mut self) {
        let Some(store) = &self.store else {
            return;
        };
        while let Some(id) = self.calls.poll_changed() {
            let state = self.calls.export(&id);
            store.shelf().put_call(id, state);
        }
        self.media.take_states(clock_now_ns());
    }

    /// Leaves all calls to the next process, or ends them if nobody keeps them.
    pub(in crate::serve) fn leave_all(&mut self) {
        self.keep_states();
        match self.store.take() {
            Some(store) => {
                self.media.leave();
                store.close(true);
            }
            None => self.end_all(),
        }
    }
}
