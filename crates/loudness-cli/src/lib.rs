//! `threadbare loudness`: measures the loudness of files.
//!
//! - `decode`: decodes a file to samples, with any GStreamer decoder.
//! - `measure`: computes readings and a curve from samples.
//! - `problem`: reasons why a file cannot be measured, with advice.
//! - `report`: formats the results as a table and as JSON.
//! - `plot`: draws the curve.
//! - `tag`: writes gains into the tags of the files.
//!
//! Part of the gateway `threadbare`; not a public interface.
#![forbid(unsafe_code)]

#[macro_use(print, println, eprintln)]
extern crate threadbare_process;

mod decode;
mod measure;
mod plot;
mod problem;
mod report;
mod tag;

use std::io::IsTerminal;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::{Context, IntoDiagnostic};

use self::measure::Measured;
use self::problem::Problem;
use self::report::{Goal, Report};
use self::tag::{Format, Level, Scheme, Tags};

/// Measures the loudness of files (EBU R128), one by one and together.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct LoudnessArgs {
    /// Audio files in any format that GStreamer can decode; the first audio track is measured
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Show the distance of each file from this loudness, in LUFS: -23 for EBU R128, -16 for podcasts
    #[arg(long, value_name = "LUFS", allow_negative_numbers = true, value_parser = parse_target)]
    target: Option<f64>,
    /// Exit with status 3 if a file is farther from the target than this, in LU: 0.5 for EBU R128, 1 for live programmes
    #[arg(long, value_name = "LU", requires = "target", allow_negative_numbers = true, value_parser = parse_tolerance)]
    tolerance: Option<f64>,
    /// Number of files to measure at a time [default: number of cores]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Draw loudness over time as SVG; with several files: NAME-1.svg, NAME-2.svg and so on
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    plot: Option<PathBuf>,
    /// Write the gain of each file into its tags; other tags and the audio stay unchanged
    #[arg(long, value_enum, value_name = "KIND")]
    tag: Option<Scheme>,
    /// With --tag: write the gain of all files together, as one album, as well
    #[arg(long, requires = "tag")]
    album: bool,
}

const EXAMPLES: &str = "\
Examples:
  threadbare loudness song.flac                      Measure one file
  threadbare loudness --target -23 *.wav             Distance to -23 LUFS, for each file and for all together
  threadbare loudness --target -23 --tolerance 0.5 *.wav   Exit status 3: a file is not within 0.5 LU of the target
  threadbare loudness --plot loud.svg programme.mp3  Plot the loudness over time
  threadbare loudness --tag replaygain --album *.flac   Write the gains of each file and of the album as tags
  threadbare loudness --json *.flac | jq .total      Print JSON for scripts

Exit status:
  0  all files were measured; with --tolerance, all are within the tolerance
  1  a file could not be measured or tagged; the report has the other files
  2  an argument is wrong; nothing was measured
  3  all files were measured, and at least one is not within the tolerance of the target";

/// Exit status if measured files miss the target.
const OFF_TARGET: u8 = 3;
/// Exit status for wrong arguments, as in clap.
const WRONG_ARGUMENT: u8 = 2;

