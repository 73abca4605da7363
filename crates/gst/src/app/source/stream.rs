//! Properties of the stream that the application feeds to `ts-appsrc`: format, length, and whether it can seek.

use gst::glib;

/// How the application finds a position in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareAppStreamType")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum StreamType {
    /// Not at all: seeks are refused.
    #[default]
    #[enum_value(name = "Cannot seek", nick = "stream")]
    Stream,
    /// With a slow seek.
    #[enum_value(name = "Seekable", nick = "seekable")]
    Seekable,
    /// With a fast seek.
    #[enum_value(name = "Random access", nick = "random-access")]
    RandomAccess,
}

/// The stream's properties.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) kind: StreamType,
    pub(super) format: gst::Format,
    /// Size in bytes; -1 if unknown.
    pub(super) size: i64,
    pub(super) duration: Option<gst::ClockTime>,
}

impl Default for Stream {
    fn default() -> Self {
        Stream {
            kind: StreamType::Stream,
            format: gst::Format::Time,
            size: -1,
            duration: None,
        }
    }
}

impl Stream {
    /// Returns a segment from the start, without an end.
    pub(super) fn segment(&self) -> gst::Segment {
        let mut segment = gst::Segment::new();
        segment.reset_with_format(self.format);
        segment
    }

    /// Returns the length of the stream in `format`, if known. The query has -1 for an unknown length.
    fn length(&self, format: gst::Format) -> Option<gst::GenericFormattedValue> {
        let length = match format {
            gst::Format::Time => i64::try_from(self.duration?.nseconds()).ok()?,
            gst::Format::Bytes if self.size >= 0 => self.size,
            _ => return None,
        };
        Some(gst::GenericFormattedValue::new(format, length))
    }

    /// Answers a query for the length or for seeking. Returns `None` for other queries.
    pub(super) fn answer(&self, query: &mut gst::QueryRef) -> Option<bool> {
        match query.view_mut() {
            gst::QueryViewMut::Duration(query) => {
                let length = self.length(query.format());
                if let Some(length) = length {
                    query.set(length);
                }
                Some(length.is_some())
            }
            gst::QueryViewMut::Seeking(query) => {
                let format = query.format();
                if format != self.format {
                    return Some(false);
                }
                let unknown = gst::GenericFormattedValue::new(format, -1);
                let end = self.length(format).unwrap_or(unknown);
                let start = gst::GenericFormattedValue::new(format, 0);
                query.set(self.kind != StreamType::Stream, start, end);
                Some(true)
            }
            _ => None,
        }
    }

    /// Returns the segment after a seek, and the position in it, if the stream supports the seek. `current` is the segment before
    /// the seek. If the seek does not flush, running time continues from that position.
    pub(super) fn after(
        &self,
        current: &gst::Segment,
        seek: &gst::event::Seek<gst::EventRef>,
    ) -> Option<gst::Segment> {
        let (rate, flags, start_type, start, stop_type, stop) = seek.get();
        let is_own = start.format() == self.format && current.format() == self.format;
        if self.kind == StreamType::Stream || rate <= 0.0 || !is_own {
            return None;
        }
        let mut segment = current.clone();
        let end = gst::GenericFormattedValue::new(self.format, -1);
        segment.set_duration(self.length(self.format).unwrap_or(end));
        segment.do_seek(rate, flags, start_type, start, stop_type, stop)?;
        Some(segment)
    }
}
