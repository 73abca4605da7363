//! Connects to a host with several addresses, without waiting.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use super::TcpError;

/// Starts a connection: it becomes writable when it is established or has failed.
pub(super) fn begin_connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Starts a connection to the first of these addresses that allows it. If none does, returns the error of the last one. `failed`
/// is the error of an earlier address.
pub(super) fn begin_with_first(
    addresses: &mut VecDeque<SocketAddr>,
    mut failed: Option<TcpError>,
) -> Result<(TcpStream, SocketAddr), gst::ErrorMessage> {
    while let Some(address) = addresses.pop_front() {
        match begin_connect(address) {
            Ok(stream) => return Ok((stream, address)),
            Err(source) => failed = Some(connect_error(address, source)),
        }
    }
    Err(failed.map_or_else(
        || {
            gst::error_msg!(
                gst::ResourceError::OpenRead,
                ["the host has no address to connect to"]
            )
        },
        Into::into,
    ))
}

pub(super) fn connect_error(address: SocketAddr, source: std::io::Error) -> TcpError {
    let address = address.to_string();
    TcpError::Connect { address, source }
}
