//! The headers at the start of each file of a stream. They come from the caps.

use std::collections::VecDeque;

use super::rotation::Piece;

/// Maximum number of bytes of a file that are compared with the headers of the caps.
const BEGIN_BYTES_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Headers {
    /// Headers not yet written to the current file.
    left: VecDeque<gst::Buffer>,
    /// Headers of the caps, which start each file.
    all: Vec<gst::Buffer>,
    /// The same headers, concatenated. The number after it says how many of these bytes the stream has repeated.
    bytes: Vec<u8>,
    repeated: usize,
    /// Headers in the stream itself, which came before the data of the current file.
    begun_with: Vec<u8>,
}

impl Headers {
    /// Starts a file.
    pub(crate) fn begin_file(&mut self) {
        self.left.extend(self.all.iter().cloned());
        self.begun_with.clear();
    }

    /// Ends the current file.
    pub(crate) fn end_file(&mut self) {
        self.left.clear();
    }

    /// Returns the next header for the current file.
    pub(crate) fn next(&self) -> Option<&gst::Buffer> {
        self.left.front()
    }

    /// Notes that the header was written.
    pub(crate) fn advance(&mut self) {
        self.left.pop_front();
    }

    /// Stores the headers of caps. Returns `true` if the current file must end, because it has data and its headers differ from
    /// these. A muxer may announce its initial headers in the caps after they have passed.
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

    /// Removes all headers.
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

    /// Whether the buffer repeats headers of the caps, which are written only once per file. The stream may divide these bytes
    /// into buffers of any size.
    pub(crate) fn is_repeated(&mut self, buffer: &gst::Buffer) -> bool {
        if self.bytes.is_empty() || !buffer.flags().contains(gst::BufferFlags::HEADER) {
            return false;
        }
        let Ok(map) = buffer.map_readable() else {
            return false;
        };
        // The buffer continues where the last one ended, or the headers start again.
        for begin in [self.repeated, 0] {
            if self.bytes[begin..].starts_with(&map) {
                self.repeated = begin + map.len();
                return true;
            }
        }
        false
    }

    /// Notes a header of the stream itself at the start of the current file.
    pub(crate) fn begin_with(&mut self, header: &gst::Buffer) {
        if let Ok(map) = header.map_readable()
            && self.begun_with.len() + map.len() <= BEGIN_BYTES_MAX
        {
            self.begun_with.extend_from_slice(&map);
        }
    }
}

/// Whether the buffer is only a header. A keyframe of a codec whose keyframes contain parameters is not.
pub(crate) fn is_plain_header(buffer: &gst::Buffer) -> bool {
    let flags = buffer.flags();
    let is_apart = flags.contains(gst::BufferFlags::DELTA_UNIT) || buffer.dts_or_pts().is_none();
    flags.contains(gst::BufferFlags::HEADER) && is_apart
}

/// Marks a buffer as a header, so that it is not dropped for lack of room.
fn as_header(mut buffer: gst::Buffer) -> gst::Buffer {
    buffer.make_mut().set_flags(gst::BufferFlags::HEADER);
    buffer
}

/// Returns the piece of a buffer, with its segment.
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
