//! Vectors of `f32`: those of AVX2, those of the baseline, and single values for the remainder.
//!
//! The compiler vectorises the other kernels well, but not the interpolation, with its many concurrent sums.

/// Several `f32` that each operation processes at once.
pub(super) trait Floats: Copy {
    /// Number of values.
    const LANES: usize;

    /// Proof that the processor has the instructions. It is needed only to create a vector; other operations start from a vector.
    type Proof: Copy;

    /// Loads the first [`Floats::LANES`] values of `from`.
    fn load(proof: Self::Proof, from: &[f32]) -> Self;
    fn store(self, to: &mut [f32]);
    /// Returns a vector with `value` in each lane.
    fn splat(proof: Self::Proof, value: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Returns `self` times `factor`, plus `sum`.
    fn multiply_add(self, factor: Self, sum: Self) -> Self;
    fn magnitude(self) -> Self;
    /// Returns the larger one, lane by lane; `other` if `self` is not a number.
    fn larger(self, other: Self) -> Self;
    /// Whether no lane exceeds the same lane of `other`.
    fn is_within(self, other: Self) -> bool;
}

/// A vector with one value.
#[derive(Clone, Copy)]
pub(super) struct Single(f32);

impl Floats for Single {
    const LANES: usize = 1;
    type Proof = ();

    #[inline(always)]
    fn load((): (), from: &[f32]) -> Self {
        Single(from[0])
    }

    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[0] = self.0;
    }

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        Single(value)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Single(self.0 + other.0)
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        Single(self.0 - other.0)
    }

    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        Single(self.0 * other.0)
    }

    #[inline(always)]
    fn multiply_add(self, factor: Self, sum: Self) -> Self {
        Single(self.0 * factor.0 + sum.0)
    }

    #[inline(always)]
    fn magnitude(self) -> Self {
        Single(self.0.abs())
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self.0 > other.0 { self } else { other }
    }

    #[inline(always)]
    fn is_within(self, other: Self) -> bool {
        self.0 <= other.0
    }
}

/// The baseline of any architecture, with four values. On AArch64 the compiler generates NEON.
#[derive(Clone, Copy)]
#[cfg_attr(
    target_arch = "x86_64",
    allow(dead_code, reason = "x86-64 has SSE2 instead")
)]
pub(super) struct Four([f32; 4]);

#[cfg_attr(
    target_arch = "x86_64",
    allow(dead_code, reason = "x86-64 has SSE2 instead")
)]
impl Four {
    #[inline(always)]
    fn each(self, other: Self, work: impl Fn(f32, f32) -> f32) -> Self {
        Four(std::array::from_fn(|lane| {
            work(self.0[lane], other.0[lane])
        }))
    }
}

impl Floats for Four {
    const LANES: usize = 4;
    type Proof = ();

