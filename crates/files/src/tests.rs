//! The service, in both modes and over a backend that stalls and fails on demand.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Finished};
use crate::job::Job;
use crate::pool::Pool;
use crate::wake::Wake;
use crate::*;

const DEADLINE: Duration = Duration::from_secs(30);

/// Whether io_uring is available, because some containers forbid it.
fn has_ring() -> bool {
    !matches!(Disk::start(Mode::Ring), Err(StartError::Ring(_)))
}

/// Runs the test in both modes if both are allowed.
fn both(test: impl Fn(&Disk)) {
    for mode in [Mode::Ring, Mode::Threads] {
        if mode == Mode::Ring && !has_ring() {
            continue;
        }
        let disk = Disk::start(mode).unwrap();
        assert_eq!(disk.mode(), mode);
        test(&disk);
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Fails a test that hangs.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    let waker: Waker = Arc::new(Unpark(std::thread::current())).into();
    let end = Instant::now() + DEADLINE;
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nothing came");
        std::thread::park_timeout(left);
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn file(disk: &Disk, path: &Path) -> File {
    disk.open(path, Options::new(Access::Write))
}

/// Number of bytes that is more than fits a pipe's buffer.
const BIG: usize = 1 << 20;

fn big(byte: u8) -> Data<'static> {
    Data::Owned(Box::new(vec![byte; BIG]))
}

fn fifo(path: &Path) {
    let status = std::process::Command::new("mkfifo").arg(path).status();
    assert!(status.unwrap().success());
}

#[test]
fn a_file_is_written_read_renamed_and_removed() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let (part, name) = (folder.path().join("a.part"), folder.path().join("a"));
        let one = file(disk, &part);
        let expected: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        for packet in expected.chunks(172) {
            wait(one.write(Data::Copy(packet))).unwrap();
        }
        one.seek(10);
        wait(one.write(Data::Owned(Box::new([0xff; 5])))).unwrap();
        wait(one.sync()).unwrap();
        let ending = Ending {
            sync: true,
            rename_to: Some(name.clone()),
        };
        wait(one.close(ending)).unwrap();
        assert!(!part.exists());
        let mut expected = expected;
        expected[10..15].fill(0xff);
        assert!(std::fs::read(&name).unwrap() == expected);
        // The 582 packets are written in a few operations.
        assert!(one.counts().writes < 20, "{:?}", one.counts());
        assert_eq!(wait(disk.stat(&name)).unwrap().bytes, 100_000);

        let read = disk.open(&name, Options::new(Access::Read));
        assert_eq!(wait(read.opened()).unwrap().bytes, 100_000);
        // The reads are requested at once. The results come in order.
        let first = read.read(0, 60_000);
        let rest = read.read(60_000, 60_000);
        assert!(wait(first).unwrap() == expected[..60_000]);
        assert!(wait(rest).unwrap() == expected[60_000..]);
        assert_eq!(wait(read.read(100_000, 10)).unwrap(), []);

        let other = folder.path().join("b");
        wait(disk.rename(&name, &other)).unwrap();
        wait(disk.remove(&other)).unwrap();
        assert!(!other.exists());
        let failure = wait(disk.remove(&other)).unwrap_err();
        assert_eq!(failure.errno(), libc::ENOENT);
    });
}

#[test]
fn restart_in_append_mode_keeps_earlier_bytes() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/a");
        let options = Options {
            with_parents: true,
            ..Options::new(Access::Append)
        };
        let first = disk.open(&path, options.clone());
        wait(first.write(Data::Copy(b"first"))).unwrap();
        wait(first.close(Ending::default())).unwrap();
        let second = disk.open(&path, options);
        wait(second.write(Data::Copy(b"second"))).unwrap();
        wait(second.sync()).unwrap();
        wait(second.restart()).unwrap();
        wait(second.write(Data::Copy(b"2."))).unwrap();
        wait(second.close(Ending::default())).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first2.");
    });
}

/// As chmod(1) says, a file has the requested permissions. Each class of users that may read it may enter its new directory.
#[test]
fn new_files_and_directories_have_the_requested_permissions() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        for (permissions, of_directory) in [(0o600, 0o700), (0o640, 0o750)] {
            let directory = folder.path().join(permissions.to_string());
            for with_parents in [true, false] {
                let path = directory.join(with_parents.to_string());
                let options = Options {
                    with_parents,
                    permissions,
                    ..Options::new(Access::Write)
                };
                let file = disk.open(&path, options);
                wait(file.close(Ending::default())).unwrap();
                let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode(&path), permissions);
                assert_eq!(mode(&directory), of_directory);
            }
        }
    });
}

