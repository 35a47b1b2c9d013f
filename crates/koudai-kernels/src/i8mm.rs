//! NEON with the 8-bit matrix products of Armv8.6: two rows of a panel times two rows of activations,
//! 8 inputs at once.
//!
//! Start with [`q4_tile`]. `smmla` wants 8 inputs of a row side by side, and a line has 4: zipping two
//! lines, while still packed, gives 8 of two rows. Rows of activations go in pairs; with two planes
//! the planes of one row are a pair. What has no partner, one row of one plane, is the `dotprod`
//! table's work, with the same integers.
//!
//! Against `sdot` this halves the multiplications and adds zips, so it wins less than it seems. One
//! 64-byte line of 4-bit codes takes 44 instructions for two rows of one plane (`dotprod`: 46), 84 for
//! four (86), 147 for four rows of two planes (174). That is counted in the machine code, and no time
//! was measured.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::dotprod;
use crate::matrix::{Q4_HEADER_BYTES, q8_scale_bytes};
use crate::neon::{add_group, add_mins, halves, q4_scales, store};
use crate::rows::{ACTIVATION_GROUP, QuantizedRows, in_tiles};
use crate::table::Kernels;

pub(crate) fn supported() -> bool {
    std::arch::is_aarch64_feature_detected!("i8mm") && dotprod::supported()
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "i8mm",
    matmul_q8,
    matmul_q4g32: matmul_q4::<32, 32>,
    matmul_q4g64: matmul_q4::<64, 64>,
    matmul_q4s32: matmul_q4::<64, 32>,
    ..dotprod::KERNELS
};

/// `sum` + (2 × 8 of `w`) · (2 × 8 of `a`)ᵀ, a 2 × 2 matrix. The intrinsic isn't stable yet.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: registers only, and the processor has the instruction.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {w:v}.16b, {a:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// [`smmla`] with `w` unsigned.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usmmla(sum: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: registers only, and the processor has the instruction.
    unsafe {
        asm!(
            "usmmla {sum:v}.4s, {w:v}.16b, {a:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// The 4-byte words of two vectors, in turns: of 4 rows each, rows 0 and 1, then rows 2 and 3.
#[inline]
#[target_feature(enable = "neon")]
fn zip(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
    let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
    [vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))]
}

/// Turns the 2 × 2 products of a pair, [rows 0 and 1, rows 2 and 3], into 4 rows for each of it.
#[inline]
#[target_feature(enable = "neon")]
fn unzip<const V: usize>(dots: &mut [[int32x4_t; V]]) {
    for pair in dots.chunks_exact_mut(2) {
        let [first, second] = pair else { unreachable!("chunks of two") };
        for (first, second) in first.iter_mut().zip(second) {
            (*first, *second) = (vuzp1q_s32(*first, *second), vuzp2q_s32(*first, *second));
        }
    }
}

/// 16 codes from input `k` on of code rows `n` and `n + 1`; a row has as many of them as planes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn pair(x: &QuantizedRows<'_>, n: usize, k: usize) -> [int8x16_t; 2] {
    // SAFETY: the caller's rows and inputs exist.
    unsafe {
        let at = x.codes.as_ptr().add(n * x.cols + k);
        [vld1q_s8(at), vld1q_s8(at.add(x.cols))]
    }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn matmul_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        if x.planes == 2 {
            in_tiles!(x.n_rows, [4, 2, 1], |row, R| q4_tile::<BLOCK, GROUP, 2, R, { width(R) }>(
                panel, x, out, stride, row
            ));
            return;
        }
        let paired = x.n_rows / 2 * 2;
        in_tiles!(paired, [4, 2], |row, R| q4_tile::<BLOCK, GROUP, 1, R, { width(R) }>(
            panel, x, out, stride, row
        ));
        if paired < x.n_rows {
            dotprod::q4_tile::<BLOCK, GROUP, 1, 1, 4>(panel, x, out, stride, paired);
        }
    }
}

/// Registers' worth of panel rows (4 each) for which a tile of so many rows keeps sums.
const fn width(rows: usize) -> usize {
    if rows < 4 { 4 } else { 2 }
}

/// A panel times a tile of activation rows, 4 · `V` rows of the panel at a time. `R` · `PLANES` is
/// even.
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn q4_tile<
    const BLOCK: usize,
    const GROUP: usize,
    const PLANES: usize,
    const R: usize,
    const V: usize,
