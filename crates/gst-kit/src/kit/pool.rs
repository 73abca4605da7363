//! Pooled buffers for received packets, reused without any allocation.
//!
//! Each context thread has one [`Pool`] per size. A buffer returns when its last reference is dropped. Its `dispose` hook (the
//! mechanism of GstBufferPool) puts it on the free list of its thread, or, from another thread, on a list under a lock. The free
//! list is last-in first-out, so that the next packet is written to memory that is still in the cache. A GstBufferPool shared by
//! thousands of sources has neither this order nor a path without atomic counters.
//!
//! A depayloader does not give back a whole buffer: it shares the buffer's memory with the buffer of the payload, which lives
//! longer than the received buffer. If that happens often, packets leave in plain buffers of the right size (see
//! [`Local::shared_away`]).
//!
//! | field | thread |
//! |---|---|
//! | `local` | only the context thread `shard_id`; after that thread's end (`end`), the thread that drops the owner |
//! | `remote` | any thread, under its lock |

use std::cell::UnsafeCell;
use std::os::raw::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering::Acquire};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use gst::ffi as c;
use gst::glib::{self, ffi as g, gobject_ffi, translate::*};
use gst_net::ffi as net;
use threadbare_runtime::{Cx, Shard, ShardEnd, current_shard_id};

/// The owner's end of a pool. Dropping it empties the free lists; buffers still in use are freed when they return.
pub struct PoolOwner(Arc<Pool>);

impl PoolOwner {
    /// Creates a pool for buffers of `capacity` bytes that are filled on `shard`'s thread.
    pub fn new(shard: &Shard, capacity: usize) -> Self {
        PoolOwner(Arc::new(Pool {
            shard_id: shard.id(),
            end: shard.end(),
            capacity,
            local: UnsafeCell::new(Local::default()),
            remote: Mutex::new(Remote {
                free: Vec::new(),
                closed: false,
            }),
        }))
    }

    /// Returns the capacity of a buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns an empty buffer, for an agent of the pool's shard. An agent of another shard gets a newly allocated one.
    pub fn acquire(&self, cx: &Cx<'_>) -> PoolBuffer {
        let pooled = if cx.local().shard().id() == self.0.shard_id {
            // SAFETY: a `Cx` exists only on its shard's thread (it is not Send), which is the only thread that accesses `local`
            // while the shard runs; `take_local` runs no foreign code, so the borrow cannot overlap another one.
            unsafe { self.0.take_local() }
        } else {
            None
        };
        pooled.unwrap_or_else(|| PoolBuffer::allocate(&self.0))
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        let remote = {
            let mut remote = self.0.remote.lock().unwrap_or_else(PoisonError::into_inner);
            remote.closed = true;
            std::mem::take(&mut remote.free)
        };
        let is_ours = current_shard_id() == Some(self.0.shard_id) || self.0.end.has_come();
        let local = if is_ours {
            // SAFETY: either this is the shard's thread, or that thread has ended and all its writes are visible (`has_come`). So
            // no other code uses `local`, and only this thread can return buffers to it.
            unsafe { std::mem::take(&mut (*self.0.local.get()).free) }
        } else {
            // The owner was moved off its running shard: the idle buffers stay there.
            debug_assert!(false, "a pool's owner was dropped on a foreign thread");
            Vec::new()
        };
        for idle in remote.into_iter().chain(local) {
            drop(PoolBuffer(idle));
        }
    }
}

/// A buffer without other references, which is about to be filled.
pub struct PoolBuffer(Idle);

// SAFETY: it has the only reference to a heap object that any thread may use; on its return, the thread is checked.
unsafe impl Send for PoolBuffer {}

impl PoolBuffer {
    /// Returns the buffer's memory, which is as long as the pool's capacity. It contains data of earlier packets (zeroes in a new
    /// buffer).
    pub fn data(&mut self) -> &mut [u8] {
        // SAFETY: `data` points to the buffer's only memory of `capacity` initialised bytes; the buffer has one reference, ours,
        // and no other code has it mapped (checked on its return).
        unsafe { std::slice::from_raw_parts_mut(self.meta().data, self.meta().capacity) }
    }

