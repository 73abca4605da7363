//! Program of `make bench-render`. It writes the measured parts of README and docs, the plots and the drawings. Its only inputs
//! are the newest results file and the results files of single programs, such as that of the libraries.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use threadbare_bench::calls::Calls;
use threadbare_bench::libraries::Libraries;
use threadbare_bench::media::Media;
use threadbare_bench::render;
use threadbare_bench::results::Results;

/// Renders README, docs, plots and drawings from the newest results file and that of the libraries.
#[derive(Parser)]
struct Options {
    /// Folder of the results files
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// Root of the repository
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let results = Results::newest(&options.results)?;
    let libraries = Libraries::read(&options.results)?;
    let media = Media::read(&options.results)?;
    let calls = Calls::read(&options.results)?;
    let recordings = Calls::read_recordings(&options.results)?;
    let all = render::all(
        results.as_ref(),
        libraries.as_ref(),
        media.as_ref(),
        calls.as_ref(),
        recordings.as_ref(),
    );
    for rendered in all {
        rendered.write(&options.root)?;
        if rendered.text.is_some() {
            eprintln!("rendered: {}", options.root.join(rendered.path).display());
        }
    }
    Ok(())
}
