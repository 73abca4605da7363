//! Where recordings to `s3://…` go, and where they wait.

use std::path::PathBuf;

/// An object store. Credentials come from the usual places, and are in no file of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// The folder in which files wait until the store has them.
    pub spool: PathBuf,
    /// The URL of a store that is not Amazon's.
    pub endpoint: Option<String>,
    /// The bucket is in the path, and not in the host's name.
    pub path_style: bool,
    /// Who signs its certificates; `None`: whom the system trusts.
    pub ca: Option<PathBuf>,
}
