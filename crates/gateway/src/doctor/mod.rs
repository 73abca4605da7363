//! `threadbare doctor`: checks the requirements of Threadbare.
//!
//! `readings` reads the machine, and `needs` reads the configuration. `checks` judges both, without any I/O.

mod checks;
mod finding;
#[cfg(feature = "gstreamer")]
mod gstreamer;
mod needs;
mod readings;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::IntoDiagnostic;
use serde::Serialize;

use self::finding::{Finding, Grade};
#[cfg(feature = "gstreamer")]
pub(crate) use self::gstreamer::LoadArgs;
use self::needs::Needs;
use self::readings::Readings;
use crate::run::read_config;

/// Checks whether the system meets Threadbare's requirements, and shows how to fix problems.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Check the requirements of this configuration; default: those of `threadbare serve` without arguments
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The report as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// Whether no finding is bad. There may be notes.
    works: bool,
    findings: &'a [Finding],
}

impl DoctorArgs {
    /// Runs the command. Returns exit status 1 if a finding is bad.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read, or has mistakes.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        let needs = match &self.config {
            Some(path) => Needs::of(&read_config(path)?),
            None => Needs::default(),
        };
        #[cfg(feature = "gstreamer")]
        let mut findings = gstreamer::findings();
        #[cfg(not(feature = "gstreamer"))]
        let mut findings = vec![finding::note(
            "GStreamer",
            threadbare_process::NO_GSTREAMER.to_owned(),
            "streams work without GStreamer; `pipeline`, --stock, bench and loudness need it"
                .to_owned(),
        )];
        findings.extend(checks::findings(&Readings::of(Path::new("/")), &needs));
        let bad = findings
            .iter()
            .filter(|one| one.grade == Grade::Bad)
            .count();
        if self.json {
            let report = Report {
                works: bad == 0,
                findings: &findings,
            };
            let text = serde_json::to_string_pretty(&report).into_diagnostic()?;
            println!("{text}");
        } else {
            print(&findings, bad)
        }
        Ok(match bad {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

fn print(findings: &[Finding], bad: usize) {
    for finding in findings {
        println!("{finding}");
    }
    let has_sysctl = findings
        .iter()
        .any(|one| one.mend.iter().any(|mend| mend.contains(SYSCTL)));
    if has_sysctl {
        println!(
            "\nSettings made by sysctl -w are lost at the next boot. To make them permanent, add NAME=VALUE to \
            /etc/sysctl.d/60-threadbare.conf."
        );
    }
    match bad {
        0 => println!("\nThreadbare has what it needs. Try: threadbare demo"),
        _ => println!("\n{bad} of these must be fixed before Threadbare works."),
    }
}

const SYSCTL: &str = "sysctl -w ";
