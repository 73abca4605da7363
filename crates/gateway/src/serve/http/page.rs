//! The description of the interface, and a page that lets people try it. Nothing of it comes from elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName};
use axum::response::IntoResponse;
use axum::routing::get;

use super::app::App;

/// The page itself tells nothing of the relay, so that a browser gets it without a token: people type it in there.
pub(super) const PAGE: [&str; 3] = ["/", "/page.js", "/page.css"];

/// The description, as JSON, and the page.
pub(super) fn routes(description: String) -> Router<App> {
    let description: Arc<str> = description.into();
    let show = move || async move { ([(CONTENT_TYPE, JSON)], description.to_string()) };
    let [page, script, style] = PAGE;
    Router::new()
        .route("/openapi.json", get(show))
        .route(page, get(file(HTML, include_str!("page/index.html"))))
        .route(script, get(file(SCRIPT, include_str!("page/page.js"))))
        .route(style, get(file(STYLE, include_str!("page/page.css"))))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse + Clone + Send + Sync {
    let headers: [(HeaderName, &str); 2] =
        [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, text)
}

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
/// Nothing is loaded but this page's own files, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
