//! Reads one TCP stream on a context's thread: connects or waits for a client, then reads until the peer closes.
//!
//! ```text
//!   To(addresses) --start--> Connecting --writable--> Open --peer closed--> EOS, once
//!   Listening --a caller-->                           Open --peer closed--> EOS, once; with keep-listening: Listening
//! ```

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use threadbare_base::NS_PER_S;

use gst::glib;
use threadbare_runtime::{Cx, Interest, Precision, Ready, Shard};

use super::connect::{begin_with_first, connect_error};
use super::{EXHAUSTED_PAUSE_NS, TcpError, is_of_caller};
use crate::kit::pool::PoolOwner;
use crate::kit::receive;
use crate::kit::source::{self, Produced, Producer};
use crate::kit::stats::Single;
use crate::kit::time::RunningTime;

/// The origin of the stream.
pub(crate) enum Origin {
    /// The first of these addresses that answers.
    To(VecDeque<SocketAddr>),
    /// The first client that connects.
    From(TcpListener),
}

/// Settings for reading.
pub(super) struct Settings {
    pub(super) caps: Option<gst::Caps>,
    pub(super) block_bytes: u32,
    pub(super) timeout_s: u32,
    pub(super) do_timestamp: bool,
    /// Whether to accept the next client after the current one.
    pub(super) keep_listening: bool,
}

/// Counters, written by the context's thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) bytes: Single,
    pub(super) buffers: Single,
    pub(super) connections: Single,
}

enum Stage {
    Waiting(Origin),
    Connecting(TcpStream, SocketAddr, VecDeque<SocketAddr>),
    Open(TcpStream),
    Closed,
}

pub struct TcpReader {
    stage: Stage,
    /// The listener, which waits for the next client while this one is connected.
    listener: Option<TcpListener>,
    /// Whether the next data comes from another client.
    is_discont: bool,
    /// Whether the stage's descriptor is watched.
    is_watched: bool,
    /// Whether the lack of a descriptor for the client was reported.
    has_warned: bool,
    may_act: bool,
    timed_out: bool,
    pool: Arc<PoolOwner>,
    settings: Settings,
    time: RunningTime,
    counts: Arc<Counts>,
    element: glib::WeakRef<gst::Element>,
}

impl TcpReader {
    pub(super) fn new(
        element: &gst::Element,
        shard: &Shard,
        origin: Origin,
        settings: Settings,
        counts: Arc<Counts>,
    ) -> Self {
        use gst::prelude::*;
        TcpReader {
            stage: Stage::Waiting(origin),
            listener: None,
            is_discont: false,
            is_watched: false,
            has_warned: false,
            may_act: false,
            timed_out: false,
            pool: receive::pool_of(shard, settings.block_bytes as usize),
            settings,
            time: RunningTime::default(),
            counts,
            element: element.downgrade(),
        }
    }

    pub(super) fn set_caps(&mut self, caps: Option<gst::Caps>) -> Option<gst::Event> {
        self.settings.caps = caps;
        self.settings.caps.as_ref().map(gst::event::Caps::new)
    }

    fn descriptor(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        Some(match &self.stage {
            Stage::Waiting(Origin::From(listener)) => (listener.as_fd(), Interest::Read),
            Stage::Connecting(stream, ..) => (stream.as_fd(), Interest::Write),
            Stage::Open(stream) => (stream.as_fd(), Interest::Read),
            Stage::Waiting(Origin::To(_)) | Stage::Closed => return None,
        })
    }

    fn watch(&mut self, cx: &Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.unwatch(cx);
        if let Some((fd, interest)) = self.descriptor() {
            cx.register(fd, 0, interest).map_err(|error| {
                gst::error_msg!(
                    gst::ResourceError::OpenRead,
                    ["cannot watch the socket: {error}"]
                )
            })?;
            self.is_watched = true;
        }
        Ok(())
    }

    /// Stops watching. Called before the descriptor is closed, or when it is not needed any more.
    fn unwatch(&mut self, cx: &Cx<'_>) {
        if std::mem::take(&mut self.is_watched)
            && let Some((fd, _)) = self.descriptor()
        {
            cx.deregister(fd);
        }
    }

    fn enter(&mut self, cx: &Cx<'_>, stage: Stage) -> Result<(), gst::ErrorMessage> {
        self.unwatch(cx);
        self.stage = stage;
        self.expect_something(cx);
        self.watch(cx)
    }

    /// Restarts the time-out for data.
    fn expect_something(&self, cx: &Cx<'_>) {
        let timeout_s = u64::from(self.settings.timeout_s);
        let expects = matches!(self.stage, Stage::Connecting(..) | Stage::Open(_));
        if timeout_s > 0 && expects {
            let deadline_ns = cx.now_ns().saturating_add(timeout_s * NS_PER_S);
            cx.set_timer(deadline_ns, Precision::About);
        }
    }

    /// Tries the addresses one after another. Gives up after the last one.
    fn connect(
        &mut self,
        cx: &Cx<'_>,
        mut addresses: VecDeque<SocketAddr>,
        failed: Option<TcpError>,
    ) -> Result<(), gst::ErrorMessage> {
        match begin_with_first(&mut addresses, failed) {
            Ok((stream, address)) => self.enter(cx, Stage::Connecting(stream, address, addresses)),
            Err(error) => {
                self.enter(cx, Stage::Closed)?;
                Err(error)
            }
        }
    }

    /// Handles a connection that is established, or has failed.
    fn connected(&mut self, cx: &Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.unwatch(cx);
        let Stage::Connecting(stream, address, others) =
            std::mem::replace(&mut self.stage, Stage::Closed)
        else {
            return Ok(());
        };
        match stream.take_error() {
            Ok(None) => {
                self.counts.connections.add(1);
                self.enter(cx, Stage::Open(stream))
            }
            Ok(Some(source)) | Err(source) => {
                self.connect(cx, others, Some(connect_error(address, source)))
            }
        }
    }

