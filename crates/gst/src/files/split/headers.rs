//! What each of a stream's files begins with: the headers that the caps have.

use std::collections::VecDeque;

use super::rotation::Piece;

/// Headers that are compared with those of the caps, bytes.
const BEGIN_BYTES_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Headers {
    /// Of the present file, what is not written yet.
    left: VecDeque<gst::Buffer>,
    /// Of the caps: they begin each file.
    all: Vec<gst::Buffer>,
    /// The same, one after the other, and how many of them the stream has had.
    bytes: Vec<u8>,
    repeated: usize,
    /// What the present file began with before its data, from the stream itself.
    begun_with: Vec<u8>,
}

impl Headers {
    /// A file begins.
    pub(crate) fn begin_file(&mut self) {
        self.left.extend(self.all.iter().cloned());
        self.begun_with.clear();
    }

    /// The present file gets no more data.
    pub(crate) fn end_file(&mut self) {
        self.left.clear();
    }

    /// The next one to be written to the present file.
    pub(crate) fn next(&self) -> Option<&gst::Buffer> {
        self.left.front()
    }

    /// The next one is written.
    pub(crate) fn advance(&mut self) {
        self.left.pop_front();
    }

    /// Of caps. `true`: they are others than the present file, which has data, began with, so that it is to end. A muxer may tell of those that it
    /// began with when they have passed.
    pub(crate) fn handle_caps(
        &mut self,
        caps: &gst::CapsRef,
        has_file: bool,
        has_data: bool,
    ) -> bool {
        let structure = caps.structure(0);
        let headers = structure.and_then(|it| it.get::<gst::Array>("streamheader").ok());
        let headers: Vec<gst::Buffer> = headers.map_or_else(Vec::new, |headers| {
            let of = |value: &gst::glib::SendValue| value.get::<gst::Buffer>().ok();
            headers.iter().filter_map(of).collect()
        });
        self.set(headers, has_file, has_data)
    }

    /// Without any.
    pub(crate) fn reset(&mut self) {
        *self = Headers::default();
    }

    fn set(&mut self, headers: Vec<gst::Buffer>, has_file: bool, has_data: bool) -> bool {
        let mut bytes = Vec::new();
        for header in &headers {
            if let Ok(map) = header.map_readable() {
                bytes.extend_from_slice(&map);
            }
        }
        self.all = headers.into_iter().map(as_header).collect();
        let is_other = has_file && bytes != self.bytes && bytes != self.begun_with;
        if is_other && !has_data {
            self.left = self.all.iter().cloned().collect();
        }
        (self.bytes, self.repeated) = (bytes, 0);
        is_other && has_data
    }

    /// What the caps begin each file with does not come twice. The stream has the same bytes, in buffers of any size.
    pub(crate) fn is_repeated(&mut self, buffer: &gst::Buffer) -> bool {
        if self.bytes.is_empty() || !buffer.flags().contains(gst::BufferFlags::HEADER) {
            return false;
        }
        let Ok(map) = buffer.map_readable() else {
            return false;
        };
        // It goes on where the last one ended, or begins again.
        for begin in [self.repeated, 0] {
            if self.bytes[begin..].starts_with(&map) {
                self.repeated = begin + map.len();
                return true;
            }
        }
        false
    }

    /// The present file begins with this, from the stream itself.
    pub(crate) fn begin_with(&mut self, header: &gst::Buffer) {
        if let Ok(map) = header.map_readable()
            && self.begun_with.len() + map.len() <= BEGIN_BYTES_MAX
        {
            self.begun_with.extend_from_slice(&map);
        }
    }
}

/// A header without data: not a keyframe of a codec that has its parameters with it.
pub(crate) fn is_plain_header(buffer: &gst::Buffer) -> bool {
    let flags = buffer.flags();
    let is_apart = flags.contains(gst::BufferFlags::DELTA_UNIT) || buffer.dts_or_pts().is_none();
    flags.contains(gst::BufferFlags::HEADER) && is_apart
}

/// Not dropped to make room.
fn as_header(mut buffer: gst::Buffer) -> gst::Buffer {
    buffer.make_mut().set_flags(gst::BufferFlags::HEADER);
    buffer
}

/// Of a buffer, with the segment that it is in.
pub(crate) fn piece_of(
    buffer: &gst::Buffer,
    segment: Option<&gst::FormattedSegment<gst::ClockTime>>,
) -> Piece {
    let running = |time: gst::ClockTime| segment?.to_running_time(time);
    let begin = buffer.pts().or(buffer.dts());
    let end = begin.map(|begin| begin + buffer.duration().unwrap_or_default());
    let ns = |time: Option<gst::ClockTime>| time.and_then(running).map(gst::ClockTime::nseconds);
    Piece {
        bytes: buffer.size() as u64,
        begin_ns: ns(begin),
        end_ns: ns(end),
        is_key: !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT),
    }
}