    /// Cuts the buffer to `skip..len` of its memory and returns it.
    pub fn finish(
        self,
        skip: usize,
        len: usize,
        time: Option<gst::ClockTime>,
        sender: Option<&gio::SocketAddress>,
    ) -> gst::Buffer {
        if self.leaves_as_copy() {
            return self.copy(skip, len, time, sender);
        }
        let buffer = self.0.buffer.as_ptr();
        let meta = self.0.meta.as_ptr();
        std::mem::forget(self);
        // SAFETY: we hold the only reference to `buffer`, whose pooled meta and memory are the ones it was created with; sizes
        // stay within the capacity. `set_sender` gets the same exclusive buffer.
        unsafe {
            let len = len.min((*meta).capacity);
            let skip = skip.min(len);
            (*(*meta).memory).offset = skip;
            (*(*meta).memory).size = len - skip;
            let time = time.map_or(c::GST_CLOCK_TIME_NONE, gst::ClockTime::nseconds);
            (*buffer).pts = time;
            (*buffer).dts = time;
            set_sender(buffer, meta, sender);
            from_glib_full(buffer)
        }
    }

    /// Whether a copy is cheaper than losing the buffer's memory downstream.
    fn leaves_as_copy(&self) -> bool {
        // SAFETY: the meta keeps its pool alive; `local` is touched only on the shard's thread.
        unsafe {
            let pool = &*self.meta().pool;
            current_shard_id() == Some(pool.shard_id)
                && (*pool.local.get()).shared_away >= SHARED_AWAY_RULE
        }
    }

    /// Copies the packet to a buffer of exactly its size. The pooled buffer returns to the pool.
    fn copy(
        mut self,
        skip: usize,
        len: usize,
        time: Option<gst::ClockTime>,
        sender: Option<&gio::SocketAddress>,
    ) -> gst::Buffer {
        let data = self.data();
        let len = len.min(data.len());
        let data = &data[skip.min(len)..len];
        let mut copy = gst::Buffer::with_size(data.len()).expect("some bytes of memory");
        let buffer = copy.make_mut();
        let _ = buffer.copy_from_slice(0, data);
        buffer.set_pts(time);
        buffer.set_dts(time);
        if let Some(sender) = sender {
            gst_net::NetAddressMeta::add(buffer, sender);
        }
        self.release();
        copy
    }

    /// Returns addresses that the buffer's next user will access: of the buffer, of its memory object and bytes, and of its meta.
    /// They must not be dereferenced.
    pub fn addresses(&self) -> [usize; 3] {
        let buffer = self.0.buffer.as_ptr() as usize;
        [
            buffer,
            self.meta().memory as usize,
            self.0.meta.as_ptr() as usize,
        ]
    }

    fn meta(&self) -> &PoolMeta {
        // SAFETY: the meta lives as long as its buffer and is only written while the buffer is idle or new.
        unsafe { self.0.meta.as_ref() }
    }

    /// Allocates a buffer with one memory, our meta, and the hook that returns it to the pool.
    fn allocate(pool: &Arc<Pool>) -> PoolBuffer {
        // SAFETY: plain construction through the C API, every result checked. The allocator is that of system memory, whatever
        // the application's default: the data of such a memory keeps its address for the memory's life, so the address from its
        // mapping stays valid after the mapping. The bytes are set through that mapping.
        unsafe {
            let buffer = present(c::gst_buffer_new());
            let memory = present(c::gst_allocator_alloc(
                SYSTEM_MEMORY.0,
                pool.capacity,
                ptr::null_mut(),
            ));
            let mut map = std::mem::zeroed::<c::GstMapInfo>();
            let is_mapped = c::gst_memory_map(memory, &mut map, c::GST_MAP_WRITE);
            assert!(
                is_mapped != g::GFALSE && map.size >= pool.capacity,
                "new system memory can be written"
            );
            let data = present(map.data);
            ptr::write_bytes(data, 0, pool.capacity);
            c::gst_memory_unmap(memory, &mut map);
            c::gst_buffer_append_memory(buffer, memory);
            let meta = c::gst_buffer_add_meta(buffer, META.info, ptr::null_mut());
            let meta = present(meta).cast::<PoolMeta>();
            (*meta).meta.flags |= c::GST_META_FLAG_POOLED | c::GST_META_FLAG_LOCKED;
            (*meta).pool = Arc::into_raw(pool.clone());
            (*meta).memory = memory;
            (*meta).data = data;
            (*meta).capacity = pool.capacity;
            (*meta).sender = ptr::null_mut();
            (*buffer).mini_object.dispose = Some(dispose);
            (*buffer).mini_object.flags = 0;
            PoolBuffer(Idle {
                buffer: NonNull::new_unchecked(buffer),
                meta: NonNull::new_unchecked(meta),
            })
        }
    }
}