    /// Accepts a client. The next client has to wait until this one disconnects, or until the element is restarted.
    fn accept(&mut self, cx: &Cx<'_>) -> Result<(), gst::ErrorMessage> {
        let Stage::Waiting(Origin::From(listener)) = &self.stage else {
            return Ok(());
        };
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                self.has_warned = false;
                self.counts.connections.add(1);
                self.unwatch(cx);
                let earlier = std::mem::replace(&mut self.stage, Stage::Closed);
                if let Stage::Waiting(Origin::From(listener)) = earlier
                    && self.settings.keep_listening
                {
                    self.listener = Some(listener);
                }
                self.enter(cx, Stage::Open(stream))
            }
            // The client has already gone.
            Ok(_) => Ok(()),
            Err(error) if is_of_caller(&error) => Ok(()),
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    gst::warning!(crate::kit::CAT, "cannot accept a client: {error}");
                }
                self.unwatch(cx);
                cx.set_timer(cx.now_ns() + EXHAUSTED_PAUSE_NS, Precision::About);
                Ok(())
            }
        }
    }

    /// Handles the end of the connection; `failed` is the error, if it ended with one. The element ends, fails, or waits for the
    /// next client.
    fn ended(&mut self, cx: &Cx<'_>, failed: Option<TcpError>) -> Produced {
        self.close(cx);
        let Some(listener) = self.listener.take() else {
            return match failed {
                Some(error) => Produced::Failed(error.into()),
                None => Produced::Event(gst::event::Eos::new()),
            };
        };
        if let (Some(error), Some(element)) = (failed, self.element.upgrade()) {
            gst::element_warning!(element, gst::ResourceError::Read, ["{error}"]);
        }
        self.is_discont = true;
        let listening = self.enter(cx, Stage::Waiting(Origin::From(listener)));
        listening.map_or_else(Produced::Failed, |()| Produced::Idle)
    }

    fn read(&mut self, cx: &Cx<'_>) -> Produced {
        let Stage::Open(stream) = &mut self.stage else {
            return Produced::Idle;
        };
        let mut buffer = self.pool.acquire(cx);
        let room = &mut buffer.data()[..self.settings.block_bytes as usize];
        match stream.read(room) {
            Ok(0) => {
                buffer.release();
                self.ended(cx, None)
            }
            Ok(bytes) => {
                self.counts.bytes.add(bytes as u64);
                self.counts.buffers.add(1);
                // If the block is full, there may be more data. If it is not, the poller reports later data.
                self.may_act = bytes == self.settings.block_bytes as usize;
                self.expect_something(cx);
                let time = self
                    .settings
                    .do_timestamp
                    .then(|| self.time.at(cx.now_ns()));
                let mut buffer = buffer.finish(0, bytes, time.flatten(), None);
                if std::mem::take(&mut self.is_discont) {
                    buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
                }
                Produced::Buffer(buffer)
            }
            Err(error) => {
                buffer.release();
                match error.kind() {
                    ErrorKind::WouldBlock => Produced::Idle,
                    ErrorKind::Interrupted => {
                        self.may_act = true;
                        Produced::Again
                    }
                    _ => {
                        let error = TcpError::Read(self.peer(), error);
                        self.ended(cx, Some(error))
                    }
                }
            }
        }
    }

    fn peer(&self) -> String {
        let address = match &self.stage {
            Stage::Open(stream) => stream.peer_addr().ok(),
            Stage::Connecting(_, address, _) => Some(*address),
            _ => None,
        };
        address.map_or_else(|| "the peer".into(), |address| address.to_string())
    }

    /// Stops watching the descriptor, which would always be readable at its end.
    fn close(&mut self, cx: &Cx<'_>) {
        self.unwatch(cx);
        self.stage = Stage::Closed;
        cx.clear_timer();
    }
}

impl Producer for TcpReader {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        if let Stage::Waiting(Origin::To(addresses)) = &mut self.stage {
            let addresses = std::mem::take(addresses);
            return self.connect(cx, addresses, None);
        }
        self.expect_something(cx);
        self.watch(cx)
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.unwatch(cx);
        cx.clear_timer();
    }

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    fn begin(&mut self, _cx: &mut Cx<'_>, ready: Ready) {
        self.may_act |= matches!(ready, Ready::Io(_));
        self.timed_out |= ready == Ready::Timer;
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if std::mem::take(&mut self.may_act) {
            self.timed_out = false;
            let result = match &self.stage {
                Stage::Open(_) => return self.read(cx),
                Stage::Connecting(..) => self.connected(cx),
                Stage::Waiting(Origin::From(_)) => self.accept(cx),
                Stage::Waiting(Origin::To(_)) | Stage::Closed => Ok(()),
            };
            return result.map_or_else(Produced::Failed, |()| Produced::Idle);
        }
        if std::mem::take(&mut self.timed_out) {
            if let Stage::Waiting(_) = self.stage {
                // Descriptors may be available again.
                let watched = self.watch(cx);
                return watched.map_or_else(Produced::Failed, |()| Produced::Idle);
            }
            let error = TcpError::TimedOut(self.peer(), self.settings.timeout_s);
            return self.ended(cx, Some(error));
        }
        Produced::Idle
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        let element = self.element.upgrade();
        element.map_or_else(Vec::new, |element| {
            source::opening(pad, &element, self.settings.caps.as_ref())
        })
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![gst::event::Segment::new(&segment)]
    }
}
