//! Former names of public items. They remain for one release.

use super::{DTMF_DIGITS_MAX, DTMF_NS_MAX, DTMF_NS_MIN, DtmfDigit, DtmfError};

/// The former name of [`DtmfDigit`].
#[deprecated(since = "0.3.0", note = "renamed to `DtmfDigit`")]
pub type KeyPress = DtmfDigit;

/// The former name of [`DtmfError`].
#[deprecated(since = "0.3.0", note = "renamed to `DtmfError`")]
pub type PressError = DtmfError;

/// The former name of [`DTMF_NS_MIN`].
#[deprecated(since = "0.3.0", note = "renamed to `DTMF_NS_MIN`")]
pub const PRESS_NS_MIN: u64 = DTMF_NS_MIN;

/// The former name of [`DTMF_NS_MAX`].
#[deprecated(since = "0.3.0", note = "renamed to `DTMF_NS_MAX`")]
pub const PRESS_NS_MAX: u64 = DTMF_NS_MAX;

/// The former name of [`DTMF_DIGITS_MAX`].
#[deprecated(since = "0.3.0", note = "renamed to `DTMF_DIGITS_MAX`")]
pub const PRESSES_MAX: usize = DTMF_DIGITS_MAX;
