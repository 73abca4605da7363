//! Runs all measurements one after the other, and compares the results with the targets.

pub(crate) mod cases;
pub(crate) mod demo;
pub(crate) mod fallback;
pub(crate) mod figures;
pub(crate) mod loudness;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod targets;
