//! Moves of streams from busy media threads to others.

use threadbare_base::NS_PER_S;
use threadbare_relay::{Engine, MediaSession};
use threadbare_watch::{MovedSession, Moves};

use super::Streams;

/// When the loads of the media threads are compared, and where moves are noted.
#[derive(Debug)]
pub(super) struct Balancer {
    moves: Moves,
    next_ns: u64,
}

impl Balancer {
    pub(super) fn new(moves: Moves) -> Balancer {
        Balancer { moves, next_ns: 0 }
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Compares the loads if that is due, and notes the moves that have been completed.
    pub(super) fn run(&mut self, now_ns: u64, engine: &Engine<MediaSession>, streams: &Streams) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + NS_PER_S;
        for moved in engine.rebalance() {
            let mut calls = streams.values().map(|running| &running.call);
            // A call that has ended since then needs no event.
            if let Some(call) = calls.find(|call| call.to_string() == moved.label) {
                let call = MovedSession::Call(call.0.to_vec());
                self.moves.note(call, moved);
            }
        }
    }
}