impl Drop for PoolBuffer {
    /// Frees the buffer permanently.
    fn drop(&mut self) {
        // SAFETY: we hold the only reference; without the hook, unref frees the buffer.
        unsafe {
            (*self.0.buffer.as_ptr()).mini_object.dispose = None;
            c::gst_mini_object_unref(self.0.buffer.as_ptr().cast());
        }
    }
}

impl PoolBuffer {
    /// Returns the buffer to the pool, unused.
    pub fn release(self) {
        let buffer = self.0.buffer.as_ptr();
        std::mem::forget(self);
        // SAFETY: gives up our only reference; the hook returns the buffer to its pool.
        unsafe { c::gst_mini_object_unref(buffer.cast()) };
    }
}

/// Checks that a pointer is not null: GStreamer returned it for success.
fn present<T>(pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "out of memory for a receive buffer");
    pointer
}

/// GStreamer's allocator of system memory.
struct SystemMemory(*mut c::GstAllocator);

// SAFETY: any thread may use an allocator; this reference to it is never given up.
unsafe impl Send for SystemMemory {}
// SAFETY: as above.
unsafe impl Sync for SystemMemory {}

static SYSTEM_MEMORY: LazyLock<SystemMemory> = LazyLock::new(|| {
    // SAFETY: a look-up with a NUL-terminated name, for a reference that is kept.
    SystemMemory(present(unsafe {
        c::gst_allocator_find(c::GST_ALLOCATOR_SYSMEM.as_ptr().cast())
    }))
});

struct Pool {
    shard_id: u64,
    end: ShardEnd,
    capacity: usize,
    local: UnsafeCell<Local>,
    remote: Mutex<Remote>,
}

#[derive(Default)]
struct Local {
    free: Vec<Idle>,
    /// Score that increases with each buffer whose memory is still in use when the buffer returns, and decreases with each other
    /// buffer. While the score is high, packets leave as copies, because a copy costs less than allocating a full-size zeroed
    /// buffer for each packet.
    shared_away: u32,
}

// SAFETY: `local` is touched by one thread at a time (table in the module header); the rest is Sync.
unsafe impl Sync for Pool {}
// SAFETY: idle buffers are plain heap objects that any thread may free.
unsafe impl Send for Pool {}

struct Remote {
    free: Vec<Idle>,
    closed: bool,
}

impl Pool {
    /// # Safety
    /// Call it only on the shard's thread.
    unsafe fn take_local(&self) -> Option<PoolBuffer> {
        // SAFETY: exclusive by the caller's promise; no call below leaves this function.
        let local = unsafe { &mut *self.local.get() };
        if local.free.is_empty() {
            let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut local.free, &mut remote.free);
        }
        local.free.pop().map(PoolBuffer)
    }

    /// Counts a buffer whose memory was still in use when the buffer returned.
    fn count_shared_away(&self) {
        if current_shard_id() == Some(self.shard_id) {
            // SAFETY: the shard's own thread; see `take_local`.
            let local = unsafe { &mut *self.local.get() };
            local.shared_away = (local.shared_away + SHARED_AWAY_RUN).min(2 * SHARED_AWAY_RUN);
        }
    }

    /// Stores an idle buffer. Returns the buffer if it must be freed.
    fn put(&self, idle: Idle) -> Result<(), Idle> {
        if current_shard_id() == Some(self.shard_id) {
            // SAFETY: the shard's own thread; see `take_local`.
            let local = unsafe { &mut *self.local.get() };
            local.shared_away = local.shared_away.saturating_sub(1);
            if local.free.len() < FREE_MAX {
                local.free.push(idle);
                return Ok(());
            }
            return Err(idle);
        }
        let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        if remote.closed || remote.free.len() >= FREE_MAX {
            return Err(idle);
        }
        remote.free.push(idle);
        Ok(())
    }
}

/// A buffer with one reference and with this module's meta.
struct Idle {
    buffer: NonNull<c::GstBuffer>,
    meta: NonNull<PoolMeta>,
}

