//! Saves calls on disk. The control thread and the media threads queue states, and a separate thread writes them.
//!
//! ```text
//!  control thread: calls that changed ──┐
//!                                       ├─→ WriteQueue (the latest of each) ─→ thread "store" ─→ one file
//!  media threads: streams, each second ─┘
//! ```
//!
//! No other thread waits for the disk. If the disk is slow, newer states replace queued ones.

mod copier;
mod file;
mod write_queue;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) use self::copier::Copier;
pub(super) use self::file::{Before, FileError, Identity, Saved};
pub(super) use self::write_queue::WriteQueue;

use self::file::StateFile;

/// A handle to the writing thread. Dropping it writes the queued states.
#[derive(Debug)]
pub(super) struct Store {
    write_queue: Arc<WriteQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Opens the file, or creates it. A damaged file is renamed. The states in the file stay there until they are replaced or deleted.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, another process has it open, or threads run out.
    pub(super) fn open(path: &Path) -> Result<(Store, Saved), FileError> {
        let (file, saved) = StateFile::open(path)?;
        let write_queue = Arc::new(WriteQueue::new(saved.keys()));
        let taken = write_queue.clone();
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write(file, &taken));
        let thread = thread.map_err(|error| FileError::open(path, error))?;
        let thread = Some(thread);
        Ok((
            Store {
                write_queue,
                thread,
            },
            saved,
        ))
    }

    /// Returns the queue of states to be written.
    pub(super) fn write_queue(&self) -> &Arc<WriteQueue> {
        &self.write_queue
    }

    /// Writes the queued states, and ends the thread. `is_last` means that no more media are sent, so the states of the streams are final.
    pub(super) fn close(mut self, is_last: bool) {
        self.end(is_last);
    }

    fn end(&mut self, is_last: bool) {
        self.write_queue.end(is_last);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread 'store' has panicked");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Runs the writing thread.
fn write(mut file: StateFile, write_queue: &WriteQueue) {
    let mut is_well = true;
    while let Some(batch) = write_queue.take(GATHER) {
        let written = file.write(&batch);
        let late = batch.since.elapsed();
        tracing::trace!(
            changes = batch.changes.len(),
            us = late.as_micros() as u64,
            "written"
        );
        match &written {
            Ok(()) if late <= LATE => {
                if !is_well {
                    tracing::info!("calls are saved without delay again");
                }
                is_well = true;
            }
            Ok(()) if is_well => {
                let ms = late.as_millis();
                tracing::warn!(ms, "calls are saved late, because the disk is slow");
                is_well = false;
            }
            Err(error) if is_well => {
                let file = file.path().display();
                tracing::error!(%file, %error, "cannot save calls; if the process ends now, these calls are lost");
                is_well = false;
            }
            _ => {}
        }
        if written.is_err() {
            write_queue.put_back(batch);
            if !write_queue.wait_for_end(AGAIN) {
                continue;
            }
            // The queue has ended, so this is the last attempt.
            if let Some(batch) = write_queue.take(Duration::ZERO)
                && let Err(error) = file.write(&batch)
            {
                let file = file.path().display();
                tracing::error!(%file, %error, "cannot save calls");
            }
            return;
        }
    }
}

/// Time for which changes are collected before they are written, because a call may be set up by several messages in a row. The state of a
/// call must be on disk within 50 ms.
const GATHER: Duration = Duration::from_millis(20);
/// Delay above which a write is logged as late.
const LATE: Duration = Duration::from_secs(1);
/// Pause after a failed write. After the pause, a full disk may have room again.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use threadbare_control::calls::{CallId, StreamId};

    use super::*;

    fn call(name: &str) -> CallId {
        CallId::new(name.as_bytes())
    }

    #[test]
    fn saved_states_are_read_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let (store, saved) = Store::open(&path).expect("a new file");
        assert!(saved.calls.is_empty() && saved.before == Before::Stopped);
        let mode = path.metadata().expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "the file contains keys");
        let write_queue = store.write_queue();
        write_queue.put_call(call("a"), Some(vec![1]));
        write_queue.put_call(call("b"), Some(vec![2]));
        write_queue.put_call(call("a"), Some(vec![3]));
        write_queue.put_call(call("b"), None);
        write_queue.begin(StreamId(7));
        write_queue.put_stream(StreamId(7), vec![4]);
        write_queue.put_stream(StreamId(8), vec![5]);
        store.close(false);
        let identity = saved.identity;
        let (store, saved) = Store::open(&path).expect("the file");
        assert_eq!(saved.calls, [(call("a"), vec![3])]);
        assert_eq!(
            saved.streams.into_iter().collect::<Vec<_>>(),
            [(StreamId(7), vec![4])]
        );
        assert_eq!(saved.before, Before::Died);
        assert_eq!(saved.identity, identity);
        // No call has continued the stream, so its state is deleted.
        store.write_queue().sweep();
        store.close(true);
        let (_store, saved) = Store::open(&path).expect("the file");
        assert!(saved.streams.is_empty());
        assert_eq!((saved.calls.len(), saved.before), (1, Before::Stopped));
    }

    #[test]
    fn a_file_that_another_process_has_open_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let (_store, _) = Store::open(&path).expect("a new file");
        let error = Store::open(&path).expect_err("it is open").to_string();
        assert!(
            error.contains("another process") && error.contains("calls.redb"),
            "{error}"
        );
    }

    /// A damaged file is renamed, and the gateway starts without it.
    #[test]
    fn a_damaged_file_is_renamed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let aside = folder.path().join("calls.redb.damaged");
        let (store, _) = Store::open(&path).expect("a new file");
        for n in 0..100_u32 {
            store
                .write_queue()
                .put_call(call(&n.to_string()), Some(vec![1; 2000]));
        }
        store.close(true);
        let good = std::fs::read(&path).expect("the file");
        let mut holed = good.clone();
        holed[good.len() / 2..].fill(0xa5);
        let text = b"not a file of ours".as_slice();
        let zeros = vec![0; 70_000];
        for bytes in [&good[..good.len() / 2], &good[..100], &holed, text, &zeros] {
            std::fs::write(&path, bytes).expect("written");
            let (store, saved) = Store::open(&path).expect("a new file");
            assert!(saved.calls.is_empty());
            assert!(std::fs::read(&aside).expect("the old one") == bytes);
            store.write_queue().put_call(call("new"), Some(vec![2]));
            store.close(true);
            let (_store, saved) = Store::open(&path).expect("the file");
            assert_eq!(saved.calls, [(call("new"), vec![2])]);
        }
    }
}
