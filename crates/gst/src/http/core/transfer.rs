//! One pass over a resource: what to ask for, which bytes of the answers are wanted, what follows a break.
//!
//! ```text
//!   ask --answer--> reading --data--> reading        Verdict::Done: all wanted bytes have come
//!    ^                 |                             Verdict::Fail: they will not
//!    +---- again ------+ end, failure
//! ```
//!
//! The caller sends what [`Transfer::ask`] says, and tells of each answer, of data, of its end, and of failures; each of these
//! gives what is next. After [`Verdict::Again`] it waits, and asks anew.

use super::problem::Problem;
use super::response::Answer;

/// When to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Policy {
    /// Retries without a byte of progress; `None`: no end of them.
    pub(in crate::http) retries: Option<u32>,
    /// The longest pause before the first retry; doubled with each further one.
    pub(in crate::http) delay_ns: u64,
    pub(in crate::http) delay_ns_max: u64,
    /// The stream is live: what comes after a break is another part of it.
    pub(in crate::http) is_live: bool,
}

/// Wanted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::http) struct Span {
    pub(in crate::http) first: u64,
    /// Behind the last one; `None`: the end of the resource.
    pub(in crate::http) end: Option<u64>,
}

/// What to put into a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::http) struct Ask {
    /// Of the header `Range`.
    pub(in crate::http) range: Option<String>,
    /// Of `If-Range`: a changed resource is sent as a whole.
    pub(in crate::http) if_range: Option<String>,
}

/// What is next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) enum Verdict {
    /// Read on.
    Read,
    /// Ask again after this time. With a problem: because of that.
    Again(u64, Option<Problem>),
    Done,
    Fail(Problem),
}

/// The part of some data that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Wanted {
    /// Bytes before it.
    pub(in crate::http) skip: usize,
    pub(in crate::http) bytes: usize,
    /// The position of its first byte.
    pub(in crate::http) position: u64,
    /// Nothing after it is wanted.
    pub(in crate::http) is_last: bool,
}

/// The state of a pass.
#[derive(Debug, Clone)]
pub(in crate::http) struct Transfer {
    policy: Policy,
    span: Span,
    position: u64,
    /// Bytes to come before the position.
    skip: u64,
    /// The last answer.
    known: Option<Answer>,
    failures: u32,
    /// Bytes came since the last request.
    has_progress: bool,
    /// A live stream has ended, not broken.
    has_ended: bool,
}

