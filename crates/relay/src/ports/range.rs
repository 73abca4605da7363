//! Ports from a range of numbers.
//!
//! Opening, binding, watching and closing a socket costs as much as the rest of a call. In a busy range, the sockets of an ended call are
//! therefore kept with their number. They are sealed, so that they look closed to others. After the quarantine, one of the next calls
//! reuses them. If no call does this within a second quarantine, they are closed. Which call gets them is as random as the numbers: see
//! [`Numbers`].
//!
//! | socket | receives from | until |
//! |---|---|---|
//! | leased | any sender; the call decides which to accept | the call ends |
//! | resting | no other program | a new lease after the quarantine; closed after twice the quarantine, or if descriptors run short |

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use threadbare_runtime::clock_now_ns;

use super::numbers::{Numbers, Taken};
use super::open_sockets::OpenSockets;
use super::{LegKind, LegPorts, OwnPorts, PortError, Sockets};
use crate::socket::{SocketError, Udp};
use crate::sync::lock;

/// The ports that one leg needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortUse {
    /// An even port for RTP and the next one for RTCP (RFC 3550, section 11).
    Pair,
    /// One port for both (RFC 5761).
    Mux,
}

/// A range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSettings {
    /// The local address.
    pub address: IpAddr,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
    /// The ports that one leg needs.
    pub port_use: PortUse,
    /// Time for which a released port is not used, so that late packets of its call do not reach another call.
    pub quarantine: Duration,
    /// The kernel's receive buffer of each socket. `None`: the system's default.
    pub receive_buffer_bytes: Option<usize>,
}

impl RangeSettings {
    /// Creates settings for pairs of ports from `first` to `last`, with a quarantine of ten seconds.
    #[must_use]
    pub fn new(address: IpAddr, first: u16, last: u16) -> RangeSettings {
        RangeSettings {
            address,
            first,
            last,
            port_use: PortUse::Pair,
            quarantine: QUARANTINE,
            receive_buffer_bytes: None,
        }
    }
}

/// Leases the ports of a range, from any thread. Ports cost nothing before they are used. If the range is dropped, leases stay valid, and
/// kept sockets are closed.
#[derive(Debug, Clone)]
pub struct PortRange(Arc<Range>);

#[derive(Debug)]
struct Range {
    settings: RangeSettings,
    numbers: Mutex<Numbers<SealedSockets>>,
    precedes_address: AtomicBool,
}

/// Sockets that were sealed.
#[derive(Debug)]
struct SealedSockets {
    sockets: Sockets,
    counted: OpenSockets,
}

impl PortRange {
    /// Creates a range, without opening sockets.
    ///
    /// # Errors
    /// Fails if the range is too small for a single leg.
    pub fn new(settings: RangeSettings) -> Result<PortRange, PortError> {
        let RangeSettings { first, last, .. } = settings;
        let (step, wanted) = match settings.port_use {
            PortUse::Pair => (2, "an even port and the next one"),
            PortUse::Mux => (1, "a port"),
        };
        let start = u32::from(first).next_multiple_of(u32::from(step));
        if first == 0 || start + u32::from(step) > u32::from(last) + 1 {
            return Err(PortError::Range {
                first,
                last,
                wanted,
            });
        }
        let quarantine_ns = settings.quarantine.as_nanos() as u64;
        let numbers = Numbers::new(start as u16, last, step, quarantine_ns);
        Ok(PortRange(Arc::new(Range {
            settings,
            numbers: Mutex::new(numbers),
            precedes_address: AtomicBool::new(false),
        })))
    }

    /// Makes the range open ports from now on even if the machine does not have the address yet. Datagrams can arrive and be sent only
    /// after the machine has got the address.
    pub fn precede_address(&self) {
        self.0.precedes_address.store(true, Relaxed);
    }

    /// Opens the ports for a leg, or reuses those of an earlier leg. Ports that other programs use are skipped.
    ///
    /// # Errors
    /// Fails if no port is free, or if the system provides no socket.
    pub fn lease(&self) -> Result<LegPorts, PortError> {
        let range = &self.0;
        let attempts = lock(&range.numbers).units();
        for _ in 0..attempts {
            let Some(taken) = lock(&range.numbers).take(clock_now_ns(), random()) else {
                break;
            };
            let number = taken.number;
            match range.open(taken) {
                Ok((sockets, counted)) => return Ok(self.leased(sockets, Some((number, counted)))),
                // This port will not be tried again within the quarantine.
                Err(error) if error.is_in_use() => {
                    lock(&range.numbers).release(clock_now_ns(), number, None);
                }
                Err(error) => {
                    lock(&range.numbers).put_back(number);
                    return Err(error.into());
                }
            }
        }
        Err(range.exhausted())
    }

