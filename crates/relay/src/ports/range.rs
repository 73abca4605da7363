//! Ports from a range of numbers.

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use threadbare_runtime::clock_now_ns;

use super::numbers::Numbers;
use super::{LegKind, LegPorts, OwnPorts, PortError};
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
    /// Chooses the first port. `None`: a random one.
    pub seed: Option<u64>,
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
            seed: None,
            receive_buffer_bytes: None,
        }
    }
}

/// Gives the ports of a range, from any thread. Ports cost nothing until they are used.
#[derive(Debug, Clone)]
pub struct PortRange(Arc<Range>);

#[derive(Debug)]
struct Range {
    settings: RangeSettings,
    numbers: Mutex<Numbers>,
    precedes_address: AtomicBool,
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
        let seed = settings.seed.unwrap_or_else(random);
        let quarantine_ns = settings.quarantine.as_nanos() as u64;
        let numbers = Numbers::new(start as u16, last, step, seed, quarantine_ns);
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

    /// Opens the ports for a leg. Skips ports that other programs have.
    ///
    /// # Errors
    /// No port is free, or the system gives no socket.
    pub fn lease(&self) -> Result<LegPorts, PortError> {
        let range = &self.0;
        let attempts = lock(&range.numbers).units();
        for _ in 0..attempts {
            let Some(number) = lock(&range.numbers).take(clock_now_ns()) else {
                break;
            };
            match range.open(number) {
                Ok(sockets) => return Ok(self.leased(sockets, Some(number))),
                // Not tried again before the quarantine is over.
                Err(error) if error.is_in_use() => {
                    lock(&range.numbers).release(clock_now_ns(), number);
                }
                Err(error) => {
                    lock(&range.numbers).put_back(number);
                    return Err(error.into());
                }
            }
        }
        Err(range.exhausted())
    }

    /// Opens the ports of a leg whose peer was told this number: by another process, before this one. Of a number that is no longer in the range,
    /// the ports are opened all the same.
    ///
    /// # Errors
    /// The number is in use, or the system gives no socket.
    pub fn lease_at(&self, number: u16) -> Result<LegPorts, PortError> {
        let range = &self.0;
        let taken = lock(&range.numbers).take_at(clock_now_ns(), number);
        match range.open(number) {
            Ok(sockets) => Ok(self.leased(sockets, taken)),
            Err(error) => {
                if let Some(taken) = taken {
                    lock(&range.numbers).put_back(taken);
                }
                Err(error.into())
            }
        }
    }

    fn leased(&self, sockets: (Udp, Option<Udp>), number: Option<u16>) -> LegPorts {
        let lease = number.map(|number| NumberLease {
            range: self.0.clone(),
            number,
        });
        let (rtp, rtcp) = sockets;
        LegPorts(LegKind::Own(OwnPorts {
            rtp,
            rtcp,
            lease,
            fence: None,
        }))
    }
}

impl Range {
    fn open(&self, number: u16) -> Result<(Udp, Option<Udp>), SocketError> {
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
        Ok((rtp, rtcp))
    }

    fn exhausted(&self) -> PortError {
        let numbers = lock(&self.numbers);
        let (in_use, quarantined) = numbers.occupied();
        PortError::Exhausted {
            address: self.settings.address,
            first: self.settings.first,
            last: self.settings.last,
            units: numbers.units(),
            in_use,
            quarantined,
        }
    }
}

/// A number in use.
#[derive(Debug)]
pub(crate) struct NumberLease {
    range: Arc<Range>,
    number: u16,
}

impl Drop for NumberLease {
    fn drop(&mut self) {
        lock(&self.range.numbers).release(clock_now_ns(), self.number);
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
