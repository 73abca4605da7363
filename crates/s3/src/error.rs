//! What can go wrong with a request or an upload. No variant holds credentials.

use std::fmt::Write as _;

/// Of a server's text. Longer ones are cut: they go to logs.
const TEXT_CHARS_MAX: usize = 300;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is not usable. Names it, its value, and what is allowed.
    #[error("{0}")]
    Setting(String),
    /// There are no credentials, or they cannot be read.
    #[error(
        "no credentials for S3: {0} (access-key and secret-access-key, or the usual places: environment, ~/.aws, SSO, web identity, ECS, EC2)"
    )]
    Credentials(String),
    /// The store refuses the request.
    #[error("{}", refusal(*.status, .code, .message))]
    Refused {
        /// HTTP status.
        status: u16,
        /// The store's code, such as `NoSuchBucket`; empty if it said none.
        code: String,
        /// The store's explanation.
        message: String,
        /// Milliseconds that the store wants to be left alone.
        retry_after_ms: Option<u64>,
    },
    /// No connection: refused, no such host, no trust.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// No answer in this time.
    #[error("no answer for {0} ms")]
    TimedOut(u64),
    /// The answer is none of S3.
    #[error("the answer is not understood: {0}")]
    Answer(String),
    /// The spool, or a file that was to be sent.
    #[error("{0}")]
    File(String),
    /// The object is longer than S3 allows.
    #[error(
        "the object has more than {parts} parts; a greater part-size (now {part_bytes} bytes) reaches further"
    )]
    TooLong {
        /// Most parts of an upload.
        parts: u16,
        /// Bytes of the first parts.
        part_bytes: u64,
    },
    /// The store, the memory or the spool is too slow for the stream.
    #[error("{0}")]
    TooSlow(String),
    /// The upload was given up on demand.
    #[error("the upload was given up")]
    GivenUp,
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            // RFC 9110, sections 15.5.9 and 15.6; RFC 6585, section 4; S3's own codes for the same.
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

    /// The store's code, such as `NoSuchUpload`.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused { code, .. } => Some(code.as_str()),
            _ => None,
        }
    }

    /// How long the store wants to be left alone, ms.
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
    let mut text = format!("the store answers {status}");
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

/// What to do about it.
fn advice(status: u16, code: &str) -> Option<&'static str> {
    Some(match (code, status) {
        ("NoSuchBucket", _) => "create the bucket, or correct bucket and region",
        ("InvalidBucketName", _) => "correct bucket",
        ("InvalidAccessKeyId" | "InvalidToken" | "ExpiredToken" | "SignatureDoesNotMatch", _) => {
            "correct access-key, secret-access-key and session-token, or those of the environment"
        }
        ("AccessDenied", _) | ("", 403) => {
            "these credentials may not do this; s3:PutObject and s3:AbortMultipartUpload are needed to write, s3:GetObject to read"
        }
        (
            "PermanentRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException",
            _,
        )
        | ("", 301) => "the bucket is in another region: correct region",
        ("RequestTimeTooSkewed", _) => "set this machine's clock",
        _ => return None,
    })
}

/// A server's text for a message: one line, not too long.
pub(crate) fn shown(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain
        .take(TEXT_CHARS_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// An error and what it comes from, in one line.
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
    fn a_refusal_says_what_to_do() {
        let text = refused(404, "NoSuchBucket").to_string();
        assert_eq!(
            text,
            "the store answers 404 NoSuchBucket: why (create the bucket, or correct bucket and region)"
        );
        assert!(refused(403, "").to_string().contains("s3:PutObject"));
    }

    /// The codes that S3 documents as those to be retried.
    #[test]
    fn what_may_succeed_later_is_transient() {
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
