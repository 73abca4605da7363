//! The demultiplexer, as a program uses it.

mod behaviour;
mod common;
mod random;
