//! Runs the demo. The results are its last screen and the latency of packets in the gateway.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use threadbare_bench::results::{Demo, Latencies};

/// Content of the file that the demo's option `--latencies` writes.
#[derive(Deserialize)]
struct LatencyFile {
    packets_by_ms: Vec<u64>,
}

/// Runs the demo as a user does.
pub(crate) fn gateway(binary: &Path, scratch: &Path) -> Result<(Demo, Latencies)> {
    let name = "gateway, 1000 calls, jitter buffer of 40 ms";
    run(binary, scratch, name, &[])
}

/// Runs the demo with a worse network between parties and gateway.
pub(crate) fn worse_network(binary: &Path, scratch: &Path) -> Result<Latencies> {
    let name = "gateway, 100 calls, 2 % loss, 30 ms of jitter, 1 % overtaken";
    let arguments = [
        "--streams",
        "100",
        "--loss",
        "2",
        "--jitter",
        "30",
        "--reorder",
        "1",
    ];
    run(binary, scratch, name, &arguments).map(|(_, latencies)| latencies)
}

/// Runs the demo. An unsuccessful demo is not an error here, because its screen shows the problems. A demo without a screen is an error.
fn run(binary: &Path, scratch: &Path, name: &str, arguments: &[&str]) -> Result<(Demo, Latencies)> {
    let file = scratch.join("latencies.json");
    let output = Command::new(binary)
        .arg("demo")
        .args(arguments)
        .arg("--latencies")
        .arg(&file)
        .env("GST_REGISTRY", scratch.join("registry-demo.bin"))
        .output()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let screen = String::from_utf8(output.stdout)?;
    if screen.is_empty() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("the demo failed: {}", reason.trim());
    }
    let latencies: LatencyFile = serde_json::from_slice(&std::fs::read(&file)?)?;
    let demo = Demo {
        command: ["threadbare demo", &arguments.join(" ")]
            .join(" ")
            .trim_end()
            .into(),
        screen,
    };
    let latencies = Latencies {
        name: name.into(),
        packets_by_ms: latencies.packets_by_ms,
    };
    Ok((demo, latencies))
}
