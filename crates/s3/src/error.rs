//! Errors of requests and uploads. No variant contains credentials.

use std::fmt::Write as _;

/// Maximum length of a server's text. Longer texts are truncated, because they are logged.
const TEXT_CHARS_MAX: usize = 300;

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is not valid. The text has its name, its value, and the allowed values.
    #[error("{0}")]
    Setting(String),
    /// Credentials are missing, or cannot be read.
    #[error(
        "cannot find credentials for S3: {0} (set access-key and secret-access-key, or use the environment, ~/.aws, SSO, web identity, \
        ECS or EC2)"
    )]
    Credentials(String),
    /// The store refuses the request.
    #[error("{}", refusal(*.status, .code, .message))]
    Refused {
        /// HTTP status.
        status: u16,
        /// Code of the store, such as `NoSuchBucket`; empty if it sent none.
        code: String,
        /// The store's explanation.
        message: String,
        /// Pause that the store requests, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// The connection failed: it was refused, or the host does not exist or is not trusted.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// No answer came within this time.
    #[error("the store did not answer for {0} ms")]
    TimedOut(u64),
    /// The response does not come from an S3 interface.
    #[error("unexpected answer of the store: {0}")]
    Answer(String),
    /// The spool, or a file to be sent, has failed.
    #[error("{0}")]
    File(String),
    /// The object is longer than S3 allows.
    #[error(
        "the object needs more than {parts} parts; increase part-size (now {part_bytes} bytes)"
    )]
    TooLong {
        /// Maximum number of parts of an upload.
        parts: u16,
        /// Size of the first parts in bytes.
        part_bytes: u64,
    },
    /// The store, the memory or the spool is too slow for the stream.
    #[error("{0}")]
    TooSlow(String),
    /// The user abandoned the upload.
    #[error("the upload was cancelled")]
    GivenUp,
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            // RFC 9110, sections 15.5.9 and 15.6; RFC 6585, section 4; S3's own codes with the same meaning.
            Error::Refused { status, code, .. } => {
                matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
                    || matches!(
                        code.as_str(),
                        "RequestTimeout" | "SlowDown" | "InternalError"
                    )
            }
            Error::Connect(text) => !is_about_trust(text),
            Error::Broken(_) | Error::TimedOut(_) => true,
            Error::Credentials(_)
            | Error::Setting(_)
            | Error::Answer(_)
            | Error::File(_)
            | Error::TooLong { .. }
            | Error::TooSlow(_)
            | Error::GivenUp => false,
        }
    }

    /// Returns the store's code, such as `NoSuchUpload`.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused { code, .. } => Some(code.as_str()),
            _ => None,
        }
    }

    /// Pause that the store requests, in ms.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Error::Refused { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        }
    }
}

fn is_about_trust(text: &str) -> bool {
    text.contains("invalid peer certificate")
}

fn refusal(status: u16, code: &str, message: &str) -> String {
    let mut text = format!("the store answered with {status}");
    if !code.is_empty() {
        let _ = write!(text, " {code}");
    }
    if !message.is_empty() {
        let _ = write!(text, ": {message}");
    }
    if let Some(advice) = advice(status, code) {
        let _ = write!(text, " ({advice})");
    }
    text
}

/// Advice for users about an error.
fn advice(status: u16, code: &str) -> Option<&'static str> {
    Some(match (code, status) {
        ("NoSuchBucket", _) => "create the bucket, or correct bucket and region",
        ("InvalidBucketName", _) => "correct bucket",
        ("InvalidAccessKeyId" | "InvalidToken" | "ExpiredToken" | "SignatureDoesNotMatch", _) => {
            "correct access-key, secret-access-key and session-token, or those of the environment"
        }
        ("AccessDenied", _) | ("", 403) => {
            "the credentials do not permit this; writing needs s3:PutObject and s3:AbortMultipartUpload, and reading needs s3:GetObject"
        }
        (
            "PermanentRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException",
            _,
        )
        | ("", 301) => "the bucket is in another region; correct region",
        ("RequestTimeTooSkewed", _) => "correct the clock of this machine",
        _ => return None,
    })
}

/// Shortens a server's text for a message: one line, not too long.
pub(crate) fn shown(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain
        .take(TEXT_CHARS_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Returns an error and its causes in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            let _ = write!(text, ": {next}");
        }
        cause = error.source();
    }
    shown(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> Error {
        Error::Refused {
            status,
            code: code.into(),
            message: "why".into(),
            retry_after_ms: None,
        }
    }

    #[test]
    fn refusal_has_a_remedy() {
        let text = refused(404, "NoSuchBucket").to_string();
        assert_eq!(
            text,
            "the store answered with 404 NoSuchBucket: why (create the bucket, or correct bucket and region)"
        );
        assert!(refused(403, "").to_string().contains("s3:PutObject"));
    }

    /// The codes that S3 documents as temporary.
    #[test]
    fn retryable_errors_are_transient() {
        for (status, code) in [
            (503, "SlowDown"),
            (500, "InternalError"),
            (400, "RequestTimeout"),
            (429, ""),
        ] {
            assert!(refused(status, code).is_transient(), "{status} {code}");
        }
        for (status, code) in [
            (403, "AccessDenied"),
            (404, "NoSuchBucket"),
            (400, "EntityTooSmall"),
        ] {
            assert!(!refused(status, code).is_transient(), "{status} {code}");
        }
        assert!(!Error::Connect("invalid peer certificate: UnknownIssuer".into()).is_transient());
        assert!(Error::Connect("refused".into()).is_transient());
    }

    #[test]
    fn a_text_of_the_server_is_one_short_line() {
        assert_eq!(shown("a\nb\u{7}c"), "a b c");
        assert_eq!(shown(&"x".repeat(1000)).len(), TEXT_CHARS_MAX);
    }
}
