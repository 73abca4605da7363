//! Operations of a file in memory, compared with a model that does everything at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use proptest::prelude::*;

use super::*;

const LINGER_NS: u64 = 500;
const SYNC_NS: u64 = 2000;
const BLOCK_BYTES: usize = 8192;

type Core = FileCore<u32>;

fn plan(access: Access) -> Plan {
    Plan {
        path: Path::new("/r/file").into(),
        access,
        with_parents: false,
        permissions: 0o666,
        block_bytes: BLOCK_BYTES,
        linger_ns: LINGER_NS,
        sync_every_ns: None,
    }
}

/// Returns a descriptor of any kind, which is not used.
fn descriptor() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

fn regular(bytes: u64) -> Done {
    Done::Stat(Stat {
        bytes,
        is_regular: true,
    })
}

fn open(plan: Plan, stat: Done) -> Core {
    let mut core = Core::new(plan);
    assert!(matches!(core.poll_job(0), Some(Job::Open { .. })));
    core.handle_done(0, Ok(Done::Opened(descriptor())));
    assert!(matches!(core.poll_job(0), Some(Job::Inspect { .. })));
    core.handle_done(0, Ok(stat));
    core
}

fn owned(bytes: &[u8]) -> Data<'static> {
    Data::Owned(Box::new(bytes.to_vec()))
}

fn os(code: i32) -> io::Result<Done> {
    Err(io::Error::from_raw_os_error(code))
}

/// Executes a write up to `most` bytes.
fn write_into(file: &mut Vec<u8>, writing: Writing, most: usize) -> Done {
    let bytes: Vec<u8> = (writing.slices().iter())
        .flat_map(|slice| slice.to_vec())
        .take(most)
        .collect();
    let at = usize::try_from(writing.at.unwrap()).unwrap();
    let end = at + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(&bytes);
    Done::Wrote(writing, bytes.len())
}

/// Executes all due operations.
fn work(core: &mut Core, file: &mut Vec<u8>, now_ns: u64) {
    while let Some(job) = core.poll_job(now_ns) {
        let done = match job {
            Job::Write { writing, .. } => write_into(file, writing, usize::MAX),
            Job::Truncate { bytes, .. } => {
                file.truncate(bytes.try_into().unwrap());
                Done::Nothing
            }
            _ => Done::Nothing,
        };
        core.handle_done(now_ns, Ok(done));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Copy(usize),
    Owned(usize),
    Kept(usize),
    Seek(u64),
    Order(u8),
    DropOldest,
    DropQueued,
    /// Lets time pass. The first operation after that writes at most this number of bytes.
    Work(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..3000usize).prop_map(Step::Copy),
        2 => (1..9000usize).prop_map(Step::Owned),
        1 => (1..3000usize).prop_map(Step::Kept),
        1 => (0..20_000u64).prop_map(Step::Seek),
        1 => (0..2u8).prop_map(Step::Order),
        1 => Just(Step::DropOldest),
        1 => Just(Step::DropQueued),
        6 => (0..700u64, 1..10_000usize).prop_map(|(ns, most)| Step::Work(ns, most)),
    ]
}

/// An entry of the model's list.
#[derive(Debug, Clone, PartialEq)]
enum Twin {
    Write(Vec<u8>, bool),
    Seek(u64),
    Sync,
    Restart,
}

