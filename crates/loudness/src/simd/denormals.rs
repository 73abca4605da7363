//! Treats denormal numbers as zero while a meter works.
//!
//! After a signal has ended, the filters' memory fades, and most of the time it consists of denormal numbers, which slow
//! processors down many times. The processor can be switched to treat denormal numbers as zero. The switch belongs to the thread,
//! and other code must find it unchanged. So this module offers no guard that a caller could keep or forget: a function calls
//! another one and restores the switch afterwards, even after a panic.

/// Runs `work` with denormal numbers treated as zero, if the architecture supports it: x86-64 and AArch64.
///
/// Meters use this themselves. It is also for other filters whose memory fades. After `work`, the thread's state is restored,
/// even if `work` panics. The compiler may move arithmetic into or out of `work`, so this is for speed, not for exact results.
///
/// ```
/// let mut memory = 1.0f64;
/// threadbare_loudness::with_denormals_flushed(|| {
///     for _ in 0..1_000_000 {
///         memory *= 0.9;
///     }
/// });
/// assert!(memory < f64::MIN_POSITIVE);
/// ```
#[inline]
pub fn with_denormals_flushed<R>(work: impl FnOnce() -> R) -> R {
    let _restore = Flushed::begin();
    work()
}

/// The previous value of the register with the switch. It never leaves this module: the function above drops it at its end, even
/// after a panic.
struct Flushed {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    before: Register,
}

#[cfg(target_arch = "x86_64")]
type Register = u32;
#[cfg(target_arch = "aarch64")]
type Register = u64;

/// MXCSR: flush results to zero, and take operands as zero.
#[cfg(target_arch = "x86_64")]
const FLUSH: Register = 1 << 15 | 1 << 6;
/// FPCR: the same in one bit.
#[cfg(target_arch = "aarch64")]
const FLUSH: Register = 1 << 24;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Flushed {
    #[inline]
    fn begin() -> Flushed {
        let before = read();
        if before & FLUSH != FLUSH {
            write(before | FLUSH);
        }
        Flushed { before }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Drop for Flushed {
    #[inline]
    fn drop(&mut self) {
        if self.before & FLUSH != FLUSH {
            // This restores the whole register, including the exception flags, which the work inside does not use. Keeping the
            // new flags would need another read of the register, a third of the cost of a call for one frame.
            write(self.before);
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Flushed {
    #[inline]
    fn begin() -> Flushed {
        Flushed {}
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read() -> Register {
    let mut value: Register = 0;
    // SAFETY: `stmxcsr` stores the 4 bytes of MXCSR to the address it is given, which is that of a live `u32`. SSE is in
    // the baseline of this architecture. No flags are touched, no stack is used.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack, preserves_flags));
    }
    value
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn write(value: Register) {
    // SAFETY: `ldmxcsr` loads the 4 bytes at the address it is given, which is that of a live `u32`. The value is what `read`
    // returned, either unchanged or with the two flush bits set, so no reserved bit is set, and exceptions stay masked and
    // rounding unchanged. Code compiled between does not depend on whether denormals are zero.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, preserves_flags));
    }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn read() -> Register {
    let value: Register;
    // SAFETY: reading FPCR is allowed at every exception level and has no effect.
    unsafe {
        std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags));
    }
    value
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn write(value: Register) {
    // SAFETY: the value is what `read` returned, either unchanged or with the flush bit set: rounding and traps do not change.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    // If this were inlined, the product might be computed outside the switched section.
    #[inline(never)]
    fn half_of_the_least() -> f64 {
        black_box(f64::MIN_POSITIVE) * black_box(0.5)
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn denormals_are_zero_only_inside_the_closure() {
        assert!(half_of_the_least() > 0.0);
        assert_eq!(with_denormals_flushed(half_of_the_least), 0.0);
        assert!(half_of_the_least() > 0.0);
    }

    #[test]
    fn denormals_stay_zero_until_the_outermost_of_nested_calls_returns() {
        with_denormals_flushed(|| {
            let inside = half_of_the_least();
            with_denormals_flushed(|| ());
            assert_eq!(half_of_the_least(), inside);
        });
        assert!(half_of_the_least() > 0.0);
    }

    #[test]
    fn after_a_panic_denormals_are_numbers_again() {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            with_denormals_flushed(|| panic!("on purpose"))
        }));
        assert!(panicked.is_err());
        assert!(half_of_the_least() > 0.0);
    }
}
