//! Answers other programs of the same user over a socket in a private folder.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::{env, fs, io, process};

/// Why the process cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The folder cannot be used.
    #[error("the folder {0} belongs to another user, or other users may write to it")]
    Folder(PathBuf),
    /// The socket cannot be created.
    #[error("{0}: {1}")]
    Socket(PathBuf, io::Error),
}

/// Returns the path of a process's socket: below `XDG_RUNTIME_DIR`, or in a folder of the user in `/tmp`.
pub fn socket_path(process_id: u32) -> PathBuf {
    folder().join(format!("{process_id}.sock"))
}

fn folder() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) => PathBuf::from(runtime).join("threadbare"),
        None => env::temp_dir().join(format!("threadbare-{}", user_id())),
    }
}

fn user_id() -> u32 {
    fs::metadata("/proc/self").map_or(0, |process| process.uid())
}

/// Answers connections to [`socket_path`] with [`super::contexts_json`], on a separate thread, until the process ends. Later
/// calls have no effect.
pub fn serve() -> Result<(), ServeError> {
    static SERVED: OnceLock<()> = OnceLock::new();
    if SERVED.get().is_some() {
        return Ok(());
    }
    let folder = folder();
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(ServeError::Socket(folder, error));
    }
    let is_ours = fs::symlink_metadata(&folder)
        .is_ok_and(|is| is.is_dir() && is.uid() == user_id() && is.mode() & 0o022 == 0);
    if !is_ours {
        return Err(ServeError::Folder(folder));
    }
    let path = socket_path(process::id());
    // Removes the socket of an earlier process with the same process ID.
    let _ = fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).map_err(|error| ServeError::Socket(path.clone(), error))?;
    let spawned = std::thread::Builder::new()
        .name("ts:inspect".into())
        .spawn(move || answer(&listener));
    spawned.map_err(|error| ServeError::Socket(path, error))?;
    let _ = SERVED.set(());
    Ok(())
}

fn answer(listener: &UnixListener) {
    for caller in listener.incoming() {
        let Ok(mut caller) = caller else { continue };
        let text = super::contexts_json().to_string();
        // A client that has disconnected gets no answer.
        let _ = caller.write_all(text.as_bytes());
    }
}
