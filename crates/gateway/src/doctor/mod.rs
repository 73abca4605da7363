//! `threadbare doctor`: checks the requirements of Threadbare.

#[cfg(feature = "gstreamer")]
mod gstreamer;

use std::fmt;
use std::process::ExitCode;

#[cfg(feature = "gstreamer")]
pub use self::gstreamer::LoadArgs;
use crate::process;

/// Looks for what Threadbare needs, and says how to get what is missing.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Good,
    /// Works, with a note for the user.
    Note,
    /// Does not work.
    Bad,
}

/// One line, with a remedy.
#[derive(Debug)]
struct Finding {
    grade: Grade,
    what: String,
    advice: Option<String>,
}

impl DoctorArgs {
    /// Exit status 1 if something needed is missing.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        #[cfg(feature = "gstreamer")]
        let mut findings = gstreamer::findings();
        #[cfg(not(feature = "gstreamer"))]
        let mut findings = vec![note(
            crate::description::NO_GSTREAMER.to_owned(),
            "streams run without it; `pipeline`, --stock, bench and loudness need it".to_owned(),
        )];
        findings.push(descriptors());
        findings.push(buffers("rmem_max", "receive"));
        findings.push(buffers("wmem_max", "send"));
        for finding in &findings {
            println!("{finding}");
        }
        let bad = findings
            .iter()
            .filter(|finding| finding.grade == Grade::Bad)
            .count();
        if bad > 0 {
            println!("\n{bad} of these must be put right before Threadbare works.");
            return Ok(ExitCode::FAILURE);
        }
        println!("\nThreadbare has what it needs. Try: threadbare demo");
        Ok(ExitCode::SUCCESS)
    }
}

fn descriptors() -> Finding {
    let Some((soft, hard)) = process::descriptor_limits() else {
        return note(
            "the limit of open files is unknown".to_owned(),
            "ulimit -n shows it".to_owned(),
        );
    };
    let what = format!("open files: {soft}, which Threadbare raises to {hard} for itself");
    match hard >= DESCRIPTORS_GOOD {
        true => good(what),
        false => note(
            what,
            format!(
                "{} streams are about the most with that; raise it with LimitNOFILE= or in /etc/security/limits.conf",
                hard / 3
            ),
        ),
    }
}

fn buffers(setting: &str, direction: &str) -> Finding {
    let Some(bytes) = process::sysctl(&format!("net/core/{setting}")) else {
        return note(
            format!("net.core.{setting} cannot be read"),
            "in a container this is usual".to_owned(),
        );
    };
    let what = format!(
        "socket {direction} buffers: up to {} KiB (net.core.{setting})",
        bytes / 1024
    );
    match bytes >= BUFFER_BYTES_GOOD {
        true => good(what),
        false => note(
            format!("{what}; a burst on many streams may overflow them"),
            format!("sudo sysctl -w net.core.{setting}={BUFFER_BYTES_GOOD}"),
        ),
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grade = match self.grade {
            Grade::Good => "  ok    ",
            Grade::Note => "  note  ",
            Grade::Bad => "  BAD   ",
        };
        write!(f, "{grade}{}", self.what)?;
        match &self.advice {
            Some(advice) => write!(f, "\n          -> {advice}"),
            None => Ok(()),
        }
    }
}

fn good(what: String) -> Finding {
    Finding {
        grade: Grade::Good,
        what,
        advice: None,
    }
}

fn note(what: String, advice: String) -> Finding {
    Finding {
        grade: Grade::Note,
        what,
        advice: Some(advice),
    }
}

#[cfg(feature = "gstreamer")]
fn bad(what: String, advice: String) -> Finding {
    Finding {
        grade: Grade::Bad,
        what,
        advice: Some(advice),
    }
}

/// 3000 streams, with some to spare.
const DESCRIPTORS_GOOD: u64 = 10_000;
const BUFFER_BYTES_GOOD: u64 = 4 << 20;
