//! The recorder's thread. It handles orders, the turns of all recordings, and pending file operations.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::stream::Stream;
use threadbare_files::Disk;
use threadbare_runtime::clock_now_ns;

use super::file_table::{FileTable, log_names};
use super::index::Subject;
use super::orders::{Change, NewRecording, Order, RecordingId, SharedState};
use super::running::Running;

/// State of the recorder's thread.
pub(super) struct Writer {
    table: FileTable,
    running: HashMap<RecordingId, Running>,
    bell: Arc<Bell>,
    waker: Waker,
    /// Time of the next turn of any recording, in ns.
    due_ns: u64,
    /// Whether a recording may have ended.
    may_forget: bool,
    /// Buffer for the list of recordings that had their turn. It is empty between turns.
    turned: Vec<RecordingId>,
    /// Time until which the thread waits for files before it ends, in ns. It is set when the process ends.
    end_ns: Option<u64>,
}

/// Wakes the thread when a pending operation can continue.
struct Bell {
    orders: Sender<Order>,
    rings: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rings.swap(true, Relaxed) {
            // This fails if the thread has ended. In that case nothing is pending.
            let _ = self.orders.send(Order::Woken);
        }
    }
}

impl Writer {
    pub(super) fn new(disk: Disk, shared: Arc<SharedState>, orders: Sender<Order>) -> Writer {
        let bell = Arc::new(Bell {
            orders,
            rings: AtomicBool::new(false),
        });
        Writer {
            table: FileTable::new(disk, shared),
            running: HashMap::new(),
            waker: bell.clone().into(),
            bell,
            due_ns: u64::MAX,
            may_forget: false,
            turned: Vec::new(),
            end_ns: None,
        }
    }

    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let now_ns = clock_now_ns();
            let until_ns = self.due_ns.min(self.end_ns.unwrap_or(u64::MAX));
            let order = match until_ns {
                // Nothing is recorded, so the thread waits for an order.
                u64::MAX => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                at_ns => orders.recv_timeout(Duration::from_nanos(at_ns.saturating_sub(now_ns))),
            };
            match order {
                Ok(order) => self.handle(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for order in orders.try_iter().take(BURST) {
                self.handle(order);
            }
            let now_ns = clock_now_ns();
            if now_ns >= self.due_ns {
                self.take_turns(now_ns);
            }
            self.poll_jobs();
            if std::mem::take(&mut self.may_forget) {
                self.forget_ended();
                // The order may have started operations, so they are polled.
                self.poll_jobs();
            }
            let is_idle = self.table.jobs.is_empty() && self.running.is_empty();
            if let Some(end_ns) = self.end_ns
                && (is_idle || now_ns >= end_ns)
            {
                let files = self.table.jobs.len();
                if files > 0 {
                    tracing::error!(
                        files,
                        "the disk does not answer: the next process must repair these recordings"
                    );
                }
                return;
            }
        }
    }

