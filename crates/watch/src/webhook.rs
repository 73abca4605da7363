//! Sends changes of alarms to another program by HTTP (a webhook), one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use ureq::Agent;

use super::alarm::{Alarm, Change};
use super::gather::AlarmChange;

/// Handle to the sending thread. If it is dropped, the thread ends after the current attempt. Queued messages are not sent.
#[derive(Debug)]
pub(super) struct Webhook {
    url: String,
    queue: Option<SyncSender<Message>>,
    /// Whether the thread must end.
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A message, with a name for the log.
#[derive(Debug)]
struct Message {
    text: String,
    about: String,
}

impl Webhook {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if threads run out.
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

    /// Returns the URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Queues a change without waiting.
    pub(super) fn send(&self, unix_s: u64, change: &AlarmChange) {
        self.send_text(change.name.to_string(), text(unix_s, change));
    }

    /// Queues another message.
    pub(super) fn send_text(&self, about: String, text: String) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(lost)) = queue.try_send(Message { text, about }) {
            let (about, url) = (lost.about, &self.url);
            tracing::warn!(
                about,
                url,
                "an event is dropped, because the webhook is too slow"
            );
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
                    tracing::warn!(about, url, %error, "cannot deliver to the webhook");
                }
                Err(_) => std::thread::sleep(pause),
            }
            pause *= 2;
        }
    }
}

fn text(unix_s: u64, change: &AlarmChange) -> String {
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
    let mut message = json!({
        "alarm": kind.name(),
        "state": state,
        "unix_s": unix_s,
        "since_unix_s": since_unix_s,
        // Silence is minus infinity, which JSON cannot express.
        "worst": worst.is_finite().then_some(worst),
        "unit": kind.unit(),
    });
    match change.party {
        None => message["stream"] = (*change.name).into(),
        Some(party) => {
            message["call"] = (*change.name).into();
            message["side"] = party.side.into();
        }
    }
    message.to_string()
}

/// Maximum number of queued messages. A failing network switch raises an alarm for each stream.
const MESSAGES_MAX: usize = 8192;
const TIME_MAX: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;
const PAUSE_FIRST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::alarm::AlarmKind;
    use super::*;

    /// When the process ends or the URL changes, the thread finishes only the current attempt at a URL that does not answer.
    #[test]
    fn the_shutdown_waits_for_at_most_one_attempt() {
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
            let party = None;
            webhook.send(
                0,
                &AlarmChange {
                    name,
                    party,
                    change,
                },
            );
        }
        // Close the connection without a reply, so that the attempt fails.
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
        // If the thread had not ended, it would have made nine attempts.
        assert!(!attempts.is_finished());
    }

    fn drop_at_once(attempt: &std::io::Result<std::net::TcpStream>) {
        let attempt = attempt.as_ref().expect("only those that are");
        let _ = attempt.shutdown(std::net::Shutdown::Both);
    }
}