/// If the process is killed, the kernel has all data that was written shortly before, even without a sync.
#[test]
fn gathered_data_is_written_without_a_further_write_or_sync() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let one = file(disk, &path);
        wait(one.write(Data::Copy(b"few"))).unwrap();
        eventually("it is written", || {
            std::fs::read(&path).is_ok_and(|bytes| bytes == b"few")
        });
        assert!(one.failure().is_none());
    });
}

#[test]
fn dropped_file_writes_its_queued_bytes() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let one = file(disk, &path);
        let op = one.write(Data::Copy(b"all"));
        wait(op).unwrap();
        // Dropping the future of a sync cancels nothing.
        drop(one.sync());
        drop(one);
        eventually("it is written", || {
            std::fs::read(&path).is_ok_and(|bytes| bytes == b"all")
        });
    });
}

#[test]
fn errors_name_the_path_and_the_number() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let missing = file(disk, &folder.path().join("no/file"));
        let failure = wait(missing.opened()).unwrap_err();
        assert_eq!(failure.errno(), libc::ENOENT);
        assert!(failure.to_string().contains("no/file: cannot open: ENOENT"));
        // Each later operation returns the failure.
        let later = wait(missing.write(Data::Copy(b"x"))).unwrap_err();
        assert_eq!(later.errno(), libc::ENOENT);

        let is_a_folder = file(disk, folder.path());
        assert_eq!(
            wait(is_a_folder.opened()).unwrap_err().errno(),
            libc::EISDIR
        );

        let full = file(disk, Path::new("/dev/full"));
        wait(full.write(big(1))).unwrap();
        let failure = wait(full.sync()).unwrap_err();
        assert_eq!(failure.errno(), libc::ENOSPC);
        assert!(
            failure
                .to_string()
                .contains("/dev/full: cannot write: ENOSPC")
        );
    });
}

#[test]
fn watcher_is_woken_by_a_failure() {
    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    both(|disk| {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let full = file(disk, Path::new("/dev/full"));
        full.watch(count.clone().into());
        wait(full.write(big(1))).unwrap();
        eventually("the failure", || count.0.load(Relaxed) == 1);
        assert!(full.failure().is_some());
    });
}

/// A full pipe without a reader stands for a disk that does not respond.
#[test]
fn a_stalled_file_delays_no_other_file() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let budget = Budget::new(8 * BIG);
        let options = Options {
            budget: Some(budget.clone()),
            ..Options::new(Access::Write)
        };
        // There are more stalled files than writer threads.
        let stalled: Vec<(File, std::fs::File)> = (0..4)
            .map(|n| {
                let path = folder.path().join(format!("pipe{n}"));
                fifo(&path);
                let one = disk.open(&path, options.clone());
                let reader = std::fs::File::open(&path).unwrap();
                wait(one.opened()).unwrap();
                (one, reader)
            })
            .collect();
        // Each stalled file takes as much as it can.
        let mut cx = Context::from_waker(Waker::noop());
        for (one, _) in &stalled {
            let data = || Data::Owned(Box::new([1; BIG / 16]));
            while one.poll_write(&mut cx, BIG / 16, false, data).is_ready() {}
        }
        let held = budget.used();
        assert!(held < 8 * BIG, "{held}");
        let path = folder.path().join("a");
        let going = disk.open(&path, options.clone());
        for _ in 0..32 {
            wait(going.write(big(2))).unwrap();
        }
        wait(going.close(Ending::default())).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 32 * BIG as u64);
        assert!(stalled.iter().all(|(one, _)| one.failure().is_none()));
        for (one, _) in &stalled {
            one.give_up();
        }
        eventually("they are given up", || budget.used() == 0);
    });
}

#[test]
fn pipe_without_a_reader_can_be_abandoned() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        fifo(&path);
        let one = file(disk, &path);
        let opened = one.opened();
        wait(one.write(Data::Copy(b"x"))).unwrap();
        one.give_up();
        assert!(wait(opened).unwrap_err().is_cancelled());
        assert!(one.failure().unwrap().is_cancelled());
    });
}

