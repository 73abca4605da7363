//! The hand-written loop with which a receiving element is compared. It uses epoll, a buffer pool, one `recv` per ready socket, and
//! `gst_pad_push` into a fakesink. It has no element that receives, no tasks and no state, so it shows the cost of the kernel and of
//! GStreamer alone. It calls only C functions, so that the cost of Rust bindings is not measured either.

use std::ffi::CString;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use threadbare_bench::epoll::Epoll;
use threadbare_bench::session::{self, Ready};
use threadbare_bench::{counter, measure};

/// The hand-written receive loop.
#[derive(Parser)]
struct Options {
    /// Number of streams.
    #[arg(long)]
    streams: u16,
    /// Port of the first stream. The other streams use the ports after it.
    #[arg(long)]
    port: u16,
    /// Length of a slice in milliseconds.
    #[arg(long, default_value_t = 20)]
    wait: u64,
    /// Seconds from the first packet to the measured window.
    #[arg(long, default_value_t = 3.0)]
    warmup: f64,
    /// Length of the measured window in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// Size of a buffer. It is the default `mtu` of the elements.
const BUFFER_BYTES: u32 = 1492;
const POOL_BUFFERS_MIN: u32 = 64;

struct Stream {
    socket: UdpSocket,
    pad: *mut gst_sys::GstPad,
}

/// State of the loop's thread.
struct Receiver {
    epoll: Epoll,
    pool: *mut gst_sys::GstBufferPool,
    streams: Vec<Stream>,
    slice: Duration,
}

// SAFETY: GStreamer's objects may be used from any thread. The whole receiver moves to one thread.
unsafe impl Send for Receiver {}

fn main() -> Result<()> {
    let options = Options::parse();
    measure::raise_descriptor_limit();
    gst::init()?;
    let started = Instant::now();
    // SAFETY: GStreamer was initialised above.
    let pool = unsafe { new_pool() };
    let slice = Duration::from_millis(options.wait);
    let mut receiver = Receiver {
        epoll: Epoll::new()?,
        pool,
        streams: Vec::new(),
        slice,
    };
    let mut resident_kib_first = 0;
    for stream in 0..options.streams {
        receiver.add(options.port + stream)?;
        if stream == 0 {
            resident_kib_first = measure::resident_kib()?;
        }
    }
    std::thread::Builder::new()
        .name("floor".into())
        .spawn(move || receiver.run())?;

    let ready = Ready {
        setup_seconds: started.elapsed().as_secs_f64(),
        resident_kib_first,
    };
    let warmup = Duration::from_secs_f64(options.warmup);
    let window = Duration::from_secs_f64(options.seconds);
    session::run(ready, warmup, window, session::Origin::Sender)?;
    // The thread with the loop does not end by itself.
    std::process::exit(0)
}

/// Creates a pool that reuses a few buffers.
///
/// # Safety
/// GStreamer must be initialised.
unsafe fn new_pool() -> *mut gst_sys::GstBufferPool {
    // SAFETY: the configuration is a copy that the pool returned. `gst_buffer_pool_set_config` gives it back to the pool.
    unsafe {
        let pool = gst_sys::gst_buffer_pool_new();
        let config = gst_sys::gst_buffer_pool_get_config(pool);
        let minimum = POOL_BUFFERS_MIN;
        gst_sys::gst_buffer_pool_config_set_params(config, null_mut(), BUFFER_BYTES, minimum, 0);
        gst_sys::gst_buffer_pool_set_config(pool, config);
        gst_sys::gst_buffer_pool_set_active(pool, glib_sys::GTRUE);
        pool
    }
}

impl Receiver {
    fn add(&mut self, port: u16) -> Result<()> {
        let address = (Ipv4Addr::LOCALHOST, port);
        let socket = UdpSocket::bind(address).with_context(|| format!("{address:?}"))?;
        socket.set_nonblocking(true)?;
        self.epoll.add(&socket, self.streams.len())?;
        let id = CString::new(format!("floor-{port}"))?;
        // SAFETY: GStreamer was initialised in `main`.
        let pad = unsafe { new_branch(&id)? };
        self.streams.push(Stream { socket, pad });
        Ok(())
    }

    fn run(self) {
        self.epoll.run(self.slice, |place, time| {
            // SAFETY: pool and pad were created in `main` and live as long as the process.
            unsafe { receive_one(self.pool, &self.streams[place], time.as_nanos() as u64) };
        });
    }
}

/// Creates a source pad without an element, linked to a playing fakesink.
///
/// # Safety
/// GStreamer must be initialised.
unsafe fn new_branch(stream_id: &CString) -> Result<*mut gst_sys::GstPad> {
    // SAFETY: names are C strings. Each object is checked before it is used. Objects are never freed, so they live as long as
    // the process.
    unsafe {
        let sink = gst_sys::gst_element_factory_make(c"fakesink".as_ptr(), null());
        if sink.is_null() {
            bail!("the element fakesink is missing");
        }
        for property in [c"sync", c"async", c"enable-last-sample"] {
            let end: *const libc::c_char = null();
            let no = glib_sys::GFALSE;
            gobject_sys::g_object_set(sink.cast(), property.as_ptr(), no, end);
        }
        let sink_pad = gst_sys::gst_element_get_static_pad(sink, c"sink".as_ptr());
        counter::count_at(sink_pad);
        let pad = gst_sys::gst_pad_new(c"src".as_ptr(), gst_sys::GST_PAD_SRC);
        gst_sys::gst_pad_set_active(pad, glib_sys::GTRUE);
        gst_sys::gst_element_set_state(sink, gst_sys::GST_STATE_PLAYING);
        if gst_sys::gst_pad_link(pad, sink_pad) != gst_sys::GST_PAD_LINK_OK {
            bail!("the pad cannot be linked to the fakesink");
        }
        let start = gst_sys::gst_event_new_stream_start(stream_id.as_ptr());
        gst_sys::gst_pad_push_event(pad, start);
        let mut segment: gst_sys::GstSegment = std::mem::zeroed();
        gst_sys::gst_segment_init(&mut segment, gst_sys::GST_FORMAT_TIME);
        gst_sys::gst_pad_push_event(pad, gst_sys::gst_event_new_segment(&segment));
        Ok(pad)
    }
}

/// # Safety
/// The pool must be active, and the pad must be active and linked.
unsafe fn receive_one(pool: *mut gst_sys::GstBufferPool, stream: &Stream, time_ns: u64) {
    // SAFETY: a new buffer from the pool has no other users, so it may be mapped for writing. The map provides `size` bytes at
    // `data` until it is undone. The push takes ownership of the buffer.
    unsafe {
        let mut buffer = null_mut();
        let flow = gst_sys::gst_buffer_pool_acquire_buffer(pool, &mut buffer, null_mut());
        if flow != gst_sys::GST_FLOW_OK {
            return;
        }
        let mut map = std::mem::zeroed();
        gst_sys::gst_buffer_map(buffer, &mut map, gst_sys::GST_MAP_WRITE);
        let bytes = libc::recv(stream.socket.as_raw_fd(), map.data.cast(), map.size, 0);
        gst_sys::gst_buffer_unmap(buffer, &mut map);
        if bytes > 0 {
            gst_sys::gst_buffer_set_size(buffer, bytes);
            (*buffer).dts = time_ns;
            gst_sys::gst_pad_push(stream.pad, buffer);
        } else {
            gst_sys::gst_mini_object_unref(buffer.cast());
        }
    }
}
