//! Rules about the source tree that neither the compiler nor clippy keeps.
//!
//! Each module is one rule: a pure function from text to complaints, with unit tests that show it
//! complaining. `tests/tree.rs` applies them all to the tree it stands in.

#![forbid(unsafe_code)]

pub mod circles;
pub mod dependencies;
pub mod layers;
pub mod links;
pub mod size;
pub mod strays;
pub mod tokens;
pub mod unsafety;