/// Links a buffer to its pool. Never copied to another buffer (no transform function).
#[repr(C)]
struct PoolMeta {
    meta: c::GstMeta,
    /// A strong count of the `Arc`.
    pool: *const Pool,
    memory: *mut c::GstMemory,
    data: *mut u8,
    capacity: usize,
    /// The sender's address meta, kept on the buffer with a new address for each use; null if absent.
    sender: *mut net::GstNetAddressMeta,
}

struct MetaIds {
    api: g::GType,
    info: *const c::GstMetaInfo,
}

// SAFETY: `info` points to GStreamer's registration, which is immutable and never freed.
unsafe impl Send for MetaIds {}
// SAFETY: as above.
unsafe impl Sync for MetaIds {}

static META: LazyLock<MetaIds> = LazyLock::new(|| {
    let tags: [*const std::os::raw::c_char; 1] = [ptr::null()];
    // GStreamer's names are global in the process, but each copy of this crate has its own layout of the meta.
    let name = |kind: &str| super::name_of_this_copy(&format!("ThreadbarePoolMeta{kind}"));
    let (api_name, name) = (name("API"), name(""));
    // SAFETY: registration through the C API, which copies the NUL-terminated names, with an empty tag list. No other copy
    // of this crate in the process has the same names.
    unsafe {
        let api = c::gst_meta_api_type_register(api_name.as_ptr(), mut_tags(&tags));
        let info = c::gst_meta_register(
            api,
            name.as_ptr(),
            size_of::<PoolMeta>(),
            Some(meta_init),
            Some(meta_free),
            None,
        );
        assert!(!info.is_null(), "a new name can be registered");
        MetaIds { api, info }
    }
});

fn mut_tags(tags: &[*const std::os::raw::c_char; 1]) -> *mut *const std::os::raw::c_char {
    tags.as_ptr().cast_mut()
}

unsafe extern "C" fn meta_init(
    meta: *mut c::GstMeta,
    _params: *mut c_void,
    _buffer: *mut c::GstBuffer,
) -> g::gboolean {
    // SAFETY: GStreamer hands over the freshly allocated meta of the registered size.
    unsafe { (*meta.cast::<PoolMeta>()).pool = ptr::null() };
    g::GTRUE
}

unsafe extern "C" fn meta_free(meta: *mut c::GstMeta, _buffer: *mut c::GstBuffer) {
    // SAFETY: called once, when the buffer is freed; `pool` is null or the count `allocate` made.
    unsafe {
        let pool = (*meta.cast::<PoolMeta>()).pool;
        if !pool.is_null() {
            drop(Arc::from_raw(pool));
        }
    }
}

/// Called when the buffer's last reference is gone. Keeps the buffer for its pool (GFALSE), or lets GStreamer free it (GTRUE).
unsafe extern "C" fn dispose(object: *mut c::GstMiniObject) -> g::gboolean {
    let buffer = object.cast::<c::GstBuffer>();
    // SAFETY: GStreamer calls this with a buffer whose reference count is 0, so only we use it. Our meta is locked, so it is still
    // attached; `reset` checks that the memory is the one it was created with.
    unsafe {
        let meta = c::gst_buffer_get_meta(buffer, META.api).cast::<PoolMeta>();
        if meta.is_null() {
            return g::GTRUE;
        }
        // The next user holds this single reference, and `reset` needs it for removing metas. No other thread can see the object,
        // so no atomic operation is needed.
        (*object).refcount = 1;
        let idle = Idle {
            buffer: NonNull::new_unchecked(buffer),
            meta: NonNull::new_unchecked(meta),
        };
        if !reset(buffer, meta) {
            (*(*meta).pool).count_shared_away();
            drop(PoolBuffer(idle));
            return g::GFALSE;
        }
        match (*(*meta).pool).put(idle) {
            Ok(()) => g::GFALSE,
            Err(refused) => {
                drop(PoolBuffer(refused));
                g::GFALSE
            }
        }
    }
}

