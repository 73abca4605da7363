//! The state of calls on disk: what the control thread and the media threads hand over, a thread of its own writes.
//!
//! ```text
//!  control thread: calls that changed ──┐
//!                                       ├─→ Shelf (the latest of each) ─→ thread "store" ─→ one file
//!  media threads: streams, each second ─┘
//! ```
//!
//! Nobody waits for the disk. When it is slow, what comes meanwhile takes the place of what waits for it.

mod copier;
mod file;
mod shelf;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) use self::copier::Copier;
pub(super) use self::file::{Before, FileError, Identity, Saved};
pub(super) use self::shelf::Shelf;

use self::file::StateFile;

/// The thread, from outside. Dropped, it writes what waits.
#[derive(Debug)]
pub(super) struct Store {
    shelf: Arc<Shelf>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Opens the file, or makes it. What was in it stays until it is replaced.
    ///
    /// # Errors
    /// The file cannot be opened, another process has it, it is damaged, or threads run out.
    pub(super) fn open(path: &Path) -> Result<(Store, Saved), FileError> {
        let (file, saved) = StateFile::open(path)?;
        let shelf = Arc::new(Shelf::new(saved.keys()));
        let taken = shelf.clone();
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write(file, &taken));
        let thread = thread.map_err(|error| FileError::open(path, error))?;
        let thread = Some(thread);
        Ok((Store { shelf, thread }, saved))
    }

    /// Where to put what is to be written.
    pub(super) fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Writes what waits. `is_last`: no media leave any more, so that the states of the streams say all.
    pub(super) fn close(mut self, is_last: bool) {
        self.end(is_last);
    }

    fn end(&mut self, is_last: bool) {
        self.shelf.end(is_last);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the state has panicked");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Until the end.
fn write(mut file: StateFile, shelf: &Shelf) {
    let mut is_well = true;
    while let Some(batch) = shelf.take(GATHER) {
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
                    tracing::info!("the state of calls is written in time again");
                }
                is_well = true;
            }
            Ok(()) if is_well => {
                let ms = late.as_millis();
                tracing::warn!(ms, "the state of calls is written late: the disk is slow");
                is_well = false;
            }
            Err(error) if is_well => {
                let file = file.path().display();
                tracing::error!(%file, %error, "the state of calls is not written, and would be lost with this process");
                is_well = false;
            }
            _ => {}
        }
        if written.is_err() {
            shelf.put_back(batch);
            if !shelf.wait_for_end(AGAIN) {
                continue;
            }
            // One last time.
            if let Some(batch) = shelf.take(Duration::ZERO)
                && let Err(error) = file.write(&batch)
            {
                let file = file.path().display();
                tracing::error!(%file, %error, "the state of calls is not written");
            }
            return;
        }
    }
}

/// Changes of so long are written together: some calls are set up by several messages in a row, and a call's state is to be on disk within 50 ms.
const GATHER: Duration = Duration::from_millis(20);
/// Worth a line in the log.
const LATE: Duration = Duration::from_secs(1);
/// A full disk may have room again.
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
    fn what_was_put_is_there_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let (store, saved) = Store::open(&path).expect("a new file");
        assert!(saved.calls.is_empty() && saved.before == Before::Stopped);
        let mode = path.metadata().expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "keys are in it");
        let shelf = store.shelf();
        shelf.put_call(call("a"), Some(vec![1]));
        shelf.put_call(call("b"), Some(vec![2]));
        shelf.put_call(call("a"), Some(vec![3]));
        shelf.put_call(call("b"), None);
        shelf.begin(StreamId(7));
        shelf.put_stream(StreamId(7), vec![4]);
        shelf.put_stream(StreamId(8), vec![5]);
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
        // Nobody goes on with the stream.
        store.shelf().sweep();
        store.close(true);
        let (_store, saved) = Store::open(&path).expect("the file");
        assert!(saved.streams.is_empty());
        assert_eq!((saved.calls.len(), saved.before), (1, Before::Stopped));
    }

    /// A power cut tears what the kernel had not written: the machine has started since the file was changed.
    #[test]
    fn what_a_power_cut_has_torn_is_set_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let (store, _) = Store::open(&path).expect("a new file");
        store.shelf().put_call(call("a"), Some(vec![1]));
        store.close(false);
        let file = std::fs::File::options().write(true).open(&path);
        let file = file.expect("the file");
        let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1);
        file.set_len(70_000).expect("torn");
        file.set_modified(long_ago).expect("its time");
        let (_store, saved) = Store::open(&path).expect("a new file");
        assert!(saved.calls.is_empty());
        let aside = folder.path().join("calls.redb.damaged");
        assert_eq!(aside.metadata().expect("the old one").len(), 70_000);
    }

    #[test]
    fn a_file_has_one_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let (_store, _) = Store::open(&path).expect("a new file");
        let error = Store::open(&path).expect_err("it is open").to_string();
        assert!(
            error.contains("another process") && error.contains("calls.redb"),
            "{error}"
        );
    }

    #[test]
    fn damage_is_refused_and_nothing_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.redb");
        let text = folder.path().join("text");
        std::fs::write(&text, "not a file of ours").expect("written");
        let (store, _) = Store::open(&path).expect("a new file");
        for n in 0..100_u32 {
            store
                .shelf()
                .put_call(call(&n.to_string()), Some(vec![1; 2000]));
        }
        store.close(true);
        let good = std::fs::read(&path).expect("the file");
        let mut holed = good.clone();
        holed[good.len() / 2..].fill(0xa5);
        for bytes in [&good[..good.len() / 2], &good[..100], &holed] {
            std::fs::write(&path, bytes).expect("written");
            let error = Store::open(&path).expect_err("damage");
            assert!(error.to_string().contains("calls.redb"), "{error}");
            assert!(error.help().contains("move"), "{error}");
            assert_eq!(std::fs::read(&path).expect("the file").len(), bytes.len());
        }
        assert!(Store::open(&text).is_err());
        let left = std::fs::read_to_string(&text).expect("the file");
        assert_eq!(left, "not a file of ours");
    }
}
