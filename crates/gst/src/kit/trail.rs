//! Where a branch's memory is, so that it can be fetched before the branch runs.
//!
//! A packet that goes down a branch touches each pad and element on it. With thousands of branches that take
//! turns, all of that has left the cache when the turn comes round, and the processor waits for one line
//! after the other. Fetching them side by side, while the branch before is at work, hides most of it.
//!
//! The addresses are hints: they are never followed, only prefetched, which cannot fault. When a branch is
//! relinked they are useless for a while, not wrong.

use gst::glib::gobject_ffi;
use gst::glib::translate::IntoGlib;
use gst::prelude::*;
use threadbare_runtime::{CACHE_LINE, prefetch};

/// The first objects along a branch.
pub(crate) struct Trail {
    /// Address, and the number of lines in the upper 16 bits, which an address does not use.
    spans: [u64; SPANS_MAX],
    len: usize,
}

impl Trail {
    pub(crate) const EMPTY: Trail = Trail {
        spans: [0; SPANS_MAX],
        len: 0,
    };

    /// Follows the branch from a source pad, as long as there is only one way to go.
    pub(crate) fn from(pad: &gst::Pad) -> Self {
        let mut trail = Trail::EMPTY;
        let mut pad = pad.clone();
        loop {
            trail.add(pad.as_ptr().cast(), 0, PAD_LINES);
            let Some(peer) = pad.peer() else { break };
            trail.add(peer.as_ptr().cast(), 0, PAD_LINES);
            let Some(element) = peer.parent_element() else {
                break;
            };
            let size = instance_size(&element);
            let lines = size.div_ceil(CACHE_LINE).min(INSTANCE_LINES_MAX);
            trail.add(element.as_ptr().cast(), PRIVATE_LINES, lines);
            let mut sources = element.src_pads().into_iter();
            match (sources.next(), sources.next()) {
                (Some(only), None) if trail.len < SPANS_MAX => pad = only,
                _ => break,
            }
        }
        trail
    }

    fn add(&mut self, address: *const u8, lines_before: usize, lines: usize) {
        if self.len < SPANS_MAX {
            let begin = address.wrapping_sub(lines_before * CACHE_LINE) as u64;
            self.spans[self.len] = begin | ((lines_before + lines) as u64) << LINES_SHIFT;
            self.len += 1;
        }
    }

    /// Asks for all of it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for span in &self.spans[..self.len] {
            let address = span & ((1 << LINES_SHIFT) - 1);
            prefetch(
                address as usize as *const u8,
                (span >> LINES_SHIFT) as usize,
            );
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

/// Four elements with their pads, and two more.
const SPANS_MAX: usize = 16;
const LINES_SHIFT: u32 = 48;
/// Cache lines of a pad: a push touches most of them.
const PAD_LINES: usize = size_of::<gst::ffi::GstPad>().div_ceil(CACHE_LINE);
/// Of an element, as much as is likely to be used for each buffer.
const INSTANCE_LINES_MAX: usize = 12;
/// GObject puts private data before the instance.
const PRIVATE_LINES: usize = 8;
