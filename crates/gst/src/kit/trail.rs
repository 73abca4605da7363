//! Where a branch's memory is, so that it can be fetched before the branch runs.
//!
//! A packet that goes down a branch touches each pad and element on it. With thousands of branches that take
//! turns, all of that has left the cache when the turn comes round, and the processor waits for one line
//! after the other. Fetching them side by side, while the branch before is at work, hides most of it.
//!
//! The addresses are hints: they are never followed, only prefetched, which cannot fault. When a branch is
//! relinked they are useless for a while, not wrong.

use std::sync::{Arc, LazyLock, Mutex};

use gst::glib::translate::IntoGlib;
use gst::glib::{self, gobject_ffi};
use gst::prelude::*;
use threadbare_runtime::{CACHE_LINE, prefetch};

use super::lock;

/// Memory that an element uses for each buffer besides its own structure. A source that looks down its branch has it
/// fetched, too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer(Arc<Mutex<Vec<(usize, usize)>>>);

impl Offer {
    /// To be called when the element is constructed, before anybody else has it.
    pub(crate) fn attach(&self, element: &impl IsA<gst::Element>) {
        // SAFETY: nobody else uses this quark, so the data always has this type, which is Send and Sync. It is set once,
        // before other threads can know the element, and never replaced.
        unsafe { element.set_qdata(*OFFER, self.clone()) };
    }

    fn of(element: &gst::Element) -> Option<Offer> {
        // SAFETY: the type is the one that `attach` gives this quark; the data is neither replaced nor freed while the
        // caller's reference keeps the element.
        unsafe {
            element
                .qdata::<Offer>(*OFFER)
                .map(|offer| offer.as_ref().clone())
        }
    }

    /// Offers these spans instead of what was offered before.
    pub(crate) fn set(&self, spans: impl IntoIterator<Item = (usize, usize)>) {
        *lock(&self.0) = spans.into_iter().collect();
    }
}

/// An object's place in memory, for [`offer`].
pub(crate) fn span<T: ?Sized>(value: &T) -> (usize, usize) {
    let address = std::ptr::from_ref(value).cast::<u8>() as usize;
    (address, size_of_val(value))
}

static OFFER: LazyLock<glib::Quark> =
    LazyLock::new(|| glib::Quark::from_str("threadbare-offered-memory"));

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
            if let Some(offer) = Offer::of(&element) {
                for (address, bytes) in lock(&offer.0).iter() {
                    let lines = bytes.div_ceil(CACHE_LINE).clamp(1, OFFERED_LINES_MAX);
                    trail.add(*address as *const u8, 0, lines);
                }
            }
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

/// Four elements with their pads and what they offer, and two more.
const SPANS_MAX: usize = 20;
/// Of one span that an element offers.
const OFFERED_LINES_MAX: usize = 8;
const LINES_SHIFT: u32 = 48;
/// Cache lines of a pad: a push touches most of them.
const PAD_LINES: usize = size_of::<gst::ffi::GstPad>().div_ceil(CACHE_LINE);
/// Of an element, as much as is likely to be used for each buffer.
const INSTANCE_LINES_MAX: usize = 12;
/// GObject puts private data before the instance.
const PRIVATE_LINES: usize = 8;