#[test]
fn all_data_is_written_to_a_pipe_in_order() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        fifo(&path);
        let one = file(disk, &path);
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || std::fs::read(path).unwrap())
        };
        for n in 0..4 {
            wait(one.write(big(n))).unwrap();
        }
        wait(one.close(Ending::default())).unwrap();
        let read = reader.join().unwrap();
        let expected: Vec<u8> = (0..4).flat_map(|n| vec![n; BIG]).collect();
        assert!(read == expected);
    });
}

#[test]
fn a_pipe_is_read_until_its_writer_ends() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        fifo(&path);
        let one = disk.open(&path, Options::new(Access::Read));
        let first = one.read(0, 100);
        let writer = {
            let path = path.clone();
            std::thread::spawn(move || std::fs::write(path, "what comes").unwrap())
        };
        let mut read = wait(first).unwrap();
        writer.join().unwrap();
        while !read.is_empty() {
            assert!(b"what comes".starts_with(&read[..]));
            read = wait(one.read(0, 100)).unwrap();
        }
        // A read without a writer is cancelled.
        fifo(&folder.path().join("other"));
        let other = disk.open(folder.path().join("other"), Options::new(Access::Read));
        let read = other.read(0, 1);
        other.give_up();
        assert!(wait(read).unwrap_err().is_cancelled());
    });
}

#[test]
fn a_thousand_files_need_one_additional_thread() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<File> = (0..1000)
            .map(|n| file(disk, &folder.path().join(n.to_string())))
            .collect();
        for one in &files {
            wait(one.write(Data::Copy(&[7; 172]))).unwrap();
        }
        let closing: Vec<Op<()>> = files
            .iter()
            .map(|one| one.close(Ending::default()))
            .collect();
        for op in closing {
            wait(op).unwrap();
        }
        for n in 0..1000 {
            assert_eq!(
                std::fs::read(folder.path().join(n.to_string())).unwrap(),
                [7; 172]
            );
        }
    });
}

/// The operations that a test has stalled, and those that must fail.
#[derive(Default, Clone)]
struct Faults(Arc<Mutex<Fault>>);

#[derive(Default)]
struct Fault {
    /// Whether writes to a descriptor stall, from the first write on.
    stalls: bool,
    fails_with: Option<i32>,
    held: Vec<(u64, Job)>,
}

/// A pool whose writes stall or fail on demand.
struct Faulty {
    pool: Pool,
    faults: Faults,
    failed: Vec<Finished>,
    wake: Wake,
}

impl Backend for Faulty {
    fn begin(&mut self, token: u64, job: Job) {
        let mut fault = self.faults.0.lock().unwrap();
        let is_write = matches!(job, Job::Write { .. } | Job::Sync { .. });
        if is_write && let Some(code) = fault.fails_with {
            self.failed
                .push((token, Err(io::Error::from_raw_os_error(code))));
            self.wake.wake();
        } else if is_write && fault.stalls {
            fault.held.push((token, job));
        } else {
            drop(fault);
            self.pool.begin(token, job);
        }
    }

    fn cancel(&mut self, token: u64) {
        self.pool.cancel(token);
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Finished>) {
        self.pool.wait(timeout, done);
        done.append(&mut self.failed);
        let mut fault = self.faults.0.lock().unwrap();
        if !fault.stalls {
            for (token, job) in std::mem::take(&mut fault.held) {
                self.pool.begin(token, job);
            }
        }
    }
}

fn faulty() -> (Disk, Faults, Wake) {
    let (wake, faults) = (Wake::new().unwrap(), Faults::default());
    let backend = Faulty {
        pool: Pool::new(wake.clone()),
        faults: faults.clone(),
        failed: Vec::new(),
        wake: wake.clone(),
    };
    let disk = Disk::with_backend(Box::new(backend), wake.clone(), Mode::Threads);
    (disk.unwrap(), faults, wake)
}

