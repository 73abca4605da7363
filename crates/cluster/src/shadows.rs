//! Copies of the stream states of other nodes. They are updated once a second, until this node continues the streams, or the
//! streams end.

use std::collections::HashMap;
use std::time::Duration;

use super::service::{Copies, Shadow, StreamCopy};

/// The copies from other processes, and those of services that this node has given up.
#[derive(Debug, Default)]
pub(super) struct Shadows {
    of: HashMap<u64, ProcessCopies>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct ProcessCopies {
    shadow: Shadow,
    /// Time of the last copy.
    heard_ns: u64,
}

impl Shadows {
    /// Adds copies. Drops copies that do not fit.
    pub(super) fn put(&mut self, now_ns: u64, copies: Copies) {
        let known = self.of.entry(copies.process).or_default();
        known.heard_ns = now_ns;
        for (stream, state) in copies.streams {
            if let Some(before) = known.shadow.remove(&stream) {
                self.bytes -= size(&before);
            }
            let Some(state) = state else { continue };
            let copy = StreamCopy {
                is_last: copies.is_last,
                at_ns: now_ns,
                state,
            };
            if self.bytes + size(&copy) <= BYTES_MAX {
                self.bytes += size(&copy);
                known.shadow.insert(stream, copy);
            }
        }
    }

    /// Takes the copies of a process, which can be used only once.
    pub(super) fn take(&mut self, process: u64) -> Shadow {
        let known = self.of.remove(&process).unwrap_or_default();
        self.bytes -= known.shadow.values().map(size).sum::<usize>();
        known.shadow
    }

    /// Drops copies that were not updated for [`KEPT_NS`].
    pub(super) fn forget_old(&mut self, now_ns: u64) {
        let is_old = |known: &ProcessCopies| now_ns.saturating_sub(known.heard_ns) > KEPT_NS;
        let old = self.of.iter().filter(|(_, known)| is_old(known));
        let old: Vec<u64> = old.map(|(process, _)| *process).collect();
        for process in old {
            self.take(process);
        }
    }
}

fn size(copy: &StreamCopy) -> usize {
    copy.state.0.len() + COPY_BYTES
}

/// Maximum bytes of all copies: enough for 20,000 calls.
const BYTES_MAX: usize = 64 << 20;
/// Bytes that are counted for each copy in addition to the state.
const COPY_BYTES: usize = 64;
/// Time for which copies without updates are kept. After this time, the calls have continued at some node, or have ended.
const KEPT_NS: u64 = Duration::from_secs(120).as_nanos() as u64;

#[cfg(test)]
mod tests {
    use super::super::service::Opaque;
    use super::*;

    fn copies(process: u64, is_last: bool, streams: &[(u64, Option<usize>)]) -> Copies {
        let stream =
            |(stream, len): &(u64, Option<usize>)| (*stream, len.map(|len| Opaque(vec![0; len])));
        Copies {
            process,
            is_last,
            streams: streams.iter().map(stream).collect(),
        }
    }

    #[test]
    fn the_latest_copy_of_each_stream_is_stored_until_the_stream_ends() {
        let mut shadows = Shadows::default();
        shadows.put(1, copies(7, false, &[(1, Some(10)), (2, Some(10))]));
        shadows.put(2, copies(7, false, &[(1, Some(20)), (2, None)]));
        shadows.put(3, copies(8, false, &[(1, Some(30))]));
        shadows.put(4, copies(7, true, &[(3, Some(5))]));
        let shadow = shadows.take(7);
        let (first, third) = (&shadow[&1], &shadow[&3]);
        assert_eq!((shadow.len(), first.state.0.len(), first.at_ns), (2, 20, 2));
        assert_eq!((first.is_last, third.is_last), (false, true));
        assert!(shadows.take(7).is_empty());
        shadows.forget_old(3 + KEPT_NS);
        assert_eq!(shadows.take(8).len(), 1);
        shadows.put(3, copies(8, false, &[(1, Some(30))]));
        shadows.forget_old(4 + KEPT_NS);
        assert!(shadows.take(8).is_empty() && shadows.bytes == 0);
    }

    #[test]
    fn copies_of_other_nodes_are_bounded() {
        let mut shadows = Shadows::default();
        for stream in 0..100 {
            shadows.put(1, copies(stream, false, &[(stream, Some(1 << 20))]));
        }
        assert!(shadows.bytes <= BYTES_MAX && shadows.bytes > BYTES_MAX - (2 << 20));
        // A newer copy of the same stream replaces the existing one.
        shadows.put(2, copies(0, false, &[(0, Some(8))]));
        assert_eq!(shadows.take(0)[&0].state.0.len(), 8);
    }
}
