//! Runs all cases in turn and draws up the table of targets.

pub(crate) mod cases;
pub(crate) mod report;
pub(crate) mod rows;
pub(crate) mod run;
