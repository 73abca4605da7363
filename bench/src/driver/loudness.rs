//! Measures loudness. Compares our library with Debian's libebur128 through the C interface, and `audioloudnorm` with ffmpeg's
//! `loudnorm`. Also measures batches of live meters.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use threadbare_bench::measure::{ChildUsage, run_child};
use threadbare_bench::results::Samples;

/// Name of the sample for the share of one core's time that 2000 live meters take.
pub(crate) const LIVE_METERS: &str = "2000 live meters";
/// Name of the sample for the CPU time of our element per second of audio.
pub(crate) const NORMALIZE_OURS: &str = "audioloudnorm";
/// Name of the sample for the CPU time of ffmpeg's filter per second of audio.
pub(crate) const NORMALIZE_FFMPEG: &str = "ffmpeg loudnorm";
/// Name of the sample for the memory of one stream, measured with a hundred streams.
pub(crate) const NORMALIZE_MEMORY: &str = "audioloudnorm, memory";

/// Paths of programs and files, and the length of the audio.
pub(crate) struct Loudness {
    /// Folder with our `libebur128.so.1`.
    library_folder: PathBuf,
    /// Folder with our plugin.
    plugin_folder: PathBuf,
    /// Program compiled from bench/loudness/cost.c.
    cost: PathBuf,
    meters: PathBuf,
    /// Audio file to be normalised.
    input: PathBuf,
    registry: PathBuf,
    audio_seconds: u32,
}