proptest! {
    /// The model executes each entry completely when the core begins it, and has no sums.
    #[test]
    fn file_has_the_written_bytes(steps in prop::collection::vec(step(), 0..100), append in any::<bool>()) {
        let begin = if append { 100 } else { 0 };
        let access = if append { Access::Append } else { Access::Write };
        let mut core = open(plan(access), regular(begin as u64));
        let (mut file, mut expected) = (vec![1; begin], vec![1; begin]);
        let mut list: VecDeque<Twin> = VecDeque::new();
        let (mut cursor, mut now_ns, mut next_byte) = (begin, 0u64, 0u8);
        let (mut admitted, mut released, mut dropped) = (0usize, 0usize, 0usize);
        let mut bytes_of = |n: usize| {
            next_byte = next_byte.wrapping_add(1);
            vec![next_byte; n]
        };
        for step in &steps {
            match *step {
                Step::Copy(n) | Step::Owned(n) | Step::Kept(n) => {
                    let bytes = bytes_of(n);
                    admitted += n;
                    let is_kept = matches!(step, Step::Kept(_));
                    match step {
                        Step::Owned(_) => core.handle_write(owned(&bytes), is_kept, now_ns),
                        _ => core.handle_write(Data::Copy(&bytes), is_kept, now_ns),
                    }
                    // A small copy joins the block before it.
                    match list.back_mut() {
                        Some(Twin::Write(block, kept))
                            if !matches!(step, Step::Owned(_))
                                && *kept == is_kept
                                && block.len() + n <= SMALL_BLOCK_BYTES
                                && block.capacity() == 1 << 20 =>
                        {
                            block.extend(bytes);
                        }
                        _ => {
                            // A block of copies is recognised by its capacity.
                            let mut block = match step {
                                Step::Owned(_) => Vec::new(),
                                _ => Vec::with_capacity(1 << 20),
                            };
                            block.extend(bytes);
                            list.push_back(Twin::Write(block, is_kept));
                        }
                    }
                }
                Step::Seek(position) => {
                    core.handle_seek(position);
                    list.push_back(Twin::Seek(position));
                }
                Step::Order(0) => {
                    core.handle_step(super::Step::Sync, 0);
                    list.push_back(Twin::Sync);
                }
                Step::Order(_) => {
                    core.handle_step(super::Step::Restart, 0);
                    list.push_back(Twin::Restart);
                }
                Step::DropOldest => {
                    let place = list.iter().position(|entry| matches!(entry, Twin::Write(_, false)));
                    let expected = place.map(|place| match list.remove(place) {
                        Some(Twin::Write(bytes, _)) => bytes.len(),
                        _ => 0,
                    });
                    dropped += expected.unwrap_or(0);
                    prop_assert_eq!(core.drop_oldest(), expected);
                }
                Step::DropQueued => {
                    core.drop_queued();
                    list.retain(|entry| match entry {
                        Twin::Write(bytes, _) => {
                            dropped += bytes.len();
                            false
                        }
                        entry => !matches!(entry, Twin::Seek(_)),
                    });
                }
                Step::Work(ns, most) => {
                    now_ns += ns;
                    let mut most = most;
                    while let Some(job) = core.poll_job(now_ns) {
                        let done = match job {
                            Job::Write { writing, .. } => {
                                if writing.skip == 0 {
                                    let mut left = writing.left();
                                    while matches!(list.front(), Some(Twin::Seek(_))) {
                                        if let Some(Twin::Seek(to)) = list.pop_front() {
                                            cursor = begin + usize::try_from(to).unwrap();
                                        }
                                    }
                                    while left > 0 {
                                        let Some(Twin::Write(bytes, _)) = list.pop_front() else {
                                            panic!("the core writes an entry that is not first");
                                        };
                                        left -= bytes.len();
                                        let end = cursor + bytes.len();
                                        if expected.len() < end {
                                            expected.resize(end, 0);
                                        }
                                        expected[cursor..end].copy_from_slice(&bytes);
                                        cursor = end;
                                    }
                                }
                                let done = write_into(&mut file, writing, most);
                                most = usize::MAX;
                                done
                            }
                            Job::Truncate { bytes, .. } => {
                                while list.pop_front() != Some(Twin::Restart) {}
                                expected.truncate(begin);
                                cursor = begin;
                                file.truncate(bytes.try_into().unwrap());
                                Done::Nothing
                            }
                            Job::Sync { .. } => {
                                while let Some(entry) = list.pop_front() {
                                    match entry {
                                        Twin::Seek(to) => cursor = begin + usize::try_from(to).unwrap(),
                                        entry => {
                                            prop_assert_eq!(entry, Twin::Sync);
                                            break;
                                        }
                                    }
                                }
                                Done::Nothing
                            }
                            _ => panic!("an operation that was not requested"),
                        };
                        core.handle_done(now_ns, Ok(done));
                    }
                    // A seek is executed when no entry is before it.
                    while let Some(&Twin::Seek(to)) = list.front() {
                        cursor = begin + usize::try_from(to).unwrap();
                        list.pop_front();
                    }
                    // No data waits longer than allowed.
                    prop_assert!(core.next_timeout().is_none_or(|ns| ns > now_ns));
                    prop_assert!(core.queued_bytes < BLOCK_BYTES);
                }
            }
            released += core.take_outputs().released;
            prop_assert_eq!(admitted - released, usize::try_from(core.counts().held).unwrap());
        }
        prop_assert!(file == expected);
        prop_assert_eq!(core.counts().dropped, dropped as u64);
        core.handle_step(super::Step::Close, 9);
        work(&mut core, &mut file, now_ns);
        let outputs = core.take_outputs();
        prop_assert!(matches!(outputs.replies.last(), Some((9, Ok(_)))));
        prop_assert_eq!(core.counts().held, 0);
        let counts = core.counts();
        prop_assert_eq!(counts.written + counts.dropped, admitted as u64);
    }
}