/// The longest a server is left alone because it says so.
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

    /// Nothing is wanted.
    pub(in crate::http) fn is_empty(&self) -> bool {
        self.span.end.is_some_and(|end| end <= self.position)
    }

    /// The next byte to come.
    pub(in crate::http) fn position(&self) -> u64 {
        self.position
    }

    /// Whether wanted bytes have come.
    pub(in crate::http) fn has_delivered(&self) -> bool {
        self.position > self.span.first
    }

    /// Whether a break is followed by another part of the stream, not by the next byte.
    pub(in crate::http) fn is_continuous(&self) -> bool {
        let lives =
            |known: &Answer| known.size.is_none() && (self.policy.is_live || known.is_radio);
        self.known.as_ref().is_some_and(lives)
    }

    /// The next request.
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
        // A date is not sent: it is a weak validator unless the server's clock tells otherwise (RFC 9110, section 8.8.2.2).
        let if_range = self
            .known
            .as_ref()
            .and_then(|known| known.identity.etag.clone());
        Ask {
            range: Some(format!("bytes={first}-{last}")),
            if_range: if_range.filter(|_| self.has_delivered()),
        }
    }

    /// A success arrives.
    pub(in crate::http) fn handle_answer(&mut self, answer: Answer) -> Verdict {
        let at = self.position;
        let has_delivered = self.has_delivered();
        let is_same = |known: &Answer| known.identity.is_same(&answer.identity);
        let is_known = self.known.as_ref().is_some_and(is_same);
        self.skip = match answer.is_part {
            _ if self.is_continuous() => 0,
            true if answer.first > at => return Verdict::Fail(Problem::Range { asked: at }),
            // Asked for with If-Range, a part is of the same bytes, even if it does not say of how many.
            true if has_delivered && !is_known && !self.is_vouched(&answer) => {
                return Verdict::Fail(Problem::Changed(at));
            }
            true => at - answer.first,
            false if has_delivered && !is_known => return Verdict::Fail(Problem::Changed(at)),
            // The server ignores ranges: from the beginning, up to the position.
            false => at,
        };
        self.known = Some(answer);
        Verdict::Read
    }

    fn is_vouched(&self, answer: &Answer) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| {
            known.identity.etag.is_some()
                && answer.identity.etag.is_none()
                && (known.size.is_none() || answer.size.is_none() || known.size == answer.size)
        })
    }

    /// So many bytes arrive.
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

    /// The body ends as it should. `random`: any number, evenly distributed.
    pub(in crate::http) fn handle_end(&mut self, random: u64) -> Verdict {
        let Some(known) = &self.known else {
            return Verdict::Done;
        };
        let end = match (known.size, self.span.end) {
            (Some(size), Some(end)) => Some(size.min(end)),
            (size, end) => size.or(end.filter(|_| known.is_part)),
        };
        // A server may give less than was asked for (RFC 9110, section 15.3.7).
        if known.is_part && end.is_some_and(|end| self.position < end) {
            return match self.has_progress {
                true => Verdict::Again(0, None),
                false => self.handle_failure(Problem::Broken("an empty part".to_owned()), random),
            };
        }
        if !known.has_end && self.is_continuous() {
            self.has_ended = true;
            return self.handle_failure(Problem::Broken("the stream ended".to_owned()), random);
        }
        Verdict::Done
    }

    /// A request or a response fails. `random`: any number, evenly distributed.
    pub(in crate::http) fn handle_failure(&mut self, problem: Problem, random: u64) -> Verdict {
        let mut pause_ns = 0;
        if let Problem::Status {
            status,
            size,
            retry_after_s,
            ..
        } = &problem
        {
            let known = self.known.as_ref().and_then(|known| known.size);
            if *status == 416 && size.or(known).is_some_and(|size| size <= self.position) {
                return Verdict::Done;
            }
            pause_ns = retry_after_s.unwrap_or(0).min(RETRY_AFTER_S_MAX) * NS_PER_S;
        }
        if let Problem::Store(error) = &problem {
            let pause_ms = error.retry_after_ms().unwrap_or(0);
            pause_ns = pause_ms.min(RETRY_AFTER_S_MAX * 1000) * (NS_PER_S / 1000);
        }
        // Who has never been reached is told at once: an address may be wrong.
        let is_first = self.known.is_none() && matches!(problem, Problem::Connect(_));
        let may_retry = match self.policy.retries {
            None => true,
            Some(retries) => !is_first && self.failures < retries,
        };
        if !problem.is_transient() || !may_retry {
            // The server of a live stream that has ended may have nothing any more.
            return match self.has_ended {
                true => Verdict::Done,
                false => Verdict::Fail(problem),
            };
        }
        self.failures = self.failures.saturating_add(1);
        let delay_ns = delay_ns(&self.policy, self.failures, random).max(pause_ns);
        Verdict::Again(delay_ns, Some(problem))
    }
}

/// The pause before this retry: half of the longest one at least, so that those who failed together do not ask together.
fn delay_ns(policy: &Policy, failures: u32, random: u64) -> u64 {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
    let longest = policy.delay_ns.saturating_mul(1 << doublings);
    let longest = longest.min(policy.delay_ns_max.max(policy.delay_ns));
    let spread = longest / 2;
    longest - ((u128::from(random) * u128::from(spread)) >> u64::BITS) as u64
}

/// No pause is that long.
const DOUBLINGS_MAX: u32 = 40;
const NS_PER_S: u64 = 1_000_000_000;
