//! A fetch: a task on a client's thread that carries out the decisions of a [`Transfer`] and fills a [`Pipe`].

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gst::glib;
use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE};
use reqwest::{Method, Request, Response, Version};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::client::{ClientError, causes, runtime};
use super::core::{
    Answer, Ask, Hop, Hops, Pace, Problem, Span, Transfer, Verdict, check_size, is_secret, refusal,
};
use super::pipe::{Item, Opened, Pipe};
use super::settings::Plan;
use super::station;

/// Maximum time for reading the body of an error response, which is small.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(10);

/// A running fetch. Dropping it ends the fetch and closes its connection.
pub(super) struct Fetch {
    pub(super) pipe: Pipe,
    task: AbortHandle,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fetch {
    /// Starts to fetch a part of the resource at the plan's location.
    pub(super) fn begin(plan: Arc<Plan>, span: Span) -> Result<Fetch, ClientError> {
        let pipe = Pipe::new(plan.bytes_max);
        let task = runtime()?.spawn(run(plan, pipe.clone(), span));
        Ok(Fetch {
            pipe,
            task: task.abort_handle(),
        })
    }
}

async fn run(plan: Arc<Plan>, pipe: Pipe, span: Span) {
    let mut transfer = Transfer::new(plan.policy, span);
    let last = loop {
        if transfer.is_empty() {
            break Item::End;
        }
        let verdict = match attempt(&plan, &pipe, &mut transfer).await {
            Ok(verdict) => verdict,
            Err(problem) => {
                plan.count(&problem);
                transfer.handle_failure(problem, random())
            }
        };
        let delay_ns = match verdict {
            Verdict::Done => break Item::End,
            Verdict::Fail(problem) => {
                let shortfall = transfer.shortfall();
                break Item::Failed { problem, shortfall };
            }
            Verdict::Read => 0,
            Verdict::Again(delay_ns, problem) => {
                if let Some(problem) = problem {
                    plan.counts.retries.add(1);
                    // While the reader is paused, wait before sending it more events.
                    pipe.room().await;
                    let position = transfer.position();
                    pipe.push(Item::Retry {
                        problem,
                        position,
                        delay_ns,
                    });
                }
                delay_ns
            }
        };
        tokio::time::sleep(Duration::from_nanos(delay_ns)).await;
    };
    pipe.push(last);
}

/// Sends one request, and reads its response to the end.
async fn attempt(plan: &Plan, pipe: &Pipe, transfer: &mut Transfer) -> Result<Verdict, Problem> {
    let is_resumed = transfer.has_delivered();
    let ask = transfer.ask();
    let (mut response, opened, answer) = open(plan, &ask).await?;
    match transfer.handle_answer(answer) {
        Verdict::Read => {}
        verdict => return Ok(verdict),
    }
    let is_break = is_resumed && transfer.is_continuous();
    match (is_resumed, is_break) {
        (true, true) => plan.counts.reconnected.add(1),
        (true, false) => plan.counts.resumed.add(1),
        (false, _) => {}
    }
    pipe.push(Item::Opened(Box::new(Opened { is_break, ..opened })));
    let mut pace = Pace::new(plan.pace);
    loop {
        pipe.room().await;
        let began = Instant::now();
        let chunk = match pace.patience_ns() {
            Some(ns) => timeout(Duration::from_nanos(ns), response.chunk())
                .await
                .ok(),
            None => Some(response.chunk().await),
        };
        let waited_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let bytes = match chunk {
            None => {
                pace.handle(waited_ns, 0)?;
                continue;
            }
            Some(Ok(Some(bytes))) => bytes,
            Some(Ok(None)) => return Ok(transfer.handle_end(random())),
            Some(Err(error)) => return Err(Problem::Broken(causes(&error.without_url()))),
        };
        let wanted = transfer.handle_data(bytes.len());
        plan.counts.skipped.add(wanted.skip as u64);
        if wanted.bytes > 0 {
            pipe.push(Item::Data {
                bytes: bytes.slice(wanted.skip..wanted.skip + wanted.bytes),
                position: wanted.position,
            });
        }
        if wanted.is_last {
            return Ok(Verdict::Done);
        }
        pace.handle(waited_ns, bytes.len())?;
    }
}

/// Sends a request and follows redirections, until a response has a body.
async fn open(plan: &Plan, ask: &Ask) -> Result<(Response, Opened, Answer), Problem> {
    let mut hops = Hops::new(plan.location.clone());
    loop {
        let mut request = Request::new(Method::GET, hops.now().url().clone());
        *request.headers_mut() = headers(plan, ask, hops.keeps_secrets());
        add_cookies(plan, &mut request);
        // The headers for messages are copied before the signature is added.
        let sent = request.headers().clone();
        let store = plan.store.as_ref().filter(|_| hops.keeps_secrets());
        if let Some(store) = store {
            store.sign(&mut request).await?;
        }
        let answered = answered(plan, request, &sent);
        let response = match plan.timeout_s {
            0 => answered.await,
            seconds => timeout(Duration::from_secs(seconds.into()), answered)
                .await
                .map_err(|_| Problem::TimedOut(seconds))?,
        }?;
        check_size(response.headers())?;
        if let Some(cookies) = &plan.cookies {
            cookies.note(hops.now().url(), response.headers());
        }
        let status = response.status().as_u16();
        match hops.handle(status, response.headers())? {
            Hop::On => {
                plan.counts.redirects.add(1);
                continue;
            }
            Hop::Here => {}
        }
        if let Some(problem) = refusal(status, response.headers()) {
            return Err(match store {
                // In the response to a range beyond the object's end, the header already gives the object's length.
                Some(_) if status != 416 => explained(response).await,
                _ => problem,
            });
        }
        let is_framed = response.version() >= Version::HTTP_2;
        let answer = Answer::read(status, response.headers(), is_framed, plan.is_decoded)?;
        let opened = opened(&hops, &answer, status, &sent, response.headers());
        return Ok((response, opened, answer));
    }
}

/// Returns the response of a server, or of a station that does not speak HTTP. `sent` are the headers for the station.
async fn answered(plan: &Plan, request: Request, sent: &HeaderMap) -> Result<Response, Problem> {
    let url = request.url().clone();
    let may_be_station = plan.is_direct && plan.store.is_none() && url.scheme() == "http";
    if !(may_be_station && plan.is_old_station.load(Relaxed)) {
        plan.counts.requests.add(1);
        let error = match plan.client.execute(request).await {
            Ok(response) => return Ok(response),
            Err(error) => error.without_url(),
        };
        if !(may_be_station && station::is_no_http(&causes(&error))) {
            return Err(problem_of(error));
        }
        plan.is_old_station.store(true, Relaxed);
    }
    plan.counts.requests.add(1);
    station::ask(&url, sent).await
}

/// Reads the details of a store's error response from its body.
async fn explained(response: Response) -> Problem {
    let refusal = timeout(REFUSAL_TIME_MAX, threadbare_s3::refusal_of(response));
    match refusal.await {
        Ok(error) => Problem::Store(error),
        Err(_) => Problem::TimedOut(u32::try_from(REFUSAL_TIME_MAX.as_secs()).unwrap_or(u32::MAX)),
    }
}

/// Returns the headers of a request. Secrets are included only for the plan's own origin.
fn headers(plan: &Plan, ask: &Ask, keeps_secrets: bool) -> HeaderMap {
    let mut headers = plan.headers.clone();
    if !keeps_secrets {
        let secrets: Vec<HeaderName> = headers
            .keys()
            .filter(|name| is_secret(name))
            .cloned()
            .collect();
        for name in secrets {
            headers.remove(name);
        }
    }
    if let Some((user, password)) = plan.credentials.as_ref().filter(|_| keeps_secrets) {
        // RFC 7617, section 2.
        let token = glib::base64_encode(format!("{user}:{password}").as_bytes());
        if let Ok(mut value) = HeaderValue::from_str(&format!("Basic {token}")) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
    }
    for (name, value) in [(RANGE, &ask.range), (IF_RANGE, &ask.if_range)] {
        if let Some(value) = value
            .as_ref()
            .and_then(|value| HeaderValue::from_str(value).ok())
        {
            headers.insert(name, value);
        }
    }
    headers
}

/// Adds cookies from servers, after those of the property.
fn add_cookies(plan: &Plan, request: &mut Request) {
    let cookies = plan.cookies.as_ref();
    let Some(set) = cookies.and_then(|cookies| cookies.of(request.url())) else {
        return;
    };
    let own = request.headers().get(COOKIE);
    let all = own.map_or_else(
        || set.as_bytes().to_vec(),
        |own| [own.as_bytes(), b"; ", set.as_bytes()].concat(),
    );
    if let Ok(mut value) = HeaderValue::from_bytes(&all) {
        value.set_sensitive(true);
        request.headers_mut().insert(COOKIE, value);
    }
}

fn problem_of(error: reqwest::Error) -> Problem {
    let text = causes(&error);
    // The library reports a refused certificate only by text.
    if text.contains("invalid peer certificate") {
        return Problem::Certificate(text);
    }
    if error.is_connect() {
        Problem::Connect(text)
    } else {
        Problem::Broken(text)
    }
}

fn opened(
    hops: &Hops,
    answer: &Answer,
    status: u16,
    sent: &HeaderMap,
    received: &HeaderMap,
) -> Opened {
    let redirect = hops.redirected();
    let redirect = redirect.map(|(place, is_permanent)| (place.url().to_string(), is_permanent));
    let mut headers = gst::Structure::builder("http-headers")
        .field("uri", hops.first().url().as_str())
        .field("http-status-code", u32::from(status))
        .field("request-headers", structure_of("request-headers", sent))
        .field(
            "response-headers",
            structure_of("response-headers", received),
        );
    if let Some((place, _)) = &redirect {
        headers = headers.field("redirection-uri", place.as_str());
    }
    Opened {
        media: answer.media.clone(),
        size: answer.size,
        is_seekable: answer.is_seekable(),
        redirect,
        headers: headers.build(),
        tags: tags_of(received),
        is_break: false,
    }
}

/// Returns the headers in the form that existing applications read: a string for each header, or an array if several headers have
/// the same name.
fn structure_of(name: &str, headers: &HeaderMap) -> gst::Structure {
    let mut structure = gst::Structure::new_empty(name);
    for name in headers.keys() {
        let shown = |value: &HeaderValue| {
            if is_secret(name) {
                HIDDEN.to_owned()
            } else {
                text_of(value)
            }
        };
        let mut values: Vec<String> = headers.get_all(name).iter().map(shown).collect();
        match (values.len(), values.pop()) {
            (1, Some(value)) => structure.set(name.as_str(), value),
            (_, last) => structure.set(
                name.as_str(),
                gst::Array::new(values.into_iter().chain(last)),
            ),
        }
    }
    structure
}

/// Tags from the headers by which a station describes itself.
fn tags_of(headers: &HeaderMap) -> Option<gst::TagList> {
    let text = |name: &str| {
        let text = text_of(headers.get(name)?).trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let mut tags = gst::TagList::new();
    let list = tags.get_mut().expect("a new list");
    if let Some(name) = text("icy-name") {
        list.add::<gst::tags::Organization>(&name.as_str(), gst::TagMergeMode::Replace);
    }
    if let Some(genre) = text("icy-genre") {
        list.add::<gst::tags::Genre>(&genre.as_str(), gst::TagMergeMode::Replace);
    }
    if let Some(url) = text("icy-url") {
        list.add::<gst::tags::Location>(&url.as_str(), gst::TagMergeMode::Replace);
    }
    (tags.n_tags() > 0).then_some(tags)
}

/// Decodes UTF-8 or Latin-1, because stations send both.
fn text_of(value: &HeaderValue) -> String {
    let bytes = value.as_bytes();
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().copied().map(char::from).collect(),
    };
    // NUL is obsolete, but the HTTP parser accepts it (RFC 9110, section 5.5). GLib's strings cannot contain it.
    text.replace('\0', " ")
}

fn random() -> u64 {
    u64::from(glib::random_int()) << 32 | u64::from(glib::random_int())
}

/// Replacement for credentials.
const HIDDEN: &str = "***";
