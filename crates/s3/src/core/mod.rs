//! Lifecycle of an upload. It has no clock, socket or data: parts are numbers and sizes, times are nanoseconds of any clock.
//!
//! ```text
//!   data --seal--> waiting --Part--> done          a single part: Put instead
//!                   Create, before the first part
//!   end  --all done--> Complete --> Stored
//!   a failure, a stop --> Stopping --by OnError--> Abort | Complete | nothing --> Failed
//! ```
//!
//! The drain contract: after each `handle_*`, call [`Core::poll_task`] until it returns `None`. Then call [`Core::poll_released`]
//! until it returns `None`; it returns the parts whose bytes are not needed any more. Call both again at [`Core::next_timeout`].
//! When a task is done, call [`Core::handle_done`] or [`Core::handle_failed`] once.

mod sizes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

pub use self::sizes::{PART_BYTES_DEFAULT, PART_BYTES_MAX, PART_BYTES_MIN, PARTS_MAX, Sizes};
use crate::error::Error;

/// Action for an upload that fails, or that is abandoned before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum OnError {
    /// The parts are removed from the store.
    Abort,
    /// The data so far becomes an object.
    Complete,
    /// The parts stay at the store, and cost money.
    #[default]
    DoNothing,
}

/// How often and for how long requests are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of attempts of a request; `None` for no limit.
    pub attempts: Option<u32>,
    /// Time after the first attempt, ns, from which no further attempt starts; `None` for no limit.
    pub request_ns: Option<u64>,
    /// Time after the first attempt of sending a part or a small object, ns, from which no further attempt starts; `None` for no
    /// limit.
    pub part_ns: Option<u64>,
    /// Time after the first attempt to complete an upload, ns, from which no further attempt starts; `None` for no limit.
    pub complete_ns: Option<u64>,
    /// Maximum pause before the second attempt, ns. It doubles with each further attempt. The actual pause is random, at least
    /// half of the maximum.
    pub delay_ns: u64,
    /// Maximum pause before any attempt, ns.
    pub delay_ns_max: u64,
}

impl Default for Retries {
    fn default() -> Self {
        Retries {
            attempts: Some(5),
            request_ns: Some(75_000_000_000),
            part_ns: Some(75_000_000_000),
            complete_ns: Some(75_000_000_000),
            delay_ns: 500_000_000,
            delay_ns_max: 10_000_000_000,
        }
    }
}

impl Retries {
    /// Retries without limit, for data that is safe on a disk.
    pub fn endless() -> Self {
        Retries {
            attempts: None,
            request_ns: None,
            part_ns: None,
            complete_ns: None,
            delay_ns_max: 60_000_000_000,
            ..Retries::default()
        }
    }

    fn duration_ns(&self, task: Task) -> Option<u64> {
        match task {
            Task::Create | Task::Abort => self.request_ns,
            Task::Put | Task::Part(_) => self.part_ns,
            Task::Complete => self.complete_ns,
        }
    }
}

/// Maximum pause that a store may request, ns. A wrong response must not stop an upload for days.
const RETRY_AFTER_NS_MAX: u64 = 120_000_000_000;
/// Maximum number of attempts to remove an upload that has already failed.
const ABORT_ATTEMPTS_MAX: u32 = 5;

/// Parameters of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) sizes: Sizes,
    /// Maximum number of concurrent parts.
    pub(crate) at_once: usize,
    pub(crate) retries: Retries,
    pub(crate) on_error: OnError,
}

/// A request to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Create,
    /// Send part 1 as a whole object.
    Put,
    Part(u16),
    Complete,
    Abort,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Result of [`Task::Create`].
    Upload(String),
    /// Result of [`Task::Put`], [`Task::Part`] and [`Task::Complete`].
    Etag(String),
    /// Result of [`Task::Abort`].
    Gone,
}

/// Outcome of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The object exists.
    Stored { etag: String },
    /// The object does not exist, or is incomplete.
    Failed(Error),
}

