//! Tests of rings on a real device, and of inputs from fuzzing.

#[path = "../common/mod.rs"]
mod common;
mod corpus;
mod rings;
