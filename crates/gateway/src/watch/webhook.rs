//! Changes of alarms, told to another program by HTTP, one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use ureq::Agent;

use super::alarm::{Alarm, Change};
use super::gather::StreamChange;

/// Sends on a thread of its own. Dropped, it ends with the attempt that it is at, and what waits is not sent.
#[derive(Debug)]
pub(super) struct Webhook {
    url: String,
    queue: Option<SyncSender<Message>>,
    /// It is dropped.
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What is sent, and what it is about.
#[derive(Debug)]
struct Message {
    text: String,
    about: String,
}

impl Webhook {
    /// Sends nothing yet.
    ///
    /// # Errors
    /// Threads run out.
    pub(super) fn start(url: &str) -> std::io::Result<Webhook> {
        let (queue, messages) = sync_channel(MESSAGES_MAX);
        let to = url.to_owned();
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        let thread = std::thread::Builder::new()
            .name("webhook".to_owned())
            .spawn(move || send_all(&to, &messages, &told))?;
        Ok(Webhook {
            url: url.to_owned(),
            queue: Some(queue),
            ends,
            thread: Some(thread),
        })
    }

    /// Where to.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Does not wait.
    pub(super) fn send(&self, unix_s: u64, change: &StreamChange) {
        self.send_text(change.name.to_string(), text(unix_s, change));
    }

    /// The same of something else.
    pub(super) fn send_text(&self, about: String, text: String) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(lost)) = queue.try_send(Message { text, about }) {
            let (about, url) = (lost.about, &self.url);
            tracing::warn!(about, url, "the webhook is too slow: it is not told");
        }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.queue.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread 'webhook' has panicked");
        }
    }
}

fn send_all(url: &str, messages: &Receiver<Message>, ends: &AtomicBool) {
    let agent = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .timeout_global(Some(TIME_MAX))
        .build()
        .new_agent();
    while let Ok(message) = messages.recv() {
        let mut pause = PAUSE_FIRST;
        for attempt in 1..=ATTEMPTS {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            let request = agent.post(url).header("Content-Type", "application/json");
            match request.send(message.text.as_bytes()) {
                Ok(_) => break,
                Err(error) if attempt == ATTEMPTS => {
                    let about = &message.about;
                    tracing::warn!(about, url, %error, "the webhook is not told");
                }
                Err(_) => std::thread::sleep(pause),
            }
            pause *= 2;
        }
    }
}

fn text(unix_s: u64, change: &StreamChange) -> String {
    let (state, alarm) = match &change.change {
        Change::Raised(alarm) => ("raised", alarm),
        Change::Cleared(alarm) => ("cleared", alarm),
    };
    let Alarm {
        kind,
        since_unix_s,
        worst,
        ..
    } = *alarm;
    json!({
        "stream": &*change.name,
        "alarm": kind.name(),
        "state": state,
        "unix_s": unix_s,
        "since_unix_s": since_unix_s,
        // Silence has no number in JSON.
        "worst": worst.is_finite().then_some(worst),
        "unit": kind.unit(),
    })
    .to_string()
}

/// A switch in a rack that fails raises one for each stream.
const MESSAGES_MAX: usize = 8192;
const TIME_MAX: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;
const PAUSE_FIRST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::alarm::AlarmKind;
    use super::*;

    /// A process that ends, or a file that names another URL, does not wait for attempts at a URL that is dead.
    #[test]
    fn the_end_waits_for_one_attempt_at_most() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let webhook = Webhook::start(&url).expect("a thread");
        let alarm = Alarm {
            kind: AlarmKind::Loss,
            since_unix_s: 0,
            worst: 2.0,
            is_acknowledged: false,
        };
        for _ in 0..3 {
            let change = Change::Raised(alarm);
            let name = "news".into();
            webhook.send(0, &StreamChange { name, change });
        }
        // It is closed without an answer: an attempt that has failed.
        drop(listener.accept().expect("a first attempt"));
        let attempts = std::thread::spawn(move || {
            listener
                .incoming()
                .take_while(Result::is_ok)
                .take(8)
                .inspect(drop_at_once)
                .count()
        });
        drop(webhook);
        // All that there would have been are nine.
        assert!(!attempts.is_finished());
    }

    fn drop_at_once(attempt: &std::io::Result<std::net::TcpStream>) {
        let attempt = attempt.as_ref().expect("only those that are");
        let _ = attempt.shutdown(std::net::Shutdown::Both);
    }
}
