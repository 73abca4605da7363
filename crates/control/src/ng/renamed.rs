//! Former names of public items. They remain for one release.

use super::RequestTable;

/// The former name of [`RequestTable`].
#[deprecated(since = "0.3.0", note = "renamed to `RequestTable`")]
pub type Desk<S> = RequestTable<S>;
