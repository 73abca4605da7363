//! Saved calls. Each call is exported as bytes for a store. A later process restores it on the same ports and with the same streams.
//!
//! ```text
//!  handle_* ─→ poll_changed ─→ export: bytes for the store, or nothing: the call has ended
//!  next process:  restore ─→ poll_action: Create for each stream, as after its answer
//!  another node:  leave ─→ no message to the parties      adopt ─→ the same, in addition to its own calls
//! ```

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::dialog::Slot;
use super::id::StreamId;
use super::live::{Live, Taken};
use super::{Action, CallId, Calls, NoPorts, PortRequest, PortSource};
use crate::saved::{Format, FormatError, Reader};

/// The reason why a saved call cannot be restored. The registry does not change then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// The bytes are not a call in a readable format.
    #[error("the saved call is not readable: {0}")]
    Format(#[from] FormatError),
    /// A call or a stream with this name exists already.
    #[error("call {0:?} already exists")]
    Known(CallId),
    /// A port of the call cannot be opened again.
    #[error("call {call:?}: {reason}")]
    Ports {
        /// The call.
        call: CallId,
        /// The reason why the port cannot be opened.
        reason: NoPorts,
    },
}

/// The ports of a leg: the request for them, and the advertised addresses of RTP and RTCP.
pub type SavedPorts = (PortRequest, SocketAddr, Option<SocketAddr>);

/// Versions of saved calls. The documentation of [`saved`](crate::saved) says which changes need a new version.
const FORMAT: Format = Format {
    version: 6,
    positional: Some(7),
};

/// A saved call. `C` is [`Live`], or a reference to it.
#[derive(Serialize, Deserialize)]
struct SavedCall<C> {
    head: Head,
    call: C,
}

/// Data saved with a call.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// The wall clock at time 0 of the saving process's clock, by which the call's times count. The next process may have another clock.
    unix_at_zero_ns: u64,
    /// The highest stream number that the saving process had used.
    last_stream: u64,
}

impl<P> Calls<P> {
    /// Starts to track which calls change, for [`poll_changed`](Self::poll_changed).
    pub fn track_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    /// Returns the next call that has changed or ended since the last poll. Poll after each `handle_*` if changes are
    /// [tracked](Self::track_changes). A later time of the last media does not count as a change.
    pub fn poll_changed(&mut self) -> Option<CallId> {
        self.changed.as_mut()?.pop_first()
    }

    /// Returns the state from which another process can continue a call. It contains the call's keys, so keep it as secret as they are.
    /// `None`: the call does not exist.
    ///
    /// The state does not include a running playback.
    #[must_use]
    pub fn export(&self, id: &CallId, reader: Reader) -> Option<Vec<u8>> {
        let call = self.calls.get(id)?;
        let head = Head {
            unix_at_zero_ns: self.settings.unix_at_zero_ns,
            last_stream: self.next_stream,
        };
        Some(FORMAT.write_for(reader, &SavedCall { head, call }))
    }

    /// Returns the ports of a call that another process [exported](Self::export): for each leg, the request and the advertised addresses of
    /// RTP and RTCP.
    ///
    /// # Errors
    /// Fails as [`SavedError`] lists.
    pub fn saved_ports(bytes: &[u8]) -> Result<Vec<SavedPorts>, SavedError> {
        let (_, call) = checked::<P>(bytes)?;
        let legs = call.slots().flat_map(|slot| &slot.local);
        Ok(legs
            .map(|leg| (leg.request.clone(), leg.rtp, leg.rtcp))
            .collect())
    }

