//! The hand-written loops with which a full session is compared. A loop receives a packet, converts µ-law to A-law in place, and sends the
//! packet from the same socket. The loops have no jitter buffer and no RTCP.
//!
//! The bare loop uses only the kernel and a table. With `--pads`, each packet is a pooled GStreamer buffer that passes through
//! two pads, as through two elements. With `--codec`, GStreamer elements convert each payload, without any other element.

use std::ffi::CString;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use gst::prelude::*;
use threadbare_bench::epoll::Epoll;
use threadbare_bench::session::{self, Ready};
use threadbare_bench::{counter, measure};

/// Runs a hand-written loop that receives and sends.
#[derive(Parser)]
struct Options {
    /// Number of streams.
    #[arg(long)]
    streams: u16,
    /// Port of the first stream. The other streams use the ports after it.
    #[arg(long)]
    port: u16,
    /// Port of the first destination.
    #[arg(long)]
    out: u16,
    /// Number of destination ports, which the streams use in turn.
    #[arg(long, default_value_t = 1)]
    out_ports: u16,
    /// Passes the packets through GStreamer buffers and pads.
    #[arg(long)]
    pads: bool,
    /// Elements that convert mu-law to the sent payload, written as for gst-launch.
    #[arg(long, conflicts_with = "pads")]
    codec: Option<String>,
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

const BUFFER_BYTES: usize = 1492;
const POOL_BUFFERS_MIN: u32 = 64;
const HEADER_BYTES: usize = 12;
const PCMA: u8 = 8;

/// One stream. GStreamer's pads store its address, so it must not move.
struct Stream {
    output: Arc<Output>,
    table: &'static [u8; 256],
    codec: Option<Codec>,
    /// Pad that pushes the received packets. It is null in the bare loop.
    source: *mut gst_sys::GstPad,
    converter_source: *mut gst_sys::GstPad,
}

/// Socket and destination of a stream.
struct Output {
    socket: UdpSocket,
    destination: libc::sockaddr_in,
}

/// The elements of a codec. Payloads are pushed into them, and their output is sent.
struct Codec {
    source: gst::Pad,
    elements: gst::Bin,
    /// The pad is kept here, because a link does not keep it alive.
    _sink: gst::Pad,
}

/// State of the loop's thread.
struct Relay {
    epoll: Epoll,
    /// Pool of the packets' buffers. It is null in the bare loop.
    pool: *mut gst_sys::GstBufferPool,
    // Streams are boxed, because pads store pointers to them.
    #[allow(clippy::vec_box)]
    streams: Vec<Box<Stream>>,
}

// SAFETY: GStreamer's objects may be used from any thread. The whole relay moves to one thread.
unsafe impl Send for Relay {}

fn main() -> Result<()> {
    let options = Options::parse();
    measure::raise_descriptor_limit();
    gst::init()?;
    let started = Instant::now();
    let pool = if options.pads {
        // SAFETY: GStreamer was initialised above.
        unsafe { new_pool() }
    } else {
        null_mut()
    };
    let mut relay = Relay {
        epoll: Epoll::new()?,
        pool,
        streams: Vec::new(),
    };
    // The values in the table do not matter, because only the cost of the look-ups is measured.
    let table: &'static [u8; 256] = Box::leak(Box::new(std::array::from_fn(|i| i as u8 ^ 0x55)));
    let mut resident_kib_first = 0;
    for stream in 0..options.streams {
        let destination = options.out + stream % options.out_ports;
        relay.add(options.port + stream, destination, table)?;
        if let (Some(codec), Some(stream)) = (&options.codec, relay.streams.last_mut()) {
            stream.codec = Some(Codec::new(codec, stream.output.clone())?);
        }
        if stream == 0 {
            resident_kib_first = measure::resident_kib()?;
        }
    }
    let slice = Duration::from_millis(options.wait);
    std::thread::Builder::new()
        .name("relay".into())
        .spawn(move || relay.run(slice))?;
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

impl Relay {
    fn add(&mut self, port: u16, destination: u16, table: &'static [u8; 256]) -> Result<()> {
        let address = (Ipv4Addr::LOCALHOST, port);
        let socket = UdpSocket::bind(address).with_context(|| format!("{address:?}"))?;
        socket.set_nonblocking(true)?;
        self.epoll.add(&socket, self.streams.len())?;
        let destination = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: destination.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be(),
            },
            sin_zero: [0; 8],
        };
        let mut stream = Box::new(Stream {
            output: Arc::new(Output {
                socket,
                destination,
            }),
            table,
            codec: None,
            source: null_mut(),
            converter_source: null_mut(),
        });
        if !self.pool.is_null() {
            // SAFETY: GStreamer is initialised, and the stream is boxed and never freed before the process ends.
            unsafe { add_pads(&mut stream, &format!("relay-{port}"))? };
        }
        self.streams.push(stream);
        Ok(())
    }

