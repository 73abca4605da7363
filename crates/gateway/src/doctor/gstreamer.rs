//! The doctor's checks of GStreamer.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use miette::{IntoDiagnostic, miette};

use super::finding::{Finding, bad, good, note};

/// Loads a plugin file. The doctor starts this command as a separate process.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    plugin: PathBuf,
}

impl LoadArgs {
    /// Runs the command. If the file cannot be loaded, prints the reason, and returns exit status 1.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        gst::init().into_diagnostic()?;
        match gst::Plugin::load_file(&self.plugin) {
            Ok(plugin) => {
                println!("{} {}", plugin.plugin_name(), plugin.version());
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                println!("{error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = Vec::new();
    match gst::init() {
        Err(error) => findings.push(bad(
            CHECK,
            format!("GStreamer does not start: {error}"),
            "sudo apt install libgstreamer1.0-0".to_owned(),
        )),
        Ok(()) => {
            findings.push(version());
            findings.extend(elements());
            findings.push(built_in());
        }
    }
    findings.push(plugin_file());
    findings
}

fn version() -> Finding {
    let (major, minor, micro, _) = gst::version();
    let what = format!("GStreamer {major}.{minor}.{micro}");
    if (major, minor) >= GSTREAMER_LEAST {
        good(CHECK, what)
    } else {
        bad(
            CHECK,
            format!("{what} is too old"),
            format!(
                "Threadbare needs {}.{}, which Debian 12 has",
                GSTREAMER_LEAST.0, GSTREAMER_LEAST.1
            ),
        )
    }
}

fn elements() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (package, elements) in PACKAGES {
        let missing = elements
            .iter()
            .filter(|name| gst::ElementFactory::find(name).is_none());
        let missing = missing.copied().collect::<Vec<_>>();
        findings.push(if missing.is_empty() {
            good("elements", format!("{package}: {}", elements.join(", ")))
        } else {
            bad(
                "elements",
                format!("elements are missing: {}", missing.join(", ")),
                format!("sudo apt install {package}"),
            )
        });
    }
    findings
}

/// Checks Threadbare's own elements, which are part of this program.
fn built_in() -> Finding {
    let registered = gstthreadbare::plugin_register_static();
    let missing = OWN_ELEMENTS
        .iter()
        .filter(|name| gst::ElementFactory::find(name).is_none());
    let missing = missing.copied().collect::<Vec<_>>();
    match (registered, missing.is_empty()) {
        (Ok(()), true) => good(BUILT_IN, format!("built in: {}", OWN_ELEMENTS.join(", "))),
        (Ok(()), false) => bad(
            BUILT_IN,
            format!("this program was built without {}", missing.join(", ")),
            "build it again from a clean clone: make install".to_owned(),
        ),
        (Err(error), _) => bad(
            BUILT_IN,
            format!("the built-in elements cannot be registered: {error}"),
            "please report this, with the output of gst-inspect-1.0 threadbare".to_owned(),
        ),
    }
}

/// Checks the plugin for other programs, such as gst-launch-1.0. The gateway itself does not need it.
fn plugin_file() -> Finding {
    let Some(plugin) = plugin_directories()
        .into_iter()
        .map(|dir| dir.join(PLUGIN_FILE))
        .find(|file| file.is_file())
    else {
        return note(
            PLUGIN,
            format!(
                "{PLUGIN_FILE} is not installed: the gateway works, but gst-launch-1.0 does not know the ts- elements"
            ),
            "sudo apt install gstreamer1.0-threadbare, make install, or set GST_PLUGIN_PATH to the folder of the file".to_owned(),
        );
    };
    match load(&plugin) {
        Ok(name) => good(PLUGIN, format!("plugin {name} at {}", plugin.display())),
        Err(error) => bad(
            PLUGIN,
            format!("the plugin {} cannot be loaded: {error}", plugin.display()),
            "install it again (make install); if that does not help, delete ~/.cache/gstreamer-1.0"
                .to_owned(),
        ),
    }
}

/// Loads the plugin in another process, because a broken plugin may crash, and because this process has already registered the
/// types of the plugin.
fn load(plugin: &Path) -> miette::Result<String> {
    let program = std::env::current_exe().into_diagnostic()?;
    let output = Command::new(program)
        .arg("doctor-load")
        .arg(plugin)
        .output()
        .into_diagnostic()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.success() {
        true => Ok(said),
        false if said.is_empty() => Err(miette!(
            "the plugin crashes the process that loads it ({})",
            output.status
        )),
        false => Err(miette!("{said}")),
    }
}

/// Returns the folders in which GStreamer looks for plugins, in the order in which it does.
fn plugin_directories() -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for variable in ["GST_PLUGIN_PATH_1_0", "GST_PLUGIN_PATH"] {
        directories.extend(
            std::env::var_os(variable)
                .iter()
                .flat_map(std::env::split_paths),
        );
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let data = data.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")));
    directories.extend(data.map(|data| data.join("gstreamer-1.0/plugins")));
    for variable in ["GST_PLUGIN_SYSTEM_PATH_1_0", "GST_PLUGIN_SYSTEM_PATH"] {
        directories.extend(
            std::env::var_os(variable)
                .iter()
                .flat_map(std::env::split_paths),
        );
    }
    // Every installation has this plugin, so its folder is the system's plugin folder.
    let core = gst::Registry::get()
        .find_plugin("coreelements")
        .and_then(|plugin| plugin.filename());
    directories.extend(core.and_then(|file| file.parent().map(Path::to_path_buf)));
    directories
}

/// The elements that the gateway may use, by the Debian package that contains them.
const PACKAGES: &[(&str, &[&str])] = &[
    ("libgstreamer1.0-0", &["fakesink"]),
    (
        "gstreamer1.0-plugins-base",
        &[
            "audioconvert",
            "audioresample",
            "opusdec",
            "opusenc",
            "uridecodebin",
        ],
    ),
    (
        "gstreamer1.0-plugins-good",
        &[
            "mulawdec",
            "mulawenc",
            "alawdec",
            "alawenc",
            "rtppcmudepay",
            "rtppcmupay",
            "rtppcmadepay",
            "rtppcmapay",
            "rtpL16depay",
            "rtpL16pay",
            "rtpopusdepay",
            "rtpopuspay",
            "rtpjitterbuffer",
            "udpsrc",
            "udpsink",
        ],
    ),
];

/// Threadbare's own elements that receive and send.
const OWN_ELEMENTS: [&str; 5] = [
    "ts-rtpsrc",
    "ts-rtpg711",
    "ts-rtpsink",
    "ebur128level",
    "audioloudnorm",
];

const CHECK: &str = "GStreamer";
const BUILT_IN: &str = "built-in elements";
const PLUGIN: &str = "plugin";
const PLUGIN_FILE: &str = "libgstthreadbare.so";
const GSTREAMER_LEAST: (u32, u32) = (1, 22);