/// A figure: name, unit and value.
type Figure = (String, &'static str, f64);

impl Loudness {
    /// Builds the programs and files of the measurement. `library` is our libebur128.so, and `scratch` is the folder for built
    /// and generated files.
    pub(crate) fn prepare(
        programs: &Path,
        plugin_folder: &Path,
        library: &Path,
        scratch: &Path,
        audio_seconds: u32,
    ) -> Result<Loudness> {
        let loudness = Loudness {
            library_folder: scratch.join("ebur128"),
            plugin_folder: plugin_folder.to_owned(),
            cost: scratch.join("cost"),
            meters: programs.join("meters"),
            input: scratch.join("loudness.wav"),
            registry: scratch.join("registry-ours.bin"),
            audio_seconds,
        };
        std::fs::create_dir_all(&loudness.library_folder)?;
        let wanted = loudness.library_folder.join("libebur128.so.1");
        std::fs::copy(library, wanted)
            .with_context(|| format!("cannot copy {}", library.display()))?;
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/loudness/cost.c");
        let include = concat!(
            "-I",
            env!("CARGO_MANIFEST_DIR"),
            "/../crates/loudness-capi/include"
        );
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", include, source, "-o"]);
        compiler
            .arg(&loudness.cost)
            .args(["-l:libebur128.so.1", "-lm"]);
        run_child(&mut compiler).context("cannot compile cost.c (run scripts/setup test first)")?;
        let mut ffmpeg = Command::new("ffmpeg");
        let source = source_of(audio_seconds);
        ffmpeg.args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i"]);
        ffmpeg.args([source.as_str(), "-c:a", "pcm_f32le"]);
        run_child(ffmpeg.arg(&loudness.input))?;
        // The first run writes the registry, so it is not measured.
        loudness.gstreamer(&[])?;
        Ok(loudness)
    }

    /// Measures all figures of one round. If one measurement fails, the round has no figures of this module.
    pub(crate) fn measure(&self, samples: &mut Samples) -> Result<()> {
        let mut figures = self.modes("Debian", None)?;
        figures.extend(self.modes("ours", Some(&self.library_folder))?);
        figures.push((LIVE_METERS.into(), "%", self.live_meters()?));
        figures.extend(self.normalize()?);
        figures.push((NORMALIZE_MEMORY.into(), "MiB", self.memory_mib()?));
        for (name, unit, figure) in figures {
            let sample = samples.entry(name).or_default();
            sample.unit = unit.into();
            sample.by_round.push(figure);
        }
        Ok(())
    }

    /// Measures the CPU time per sample and channel in each mode, with the library that the loader finds.
    fn modes(&self, library: &str, folder: Option<&Path>) -> Result<Vec<Figure>> {
        let mut command = Command::new(&self.cost);
        command.arg(self.audio_seconds.to_string());
        if let Some(folder) = folder {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let text = output_of(&mut command)?;
        let figure = |line: &str| {
            let (mode, ns) = line.split_once(' ')?;
            Some((format!("ebur128 {mode}, {library}"), "ns", ns.parse().ok()?))
        };
        let figures: Option<Vec<Figure>> = text.lines().map(figure).collect();
        figures
            .filter(|figures| figures.len() == MODES.len())
            .with_context(|| {
                format!(
                    "expected a line for each mode from the program cost, but it printed {text:?}"
                )
            })
    }

    fn live_meters(&self) -> Result<f64> {
        let text = output_of(&mut Command::new(&self.meters))?;
        let percent = text.trim().parse();
        percent.with_context(|| {
            format!("expected a number from the program meters, but it printed {text:?}")
        })
    }

    /// Measures the CPU time of normalisation. From the time of a pipeline with the filter, it subtracts the time of the same pipeline
    /// without the filter, which runs just before.
    fn normalize(&self) -> Result<[Figure; 2]> {
        let ours = ["!", "audioloudnorm", "loudness-target=-23"];
        let theirs = ["-af", "loudnorm=I=-23:TP=-2:LRA=7"];
        let per_second = |without: ChildUsage, with: ChildUsage| {
            (with.cpu_ms - without.cpu_ms) / f64::from(self.audio_seconds)
        };
        let ours_ms = per_second(self.gstreamer(&[])?, self.gstreamer(&ours)?);
        let theirs_ms = per_second(self.ffmpeg(&[])?, self.ffmpeg(&theirs)?);
        Ok([
            (NORMALIZE_OURS.into(), "ms", ours_ms),
            (NORMALIZE_FFMPEG.into(), "ms", theirs_ms),
        ])
    }

    fn gstreamer(&self, filter: &[&str]) -> Result<ChildUsage> {
        let mut command = self.gst_launch();
        let location = format!("location={}", self.input.display());
        command.args(["filesrc", &location, "!", "wavparse"]);
        run_child(command.args(filter).args(["!", "fakesink"]))
    }

    fn ffmpeg(&self, filter: &[&str]) -> Result<ChildUsage> {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error", "-i"]);
        command.arg(&self.input).args(filter);
        run_child(command.args(["-f", "null", "-"]))
    }

    /// Measures the maximum resident memory that the filter adds per stream.
    fn memory_mib(&self) -> Result<f64> {
        let resident = |filter: &[&str]| {
            let mut command = self.gst_launch();
            for _ in 0..MEMORY_STREAMS {
                command.args(["audiotestsrc", "num-buffers=400", "volume=0.1", "!"]);
                command.arg("audio/x-raw,format=F32LE,rate=48000,channels=2");
                command.args(filter).args(["!", "fakesink"]);
            }
            run_child(&mut command).map(|usage| usage.resident_kib_max as f64)
        };
        let (without, with) = (resident(&[])?, resident(&["!", "audioloudnorm"])?);
        Ok((with - without) / f64::from(MEMORY_STREAMS) / 1024.0)
    }

    fn gst_launch(&self) -> Command {
        let mut command = Command::new("gst-launch-1.0");
        command
            .arg("-q")
            .env("GST_PLUGIN_PATH", &self.plugin_folder);
        command.env("GST_REGISTRY", &self.registry);
        command
    }
}

/// Whether a round has a figure of this name.
#[cfg(test)]
pub(crate) fn measures(name: &str) -> bool {
    let of_modes = MODES.iter().any(|mode| {
        ["Debian", "ours"]
            .iter()
            .any(|library| name == format!("ebur128 {mode}, {library}"))
    });
    let others = [
        LIVE_METERS,
        NORMALIZE_OURS,
        NORMALIZE_FFMPEG,
        NORMALIZE_MEMORY,
    ];
    of_modes || others.contains(&name)
}

/// Returns the description of an ffmpeg source. The source makes noise with the level of speech, and with some peaks for the limiter.
fn source_of(seconds: u32) -> String {
    format!(
        "aevalsrc=(random(0)-0.5)*(0.02+0.3*pow(sin(3*t)\\,4))*(1+0.5*sin(t/3)):d={seconds}:s=48000,\
         pan=stereo|c0=c0|c1=c0"
    )
}

fn output_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_owned();
    let name = Path::new(&name).file_name().map(OsStr::to_string_lossy);
    let name = name.unwrap_or_default();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Names of the modes, as in bench/loudness/cost.c.
const MODES: &[&str] = &[
    "M",
    "S",
    "I",
    "I+LRA",
    "I+LRA+histogram",
    "sample-peak",
    "true-peak",
    "I+LRA+true-peak",
];
const MEMORY_STREAMS: u16 = 100;
