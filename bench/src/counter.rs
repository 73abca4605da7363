//! Counts the buffers that arrive at a pad with the least possible cost: a C probe and one atomic add. The hand-written loop and
//! the pipelines use the same probe, so its cost is the same for both.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Relaxed throughout: a statistic, ordering nothing.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Count of elements that count by themselves.
static COUNTED: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>> = OnceLock::new();

/// Number of buffers that have reached a counted pad since the process started, plus the elements' own counts.
pub fn arrived() -> u64 {
    ARRIVED.load(Ordering::Relaxed) + COUNTED.get().map_or(0, |counted| counted())
}

/// Adds the value of `counted`, for elements that count anyway: a hand-written loop needs no probe either. Only once per process.
pub fn count_by(counted: impl Fn() -> u64 + Send + Sync + 'static) {
    let is_first = COUNTED.set(Box::new(counted)).is_ok();
    debug_assert!(is_first, "counted twice");
}

/// Counts one buffer without a pad.
pub fn count() {
    ARRIVED.fetch_add(1, Ordering::Relaxed);
}

/// Counts buffers that arrive at `pad` from now on.
///
/// # Safety
/// `pad` is a valid `GstPad`.
pub unsafe fn count_at(pad: *mut gst_sys::GstPad) {
    // SAFETY: the pad is valid by contract; the probe has no data, hence nothing to free.
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
