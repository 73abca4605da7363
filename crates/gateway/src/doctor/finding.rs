//! The doctor's findings. A finding has a text, a grade, and a line that fixes the problem.

use std::fmt;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    Good,
    /// The part works, but the user should know something.
    Note,
    /// The part does not work.
    Bad,
}

/// The result of a check, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the check. Programs can rely on it.
    pub(super) check: &'static str,
    pub(super) grade: Grade,
    pub(super) what: String,
    /// A command or a setting that fixes the problem, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grade = match self.grade {
            Grade::Good => "  ok    ",
            Grade::Note => "  note  ",
            Grade::Bad => "  BAD   ",
        };
        write!(f, "{grade}{}", self.what)?;
        match &self.mend {
            Some(mend) => write!(f, "\n          -> {mend}"),
            None => Ok(()),
        }
    }
}

pub(super) fn good(check: &'static str, what: String) -> Finding {
    Finding {
        check,
        grade: Grade::Good,
        what,
        mend: None,
    }
}

pub(super) fn note(check: &'static str, what: String, mend: String) -> Finding {
    Finding {
        check,
        grade: Grade::Note,
        what,
        mend: Some(mend),
    }
}

pub(super) fn bad(check: &'static str, what: String, mend: String) -> Finding {
    Finding {
        grade: Grade::Bad,
        ..note(check, what, mend)
    }
}
