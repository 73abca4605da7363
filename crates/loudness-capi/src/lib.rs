//! The C interface of libebur128 1.2.6, on top of `threadbare-loudness`.
//!
//! Programs linked with libebur128 find this library by its name (`libebur128.so.1`). `include/ebur128.h` documents the
//! functions. Where libebur128 differs from the recommendations, this library behaves like libebur128: a block enters the
//! loudness range once a second, and nothing is measured after a NaN.
//!
//! Each function decodes its arguments, calls safe code, and converts the result to a number. A panic in the safe code would be a
//! bug. It does not unwind into C: the function returns [`Code::NoMemory`].

#![warn(clippy::unwrap_used)]

mod read;

use std::ffi::{c_int, c_short, c_uint, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};

use threadbare_loudness::{Channel, Meter, Mode, RangeStep, ReadError, Sample};

/// `ebur128_state`.
#[repr(C)]
#[derive(Debug)]
pub struct State {
    mode: c_int,
    channels: c_uint,
    samplerate: c_ulong,
    /// The meter, as returned by `Box::into_raw`. Programs see an opaque pointer.
    meter: *mut Meter,
}

/// Return values of the functions.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `EBUR128_SUCCESS`.
    Success = 0,
    /// `EBUR128_ERROR_NOMEM`.
    NoMemory = 1,
    /// `EBUR128_ERROR_INVALID_MODE`.
    InvalidMode = 2,
    /// `EBUR128_ERROR_INVALID_CHANNEL_INDEX`.
    InvalidChannelIndex = 3,
    /// `EBUR128_ERROR_NO_CHANGE`.
    NoChange = 4,
}

impl Code {
    fn from_change(is_changed: bool) -> Code {
        if is_changed {
            Code::Success
        } else {
            Code::NoChange
        }
    }

    fn from_error(error: ReadError) -> Code {
        match error {
            ReadError::Channel { .. } | ReadError::Stream { .. } | ReadError::DualMono(_) => {
                Code::InvalidChannelIndex
            }
            ReadError::NotMeasured(_) | ReadError::Window { .. } | ReadError::MixedHistories => {
                Code::InvalidMode
            }
        }
    }
}

/// Calls `work`, and converts a panic to an error.
fn guarded(work: impl FnOnce() -> Code) -> Code {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Code::NoMemory)
}

/// Returns the meter of a pointer from C; `None` if the pointer is NULL.
///
/// # Safety
/// `state` is NULL or from [`ebur128_init`], not destroyed, and no other code uses it while the reference lives.
unsafe fn meter_mut<'a>(state: *mut State) -> Option<&'a mut Meter> {
    // SAFETY: the pointer is not NULL inside `as_mut`. By this function's contract it is then a live and aligned `State` that no
    // other code uses. `ebur128_init` has set its `meter`, which lives as long.
    unsafe { state.as_mut().map(|state| &mut *state.meter) }
}

/// `ebur128_get_version`.
///
/// # Safety
/// Each pointer is NULL or points to an `int` that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_get_version(
    major: *mut c_int,
    minor: *mut c_int,
    patch: *mut c_int,
) {
    for (to, value) in [(major, 1), (minor, 2), (patch, 6)] {
        if !to.is_null() {
            // SAFETY: not NULL, so by the contract it may be written.
            unsafe { to.write(value) };
        }
    }
}

/// `ebur128_init`.
#[unsafe(no_mangle)]
pub extern "C" fn ebur128_init(channels: c_uint, samplerate: c_ulong, mode: c_int) -> *mut State {
    let made = catch_unwind(|| {
        let rate_hz = u32::try_from(samplerate).ok()?;
        let meter = Meter::builder(rate_hz, channels as usize)
            .mode(Mode::from_bits(mode.cast_unsigned()))
            .range_step(RangeStep::Second)
            .recover(false)
            .build()
            .ok()?;
        let meter = Box::into_raw(Box::new(meter));
        Some(Box::into_raw(Box::new(State {
            mode,
            channels,
            samplerate,
            meter,
        })))
    });
    made.ok().flatten().unwrap_or(std::ptr::null_mut())
}

/// `ebur128_destroy`.
///
/// # Safety
/// `state` is NULL or points to a pointer that is NULL or from [`ebur128_init`] and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_destroy(state: *mut *mut State) {
    // SAFETY: the pointer is not NULL inside `as_mut`, and by the contract it may then be read and written.
    let Some(state) = (unsafe { state.as_mut() }) else {
        return;
    };
    let inner = std::mem::replace(state, std::ptr::null_mut());
    if inner.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: by the contract `inner` is from `ebur128_init`, which got it and its `meter` from `Box::into_raw`. It was not
        // destroyed, so both are still to be freed. The caller's pointer is NULL by now.
        let (state, meter) = unsafe {
            let state = Box::from_raw(inner);
            let meter = Box::from_raw(state.meter);
            (state, meter)
        };
        drop((state, meter));
        Code::Success
    });
}

/// `ebur128_set_channel`.
///
/// # Safety
/// `state` is NULL or from [`ebur128_init`], not destroyed, and in use by this call alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_set_channel(
    state: *mut State,
    channel_number: c_uint,
    value: c_int,
) -> Code {
    // SAFETY: the contract is the same.
    let Some(meter) = (unsafe { meter_mut(state) }) else {
        return Code::InvalidMode;
    };
    guarded(
        || match meter.set_channel(channel_number as usize, place_of(value)) {
            Ok(()) => Code::Success,
            Err(error) => Code::from_error(error),
        },
    )
}

/// Returns the position with this number. Any other number is a position in front, because libebur128 does not check the number.
fn place_of(value: c_int) -> Channel {
    let index = usize::try_from(value).ok();
    let place = index.and_then(|index| PLACES.get(index));
    place.copied().unwrap_or(Channel::Center)
}

