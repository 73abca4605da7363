//! Checks `[alarms]` and `[alarms.KIND]`.

use std::ops::RangeInclusive;

use toml::Spanned;

use super::checker::Checker;
use super::raw::{RawAlarm, RawAlarms};
use threadbare_watch::{AlarmKind, Rule, Rules};

/// Settings of alarms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlarmSpec {
    /// The rules of the kinds of alarms.
    pub rules: Rules,
    /// URL to which changes of alarms are sent. `None`: they are not sent.
    pub webhook: Option<String>,
}

pub(super) fn check(checker: &mut Checker<'_>, raw: &RawAlarms) -> AlarmSpec {
    let mut rules = Rules::default();
    for (kind, raw) in &raw.rules {
        let raw = raw.get_ref();
        let Some(default) = Rules::default().get(*kind) else {
            continue;
        };
        let rule = rule(checker, *kind, raw, default);
        let is_on = raw.enabled.as_ref().is_none_or(|on| *on.get_ref());
        rules.set(*kind, is_on.then_some(rule));
    }
    AlarmSpec {
        rules,
        webhook: webhook(checker, raw.webhook.as_ref()),
    }
}

fn rule(checker: &mut Checker<'_>, kind: AlarmKind, raw: &RawAlarm, default: Rule) -> Rule {
    let (allowed, unit) = thresholds(kind);
    let threshold = match kind {
        AlarmKind::NoPackets => {
            checker.conflict(
                raw.threshold.as_ref(),
                "threshold",
                "[alarms.no-packets], which has no threshold",
                "remove `threshold`; `hold` is the time without packets",
            );
            None
        }
        _ => decibels(checker, raw.threshold.as_ref(), "threshold", &allowed, unit),
    };
    let hysteresis = decibels(
        checker,
        raw.hysteresis.as_ref(),
        "hysteresis",
        &(0.0..=*allowed.end() - *allowed.start()),
        unit,
    );
    let hold = checker.number(raw.hold.as_ref(), "hold", SECONDS);
    let clear = checker.number(raw.clear.as_ref(), "clear", SECONDS);
    Rule {
        threshold: threshold.unwrap_or(default.threshold),
        hysteresis: hysteresis.unwrap_or(default.hysteresis),
        hold_s: hold.map_or(default.hold_s, |seconds| seconds as u32),
        clear_s: clear.map_or(default.clear_s, |seconds| seconds as u32),
    }
}

fn decibels(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<toml::Value>>,
    key: &str,
    allowed: &RangeInclusive<f64>,
    unit: &str,
) -> Option<f64> {
    let value = match raw?.get_ref() {
        toml::Value::Integer(value) => *value as f64,
        toml::Value::Float(value) => *value,
        _ => f64::NAN,
    };
    if allowed.contains(&value) {
        return Some(value);
    }
    let (low, high) = (allowed.start(), allowed.end());
    checker.refuse(raw, key, &format!("a number from {low} to {high} ({unit})"));
    None
}

fn webhook(checker: &mut Checker<'_>, raw: Option<&Spanned<String>>) -> Option<String> {
    let url = raw?.get_ref();
    let is_usable = url
        .strip_prefix("http://")
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        && url.parse::<http::Uri>().is_ok();
    if is_usable {
        return Some(url.clone());
    }
    checker.refuse(raw, "webhook", "a URL that begins with http://");
    None
}

/// Returns the allowed thresholds of a kind, and their unit.
fn thresholds(kind: AlarmKind) -> (RangeInclusive<f64>, &'static str) {
    match kind {
        AlarmKind::NoPackets => (0.0..=1.0, "0 or 1"),
        AlarmKind::Silence => (-120.0..=0.0, "LUFS, momentary"),
        AlarmKind::Loudness => (0.1..=40.0, "LU from the loudness target"),
        AlarmKind::TruePeak => (-60.0..=6.0, "dBTP"),
        AlarmKind::Loss => (0.0..=100.0, "percent of the packets of 10 s"),
        AlarmKind::Drift => (1.0..=100_000.0, "ppm"),
    }
}

/// Allowed values of `hold` and `clear`, in seconds. The maximum is the number of seconds that are stored.
const SECONDS: RangeInclusive<i64> = 1..=300;
