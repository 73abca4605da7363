//! `ts-appsrc`.

mod feeder;
pub(super) mod imp;
mod stream;
