//! The functions that return readings.

use std::ffi::{c_uint, c_ulong};

use threadbare_loudness::{Meter, ReadError, integrated_of, range_of};

use crate::{Code, State, guarded};

/// Writes the result of `read` to C's pointer.
///
/// # Safety
/// `state` is NULL or from `ebur128_init`, not destroyed, and no other code changes it during the call. `out` is NULL or may be
/// written.
unsafe fn read(
    state: *const State,
    out: *mut f64,
    read: impl FnOnce(&Meter) -> Result<f64, ReadError>,
) -> Code {
    // SAFETY: not NULL inside `as_ref`, and then by the contract a live `State` that no other code changes; its `meter` is what
    // `ebur128_init` put there, which lives as long.
    let Some(meter) = (unsafe { state.as_ref().map(|state| &*state.meter) }) else {
        return Code::InvalidMode;
    };
    // SAFETY: by the contract of this function, `out` is NULL or valid for a write.
    unsafe { write(out, || read(meter)) }
}

/// # Safety
/// `out` is NULL or may be written.
unsafe fn write(out: *mut f64, read: impl FnOnce() -> Result<f64, ReadError>) -> Code {
    if out.is_null() {
        return Code::InvalidMode;
    }
    guarded(|| match read() {
        Ok(value) => {
            // SAFETY: not NULL, so by the contract it may be written.
            unsafe { out.write(value) };
            Code::Success
        }
        Err(error) => Code::from_error(error),
    })
}

/// Acts as [`read`], for several states.
///
/// # Safety
/// `states` is NULL or points to `size` pointers, each as in [`read`]; so is `out`.
unsafe fn read_multiple(
    states: *const *const State,
    size: usize,
    out: *mut f64,
    read: impl FnOnce(&[&Meter]) -> Result<f64, ReadError>,
) -> Code {
    let states = match (states.is_null(), size) {
        (_, 0) => &[],
        (true, _) => return Code::InvalidMode,
        // SAFETY: not NULL, so by the contract there are `size` pointers, which no other code changes during the call.
        (false, _) => unsafe { std::slice::from_raw_parts(states, size) },
    };
    // SAFETY: by the contract, the pointers that are not NULL are live states that no other code changes. Their meters are those
    // that `ebur128_init` gave them.
    let meters = states
        .iter()
        .filter_map(|state| unsafe { state.as_ref().map(|state| &*state.meter) });
    let meters: Vec<&Meter> = meters.collect();
    // SAFETY: by the contract of this function, `out` is NULL or valid for a write.
    unsafe { write(out, || read(&meters)) }
}

macro_rules! readers {
    ($($name:ident($($arg:ident: $type:ty)?) = |$meter:ident| $read:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// `state` is NULL or from `ebur128_init`, not destroyed, and no other code changes it during the call. `out` is NULL or
        /// may be written.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(state: *const State, $($arg: $type,)? out: *mut f64) -> Code {
            // SAFETY: the contract is the same.
            unsafe { read(state, out, |$meter| $read) }
        }
    )* };
}

readers! {
    ebur128_loudness_global() = |meter| meter.integrated();
    ebur128_loudness_momentary() = |meter| Ok(meter.momentary());
    ebur128_loudness_shortterm() = |meter| meter.short_term();
    ebur128_loudness_window(window: c_ulong) = |meter| meter.window(window);
    ebur128_loudness_range() = |meter| meter.range().map(|range| range.lu);
    ebur128_relative_threshold() = |meter| meter.relative_threshold();
    ebur128_sample_peak(channel_number: c_uint) = |meter| meter.sample_peak(channel_number as usize);
    ebur128_prev_sample_peak(channel_number: c_uint) = |meter| {
        meter.last_sample_peak(channel_number as usize)
    };
    ebur128_true_peak(channel_number: c_uint) = |meter| meter.true_peak(channel_number as usize);
    ebur128_prev_true_peak(channel_number: c_uint) = |meter| {
        meter.last_true_peak(channel_number as usize)
    };
}

/// `ebur128_loudness_global_multiple`.
///
/// # Safety
/// `states` is NULL or points to `size` pointers, each NULL or from `ebur128_init`, not destroyed, and no other code changes
/// these states during the call. `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ebur128_loudness_global_multiple(
    states: *const *const State,
    size: usize,
    out: *mut f64,
) -> Code {
    // SAFETY: the contract is the same.
    unsafe {
        read_multiple(states, size, out, |meters| {
            integrated_of(meters.iter().copied())
        })
    }
}

/// `ebur128_loudness_range_multiple`.
///
/// # Safety
/// The same as for [`ebur128_loudness_global_multiple`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ebur128_loudness_range_multiple(
    states: *const *const State,
    size: usize,
    out: *mut f64,
) -> Code {
    // SAFETY: the contract is the same.
    unsafe {
        read_multiple(states, size, out, |meters| {
            range_of(meters.iter().copied()).map(|range| range.lu)
        })
    }
}
