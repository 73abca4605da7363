//! Ended calls that wait for the last statistics of their streams. The streams' threads send the statistics, and no thread
//! blocks meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};

use threadbare_control::calls::{CallId, CallRecord, StreamId};
use threadbare_relay::{CallHandle, MediaSession};

use super::measured::{Measured, SideCounts};
use super::waker::WakeSignal;

/// A call that has ended, with its last statistics.
#[derive(Debug)]
pub(super) struct EndedCall {
    pub(super) record: Box<CallRecord>,
    /// The streams of the call that had started.
    pub(super) streams: BTreeMap<StreamId, EndedStream>,
}

/// A stream of an ended call.
#[derive(Debug)]
pub(super) struct EndedStream {
    pub(super) measured: Measured,
    /// Counts of each side since the previous measurement.
    pub(super) added: [SideCounts; 2],
}

/// Calls that are ending. Each stream sends one message at its end, so the number of ended streams bounds the queue.
#[derive(Debug)]
pub(super) struct Endings {
    tell: Sender<(StreamId, Option<Measured>)>,
    told: Receiver<(StreamId, Option<Measured>)>,
    wake: WakeSignal,
    /// Streams whose last statistics have not come yet.
    open: BTreeMap<StreamId, (CallId, [SideCounts; 2])>,
    /// Statistics of ended streams, by call. A stream that ends before its call waits here for the call's end.
    read: BTreeMap<CallId, BTreeMap<StreamId, EndedStream>>,
    records: VecDeque<Box<CallRecord>>,
}

impl Endings {
    /// Creates an empty queue. `wake` is signalled when there may be something to poll.
    pub(super) fn new(wake: WakeSignal) -> Endings {
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

    /// Registers a stream that is about to end.
    pub(super) fn begin(
        &mut self,
        stream: StreamId,
        call: CallId,
        counted: [SideCounts; 2],
        handle: &CallHandle<MediaSession>,
    ) {
        let last = LastWord {
            stream,
            measured: None,
            tell: self.tell.clone(),
            wake: self.wake.clone(),
        };
        self.open.insert(stream, (call, counted));
        let _ = handle.command(move |session, _| {
            let mut last = last;
            last.measured = Some(Measured::of(session));
        });
    }

    /// Registers the end of a call. Call this after the ends of its streams.
    pub(super) fn end(&mut self, record: Box<CallRecord>) {
        self.records.push_back(record);
        self.wake.ring();
    }

    /// Whether calls wait for statistics of their streams.
    pub(super) fn is_waiting(&self) -> bool {
        !self.records.is_empty()
    }

    /// Returns a call whose statistics are complete.
    pub(super) fn poll(&mut self) -> Option<EndedCall> {
        for (stream, measured) in self.told.try_iter() {
            let Some((call, counted)) = self.open.remove(&stream) else {
                continue;
            };
            // There are no statistics if the stream had failed.
            let Some(measured) = measured else {
                continue;
            };
            let now = measured.sides.map(|side| side.counts);
            let added = [0, 1].map(|side: usize| now[side].since(&counted[side]));
            let ended = EndedStream { measured, added };
            let streams = self.read.entry(call).or_default();
            // A CDR has at most this many streams.
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

/// Sends the last statistics of a stream when it is dropped, or `None` if there are none.
struct LastWord {
    stream: StreamId,
    measured: Option<Measured>,
    tell: Sender<(StreamId, Option<Measured>)>,
    wake: WakeSignal,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        // This fails if the relay has ended.
        let _ = self.tell.send((self.stream, self.measured.take()));
        self.wake.ring();
    }
}

/// Maximum number of streams of a call in a CDR. It allows the maximum number of dialogs, with some `m=` lines each.
const STREAMS_MAX: usize = 256;
