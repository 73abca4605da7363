//! HTTP client of a gateway: sends requests, and converts error replies.

use std::path::Path;
use std::time::Duration;

use miette::{Context, IntoDiagnostic, miette};
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

use super::feed::{Event, Feed};

/// A client of one gateway.
#[derive(Clone)]
pub(super) struct Client {
    agent: Agent,
    base: String,
    token: Option<String>,
}

impl Client {
    /// Creates a client. This sends no request.
    ///
    /// # Errors
    /// Fails if the URL is not an HTTP URL, or the token cannot be read.
    pub(super) fn new(base: &str, token_file: Option<&Path>) -> miette::Result<Client> {
        let host = base
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/'));
        let is_plain = |host: &&str| !host.is_empty() && !host.contains(['/', '?', '#', '@']);
        let Some(host) = host.filter(is_plain) else {
            return Err(miette!(
                help =
                    "the gateway serves HTTP without TLS; give a URL such as http://127.0.0.1:8080",
                "--http {base}: expected http://ADDRESS:PORT"
            ));
        };
        let token = token_file.map(|path| {
            let text = std::fs::read_to_string(path);
            let text = text.into_diagnostic();
            text.wrap_err_with(|| format!("--token-file {}", path.display()))
        });
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .build();
        Ok(Client {
            agent: agent.new_agent(),
            base: format!("http://{host}"),
            token: token.transpose()?.map(|text| text.trim().to_owned()),
        })
    }

    /// Sends a GET request, and returns the JSON reply.
    ///
    /// # Errors
    /// Fails if the relay does not answer, or refuses.
    pub(super) fn get(&self, path: &str) -> miette::Result<Value> {
        let request = self.agent.get(format!("{}{path}", self.base));
        self.read(self.with_token(request).call())
    }

    /// Returns the base URL.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Reads events until the connection ends.
    ///
    /// # Errors
    /// Fails as [`get`](Self::get) does.
    pub(super) fn events(
        &self,
        path: &str,
    ) -> miette::Result<impl Iterator<Item = std::io::Result<Event>>> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let request = self.with_token(request).config();
        // The reply never ends, so it gets no overall time limit. But data must come at least every 15 s.
        let request = request
            .timeout_global(None)
            .timeout_recv_response(Some(PATIENCE))
            .build();
        let answer = request.call();
        match answer {
            Ok(answer) if answer.status().is_success() => {
                Ok(Feed::new(answer.into_body().into_reader()))
            }
            other => Err(self.read(other).err().unwrap_or_else(|| self.unknown(200))),
        }
    }

    /// Sends a DELETE request, whose reply is empty.
    ///
    /// # Errors
    /// Fails as [`get`](Self::get) does.
    pub(super) fn delete(&self, path: &str) -> miette::Result<()> {
        let request = self.agent.delete(format!("{}{path}", self.base));
        self.read(self.with_token(request).call()).map(|_| ())
    }

    /// Sends a POST request with a JSON body, and returns the JSON reply, if there is one.
    ///
    /// # Errors
    /// Fails as [`get`](Self::get) does.
    pub(super) fn post(&self, path: &str, body: &Value) -> miette::Result<Value> {
        let request = self.agent.post(format!("{}{path}", self.base));
        let request = self.with_token(request).content_type("application/json");
        self.read(request.send(body.to_string()))
    }

    fn with_token<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn read(&self, answer: Result<Response<ureq::Body>, ureq::Error>) -> miette::Result<Value> {
        let base = &self.base;
        let mut answer = answer.map_err(|error| {
            miette!(
                help = "check that `threadbare serve --http` runs at this address",
                "{base} does not answer: {error}"
            )
        })?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string();
        let text = text
            .into_diagnostic()
            .wrap_err_with(|| format!("{base} gave an invalid answer"))?;
        let value: Option<Value> = if text.is_empty() {
            Some(Value::Null)
        } else {
            serde_json::from_str(&text).ok()
        };
        match (status.is_success(), value) {
            (true, Some(value)) => Ok(value),
            (false, Some(problem)) if problem["detail"].is_string() => Err(refusal(&problem)),
            _ => Err(self.unknown(status.as_u16())),
        }
    }

    fn unknown(&self, status: u16) -> miette::Report {
        let base = &self.base;
        miette!(
            help = "check that `threadbare serve --http` runs at this address",
            "{base} gave an invalid answer, with status {status}"
        )
    }
}

/// Converts an error reply (RFC 9457) to a report.
fn refusal(problem: &Value) -> miette::Report {
    let detail = problem["detail"].as_str().unwrap_or_default();
    let field = problem["field"].as_str();
    match (field, problem["allowed"].as_str()) {
        (Some("Authorization"), _) => miette!(
            help = "pass the relay's --http-token-file with --token-file",
            "{detail}"
        ),
        (Some(field), Some(allowed)) => miette!("{detail}; allowed for {field}: {allowed}"),
        _ => miette!("{detail}"),
    }
}

/// Time-out for a reply. The gateway always replies sooner.
const PATIENCE: Duration = Duration::from_secs(15);
