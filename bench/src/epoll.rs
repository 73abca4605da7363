//! The hand-written loops' slices: sleep to the next edge, then everything that is ready.

#![allow(unsafe_code)]

use std::io::Error;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const EVENTS: usize = 4096;

/// Level-triggered epoll; sockets are registered once.
#[derive(Debug)]
pub struct Epoll(libc::c_int);

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: a plain call; a failure is found below.
        let epoll = unsafe { libc::epoll_create1(0) };
        if epoll < 0 {
            bail!("epoll_create1: {}", Error::last_os_error());
        }
        Ok(Epoll(epoll))
    }

    /// Watches `socket`; [`Epoll::run`] passes `place` when it is ready.
    pub fn add(&self, socket: &UdpSocket, place: usize) -> Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: place as u64,
        };
        // SAFETY: both descriptors are open, the event outlives the call.
        let added =
            unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event) };
        if added != 0 {
            bail!("epoll_ctl: {}", Error::last_os_error());
        }
        Ok(())
    }

    /// Calls `ready` with each place that has something and with the place two further on, to fetch its memory. Without end.
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

    /// Calls `ready` with each place that has something and the slice's time since the start. Without end.
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
            // The next edge that is still ahead: without drift, and without catching up.
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