#[test]
fn small_writes_are_gathered_only_for_a_limited_time() {
    let mut core = open(plan(Access::Write), regular(0));
    for packet in 0..20u8 {
        core.handle_write(Data::Copy(&[packet; 172]), false, u64::from(packet));
        assert!(core.poll_job(u64::from(packet)).is_none());
    }
    assert_eq!(core.next_timeout(), Some(LINGER_NS));
    assert!(!core.wants_turn(LINGER_NS - 1));
    let Some(Job::Write { writing, .. }) = core.poll_job(LINGER_NS) else {
        panic!("nothing is written");
    };
    assert_eq!((writing.left(), writing.pieces.len()), (20 * 172, 1));
    core.handle_done(
        LINGER_NS,
        Ok(write_into(&mut Vec::new(), writing, usize::MAX)),
    );
    assert_eq!(core.next_timeout(), None);
}

#[test]
fn a_full_block_is_written_immediately() {
    let mut core = open(plan(Access::Write), regular(0));
    core.handle_write(owned(&[1; BLOCK_BYTES - 1]), false, 0);
    assert!(core.poll_job(0).is_none());
    core.handle_write(Data::Copy(&[2]), false, 0);
    assert!(matches!(core.poll_job(0), Some(Job::Write { .. })));
}

#[test]
fn a_written_file_is_synced_at_the_interval() {
    let mut core = open(
        Plan {
            sync_every_ns: Some(SYNC_NS),
            ..plan(Access::Write)
        },
        regular(0),
    );
    let mut file = Vec::new();
    assert_eq!(core.next_timeout(), None, "nothing to sync");
    core.handle_write(Data::Copy(&[1]), false, 0);
    work(&mut core, &mut file, LINGER_NS);
    assert_eq!(core.next_timeout(), Some(LINGER_NS + SYNC_NS));
    work(&mut core, &mut file, LINGER_NS + SYNC_NS);
    assert_eq!(core.counts().syncs, 1);
    assert_eq!(core.next_timeout(), None);
}

