//! Scenarios for both programs, with real brokers and real clients. Each test file runs the scenarios with its broker.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

pub mod client;
pub mod program;
pub mod publisher;
pub mod scenarios;
pub mod server;

use std::time::Duration;

use tokio::time::timeout;

/// Maximum wait for any step. It is much longer than a step takes, so that only hanging tests fail.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two requests for the statistics.
pub const POLL_PAUSE: Duration = Duration::from_millis(20);

pub async fn in_time<F: Future>(wanted: &str, future: F) -> F::Output {
    let result = timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("no {wanted} within {PATIENCE:?}"))
}
