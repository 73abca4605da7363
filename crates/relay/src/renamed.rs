//! Former names of public items. They remain for one release.

use crate::MediaSession;
use crate::late_packet::{LatePacket, LatePacketHandler};
use crate::listen::Listeners;
use crate::snapshot::{LineSnapshot, SharedSnapshot};

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

/// The former name of [`MediaSession`].
#[deprecated(since = "0.3.0", note = "renamed to `MediaSession`")]
pub type Medium = MediaSession;

impl MediaSession {
    /// Handles late packets. This is the former name of [`handle_late_packets`](Self::handle_late_packets).
    #[deprecated(since = "0.3.0", note = "renamed to `handle_late_packets`")]
    pub fn handle_strays(&mut self, now_ns: u64, late_packets: Vec<LatePacket>) {
        self.handle_late_packets(now_ns, late_packets);
    }
}
