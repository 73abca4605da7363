//! Observes streams and calls for the page, programs and metrics.
//!
//! | part | thread |
//! |---|---|
//! | [`Directory`] | the thread that keeps streams running updates it |
//! | the snapshot of a stream | the stream's shard writes it, and the observing thread reads it |
//! | [`WatchedCalls`] | the control thread updates the list; the observing thread evaluates the alarms of calls once a second |
//! | `History` | a separate thread writes the files, and any thread reads them |
//! | [`Gatherer`] | the observing thread updates it once a second (with observers, ten times); other threads read it under a lock |
//!
//! Part of the gateway `threadbare`; not a public interface.
#![forbid(unsafe_code)]

mod alarm;
mod calls;
mod directory;
mod frame;
mod gather;
mod history;
mod machine;
mod metrics;
mod moves;
mod second;
mod webhook;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use threadbare_base::NS_PER_S;
use threadbare_base::lock;

use threadbare_runtime::clock_now_ns;
use tokio::sync::{broadcast, watch};

pub use self::alarm::{Alarm, AlarmKind, Alarms, Change, Rule, Rules};
pub use self::calls::{PartyAlarm, WatchedCall, WatchedCalls};
pub use self::directory::{Directory, Listed, Watched, Way};
pub use self::frame::{Frame, TileValues, Tiles};
use self::gather::Turn;
pub use self::gather::{AlarmChange, Gatherer, PartyId, Tile, TileState, Track};
use self::history::History;
pub use self::machine::{Machine, ThreadSecond, ThreadSeen, ThreadTrack};
pub use self::moves::{MovedSession, Moves, SessionMove};
pub use self::second::{Level, RECENT_SECONDS, Second, merged};
use self::webhook::Webhook;
use threadbare_process::limit::{LineLimit, Verdict};
use threadbare_process::system::{local_minute, unix_at_zero_ns};

/// Handle to the observing thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watch {
    view: View,
    thread: Option<JoinHandle<()>>,
}

/// The observed data. Clones share it.
#[derive(Debug, Clone)]
pub struct View(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: Directory,
    calls: WatchedCalls,
    gatherer: Mutex<Gatherer>,
    machine: Mutex<Machine>,
    frames: watch::Sender<Frame>,
    lookers: AtomicUsize,
    changes: broadcast::Sender<TimedChange>,
    lines: LineLimit,
    webhook: Mutex<Option<Webhook>>,
    history: Mutex<Option<History>>,
    /// Whether the thread must end.
    ends: Mutex<bool>,
    /// Notified when an observer comes, or the thread must end.
    bell: Condvar,
}

/// A raised or ended alarm, with its time in s since 1970.
pub type TimedChange = (u64, AlarmChange);

/// A subscription to frames. It lasts until this value is dropped.
#[derive(Debug)]
pub struct Frames {
    /// The latest frame.
    pub frames: watch::Receiver<Frame>,
    view: View,
}

impl Watch {
    /// Starts to observe the streams of a directory. `alarms`: the rules of alarms, and the URL of the webhook.
    ///
    /// # Errors
    /// Fails if threads run out.
    pub fn start(directory: Directory, alarms: (Rules, Option<&str>)) -> std::io::Result<Watch> {
        let view = View(Arc::new(Shared {
            directory,
            calls: WatchedCalls::default(),
            gatherer: Mutex::default(),
            machine: Mutex::default(),
            frames: watch::Sender::new(Frame::default()),
            lookers: AtomicUsize::new(0),
            changes: broadcast::Sender::new(CHANGES_MAX),
            lines: LineLimit::new(LINES_PER_SECOND),
            webhook: Mutex::default(),
            history: Mutex::default(),
            ends: Mutex::new(false),
            bell: Condvar::new(),
        }));
        view.set_alarms(alarms.0, alarms.1)?;
        let looking = view.clone();
        let thread = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || looking.0.run())?;
        Ok(Watch {
            view,
            thread: Some(thread),
        })
    }

    /// Returns a handle to the data.
    #[must_use]
    pub fn view(&self) -> View {
        self.view.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *lock(&self.view.0.ends) = true;
        self.view.0.bell.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread 'watch' has panicked");
        }
        let history = lock(&self.view.0.history).take();
        // Dropping the history writes the queued seconds.
        drop(history);
    }
}

impl View {
    /// Sets the rules of alarms, and the URL of the webhook.
    ///
    /// # Errors
    /// Fails if threads run out.
    pub fn set_alarms(&self, rules: Rules, webhook: Option<&str>) -> std::io::Result<()> {
        lock(&self.0.gatherer).set_rules(rules);
        let mut known = lock(&self.0.webhook);
        if known.as_ref().map(Webhook::url) == webhook {
            return Ok(());
        }
        let new = webhook.map(Webhook::start).transpose()?;
        let old = std::mem::replace(&mut *known, new);
        // Drop the old webhook outside of the lock, because ending it may take a while.
        drop(known);
        drop(old);
        Ok(())
    }

