//! Rings on a real device, and the inputs of fuzzing.

#[path = "../common/mod.rs"]
mod common;
mod corpus;
mod rings;
