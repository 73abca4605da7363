//! Keys of SRTP as SDP has them (RFC 4568): crypto suites, master keys, and the attribute `a=crypto`.

mod key;
mod sdes;
mod suite;

pub use key::{KeyError, MASTER_KEY_BYTES_MAX, MKI_BYTES_MAX, MasterKey, Mki};
pub use sdes::{Crypto, CryptoError};
pub use suite::Suite;
