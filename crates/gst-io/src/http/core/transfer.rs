//! One pass over a resource: requests, the wanted bytes of the responses, and retries after a break.
//!
//! ```text
//!   ask --answer--> reading --data--> reading        Verdict::Done: all wanted bytes have come
//!    ^                 |                             Verdict::Fail: they will not come
//!    +---- again ------+ end, failure
//! ```
//!
//! The caller sends the request of [`Transfer::ask`]. It reports each response, data, the end of data, and failures. Each report
//! returns the next step. After [`Verdict::Again`] the caller waits and sends the next request.

use super::problem::{Problem, Shortfall};
use super::response::Answer;
use threadbare_base::NS_PER_S;

/// Limits after which a transfer is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Policy {
    /// Maximum number of retries without any new byte; `None`: no limit.
    pub(in crate::http) retries: Option<u32>,
    /// Maximum pause before the first retry. It doubles with each further one.
    pub(in crate::http) delay_ns: u64,
    pub(in crate::http) delay_ns_max: u64,
    /// Whether the stream is live. Then data after a break is another part of the stream.
    pub(in crate::http) is_live: bool,
}

/// Wanted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::http) struct Span {
    pub(in crate::http) first: u64,
    /// Position after the last byte; `None`: the end of the resource.
    pub(in crate::http) end: Option<u64>,
}

/// Contents of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::http) struct Ask {
    /// Value of the header `Range`.
    pub(in crate::http) range: Option<String>,
    /// Value of `If-Range`. With it, a resource that has changed is sent completely.
    pub(in crate::http) if_range: Option<String>,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) enum Verdict {
    /// Read the next data.
    Read,
    /// Send the request again after this time. The problem is the reason, if there is one.
    Again(u64, Option<Problem>),
    Done,
    Fail(Problem),
}

/// The wanted part of some data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Wanted {
    /// Number of bytes to skip before the wanted ones.
    pub(in crate::http) skip: usize,
    pub(in crate::http) bytes: usize,
    /// Position of the first wanted byte.
    pub(in crate::http) position: u64,
    /// Whether no later bytes are wanted.
    pub(in crate::http) is_last: bool,
}

/// State of a pass.
#[derive(Debug, Clone)]
pub(in crate::http) struct Transfer {
    policy: Policy,
    span: Span,
    position: u64,
    /// Number of bytes of the response before the position, which must be skipped.
    skip: u64,
    /// The last answer.
    known: Option<Answer>,
    failures: u32,
    /// Whether bytes have arrived since the last request.
    has_progress: bool,
    /// Whether a live stream has ended regularly, instead of breaking.
    has_ended: bool,
}

/// Maximum wait, in seconds, that a server can request.
const RETRY_AFTER_S_MAX: u64 = 300;

impl Transfer {
    pub(in crate::http) fn new(policy: Policy, span: Span) -> Self {
        Transfer {
            policy,
            span,
            position: span.first,
            skip: 0,
            known: None,
            failures: 0,
            has_progress: false,
            has_ended: false,
        }
    }

    /// Whether no bytes are wanted.
    pub(in crate::http) fn is_empty(&self) -> bool {
        self.span.end.is_some_and(|end| end <= self.position)
    }

    /// Returns the position of the next byte.
    pub(in crate::http) fn position(&self) -> u64 {
        self.position
    }

    /// Whether wanted bytes have arrived.
    pub(in crate::http) fn has_delivered(&self) -> bool {
        self.position > self.span.first
    }

    /// Whether a break is followed by a later part of the stream instead of the next byte.
    pub(in crate::http) fn is_continuous(&self) -> bool {
        let lives =
            |known: &Answer| known.size.is_none() && (self.policy.is_live || known.is_radio);
        self.known.as_ref().is_some_and(lives)
    }

    /// Returns the announced length of the resource, or else the announced end of the body.
    fn announced_end(&self) -> Option<u64> {
        let known = self.known.as_ref()?;
        known.size.or(known.body_end)
    }