    fn run(self, slice: Duration) {
        let mut packet = [0u8; BUFFER_BYTES];
        self.epoll.run(slice, |place, time| {
            let stream = &self.streams[place];
            if self.pool.is_null() {
                let Ok(len) = stream.output.socket.recv(&mut packet) else {
                    return;
                };
                match &stream.codec {
                    Some(codec) => codec.push(&packet[..len], time),
                    None => {
                        convert(&mut packet[..len], stream.table);
                        stream.output.send(&packet[..len]);
                    }
                }
            } else {
                // SAFETY: pool and pads were created in `main` and live as long as the process.
                unsafe { push_one(self.pool, stream, time.as_nanos() as u64) };
            }
        });
    }
}

impl Output {
    fn send(&self, packet: &[u8]) {
        // SAFETY: the socket is open, and the packet and the address outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const self.destination).cast(),
                size_of::<libc::sockaddr_in>() as u32,
            )
        };
        if sent > 0 {
            counter::count();
        }
    }
}

impl Codec {
    fn new(description: &str, output: Arc<Output>) -> Result<Codec> {
        let elements = gst::parse::bin_from_description(description, true)
            .with_context(|| format!("in: {description}"))?;
        let end = |name| {
            let pad = elements.static_pad(name);
            pad.with_context(|| {
                format!("the elements of {description} have no unlinked {name} pad")
            })
        };
        let source = gst::Pad::builder(gst::PadDirection::Src).build();
        let sink = gst::Pad::builder(gst::PadDirection::Sink)
            .chain_function(move |_, _, buffer| {
                let mut packet = [0u8; BUFFER_BYTES];
                let payload = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
                let len = payload.len().min(BUFFER_BYTES - HEADER_BYTES);
                packet[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&payload[..len]);
                output.send(&packet[..HEADER_BYTES + len]);
                Ok(gst::FlowSuccess::Ok)
            })
            .build();
        source.set_active(true)?;
        sink.set_active(true)?;
        source.link(&end("sink")?)?;
        end("src")?.link(&sink)?;
        elements.set_state(gst::State::Playing)?;
        let caps = gst::Caps::builder("audio/x-mulaw")
            .field("rate", 8000)
            .field("channels", 1)
            .build();
        source.push_event(gst::event::StreamStart::new("codec"));
        source.push_event(gst::event::Caps::new(&caps));
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        source.push_event(gst::event::Segment::new(&segment));
        Ok(Codec {
            source,
            elements,
            _sink: sink,
        })
    }

    fn push(&self, packet: &[u8], time: Duration) {
        let mut buffer = gst::Buffer::from_slice(packet[HEADER_BYTES..].to_vec());
        buffer
            .make_mut()
            .set_pts(gst::ClockTime::try_from(time).ok());
        if let Err(error) = self.source.push(buffer) {
            eprintln!("{}: {error}", self.elements.name());
            std::process::exit(2);
        }
    }
}

fn convert(packet: &mut [u8], table: &[u8; 256]) {
    let Some((header, payload)) = packet.split_at_mut_checked(HEADER_BYTES) else {
        return;
    };
    header[1] = PCMA;
    for sample in payload {
        *sample = table[usize::from(*sample)];
    }
}

/// # Safety
/// GStreamer must be initialised.
unsafe fn new_pool() -> *mut gst_sys::GstBufferPool {
    // SAFETY: the configuration is a copy that the pool returned. `gst_buffer_pool_set_config` gives it back to the pool.
    unsafe {
        let pool = gst_sys::gst_buffer_pool_new();
        let config = gst_sys::gst_buffer_pool_get_config(pool);
        let (bytes, minimum) = (BUFFER_BYTES as u32, POOL_BUFFERS_MIN);
        gst_sys::gst_buffer_pool_config_set_params(config, null_mut(), bytes, minimum, 0);
        gst_sys::gst_buffer_pool_set_config(pool, config);
        gst_sys::gst_buffer_pool_set_active(pool, glib_sys::GTRUE);
        pool
    }
}

