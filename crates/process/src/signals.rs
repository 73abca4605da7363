//! Signals that end a program, print a report, or reload the configuration.

use miette::{Context, IntoDiagnostic};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// A request from the user or the service manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT, with its name.
    Stop(&'static str),
    /// SIGHUP: the terminal was closed, or a service manager wants a reload.
    HangUp,
    /// SIGUSR1.
    Report,
}

/// Calls `handle` for each signal, on a separate thread. The thread ends when `handle` returns `false`.
///
/// # Errors
/// Fails if the process cannot listen for signals.
pub fn listen(mut handle: impl FnMut(Signal) -> bool + Send + 'static) -> miette::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])
        .into_diagnostic()
        .wrap_err("cannot listen for signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for number in signals.forever() {
                let signal = match number {
                    SIGUSR1 => Signal::Report,
                    SIGHUP => Signal::HangUp,
                    SIGINT => Signal::Stop("SIGINT"),
                    _ => Signal::Stop("SIGTERM"),
                };
                if !handle(signal) {
                    return;
                }
            }
        })
        .into_diagnostic()
        .wrap_err("cannot start the thread for signals")?;
    Ok(())
}
