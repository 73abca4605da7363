//! The requests `delete`, `query` and `list`.

use super::dialog::Dialog;
use super::failure::Failure;
use super::live::Live;
use super::names::{bounded, optional};
use super::query::Pending;
use super::{CallId, Calls, EndReason, Outcome};
use crate::ng::{Dictionary, Refusal, Reply, Request, Value};
use crate::text::shown;

/// Allowed delays in a request, s: up to a day.
const DELETE_DELAY_S: std::ops::RangeInclusive<i64> = 0..=86_400;

/// "This list is limited to 32 elements by default."
const LIST_DEFAULT: i64 = 32;
/// Maximum number of listed calls, because a longer reply does not fit a datagram.
const LIST_MAX: i64 = 4096;

/// How long a branch may ring. "The timer MUST be larger than 3 minutes" (RFC 3261, section 16.6, timer C).
const RINGING_NS: u64 = 180_000_000_000;

/// The names by which a request selects dialogs of a call. Each name is optional.
#[derive(Debug, Clone, Copy)]
struct Chosen<'a> {
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
    branch: Option<&'a [u8]>,
}

impl<'a> Chosen<'a> {
    fn of(request: &'a Request) -> Result<Chosen<'a>, Refusal> {
        Ok(Chosen {
            from: optional(request, "from-tag")?,
            to: optional(request, "to-tag")?,
            branch: optional(request, "via-branch")?,
        })
    }

    /// Returns the indices of the dialogs that have these names.
    fn find<P>(&self, call: &Live<P>) -> Vec<usize> {
        let places = |is_meant: &dyn Fn(&Dialog<P>) -> bool| {
            let all = call.dialogs.iter().enumerate();
            let meant = all.filter(|(_, one)| is_meant(one)).map(|(at, _)| at);
            meant.collect::<Vec<usize>>()
        };
        if let Some(branch) = self.branch {
            let found = places(&|one| one.has_branch(branch));
            // Some proxies delete a failed branch by an unknown branch and without a tag. So such a request does not mean the whole call.
            if !found.is_empty() || self.from.is_none() {
                return found;
            }
        }
        let Some(from) = self.from else {
            return places(&|_| true);
        };
        let is_of = |one: &Dialog<P>, tag: &[u8]| {
            one.parties
                .iter()
                .any(|party| party.tag.as_deref() == Some(tag))
        };
        let Some(to) = self.to else {
            return places(&|one| is_of(one, from));
        };
        let found = places(&|one| is_of(one, from) && is_of(one, to));
        if !found.is_empty() {
            found
        } else {
            places(&|one| is_of(one, from) && one.parties[1].tag.is_none())
        }
    }

    /// Returns the unanswered dialogs of a caller whose answered dialog is among `ended`. A request without a branch ends either the whole
    /// call or one failed branch. In the second case, the caller's other branches still ring.
    fn find_left<P>(&self, call: &Live<P>, ended: &[usize]) -> Vec<usize> {
        if self.to.is_none() || self.branch.is_some() {
            return Vec::new();
        }
        let answered: Vec<&Dialog<P>> = ended
            .iter()
            .map(|at| &call.dialogs[*at])
            .filter(|one| one.is_answered)
            .collect();
        let is_caller = |one: &Dialog<P>| {
            let mut all = answered.iter();
            all.any(|other| other.parties[0].tag == one.parties[0].tag)
        };
        let all = call.dialogs.iter().enumerate();
        all.filter(|(at, one)| !ended.contains(at) && !one.is_answered && is_caller(one))
            .map(|(at, _)| at)
            .collect()
    }
}

pub(super) fn handle_delete<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
) -> Result<Outcome, Failure> {
    let name = bounded("call-id", request.required("call-id")?)?;
    let chosen = Chosen::of(request)?;
    let delay_s = request.integer("delete-delay", DELETE_DELAY_S)?;
    let usual_ns = calls.settings.timeouts.delete_delay_ns;
    let delay_ns = delay_s.map_or(usual_ns, |s| s.unsigned_abs() * 1_000_000_000);
    let id = CallId::new(name);
    let found = calls.calls.get(&id).map(|call| chosen.find(call));
    let places = match found {
        Some(places) if !places.is_empty() => places,
        found => {
            let what = match found {
                Some(_) => "the call has no such dialog: expected its tags or its branch",
                None => "no such call: expected the Call-ID of an offered call",
            };
            let reason = format!("call-id {}: {what}", shown(name));
            return Ok(Outcome::Reply(not_found(request, reason)));
        }
    };
    let pending = pending(calls, &id, &places);
    if let Some(call) = calls.calls.get_mut(&id) {
        for at in chosen.find_left(call, &places) {
            let due_ns = now_ns.saturating_add(RINGING_NS);
            call.dialogs[at].delete_at(due_ns);
        }
    }
    if delay_ns == 0 {
        // The order is reversed, so that the remaining indices stay valid.
        for at in places.iter().rev() {
            calls.end_dialog(now_ns, &id, *at, EndReason::Deleted);
        }
    } else if let Some(call) = calls.calls.get_mut(&id) {
        for at in &places {
            call.dialogs[*at].delete_at(now_ns.saturating_add(delay_ns));
        }
    }
    calls.schedule(&id);
    match pending {
        Some(pending) if !request.has_flag("fast") => Ok(pending.into_outcome()),
        _ => Ok(Outcome::Reply(Reply::Ok(Dictionary::new()))),
    }
}

pub(super) fn handle_query<P>(calls: &mut Calls<P>, request: &Request) -> Result<Outcome, Failure> {
    let name = bounded("call-id", request.required("call-id")?)?;
    let chosen = Chosen::of(request)?;
    let id = CallId::new(name);
    let places = calls.calls.get(&id).map(|call| chosen.find(call));
    let pending = places.and_then(|places| pending(calls, &id, &places));
    match pending {
        Some(pending) => Ok(pending.into_outcome()),
        None => Err(Failure::NoCall(shown(name))),
    }
}

pub(super) fn handle_list<P>(calls: &mut Calls<P>, request: &Request) -> Result<Outcome, Failure> {
    let limit = request
        .integer("limit", 1..=LIST_MAX)?
        .unwrap_or(LIST_DEFAULT);
    let names = calls.ids(None).take(usize::try_from(limit).unwrap_or(0));
    let names = names.map(|id| Value::bytes(&id.0)).collect();
    let mut keys = Dictionary::new();
    keys.push("calls", Value::List(names));
    Ok(Outcome::Reply(Reply::Ok(keys)))
}

fn pending<P>(calls: &Calls<P>, id: &CallId, places: &[usize]) -> Option<Pending> {
    let call = calls.calls.get(id)?;
    let zero_ns = calls.settings.unix_at_zero_ns;
    Some(Pending::of(call, |at| places.contains(&at), zero_ns))
}

/// Returns the reply about an unknown call or dialog. "The default is to reply with a warning only".
fn not_found(request: &Request, reason: String) -> Reply {
    if request.has_flag("fatal") {
        return Reply::Error(reason);
    }
    let mut keys = Dictionary::new();
    keys.push("warning", reason);
    Reply::Ok(keys)
}