    /// Announced bytes that have not arrived.
    pub(in crate::http) fn shortfall(&self) -> Option<Shortfall> {
        let position = self.position;
        let end = self.announced_end().filter(|end| position < *end)?;
        Some(Shortfall { position, end })
    }

    /// Returns the next request.
    pub(in crate::http) fn ask(&mut self) -> Ask {
        self.has_progress = false;
        let refuses = |known: &Answer| known.gives_parts == Some(false);
        let is_whole = self.position == 0 && self.span.end.is_none();
        if is_whole || self.is_continuous() || self.known.as_ref().is_some_and(refuses) {
            return Ask::default();
        }
        let (first, last) = (
            self.position,
            self.span.end.map(|end| end.saturating_sub(1)),
        );
        let last = last.map(|last| last.to_string()).unwrap_or_default();
        // A date is not sent: it is a weak validator unless the server's clock proves otherwise (RFC 9110, section 8.8.2.2).
        let if_range = self
            .known
            .as_ref()
            .and_then(|known| known.identity.etag.clone());
        Ask {
            range: Some(format!("bytes={first}-{last}")),
            if_range: if_range.filter(|_| self.has_delivered()),
        }
    }

    /// Handles a successful response.
    pub(in crate::http) fn handle_answer(&mut self, mut answer: Answer) -> Verdict {
        let at = self.position;
        let has_delivered = self.has_delivered();
        let is_same = |known: &Answer| known.identity.is_same(&answer.identity);
        let is_known = self.known.as_ref().is_some_and(is_same);
        self.skip = match answer.is_part {
            _ if self.is_continuous() => 0,
            true if answer.first > at => return Verdict::Fail(Problem::Range { asked: at }),
            // The request had If-Range, so a part has the same bytes, even if the server does not give its total length.
            true if has_delivered && !is_known && !self.is_vouched(&answer) => {
                return Verdict::Fail(Problem::Changed(at));
            }
            true => at - answer.first,
            false if has_delivered && !is_known => return Verdict::Fail(Problem::Changed(at)),
            // The server ignores ranges, so skip everything before the position.
            false => at,
        };
        self.keep_announced(&mut answer);
        self.known = Some(answer);
        Verdict::Read
    }

    /// Keeps an announced length if a later response omits it. Otherwise, a body that ends too early would count as complete.
    fn keep_announced(&self, answer: &mut Answer) {
        let Some(known) = &self.known else {
            return;
        };
        if self.is_continuous() {
            // Positions count the bytes of all connections, but this length counts those of one.
            answer.is_radio |= known.is_radio;
            (answer.size, answer.body_end) = (None, None);
            return;
        }
        // Before the first byte has arrived, a body that marks its own end may be another, shorter resource.
        let is_other = answer.has_end || known.identity.has_other_tag(&answer.identity);
        if self.has_delivered() || !is_other {
            answer.size = answer.size.or(known.size);
            answer.identity.size = answer.size;
            answer.body_end = answer.body_end.max(known.body_end);
        }
    }

