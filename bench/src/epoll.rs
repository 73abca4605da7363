//! Slices of the hand-written loops. A loop sleeps until the slice ends, and then handles all sockets that are ready.

#![allow(unsafe_code)]

use std::io::Error;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const EVENTS: usize = 4096;

/// Level-triggered epoll. Each socket is registered once.
#[derive(Debug)]
pub struct Epoll(libc::c_int);

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: the call uses no memory of this process. Its result is checked below.
        let epoll = unsafe { libc::epoll_create1(0) };
        if epoll < 0 {
            bail!("epoll_create1: {}", Error::last_os_error());
        }
        Ok(Epoll(epoll))
    }

    /// Watches `socket`. When it is ready, [`Epoll::run`] passes `place`.
    pub fn add(&self, socket: &UdpSocket, place: usize) -> Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: place as u64,
        };
        // SAFETY: both descriptors are open, and the event outlives the call.
        let added =
            unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event) };
        if added != 0 {
            bail!("epoll_ctl: {}", Error::last_os_error());
        }
        Ok(())
    }

    /// Runs slices without end. For each ready socket, calls `ready` with the place of this socket and with the place of the second socket
    /// after it, whose memory can be prefetched.
    pub fn run_ahead(&self, slice: Duration, mut ready: impl FnMut(usize, Option<usize>)) {
        self.run_batches(slice, |places, _| {
            for (at, place) in places.iter().enumerate() {
                ready(
                    place.u64 as usize,
                    places.get(at + 2).map(|next| next.u64 as usize),
                );
            }
        });
    }

    /// Runs slices without end. Calls `ready` with the place of each ready socket, and with the slice's time since the start.
    pub fn run(&self, slice: Duration, mut ready: impl FnMut(usize, Duration)) {
        self.run_batches(slice, |places, time| {
            for place in places {
                ready(place.u64 as usize, time);
            }
        });
    }

    fn run_batches(&self, slice: Duration, mut ready: impl FnMut(&[libc::epoll_event], Duration)) {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let started = Instant::now();
        let mut slice_end = started;
        loop {
            // The end of the slice does not drift. A late loop does not catch up on missed slices.
            slice_end = (slice_end + slice).max(Instant::now());
            std::thread::sleep(slice_end.saturating_duration_since(Instant::now()));
            let time = slice_end - started;
            loop {
                // SAFETY: `events` has room for EVENTS events.
                let count =
                    unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), EVENTS as i32, 0) };
                if count <= 0 {
                    break;
                }
                ready(&events[..count as usize], time);
            }
        }
    }
}
