//! What carries the demo's streams: calls on the relay, or pipelines of GStreamer's own elements.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::{DemoArgs, Ports, stock};
use crate::event::Event;
use crate::gateway::{Gateway, Handled};
use crate::process;
use crate::run::{init_gstreamer, stop_on_signals};

pub(super) enum Carrier {
    Calls {
        calls: Calls,
        events: Receiver<Event>,
    },
    Stock(Box<Gateway>),
}

/// Cost of starting.
pub(super) struct Started {
    pub(super) resident_kib_before: u64,
    pub(super) setup: Duration,
}

impl Carrier {
    pub(super) fn start(
        args: &DemoArgs,
        ports: Ports,
        party_ports: &[u16],
    ) -> miette::Result<(Carrier, Started)> {
        if args.stock {
            init_gstreamer()?;
            let config = stock::config(args, ports, party_ports)?;
            let begin = Instant::now();
            stock::load_plugins(&config)?;
            let resident_kib_before = process::resident_kib();
            let gateway = stock::start(args, config)?;
            let setup = begin.elapsed();
            stop_on_signals(gateway.sender())?;
            let started = Started {
                resident_kib_before,
                setup,
            };
            return Ok((Carrier::Stock(Box::new(gateway)), started));
        }
        let (sender, events) = channel();
        stop_on_signals(sender)?;
        let resident_kib_before = process::resident_kib();
        let begin = Instant::now();
        let calls = Calls::start(args, ports, party_ports)?;
        let started = Started {
            resident_kib_before,
            setup: begin.elapsed(),
        };
        Ok((Carrier::Calls { calls, events }, started))
    }

    /// Waits this long. Returns whether the user wants it to stop.
    pub(super) fn wait(&mut self, time: Duration) -> bool {
        match self {
            Carrier::Stock(gateway) => matches!(gateway.handle_for(Some(time)), Handled::Stop(_)),
            Carrier::Calls { events, .. } => {
                let end = Instant::now() + time;
                loop {
                    let left = end.saturating_duration_since(Instant::now());
                    match events.recv_timeout(left) {
                        Ok(Event::Stop { .. }) => return true,
                        Ok(_) => {}
                        Err(_) => return false,
                    }
                }
            }
        }
    }

    /// RTCP packets of the parties that it could not read.
    pub(super) fn rtcp_errors(&self) -> u64 {
        match self {
            Carrier::Stock(gateway) => gateway.stats().map(|(_, stats)| stats.rtcp_errors).sum(),
            Carrier::Calls { calls, .. } => calls.rtcp_errors(),
        }
    }
}
