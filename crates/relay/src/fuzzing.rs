//! The body of the fuzz target. It is part of the crate so that `cargo test` can replay the corpus in `fuzz/corpus/forward`
//! (`tests/it/corpus.rs`).
//!
//! It panics if an invariant is violated.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use threadbare_rtp::leg::{AdmissionConfig, Learn, Method, Once, Outage};
use threadbare_rtp::packet::is_rtcp;

use crate::call::{Call, Datagram, Outbox, Refused};
use crate::forward::{Forward, ForwardSide};
use crate::id::{PortId, PortKind};
use crate::io::DATAGRAM_BYTES_MAX;

/// Runs the target `forward`. Byte 0 contains the settings. Steps follow, each with a kind, a time in ms, a length and the bytes.
///
/// Each datagram causes at most one outgoing datagram, with the same bytes, in order. A party that was not signalled, and has sent fewer
/// than two datagrams, gets nothing. A held party gets no media.
pub fn forward(data: &[u8]) {
    let Some((&settings, mut data)) = data.split_first() else {
        return;
    };
    let mut bed = Bed::new(settings);
    while let [kind, ms, length, rest @ ..] = data {
        let (bytes, after) = rest.split_at(rest.len().min(usize::from(*length)));
        data = after;
        bed.now_ns += u64::from(*ms) * 1_000_000;
        match kind >> 4 & 7 {
            1 => bed.hold(*kind & 1, bytes.first().is_some_and(|byte| byte & 1 != 0)),
            2 => bed.change(*kind & 1, bytes.first().copied().unwrap_or(settings)),
            3 => bed.restart(settings),
            4 => {
                bed.tray.is_full = !bed.tray.is_full;
                bed.tray.has_been_full = true;
            }
            _ => bed.hand_in(*kind, bytes),
        }
    }
    bed.tray.is_full = false;
    bed.drain();
    assert!(bed.tray.count <= bed.handed_in);
}

struct Bed {
    forward: Forward,
    tray: Tray,
    now_ns: u64,
    handed_in: u64,
    held: [bool; 2],
    /// Number of datagrams from each address. Every address that was ever signalled has an entry too.
    heard: BTreeMap<SocketAddr, u32>,
}

/// The datagrams that were sent.
#[derive(Default)]
struct Tray {
    is_full: bool,
    has_been_full: bool,
    staged: Vec<(PortId, SocketAddr, Vec<u8>)>,
    count: u64,
}

impl Outbox for Tray {
    fn stage_with(
        &mut self,
        port: PortId,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused> {
        if self.is_full {
            return Err(Refused::Full);
        }
        let mut room = [0; DATAGRAM_BYTES_MAX];
        let len = write(&mut room);
        if len > 0 {
            self.staged.push((port, to, room[..len].to_vec()));
            self.count += 1;
        }
        Ok(())
    }
}

fn address(side: u8, place: u8) -> SocketAddr {
    let (host, port) = [(1, 0), (1, 1), (1, 2), (9, 0)][usize::from(place & 3)];
    SocketAddr::from(([192, 0, 2, host + side], 5000 + port))
}

/// Returns a side with or without a signalled address, whose address is learned.
fn settings_of(side: u8, settings: u8) -> ForwardSide {
    let bits = settings >> (4 * side);
    ForwardSide {
        admission: AdmissionConfig {
            peer: (bits & 1 != 0).then(|| address(side, 0)),
            rtcp: (bits & 2 != 0).then(|| address(side, 2)),
            learn: match bits & 4 {
                0 => Learn::FOLLOW,
                _ => Learn::Once(Once {
                    method: Method::Heuristic,
                    fixed_ms: Some(1000),
                }),
            },
            ..AdmissionConfig::default()
        },
        mux: bits & 8 != 0,
        ..ForwardSide::default()
    }
}

impl Bed {
    fn new(settings: u8) -> Bed {
        let mut bed = Bed {
            forward: Forward::new(0, [0, 1].map(|side| settings_of(side, settings))),
            tray: Tray::default(),
            now_ns: 0,
            handed_in: 0,
            held: [false; 2],
            heard: BTreeMap::new(),
        };
        bed.signalled(0, settings);
        bed.signalled(1, settings);
        bed
    }

    /// Notes addresses that may get datagrams although none has come from there.
    fn signalled(&mut self, side: u8, settings: u8) {
        let admission = settings_of(side, settings).admission;
        for address in admission.peer.into_iter().chain(admission.rtcp) {
            self.heard.insert(address, 2);
        }
    }

    fn hold(&mut self, side: u8, is_held: bool) {
        self.held[usize::from(side)] = is_held;
        self.apply(side, |side| side.is_held = is_held);
    }

    fn apply(&mut self, side: u8, change: impl FnOnce(&mut ForwardSide)) {
        let mut spec = self.forward.spec().clone();
        change(&mut spec.sides[usize::from(side)]);
        self.forward.apply(self.now_ns, spec);
    }

    fn change(&mut self, side: u8, settings: u8) {
        self.signalled(side, settings);
        let ForwardSide { admission, mux, .. } = settings_of(side, settings);
        self.apply(side, |side| (side.admission, side.mux) = (admission, mux));
    }

    /// Continues the session in another process.
    fn restart(&mut self, settings: u8) {
        self.drain();
        let state = self.forward.snapshot(self.now_ns);
        let mut forward = Forward::new(self.now_ns, [0, 1].map(|side| settings_of(side, settings)));
        let outage = Outage {
            elapsed_ns: 0,
            unsaved_ns: 0,
        };
        let restored = forward.restore(self.now_ns, &state, outage);
        assert!(restored.is_ok());
        assert_eq!(forward.snapshot(self.now_ns), state);
        self.forward = forward;
        for (side, is_held) in (0..).zip(self.held) {
            self.hold(side, is_held);
        }
    }

    fn hand_in(&mut self, kind: u8, bytes: &[u8]) {
        let leg = kind & 1;
        let port = match kind & 2 {
            0 => PortId::rtp(leg),
            _ => PortId::rtcp(leg),
        };
        let from = address(leg, kind >> 2);
        *self.heard.entry(from).or_default() += 1;
        self.handed_in += 1;
        let mut copy = bytes.to_vec();
        self.forward.handle_datagram(
            self.now_ns,
            Datagram {
                port,
                from,
                received_ns: self.now_ns,
                bytes: &mut copy,
            },
        );
        self.forward
            .poll_transmit(self.now_ns, true, &mut self.tray);
        if !self.tray.has_been_full {
            let staged = &self.tray.staged;
            assert!(staged.len() <= 1);
            for (port, _, sent) in staged {
                // Datagrams on the RTCP port count as RTCP.
                let is_rtcp = kind & 2 != 0 || is_rtcp(sent);
                assert!(port.leg != leg && sent == bytes);
                assert!(is_rtcp || !self.held[usize::from(port.leg)]);
            }
        }
        self.check();
    }

    fn drain(&mut self) {
        self.forward
            .poll_transmit(self.now_ns, true, &mut self.tray);
        self.check();
    }

    /// Checks the destinations of the datagrams.
    fn check(&mut self) {
        for (port, to, _) in self.tray.staged.drain(..) {
            let heard = |address: &SocketAddr| self.heard.get(address).copied().unwrap_or(0);
            let may = match port.kind {
                PortKind::Rtp => heard(&to) >= 2,
                // RTCP goes to the port after that of RTP, or to its source address on a known host.
                PortKind::Rtcp => self
                    .heard
                    .iter()
                    .any(|(known, count)| known.ip() == to.ip() && *count >= 2),
            };
            assert!(may, "{port:?} to {to}");
        }
    }
}