    fn handle(&mut self, order: Order) {
        let table = &mut self.table;
        match order {
            Order::Root(root) => table.open_root(root),
            Order::Start(id, new, now_ns) => self.start(id, *new, now_ns),
            Order::Stop {
                id,
                discard,
                now_ns,
            } => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.stop(table, discard, now_ns);
                }
                self.may_forget = true;
            }
            Order::Packet(id, at_ns, side, from, packet) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.add_packet(table, at_ns, side, from, &packet);
                }
            }
            Order::Pause(id, now_ns) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.pause(table, now_ns);
                }
            }
            Order::Resume(id, now_ns) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.resume(now_ns);
                }
            }
            Order::Change(name, change, now_ns, tell) => {
                let is_it = |one: &&mut Running| {
                    matches!(&one.of, Subject::Stream(own) if **own == *name)
                        && one.is_stopped.is_none()
                };
                let found = self.running.values_mut().find(is_it);
                let is_known = found.is_some();
                if let Some(running) = found {
                    match change {
                        Change::Resume => running.resume(now_ns),
                        Change::Pause => running.pause(table, now_ns),
                        Change::Stop => running.interrupt(table, now_ns),
                    }
                }
                // This fails if nobody waits for the answer.
                let _ = tell.send(is_known);
            }
            Order::Delete(id, tell) => table.delete(id, tell),
            Order::Stored(root, path) => table.handle_stored(&root, &path),
            Order::Woken => self.bell.rings.store(false, Relaxed),
            Order::End => self.end(),
        }
    }

    fn start(&mut self, id: RecordingId, new: NewRecording, now_ns: u64) {
        let mut running = Running::new(id, new, now_ns);
        running.begin(&mut self.table, now_ns);
        let (call, stream) = log_names(&running.of);
        let folder = running.root().display();
        tracing::info!(call, stream, %folder, "recording");
        running.next_ns = next_turn_ns(id, clock_now_ns());
        self.due_ns = self.due_ns.min(running.next_ns);
        self.running.insert(id, running);
        self.count_running();
    }

    /// Runs the turns that are due. The writes of all recordings in a slot are passed to the disk's thread together, so that this thread
    /// wakes up only once.
    fn take_turns(&mut self, now_ns: u64) {
        self.due_ns = u64::MAX;
        for (id, running) in &mut self.running {
            if running.next_ns <= now_ns {
                if running.turn(&mut self.table, now_ns) {
                    self.turned.push(*id);
                }
                // If turns were missed, they are not run later.
                running.next_ns = next_turn_ns(*id, now_ns);
                self.may_forget |= running.is_stopped.is_some();
            }
            self.due_ns = self.due_ns.min(running.next_ns);
        }
        for id in self.turned.drain(..) {
            if let Some(running) = self.running.get_mut(&id) {
                running.flush(&mut self.table, now_ns);
            }
        }
    }

    fn poll_jobs(&mut self) {
        let mut cx = Context::from_waker(&self.waker);
        while let Poll::Ready(Some(done)) = Pin::new(&mut self.table.jobs).poll_next(&mut cx) {
            self.may_forget = true;
            if let Some(of) = done.of
                && let Some(open) = self.table.open_jobs.get_mut(&of)
            {
                *open -= 1;
                if *open == 0 {
                    self.table.open_jobs.remove(&of);
                }
            }
            self.table.handle(done.what);
        }
    }

    /// Removes recordings that have ended and whose files are finished.
    fn forget_ended(&mut self) {
        let table = &mut self.table;
        let over: Vec<(RecordingId, Running)> = self
            .running
            .extract_if(|id, one| match one.is_stopped {
                None => false,
                Some(_) if table.open_jobs.contains_key(id) => false,
                // If the recording is discarded, its files are removed first.
                Some(true) => !table.sweep(*id),
                Some(false) => true,
            })
            .collect();
        if over.is_empty() {
            return;
        }
        for (id, running) in over {
            self.table.files.remove(&id);
            let discard = running.is_stopped == Some(true);
            let (call, stream) = log_names(&running.of);
            let (dropped, unit) = running.missed();
            if dropped > 0 {
                tracing::warn!(
                    call,
                    stream,
                    dropped,
                    unit,
                    "a recording has gaps, because the disk was too slow"
                );
            }
            match running.error {
                None => tracing::info!(call, stream, discard, "the recording has ended"),
                Some(error) => tracing::error!(call, stream, %error, "the recording has ended"),
            }
        }
        self.count_running();
    }

    fn count_running(&self) {
        let running = self.running.len() as u64;
        self.table.shared.counters.running.store(running, Relaxed);
    }

    fn end(&mut self) {
        let now_ns = clock_now_ns();
        for running in self.running.values_mut() {
            running.stop(&mut self.table, false, now_ns);
        }
        self.end_ns = Some(now_ns + END_NS_MAX);
        self.may_forget = true;
    }
}

/// Returns the time of a recording's next turn. Each recording has a slot. So the thread wakes up once for all recordings of a slot, but
/// recordings that started together are not all written together.
fn next_turn_ns(id: RecordingId, now_ns: u64) -> u64 {
    let slot_ns = id.0 % SLOTS * (TURN_NS / SLOTS);
    let turns = now_ns.saturating_sub(slot_ns) / TURN_NS;
    (turns + 1) * TURN_NS + slot_ns
}

/// Time between two turns of a recording. A file is behind the audio by at most this time plus `running::DELAY_NS`.
const TURN_NS: u64 = 600_000_000;
/// Number of slots of 40 ms each. Of a thousand recordings, 67 have their turn together, which takes about two milliseconds.
const SLOTS: u64 = 15;
/// Maximum number of orders that are handled in a row before turns are run.
const BURST: usize = 1024;
/// Maximum time that the thread waits for the disk when the process ends.
const END_NS_MAX: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_take_turns_evenly_and_keep_their_slot_when_late() {
        let begun_ns = 12_345_678_901;
        let mut slots = std::collections::HashMap::<u64, u64>::new();
        for id in 0..90 {
            let id = RecordingId(id);
            let first_ns = next_turn_ns(id, begun_ns + id.0 * 1_000);
            assert!((1..=TURN_NS).contains(&(first_ns - begun_ns - id.0 * 1_000)));
            assert_eq!(next_turn_ns(id, first_ns), first_ns + TURN_NS);
            // This turn is late by several turns.
            let late_ns = first_ns + 3 * TURN_NS + 7;
            assert_eq!(next_turn_ns(id, late_ns), first_ns + 4 * TURN_NS);
            *slots.entry(first_ns).or_default() += 1;
        }
        assert_eq!(slots.len() as u64, SLOTS);
        assert!(slots.values().all(|recordings| *recordings == 90 / SLOTS));
    }
}
