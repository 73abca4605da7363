//! Meters and the normaliser, with their allocations counted.

#[path = "../../../../tests/counting.rs"]
mod counting;
mod meter;
mod normalizer;