    /// Opens the ports of a leg that moves between two processes, whose peer already knows this number. The number may be outside the
    /// range.
    ///
    /// # Errors
    /// Fails if the number is in use, or if the system provides no socket.
    pub fn lease_at(&self, number: u16) -> Result<LegPorts, PortError> {
        let range = &self.0;
        let taken = lock(&range.numbers).take_at(number);
        let is_one = taken.is_some();
        match range.open(taken.unwrap_or(Taken { number, kept: None })) {
            Ok((sockets, counted)) => Ok(self.leased(sockets, is_one.then_some((number, counted)))),
            Err(error) => {
                if is_one {
                    lock(&range.numbers).put_back(number);
                }
                Err(error.into())
            }
        }
    }

    /// Closes sockets that no call has reused for a while. Call this regularly while the range is in use.
    pub fn close_unwanted(&self) {
        let unwanted = lock(&self.0.numbers).take_unwanted(clock_now_ns());
        // They are dropped outside the lock, because closing sockets takes time.
        drop(unwanted);
    }

    /// Whether there are leased numbers or kept sockets.
    #[must_use]
    pub fn is_used(&self) -> bool {
        lock(&self.0.numbers).occupied() != (0, 0)
    }

    /// Whether a leg uses this port.
    #[must_use]
    pub fn is_in_use(&self, port: u16) -> bool {
        lock(&self.0.numbers).is_in_use(port)
    }

    /// Closes the kept sockets, so that another range with the same numbers can open them.
    pub fn close_resting(&self) {
        let kept = lock(&self.0.numbers).take_kept();
        drop(kept);
    }

    fn leased(&self, sockets: Sockets, number: Option<(u16, OpenSockets)>) -> LegPorts {
        let lease = number.map(|(number, counted)| NumberLease {
            range: Arc::downgrade(&self.0),
            number,
            counted: Some(counted),
        });
        LegPorts(LegKind::Own(OwnPorts::new(sockets, lease)))
    }
}

impl Range {
    fn open(&self, taken: Taken<SealedSockets>) -> Result<(Sockets, OpenSockets), SocketError> {
        if let Some(SealedSockets {
            mut sockets,
            counted,
        }) = taken.kept
            && sockets.each_mut().try_for_each(Udp::unseal).is_ok()
        {
            return Ok((sockets, counted));
        }
        if OpenSockets::is_crowded() {
            let oldest = lock(&self.numbers).take_one_kept();
            drop(oldest);
        }
        match self.open_new(taken.number) {
            Err(SocketError::Descriptors { .. }) => {
                let kept = lock(&self.numbers).take_kept();
                drop(kept);
                self.open_new(taken.number)
            }
            opened => opened,
        }
    }

    fn open_new(&self, number: u16) -> Result<(Sockets, OpenSockets), SocketError> {
        let settings = &self.settings;
        let bind = |port| {
            let address = SocketAddr::new(settings.address, port);
            let buffer_bytes = settings.receive_buffer_bytes;
            if self.precedes_address.load(Relaxed) {
                Udp::bind_ahead(address, buffer_bytes)
            } else {
                Udp::bind(address, buffer_bytes)
            }
        };
        let rtp = bind(number)?;
        let rtcp = match settings.port_use {
            PortUse::Pair => Some(bind(number.wrapping_add(1))?),
            PortUse::Mux => None,
        };
        let sockets = Sockets::new(rtp, rtcp);
        let counted = OpenSockets::new(sockets.each().count());
        Ok((sockets, counted))
    }

    fn exhausted(&self) -> PortError {
        let numbers = lock(&self.numbers);
        let (in_use, quarantined) = numbers.occupied();
        PortError::Exhausted {
            address: self.settings.address,
            first: self.settings.first,
            last: self.settings.last,
            units: numbers.units() as u32,
            in_use,
            quarantined,
        }
    }
}

/// A number that is in use.
#[derive(Debug)]
pub(crate) struct NumberLease {
    /// The range, unless it was dropped.
    range: Weak<Range>,
    number: u16,
    /// The count of the sockets. `None` while the number is being returned.
    counted: Option<OpenSockets>,
}

impl NumberLease {
    /// Returns the sockets of an ended call. They are kept, or closed.
    pub(crate) fn give_back(mut self, sockets: Sockets) {
        let Some(range) = self.range.upgrade() else {
            return;
        };
        let may_rest = OpenSockets::may_rest() && lock(&range.numbers).is_to_keep();
        if !may_rest || sockets.each().any(|udp| udp.seal().is_err()) {
            // The sockets must be closed before their number becomes free.
            drop(sockets);
            return;
        }
        if let Some(counted) = self.counted.take() {
            let kept = SealedSockets { sockets, counted };
            lock(&range.numbers).release(clock_now_ns(), self.number, Some(kept));
        }
    }
}

impl Drop for NumberLease {
    fn drop(&mut self) {
        if self.counted.is_some()
            && let Some(range) = self.range.upgrade()
        {
            lock(&range.numbers).release(clock_now_ns(), self.number, None);
        }
    }
}

/// Returns a number that other hosts cannot guess.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Default quarantine. Packets that come later count as lost.
const QUARANTINE: Duration = Duration::from_secs(10);
