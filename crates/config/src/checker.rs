//! The state that all checks share. It consists of the problems found so far and values that must be unique. Its methods report more
//! problems.

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
    /// The machine that will run the configuration. `None`: nothing is checked that depends on a machine.
    pub(super) machine: Option<&'a dyn Machine>,
    /// The store for recordings to `s3://…`. `None`: there is no store.
    pub(super) store: Option<StoreSpec>,
    /// Whether the streams belong to a cluster.
    pub(super) is_shared: bool,
}

/// Values that must be unique, with the places in the file where they were first used.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) names: HashMap<String, Range<usize>>,
    pub(super) ports: HashMap<u16, Vec<Taken>>,
    pub(super) streams: usize,
    /// The routes of the streams, in the order of the file.
    pub(super) routes: Vec<Route>,
}

/// The user of a port.
pub(super) struct Taken {
    pub(super) ip: IpAddr,
    pub(super) by: Use,
    pub(super) place: Range<usize>,
}

/// Source and destination of a stream. Routes are used to find streams that send to each other in a circle.
pub(super) struct Route {
    pub(super) name: String,
    pub(super) listen: SocketAddr,
    pub(super) to: SocketAddr,
    /// Place of the destination in the file.
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
        self.refuse(raw, key, &format!("a number from {}", range_text(&allowed)));
        None
    }

    /// Reports two settings that exclude each other. `with` is the other setting, as it is written or as its default.
    pub(super) fn conflict<T: FormatValue>(
        &mut self,
        raw: Option<&Spanned<T>>,
        key: &str,
        with: &str,
        help: &str,
    ) {
        let Some(raw) = raw else { return };
        let value = raw.get_ref().format_value();
        self.problems.add(
            format!("`{key} = {value}` cannot be combined with {with}"),
            help,
            &[(raw.span(), "this value")],
        );
    }

    pub(super) fn refuse<T: FormatValue>(
        &mut self,
        raw: Option<&Spanned<T>>,
        key: &str,
        allowed: &str,
    ) {
        let Some(raw) = raw else { return };
        let value = raw.get_ref().format_value();
        self.problems.add(
            format!("`{key}` cannot be {value}"),
            &format!("allowed for `{key}`: {allowed}"),
            &[(raw.span(), "this value")],
        );
    }
}

pub(super) fn range_text(range: &RangeInclusive<i64>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// Formats a value from the file for a message.
pub(super) trait FormatValue {
    fn format_value(&self) -> String;
}

impl FormatValue for String {
    fn format_value(&self) -> String {
        format!("{self:?}")
    }
}

impl FormatValue for Vec<String> {
    fn format_value(&self) -> String {
        format!("{self:?}")
    }
}

impl FormatValue for bool {
    fn format_value(&self) -> String {
        self.to_string()
    }
}

impl FormatValue for i64 {
    fn format_value(&self) -> String {
        self.to_string()
    }
}

impl FormatValue for toml::Value {
    fn format_value(&self) -> String {
        self.to_string()
    }
}
