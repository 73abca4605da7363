//! Addresses of a branch's memory, for prefetching before the branch runs.
//!
//! A packet touches each pad and element of a branch. When thousands of branches run in turn, that memory has left the cache by a
//! branch's next turn, and the processor waits for one cache line after another. If the lines are fetched together, while the
//! previous branch runs, most of this wait is hidden.
//!
//! The addresses are hints: they are never dereferenced, only prefetched, and prefetching an invalid address does no harm. After
//! a relink, they are useless for a while.
#![allow(missing_docs, reason = "no stable interface")]

use std::mem::offset_of;
use std::sync::{Arc, LazyLock, Mutex};

use gst::glib::translate::IntoGlib;
use gst::glib::{self, gobject_ffi};
use gst::prelude::*;
use threadbare_runtime::{CACHE_LINE, prefetch};

use super::lock;

/// Memory that an element uses for each buffer, apart from its own structure. Sources upstream prefetch it, too.
#[derive(Debug, Clone, Default)]
pub struct ElementMemory {
    spans: Arc<Mutex<Vec<(usize, usize)>>>,
    /// Whether another thread handles everything downstream of the element, so that the memory there stays in that thread's
    /// cache.
    is_end: bool,
}

impl ElementMemory {
    /// Creates the list for an element after which another thread pushes.
    pub fn at_end() -> Self {
        ElementMemory {
            is_end: true,
            ..ElementMemory::default()
        }
    }

    /// Attaches the list to an element. Call it during construction, before any other thread knows the element.
    pub fn attach(&self, element: &impl IsA<gst::Element>) {
        // SAFETY: only this copy of the crate uses this quark, so the data always has this type, which is Send and Sync. It is
        // set once, before other threads can know the element, and never replaced.
        unsafe { element.set_qdata(*ELEMENT_MEMORY, self.clone()) };
    }

    fn of(element: &gst::Element) -> Option<ElementMemory> {
        // SAFETY: the type is the one that `attach` stores under this quark; the data is neither replaced nor freed while the
        // caller's reference keeps the element.
        unsafe {
            element
                .qdata::<ElementMemory>(*ELEMENT_MEMORY)
                .map(|memory| memory.as_ref().clone())
        }
    }

    /// Replaces the spans.
    pub fn set(&self, spans: impl IntoIterator<Item = (usize, usize)>) {
        *lock(&self.spans) = spans.into_iter().collect();
    }
}

/// Returns the address and size of a value, for [`ElementMemory::set`].
pub fn span<T: ?Sized>(value: &T) -> (usize, usize) {
    let address = std::ptr::from_ref(value).cast::<u8>() as usize;
    (address, size_of_val(value))
}

/// Splits a value that is too long for one span.
pub fn spans<T>(value: &T) -> impl Iterator<Item = (usize, usize)> + use<T> {
    let (address, bytes) = span(value);
    let starts = (0..bytes).step_by(SPAN_BYTES_MAX);
    starts.map(move |start| (address + start, SPAN_BYTES_MAX.min(bytes - start)))
}

/// Prefetches all lines of a value.
#[inline]
pub fn value<T>(value: &T) {
    let address = std::ptr::from_ref(value);
    let before = address as usize % CACHE_LINE;
    prefetch(address, (before + size_of::<T>()).div_ceil(CACHE_LINE));
}

static ELEMENT_MEMORY: LazyLock<glib::Quark> = LazyLock::new(|| {
    let name = super::name_of_this_copy("threadbare-element-memory");
    glib::Quark::from_str(&*name.to_string_lossy())
});

/// The first objects along a branch, as the cache lines that a buffer touches.
pub struct BranchMemory {
    /// Blocks of 16 lines: the number of the block, and a bit for each of its lines in the lower 16 bits.
    blocks: [u64; BLOCKS_MAX],
    len: usize,
}

impl BranchMemory {
    pub const EMPTY: BranchMemory = BranchMemory {
        blocks: [0; BLOCKS_MAX],
        len: 0,
    };

    /// Follows the branch from a source pad, as long as the path is unique.
    pub fn from(pad: &gst::Pad) -> Self {
        let mut branch = BranchMemory::EMPTY;
        if let Some(source) = pad.parent_element() {
            branch.add_own(&source);
        }
        let mut pad = pad.clone();
        for _ in 0..ELEMENTS_MAX {
            branch.add_pad(&pad);
            let Some(peer) = pad.peer() else { break };
            branch.add_pad(&peer);
            let Some(element) = peer.parent_element() else {
                break;
            };
            if branch.add_element(&element) {
                break;
            }
            let mut sources = element.src_pads().into_iter();
            match (sources.next(), sources.next()) {
                (Some(only), None) => pad = only,
                _ => break,
            }
        }
        branch
    }

