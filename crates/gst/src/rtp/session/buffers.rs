//! The packets that a leg holds are the buffers that they were received into.

use threadbare_rtp::leg::Keep;

use crate::kit::pool::PoolBuffer;

/// See the module.
#[derive(Debug)]
pub(crate) struct Buffers;

/// A received packet of `len` bytes: taken out of its place if it is kept.
pub(crate) struct ArrivingBuffer<'a> {
    pub(crate) place: &'a mut Option<PoolBuffer>,
    pub(crate) len: usize,
}

/// A packet that is held.
#[derive(Debug)]
pub(crate) struct HeldBuffer {
    pub(crate) buffer: gst::Buffer,
    /// Its memory, worth prefetching: see [`PoolBuffer::addresses`].
    pub(crate) addresses: [usize; 3],
}

impl Keep for Buffers {
    type Arriving<'a> = ArrivingBuffer<'a>;
    type Kept = HeldBuffer;

    #[inline]
    fn keep(&mut self, arriving: ArrivingBuffer<'_>) -> Option<HeldBuffer> {
        let buffer = arriving.place.take()?;
        Some(HeldBuffer {
            addresses: buffer.addresses(),
            buffer: buffer.finish(0, arriving.len, None, None),
        })
    }

    fn let_go(&mut self, kept: HeldBuffer) {
        drop(kept);
    }
}