/// A part that the store has.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct DonePart {
    pub(crate) etag: String,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Job {
    task: Task,
    failures: u32,
    first_ns: u64,
    /// Time of the next attempt; `None` while the request is being sent.
    again_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Core {
    plan: Plan,
    upload: Option<String>,
    /// Number of the part that is being filled, and its number of bytes.
    number: u16,
    filling: u64,
    waiting: VecDeque<(u16, u64)>,
    jobs: Vec<Job>,
    done: BTreeMap<u16, DonePart>,
    /// Sizes of parts that are being sent.
    flying: BTreeMap<u16, u64>,
    released: Vec<u16>,
    has_ended: bool,
    /// The reason why the upload must end without its object.
    stopping: Option<Error>,
    outcome: Option<Outcome>,
    retries: u64,
    dropped: u64,
}

impl Core {
    pub(crate) fn new(plan: Plan) -> Self {
        Core {
            plan,
            upload: None,
            number: 1,
            filling: 0,
            waiting: VecDeque::new(),
            jobs: Vec::new(),
            done: BTreeMap::new(),
            flying: BTreeMap::new(),
            released: Vec::new(),
            has_ended: false,
            stopping: None,
            outcome: None,
            retries: 0,
            dropped: 0,
        }
    }

    /// Creates the core for data that is complete and of which the store may already have a part. It is a whole file, or an
    /// upload that an earlier process has left.
    pub(crate) fn resumed(
        plan: Plan,
        upload: Option<String>,
        done: BTreeMap<u16, DonePart>,
        waiting: impl IntoIterator<Item = (u16, u64)>,
    ) -> Self {
        let mut core = Core::new(plan);
        core.upload = upload;
        core.waiting = waiting.into_iter().collect();
        let last = core.waiting.back().map(|(number, _)| *number);
        core.number = last.max(done.keys().next_back().copied()).unwrap_or(0) + 1;
        core.done = done;
        core.handle_end();
        core
    }

    /// Returns the number of bytes that still fit the part being filled. It is 0 if the object has its maximum length, or if no
    /// more data is accepted.
    pub(crate) fn room(&self) -> u64 {
        if self.has_ended || self.stopping.is_some() || self.number > PARTS_MAX {
            0
        } else {
            self.plan.sizes.of(self.number) - self.filling
        }
    }

    /// Returns the number of the part being filled, and its number of bytes.
    pub(crate) fn filling(&self) -> (u16, u64) {
        (self.number, self.filling)
    }

    /// Adds bytes to the part being filled, at most [`Core::room`]. Returns the number of the part if they complete it.
    pub(crate) fn handle_data(&mut self, bytes: u64) -> Option<u16> {
        debug_assert!(bytes <= self.room());
        self.filling += bytes;
        (self.room() == 0 && self.filling > 0).then(|| self.seal())
    }

    fn seal(&mut self) -> u16 {
        let number = self.number;
        self.waiting
            .push_back((number, std::mem::take(&mut self.filling)));
        self.number += 1;
        number
    }

    /// Ends the data. Returns the number of the last part, if this call completes it.
    pub(crate) fn handle_end(&mut self) -> Option<u16> {
        if self.has_ended || self.stopping.is_some() {
            return None;
        }
        // An empty object has one empty part.
        let seals = self.filling > 0 || (self.number == 1 && self.done.is_empty());
        let sealed = seals.then(|| self.seal());
        self.has_ended = true;
        sealed
    }

    /// Whether the data has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended || self.stopping.is_some()
    }

    /// Returns the reason why the upload must end without its object, if it must.
    pub(crate) fn stop_reason(&self) -> Option<&Error> {
        self.stopping.as_ref()
    }

    /// Returns the error for an object that has no room left.
    pub(crate) fn too_long(&self) -> Error {
        Error::TooLong {
            parts: PARTS_MAX,
            part_bytes: self.plan.sizes.first(),
        }
    }

    /// Sets what happens from now on if the upload is stopped.
    pub(crate) fn set_on_error(&mut self, on_error: OnError) {
        self.plan.on_error = on_error;
    }

    /// Ends the upload without more data, for the reason `error`. Waiting parts are not sent.
    pub(crate) fn handle_stop(&mut self, error: Error) {
        if self.stopping.is_some() || self.outcome.is_some() {
            return;
        }
        self.stopping = Some(error);
        self.released
            .extend(self.waiting.drain(..).map(|(number, _)| number));
        if std::mem::take(&mut self.filling) > 0 {
            self.released.push(self.number);
        }
        // Requests that wait for a retry are not sent any more.
        let mut left = Vec::new();
        self.jobs.retain(|job| {
            let is_running = job.again_ns.is_none();
            if !is_running {
                left.push(job.task);
            }
            is_running
        });
        for task in left {
            self.release(task);
        }
    }

    fn release(&mut self, task: Task) {
        let number = match task {
            Task::Part(number) => number,
            Task::Put => 1,
            _ => return,
        };
        self.flying.remove(&number);
        self.released.push(number);
    }

    /// Drops the oldest waiting part. Returns its size; `None` if no part is waiting.
    pub(crate) fn drop_oldest(&mut self) -> Option<u64> {
        let (number, bytes) = self.waiting.pop_front()?;
        self.released.push(number);
        self.dropped += bytes;
        Some(bytes)
    }

    /// Returns the next request to be sent now.
    pub(crate) fn poll_task(&mut self, now_ns: u64) -> Option<Task> {
        if self.outcome.is_some() {
            return None;
        }
        let due = |job: &&mut Job| job.again_ns.is_some_and(|at| at <= now_ns);
        if let Some(job) = self.jobs.iter_mut().find(due) {
            job.again_ns = None;
            return Some(job.task);
        }
        let task = if self.stopping.is_some() {
            self.next_of_stop()?
        } else {
            self.next()?
        };
        self.jobs.push(Job {
            task,
            failures: 0,
            first_ns: now_ns,
            again_ns: None,
        });
        Some(task)
    }

    fn next(&mut self) -> Option<Task> {
        if self.upload.is_none() {
            // Until the upload exists, there is only one request at a time.
            if !self.jobs.is_empty() || self.waiting.is_empty() {
                return None;
            }
            let is_whole = self.has_ended && self.done.is_empty() && self.waiting.len() == 1;
            if !is_whole {
                return Some(Task::Create);
            }
            self.fly();
            return Some(Task::Put);
        }
        let is_part = |job: &&Job| matches!(job.task, Task::Part(_));
        if self.jobs.iter().filter(is_part).count() < self.plan.at_once
            && let Some(number) = self.fly()
        {
            return Some(Task::Part(number));
        }
        (self.has_ended && self.waiting.is_empty() && self.jobs.is_empty())
            .then_some(Task::Complete)
    }

    fn fly(&mut self) -> Option<u16> {
        let (number, bytes) = self.waiting.pop_front()?;
        self.flying.insert(number, bytes);
        Some(number)
    }

    /// Returns the next request of a stop. Pending requests must end before parts are removed, because otherwise they could
    /// create parts afterwards.
    fn next_of_stop(&mut self) -> Option<Task> {
        if !self.jobs.is_empty() {
            return None;
        }
        if self.upload.is_some() {
            match self.plan.on_error {
                OnError::Complete if self.parts().next().is_some() => return Some(Task::Complete),
                OnError::Abort | OnError::Complete => return Some(Task::Abort),
                OnError::DoNothing => {}
            }
        }
        self.fail();
        None
    }

    fn fail(&mut self) {
        let error = self.stopping.take().unwrap_or(Error::GivenUp);
        self.outcome = Some(Outcome::Failed(error));
    }

    /// Handles a successful request.
    pub(crate) fn handle_done(&mut self, task: Task, answer: Answer) {
        self.jobs.retain(|job| job.task != task);
        match (task, answer) {
            (Task::Create, Answer::Upload(id)) => self.upload = Some(id),
            (Task::Part(number), Answer::Etag(etag)) => {
                let bytes = self.flying.get(&number).copied().unwrap_or(0);
                self.done.insert(number, DonePart { etag, bytes });
                self.release(task);
            }
            (Task::Put | Task::Complete, Answer::Etag(etag)) => {
                if let Some(bytes) = self.flying.get(&1).copied().filter(|_| task == Task::Put) {
                    self.done.insert(
                        1,
                        DonePart {
                            etag: etag.clone(),
                            bytes,
                        },
                    );
                }
                self.release(task);
                if self.stopping.is_some() {
                    self.fail()
                } else {
                    self.outcome = Some(Outcome::Stored { etag })
                }
            }
            (Task::Abort, _) => self.fail(),
            _ => self.handle_stop(Error::Answer(
                "the answer belongs to another request".into(),
            )),
        }
    }

    /// Handles a failed request. `random` is any number; the pause depends on it.
    pub(crate) fn handle_failed(&mut self, task: Task, error: Error, now_ns: u64, random: u64) {
        let Some(index) = self.jobs.iter().position(|job| job.task == task) else {
            return;
        };
        let delay_ns = self.delay_ns(index, &error, now_ns, random);
        let may_retry = self.stopping.is_none() || matches!(task, Task::Abort | Task::Complete);
        if let Some(delay_ns) = delay_ns.filter(|_| may_retry) {
            let job = &mut self.jobs[index];
            job.failures += 1;
            job.again_ns = Some(now_ns.saturating_add(delay_ns));
            self.retries += 1;
            return;
        }
        self.jobs.remove(index);
        self.release(task);
        match (task, &self.stopping) {
            // The upload remains at the store. The result is the first failure.
            (Task::Abort, _) | (Task::Complete, Some(_)) => self.fail(),
            (_, None) => self.handle_stop(error),
            (_, Some(_)) => {}
        }
    }

    /// Returns the pause before the request is sent again; `None` if it is not sent again.
    fn delay_ns(&self, index: usize, error: &Error, now_ns: u64, random: u64) -> Option<u64> {
        let job = &self.jobs[index];
        let retries = &self.plan.retries;
        let attempts = match job.task {
            Task::Abort => Some(retries.attempts.unwrap_or(ABORT_ATTEMPTS_MAX)),
            _ if self.stopping.is_some() => Some(retries.attempts.unwrap_or(ABORT_ATTEMPTS_MAX)),
            _ => retries.attempts,
        };
        if !error.is_transient() || attempts.is_some_and(|attempts| job.failures + 1 >= attempts) {
            return None;
        }
        let longest = retries
            .delay_ns
            .saturating_mul(1 << job.failures.min(30))
            .min(retries.delay_ns_max);
        let pause = longest / 2 + random % (longest / 2 + 1);
        let wanted = error
            .retry_after_ms()
            .map_or(0, |ms| ms.saturating_mul(1_000_000));
        let pause = pause.max(wanted.min(RETRY_AFTER_NS_MAX));
        let spent = now_ns.saturating_sub(job.first_ns).saturating_add(pause);
        let is_late = retries.duration_ns(job.task).is_some_and(|max| spent > max);
        (!is_late).then_some(pause)
    }

    /// Returns the time of the next task, ns, if no other event comes first.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.jobs.iter().filter_map(|job| job.again_ns).min()
    }

    /// Returns a part whose bytes are not needed any more.
    pub(crate) fn poll_released(&mut self) -> Option<u16> {
        self.released.pop()
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Returns the id of the multipart upload, if it exists.
    pub(crate) fn upload(&self) -> Option<&str> {
        self.upload.as_deref()
    }

    /// Returns the parts that the store has.
    pub(crate) fn done(&self) -> &BTreeMap<u16, DonePart> {
        &self.done
    }

    /// Returns the parts of the object: all of them, or after a failure, those before the first missing part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u16, &str)> {
        let is_stopping = self.stopping.is_some();
        let whole = self
            .done
            .iter()
            .enumerate()
            .take_while(move |(index, (number, _))| {
                !is_stopping || index + 1 == usize::from(**number)
            });
        whole.map(|(_, (number, part))| (*number, part.etag.as_str()))
    }

    /// Numbers of bytes that are stored, that wait or are being sent, and that were dropped.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        let done = self.done.values().map(|part| part.bytes).sum();
        let waiting: u64 = self.waiting.iter().map(|(_, bytes)| bytes).sum();
        let flying: u64 = self.flying.values().sum();
        (done, self.filling + waiting + flying, self.dropped)
    }

    /// Returns the number of repeated requests.
    pub(crate) fn retries(&self) -> u64 {
        self.retries
    }
}
