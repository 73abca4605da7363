//! Replies to requests.

use super::request::Refusal;
use super::value::Dictionary;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The request was carried out. The keys of the dictionary come after `result`.
    Ok(Dictionary),
    /// The reply to `ping`.
    Pong,
    /// The request was refused or failed, with this text as `error-reason`.
    Error(String),
    /// New calls are refused at present, for this reason. Only for clients that state in `supports` that they understand it.
    LoadLimit(String),
}

impl Reply {
    /// Returns the dictionary that is sent. "No other keys should be present in the error case."
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
