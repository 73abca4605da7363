//! Who may ask: who has the token, or, without one, programs of this machine that are no web page of somebody else's.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::page::is_page;
use super::problem::Problem;

/// What a request has to show.
pub(super) enum Guard {
    /// `Authorization: Bearer` with this.
    Token(Vec<u8>),
    /// A `Host` of this machine: the address is reached from here alone.
    Local,
}

/// Not a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("{0}")]
    Read(#[from] std::io::Error),
    #[error(
        "it is empty; expected a line of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable characters of ASCII, without spaces"
    )]
    Empty,
    #[error(
        "it holds {0} bytes, or others than printable characters of ASCII; expected a line of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} of those, without spaces"
    )]
    Odd(usize),
}

impl Guard {
    /// The token of a file, without the space around it.
    ///
    /// # Errors
    /// The file cannot be read, or has no token.
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

    /// Whether a request may be carried out.
    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Guard::Token(_) if OPEN.contains(&path) || is_page(path) => Ok(()),
            Guard::Token(token) => check_token(token, headers),
            Guard::Local => check_local(headers),
        }
    }
}

/// Stands before all routes.
pub(super) async fn stand(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    match guard.check(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let mut response = problem.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            response
        }
    }
}

/// RFC 6750, section 2.1. The time does not depend on how much of the token is right.
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
                Some(_) => "the token is another one",
                None => "the token is missing",
            };
            let problem = Problem::new(StatusCode::UNAUTHORIZED, what);
            Err(problem.about("Authorization", "Bearer, and what is in the token file"))
        }
    }
}

/// A page of another site reaches this machine by a name that leads here (DNS rebinding), or without asking (a form): its browser tells on it by
/// `Host` or by `Origin`.
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

/// Whether an authority is of this machine, whatever name servers say.
fn is_local(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<axum::http::uri::Authority>() else {
        return false;
    };
    let host = authority.host();
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let ip = plain.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Without a token: they tell nothing, and who watches a service has none.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// Less could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// More is no token: another file.
const TOKEN_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_told_from_others() {
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
    fn only_the_whole_token_is_right() {
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
