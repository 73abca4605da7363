//! Carries the demo's streams, either as calls on the relay or as pipelines of GStreamer's own elements.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::calls::Calls;
#[cfg(feature = "gstreamer")]
use super::stock;
use super::{DemoArgs, Ports};
use threadbare_process::signals::{self, Signal};
use threadbare_process::usage;
#[cfg(feature = "gstreamer")]
use threadbare_streams::{
    event::{self, HangUp},
    gateway::{Gateway, Handled},
};

pub(super) enum Carrier {
    Calls {
        calls: Calls,
        signals: Receiver<Signal>,
    },
    #[cfg(feature = "gstreamer")]
    Stock(Box<Gateway>),
}

/// The cost of starting all streams.
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
            return Carrier::start_stock(args, ports, party_ports);
        }
        let (sender, signals) = channel();
        signals::listen(move |signal| sender.send(signal).is_ok())?;
        let resident_kib_before = usage::resident_kib();
        let begin = Instant::now();
        let calls = Calls::start(args, ports, party_ports)?;
        let started = Started {
            resident_kib_before,
            setup: begin.elapsed(),
        };
        Ok((Carrier::Calls { calls, signals }, started))
    }

    #[cfg(feature = "gstreamer")]
    fn start_stock(
        args: &DemoArgs,
        ports: Ports,
        party_ports: &[u16],
    ) -> miette::Result<(Carrier, Started)> {
        threadbare_streams::init_gstreamer()?;
        let config = stock::config(args, ports, party_ports)?;
        let begin = Instant::now();
        stock::load_plugins(&config)?;
        let resident_kib_before = usage::resident_kib();
        let gateway = stock::start(args, config)?;
        let setup = begin.elapsed();
        event::send_signals(gateway.sender(), HangUp::Stop)?;
        let started = Started {
            resident_kib_before,
            setup,
        };
        Ok((Carrier::Stock(Box::new(gateway)), started))
    }

    #[cfg(not(feature = "gstreamer"))]
    fn start_stock(_: &DemoArgs, _: Ports, _: &[u16]) -> miette::Result<(Carrier, Started)> {
        miette::bail!(
            "--stock needs GStreamer, but {}",
            threadbare_process::NO_GSTREAMER
        )
    }

    /// Waits for this time. Returns `true` if the user wants to stop.
    pub(super) fn wait(&mut self, time: Duration) -> bool {
        match self {
            #[cfg(feature = "gstreamer")]
            Carrier::Stock(gateway) => matches!(gateway.handle_for(Some(time)), Handled::Stop(_)),
            Carrier::Calls { signals, .. } => {
                let end = Instant::now() + time;
                loop {
                    let left = end.saturating_duration_since(Instant::now());
                    match signals.recv_timeout(left) {
                        Ok(Signal::Stop(_) | Signal::HangUp) => return true,
                        Ok(Signal::Report) => {}
                        Err(_) => return false,
                    }
                }
            }
        }
    }

    /// Returns the number of RTCP packets of the parties that the gateway could not parse.
    pub(super) fn rtcp_errors(&self) -> u64 {
        match self {
            #[cfg(feature = "gstreamer")]
            Carrier::Stock(gateway) => gateway.stats().map(|(_, stats)| stats.rtcp_errors).sum(),
            Carrier::Calls { calls, .. } => calls.rtcp_errors(),
        }
    }
}
