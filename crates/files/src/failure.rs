//! Failure of an operation on a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An operation failed. Contains the operation, the path and the system's error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: cannot {operation}: {}", path.display(), describe(*code))]
pub struct Failure {
    path: Arc<Path>,
    operation: &'static str,
    code: i32,
}

impl Failure {
    pub(crate) fn new(path: &Arc<Path>, operation: &'static str, error: &io::Error) -> Self {
        Failure {
            path: path.clone(),
            operation,
            code: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// Returns the file.
    pub fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// Returns the operation, as a verb: `open`, `write`, `sync`, ...
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Returns the error number of the system, such as `ENOSPC`.
    pub fn errno(&self) -> i32 {
        self.code
    }

    /// Whether the operation was cancelled on demand ([`File::give_up`](crate::File::give_up)).
    pub fn is_cancelled(&self) -> bool {
        self.code == libc::ECANCELED
    }
}

fn describe(code: i32) -> String {
    let text = io::Error::from_raw_os_error(code);
    match NAMES.iter().find(|(known, _)| *known == code) {
        Some((_, name)) => format!("{name}: {text}"),
        None => text.to_string(),
    }
}

/// Error numbers that operators look for.
const NAMES: &[(i32, &str)] = &[
    (libc::EACCES, "EACCES"),
    (libc::ECANCELED, "ECANCELED"),
    (libc::EDQUOT, "EDQUOT"),
    (libc::EEXIST, "EEXIST"),
    (libc::EFBIG, "EFBIG"),
    (libc::EINVAL, "EINVAL"),
    (libc::EIO, "EIO"),
    (libc::EISDIR, "EISDIR"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOENT, "ENOENT"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EPERM, "EPERM"),
    (libc::EPIPE, "EPIPE"),
    (libc::EROFS, "EROFS"),
    (libc::ESPIPE, "ESPIPE"),
    (libc::ESTALE, "ESTALE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_states_the_path_the_operation_and_the_error_number() {
        let path: Arc<Path> = Path::new("/r/a.wav").into();
        let error = io::Error::from_raw_os_error(libc::ENOSPC);
        let text = Failure::new(&path, "write", &error).to_string();
        assert_eq!(
            text,
            "/r/a.wav: cannot write: ENOSPC: No space left on device (os error 28)"
        );
    }
}
