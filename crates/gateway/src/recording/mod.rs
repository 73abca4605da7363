//! What streams and calls carry, written to files.
//!
//! ```text
//!   a stream's or call's thread --ring--> Running: Tracks, Gate --frames--> Part: FileMeter, Container --bytes--> ts:disk
//!   packets of a call           --queue-------------------------------------^
//! ```
//!
//! | what | who |
//! |---|---|
//! | [`Recorder`] | orders from any thread |
//! | `Writer`, and in it `Desk`, `Running` and `Part` | the thread `recorder`: mixes, measures, encodes; it never waits for a disk |
//! | files | `threadbare-files`: what waits for the disk is bounded for all of them |
//! | `Index` | any thread, under its lock: what was recorded; a journal in each folder has the same |
//!
//! A file has a name with `.part` until it is whole; what a process leaves behind that is killed, the next one repairs ([`Recorder::open_root`]).

mod container;
mod desk;
mod destination;
mod gate;
mod index;
mod loudness;
mod mka;
mod orders;
mod outbox;
mod part;
mod pcap;
mod place;
mod recorder;
mod repair;
mod rooms;
mod running;
mod sound;
mod tracks;
mod wav;
mod writer;

pub use self::index::{Asked, Entry, RecordingState, Subject, recording_message};
pub use self::loudness::FileLoudness;
pub use self::orders::{Change, Deleted, Ear, NewRecording, RecordingId, Source, Told, WayEnd};
pub use self::place::{Pieces, Place, ReadError, Reading};
pub use self::recorder::{Counted, Recorder, RootError};
pub use self::sound::Coding;
pub use self::tracks::Tracks;
