//! TCP on shared threads: `ts-tcpclientsrc`, `ts-tcpserversrc`, `ts-tcpserversink`.

mod reader;
mod sink;
mod sources;

use std::io;

use gst::glib;

/// What went wrong with an address or a connection.
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
    #[error("{0}: nothing came for {1} s (timeout)")]
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

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    sources::register(plugin)?;
    sink::register(plugin)
}