>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let groups = x.cols / ACTIVATION_GROUP;
    let nibble = vdupq_n_u8(15);
    // SAFETY: every block of the panel has 64 + 8·BLOCK bytes and its inputs exist in every row.
    unsafe {
        for part in (0..4).step_by(V) {
            let mut sums = [[vdupq_n_f32(0.0); V]; R];
            let mut at = panel.as_ptr();
            let mut g = 0;
            while g < groups {
                let header = at.add(part * 8);
                at = at.add(Q4_HEADER_BYTES);
                for input in (0..BLOCK).step_by(ACTIVATION_GROUP) {
                    let (d, m) = q4_scales::<BLOCK, GROUP, V>(header, input);
                    let mut dots = [[[vdupq_n_s32(0); V]; PLANES]; R];
                    for lines in [0, 2] {
                        for v in 0..V {
                            let first = vld1q_u8(at.add(lines * 64 + (part + v) * 16));
                            let second = vld1q_u8(at.add((lines + 1) * 64 + (part + v) * 16));
                            let bytes = zip(first, second);
                            let lows = bytes.map(|b| vreinterpretq_s8_u8(vandq_u8(b, nibble)));
                            let highs = bytes.map(|b| vreinterpretq_s8_u8(vshrq_n_u8::<4>(b)));
                            let dots = dots.as_flattened_mut().chunks_exact_mut(2);
                            for (i, dots) in dots.enumerate() {
                                let k = g * ACTIVATION_GROUP + lines * 8;
                                // Low nibbles are of the even quads, high ones of the odd.
                                let a = pair(x, row * PLANES + i * 2, k);
                                let [a, b] = a.map(|a| vreinterpretq_s32_s8(a));
                                let even = vreinterpretq_s8_s32(vuzp1q_s32(a, b));
                                let odd = vreinterpretq_s8_s32(vuzp2q_s32(a, b));
                                for (half, dots) in dots.iter_mut().enumerate() {
                                    dots[v] = smmla(dots[v], lows[half], even);
                                    dots[v] = smmla(dots[v], highs[half], odd);
                                }
                            }
                        }
                    }
                    unzip(dots.as_flattened_mut());
                    add_group(x, (row, g), &d, &dots, &mut sums);
                    add_mins(x, (row, g), &m, &mut sums);
                    at = at.add(256);
                    g += 1;
                }
            }
            store(&sums, out.add(row * stride + part * 4), stride);
        }
    }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn matmul_q8(panel: &[u8], x: &QuantizedRows<'_>, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        if x.planes == 2 {
            in_tiles!(x.n_rows, [4, 2, 1], |row, R| q8_tile::<2, R, { width(R) }>(
                panel, x, out, stride, row
            ));
            return;
        }
        let paired = x.n_rows / 2 * 2;
        in_tiles!(paired, [4, 2], |row, R| q8_tile::<1, R, { width(R) }>(
            panel, x, out, stride, row
        ));
        if paired < x.n_rows {
            dotprod::q8_tile::<1, 1, 4>(panel, x, out, stride, paired);
        }
    }
}

/// A panel times a tile of activation rows, 4 · `V` rows of the panel at a time. `R` · `PLANES` is
/// even.
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn q8_tile<const PLANES: usize, const R: usize, const V: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let groups = x.cols / ACTIVATION_GROUP;
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        for part in (0..4).step_by(V) {
            let mut sums = [[vdupq_n_f32(0.0); V]; R];
            let mut at = panel.as_ptr().add(q8_scale_bytes(x.cols));
            for g in 0..groups {
                let mut dots = [[[vdupq_n_s32(0); V]; PLANES]; R];
                // Codes are unsigned with zero at 128: start from -128 · Σ a.
                for (i, dots) in dots.as_flattened_mut().chunks_exact_mut(2).enumerate() {
                    let sum = x.sums.as_ptr().add((row * PLANES + i * 2) * groups + g);
                    let start = vzip1q_s32(vdupq_n_s32(*sum), vdupq_n_s32(*sum.add(groups)));
                    dots.as_flattened_mut().fill(vmulq_n_s32(start, -128));
                }
                for lines in (0..8).step_by(4) {
                    for v in 0..V {
                        let w = [0, 1, 2, 3]
                            .map(|i| vld1q_u8(at.add((lines + i) * 64 + (part + v) * 16)));
                        let (first, second) = (zip(w[0], w[1]), zip(w[2], w[3]));
                        let dots = dots.as_flattened_mut().chunks_exact_mut(2);
                        for (i, dots) in dots.enumerate() {
                            let k = g * ACTIVATION_GROUP + lines * 4;
                            let a = pair(x, row * PLANES + i * 2, k);
                            let [a, b] = a.map(|a| vreinterpretq_s64_s8(a));
                            let low = vreinterpretq_s8_s64(vzip1q_s64(a, b));
                            let high = vreinterpretq_s8_s64(vzip2q_s64(a, b));
                            for (half, dots) in dots.iter_mut().enumerate() {
                                dots[v] = usmmla(dots[v], first[half], low);
                                dots[v] = usmmla(dots[v], second[half], high);
                            }
                        }
                    }
                }
                unzip(dots.as_flattened_mut());
                let d = halves::<V>(panel.as_ptr().add(g * 32 + part * 8));
                add_group(x, (row, g), &d, &dots, &mut sums);
                at = at.add(512);
            }
            store(&sums, out.add(row * stride + part * 4), stride);
        }
    }
}
