//! The element-specific part behind a sink pad.

/// Renders a sink's buffers.
pub trait Renderer: Send + 'static {
    /// Renders as much as it can without waiting.
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered;

    /// Shows the first buffer in PAUSED; it will be rendered in PLAYING.
    fn preroll(&mut self, _buffer: &gst::Buffer) {}

    /// Handles an event of [`Sink::queue_event`](super::Sink::queue_event), in order with the buffers.
    fn event(&mut self, _event: &gst::Event) {}

    /// Whether [`Renderer::render_list`] handles whole lists. If not, the buffers of a list are rendered separately, each at its
    /// time.
    fn takes_lists(&self) -> bool {
        false
    }

    /// Renders as much as it can of a list, at the time of its first buffer.
    fn render_list(&mut self, _list: &gst::BufferList) -> Rendered {
        Rendered::Done
    }

    /// Called when only the stream's end is left. The end may still have to wait for PLAYING, or for the end of the last data.
    fn end_is_next(&mut self) {}

    /// Handles the end of the stream. The application is notified when this is done.
    fn end(&mut self) -> Rendered {
        Rendered::Done
    }

    /// Drops everything that was rendered so far.
    fn flush(&mut self) {}

    /// Takes the samples that the renderer has removed. They are dropped after the unlock, because dropping a buffer calls the
    /// owner of its memory, which may call the element.
    fn take_discarded(&mut self) -> Vec<gst::Sample> {
        Vec::new()
    }

    /// Whether there is room; called after [`Rendered::Full`].
    fn has_room(&self) -> bool {
        true
    }
}

/// Result of a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendered {
    /// The buffer is finished.
    Done,
    /// There is no room: retry the same buffer soon.
    Blocked,
    /// There is no room: retry the same buffer after [`Sink::resume`](super::Sink::resume).
    Full,
    /// The buffer is lost, and the push returns this error. Post the reason as an error message.
    Failed(gst::FlowError),
}

/// Data for a renderer.
pub(super) enum Data {
    Buffer(gst::Buffer),
    List(gst::BufferList),
}

impl Data {
    pub(super) fn first(&self) -> Option<gst::Buffer> {
        match self {
            Data::Buffer(buffer) => Some(buffer.clone()),
            Data::List(list) => list.get_owned(0),
        }
    }

    /// Returns start and duration; for a list, those of its first buffer. As in the stock sinks, the DTS determines the order of
    /// sending.
    pub(super) fn times(&self) -> (Option<gst::ClockTime>, Option<gst::ClockTime>) {
        let of = |buffer: &gst::BufferRef| (buffer.dts_or_pts(), buffer.duration());
        match self {
            Data::Buffer(buffer) => of(buffer),
            Data::List(list) => list.get(0).map_or((None, None), of),
        }
    }

    pub(super) fn render<R: Renderer>(&self, renderer: &mut R) -> Rendered {
        match self {
            Data::Buffer(buffer) => renderer.render(buffer),
            Data::List(list) => renderer.render_list(list),
        }
    }
}