impl LoudnessArgs {
    /// Runs the command.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        if self.album && self.files.len() < 2 {
            eprintln!("error: --album needs at least 2 files");
            return Ok(ExitCode::from(WRONG_ARGUMENT));
        }
        gst::init()
            .into_diagnostic()
            .wrap_err("GStreamer does not start")?;
        let formats = match self.formats() {
            Ok(formats) => formats,
            Err(problems) => {
                tell(problems);
                return Ok(ExitCode::FAILURE);
            }
        };
        let results = self.measure_all();
        let mut report = Report::new(&self.files, &results, self.goal());
        let mut tag_problems = Vec::new();
        for (index, written) in self.write_tags(&formats, &results) {
            report.add_tags(index, &written);
            tag_problems.extend(written.err());
        }
        if self.is_album_broken(&results) {
            tag_problems.push(Problem::Album);
        }
        if self.json {
            println!("{}", report.to_json())
        } else {
            print!("{}", report.to_table())
        }
        let problems = results.into_iter().filter_map(Result::err);
        Ok(match tell(problems.chain(tag_problems)) {
            true => ExitCode::FAILURE,
            false if report.is_off_target() => ExitCode::from(OFF_TARGET),
            false => ExitCode::SUCCESS,
        })
    }

    /// Returns the tag format of each file, if tags are to be written. If the format of any file has no such tags, nothing is
    /// written at all.
    fn formats(&self) -> Result<Vec<Option<Format>>, Vec<Problem>> {
        let Some(scheme) = self.tag else {
            return Ok(Vec::new());
        };
        let checked = self.files.iter().map(|file| scheme.check(file));
        let (formats, problems): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
        if problems.is_empty() {
            Ok(formats.into_iter().flatten().collect())
        } else {
            Err(problems.into_iter().filter_map(Result::err).collect())
        }
    }

    fn is_album_broken(&self, results: &[Result<Measured, Problem>]) -> bool {
        self.album && results.iter().any(Result::is_err)
    }

    /// Writes the tags of the measured files.
    fn write_tags(
        &self,
        formats: &[Option<Format>],
        results: &[Result<Measured, Problem>],
    ) -> Vec<(usize, Result<Tags, Problem>)> {
        let Some(scheme) = self.tag.filter(|_| !self.is_album_broken(results)) else {
            return Vec::new();
        };
        let album = self.album.then(|| Level::of_all(results)).flatten();
        let files = self.files.iter().zip(formats).zip(results).enumerate();
        let files = files.filter_map(|(index, ((file, format), result))| {
            Some((index, file, (*format)?, result.as_ref().ok()?))
        });
        let written = files.map(|(index, file, format, measured)| {
            let tags = match Level::of(measured) {
                Some(track) => {
                    let tags = scheme.tags(track, album);
                    tag::write(file, format, &tags).map(|()| tags)
                }
                None => Err(Problem::Tag {
                    path: file.clone(),
                    reason: "the file is silent, and no gain changes that".to_owned(),
                }),
            };
            (index, tags)
        });
        written.collect()
    }

    fn goal(&self) -> Goal {
        Goal {
            target_lufs: self.target,
            tolerance_lu: self.tolerance,
        }
    }

    /// Prints the results in the order of the files.
    fn measure_all(&self) -> Vec<Result<Measured, Problem>> {
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let jobs = self.jobs.map_or_else(cores, NonZero::get);
        let progress = Progress::new(&self.files);
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<_>>> = self.files.iter().map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for _ in 0..jobs.min(self.files.len()) {
                scope.spawn(|| {
                    while let Some((index, file)) = nth(&self.files, next.fetch_add(1, Relaxed)) {
                        let result = self.measure_one(index, file, &progress);
                        progress.done(index);
                        if let Ok(mut slot) = results[index].lock() {
                            *slot = Some(result);
                        }
                    }
                });
            }
        });
        progress.bar.finish_and_clear();
        let taken = results.into_iter().zip(&self.files).map(|(slot, file)| {
            let result = slot.into_inner().ok().flatten();
            result.unwrap_or_else(|| {
                Err(Problem::broken(
                    file,
                    "the measurement ended without a result",
                ))
            })
        });
        taken.collect()
    }

    fn measure_one(
        &self,
        index: usize,
        file: &Path,
        progress: &Progress,
    ) -> Result<Measured, Problem> {
        let is_plotted = self.plot.is_some();
        let measured = decode::measure(file, is_plotted, |share| progress.show(index, share))?;
        if let Some(plot) = &self.plot {
            let path = plot_path(plot, index, self.files.len());
            let title = file
                .file_name()
                .unwrap_or(file.as_os_str())
                .to_string_lossy();
            let picture = plot::svg(&title, &measured, self.goal());
            std::fs::write(&path, picture).map_err(|error| Problem::Plot { path, error })?;
        }
        Ok(measured)
    }
}

