//! The first message on a connection: the name of the process, and the boot of its machine.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use threadbare_process::system::boot_id;

/// Returns the name of a process on this machine.
pub(super) fn name_of(process: u64) -> [u8; NAME_BYTES] {
    let halves = [u128::from(process), boot_id().unwrap_or_default()];
    let mut name = [0; NAME_BYTES];
    for (bytes, half) in name.chunks_exact_mut(NAME_BYTES / 2).zip(halves) {
        bytes.copy_from_slice(&half.to_be_bytes());
    }
    name
}

/// Reads the other side's name, if it comes soon.
///
/// # Errors
/// Fails if the name does not come in time, or if the connection fails.
pub(super) async fn read_name(connection: &mut TcpStream) -> io::Result<[u8; NAME_BYTES]> {
    let mut name = [0; NAME_BYTES];
    let read = timeout(NAME_TIME_MAX, connection.read_exact(&mut name)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(name)
}

/// Whether a name is that of a process.
pub(super) fn is_process(name: &[u8; NAME_BYTES], process: u64) -> bool {
    halves_of(name)[0] == u128::from(process)
}

/// Returns the boot of the machine that a name contains.
pub(super) fn boot_of(name: &[u8; NAME_BYTES]) -> u128 {
    halves_of(name)[1]
}

fn halves_of(name: &[u8; NAME_BYTES]) -> [u128; 2] {
    let (process, boot) = name.split_at(NAME_BYTES / 2);
    [process, boot].map(|half| half.try_into().map_or(0, u128::from_be_bytes))
}

pub(super) const NAME_BYTES: usize = 32;
const NAME_TIME_MAX: Duration = Duration::from_millis(500);
