//! Counts the heap allocations of a whole process, including those of C libraries, GLib and Rust code.
//!
//! Load this library with `LD_PRELOAD`. It replaces glibc's allocator functions. Each function that returns memory adds one to
//! a counter and then calls glibc's. Programs look up `threadbare_malloc_count()` with `dlsym`. Run the process with
//! `G_SLICE=always-malloc`. Otherwise GLib's own free lists hide GStreamer's allocations for buffers.
//!
//! The code of this library must not allocate or panic.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, size_t};

/// Number of calls. All accesses are relaxed, because the counter orders no other memory accesses.
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

/// Returns the number of calls so far that returned memory. Freed memory is not subtracted.
#[unsafe(no_mangle)]
pub extern "C" fn threadbare_malloc_count() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: size_t) -> *mut c_void {
    count();
    // SAFETY: this is glibc's own entry point, called with the caller's unchanged argument.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(items: size_t, size: size_t) -> *mut c_void {
    count();
    // SAFETY: this is glibc's own entry point, called with the caller's unchanged arguments. glibc checks the product for overflow.
    unsafe { __libc_calloc(items, size) }
}

/// # Safety
/// `memory` must be null, or come from this allocator and not have been freed yet (as for C's `realloc`).
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: size_t) -> *mut c_void {
    count();
    // SAFETY: every function of this library that returns memory gets it from glibc, so `memory` is null or came from glibc.
    unsafe { __libc_realloc(memory, size) }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    count();
    // SAFETY: this is glibc's own entry point, called with the caller's unchanged arguments.
    unsafe { __libc_memalign(alignment, size) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    memalign(alignment, size)
}

/// # Safety
/// `out` must be valid for writing one pointer.
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
    // SAFETY: by this function's contract, `out` is valid for writing.
    unsafe { out.write(memory) };
    0
}
