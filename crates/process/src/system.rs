//! Values from the system: the wall clock, and unpredictable numbers.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use threadbare_runtime::clock_now_ns;

/// Returns the wall-clock time at time 0 of the monotonic clock, ns since 1970.
pub fn unix_at_zero_ns() -> u64 {
    let monotonic_ns = clock_now_ns();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    (wall.unwrap_or_default().as_nanos() as u64).saturating_sub(monotonic_ns)
}

/// Returns the minute of the day in local time, 0 to 1439. `None`: the calendar has no such time.
pub fn local_minute(unix_s: u64) -> Option<u16> {
    let time = jiff::Timestamp::from_second(i64::try_from(unix_s).ok()?).ok()?;
    let local = time.to_zoned_datetime(jiff::tz::TimeZone::system());
    u16::try_from(i32::from(local.hour()) * 60 + i32::from(local.minute())).ok()
}

/// Returns the identity of this boot of the machine, and so of its monotonic clock. `None`: it cannot be read.
pub fn boot_id() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// Fills `room` from the system's random generator, for keys.
///
/// # Panics
/// Panics if the system has no generator; every Linux since 3.17 has one. A key must never be predictable.
pub fn random_bytes(room: &mut [u8]) {
    let mut filled = 0;
    while filled < room.len() {
        match rustix::rand::getrandom(&mut room[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("cannot get random numbers from the kernel: {error}"),
        }
    }
}

/// Returns eight random bytes, which must not be used for keys. A call needs several such numbers, so each thread fetches a few
/// dozen in advance. No number is returned twice.
pub fn random_number() -> u64 {
    thread_local! {
        static AHEAD: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    AHEAD.with_borrow_mut(|ahead| {
        ahead.pop().unwrap_or_else(|| {
            let mut bytes = [0; NUMBERS_AHEAD * 8];
            random_bytes(&mut bytes);
            let (numbers, _) = bytes.as_chunks::<8>();
            ahead.extend(numbers[1..].iter().map(|bytes| u64::from_ne_bytes(*bytes)));
            u64::from_ne_bytes(numbers[0])
        })
    })
}

/// How many numbers are fetched together: 256 bytes, which the kernel returns in one piece (getrandom(2)).
const NUMBERS_AHEAD: usize = 32;
