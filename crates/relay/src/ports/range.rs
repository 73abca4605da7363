//! Ports from a range of numbers.
//!
//! Opening, binding, watching and closing a socket costs as much as the rest of a call. In a range where many calls come and go, sockets of an ended
//! call are therefore kept with their number: sealed, which is for others as if they were closed. After the quarantine, one of the next calls reuses
//! them; if none does within a second quarantine, they are closed. Which call that is, is as random as the numbers are: see [`Numbers`].
//!
//! | socket | reached by | until |
//! |---|---|---|
//! | leased | all: the call decides whom it hears | the call ends |
//! | resting | no other program | quarantine, then a lease; or twice the quarantine, or until descriptors get few: closed |

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use threadbare_runtime::clock_now_ns;

use super::held::Held;
use super::numbers::{Numbers, Taken};
use super::{LegKind, LegPorts, OwnPorts, PortError, Sockets};
use crate::socket::{SocketError, Udp};
use crate::sync::lock;

/// What one leg needs.
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
    /// What one leg needs.
    pub port_use: PortUse,
    /// How long a released port stays unused, so that late packets of its call do not reach another.
    pub quarantine: Duration,
    /// Of the kernel's receive buffer of each socket. `None`: the system's default.
    pub receive_buffer_bytes: Option<usize>,
}

impl RangeSettings {
    /// Pairs of ports from `first` to `last`, with a quarantine of ten seconds.
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

/// Gives the ports of a range, from any thread. Ports cost nothing until they are used. When it is dropped, leases stay; what rests is closed.
#[derive(Debug, Clone)]
pub struct PortRange(Arc<Range>);

#[derive(Debug)]
struct Range {
    settings: RangeSettings,
    numbers: Mutex<Numbers<Kept>>,
    precedes_address: AtomicBool,
}

/// Sockets that were sealed.
#[derive(Debug)]
struct Kept {
    sockets: Sockets,
    held: Held,
}

impl PortRange {
    /// A range; opens nothing.
    ///
    /// # Errors
    /// There is no room for a single leg.
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

    /// Ports are opened from now on whether the machine has the address or not yet: datagrams come when it has, and none can be sent before.
    pub fn precede_address(&self) {
        self.0.precedes_address.store(true, Relaxed);
    }

    /// Opens the ports for a leg, or has those of an earlier one. Skips ports that other programs have.
    ///
    /// # Errors
    /// No port is free, or the system gives no socket.
    pub fn lease(&self) -> Result<LegPorts, PortError> {
        let range = &self.0;
        let attempts = lock(&range.numbers).units();
        for _ in 0..attempts {
            let Some(taken) = lock(&range.numbers).take(clock_now_ns(), random()) else {
                break;
            };
            let number = taken.number;
            match range.open(taken) {
                Ok((sockets, held)) => return Ok(self.leased(sockets, Some((number, held)))),
                // Not tried again before the quarantine is over.
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

    /// Opens the ports of a leg whose peer was told this number: by another process, before this one, or by this one, before another. Of a number
    /// that is no longer in the range, the ports are opened all the same.
    ///
    /// # Errors
    /// The number is in use, or the system gives no socket.
    pub fn lease_at(&self, number: u16) -> Result<LegPorts, PortError> {
        let range = &self.0;
        let taken = lock(&range.numbers).take_at(number);
        let is_one = taken.is_some();
        match range.open(taken.unwrap_or(Taken { number, kept: None })) {
            Ok((sockets, held)) => Ok(self.leased(sockets, is_one.then_some((number, held)))),
            Err(error) => {
                if is_one {
                    lock(&range.numbers).put_back(number);
                }
                Err(error.into())
            }
        }
    }

    /// Closes what no call has wanted for a while. To be called now and then, while the range is used.
    pub fn close_unwanted(&self) {
        let unwanted = lock(&self.0.numbers).take_unwanted(clock_now_ns());
        // Not under the lock: it takes time.
        drop(unwanted);
    }

    /// Whether numbers are in use, or rest.
    #[must_use]
    pub fn is_used(&self) -> bool {
        lock(&self.0.numbers).occupied() != (0, 0)
    }

    /// Whether a leg has this port.
    #[must_use]
    pub fn is_in_use(&self, port: u16) -> bool {
        lock(&self.0.numbers).is_in_use(port)
    }

    /// Closes what rests, so that another range with the same numbers can open them.
    pub fn close_resting(&self) {
        let kept = lock(&self.0.numbers).take_kept();
        drop(kept);
    }

    fn leased(&self, sockets: Sockets, number: Option<(u16, Held)>) -> LegPorts {
        let lease = number.map(|(number, held)| NumberLease {
            range: Arc::downgrade(&self.0),
            number,
            held: Some(held),
        });
        LegPorts(LegKind::Own(OwnPorts::new(sockets, lease)))
    }
}

impl Range {
    fn open(&self, taken: Taken<Kept>) -> Result<(Sockets, Held), SocketError> {
        if let Some(Kept { mut sockets, held }) = taken.kept
            && sockets.each_mut().try_for_each(Udp::unseal).is_ok()
        {
            return Ok((sockets, held));
        }
        if Held::is_crowded() {
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

    fn open_new(&self, number: u16) -> Result<(Sockets, Held), SocketError> {
        let settings = &self.settings;
        let bind = |port| {
            let address = SocketAddr::new(settings.address, port);
            let buffer_bytes = settings.receive_buffer_bytes;
            match self.precedes_address.load(Relaxed) {
                true => Udp::bind_ahead(address, buffer_bytes),
                false => Udp::bind(address, buffer_bytes),
            }
        };
        let rtp = bind(number)?;
        let rtcp = match settings.port_use {
            PortUse::Pair => Some(bind(number.wrapping_add(1))?),
            PortUse::Mux => None,
        };
        let sockets = Sockets::new(rtp, rtcp);
        let held = Held::new(sockets.each().count());
        Ok((sockets, held))
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

/// A number in use.
#[derive(Debug)]
pub(crate) struct NumberLease {
    /// `None` if there is no such range any more.
    range: Weak<Range>,
    number: u16,
    /// `None` while it is given back.
    held: Option<Held>,
}

impl NumberLease {
    /// The call has ended: its sockets rest, or are closed.
    pub(crate) fn give_back(mut self, sockets: Sockets) {
        let Some(range) = self.range.upgrade() else {
            return;
        };
        let may_rest = Held::may_rest() && lock(&range.numbers).is_to_keep();
        if !may_rest || sockets.each().any(|udp| udp.seal().is_err()) {
            // First closed, then free.
            drop(sockets);
            return;
        }
        if let Some(held) = self.held.take() {
            let kept = Kept { sockets, held };
            lock(&range.numbers).release(clock_now_ns(), self.number, Some(kept));
        }
    }
}

impl Drop for NumberLease {
    fn drop(&mut self) {
        if self.held.is_some()
            && let Some(range) = self.range.upgrade()
        {
            lock(&range.numbers).release(clock_now_ns(), self.number, None);
        }
    }
}

/// A number that other hosts cannot guess.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Packets that are later than this are lost ones.
const QUARANTINE: Duration = Duration::from_secs(10);
