//! Access control of HTTP requests. If a token is configured, clients need it. Without a token, the server accepts programs on
//! this machine, but refuses web pages of other sites in a browser on this machine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::page::is_page;
use super::problem::Problem;
use threadbare_process::places::Place;

/// What a request must contain to be accepted.
pub(super) enum Guard {
    /// `Authorization: Bearer` with this token.
    Token(Vec<u8>),
    /// A `Host` header that names this machine. The server listens at an address that only this machine can reach.
    Local,
}

/// The reason why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("{0}")]
    Read(#[from] std::io::Error),
    #[error(
        "the file is empty; expected a line of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable ASCII characters, without spaces"
    )]
    Empty,
    #[error(
        "the file has {0} bytes, or characters that are not printable ASCII; expected a line of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable ASCII characters, without spaces"
    )]
    Odd(usize),
}

impl Guard {
    /// Reads the token from a file. White space around it is removed.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or its token is invalid.
    pub(super) fn read(path: &Path) -> Result<Guard, TokenError> {
        let text = std::fs::read(path)?;
        let token = text.trim_ascii();
        let is_plain = token.iter().all(u8::is_ascii_graphic);
        match token.len() {
            0 => Err(TokenError::Empty),
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX if is_plain => Ok(Guard::Token(token.to_vec())),
            bytes => Err(TokenError::Odd(bytes)),
        }
    }

    /// Whether a path needs no token.
    fn is_open(&self, path: &str) -> bool {
        matches!(self, Guard::Token(_)) && (OPEN.contains(&path) || is_page(path))
    }

    /// Checks whether a request is allowed.
    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Guard::Token(_) if self.is_open(path) => Ok(()),
            Guard::Token(token) => check_token(token, headers),
            Guard::Local => check_local(headers),
        }
    }
}

/// Middleware that refuses requests without authorisation, and most requests when there are too many connections.
pub(super) async fn stand(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let place = request.extensions().get::<Arc<Place>>().cloned();
    let is_extra = place.as_ref().is_some_and(|place| place.is_extra());
    let allowed = guard.check(path, request.headers()).and_then(|()| {
        if is_extra && !SHORT.contains(&path) {
            Err(full())
        } else {
            Ok(())
        }
    });
    let mut response = match allowed {
        Ok(()) => {
            if let Some(place) = place.filter(|_| !is_extra && !guard.is_open(path)) {
                place.trust();
            }
            next.run(request).await
        }
        Err(problem) => {
            let mut response = problem.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            response
        }
    };
    if is_extra {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

/// Creates the error for too many connections. Some extra places are reserved for [`SHORT`] requests.
fn full() -> Problem {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections");
    problem.retry_after(1)
}

/// Checks the bearer token of a request (RFC 6750, section 2.1). The comparison takes constant time.
fn check_token(token: &[u8], headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|value| {
        let (scheme, rest) = value.split_at_checked(b"Bearer ".len())?;
        scheme
            .eq_ignore_ascii_case(b"Bearer ")
            .then(|| rest.trim_ascii())
    });
    match given {
        Some(given) if bool::from(given.ct_eq(token)) => Ok(()),
        given => {
            let what = match given {
                Some(_) => "the token is wrong",
                None => "the token is missing",
            };
            let problem = Problem::new(StatusCode::UNAUTHORIZED, what);
            Err(problem.about("Authorization", "Bearer, and the token in the token file"))
        }
    }
}

/// Refuses requests of web pages from other sites. Such a page can reach this machine by a name that resolves to it (DNS rebinding), or by
/// a form. In both cases, `Host` or `Origin` contains another name.
fn check_local(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(HOST).unwrap_or_default();
    let refuse = |field: &str, value: &str, allowed: String| {
        Err(Problem::value(field, value, allowed).with_status(StatusCode::FORBIDDEN))
    };
    if !is_local(host) {
        let allowed = "a name or address of this machine: localhost, 127.0.0.1, [::1]";
        return refuse("Host", host, allowed.to_owned());
    }
    match text(ORIGIN) {
        Some(origin) if origin != format!("http://{host}") => {
            refuse("Origin", origin, format!("none, or http://{host}"))
        }
        _ => Ok(()),
    }
}

/// Whether a host name or address in a URL always means this machine, whatever name servers say.
fn is_local(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<axum::http::uri::Authority>() else {
        return false;
    };
    let host = authority.host();
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let ip = plain.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Paths that monitors request. Some connections are reserved for them.
const SHORT: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Paths that need no token. They reveal nothing, and monitors have no token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// Minimum length of a token. A shorter one could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// Maximum length of a token. A longer text is probably another file.
const TOKEN_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_recognised() {
        for host in [
            "localhost",
            "LocalHost:80",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "192.0.2.1:8080",
            "127.0.0.1.evil.example",
            "a@b@c",
            "[::2]",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }

    fn headers(all: &[(axum::http::HeaderName, &'static str)]) -> HeaderMap {
        let all = all.iter().cloned();
        all.map(|(name, value)| (name, HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let with = |host, origin: Option<&'static str>| {
            let mut all = vec![(HOST, host)];
            all.extend(origin.map(|origin| (ORIGIN, origin)));
            Guard::Local.check("/v1/calls", &headers(&all)).is_ok()
        };
        assert!(with("127.0.0.1:8080", None));
        assert!(with("localhost:8080", Some("http://localhost:8080")));
        assert!(!with("localhost:8080", Some("http://localhost:3000")));
        assert!(!with("localhost:8080", Some("https://evil.example")));
        assert!(!with("localhost:8080", Some("null")));
        assert!(!with("rebound.evil.example:8080", None));
        assert!(Guard::Local.check("/healthz", &HeaderMap::new()).is_err());
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        let guard = Guard::Token(b"0123456789abcdef".to_vec());
        let with = |value| {
            guard
                .check("/v1/calls", &headers(&[(AUTHORIZATION, value)]))
                .is_ok()
        };
        assert!(with("Bearer 0123456789abcdef"));
        assert!(with("bearer 0123456789abcdef"));
        for value in [
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer ",
            "Bearer",
            "",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
        ] {
            assert!(!with(value), "{value}");
        }
        assert!(guard.check("/v1/calls", &HeaderMap::new()).is_err());
        assert!(guard.check("/readyz", &HeaderMap::new()).is_ok());
    }
}
