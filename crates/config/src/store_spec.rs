//! The store for recordings to `s3://…`, and the spool.

use std::path::PathBuf;

/// An object store. Credentials come from the usual places, and are not in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// The folder in which files wait until the store has them.
    pub spool: PathBuf,
    /// The URL of a store other than Amazon's.
    pub endpoint: Option<String>,
    /// Whether the bucket is in the path instead of the host name.
    pub path_style: bool,
    /// The CA of its certificates; `None`: the system's CAs.
    pub ca: Option<PathBuf>,
}