/// Resets a returned buffer to the state of a new one. Returns `false` if its memory is still in use or was replaced.
///
/// # Safety
/// The caller has the only access to `buffer`, and `meta` is its pool meta.
unsafe fn reset(buffer: *mut c::GstBuffer, meta: *mut PoolMeta) -> bool {
    // SAFETY: exclusive access by the caller's promise; the C calls get the buffer and its own metas.
    unsafe {
        let memory = (*meta).memory;
        if c::gst_buffer_n_memory(buffer) != 1
            || c::gst_buffer_peek_memory(buffer, 0) != memory
            || references(memory) != 1
        {
            return false;
        }
        (*meta).sender = ptr::null_mut();
        let mut foreign = false;
        let mut state: glib::ffi::gpointer = ptr::null_mut();
        loop {
            let next = c::gst_buffer_iterate_meta(buffer, &mut state);
            if next.is_null() {
                break;
            }
            if next == meta.cast() {
                continue;
            }
            if (*next).flags & c::GST_META_FLAG_POOLED != 0
                && (*(*next).info).api == net::gst_net_address_meta_api_get_type()
            {
                (*meta).sender = next.cast();
            } else {
                foreign = true;
            }
        }
        if foreign {
            c::gst_buffer_foreach_meta(buffer, Some(drop_unpooled), ptr::null_mut());
        }
        (*buffer).mini_object.flags = 0;
        (*buffer).pts = c::GST_CLOCK_TIME_NONE;
        (*buffer).dts = c::GST_CLOCK_TIME_NONE;
        (*buffer).duration = c::GST_CLOCK_TIME_NONE;
        (*buffer).offset = c::GST_BUFFER_OFFSET_NONE;
        (*buffer).offset_end = c::GST_BUFFER_OFFSET_NONE;
        true
    }
}

/// Returns the number of references to a memory. Other threads may give up theirs at the same time. What they wrote before that
/// is visible.
///
/// # Safety
/// A live memory.
unsafe fn references(memory: *mut c::GstMemory) -> i32 {
    // SAFETY: the count of a live object by the caller's promise; GStreamer changes it only by atomic operations.
    unsafe { AtomicI32::from_ptr(&raw mut (*memory).mini_object.refcount).load(Acquire) }
}

unsafe extern "C" fn drop_unpooled(
    _buffer: *mut c::GstBuffer,
    meta: *mut *mut c::GstMeta,
    _data: glib::ffi::gpointer,
) -> g::gboolean {
    // SAFETY: `meta` points to the iteration's current meta; setting it to null asks for its removal.
    unsafe {
        if (**meta).flags & c::GST_META_FLAG_POOLED == 0 {
            *meta = ptr::null_mut();
        }
    }
    g::GTRUE
}

/// Sets the buffer's sender address. The meta stays on the buffer when the buffer is reused; only the reference to the address is
/// exchanged.
///
/// # Safety
/// The caller has the only access to `buffer`, and `meta` is its pool meta.
unsafe fn set_sender(
    buffer: *mut c::GstBuffer,
    meta: *mut PoolMeta,
    sender: Option<&gio::SocketAddress>,
) {
    // SAFETY: exclusive access by the caller's promise; `meta.sender` is null or on the buffer (looked up in
    // `reset`). The address object is kept alive by the reference taken here.
    unsafe {
        let known = (*meta).sender;
        match sender {
            Some(address) => {
                let address: *mut gio::ffi::GSocketAddress = address.to_glib_none().0;
                if known.is_null() {
                    let added = net::gst_buffer_add_net_address_meta(buffer, address);
                    (*added).meta.flags |= c::GST_META_FLAG_POOLED;
                    (*meta).sender = added;
                } else if (*known).addr != address {
                    gobject_ffi::g_object_ref(address.cast());
                    gobject_ffi::g_object_unref((*known).addr.cast());
                    (*known).addr = address;
                }
            }
            None if !known.is_null() => {
                c::gst_buffer_remove_meta(buffer, known.cast());
                (*meta).sender = ptr::null_mut();
            }
            None => {}
        }
    }
}

/// Number of packets that are sent as copies before a pooled buffer is tried again.
const SHARED_AWAY_RUN: u32 = 64;
/// Packets leave as copies if downstream keeps the memory of at least one packet in this many.
const SHARED_AWAY_RULE: u32 = SHARED_AWAY_RUN + 1;
/// Maximum number of idle buffers in a list: enough for a whole slice of the largest deployment. It limits the memory that stays
/// in use after a burst.
const FREE_MAX: usize = 8192;
