//! Checks that depend on a machine. They need its addresses, devices and files, and host names.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use nix::net::if_::if_nametoindex;
use rustix::fs::Access;

use threadbare_audio_file::clip::Clips;

use super::srtp_key::KeySource;

/// A machine on which a configuration is to run.
pub trait Machine {
    /// Whether a socket can be bound to this address.
    fn has_address(&self, ip: IpAddr) -> bool;
    /// Returns the addresses of a host. The error says why there are none.
    fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String>;
    /// Checks that GStreamer has the elements of a `pipeline`, and that they make a filter. The error says what is wrong.
    fn check_pipeline(&self, description: &str) -> Result<(), String>;
    /// Reads an audio file. The error says why it cannot be played.
    fn read_audio(&self, path: &Path) -> Result<(), String>;
    /// Reads an SRTP key. The error says why it cannot be used.
    fn read_key(&self, source: &KeySource) -> Result<(), String>;
    /// Checks that files can be created in a folder, or that the missing folder can be created. The error says why not.
    fn may_write(&self, folder: &Path) -> Result<(), String>;
    /// Whether a network device of this name exists.
    fn has_device(&self, name: &str) -> bool;
    /// Whether a folder of this name exists.
    fn has_folder(&self, path: &Path) -> bool;
}

/// The machine on which this process runs.
#[derive(Clone, Copy, Debug)]
pub struct ThisMachine {
    /// Function that checks whether GStreamer can run a stream's `pipeline`. The error says why not.
    pub check_pipeline: fn(&str) -> Result<(), String>,
}

impl Machine for ThisMachine {
    fn has_address(&self, ip: IpAddr) -> bool {
        UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
    }

    fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let found = (host, 0).to_socket_addrs().map_err(|e| e.to_string())?;
        Ok(found.map(|address| address.ip()).collect())
    }

    fn check_pipeline(&self, text: &str) -> Result<(), String> {
        (self.check_pipeline)(text)
    }

    fn read_audio(&self, path: &Path) -> Result<(), String> {
        let read = Clips::default().get(path);
        read.map(drop).map_err(|error| error.to_string())
    }

    fn read_key(&self, source: &KeySource) -> Result<(), String> {
        source.read().map(drop)
    }

    fn may_write(&self, folder: &Path) -> Result<(), String> {
        let known = folder.ancestors().find(|one| one.exists());
        let Some(known) = known else {
            return Err("the folder does not exist".to_owned());
        };
        if !known.is_dir() {
            return Err(format!("{} is not a folder", known.display()));
        }
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::access(known, access).map_err(|error| error.to_string())
    }

    fn has_device(&self, name: &str) -> bool {
        if_nametoindex(name).is_ok()
    }

    fn has_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }
}
