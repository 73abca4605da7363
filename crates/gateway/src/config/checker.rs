//! The tool of all checks: the problems found so far, and the words to report one.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};

use toml::Spanned;

use super::machine::Machine;
use super::problem::Problems;
use super::store_spec::StoreSpec;

pub(super) struct Checker<'a> {
    pub(super) problems: Problems,
    pub(super) seen: Seen,
    /// The machine it will run on, if that is checked, too.
    pub(super) machine: Option<&'a dyn Machine>,
    /// Where recordings to `s3://…` go. `None`: nowhere.
    pub(super) store: Option<StoreSpec>,
    /// The streams are those of a cluster.
    pub(super) is_shared: bool,
}

/// Values that must be unique, with the place of the first use.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) names: HashMap<String, Range<usize>>,
    pub(super) ports: HashMap<u16, Vec<Taken>>,
    pub(super) streams: usize,
    /// In the order of the file.
    pub(super) routes: Vec<Route>,
}

/// The user of a port.
pub(super) struct Taken {
    pub(super) ip: IpAddr,
    pub(super) by: Use,
    pub(super) place: Range<usize>,
}

/// Where a stream sends, for the search of circles.
pub(super) struct Route {
    pub(super) name: String,
    pub(super) listen: SocketAddr,
    pub(super) to: SocketAddr,
    /// Of the destination in the file.
    pub(super) place: Range<usize>,
}

/// The use of a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Rtp,
    Rtcp,
}

impl Checker<'_> {
    pub(super) fn number(
        &mut self,
        raw: Option<&Spanned<i64>>,
        key: &str,
        allowed: RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = raw?;
        if allowed.contains(value.get_ref()) {
            return Some(*value.get_ref());
        }
        self.refuse(raw, key, &format!("a number from {}", shown(&allowed)));
        None
    }

    /// Reports two settings that are allowed alone but not together; `with`: the other one, as written or as a default.
    pub(super) fn conflict<T: Shown>(
        &mut self,
        raw: Option<&Spanned<T>>,
        key: &str,
        with: &str,
        help: &str,
    ) {
        let Some(raw) = raw else { return };
        let value = raw.get_ref().shown();
        self.problems.add(
            format!("`{key} = {value}` does not go with {with}"),
            help,
            &[(raw.span(), "this value")],
        );
    }

    pub(super) fn refuse<T: Shown>(&mut self, raw: Option<&Spanned<T>>, key: &str, allowed: &str) {
        let Some(raw) = raw else { return };
        let value = raw.get_ref().shown();
        self.problems.add(
            format!("`{key}` cannot be {value}"),
            &format!("allowed for `{key}`: {allowed}"),
            &[(raw.span(), "this value")],
        );
    }
}

pub(super) fn shown(range: &RangeInclusive<i64>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// Formats a value from the file for a message.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

impl Shown for String {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl Shown for Vec<String> {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl Shown for bool {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for toml::Value {
    fn shown(&self) -> String {
        self.to_string()
    }
}
