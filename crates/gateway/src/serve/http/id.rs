//! Names of calls in paths and queries: any bytes, percent-encoded (RFC 3986, section 2.1).

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use threadbare_control::calls::CallId;

use super::problem::Problem;

/// Below this, each call is a resource.
pub(super) const CALLS: &str = "/v1/calls";

/// The same for the description.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "the description has its name")]
pub(super) struct CallPath {
    /// The Call-ID, in percent-encoding.
    id: String,
}

/// The call of a path.
pub(super) struct Id(pub(super) CallId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Id, Problem> {
        let path = parts.uri.path();
        let rest = path.strip_prefix(CALLS).unwrap_or_default();
        let name = rest.trim_start_matches('/').split('/').next();
        Ok(Id(decode(name.unwrap_or_default())))
    }
}

/// From a path or a query.
pub(super) fn decode(name: &str) -> CallId {
    let bytes: Vec<u8> = percent_decode_str(name).collect();
    CallId::new(&bytes)
}

/// For a path or a query.
pub(super) fn encode(id: &CallId) -> String {
    percent_encode(&id.0, RESERVED).to_string()
}

/// RFC 3986, section 2.3: what is unreserved stays.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_come_back() {
        for name in [
            &b"a84b4c76e66710@pc33.atlanta.com"[..],
            b"a/b?c#d%20 e",
            b"\xff\x00",
            "é".as_bytes(),
        ] {
            let id = CallId::new(name);
            let text = encode(&id);
            assert!(
                text.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)),
                "{text}"
            );
            assert_eq!(decode(&text), id);
        }
    }
}