const PLACES: [Channel; 32] = [
    Channel::Unused,
    Channel::Left,
    Channel::Right,
    Channel::Center,
    Channel::LeftSurround,
    Channel::RightSurround,
    Channel::DualMono,
    Channel::MpSC,
    Channel::MmSC,
    Channel::Mp060,
    Channel::Mm060,
    Channel::Mp090,
    Channel::Mm090,
    Channel::Mp135,
    Channel::Mm135,
    Channel::Mp180,
    Channel::Up000,
    Channel::Up030,
    Channel::Um030,
    Channel::Up045,
    Channel::Um045,
    Channel::Up090,
    Channel::Um090,
    Channel::Up110,
    Channel::Um110,
    Channel::Up135,
    Channel::Um135,
    Channel::Up180,
    Channel::Tp000,
    Channel::Bp000,
    Channel::Bp045,
    Channel::Bm045,
];

/// `ebur128_change_parameters`.
///
/// # Safety
/// `state` is NULL or from [`ebur128_init`], not destroyed, and in use by this call alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_change_parameters(
    state: *mut State,
    channels: c_uint,
    samplerate: c_ulong,
) -> Code {
    // SAFETY: the contract is the same.
    let Some(meter) = (unsafe { meter_mut(state) }) else {
        return Code::InvalidMode;
    };
    let code = guarded(|| {
        let Ok(rate_hz) = u32::try_from(samplerate) else {
            return Code::NoMemory;
        };
        match meter.set_format(rate_hz, channels as usize) {
            Ok(is_changed) => Code::from_change(is_changed),
            Err(_) => Code::NoMemory,
        }
    });
    if code == Code::Success {
        // SAFETY: `meter_mut` found it not to be NULL, so it is a live state; the borrow of its meter has ended and did not
        // include these two fields.
        unsafe {
            (*state).channels = channels;
            (*state).samplerate = samplerate;
        }
    }
    code
}

/// `ebur128_set_max_window`.
///
/// # Safety
/// `state` is NULL or from [`ebur128_init`], not destroyed, and in use by this call alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_set_max_window(state: *mut State, window: c_ulong) -> Code {
    // SAFETY: the contract is the same.
    let Some(meter) = (unsafe { meter_mut(state) }) else {
        return Code::InvalidMode;
    };
    guarded(|| match meter.set_max_window_ms(window) {
        Ok(is_changed) => Code::from_change(is_changed),
        Err(_) => Code::NoMemory,
    })
}

/// `ebur128_set_max_history`.
///
/// # Safety
/// `state` is NULL or from [`ebur128_init`], not destroyed, and in use by this call alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_set_max_history(state: *mut State, history: c_ulong) -> Code {
    // SAFETY: the contract is the same.
    let Some(meter) = (unsafe { meter_mut(state) }) else {
        return Code::InvalidMode;
    };
    guarded(|| Code::from_change(meter.set_max_history_ms(history)))
}

/// Adds whole frames from C.
///
/// # Safety
/// `state` is as for [`meter_mut`]. `samples` is NULL, or points to `frames` samples for each of the state's channels.
unsafe fn add_frames<T: Sample>(state: *mut State, samples: *const T, frames: usize) -> Code {
    // SAFETY: the contract is the same.
    let Some(meter) = (unsafe { meter_mut(state) }) else {
        return Code::InvalidMode;
    };
    let count = frames.saturating_mul(meter.channels());
    if count > isize::MAX as usize / size_of::<T>() {
        return Code::NoMemory;
    }
    let samples = match (samples.is_null(), count) {
        (_, 0) => &[],
        (true, _) => return Code::InvalidMode,
        // SAFETY: not NULL, so by the contract there are `count` of them, which no other code changes during the call. They take
        // at most `isize::MAX` bytes, as was checked.
        (false, _) => unsafe { std::slice::from_raw_parts(samples, count) },
    };
    guarded(|| match meter.add_interleaved(samples) {
        Ok(()) => Code::Success,
        Err(_) => Code::NoMemory,
    })
}

/// `ebur128_add_frames_short`.
///
/// # Safety
/// `state` is NULL or from [`ebur128_init`], not destroyed, and used only by this call. `src` is NULL, or points to `frames`
/// samples for each of the state's channels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_add_frames_short(
    state: *mut State,
    src: *const c_short,
    frames: usize,
) -> Code {
    // SAFETY: the contract is the same.
    unsafe { add_frames(state, src, frames) }
}

/// `ebur128_add_frames_int`.
///
/// # Safety
/// The same as for [`ebur128_add_frames_short`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_add_frames_int(
    state: *mut State,
    src: *const c_int,
    frames: usize,
) -> Code {
    // SAFETY: the contract is the same.
    unsafe { add_frames(state, src, frames) }
}

/// `ebur128_add_frames_float`.
///
/// # Safety
/// The same as for [`ebur128_add_frames_short`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_add_frames_float(
    state: *mut State,
    src: *const f32,
    frames: usize,
) -> Code {
    // SAFETY: the contract is the same.
    unsafe { add_frames(state, src, frames) }
}

/// `ebur128_add_frames_double`.
///
/// # Safety
/// The same as for [`ebur128_add_frames_short`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebur128_add_frames_double(
    state: *mut State,
    src: *const f64,
    frames: usize,
) -> Code {
    // SAFETY: the contract is the same.
    unsafe { add_frames(state, src, frames) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panic must not unwind into a C program, because that would be undefined behaviour.
    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(guarded(|| panic!("on purpose")), Code::NoMemory);
    }

    #[test]
    fn positions_have_the_numbers_of_the_header() {
        for (number, place) in PLACES.into_iter().enumerate() {
            assert_eq!(place as usize, number);
        }
    }
}
