//! Reads results files with one JSON object per line. The first line contains date, commit and machine. The rows of a program
//! follow.

use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use crate::libraries::Head;

/// Reads a results file if it exists.
pub fn read<R: DeserializeOwned>(path: &Path) -> Result<Option<(Head, Vec<R>)>> {
    if !path.exists() {
        return Ok(None);
    }
    let context = || format!("cannot read {}", path.display());
    let text = std::fs::read_to_string(path).with_context(context)?;
    parse(&text).with_context(context).map(Some)
}

/// Parses the text of a results file.
pub fn parse<R: DeserializeOwned>(text: &str) -> Result<(Head, Vec<R>)> {
    let mut lines = text.lines().enumerate();
    let (_, head) = lines.next().context("the file is empty")?;
    let head = serde_json::from_str(head).context("line 1: expected date, commit and machine")?;
    let rows = lines.map(|(number, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("line {}: cannot parse {line}", number + 1))
    });
    Ok((head, rows.collect::<Result<_>>()?))
}
