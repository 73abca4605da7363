//! ng requests that the HTTP API makes. HTTP requests are carried out as ng requests, so that there is only one way to change a call.

use axum::http::StatusCode;
use threadbare_control::calls::CallId;
use threadbare_control::ng::{Command, Dictionary, Refusal, Reply, Request, Value};
use tokio::sync::oneshot;

use super::app::{App, within};
use super::calls::unknown;
use super::problem::Problem;
use crate::orders::NotDone;
use crate::service::Service;

/// Returns the keys that all requests about a call have.
pub(super) fn keys(command: Command, id: &CallId) -> Dictionary {
    let mut keys = Dictionary::new();
    keys.push("command", command.name());
    keys.push("call-id", id.0.to_vec());
    // With this, the reply distinguishes "too many calls" from other errors.
    keys.push("supports", Value::List(vec!["load limit".into()]));
    keys
}

/// Makes a request from its keys.
pub(super) fn request(keys: Dictionary) -> Result<Request, Problem> {
    Request::new(keys).map_err(|refusal: Refusal| refused(&refusal.to_string()))
}

/// Carries out a request about a call.
pub(super) async fn carry_out(app: &App, id: &CallId, keys: Dictionary) -> Result<(), Problem> {
    let request = request(keys)?;
    let (tell, told) = oneshot::channel();
    let name = id.clone();
    let is_known = app.ask(move |service: &mut Service| {
        let is_known = service.calls.view(&name).is_some();
        if is_known {
            service.handle_program(&request, tell);
        }
        is_known
    });
    if !is_known.await? {
        return Err(unknown(id));
    }
    let reply = within(told).await?.map_err(|_| NotDone::Gone)?;
    done(reply).map(|_| ())
}

/// Returns the keys of a successful reply, and converts an error reply.
pub(super) fn done(reply: Reply) -> Result<Dictionary, Problem> {
    match reply {
        Reply::Ok(keys) => Ok(keys),
        Reply::Pong => Ok(Dictionary::new()),
        Reply::Error(reason) => Err(refused(&reason)),
        Reply::LoadLimit(reason) => {
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason);
            Err(problem.retry_after(BUSY_S))
        }
    }
}

/// Converts an error text of the protocol, which has the form `KEY...: VALUE...: expected WHAT`.
fn refused(reason: &str) -> Problem {
    let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, reason);
    let (_, allowed) = reason.split_once(": expected ").unzip();
    let key = reason.split([':', ' ']).next().unwrap_or_default();
    let member = MEMBERS.iter().find(|(theirs, _)| *theirs == key);
    if let (Some(allowed), Some((_, member))) = (allowed, member) {
        problem = problem.about(member, allowed);
    }
    problem
}

/// Keys of the protocol, with their names in the HTTP API.
const MEMBERS: &[(&str, &str)] = &[
    ("from-tag", "tag"),
    ("file", "file"),
    ("repeat-times", "times"),
    ("repeat-duration", "duration_ms"),
    ("start-pos", "start_frame"),
    ("recording-file", "file"),
    ("codec", "codec"),
    ("direction", "interface"),
    ("interface", "interface"),
];
/// Retry-After, in s, if the relay is full. The load falls when calls end.
const BUSY_S: u32 = 5;