    /// Sends a message that is not about an alarm to the webhook, if there is one. Does not wait.
    pub fn tell_webhook(&self, about: &str, message: &serde_json::Value) {
        if let Some(webhook) = &*lock(&self.0.webhook) {
            webhook.send_text(about.to_owned(), message.to_string());
        }
    }

    /// Sets the folder for the history of each stream. `None`: the history is not stored.
    ///
    /// # Errors
    /// Fails if the folder cannot be created or written to, if another process uses it, or if threads run out.
    pub fn set_history(&self, dir: Option<&Path>) -> std::io::Result<()> {
        let mut known = lock(&self.0.history);
        if known.as_ref().map(History::dir) == dir {
            return Ok(());
        }
        let new = dir.map(History::open).transpose()?;
        let old = std::mem::replace(&mut *known, new);
        // Drop the old history outside of the lock, because the disk may be slow.
        drop(known);
        drop(old);
        Ok(())
    }

    /// Returns the known seconds of a span of time, at most a day, in order. `until_s`: the end of the span; `None`: now. The
    /// function may have to read a file. It returns `None` if the stream does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn seconds(
        &self,
        name: &str,
        seconds: u64,
        until_s: Option<u64>,
    ) -> std::io::Result<Option<Vec<Second>>> {
        let recent = self.read(|seen| {
            let track = seen.find(name)?;
            Some(track.recent.last(RECENT_SECONDS).copied().collect())
        });
        let Some(recent): Option<Vec<Second>> = recent else {
            return Ok(None);
        };
        let last_s = recent.last().map_or(0, |one| one.unix_s);
        let until_s = until_s.unwrap_or(last_s) + 1;
        let from_s = until_s.saturating_sub(seconds);
        let known_s = recent.first().map_or(u64::MAX, |one| one.unix_s);
        let dir = lock(&self.0.history);
        let dir = dir.as_ref().map(|one| one.dir().to_owned());
        let mut seconds = match dir.filter(|_| from_s < known_s) {
            Some(dir) => history::read(&dir, name, from_s, until_s.min(known_s))?,
            None => Vec::new(),
        };
        let is_asked = |one: &Second| (from_s..until_s).contains(&one.unix_s);
        seconds.extend(recent.into_iter().filter(is_asked));
        Ok(Some(seconds))
    }

    /// Resets integrated loudness, range and true peak of a stream. Returns `false` if the stream does not exist, or is not
    /// measured.
    #[must_use]
    pub fn begin_programme(&self, name: &str) -> bool {
        lock(&self.0.gatherer).begin_programme(name)
    }

    /// Acknowledges an alarm. Returns `false` if it is not raised.
    #[must_use]
    pub fn acknowledge(&self, name: &str, kind: AlarmKind) -> bool {
        lock(&self.0.gatherer).acknowledge(name, kind)
    }

    /// Returns the list of calls, whose alarms the observing thread evaluates.
    #[must_use]
    pub fn calls(&self) -> &WatchedCalls {
        &self.0.calls
    }

    /// Subscribes to changes of alarms.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<TimedChange> {
        self.0.changes.subscribe()
    }

    /// Reads the data under the lock, which delays other users.
    pub fn read<T>(&self, read: impl FnOnce(&Gatherer) -> T) -> T {
        read(&lock(&self.0.gatherer))
    }

    /// Reads the data of the media threads.
    pub fn read_machine<T>(&self, read: impl FnOnce(&Machine) -> T) -> T {
        read(&lock(&self.0.machine))
    }

    /// Returns the moves of sessions between media threads.
    #[must_use]
    pub fn moves(&self) -> &Moves {
        self.0.directory.moves()
    }

    /// Subscribes to frames. `None`: the limit of observers is reached.
    #[must_use]
    pub fn frames(&self) -> Option<Frames> {
        let shared = &self.0;
        if shared.lookers.fetch_add(1, Ordering::Relaxed) >= LOOKERS_MAX {
            shared.lookers.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let frames = Frames {
            frames: shared.frames.subscribe(),
            view: self.clone(),
        };
        // Hold the lock, so that the thread either sees the new observer, or already waits and is notified.
        let _ends = lock(&shared.ends);
        shared.bell.notify_all();
        Some(frames)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.view.0.lookers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn run(&self) {
        let mut ends = lock(&self.ends);
        while !*ends {
            drop(ends);
            let now_ns = clock_now_ns();
            let is_quick = self.lookers.load(Ordering::Relaxed) > 0;
            let period = if is_quick { PERIOD_QUICK } else { PERIOD_SLOW };
            self.directory.pace().set(period);
            // Read this each time, because the wall clock may be set.
            let unix_ns = unix_at_zero_ns() + now_ns;
            self.look(now_ns, unix_ns / NS_PER_S, is_quick);
            // Wake at multiples of the period, so that no second is left out.
            let period_ns = period.as_nanos() as u64;
            let wait = Duration::from_nanos(period_ns - unix_ns % period_ns);
            ends = lock(&self.ends);
            let waited = self.bell.wait_timeout_while(ends, wait, |ends| {
                let looked_at = self.lookers.load(Ordering::Relaxed) > 0;
                !*ends && looked_at == is_quick
            });
            ends = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.keep(&mut lock(&self.gatherer), Turn::All);
    }

    fn keep(&self, gatherer: &mut Gatherer, turn: Turn) {
        if let Some(history) = &*lock(&self.history)
            && history.save(gatherer.unkept(turn))
        {
            gatherer.note_kept(turn);
        }
    }

    fn look(&self, now_ns: u64, unix_s: u64, is_quick: bool) {
        let listed = self.directory.list();
        let mut gatherer = lock(&self.gatherer);
        if listed.generation != gatherer.generation() {
            // Save all seconds before the list of streams changes, because some streams may be removed.
            self.keep(&mut gatherer, Turn::All);
        }
        let mut changes = Vec::new();
        let before_s = gatherer.unix_s();
        let is_second = gatherer.look(now_ns, unix_s, &listed, |change| changes.push(change));
        if is_second {
            gatherer.begin_programmes(&minutes_begun(before_s, unix_s));
            self.keep(&mut gatherer, Turn::Of(unix_s));
        }
        let frame = is_quick.then(|| Frame::new(unix_s, &gatherer));
        let rules = *gatherer.rules();
        drop(gatherer);
        if is_second {
            let note = |change| changes.push(change);
            self.calls.end_second(now_ns, unix_s, &rules, note);
        }
        self.tell(unix_s, changes);
        if is_second {
            let seen = ThreadSeen::all();
            lock(&self.machine).look(now_ns, seen);
        }
        if let Some(frame) = frame {
            self.frames.send_replace(frame);
        }
    }

    fn tell(&self, unix_s: u64, changes: Vec<AlarmChange>) {
        let webhook = lock(&self.webhook);
        for change in changes {
            let name = &*change.name;
            let (stream, call) = match change.party {
                None => (Some(name), None),
                Some(_) => (None, Some(name)),
            };
            let side = change.party.map(|party| party.side);
            // Limit the lines, because a failing network switch causes an alarm for each stream.
            let suppressed = match self.lines.check(Instant::now()) {
                Verdict::Write { suppressed } => Some(suppressed),
                Verdict::Suppress => None,
            };
            match &change.change {
                _ if suppressed.is_none() => {}
                Change::Raised(alarm) => {
                    let (alarm, value) = (alarm.kind.name(), alarm.worst);
                    tracing::warn!(stream, call, side, alarm, value, suppressed, "alarm");
                }
                Change::Cleared(alarm) => {
                    let (seconds, worst) = (unix_s - alarm.since_unix_s, alarm.worst);
                    let alarm = alarm.kind.name();
                    tracing::info!(
                        stream,
                        call,
                        side,
                        alarm,
                        seconds,
                        worst,
                        suppressed,
                        "the alarm has ended"
                    );
                }
            }
            // Sending fails if there are no listeners.
            let _ = self.changes.send((unix_s, change.clone()));
            if let Some(webhook) = &*webhook {
                webhook.send(unix_s, &change);
            }
        }
    }
}

/// Returns the minutes of the local day that began within `before_s < time <= now_s`.
fn minutes_begun(before_s: u64, now_s: u64) -> Vec<u16> {
    // If the process slept, or the clock was set, go back by at most an hour.
    let before_s = before_s.max(now_s.saturating_sub(3600));
    let seconds = before_s + 1..=now_s;
    let minutes = seconds.filter(|unix_s| unix_s.is_multiple_of(60));
    minutes.filter_map(local_minute).collect()
}

/// Interval of readings with observers: short enough for level meters on a page.
const PERIOD_QUICK: Duration = Duration::from_millis(100);
/// Interval of readings without observers: one reading for each stored second.
const PERIOD_SLOW: Duration = Duration::from_secs(1);
/// Maximum number of log lines per second about alarms.
const LINES_PER_SECOND: u32 = 20;
/// Maximum number of changes that wait for a listener: the same as for events of calls.
const CHANGES_MAX: usize = 4096;
/// Maximum number of observers, such as open pages.
const LOOKERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The result agrees with the program `date`, in any time zone of this machine.
    #[test]
    fn minutes_of_the_day_use_the_local_time_zone() {
        // Test a night in winter and one in summer.
        for unix_s in [1_767_225_600, 1_782_864_000] {
            let date = Command::new("date")
                .args(["+%H %M", "-d", &format!("@{unix_s}")])
                .output();
            let text = String::from_utf8(date.expect("coreutils").stdout).expect("digits");
            let mut numbers = text.split_whitespace().map(|one| one.parse::<u16>());
            let mut next = || numbers.next().expect("two").expect("a number");
            let minute = next() * 60 + next();
            assert_eq!(minutes_begun(unix_s - 1, unix_s), [minute]);
            let two = minutes_begun(unix_s - 1, unix_s + 119);
            assert_eq!(two, [minute, (minute + 1) % 1440]);
            assert!(minutes_begun(unix_s, unix_s + 59).is_empty());
            assert_eq!(minutes_begun(0, unix_s).len(), 60);
        }
    }
}
