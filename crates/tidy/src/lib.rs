//! Rules about the source tree that neither the compiler nor clippy checks.
//!
//! Each module is one rule: a pure function from text to complaints, with unit tests that show its complaints.
//! `tests/tree.rs` applies all rules to this tree.

#![forbid(unsafe_code)]

pub mod circles;
pub mod dependencies;
pub mod english;
pub mod layers;
pub mod links;
pub mod size;
pub mod strays;
pub mod tokens;
pub mod unsafety;