    /// Restores a call that another process [exported](Self::export), and creates its streams again. A recording continues in another file.
    /// Time-outs continue by the wall clock, except those that began before this machine started. After the last restored call, call
    /// [`handle_timeout`](Self::handle_timeout).
    ///
    /// # Errors
    /// Fails as [`SavedError`] lists.
    pub fn restore(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        ports: &mut dyn PortSource<P>,
    ) -> Result<CallId, SavedError> {
        let (head, call) = checked::<P>(bytes)?;
        let is_known = |slot: &Slot<P>| self.streams.contains_key(&slot.stream);
        if self.calls.contains_key(&call.id) || call.slots().any(is_known) {
            return Err(SavedError::Known(call.id));
        }
        let last_stream = head.last_stream;
        let id = self.go_on(now_ns, &head, call, ports)?;
        self.next_stream = self.next_stream.max(last_stream);
        Ok(id)
    }

    /// Restores a call of another node, in addition to this registry's own calls. The streams get new numbers from this registry. The media
    /// time-out starts again, because the clocks of the machines differ. The second value contains the old and the new number of each
    /// stream.
    ///
    /// # Errors
    /// Fails as [`SavedError`] lists.
    pub fn adopt(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        ports: &mut dyn PortSource<P>,
    ) -> Result<(CallId, Vec<(StreamId, StreamId)>), SavedError> {
        let (head, mut call) = checked::<P>(bytes)?;
        if self.calls.contains_key(&call.id) {
            return Err(SavedError::Known(call.id));
        }
        let numbers = call.renumber(&mut self.next_stream);
        let id = self.go_on(now_ns, &head, call, ports)?;
        if let Some(call) = self.calls.get_mut(&id) {
            call.heard_ns = call.answered_ns.map(|_| now_ns);
        }
        self.schedule(&id);
        Ok((id, numbers))
    }

    /// Forgets a call that another node has taken over. No record and no further action follows. Returns the call's streams, which must be
    /// ended without a message to the parties.
    pub fn leave(&mut self, id: &CallId) -> Vec<StreamId> {
        let Some(call) = self.calls.remove(id) else {
            return Vec::new();
        };
        self.count(call.taken, Taken::default());
        if let Some(due_ns) = call.timer_ns {
            self.timers.remove(&(due_ns, id.clone()));
        }
        if let Some(changed) = &mut self.changed {
            changed.remove(id);
        }
        // A stream may have started so recently that its `Create` action is still queued.
        let streams = &self.streams;
        let is_of_it = |action: &Action<P>| match action {
            Action::Create { call, .. } => call == id,
            Action::Update { stream, .. }
            | Action::Remove { stream }
            | Action::Command { stream, .. } => streams.get(stream) == Some(id),
            Action::Ended { .. } => false,
        };
        self.actions.retain(|action| !is_of_it(action));
        let streams = call.slots().map(|slot| slot.stream);
        let begun = streams.filter(|stream| self.streams.remove(stream).is_some());
        begun.collect()
    }

    fn go_on(
        &mut self,
        now_ns: u64,
        head: &Head,
        mut call: Live<P>,
        ports: &mut dyn PortSource<P>,
    ) -> Result<CallId, SavedError> {
        call.set_clock(now_ns, head.unix_at_zero_ns, self.settings.unix_at_zero_ns);
        call.reopen(ports).map_err(|reason| SavedError::Ports {
            call: call.id.clone(),
            reason,
        })?;
        let id = call.id.clone();
        for slot in call.slots_mut() {
            let running = slot.running.clone();
            if let Some((spec, ports)) = running.and_then(|spec| Some((spec, slot.ports.take()?))) {
                self.streams.insert(slot.stream, id.clone());
                self.actions.push_back(Action::Create {
                    stream: slot.stream,
                    call: id.clone(),
                    spec,
                    ports,
                });
            }
        }
        self.actions.extend(call.record_on());
        self.calls.insert(id.clone(), call);
        self.schedule(&id);
        Ok(id)
    }
}

fn checked<P>(bytes: &[u8]) -> Result<(Head, Live<P>), SavedError> {
    let SavedCall::<Live<P>> { head, call } = FORMAT.read(bytes)?;
    let checked = call.check(head.last_stream);
    checked.map_err(|reason| FormatError::Damaged(reason.to_owned()))?;
    Ok((head, call))
}

#[cfg(test)]
mod tests;
