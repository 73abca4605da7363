//! Replies to requests.

use super::request::Refusal;
use super::value::Dictionary;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Done. The dictionary's keys come after `result`.
    Ok(Dictionary),
    /// The reply to `ping`.
    Pong,
    /// Refused or failed, with the text of `error-reason`.
    Error(String),
    /// No more calls at present, with the reason. Only for clients that support it (`supports`).
    LoadLimit(String),
}

impl Reply {
    /// Returns the dictionary on the wire. "No other keys should be present in the error case."
    #[must_use]
    pub fn into_dictionary(self) -> Dictionary {
        let mut out = Dictionary::new();
        match self {
            Reply::Ok(mut keys) => {
                keys.push_first("result", "ok");
                return keys;
            }
            Reply::Pong => out.push("result", "pong"),
            Reply::Error(reason) => {
                out.push("result", "error");
                out.push("error-reason", reason);
            }
            Reply::LoadLimit(reason) => {
                out.push("result", "load limit");
                out.push("message", reason);
            }
        }
        out
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        Reply::Error(refusal.to_string())
    }
}