    fn is_vouched(&self, answer: &Answer) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| {
            known.identity.etag.is_some()
                && answer.identity.etag.is_none()
                && (known.size.is_none() || answer.size.is_none() || known.size == answer.size)
        })
    }

    /// Handles this many received bytes.
    pub(in crate::http) fn handle_data(&mut self, bytes: usize) -> Wanted {
        let skip = usize::try_from(self.skip).map_or(bytes, |skip| skip.min(bytes));
        self.skip -= skip as u64;
        let room = self
            .span
            .end
            .map_or(u64::MAX, |end| end.saturating_sub(self.position));
        let wanted = usize::try_from(room).map_or(bytes - skip, |room| room.min(bytes - skip));
        let position = self.position;
        self.position = position.saturating_add(wanted as u64);
        if wanted > 0 {
            self.failures = 0;
            self.has_progress = true;
            self.has_ended = false;
        }
        Wanted {
            skip,
            bytes: wanted,
            position,
            is_last: self.is_empty(),
        }
    }

    /// Handles a regular end of the body. `random` is an evenly distributed number.
    pub(in crate::http) fn handle_end(&mut self, random: u64) -> Verdict {
        let Some(known) = &self.known else {
            return Verdict::Done;
        };
        let end = match (known.size, self.span.end) {
            (Some(size), Some(end)) => Some(size.min(end)),
            (None, Some(end)) if known.is_part => Some(end),
            (None, Some(end)) => known.body_end.map(|body_end| body_end.min(end)),
            (size, None) => size.or(known.body_end),
        };
        if end.is_some_and(|end| self.position < end) {
            // A server may send less than was requested (RFC 9110, section 15.3.7).
            if known.is_part && self.has_progress {
                return Verdict::Again(0, None);
            }
            let reason = if known.is_part {
                "the server sent an empty part"
            } else {
                "the body is shorter than its announced length"
            };
            return self.handle_failure(Problem::Broken(reason.to_owned()), random);
        }
        if !known.has_end && self.is_continuous() {
            self.has_ended = true;
            return self.handle_failure(
                Problem::Broken("the server ended the stream".to_owned()),
                random,
            );
        }
        Verdict::Done
    }

    /// Handles a failure of a request or a response. `random` is an evenly distributed number.
    pub(in crate::http) fn handle_failure(&mut self, problem: Problem, random: u64) -> Verdict {
        let problem = match problem {
            // The problem lacks the request, because the code that read the head does not know it.
            Problem::Range { .. } => Problem::Range {
                asked: self.position,
            },
            other => other,
        };
        let mut pause_ns = 0;
        if let Problem::Status {
            status,
            size,
            retry_after_s,
            ..
        } = &problem
        {
            if *status == 416 && self.is_at_end(*size) {
                return Verdict::Done;
            }
            pause_ns = retry_after_s.unwrap_or(0).min(RETRY_AFTER_S_MAX) * NS_PER_S;
        }
        if let Problem::Store(error) = &problem {
            let pause_ms = error.retry_after_ms().unwrap_or(0);
            pause_ns = pause_ms.min(RETRY_AFTER_S_MAX * 1000) * (NS_PER_S / 1000);
        }
        // If a server has never been reached, report it at once, because the address may be wrong.
        let is_first = self.known.is_none() && matches!(problem, Problem::Connect(_));
        let may_retry = match self.policy.retries {
            None => true,
            Some(retries) => !is_first && self.failures < retries,
        };
        if !problem.is_transient() || !may_retry {
            // If a live stream has ended regularly, the server may have no more data.
            return if self.has_ended {
                Verdict::Done
            } else {
                Verdict::Fail(problem)
            };
        }
        self.failures = self.failures.saturating_add(1);
        let delay_ns = delay_ns(&self.policy, self.failures, random).max(pause_ns);
        Verdict::Again(delay_ns, Some(problem))
    }

    /// Whether a refused range (416) starts after the end of the resource. `size` is the length in the response, if it has one.
    /// It does not replace a longer length that was announced.
    fn is_at_end(&self, size: Option<u64>) -> bool {
        let has_shrunk = self.has_delivered() && size.is_some_and(|size| size < self.position);
        let end = self.announced_end().max(size);
        !has_shrunk && end.is_some_and(|end| end <= self.position)
    }
}

/// Returns the delay before this retry. It is random, between half of the maximum and all of it, so that sources that failed
/// together do not retry together.
fn delay_ns(policy: &Policy, failures: u32, random: u64) -> u64 {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
    let longest = policy.delay_ns.saturating_mul(1 << doublings);
    let longest = longest.min(policy.delay_ns_max.max(policy.delay_ns));
    let spread = longest / 2;
    longest - ((u128::from(random) * u128::from(spread)) >> u64::BITS) as u64
}

/// Maximum number of doublings. No pause becomes that long.
const DOUBLINGS_MAX: u32 = 40;
