//! The store for recordings to `s3://…`, and the spool.

use std::path::PathBuf;

/// An object store. The configuration contains no credentials. They come from the usual places of S3 clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// The folder in which files wait until the store has them.
    pub spool: PathBuf,
    /// The URL of a store other than Amazon's.
    pub endpoint: Option<String>,
    /// Whether the bucket is in the path instead of the host name.
    pub path_style: bool,
    /// File with the CA of the store's certificates. `None`: the system's CAs are used.
    pub ca: Option<PathBuf>,
}
