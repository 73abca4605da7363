//! TCP on shared threads: `ts-tcpclientsrc`, `ts-tcpserversrc`, `ts-tcpclientsink`, `ts-tcpserversink`.

mod client_sink;
mod connect;
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
    #[error("{0} sent no data for {1} s (timeout)")]
    TimedOut(String, u32),
    #[error("{0}: {1}")]
    Read(String, io::Error),
    #[error("cannot send to {0}: {1}")]
    Write(String, io::Error),
}

impl From<TcpError> for gst::ErrorMessage {
    fn from(error: TcpError) -> Self {
        let kind = match &error {
            TcpError::Resolve { .. } => gst::ResourceError::NotFound,
            TcpError::Connect { .. } | TcpError::Listen { .. } => gst::ResourceError::OpenRead,
            TcpError::TimedOut(..) | TcpError::Read(..) => gst::ResourceError::Read,
            TcpError::Write(..) => gst::ResourceError::Write,
        };
        gst::error_msg!(kind, ["{error}"])
    }
}

/// Whether a failure to accept concerns only one connection (accept(2)): no client is waiting, or the client or its network is
/// not there any more. All other failures persist. If descriptors or memory are lacking, the client stays in the backlog and the
/// listener stays readable. So a thread that retried at once would do nothing else.
fn is_of_caller(error: &io::Error) -> bool {
    let of_network = [
        libc::ECONNABORTED,
        libc::EPERM,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ENONET,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EOPNOTSUPP,
    ];
    let is_of_network = |code| of_network.contains(&code);
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    ) || error.raw_os_error().is_some_and(is_of_network)
}

/// How long the listener pauses after a failure that persists.
const EXHAUSTED_PAUSE_NS: u64 = 100_000_000;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    sources::register(plugin)?;
    client_sink::register(plugin)?;
    sink::register(plugin)
}
