//! The jitter buffer in virtual time.

mod properties;
mod relay;
mod scenarios;
mod steps;
