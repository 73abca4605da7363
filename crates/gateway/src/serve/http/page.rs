//! The description of the interface.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use super::app::App;

/// The description, as JSON.
pub(super) fn routes(description: String) -> Router<App> {
    let description: std::sync::Arc<str> = description.into();
    let show = move || async move {
        (
            [(CONTENT_TYPE, "application/json")],
            description.to_string(),
        )
    };
    Router::new().route("/openapi.json", get(show))
}
