//! The web pages: the wall of streams, and the API page. They load nothing from other servers.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName};
use axum::response::IntoResponse;
use axum::routing::get;

use super::app::App;

/// A file of the pages: its path, content type and contents.
type File = (&'static str, &'static str, &'static str);

macro_rules! file {
    ($path:literal, $kind:expr, $name:literal) => {
        ($path, $kind, include_str!(concat!("page/", $name)))
    };
}

/// Files of the pages. They contain no data of the relay, so browsers get them without a token. People enter the token in the
/// page.
const FILES: [File; 15] = [
    file!("/", HTML, "index.html"),
    file!("/wall.css", STYLE, "wall.css"),
    file!("/wall.js", SCRIPT, "wall.js"),
    file!("/feed.js", SCRIPT, "feed.js"),
    file!("/tiles.js", SCRIPT, "tiles.js"),
    file!("/charts.js", SCRIPT, "charts.js"),
    file!("/calls.js", SCRIPT, "calls.js"),
    file!("/call.js", SCRIPT, "call.js"),
    file!("/words.js", SCRIPT, "words.js"),
    file!("/stream.js", SCRIPT, "stream.js"),
    file!("/listen.js", SCRIPT, "listen.js"),
    file!("/machine.js", SCRIPT, "machine.js"),
    file!("/api", HTML, "api.html"),
    file!("/api.css", STYLE, "api.css"),
    file!("/api.js", SCRIPT, "api.js"),
];

/// Whether a path is a file of the pages.
pub(super) fn is_page(path: &str) -> bool {
    FILES.iter().any(|(own, ..)| *own == path)
}

/// Creates the routes of the OpenAPI description and of the pages.
pub(super) fn routes(description: String) -> Router<App> {
    let description: Arc<str> = description.into();
    let show = move || async move { ([(CONTENT_TYPE, JSON)], description.to_string()) };
    let described = Router::new().route("/openapi.json", get(show));
    FILES
        .iter()
        .fold(described, |router, (path, kind, contents)| {
            router.route(path, get(file(kind, contents)))
        })
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
/// Content-Security-Policy. The pages load only their own files, and cannot be shown in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