/// Prints problems to standard error. Returns whether there are any.
fn tell(problems: impl IntoIterator<Item = Problem>) -> bool {
    let mut has_any = false;
    for problem in problems {
        has_any = true;
        eprintln!("{:?}", miette::Report::new(problem));
    }
    has_any
}

fn nth<T>(all: &[T], index: usize) -> Option<(usize, &T)> {
    all.get(index).map(|item| (index, item))
}

/// Returns the file name of the picture for one of several files.
fn plot_path(plot: &Path, index: usize, files: usize) -> PathBuf {
    if files == 1 {
        return plot.to_owned();
    }
    let mut name = plot.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", index + 1));
    if let Some(extension) = plot.extension() {
        name.push(".");
        name.push(extension);
    }
    plot.with_file_name(name)
}

/// Parses a target. The lowest loudness of a programme is the absolute gate, and a target above full scale is a mistake.
fn parse_target(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(lufs) if (-70.0..=0.0).contains(&lufs) => Ok(lufs),
        _ => Err("expected -70 to 0 LUFS".to_owned()),
    }
}

/// Parses a tolerance. A wider one than allowed would accept every audible file.
fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(lu) if (0.0..=30.0).contains(&lu) => Ok(lu),
        _ => Err("expected 0 to 30 LU".to_owned()),
    }
}

/// Parses the name of the picture. It must end in `.svg`, because viewers would not open an SVG with another extension.
fn parse_plot(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("expected a name that ends in .svg: the picture is an SVG file".to_owned()),
    }
}

/// A progress bar for all files together, on a terminal.
#[derive(Debug)]
struct Progress {
    bar: ProgressBar,
    /// Progress of each file, in thousandths.
    shares: Vec<AtomicUsize>,
}

impl Progress {
    fn new(files: &[PathBuf]) -> Progress {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(files.len() as u64 * 1000), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:40.cyan/blue} {percent:>3} %  {msg}")
        {
            bar.set_style(style);
        }
        let shares = files.iter().map(|_| AtomicUsize::new(0)).collect();
        let progress = Progress { bar, shares };
        progress.tell();
        progress
    }

    fn show(&self, index: usize, share: f64) {
        let thousandths = (share.clamp(0.0, 1.0) * 999.0) as usize;
        self.shares[index].store(thousandths, Relaxed);
        self.tell();
    }

    fn done(&self, index: usize) {
        self.shares[index].store(1000, Relaxed);
        self.tell();
    }

    fn tell(&self) {
        let shares = || self.shares.iter().map(|share| share.load(Relaxed));
        let done = shares().filter(|share| *share == 1000).count();
        self.bar.set_position(shares().sum::<usize>() as u64);
        self.bar
            .set_message(format!("{done} of {} files", self.shares.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_several_files_are_numbered() {
        let path = |plot: &str, index, files| plot_path(Path::new(plot), index, files);
        assert_eq!(path("a/b.svg", 0, 1), Path::new("a/b.svg"));
        assert_eq!(path("a/b.svg", 0, 2), Path::new("a/b-1.svg"));
        assert_eq!(path("b.c.svg", 9, 12), Path::new("b.c-10.svg"));
        assert_eq!(path("b", 1, 2), Path::new("b-2"));
    }

    #[test]
    fn picture_names_must_match_their_format() {
        assert_eq!(parse_plot("a/b.SVG"), Ok(PathBuf::from("a/b.SVG")));
        for text in ["loud.png", "loud", ".svg", ""] {
            assert!(parse_plot(text).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_are_between_the_gate_and_full_scale() {
        assert_eq!(parse_target("-23"), Ok(-23.0));
        for text in ["-70.1", "0.5", "nan", "loud", ""] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }
}
