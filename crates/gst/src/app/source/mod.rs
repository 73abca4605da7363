//! `ts-appsrc`.

pub(super) mod imp;
mod reader;
mod stream;
