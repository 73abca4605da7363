//! Date and commit of measured figures.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Date and commit of a run.
pub struct Origin {
    /// Year, month, day, hour and minute in UTC.
    pub date_utc: String,
    pub commit: String,
    /// Whether files of the working tree differed from the commit.
    pub tree_dirty: bool,
}

impl Origin {
    /// Returns the present time, and the commit of the repository from which this program was built.
    pub fn now() -> Result<Origin> {
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
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", reason.trim());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
