//! Reusable buffers for data that are to be written to the disk. Another thread frees these buffers. So, without reuse and with thousands
//! of files, the allocator would return pages to the system and fetch them again.

use std::sync::{Arc, Mutex};
use threadbare_base::lock;

use threadbare_files::Data;

/// A pool of empty buffers. Its clones share the buffers.
#[derive(Debug, Clone, Default)]
pub(super) struct Rooms(Arc<Mutex<Vec<Vec<u8>>>>);

impl Rooms {
    /// Takes an empty buffer.
    pub(super) fn take(&self) -> Vec<u8> {
        lock(&self.0).pop().unwrap_or_default()
    }

    /// Wraps bytes for the file service. The buffer returns to the pool after the write.
    pub(super) fn lend(&self, bytes: Vec<u8>) -> Data<'static> {
        Data::Owned(Box::new(Lent {
            bytes,
            rooms: self.clone(),
        }))
    }

    /// Puts a buffer back into the pool.
    pub(super) fn put(&self, mut room: Vec<u8>) {
        if (1..=ROOM_BYTES_MAX).contains(&room.capacity()) {
            room.clear();
            let mut rooms = lock(&self.0);
            if rooms.len() < ROOMS_MAX {
                rooms.push(room);
            }
        }
    }
}

/// Bytes in a buffer that returns to the pool.
struct Lent {
    bytes: Vec<u8>,
    rooms: Rooms,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.rooms.put(std::mem::take(&mut self.bytes));
    }
}

/// Maximum number of buffers. They are enough for two slots of a turn with a thousand recordings.
const ROOMS_MAX: usize = 128;
/// Maximum size of a buffer in the pool. It is a second of stereo at 16 kHz.
const ROOM_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_emptied_and_only_a_few_are_stored() {
        let rooms = Rooms::default();
        let mut room = rooms.take();
        room.extend([1; 1000]);
        let address = room.as_ptr();
        let Data::Owned(lent) = rooms.lend(room) else {
            panic!("it is not copied");
        };
        assert_eq!((*lent).as_ref(), [1; 1000]);
        assert_eq!(rooms.take().capacity(), 0);
        drop(lent);
        let room = rooms.take();
        assert!(room.is_empty() && room.as_ptr() == address);
        for _ in 0..2 * ROOMS_MAX {
            rooms.put(vec![0; 8]);
        }
        rooms.put(vec![0; ROOM_BYTES_MAX + 1]);
        assert_eq!(lock(&rooms.0).len(), ROOMS_MAX);
    }
}
