//! What the system alone has: the wall clock, and numbers that nobody can guess.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use threadbare_runtime::clock_now_ns;

/// The wall clock at time 0 of the monotonic one, ns since 1970.
pub(crate) fn unix_at_zero_ns() -> u64 {
    let monotonic_ns = clock_now_ns();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    (wall.unwrap_or_default().as_nanos() as u64).saturating_sub(monotonic_ns)
}

/// The minute of the day on the local clock, 0 to 1439; `None`: such a time is not on any calendar.
pub(crate) fn local_minute(unix_s: u64) -> Option<u16> {
    let time = jiff::Timestamp::from_second(i64::try_from(unix_s).ok()?).ok()?;
    let local = time.to_zoned_datetime(jiff::tz::TimeZone::system());
    u16::try_from(i32::from(local.hour()) * 60 + i32::from(local.minute())).ok()
}

/// Distinguishes this start of the machine, and with it the monotonic clock, from others; `None`: the kernel does not say.
pub(crate) fn boot_id() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// Fills `room` from the system's random generator: keys are made of them.
///
/// # Panics
/// The system has none, which no Linux since 3.17 says: a key must never be guessable.
pub(crate) fn random_bytes(room: &mut [u8]) {
    let mut filled = 0;
    while filled < room.len() {
        match rustix::rand::getrandom(&mut room[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("no random numbers: {error}"),
        }
    }
}

/// Eight of these: not for keys. A call takes several, so the thread fetches some ahead; none is given twice.
pub(crate) fn random_number() -> u64 {
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

/// The kernel gives so much in one go (getrandom(2): up to 256 bytes).
const NUMBERS_AHEAD: usize = 32;
