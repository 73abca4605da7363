//! Events for the thread that keeps the streams running.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;

use miette::Result;
use threadbare_process::signals::{self, Signal};
use threadbare_rtp::call::Clip;
use threadbare_rtp::srtp::MasterKey;

/// Identifies a run of a stream. A run lasts from a start of the stream to the next end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId {
    /// Number of the stream. Numbers are not reused.
    pub stream: usize,
    /// Number of the start, counted for each stream.
    pub number: u64,
}

/// Resources that a stream must have before it starts.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    /// Address of the destination. `None`: the stream sends to the address of its sender, or sends nothing.
    pub to: Option<SocketAddr>,
    /// The contents of the fallbacks' files, in the order of these fallbacks.
    pub clips: Vec<Clip>,
    /// The SRTP keys of the stream.
    pub keys: StreamKeys,
}

/// SRTP keys of a stream. `None`: packets are plain RTP.
#[derive(Debug, Clone, Default)]
pub struct StreamKeys {
    /// The key of the packets from the stream's sender.
    pub input: Option<MasterKey>,
    /// The key of the packets that the stream sends.
    pub output: Option<MasterKey>,
    /// The keys of the fallbacks that are senders, in the order of these fallbacks.
    pub fallbacks: Vec<Option<MasterKey>>,
}

/// Messages for the gateway's thread.
#[derive(Debug)]
pub enum Event {
    /// A stream of the relay has ended, either because it was stopped or because its state machine failed.
    LineEnded {
        /// The run.
        run: RunId,
    },
    /// The name of a destination was resolved, and the files were read.
    Prepared {
        /// The run.
        run: RunId,
        /// The resources, or the reason why they are missing.
        answer: Result<Prepared, String>,
    },
    /// The elements of a stream cannot continue.
    Failed {
        /// The run.
        run: RunId,
        /// The message of the elements.
        reason: String,
    },
    /// A pipeline has reached its end.
    Ended {
        /// The run.
        run: RunId,
    },
    /// A cluster has sent an [order](crate::order::Order). There is one such event for each order.
    Ordered,
    /// A held stream has received its first packets.
    Heard {
        /// The run.
        run: RunId,
    },
    /// The user requests statistics.
    Report,
    /// The user has changed the configuration.
    Reload,
    /// The user stops the gateway.
    Stop {
        /// The cause, such as "SIGTERM".
        cause: &'static str,
    },
}

/// What SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangUp {
    /// The terminal was closed, so the gateway stops.
    Stop,
    /// A service manager requests a reload of the configuration.
    Reload,
}

/// Sends an event for each signal that the process receives.
///
/// # Errors
/// Fails if the process cannot listen for signals.
pub fn send_signals(events: Sender<Event>, hang_up: HangUp) -> Result<()> {
    signals::listen(move |signal| {
        let event = match (signal, hang_up) {
            (Signal::Report, _) => Event::Report,
            (Signal::HangUp, HangUp::Reload) => Event::Reload,
            (Signal::HangUp, HangUp::Stop) => Event::Stop { cause: "SIGHUP" },
            (Signal::Stop(cause), _) => Event::Stop { cause },
        };
        events.send(event).is_ok()
    })
}