/// If a file has failed, later operations on it return its failure, with the path and the error.
#[test]
fn a_failure_ends_all_operations_of_the_file() {
    let mut core = open(plan(Access::Write), regular(0));
    core.handle_write(owned(&[1; 100]), false, 0);
    core.handle_step(super::Step::Sync, 1);
    assert!(matches!(core.poll_job(0), Some(Job::Write { .. })));
    core.handle_write(owned(&[1; 50]), false, 0);
    core.handle_step(super::Step::Close, 2);
    core.handle_done(0, os(libc::ENOSPC));
    core.handle_step(super::Step::Read { at: 0, bytes: 1 }, 3);
    let outputs = core.take_outputs();
    let failed: Vec<u32> = (outputs.replies.iter())
        .map(|(ticket, reply)| {
            let failure = reply.as_ref().err().unwrap();
            assert_eq!(
                (failure.errno(), failure.operation()),
                (libc::ENOSPC, "write")
            );
            *ticket
        })
        .collect();
    assert_eq!(failed, [1, 2, 3]);
    assert!(outputs.has_failed);
    assert_eq!(outputs.released, 150);
    assert_eq!((core.counts().lost, core.counts().held), (150, 0));
    // The descriptor is closed.
    assert!(matches!(core.poll_job(0), Some(Job::Close { .. })));
    core.handle_done(0, Ok(Done::Nothing));
    assert!(core.poll_job(0).is_none() && !core.wants_turn(0));
}

#[test]
fn a_file_that_cannot_be_opened_fails() {
    let mut core = Core::new(plan(Access::Write));
    core.handle_step(super::Step::Opened, 1);
    core.handle_write(owned(&[1; 10]), false, 0);
    assert!(core.poll_job(0).is_some());
    core.handle_done(0, os(libc::EACCES));
    let outputs = core.take_outputs();
    let (ticket, reply) = outputs.replies.into_iter().next().unwrap();
    let text = reply.err().unwrap().to_string();
    assert_eq!((ticket, outputs.released), (1, 10));
    assert!(text.starts_with("/r/file: cannot open: EACCES"), "{text}");
    assert!(core.poll_job(0).is_none());
}

#[test]
fn a_pipe_has_no_positions() {
    let stat = Done::Stat(Stat {
        bytes: 0,
        is_regular: false,
    });
    let mut core = open(plan(Access::Write), stat);
    core.handle_seek(0);
    core.handle_write(owned(&[1; 10]), false, 0);
    core.hurry();
    let Some(Job::Write { writing, .. }) = core.poll_job(0) else {
        panic!("nothing is written");
    };
    assert_eq!(writing.at, None);
    core.handle_done(0, Ok(Done::Wrote(writing, 10)));
    // A seek back to the beginning, as for a header, is refused.
    core.handle_seek(0);
    assert!(matches!(core.poll_job(0), Some(Job::Close { .. })));
    assert_eq!(core.failure().map(Failure::errno), Some(libc::ESPIPE));
}

#[test]
fn abandoned_file_is_closed_after_its_operation() {
    let mut core = open(plan(Access::Write), regular(0));
    core.handle_write(owned(&[1; BLOCK_BYTES]), false, 0);
    assert!(matches!(core.poll_job(0), Some(Job::Write { .. })));
    core.give_up();
    assert!(core.poll_job(0).is_none(), "an operation is under way");
    core.handle_done(0, os(libc::ECANCELED));
    assert!(core.failure().is_some_and(Failure::is_cancelled));
    assert_eq!(core.take_outputs().released, BLOCK_BYTES);
    assert!(matches!(core.poll_job(0), Some(Job::Close { .. })));
}

#[test]
fn the_name_appears_when_the_file_is_closed() {
    let mut core = open(plan(Access::Write), regular(0));
    core.handle_write(owned(&[1; 10]), false, 0);
    core.handle_step(super::Step::Sync, 0);
    core.handle_step(super::Step::Close, 1);
    let to = Path::new("/r/final");
    core.handle_step(
        super::Step::Rename {
            to: to.into(),
            durable: true,
        },
        2,
    );
    let mut names = Vec::new();
    while let Some(job) = core.poll_job(0) {
        let (name, done) = match job {
            Job::Write { writing, .. } => ("write", Done::Wrote(writing, 10)),
            Job::Sync { .. } => ("sync", Done::Nothing),
            Job::Close { .. } => ("close", Done::Nothing),
            Job::Rename { .. } => ("rename", Done::Nothing),
            _ => ("other", Done::Nothing),
        };
        names.push(name);
        core.handle_done(0, Ok(done));
    }
    assert_eq!(names, ["write", "sync", "close", "rename"]);
    assert_eq!(&**core.path(), to);
}
