//! Position of a sink's data, for POSITION queries.

/// Position of the data that was rendered last. The times are those of the buffer, and are converted on demand.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// Start and duration, within the segment.
    last: Option<(gst::ClockTime, Option<gst::ClockTime>)>,
    /// Segment of the rendered data, because the next segment may have arrived already. It is stored apart from the fields that
    /// change with each buffer.
    segment: Option<Box<gst::FormattedSegment<gst::ClockTime>>>,
    /// Start and end of the last data of an earlier segment, in stream time.
    earlier: Option<Box<Span>>,
}

type Span = (gst::ClockTime, gst::ClockTime);

impl Position {
    /// Sets the segment of later data.
    pub(super) fn set_segment(&mut self, event: &gst::event::Segment<gst::EventRef>) {
        self.earlier = self.span().map(Box::new);
        self.last = None;
        self.segment = event.segment().downcast_ref().cloned().map(Box::new);
    }

    /// Records data that was rendered, or a gap or late data that was skipped.
    #[inline]
    pub(super) fn reach(
        &mut self,
        begin: Option<gst::ClockTime>,
        duration: Option<gst::ClockTime>,
    ) {
        if let Some(begin) = begin {
            self.last = Some((begin, duration));
        }
    }

    /// Acts as [`reach`](Self::reach), with running times in ns.
    pub(super) fn reach_running(&mut self, begin_ns: u64, end_ns: u64) {
        let position = |ns| {
            let running = gst::ClockTime::from_nseconds(ns);
            self.segment.as_ref()?.position_from_running_time(running)
        };
        if let (Some(begin), Some(end)) = (position(begin_ns), position(end_ns)) {
            self.last = Some((begin, end.checked_sub(begin)));
        }
    }

    /// Returns start and end of the last data, in stream time.
    pub(super) fn span(&self) -> Option<Span> {
        let of_last = || {
            let (begin, duration) = self.last?;
            self.stream_span(begin, duration)
        };
        of_last().or(self.earlier.as_deref().copied())
    }

    /// Returns start and end, in stream time, of the part of the data that is inside the segment.
    pub(super) fn stream_span(
        &self,
        begin: gst::ClockTime,
        duration: Option<gst::ClockTime>,
    ) -> Option<Span> {
        let segment = self.segment.as_ref()?;
        let end = begin + duration.unwrap_or(gst::ClockTime::ZERO);
        let (begin, end) = segment.clip(begin, end)?;
        Some((
            segment.to_stream_time(begin)?,
            segment.to_stream_time(end.or(begin))?,
        ))
    }

    /// Returns the stream time at a running time.
    pub(super) fn at_running(&self, running: gst::ClockTime) -> Option<gst::ClockTime> {
        let segment = self.segment.as_ref()?;
        segment.to_stream_time(segment.position_from_running_time(running)?)
    }
}