/// Creates source, converter and sink of a stream. Each of them is an empty bin with pads.
///
/// # Safety
/// GStreamer must be initialised. `stream` must never move, and must never be freed.
unsafe fn add_pads(stream: &mut Stream, id: &str) -> Result<()> {
    let id = CString::new(id)?;
    // SAFETY: each object is created here and lives as long as the process. Names are C strings.
    unsafe {
        let owner = std::ptr::from_mut(stream).cast();
        let pad = |name: &std::ffi::CStr, direction, chain| {
            let pad = gst_sys::gst_pad_new(name.as_ptr(), direction);
            gst_sys::gst_pad_set_element_private(pad, owner);
            if let Some(chain) = chain {
                gst_sys::gst_pad_set_chain_function_full(pad, Some(chain), null_mut(), None);
            }
            let element = gst_sys::gst_bin_new(std::ptr::null());
            gst_sys::gst_element_add_pad(element, pad);
            gst_sys::gst_pad_set_active(pad, glib_sys::GTRUE);
            pad
        };
        let (source, sink) = (gst_sys::GST_PAD_SRC, gst_sys::GST_PAD_SINK);
        stream.source = pad(c"src", source, None);
        let converter_sink = pad(c"sink", sink, Some(convert_chain as _));
        stream.converter_source = pad(c"src", source, None);
        let sender = pad(c"sink", sink, Some(send_chain as _));
        for (from, to) in [
            (stream.source, converter_sink),
            (stream.converter_source, sender),
        ] {
            if gst_sys::gst_pad_link(from, to) != gst_sys::GST_PAD_LINK_OK {
                bail!("the pads cannot be linked");
            }
            let start = gst_sys::gst_event_new_stream_start(id.as_ptr());
            gst_sys::gst_pad_push_event(from, start);
            let mut segment: gst_sys::GstSegment = std::mem::zeroed();
            gst_sys::gst_segment_init(&mut segment, gst_sys::GST_FORMAT_TIME);
            gst_sys::gst_pad_push_event(from, gst_sys::gst_event_new_segment(&segment));
        }
    }
    Ok(())
}

/// # Safety
/// The pool must be active, and the pads must be active and linked.
unsafe fn push_one(pool: *mut gst_sys::GstBufferPool, stream: &Stream, time_ns: u64) {
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
        let bytes = libc::recv(
            stream.output.socket.as_raw_fd(),
            map.data.cast(),
            map.size,
            0,
        );
        gst_sys::gst_buffer_unmap(buffer, &mut map);
        if bytes > 0 {
            gst_sys::gst_buffer_set_size(buffer, bytes);
            (*buffer).dts = time_ns;
            gst_sys::gst_pad_push(stream.source, buffer);
        } else {
            gst_sys::gst_mini_object_unref(buffer.cast());
        }
    }
}

unsafe extern "C" fn convert_chain(
    pad: *mut gst_sys::GstPad,
    _parent: *mut gst_sys::GstObject,
    buffer: *mut gst_sys::GstBuffer,
) -> gst_sys::GstFlowReturn {
    // SAFETY: the pad's private pointer is its stream (see `add_pads`). This function owns the buffer.
    unsafe {
        let stream = &*gst_sys::gst_pad_get_element_private(pad).cast::<Stream>();
        let buffer = gst_sys::gst_mini_object_make_writable(buffer.cast()).cast();
        let mut map = std::mem::zeroed();
        gst_sys::gst_buffer_map(buffer, &mut map, gst_sys::GST_MAP_READWRITE);
        convert(
            std::slice::from_raw_parts_mut(map.data, map.size),
            stream.table,
        );
        gst_sys::gst_buffer_unmap(buffer, &mut map);
        gst_sys::gst_pad_push(stream.converter_source, buffer)
    }
}

unsafe extern "C" fn send_chain(
    pad: *mut gst_sys::GstPad,
    _parent: *mut gst_sys::GstObject,
    buffer: *mut gst_sys::GstBuffer,
) -> gst_sys::GstFlowReturn {
    // SAFETY: the pad's private pointer is its stream (see `add_pads`). This function owns the buffer, and releases it only once.
    unsafe {
        let stream = &*gst_sys::gst_pad_get_element_private(pad).cast::<Stream>();
        let mut map = std::mem::zeroed();
        gst_sys::gst_buffer_map(buffer, &mut map, gst_sys::GST_MAP_READ);
        stream
            .output
            .send(std::slice::from_raw_parts(map.data, map.size));
        gst_sys::gst_buffer_unmap(buffer, &mut map);
        gst_sys::gst_mini_object_unref(buffer.cast());
        gst_sys::GST_FLOW_OK
    }
}
