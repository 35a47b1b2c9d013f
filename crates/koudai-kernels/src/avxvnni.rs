//! AVX2 with VNNI but without AVX-512, as recent client processors of Intel have it: `vpdpbusd` adds
//! four products of bytes to 32-bit lanes, where the `avx2` table takes three instructions.
//!
//! All else is the `avx2` table's, and so are its results, bit for bit. Tested under emulation
//! (`tools/x86-emulated.sh`); no time was measured.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::avx2::{self, Dot, matmul_q4, matmul_q8};
use crate::table::Kernels;

pub(crate) fn supported() -> bool {
    is_x86_feature_detected!("avxvnni") && avx2::supported()
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "avxvnni",
    matmul_q8: matmul_q8::<Quads>,
    matmul_q4g32: matmul_q4::<Quads, 32, 32>,
    matmul_q4g64: matmul_q4::<Quads, 64, 64>,
    matmul_q4s32: matmul_q4::<Quads, 64, 32>,
    ..avx2::KERNELS
};

/// `vpdpbusd`, which adds up four products in 32 bits.
struct Quads;

impl Dot for Quads {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q4(sum: __m256i, codes: [__m256i; 2], a: [__m256i; 2]) -> __m256i {
        dpbusd(dpbusd(sum, codes[0], a[0]), codes[1], a[1])
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q4_sums(sum: __m256i) -> __m256i {
        sum
    }

    /// Codes are unsigned with zero at 128: start from -128 · Σ a.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q8_start(a: i32) -> __m256i {
        _mm256_set1_epi32(-128 * a)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q8(sum: __m256i, codes: __m256i, a: __m256i) -> __m256i {
        dpbusd(sum, codes, a)
    }
}

/// Per lane, `sum` + four unsigned bytes of `w` times four signed ones of `a`.
///
/// The intrinsic can't be inlined into the shared code, which is compiled for AVX2 alone.
#[inline]
#[target_feature(enable = "avx2")]
fn dpbusd(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
    let mut sum = sum;
    // SAFETY: registers only, and a processor that runs this table has the instruction.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {sum}, {w}, {a}",
            sum = inout(ymm_reg) sum,
            w = in(ymm_reg) w,
            a = in(ymm_reg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}
