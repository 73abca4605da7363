//! Calls that have ended, until the last readings of their streams are there: the streams' threads take them, and nobody waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};

use threadbare_control::calls::{CallId, CallRecord, StreamId};
use threadbare_relay::{CallHandle, Medium};

use super::reading::{Reading, SideCounts};
use super::wake::Wake;

/// A call that has ended.
#[derive(Debug)]
pub(super) struct EndedCall {
    pub(super) record: Box<CallRecord>,
    /// Its streams that had begun.
    pub(super) streams: BTreeMap<StreamId, EndedStream>,
}

/// A stream of it.
#[derive(Debug)]
pub(super) struct EndedStream {
    pub(super) reading: Reading,
    /// What each side has added since it was looked at last.
    pub(super) added: [SideCounts; 2],
}

/// Those on their way. What is in here is bounded by the streams that have ended: each sends one message.
#[derive(Debug)]
pub(super) struct Endings {
    tell: Sender<(StreamId, Option<Reading>)>,
    told: Receiver<(StreamId, Option<Reading>)>,
    wake: Wake,
    /// Streams without their last reading.
    open: BTreeMap<StreamId, (CallId, [SideCounts; 2])>,
    /// By call. Streams of a call that goes on are kept for its end.
    read: BTreeMap<CallId, BTreeMap<StreamId, EndedStream>>,
    records: VecDeque<Box<CallRecord>>,
}

impl Endings {
    /// None. The bell rings when there may be something to poll.
    pub(super) fn new(wake: Wake) -> Endings {
        let (tell, told) = channel();
        Endings {
            tell,
            told,
            wake,
            open: BTreeMap::new(),
            read: BTreeMap::new(),
            records: VecDeque::new(),
        }
    }

    /// A stream is about to end.
    pub(super) fn begin(
        &mut self,
        stream: StreamId,
        call: CallId,
        counted: [SideCounts; 2],
        handle: &CallHandle<Medium>,
    ) {
        let last = LastWord {
            stream,
            reading: None,
            tell: self.tell.clone(),
            wake: self.wake.clone(),
        };
        self.open.insert(stream, (call, counted));
        let _ = handle.command(move |medium, _| {
            let mut last = last;
            last.reading = Some(Reading::of(medium));
        });
    }

    /// The call has ended, behind its streams.
    pub(super) fn end(&mut self, record: Box<CallRecord>) {
        self.records.push_back(record);
        self.wake.ring();
    }

    /// Whether calls wait for readings of their streams.
    pub(super) fn is_waiting(&self) -> bool {
        !self.records.is_empty()
    }

    /// A call whose readings are all there.
    pub(super) fn poll(&mut self) -> Option<EndedCall> {
        for (stream, reading) in self.told.try_iter() {
            let Some((call, counted)) = self.open.remove(&stream) else {
                continue;
            };
            // A stream that has failed has none.
            let Some(reading) = reading else {
                continue;
            };
            let now = reading.sides.map(|side| side.counts);
            let added = [0, 1].map(|side: usize| now[side].since(&counted[side]));
            let ended = EndedStream { reading, added };
            let streams = self.read.entry(call).or_default();
            // As many as a record has.
            if streams.len() < STREAMS_MAX {
                streams.insert(stream, ended);
            }
        }
        let is_open = |record: &CallRecord| {
            let streams = &mut record.streams.iter();
            streams.any(|one| self.open.contains_key(&one.stream))
        };
        let done = self.records.iter().position(|record| !is_open(record))?;
        let record = self.records.remove(done)?;
        let streams = self.read.remove(&record.call).unwrap_or_default();
        Some(EndedCall { record, streams })
    }
}

/// Tells the last reading of a stream, also if there is none.
struct LastWord {
    stream: StreamId,
    reading: Option<Reading>,
    tell: Sender<(StreamId, Option<Reading>)>,
    wake: Wake,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        // Fails once the relay has ended.
        let _ = self.tell.send((self.stream, self.reading.take()));
        self.wake.ring();
    }
}

/// Of a call: as many dialogs as a registry lets a call have, with some `m=` lines each.
const STREAMS_MAX: usize = 256;
