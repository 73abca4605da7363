//! Measures in virtual time how long the output of `fallbackswitch` is frozen.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use threadbare_bench::results::{Frozen, Samples};

/// Name of the figure: maximum number of buffers for which the output is frozen after an error.
pub(crate) const AFTER_ERROR: &str = "fallbackswitch, frozen after an error of its source";
/// Name of the figure: maximum number of buffers for which the output is frozen after a stall, minus the timeout.
pub(crate) const AFTER_STALL: &str =
    "fallbackswitch, frozen after a silent stall, in addition to the timeout";
/// Name of the figure: number of switches while the jitter is shorter than the timeout.
pub(crate) const UNDER_JITTER: &str =
    "fallbackswitch, switches with jitter shorter than the timeout";

/// Runs the program `fallback` and adds its figures to `samples`. One run is enough, because the figures do not vary.
pub(crate) fn measure(
    programs: &Path,
    plugin_folder: &Path,
    scratch: &Path,
    samples: &mut Samples,
) -> Result<()> {
    let mut command = Command::new(programs.join("fallback"));
    command.env("GST_PLUGIN_PATH", plugin_folder);
    command.env("GST_REGISTRY", scratch.join("registry-ours.bin"));
    // GStreamer must not find another element of this name.
    command.env("XDG_DATA_HOME", scratch.join("no-user-plugins"));
    let output = command
        .output()
        .context("cannot start the program fallback")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("the program fallback failed: {}", text.trim());
    }
    let frozen: Frozen = serde_json::from_slice(&output.stdout)?;
    let figures = [
        (AFTER_ERROR, "buffers", frozen.after_error_buffers),
        (AFTER_STALL, "buffers", frozen.after_stall_buffers),
        (UNDER_JITTER, "switches", frozen.jitter_switches as f64),
    ];
    for (name, unit, figure) in figures {
        let sample = samples.entry(name.into()).or_default();
        sample.unit = unit.into();
        sample.by_round.push(figure);
    }
    Ok(())
}

/// Whether this module measures a sample of this name.
#[cfg(test)]
pub(crate) fn measures(name: &str) -> bool {
    [AFTER_ERROR, AFTER_STALL, UNDER_JITTER].contains(&name)
}