    #[inline(always)]
    fn load((): (), from: &[f32]) -> Self {
        Four(*from.first_chunk().expect("a whole vector"))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[..4].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        Four([value; 4])
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }

    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        self.each(other, |a, b| a * b)
    }

    #[inline(always)]
    fn multiply_add(self, factor: Self, sum: Self) -> Self {
        if cfg!(target_arch = "aarch64") {
            Four(std::array::from_fn(|n| {
                self.0[n].mul_add(factor.0[n], sum.0[n])
            }))
        } else {
            self.multiply(factor).add(sum)
        }
    }

    #[inline(always)]
    fn magnitude(self) -> Self {
        self.each(self, |a, _| a.abs())
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.each(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn is_within(self, other: Self) -> bool {
        (0..4).all(|lane| self.0[lane] <= other.0[lane])
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) type Baseline = Four;
#[cfg(target_arch = "x86_64")]
pub(super) type Baseline = x86::Sse2;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, HasAvx2};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Floats;
    use std::arch::x86_64::*;

    /// Four lanes, for every x86-64.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Sse2(__m128);

    /// Eight lanes.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Avx2(__m256);

    /// Proof that this processor has AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct HasAvx2(());

    impl HasAvx2 {
        /// # Safety
        /// This processor has AVX2 and FMA.
        #[inline(always)]
        pub(in crate::simd) unsafe fn new() -> HasAvx2 {
            HasAvx2(())
        }
    }

    macro_rules! floats {
        ($vector:ident, $lanes:literal, $proof:ty,
         load: $load:ident, store: $store:ident, splat: $splat:ident, add: $add:ident, subtract: $subtract:ident,
         multiply: $multiply:ident, multiply_add: |$a:ident, $b:ident, $c:ident| $multiply_add:expr,
         andnot: $andnot:ident, max: $max:ident, is_within: |$x:ident, $y:ident| $is_within:expr) => {
            impl Floats for $vector {
                const LANES: usize = $lanes;
                type Proof = $proof;

                #[inline(always)]
                fn load(_: $proof, from: &[f32]) -> Self {
                    let from: &[f32; $lanes] = from.first_chunk().expect("a whole vector");
                    // SAFETY: the pointer is to as many live values as are read, and the load needs no alignment; the first
                    // argument (or, with SSE2, the architecture) proves that the instruction exists.
                    $vector(unsafe { $load(from.as_ptr()) })
                }

                #[inline(always)]
                fn store(self, to: &mut [f32]) {
                    let to: &mut [f32; $lanes] = to.first_chunk_mut().expect("a whole vector");
                    // SAFETY: the pointer is to as many values as are written, which this function may write, and the store needs
                    // no alignment; `self` proves that the instruction exists.
                    unsafe { $store(to.as_mut_ptr(), self.0) }
                }

                #[inline(always)]
                fn splat(_: $proof, value: f32) -> Self {
                    // SAFETY: the first argument (or, with SSE2, the architecture) proves that the instruction exists.
                    $vector(unsafe { $splat(value) })
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: `self` exists, so the instruction does; it has no other precondition.
                    $vector(unsafe { $add(self.0, other.0) })
                }

                #[inline(always)]
                fn subtract(self, other: Self) -> Self {
                    // SAFETY: `self` exists, so the instruction does; it has no other precondition.
                    $vector(unsafe { $subtract(self.0, other.0) })
                }

                #[inline(always)]
                fn multiply(self, other: Self) -> Self {
                    // SAFETY: `self` exists, so the instruction does; it has no other precondition.
                    $vector(unsafe { $multiply(self.0, other.0) })
                }

                #[inline(always)]
                fn multiply_add(self, factor: Self, sum: Self) -> Self {
                    let ($a, $b, $c) = (self.0, factor.0, sum.0);
                    // SAFETY: `self` exists, so the instructions do; they have no other precondition.
                    $vector(unsafe { $multiply_add })
                }

                #[inline(always)]
                fn magnitude(self) -> Self {
                    // SAFETY: `self` exists, so the instructions do; they have no other precondition.
                    $vector(unsafe { $andnot($splat(-0.0), self.0) })
                }

                #[inline(always)]
                fn larger(self, other: Self) -> Self {
                    // SAFETY: `self` exists, so the instruction does; it has no other precondition. It returns its second operand
                    // if one is not a number.
                    $vector(unsafe { $max(self.0, other.0) })
                }

                #[inline(always)]
                fn is_within(self, other: Self) -> bool {
                    let ($x, $y) = (self.0, other.0);
                    // SAFETY: `self` exists, so the instructions do; they have no other precondition.
                    unsafe { $is_within }
                }
            }
        };
    }

    floats!(Sse2, 4, (),
        load: _mm_loadu_ps, store: _mm_storeu_ps, splat: _mm_set1_ps, add: _mm_add_ps, subtract: _mm_sub_ps,
        multiply: _mm_mul_ps, multiply_add: |a, b, c| _mm_add_ps(_mm_mul_ps(a, b), c),
        andnot: _mm_andnot_ps, max: _mm_max_ps,
        is_within: |x, y| _mm_movemask_ps(_mm_cmple_ps(x, y)) == 0b1111);

    floats!(Avx2, 8, HasAvx2,
        load: _mm256_loadu_ps, store: _mm256_storeu_ps, splat: _mm256_set1_ps, add: _mm256_add_ps,
        subtract: _mm256_sub_ps, multiply: _mm256_mul_ps, multiply_add: |a, b, c| _mm256_fmadd_ps(a, b, c),
        andnot: _mm256_andnot_ps, max: _mm256_max_ps,
        is_within: |x, y| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(x, y)) == 0b1111_1111);
}