/// Data that must be kept stays. Later data takes the place of the dropped data.
#[test]
fn oldest_data_can_be_dropped_while_the_disk_stalls() {
    let (disk, faults, wake) = faulty();
    faults.0.lock().unwrap().stalls = true;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let budget = Budget::new(8 * BIG);
    let one = disk.open(
        &path,
        Options {
            budget: Some(budget.clone()),
            ..Options::new(Access::Write)
        },
    );
    let mut cx = Context::from_waker(Waker::noop());
    let mut write = |bytes: usize, byte: u8, is_kept: bool| {
        let data = || Data::Owned(Box::new(vec![byte; bytes]));
        one.poll_write(&mut cx, bytes, is_kept, data).is_ready()
    };
    assert!(write(100, b'h', true));
    assert!(write(BIG / 2, 1, false));
    eventually("the first operation is under way", || {
        !faults.0.lock().unwrap().held.is_empty()
    });
    assert!(write(50, b'k', true));
    assert!(write(BIG, 2, false) && write(BIG, 3, false));
    while write(BIG, 4, false) {}
    // The header is being written, so this data is the oldest that may be dropped.
    assert_eq!(one.drop_oldest(), Some(BIG / 2));
    assert_eq!(one.drop_oldest(), Some(BIG));
    assert!(write(BIG, 5, false));
    faults.0.lock().unwrap().stalls = false;
    wake.wake();
    wait(one.close(Ending::default())).unwrap();
    let written = std::fs::read(&path).unwrap();
    let mut runs: Vec<(u8, usize)> = Vec::new();
    for byte in written {
        match runs.last_mut() {
            Some((last, count)) if *last == byte => *count += 1,
            _ => runs.push((byte, 1)),
        }
    }
    assert_eq!(runs[..2], [(b'h', 100), (b'k', 50)]);
    let bytes: Vec<u8> = runs.iter().map(|(byte, _)| *byte).collect();
    assert!(!bytes.contains(&1) && !bytes.contains(&2), "{runs:?}");
    assert!(bytes.ends_with(&[5]), "{runs:?}");
    assert_eq!(one.counts().dropped, 3 * BIG as u64 / 2);
    assert_eq!(budget.used(), 0);
}

#[test]
fn an_error_of_the_disk_reaches_only_its_file() {
    let (disk, faults, _wake) = faulty();
    let folder = tempfile::tempdir().unwrap();
    let (bad, good) = (folder.path().join("bad"), folder.path().join("good"));
    let (bad, good) = (file(&disk, &bad), file(&disk, &good));
    wait(good.opened()).unwrap();
    faults.0.lock().unwrap().fails_with = Some(libc::EIO);
    wait(bad.write(big(1))).unwrap();
    let failure = wait(bad.sync()).unwrap_err();
    assert_eq!((failure.errno(), failure.operation()), (libc::EIO, "write"));
    faults.0.lock().unwrap().fails_with = None;
    wait(good.write(big(1))).unwrap();
    wait(good.close(Ending::default())).unwrap();
    assert_eq!(good.counts().written, BIG as u64);
    assert_eq!(bad.counts().lost, BIG as u64);
}

/// Runs in separate processes, each with one value of the variable.
#[test]
fn the_environment_variable_decides_the_mode() {
    const INSIDE: &str = "THREADBARE_TEST_MODE";
    if let Ok(expected) = std::env::var(INSIDE) {
        let said = match Disk::shared(Mode::Auto) {
            Ok(disk) => format!("{:?}", disk.mode()),
            Err(error) => error.to_string(),
        };
        assert_eq!(said, expected);
        // An explicit mode has priority over the variable.
        assert_eq!(Disk::shared(Mode::Threads).unwrap().mode(), Mode::Threads);
        return;
    }
    let (auto, ring) = if has_ring() {
        ("Ring", "io-uring")
    } else {
        ("Threads", "")
    };
    for (value, expected) in [
        ("", auto),
        ("auto", auto),
        (ring, auto),
        ("threads", "Threads"),
        (
            "fast",
            "THREADBARE_DISK=fast: expected auto, io-uring or threads",
        ),
    ] {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "tests::the_environment_variable_decides_the_mode",
            ])
            .env(INSIDE, expected)
            .env(MODE_VARIABLE, value)
            .status();
        assert!(status.unwrap().success(), "{value}");
    }
}

#[test]
fn the_service_ends_with_its_last_user() {
    both(|disk| {
        let folder = tempfile::tempdir().unwrap();
        let own = Disk::start(disk.mode()).unwrap();
        let one = file(&own, &folder.path().join("a"));
        drop(own);
        // An open file counts as a user.
        wait(one.write(Data::Copy(b"x"))).unwrap();
        wait(one.close(Ending::default())).unwrap();
    });
}
