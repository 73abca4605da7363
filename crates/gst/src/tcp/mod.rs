//! TCP on shared threads: `ts-tcpclientsrc`, `ts-tcpserversrc`, `ts-tcpserversink`.

mod reader;
mod sink;
mod sources;

use std::io;

use gst::glib;

/// Errors of an address or a connection.
#[derive(Debug, thiserror::Error)]
enum TcpError {
    #[error("{host}:{port}: no such host ({source}); expected a host name or an address")]
    Resolve {
        host: String,
        port: u16,
        source: io::Error,
    },
    #[error("cannot connect to {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("{0}: no data for {1} s (timeout)")]
    TimedOut(String, u32),
    #[error("{0}: {1}")]
    Read(String, io::Error),
}

impl From<TcpError> for gst::ErrorMessage {
    fn from(error: TcpError) -> Self {
        let kind = match &error {
            TcpError::Resolve { .. } => gst::ResourceError::NotFound,
            TcpError::Connect { .. } | TcpError::Listen { .. } => gst::ResourceError::OpenRead,
            TcpError::TimedOut(..) | TcpError::Read(..) => gst::ResourceError::Read,
        };
        gst::error_msg!(kind, ["{error}"])
    }
}

/// Whether no caller can be accepted at the moment, for lack of a resource that may be freed later. The caller stays in
/// the backlog, and the listener readable: a thread that retried at once would do nothing else.
fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| exhausted.contains(&code))
}

/// The listener's pause in that case.
const EXHAUSTED_PAUSE_NS: u64 = 100_000_000;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    sources::register(plugin)?;
    sink::register(plugin)
}
