//! Errors as `application/problem+json` (RFC 9457).

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::orders::NotDone;

/// An error reply (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Always `about:blank`: the error has no type beyond its status.
    r#type: &'static str,
    /// The name of the status.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// The mistake in this request.
    detail: String,
    /// The parameter, header or member with the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The allowed values.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<String>,
    /// Time after which to retry.
    #[serde(skip)]
    retry_after_s: Option<u32>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            allowed: None,
            retry_after_s: None,
        }
    }

    /// Creates the error for an invalid value.
    pub(super) fn value(field: &str, value: &str, allowed: impl Into<String>) -> Problem {
        let shown: String = value.chars().take(SHOWN_CHARS).collect();
        let detail = format!("{field}: {shown:?} is not allowed");
        Problem::new(StatusCode::BAD_REQUEST, detail).about(field, allowed)
    }

    /// Replaces the status.
    pub(super) fn with_status(self, status: StatusCode) -> Problem {
        Problem {
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            ..self
        }
    }

    /// Adds the name of the field and its allowed values.
    pub(super) fn about(mut self, field: &str, allowed: impl Into<String>) -> Problem {
        self.field = Some(field.to_owned());
        self.allowed = Some(allowed.into());
        self
    }

    /// Adds a Retry-After time.
    pub(super) fn retry_after(mut self, seconds: u32) -> Problem {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl From<NotDone> for Problem {
    fn from(error: NotDone) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).retry_after(1)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let retry = self.retry_after_s.map(HeaderValue::from);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response =
            (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        if let Some(retry) = retry {
            response.headers_mut().insert(RETRY_AFTER, retry);
        }
        response
    }
}

/// Maximum number of characters of an invalid value that an error quotes.
const SHOWN_CHARS: usize = 80;
