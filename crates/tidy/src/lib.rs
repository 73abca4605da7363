//! Checks rules about the source tree that neither the compiler nor clippy can check.
//!
//! Each module implements one rule as a pure function from text to complaints. Its unit tests show the complaints.
//! `tests/tree.rs` applies all rules to this source tree.

#![forbid(unsafe_code)]

pub mod circles;
pub mod dependencies;
pub mod english;
pub mod impls;
pub mod layers;
pub mod links;
pub mod size;
pub mod strays;
pub mod tokens;
pub mod unsafety;
