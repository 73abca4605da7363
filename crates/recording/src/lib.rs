//! Records streams and calls to files.
//!
//! ```text
//!   a stream's or call's thread --ring--> Running: Tracks, Gate --frames--> Part: FileMeter, Container --bytes--> ts:disk
//!   packets of a call           --queue-------------------------------------^
//! ```
//!
//! | part | thread |
//! |---|---|
//! | [`Recorder`] | any thread: a handle that sends orders |
//! | `Writer`, with `FileTable`, `Running` and `Part` | the thread `recorder`: mixes, measures, encodes; it never waits for a disk |
//! | files | threads of `threadbare-files`, which limits the data of all files that wait for the disk |
//! | `Index` | any thread, under a lock: the list of recordings, which is also in the journal of each folder |
//!
//! The name of a file contains `.part` until the file is complete. If a process is killed, the next process repairs its files
//! ([`Recorder::open_root`]).
//!
//! This crate is a part of the gateway `threadbare`, and not a public interface.
#![forbid(unsafe_code)]

mod container;
mod destination;
mod file_table;
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
pub use self::orders::{
    Change, Deleted, FileEvent, NewRecording, PacketRecorder, RecordingId, Source, WayEnd,
};
pub use self::place::{OpenRecording, Pieces, Place, ReadError};
pub use self::recorder::{Counted, Recorder, RootError};
pub use self::sound::Coding;
pub use self::tracks::Tracks;
