//! Counts the buffers that arrive at a pad, at the lowest possible cost: a C probe and one atomic addition. The hand-written loop and the
//! pipelines use the same probe, so the cost is the same for both.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of counted buffers. All accesses are relaxed, because the counter orders no other memory accesses.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Function that returns the sum of the counts of all elements that count their buffers themselves.
static COUNTED: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>> = OnceLock::new();

/// Returns the number of buffers that have reached a counted pad since the process started, plus the counts of elements that
/// count themselves.
pub fn arrived() -> u64 {
    ARRIVED.load(Ordering::Relaxed) + COUNTED.get().map_or(0, |counted| counted())
}

/// Adds the value of `counted` to [`arrived`] from now on. It is for elements that count their buffers anyway. They need no probe, like the
/// hand-written loop. Call this function only once per process.
pub fn count_by(counted: impl Fn() -> u64 + Send + Sync + 'static) {
    let is_first = COUNTED.set(Box::new(counted)).is_ok();
    debug_assert!(is_first, "counted twice");
}

/// Counts one buffer that reached no pad.
pub fn count() {
    ARRIVED.fetch_add(1, Ordering::Relaxed);
}

/// Counts the buffers that arrive at `pad` from now on.
///
/// # Safety
/// `pad` must be a valid `GstPad`.
pub unsafe fn count_at(pad: *mut gst_sys::GstPad) {
    // SAFETY: the pad is valid by contract. The probe has no data, so there is nothing to free.
    unsafe {
        gst_sys::gst_pad_add_probe(
            pad,
            gst_sys::GST_PAD_PROBE_TYPE_BUFFER | gst_sys::GST_PAD_PROBE_TYPE_BUFFER_LIST,
            Some(probe),
            std::ptr::null_mut(),
            None,
        );
    }
}

unsafe extern "C" fn probe(
    _pad: *mut gst_sys::GstPad,
    info: *mut gst_sys::GstPadProbeInfo,
    _data: *mut c_void,
) -> gst_sys::GstPadProbeReturn {
    // SAFETY: GStreamer passes a valid info, with a buffer list in it if the type indicates one.
    let buffers = unsafe {
        if (*info).type_ & gst_sys::GST_PAD_PROBE_TYPE_BUFFER_LIST != 0 {
            u64::from(gst_sys::gst_buffer_list_length((*info).data.cast()))
        } else {
            1
        }
    };
    ARRIVED.fetch_add(buffers, Ordering::Relaxed);
    gst_sys::GST_PAD_PROBE_OK
}
