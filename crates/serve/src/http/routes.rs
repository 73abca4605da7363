//! All routes, and their OpenAPI description.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware;
use axum::response::Response;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::{App, BODY_BYTES_MAX};
use super::guard::Guard;
use super::problem::Problem;
use super::{
    actions, alarms, calls, cluster, contexts, drain, events, guard, health, listen, make, metrics,
    ng, page, pass, recordings, reload, stream_play, streams, wall, way,
};

/// The head of the OpenAPI description.
#[derive(OpenApi)]
#[openapi(
    info(title = "Threadbare", description = "Streams and live calls of a media gateway. Errors are `application/problem+json` (RFC 9457)."),
    modifiers(&Token),
    security((), ("token" = [])),
    tags((name = "streams"), (name = "calls"), (name = "actions"), (name = "recordings"), (name = "relay"), (name = "cluster"), (name = "health"), (name = "ng")))]
struct Description;

/// Adds the security scheme to the OpenAPI description of a relay with a token.
struct Token;

impl Modify for Token {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = description.components.get_or_insert_default();
        components.add_security_scheme("token", scheme);
    }
}

/// Creates all routes.
pub(super) fn router(app: App, guard: Guard) -> Router {
    let (routes, description) = described().split_for_parts();
    let description = description.to_json().unwrap_or_default();
    let guard = middleware::from_fn_with_state(Arc::new(guard), guard::stand);
    let pass = middleware::from_fn_with_state(app.clone(), pass::pass);
    routes
        .layer(pass)
        .merge(page::routes(description))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(guard)
        .layer(middleware::map_response(with_headers))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// Creates the routes of the API, without access control and without the HTML pages.
pub(super) fn open_router(app: App) -> Router {
    let (routes, _) = described().split_for_parts();
    routes
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// Creates the routes for programs.
fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(calls::list, make::make))
        .routes(routes!(calls::show, calls::end, make::change))
        .routes(routes!(calls::history))
        .routes(routes!(calls::log))
        .routes(routes!(listen::call::listen))
        .routes(routes!(actions::hold))
        .routes(routes!(actions::resume))
        .routes(routes!(actions::silence))
        .routes(routes!(actions::unsilence))
        .routes(routes!(actions::play))
        .routes(routes!(actions::stop_play))
        .routes(routes!(actions::record))
        .routes(routes!(actions::pause_record))
        .routes(routes!(actions::stop_record))
        .routes(routes!(actions::dtmf))
        .routes(routes!(contexts::list))
        .routes(routes!(cluster::show))
        .routes(routes!(cluster::drain, cluster::undrain))
        .routes(routes!(cluster::move_to))
        .routes(routes!(drain::begin, drain::end))
        .routes(routes!(events::listen))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::show))
        .routes(routes!(ng::ask, ng::socket))
        .routes(routes!(recordings::list))
        .routes(routes!(recordings::read, recordings::delete))
        .routes(routes!(reload::reload))
        .routes(routes!(alarms::list))
        .routes(routes!(alarms::acknowledge))
        .routes(routes!(alarms::acknowledge_of_call))
        .routes(routes!(stream_play::play))
        .routes(routes!(stream_play::stop_play))
        .routes(routes!(streams::reset_loudness))
        .routes(routes!(streams::list))
        .routes(routes!(way::show, recordings::change_stream))
        .routes(routes!(way::log))
        .routes(routes!(listen::stream::listen))
        .routes(routes!(streams::history))
        .routes(routes!(wall::listen))
}

async fn no_path(uri: Uri) -> Problem {
    let problem = Problem::value("path", uri.path(), "those of /openapi.json");
    problem.with_status(StatusCode::NOT_FOUND)
}

async fn no_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} {}", uri.path());
    let problem = Problem::value("method", &detail, "those of /openapi.json");
    problem.with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Adds headers that prevent caching and content sniffing.
async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
