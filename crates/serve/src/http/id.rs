//! Call-IDs in paths and queries. They may contain any bytes, so they are percent-encoded (RFC 3986, section 2.1).

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use threadbare_control::calls::CallId;

use super::problem::Problem;
use crate::call_name::decode;

/// Path of the list of calls. Each call is a resource below it.
pub(super) const CALLS: &str = "/v1/calls";

/// The path parameter `id` in the OpenAPI description.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "the description has its name")]
pub(super) struct CallPath {
    /// The Call-ID, in percent-encoding.
    id: String,
}

/// Extracts the Call-ID from a request's path.
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