    /// Adds the memory that `gst_pad_push` and the call of the chain function read.
    fn add_pad(&mut self, pad: &gst::Pad) {
        let raw: *mut gst::ffi::GstPad = pad.as_ptr();
        let pad = raw as usize;
        self.add(pad, OBJECT_BYTES);
        for field in [
            offset_of!(gst::ffi::GstPad, direction),
            offset_of!(gst::ffi::GstPad, stream_rec_lock),
            offset_of!(gst::ffi::GstPad, mode),
            offset_of!(gst::ffi::GstPad, peer),
            offset_of!(gst::ffi::GstPad, chainfunc),
            offset_of!(gst::ffi::GstPad, num_probes),
            offset_of!(gst::ffi::GstPad, ABI),
        ] {
            self.add(pad + field, size_of::<usize>());
        }
        // SAFETY: a live pad, whose private part and recursive mutex are created with it and stay the same until it is freed;
        // only their addresses are read.
        let (private, mutex) =
            unsafe { ((*raw).priv_ as usize, (*raw).stream_rec_lock.p as usize) };
        self.add(private, PAD_PRIVATE_BYTES);
        self.add(mutex, MUTEX_BYTES);
    }

    /// Adds the memory of an element of this plugin: each push reads its base time.
    fn add_own(&mut self, element: &gst::Element) {
        let instance = element.as_ptr() as usize;
        self.add(instance, OBJECT_BYTES);
        self.add(
            instance + offset_of!(gst::ffi::GstElement, base_time),
            size_of::<gst::ffi::GstClockTime>(),
        );
    }

    /// Adds an element. Returns whether the branch ends there.
    fn add_element(&mut self, element: &gst::Element) -> bool {
        let instance = element.as_ptr() as usize;
        let memory = ElementMemory::of(element);
        match &memory {
            Some(memory) => {
                self.add_own(element);
                for (address, bytes) in lock(&memory.spans).iter() {
                    self.add(*address, (*bytes).clamp(1, SPAN_BYTES_MAX));
                }
            }
            None => {
                let bytes = instance_size(element).min(INSTANCE_BYTES_MAX);
                self.add(
                    instance.saturating_sub(PRIVATE_BYTES),
                    PRIVATE_BYTES + bytes,
                );
            }
        }
        memory.is_some_and(|memory| memory.is_end)
    }

    /// Adds the lines of `bytes` from `address` on.
    fn add(&mut self, address: usize, bytes: usize) {
        if address == 0 {
            return;
        }
        for line in address / CACHE_LINE..=(address + bytes - 1) / CACHE_LINE {
            let (block, bit) = ((line / LINES_OF_BLOCK) as u64, 1 << (line % LINES_OF_BLOCK));
            let known = self.blocks[..self.len]
                .iter_mut()
                .find(|known| **known >> LINES_OF_BLOCK == block);
            if let Some(known) = known {
                *known |= bit;
            } else if self.len < BLOCKS_MAX {
                self.blocks[self.len] = block << LINES_OF_BLOCK | bit;
                self.len += 1;
            }
        }
    }

    /// Prefetches all blocks.
    #[inline]
    pub fn prefetch(&self) {
        for block in &self.blocks[..self.len] {
            let first = (block >> LINES_OF_BLOCK) as usize * (LINES_OF_BLOCK * CACHE_LINE);
            let mut lines = *block as u16;
            while lines != 0 {
                let line = lines.trailing_zeros() as usize;
                prefetch((first + line * CACHE_LINE) as *const u8, 1);
                lines &= lines - 1;
            }
        }
    }
}

fn instance_size(element: &gst::Element) -> usize {
    // SAFETY: the query is plain old data, filled by the call for a registered type.
    unsafe {
        let mut query: gobject_ffi::GTypeQuery = std::mem::zeroed();
        gobject_ffi::g_type_query(element.type_().into_glib(), &mut query);
        query.instance_size as usize
    }
}

const LINES_OF_BLOCK: usize = 16;
/// Maximum number of blocks: enough for four elements with their pads, about six objects each.
const BLOCKS_MAX: usize = 32;
const ELEMENTS_MAX: usize = 5;
/// Maximum size of one span of an element.
const SPAN_BYTES_MAX: usize = 8 * CACHE_LINE;
/// Size of the fields that a push uses: type, references, lock, parent, flags.
const OBJECT_BYTES: usize = offset_of!(gst::ffi::GstObject, control_bindings);
/// Size of `GstPadPrivate` up to the event cookies and the use count.
const PAD_PRIVATE_BYTES: usize = 48;
/// Size of the `pthread_mutex_t` in a GRecMutex.
const MUTEX_BYTES: usize = 40;
/// Size of the part that an element of another plugin probably uses for each buffer.
const INSTANCE_BYTES_MAX: usize = 12 * CACHE_LINE;
/// GObject puts private data before the instance.
const PRIVATE_BYTES: usize = 8 * CACHE_LINE;
