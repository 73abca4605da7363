//! Redirections (RFC 9110, section 15.4).

use reqwest::header::{HeaderMap, LOCATION};

use super::location::Location;
use super::problem::{Problem, REDIRECTS_MAX};

/// The redirections of one request.
#[derive(Clone)]
pub(in crate::http) struct Hops {
    first: Location,
    now: Location,
    count: usize,
    is_permanent: bool,
}

/// The effect of a response on the next request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum Hop {
    /// The response redirects: request [`Hops::now`] next.
    On,
    /// The response does not redirect.
    Here,
}

impl Hops {
    pub(in crate::http) fn new(first: Location) -> Self {
        Hops {
            now: first.clone(),
            first,
            count: 0,
            is_permanent: true,
        }
    }

    /// Returns the location to request.
    pub(in crate::http) fn now(&self) -> &Location {
        &self.now
    }

    /// Returns the original location.
    pub(in crate::http) fn first(&self) -> &Location {
        &self.first
    }

    /// Returns the target of redirections, and whether all redirections were permanent.
    pub(in crate::http) fn redirected(&self) -> Option<(&Location, bool)> {
        (self.count > 0).then_some((&self.now, self.is_permanent))
    }

    /// Whether credentials may be sent to the current location. They belong to the first one.
    pub(in crate::http) fn keeps_secrets(&self) -> bool {
        self.first.is_same_origin(&self.now)
    }

    /// Reads a response's head.
    pub(in crate::http) fn handle(
        &mut self,
        status: u16,
        headers: &HeaderMap,
    ) -> Result<Hop, Problem> {
        let is_permanent = match status {
            301 | 308 => true,
            302 | 303 | 307 => false,
            _ => return Ok(Hop::Here),
        };
        // Without a target, this is an ordinary response.
        let target = headers.get(LOCATION);
        let Some(target) = target.map(|value| String::from_utf8_lossy(value.as_bytes())) else {
            return Ok(Hop::Here);
        };
        if self.count == REDIRECTS_MAX {
            return Err(Problem::Redirects);
        }
        self.now = self.now.join(&target)?;
        self.count += 1;
        self.is_permanent &= is_permanent;
        Ok(Hop::On)
    }
}
