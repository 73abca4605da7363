//! Former names of public items, for one release.

use crate::late_packet::{LatePacket, LatePacketHandler};
use crate::listen::Listeners;
use crate::snapshot::{LineSnapshot, Pace, SharedSnapshot};
use crate::{AudioSession, MediaCallState, MediaSession};

/// The former name of [`SharedSnapshot`].
#[deprecated(since = "0.3.0", note = "renamed to `SharedSnapshot`")]
pub type Board = SharedSnapshot;

/// The former name of [`LineSnapshot`].
#[deprecated(since = "0.3.0", note = "renamed to `LineSnapshot`")]
pub type Shown = LineSnapshot;

/// The former name of [`Listeners`].
#[deprecated(since = "0.3.0", note = "renamed to `Listeners`")]
pub type Ears = Listeners;

/// The former name of [`LatePacket`].
#[deprecated(since = "0.3.0", note = "renamed to `LatePacket`")]
pub type Stray = LatePacket;

/// The former name of [`LatePacketHandler`].
#[deprecated(since = "0.3.0", note = "renamed to `LatePacketHandler`")]
pub type StrayTaker = LatePacketHandler;

/// The former name of [`LATE_PACKET_BYTES_MAX`](crate::LATE_PACKET_BYTES_MAX).
#[deprecated(since = "0.3.0", note = "renamed to `LATE_PACKET_BYTES_MAX`")]
pub const STRAY_BYTES_MAX: usize = crate::LATE_PACKET_BYTES_MAX;

/// The former name of [`AudioSession`], for calls.
#[deprecated(since = "0.3.0", note = "renamed to `AudioSession`")]
pub type MediaCall = AudioSession;

/// The former name of [`AudioSession`], for streams.
#[deprecated(since = "0.3.0", note = "renamed to `AudioSession`")]
pub type MediaLine = AudioSession;

/// The former name of [`MediaSession`].
#[deprecated(since = "0.3.0", note = "renamed to `MediaSession`")]
pub type Medium = MediaSession;

impl MediaSession {
    /// The former name of [`handle_late_packets`](Self::handle_late_packets).
    #[deprecated(since = "0.3.0", note = "renamed to `handle_late_packets`")]
    pub fn handle_strays(&mut self, now_ns: u64, late_packets: Vec<LatePacket>) {
        self.handle_late_packets(now_ns, late_packets);
    }
}

impl AudioSession {
    /// The former name of [`with_listeners`](Self::with_listeners).
    #[must_use]
    #[deprecated(since = "0.3.0", note = "renamed to `with_listeners`")]
    pub fn heard_by(self, listeners: Listeners) -> AudioSession {
        self.with_listeners(listeners)
    }

    /// The former name of [`update_listeners`](Self::update_listeners).
    #[deprecated(since = "0.3.0", note = "renamed to `update_listeners`")]
    pub fn look_who_listens(&mut self) {
        self.update_listeners();
    }

    /// The former name of [`flush_listeners`](Self::flush_listeners).
    #[deprecated(since = "0.3.0", note = "renamed to `flush_listeners`")]
    pub fn tell_rest(&mut self) {
        self.flush_listeners();
    }

    /// The former name of [`wait_for_late_packets`](Self::wait_for_late_packets).
    #[deprecated(since = "0.3.0", note = "renamed to `wait_for_late_packets`")]
    pub fn wait_for_strays(&mut self, until_ns: u64, state: &MediaCallState) {
        self.wait_for_late_packets(until_ns, state);
    }

    /// The former name of [`publish_to`](Self::publish_to).
    #[must_use]
    #[deprecated(since = "0.3.0", note = "renamed to `publish_to`")]
    pub fn shown_on(self, snapshot: SharedSnapshot, pace: Pace) -> AudioSession {
        self.publish_to(snapshot, pace)
    }
}
