//! NEON with the dot product of Armv8.2 (`sdot`): 4 bytes of 4 rows of a panel at a time.
//!
//! Start with [`q4_tile`]: 16 bytes of a line hold 4 inputs of 4 rows, twice. `sdot` multiplies each
//! half with 4 activations, picked by number out of a register of 16, so nothing is broadcast.
//! Codes of 4 bits are the same number signed or unsigned; those of 8 bits turn signed by flipping a
//! bit. All else is the `neon` table's.
//!
//! One 64-byte line of 4-bit codes, 128 weights, takes 28 instructions for one row of one plane, 8 of
//! them `sdot`; 86 for four rows, 174 for four rows of two planes. That is counted in the machine code,
//! and no time was measured.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::matrix::{Q4_HEADER_BYTES, q8_scale_bytes};
use crate::neon::{self, add_group, add_mins, codes, halves, q4_scales, signed, store, width};
use crate::rows::{ACTIVATION_GROUP, QuantizedRows, by_planes, in_tiles};
use crate::table::Kernels;

pub(crate) fn supported() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod") && neon::supported()
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "dotprod",
    matmul_q8,
    matmul_q4g32: matmul_q4::<32, 32>,
    matmul_q4g64: matmul_q4::<64, 64>,
    matmul_q4s32: matmul_q4::<64, 32>,
    ..neon::KERNELS
};

/// Per lane, `sum` + four bytes of `w` times the four of `a` in its lane `QUAD`. The intrinsic isn't
/// stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot<const QUAD: usize>(sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: registers only, and the processor has the instruction.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {a:v}.4b[{quad}]",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            a = in(vreg) a,
            quad = const QUAD,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Four times [`sdot`]: 16 inputs of 4 rows.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot16(sum: int32x4_t, [w0, w1, w2, w3]: [int8x16_t; 4], a: int8x16_t) -> int32x4_t {
    let sum = sdot::<1>(sdot::<0>(sum, w0, a), w1, a);
    sdot::<3>(sdot::<2>(sum, w2, a), w3, a)
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn matmul_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [4, 2, 1], |row, R| q4_tile::<
            BLOCK,
            GROUP,
            P,
            R,
            { width(P * R) },
        >(
            panel, x, out, stride, row
        )))
    }
}

/// A panel times a tile of activation rows, 4 · `V` rows of the panel at a time.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn q4_tile<
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
                            let w = [
                                vreinterpretq_s8_u8(vandq_u8(first, nibble)),
                                vreinterpretq_s8_u8(vshrq_n_u8::<4>(first)),
                                vreinterpretq_s8_u8(vandq_u8(second, nibble)),
                                vreinterpretq_s8_u8(vshrq_n_u8::<4>(second)),
                            ];
                            for (r, dots) in dots.iter_mut().enumerate() {
                                for (plane, dots) in dots.iter_mut().enumerate() {
                                    let k = g * ACTIVATION_GROUP + lines * 8;
                                    dots[v] = sdot16(dots[v], w, codes(x, row + r, plane, k));
                                }
                            }
                        }
                    }
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

#[target_feature(enable = "neon,dotprod")]
unsafe fn matmul_q8(panel: &[u8], x: &QuantizedRows<'_>, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [4, 2, 1], |row, R| q8_tile::<
            P,
            R,
            { width(P * R) },
        >(
            panel, x, out, stride, row
        )))
    }
}

/// A panel times a tile of activation rows, 4 · `V` rows of the panel at a time.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn q8_tile<const PLANES: usize, const R: usize, const V: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        for part in (0..4).step_by(V) {
            let mut sums = [[vdupq_n_f32(0.0); V]; R];
            let mut at = panel.as_ptr().add(q8_scale_bytes(x.cols));
            for g in 0..x.cols / ACTIVATION_GROUP {
                let mut dots = [[[vdupq_n_s32(0); V]; PLANES]; R];
                for lines in [0, 4] {
                    for v in 0..V {
                        let w = [0, 1, 2, 3]
                            .map(|i| signed(at.add((lines + i) * 64 + (part + v) * 16)));
                        for (r, dots) in dots.iter_mut().enumerate() {
                            for (plane, dots) in dots.iter_mut().enumerate() {
                                let k = g * ACTIVATION_GROUP + lines * 4;
                                dots[v] = sdot16(dots[v], w, codes(x, row + r, plane, k));
                            }
                        }
                    }
                }
                let d = halves::<V>(panel.as_ptr().add(g * 32 + part * 8));
                add_group(x, (row, g), &d, &dots, &mut sums);
                at = at.add(512);
            }
            store(&sums, out.add(row * stride + part * 4), stride);
        }
    }
}
