//! The element's own work behind a sink pad.

/// Renders a sink's buffers.
pub trait Renderer: Send + 'static {
    /// Renders as much as it can without waiting.
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered;

    /// The first buffer in PAUSED; it will be rendered in PLAYING.
    fn preroll(&mut self, _buffer: &gst::Buffer) {}

    /// An event given to [`Sink::queue_event`], in its place among the buffers.
    fn event(&mut self, _event: &gst::Event) {}

    /// Whether [`Renderer::render_list`] takes lists whole; else their buffers are rendered one by one, each at its time.
    fn takes_lists(&self) -> bool {
        false
    }

    /// Renders as much as it can of a list, at the time of its first buffer.
    fn render_list(&mut self, _list: &gst::BufferList) -> Rendered {
        Rendered::Done
    }

    /// Nothing but the stream's end is left, though it may still wait: for PLAYING, or for the end of the last data.
    fn end_is_next(&mut self) {}

    /// The stream has ended. The application is told when this is done.
    fn end(&mut self) -> Rendered {
        Rendered::Done
    }

    /// Drop everything rendered so far.
    fn flush(&mut self) {}

    /// What the renderer has removed. It is dropped after the unlock: the drop of a buffer calls whoever owns its memory,
    /// who may call the element.
    fn take_discarded(&mut self) -> Vec<gst::Sample> {
        Vec::new()
    }

    /// Called after [`Rendered::Full`].
    fn has_room(&self) -> bool {
        true
    }
}

/// Result of a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendered {
    /// The buffer is finished.
    Done,
    /// No room: retry the same buffer soon.
    Blocked,
    /// No room: retry the same buffer after [`Sink::resume`].
    Full,
    /// The buffer is lost: the result of the push. Post the reason as an error message.
    Failed(gst::FlowError),
}

/// What a sink renders.
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

    /// Begin and duration, of a list those of its first buffer. As in the stock sinks, the DTS orders the sending.
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
