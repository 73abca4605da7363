//! Counts what each thread allocates, for tests of code that must not allocate: include this file with `#[path]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static FREED_BYTES: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards everything to the system's allocator. The counter is a plain thread-local without a destructor, so
// it is always accessible and allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|allocated| {
            let (times, bytes) = allocated.get();
            allocated.set((times + 1, bytes + layout.size() as u64));
        });
        // SAFETY: the caller's promise about `layout` is also the required one.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        FREED_BYTES.with(|freed| freed.set(freed.get() + layout.size() as u64));
        // SAFETY: `pointer` came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of this thread's allocations so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATED.get().0
}

/// Bytes that this thread has allocated so far, with those that were freed.
#[allow(dead_code, reason = "some count allocations alone")]
pub(crate) fn allocated_bytes() -> u64 {
    ALLOCATED.get().1
}

/// Bytes that this thread holds: allocated and not freed.
#[allow(dead_code, reason = "some count allocations alone")]
pub(crate) fn held_bytes() -> u64 {
    ALLOCATED.get().1 - FREED_BYTES.get()
}
