//! Quality of service: a sink's reports to upstream about early or late data.

use std::sync::atomic::Ordering::Relaxed;

use gst::prelude::*;

use super::core::{Item, When};
use super::{Renderer, Shared, State};

/// Averages of the last renders.
#[derive(Debug, Clone, Default)]
pub(super) struct Qos {
    last: Option<Pass>,
    proportion: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Pass {
    begin_ns: u64,
    now_ns: i64,
}

/// Contents of a QOS event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Report {
    /// Time between two renders, divided by the duration of the data. If it is above 1, upstream is too slow.
    pub(super) proportion: f64,
    /// Lateness of the data: the current time, minus the time of the data. For a throttle, it is the time that upstream should
    /// skip.
    pub(super) difference_ns: i64,
    /// Running time of the data.
    pub(super) begin_ns: u64,
    pub(super) is_throttle: bool,
    /// Whether the time between two renders is still unknown. In this case, no event is sent.
    pub(super) is_first: bool,
}

impl Qos {
    /// Records data that starts at `begin_ns` and is rendered or dropped at `now_ns`, `late_ns` after its time.
    pub(super) fn note(
        &mut self,
        begin_ns: u64,
        now_ns: i64,
        late_ns: i64,
        throttle_ns: u64,
    ) -> Report {
        let last = self.last.replace(Pass { begin_ns, now_ns });
        if let Some(last) = last
            && begin_ns > last.begin_ns
        {
            let took = now_ns.saturating_sub(last.now_ns).max(0) as f64;
            let proportion = took / (begin_ns - last.begin_ns) as f64;
            let known = self.proportion.unwrap_or(proportion);
            self.proportion = Some(known + (proportion - known) / AVERAGED);
        }
        let is_throttle = throttle_ns > 0;
        let left_out_ns = i64::try_from(throttle_ns).unwrap_or(i64::MAX);
        Report {
            proportion: self.proportion.unwrap_or(1.0),
            // As in the stock sinks, the throttle is reported with each render, so that upstream measures the interval from the
            // buffer that was rendered last.
            difference_ns: if is_throttle { left_out_ns } else { late_ns },
            begin_ns,
            is_throttle,
            is_first: last.is_none(),
        }
    }
}

impl<R: Renderer> Shared<R> {
    /// Returns the report for upstream about the first item, if `qos` is set.
    pub(super) fn report(
        &self,
        state: &mut State<R>,
        lateness_ns: Option<i64>,
        now_ns: Option<i64>,
    ) -> Option<Report> {
        if !self.sync.qos.load(Relaxed) {
            return None;
        }
        let Some(&Item::Data(_, When::At { begin_ns, .. })) = state.core.first_item() else {
            return None;
        };
        let throttle_ns = self.sync.throttle_ns.load(Relaxed);
        Some((state.qos).note(begin_ns, now_ns?, lateness_ns?, throttle_ns))
    }

    pub(super) fn send_report(&self, report: Option<Report>) {
        let report = report.filter(|report| !report.is_first);
        let (Some(report), Some(pad)) = (report, &self.pad) else {
            return;
        };
        let kind = match report.difference_ns {
            _ if report.is_throttle => gst::QOSType::Throttle,
            late_ns if late_ns > 0 => gst::QOSType::Underflow,
            _ => gst::QOSType::Overflow,
        };
        let begin = gst::ClockTime::from_nseconds(report.begin_ns);
        let event = gst::event::Qos::builder(kind, report.proportion, report.difference_ns);
        pad.push_event(event.timestamp(begin).build());
    }

    /// Warns that data is rendered although it is too late, because for a second no data was in time.
    pub(super) fn warn_of_lateness(&self, max_ns: u64) {
        if let Some(element) = self.element.upgrade() {
            gst::element_warning!(
                element,
                gst::CoreError::Clock,
                ("Data is dropped because it arrives too late."),
                [
                    "all buffers of the last second were more than max-lateness={max_ns} ns late: upstream or this computer is too slow, or timestamps are wrong"
                ]
            );
        }
    }

    /// Reports dropped data to the application, if `qos` is set. `counts`: the numbers of rendered and dropped buffers.
    pub(super) fn post_drop(&self, report: Option<Report>, (rendered, dropped): (u64, u64)) {
        let Some(report) = report else { return };
        let running = gst::ClockTime::from_nseconds(report.begin_ns);
        self.post(|element| {
            gst::message::Qos::builder(true)
                .running_time(running)
                .values(report.difference_ns, report.proportion, 1_000_000)
                .stats(
                    gst::GenericFormattedValue::Buffers(Some(gst::format::Buffers::from_u64(
                        rendered,
                    ))),
                    gst::GenericFormattedValue::Buffers(Some(gst::format::Buffers::from_u64(
                        dropped,
                    ))),
                )
                .src(element)
                .build()
        });
    }
}

/// Number of renders that the average covers.
const AVERAGED: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_proportion_is_above_one_for_slow_data_and_one_on_time() {
        let (mut slow, mut on_time) = (Qos::default(), Qos::default());
        let (mut late, mut punctual) = (1.0_f64, 0.0_f64);
        for i in 0..50 {
            let begin_ns = i * 10 * MS;
            // The time between two renders is twice the duration of the data.
            let report = slow.note(begin_ns, 2 * begin_ns as i64, begin_ns as i64, 0);
            late = report.proportion;
            punctual = on_time.note(begin_ns, begin_ns as i64, 0, 0).proportion;
        }
        assert!((late - 2.0).abs() < 0.01, "{late}");
        assert!((punctual - 1.0).abs() < 0.01, "{punctual}");
    }
}
