//! Compares meters with published values, and replays fuzzing inputs.

mod compliance;
mod corpus;
