//! The packets of a leg: its queued packets are the buffers into which they were received.

use threadbare_rtp::leg::Keep;

use crate::kit::pool::PoolBuffer;

/// The packet types of a leg, for GStreamer buffers.
#[derive(Debug)]
pub(crate) struct Buffers;

/// A received packet of `len` bytes. The leg moves the buffer out if it queues the packet.
pub(crate) struct ArrivingBuffer<'a> {
    pub(crate) place: &'a mut Option<PoolBuffer>,
    pub(crate) len: usize,
}

/// A queued packet.
#[derive(Debug)]
pub(crate) struct QueuedBuffer {
    pub(crate) buffer: gst::Buffer,
    /// Addresses of the packet's memory, for prefetching: see [`PoolBuffer::addresses`].
    pub(crate) addresses: [usize; 3],
}

impl Keep for Buffers {
    type Arriving<'a> = ArrivingBuffer<'a>;
    type Handle = QueuedBuffer;

    #[inline]
    fn keep(&mut self, arriving: ArrivingBuffer<'_>) -> Option<QueuedBuffer> {
        let buffer = arriving.place.take()?;
        Some(QueuedBuffer {
            addresses: buffer.addresses(),
            buffer: buffer.finish(0, arriving.len, None, None),
        })
    }

    fn let_go(&mut self, handle: QueuedBuffer) {
        drop(handle);
    }
}
