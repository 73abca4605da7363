//! Compares the interface with that of libebur128.

mod drop_in;
mod equality;
mod peer;
