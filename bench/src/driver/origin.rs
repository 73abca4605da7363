//! When, and from what, the figures come.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Date and commit of a run.
pub(crate) struct Origin {
    pub(crate) date_utc: String,
    pub(crate) commit: String,
    pub(crate) tree_dirty: bool,
}

impl Origin {
    /// Now, of the repository that this program was built from.
    pub(crate) fn now() -> Result<Origin> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let git =
            |arguments: &[&str]| said(Command::new("git").args(["-C"]).arg(root).args(arguments));
        Ok(Origin {
            date_utc: said(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"]))?,
            commit: git(&["rev-parse", "--short=10", "HEAD"])?,
            tree_dirty: !git(&["status", "--porcelain"])?.is_empty(),
        })
    }
}

fn said(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", reason.trim());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
