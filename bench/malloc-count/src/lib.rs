//! Counts heap allocations of a whole process: C libraries, GLib and Rust alike.
//!
//! Load it with `LD_PRELOAD`. It stands in front of glibc's allocator, adds one to a counter for each call
//! that hands out memory, and passes the call on. `threadbare_malloc_count()` is looked up with `dlsym` by
//! whoever wants to know. Run the process with `G_SLICE=always-malloc`, or GLib's own free lists hide what
//! GStreamer allocates for a buffer.
//!
//! Nothing here may allocate, and nothing may panic.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, size_t};

/// Relaxed throughout: a statistic, ordering nothing.
static CALLS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_memalign(alignment: size_t, size: size_t) -> *mut c_void;
}

fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Calls so far that handed out memory; memory given back is not counted.
#[unsafe(no_mangle)]
pub extern "C" fn threadbare_malloc_count() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: size_t) -> *mut c_void {
    count();
    // SAFETY: glibc's own entry point, with the caller's argument as it came.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(items: size_t, size: size_t) -> *mut c_void {
    count();
    // SAFETY: as in `malloc`; glibc checks the product for overflow.
    unsafe { __libc_calloc(items, size) }
}

/// # Safety
/// As C's `realloc`: `memory` is null or came from this allocator and was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: size_t) -> *mut c_void {
    count();
    // SAFETY: all functions here hand out glibc's memory, so `memory` is glibc's too.
    unsafe { __libc_realloc(memory, size) }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    count();
    // SAFETY: as in `malloc`.
    unsafe { __libc_memalign(alignment, size) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    memalign(alignment, size)
}

/// # Safety
/// `out` points to a place for one pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    alignment: size_t,
    size: size_t,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let memory = memalign(alignment, size);
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: by this function's contract `out` may be written.
    unsafe { out.write(memory) };
    0
}
