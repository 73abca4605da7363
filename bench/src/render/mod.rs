//! Generates texts and pictures of README and docs. The only inputs are the newest results file and the results files of single
//! programs, such as those of the libraries and the media plane. The same inputs give the same bytes, so that a test can
//! compare them.

mod calls;
pub mod drawings;
mod figure;
mod libraries;
mod media;
mod plots;
mod svg;
mod tables;

use std::path::Path;

use anyhow::{Context, Result};

use crate::calls::Calls;
use crate::libraries::Libraries;
use crate::media::Media;
use crate::results::Results;

/// A generated text in the repository.
#[derive(Debug)]
pub struct Rendered {
    /// Path from the root of the repository.
    pub path: &'static str,
    pub place: Place,
    /// The text, or `None` without results. In that case the file must not exist.
    pub text: Option<String>,
}

/// The part of a file that is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The whole file.
    Whole,
    /// The part between `<!-- NAME: begin -->` and `<!-- NAME: end -->`, each on a separate line.
    Between(&'static str),
}

/// Renders all texts and pictures.
pub fn all(
    results: Option<&Results>,
    measured: Option<&Libraries>,
    of_media: Option<&Media>,
    of_calls: Option<&Calls>,
    of_recordings: Option<&Calls>,
) -> Vec<Rendered> {
    let part = |path, marker, text| Rendered {
        path,
        place: Place::Between(marker),
        text: Some(text),
    };
    let mut rendered = vec![
        part("README.md", "bench-readme", tables::readme(results)),
        part("README.md", "headline", tables::headline(results)),
        part("README.md", "demo", tables::demo(results)),
        part("docs/benchmarks.md", "bench", tables::document(results)),
        part("docs/benchmarks.md", "bench-media", media::media(of_media)),
        part("docs/xdp.md", "bench-calls", calls::calls(of_calls)),
        part(
            "docs/recording.md",
            "bench-recordings",
            calls::recordings(of_recordings),
        ),
        part(
            "docs/demultiplexer.md",
            "bench-demultiplexer",
            libraries::demultiplexer(measured),
        ),
        part(
            "docs/main-loop.md",
            "bench-main-loop",
            libraries::main_loop(measured),
        ),
    ];
    let whole = |(path, text)| Rendered {
        path,
        place: Place::Whole,
        text,
    };
    rendered.extend(plots::all(results).into_iter().map(whole));
    rendered.push(whole(libraries::plot(measured)));
    let drawn = drawings::all().map(|(path, text)| whole((path, Some(text))));
    rendered.extend(drawn);
    rendered
}

/// Returns all targets and cases of a run, as in docs/benchmarks.md.
pub fn document(results: &Results) -> String {
    tables::document(Some(results))
}

impl Rendered {
    /// Whether the repository at `root` contains exactly this text.
    pub fn is_current(&self, root: &Path) -> Result<bool> {
        let old = self.old(root)?;
        Ok(self.new_text(old.as_deref())? == old)
    }

    /// Writes the text to the repository at `root`.
    pub fn write(&self, root: &Path) -> Result<()> {
        let path = root.join(self.path);
        match self.new_text(self.old(root)?.as_deref())? {
            Some(text) => {
                let folder = path
                    .parent()
                    .context("the path of the file has no folder")?;
                std::fs::create_dir_all(folder)?;
                std::fs::write(&path, text)?;
            }
            None if path.exists() => std::fs::remove_file(&path)?,
            None => {}
        }
        Ok(())
    }

    fn old(&self, root: &Path) -> Result<Option<String>> {
        let path = root.join(self.path);
        if path.exists() {
            Ok(Some(std::fs::read_to_string(&path).with_context(|| {
                format!("cannot read {}", path.display())
            })?))
        } else {
            Ok(None)
        }
    }

    /// Returns the new text of the whole file.
    fn new_text(&self, old: Option<&str>) -> Result<Option<String>> {
        let Place::Between(marker) = self.place else {
            return Ok(self.text.clone());
        };
        let text = self.text.as_deref().unwrap_or_default();
        let old = old.with_context(|| format!("the file {} is missing", self.path))?;
        let new = between(old, marker, text).with_context(|| {
            format!(
                "{} needs the lines {} and {}, once and in this order",
                self.path,
                begin(marker),
                end(marker)
            )
        })?;
        Ok(Some(new))
    }
}

fn begin(marker: &str) -> String {
    format!("<!-- {marker}: begin -->")
}

fn end(marker: &str) -> String {
    format!("<!-- {marker}: end -->")
}

/// Returns `document` with `text` between its markers. Returns `None` unless each marker occurs exactly once, in the right order.
fn between(document: &str, marker: &str, text: &str) -> Option<String> {
    let (begin, end) = (begin(marker), end(marker));
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    if rest.contains(&begin) || after.contains(&end) {
        return None;
    }
    Some(format!("{before}{begin}\n{text}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_outside_the_markers_is_unchanged() {
        let old = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n";
        let new = "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n";
        assert_eq!(between(old, "x", "new").as_deref(), Some(new));
        assert_eq!(between(new, "x", "new").as_deref(), Some(new));
        for bad in ["none", "<!-- x: end --><!-- x: begin -->"] {
            assert_eq!(between(bad, "x", "new"), None, "{bad}");
        }
        assert_eq!(between(&format!("{old}{old}"), "x", "new"), None);
    }
}
