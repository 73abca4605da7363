//! Functions that the tests in this folder share.

use std::time::Duration;

use tokio::time::timeout;

/// Runs a test to its end. A test that hangs fails.
pub(super) fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let limited = async { timeout(LIMIT, test).await.expect("in time") };
    runtime.expect("a runtime").block_on(limited)
}

const LIMIT: Duration = Duration::from_secs(60);
