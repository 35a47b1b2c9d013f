//! NEON as every 64-bit Arm processor has it: the 16 rows of a panel are 4 registers of 4 lanes.
//!
//! Start with [`q4_tile`]. Without a dot product instruction, bytes are multiplied into 16 bits. 4-bit
//! codes are at most 15 and activations at most 127 in magnitude, so 16 products still fit: a group of
//! 32 inputs is summed in 16 bits and widened once. What the `dotprod` and `i8mm` tables don't
//! replace, they take from here. Both end each group in [`add_group`] too, so that all three tables
//! give the same bits.
//!
//! One 64-byte line of 4-bit codes, 128 weights, takes 46 instructions for one row of one plane, 16 of
//! them `smlal`; 166 for four rows. That is counted in the machine code, and no time was measured.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use crate::matrix::{PANEL_ROWS, Q4_HEADER_BYTES, q8_scale_bytes};
use crate::rows::{ACTIVATION_GROUP, Keys, QuantizedRows, Values, by_planes, in_tiles};
use crate::scalar::values_from;
use crate::table::{ByKind, Heads, Kernels};
use crate::vector::for_isa;

pub(crate) fn supported() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "neon",
    matmul_q8,
    matmul_q4g32: matmul_q4::<32, 32>,
    matmul_q4g64: matmul_q4::<64, 64>,
    matmul_q4s32: matmul_q4::<64, 32>,
    matmul_f32: ByKind {
        f32: matmul_float::<4>,
        f16: matmul_float::<2>,
        bf16: matmul_float::<3>,
        q8: matmul_f32_q8,
        q4g32: matmul_f32_q4::<32, 32>,
        q4g64: matmul_f32_q4::<64, 64>,
        q4s32: matmul_f32_q4::<64, 32>,
    },
    quantize: vector::quantize,
    rms_norm: vector::rms_norm,
    rope: vector::rope,
    silu_mul: vector::silu_mul,
    gelu_mul: vector::gelu_mul,
    softmax: vector::softmax,
    scores,
    values,
};

for_isa!("neon");

/// 4 · `V` half floats at `at`, widened.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn halves<const V: usize>(at: *const u8) -> [float32x4_t; V] {
    let mut wide = [vdupq_n_f32(0.0); V];
    for (v, wide) in wide.iter_mut().enumerate() {
        // SAFETY: the caller has 8 · V bytes there.
        let bits = unsafe { vld1_u16(at.add(v * 8).cast()) };
        *wide = vcvt_f32_f16(vreinterpret_f16_u16(bits));
    }
    wide
}

/// (d, m) of 4 · `V` rows for inputs from `input` on in a block of 4-bit codes; see
/// `scalar::q4_scales`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn q4_scales<const BLOCK: usize, const GROUP: usize, const V: usize>(
    header: *const u8,
    input: usize,
) -> ([float32x4_t; V], [float32x4_t; V]) {
    // SAFETY: the caller has the rows' part of a header of 64 bytes there.
    unsafe {
        if BLOCK == GROUP {
            return (halves(header), halves(header.add(32)));
        }
        let d = halves(header.add(input / GROUP * 32));
        (d, d.map(|d| vmulq_n_f32(d, -8.0)))
    }
}

/// 16 codes of a row from input `k` on.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn codes(x: &QuantizedRows<'_>, row: usize, plane: usize, k: usize) -> int8x16_t {
    // SAFETY: the caller's row, plane and inputs exist.
    unsafe { vld1q_s8(x.codes.as_ptr().add((row * x.planes + plane) * x.cols + k)) }
}

/// Adds one group of 32 inputs to the sums of a tile: d · Σ over planes of scale · dot.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn add_group<const PLANES: usize, const R: usize, const V: usize>(
    x: &QuantizedRows<'_>,
    (row, group): (usize, usize),
    d: &[float32x4_t; V],
    dots: &[[[int32x4_t; V]; PLANES]; R],
    sums: &mut [[float32x4_t; V]; R],
) {
    let groups = x.cols / ACTIVATION_GROUP;
    for (r, (dots, sums)) in dots.iter().zip(sums).enumerate() {
        // SAFETY: the caller's row and group exist.
        let scale = |plane: usize| unsafe {
            *x.scales.get_unchecked(((row + r) * PLANES + plane) * groups + group)
        };
        for (v, sum) in sums.iter_mut().enumerate() {
            let mut total = vmulq_n_f32(vcvtq_f32_s32(dots[0][v]), scale(0));
            if PLANES == 2 {
                total = vfmaq_n_f32(total, vcvtq_f32_s32(dots[PLANES - 1][v]), scale(1));
            }
            *sum = vfmaq_f32(*sum, d[v], total);
        }
    }
}

/// Adds m · Σ x of one group of 32 inputs to the sums of a tile.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn add_mins<const R: usize, const V: usize>(
    x: &QuantizedRows<'_>,
    (row, group): (usize, usize),
    m: &[float32x4_t; V],
    sums: &mut [[float32x4_t; V]; R],
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        let at = (row + r) * (x.cols / ACTIVATION_GROUP) + group;
        // SAFETY: the caller's row and group exist.
        let min = unsafe { *x.mins.get_unchecked(at) };
        for (sum, m) in sums.iter_mut().zip(m) {
            *sum = vfmaq_n_f32(*sum, *m, min);
        }
    }
}

/// Writes the outputs of a tile to where `out` points in the first row.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn store<const R: usize, const V: usize>(
    sums: &[[float32x4_t; V]; R],
    out: *mut f32,
    stride: usize,
) {
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the caller owns 4 · V columns of these rows.
            unsafe { vst1q_f32(out.add(r * stride + v * 4), *sum) };
        }
    }
}

/// Registers' worth of panel rows (4 each) for which a tile of so many rows of codes keeps sums: as
/// many as the 32 registers hold. A tile goes through the panel once for each such part.
pub(crate) const fn width(code_rows: usize) -> usize {
    match code_rows {
        1 | 2 => 4,
        4 => 2,
        _ => 1,
    }
}

#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
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
                    let mut totals = [[[[vdupq_n_s16(0); 2]; V]; PLANES]; R];
                    for line in 0..4 {
                        for v in 0..V {
                            let bytes = vld1q_u8(at.add(line * 64 + (part + v) * 16));
                            let lows = vreinterpretq_s8_u8(vandq_u8(bytes, nibble));
                            let highs = vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes));
                            for (r, totals) in totals.iter_mut().enumerate() {
                                for (plane, totals) in totals.iter_mut().enumerate() {
                                    let k = g * ACTIVATION_GROUP + line * 8;
                                    let low = quad(x, row + r, plane, k);
                                    let high = quad(x, row + r, plane, k + 4);
                                    totals[v] = add_products(totals[v], lows, low);
                                    totals[v] = add_products(totals[v], highs, high);
                                }
                            }
                        }
                    }
                    // A lane has 8 products, and two lanes added still fit 16 bits.
                    let mut dots = [[[vdupq_n_s32(0); V]; PLANES]; R];
                    let all = totals.as_flattened().as_flattened();
                    for (dot, [a, b]) in
                        dots.as_flattened_mut().as_flattened_mut().iter_mut().zip(all)
                    {
                        *dot = vpaddlq_s16(vpaddq_s16(*a, *b));
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

/// 4 codes of a row from input `k` on, in every lane.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn quad(x: &QuantizedRows<'_>, row: usize, plane: usize, k: usize) -> int8x16_t {
    // SAFETY: the caller's row, plane and inputs exist.
    unsafe {
        let at = x.codes.as_ptr().add((row * x.planes + plane) * x.cols + k);
        vreinterpretq_s8_s32(vdupq_n_s32(at.cast::<i32>().read_unaligned()))
    }
}

/// 16 products. The second half goes through `asm!` because the compiler, seeing that `a` repeats
/// itself, would first copy the upper half of `w` down.
#[inline]
#[target_feature(enable = "neon")]
fn products(w: int8x16_t, a: int8x16_t) -> [int16x8_t; 2] {
    let high: int16x8_t;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "smull2 {high:v}.8h, {w:v}.16b, {a:v}.16b",
            high = lateout(vreg) high,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [vmull_s8(vget_low_s8(w), vget_low_s8(a)), high]
}

/// The sums + 16 products.
#[inline]
#[target_feature(enable = "neon")]
fn add_products([low, high]: [int16x8_t; 2], w: int8x16_t, a: int8x16_t) -> [int16x8_t; 2] {
    let mut high = high;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "smlal2 {high:v}.8h, {w:v}.16b, {a:v}.16b",
            high = inout(vreg) high,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [vmlal_s8(low, vget_low_s8(w), vget_low_s8(a)), high]
}

#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
unsafe fn q8_tile<const PLANES: usize, const R: usize, const V: usize>(
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
                let mut halfway = [[[[vdupq_n_s32(0); 2]; V]; PLANES]; R];
                for lines in (0..8).step_by(2) {
                    for v in 0..V {
                        let w = [0, 1].map(|i| signed(at.add((lines + i) * 64 + (part + v) * 16)));
                        for (r, halfway) in halfway.iter_mut().enumerate() {
                            for (plane, halfway) in halfway.iter_mut().enumerate() {
                                // Two products of at most 128 · 127 fit 16 bits, more don't.
                                let k = g * ACTIVATION_GROUP + lines * 4;
                                let first = products(w[0], quad(x, row + r, plane, k));
                                let both =
                                    add_products(first, w[1], quad(x, row + r, plane, k + 4));
                                let [a, b] = &mut halfway[v];
                                *a = vpadalq_s16(*a, both[0]);
                                *b = vpadalq_s16(*b, both[1]);
                            }
                        }
                    }
                }
                let mut dots = [[[vdupq_n_s32(0); V]; PLANES]; R];
                let all = halfway.as_flattened().as_flattened();
                for (dot, [a, b]) in dots.as_flattened_mut().as_flattened_mut().iter_mut().zip(all)
                {
                    *dot = vpaddq_s32(*a, *b);
                }
                let d = halves::<V>(panel.as_ptr().add(g * 32 + part * 8));
                add_group(x, (row, g), &d, &dots, &mut sums);
                at = at.add(512);
            }
            store(&sums, out.add(row * stride + part * 4), stride);
        }
    }
}

/// 16 codes of 8 bits, less 128.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn signed(at: *const u8) -> int8x16_t {
    // SAFETY: the caller has 16 bytes there.
    vreinterpretq_s8_u8(veorq_u8(unsafe { vld1q_u8(at) }, vdupq_n_u8(128)))
}

#[target_feature(enable = "neon")]
unsafe fn matmul_f32_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        in_tiles!(n_rows, [4, 2, 1], |row, R| f32_q4_tile::<BLOCK, GROUP, R>(
            panel,
            x,
            x.len() / n_rows,
            out,
            stride,
            row
        ))
    }
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn f32_q4_tile<const BLOCK: usize, const GROUP: usize, const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let mut sums = [[vdupq_n_f32(0.0); 4]; R];
    let nibble = vdupq_n_u32(15);
    // SAFETY: every block of the panel has 64 + 8·BLOCK bytes and its inputs exist in every row.
    unsafe {
        let mut at = panel.as_ptr();
        for block in 0..cols / BLOCK {
            let header = at;
            at = at.add(Q4_HEADER_BYTES);
            for line in 0..BLOCK / 8 {
                let (d, m) = q4_scales::<BLOCK, GROUP, 4>(header, line * 8);
                for v in 0..4 {
                    let mut bytes = vreinterpretq_u32_u8(vld1q_u8(at.add(line * 64 + v * 16)));
                    for j in 0..4 {
                        let low = vcvtq_f32_u32(vandq_u32(bytes, nibble));
                        let high = vcvtq_f32_u32(vandq_u32(vshrq_n_u32::<4>(bytes), nibble));
                        bytes = vshrq_n_u32::<8>(bytes);
                        let low = vfmaq_f32(m[v], low, d[v]);
                        let high = vfmaq_f32(m[v], high, d[v]);
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let x = x.as_ptr().add((row + r) * cols + block * BLOCK + line * 8 + j);
                            sums[v] = vfmaq_n_f32(sums[v], low, *x);
                            sums[v] = vfmaq_n_f32(sums[v], high, *x.add(4));
                        }
                    }
                }
            }
            at = at.add(BLOCK * 8);
        }
        store(&sums, out.add(row * stride), stride);
    }
}

#[target_feature(enable = "neon")]
unsafe fn matmul_f32_q8(panel: &[u8], x: &[f32], n_rows: usize, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        in_tiles!(n_rows, [4, 2, 1], |row, R| f32_q8_tile::<R>(
            panel,
            x,
            x.len() / n_rows,
            out,
            stride,
            row
        ))
    }
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn f32_q8_tile<const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let mut sums = [[vdupq_n_f32(0.0); 4]; R];
    let byte = vdupq_n_u32(255);
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        let lines = panel.as_ptr().add(q8_scale_bytes(cols));
        for line in 0..cols / 4 {
            let d = halves::<4>(panel.as_ptr().add(line / 8 * 32));
            for v in 0..4 {
                let mut bytes = vreinterpretq_u32_u8(vld1q_u8(lines.add(line * 64 + v * 16)));
                for j in 0..4 {
                    let q = vcvtq_f32_u32(vandq_u32(bytes, byte));
                    bytes = vshrq_n_u32::<8>(bytes);
                    let w = vmulq_f32(d[v], vsubq_f32(q, vdupq_n_f32(128.0)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = *x.as_ptr().add((row + r) * cols + line * 4 + j);
                        sums[v] = vfmaq_n_f32(sums[v], w, x);
                    }
                }
            }
        }
        store(&sums, out.add(row * stride), stride);
    }
}

#[target_feature(enable = "neon")]
unsafe fn matmul_float<const FORMAT: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        in_tiles!(n_rows, [2, 1], |row, R| float_tile::<FORMAT, R>(
            panel,
            x,
            x.len() / n_rows,
            out,
            stride,
            row
        ))
    }
}

/// `FORMAT` is 4 for f32, 2 for f16, 3 for bf16. Even and odd inputs have sums of their own: four
/// chains of additions are too few to keep the multipliers busy.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn float_tile<const FORMAT: usize, const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let mut sums = [[[vdupq_n_f32(0.0); 4]; R]; 2];
    // SAFETY: the panel has 16 values per input, and inputs exist in every row.
    unsafe {
        let mut add = |k: usize, parity: usize| {
            let w = match FORMAT {
                4 => [0, 4, 8, 12].map(|i| vld1q_f32(panel.as_ptr().cast::<f32>().add(k * 16 + i))),
                2 => halves::<4>(panel.as_ptr().add(k * 32)),
                _ => [0, 4, 8, 12].map(|i| {
                    let bits = vld1_u16(panel.as_ptr().cast::<u16>().add(k * 16 + i));
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
                }),
            };
            for (r, sums) in sums[parity].iter_mut().enumerate() {
                let x = *x.as_ptr().add((row + r) * cols + k);
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = vfmaq_n_f32(*sum, w, x);
                }
            }
        };
        for k in (0..cols / 2 * 2).step_by(2) {
            add(k, 0);
            add(k + 1, 1);
        }
        if cols % 2 == 1 {
            add(cols - 1, 0);
        }
        let [mut even, odd] = sums;
        for (even, odd) in even.as_flattened_mut().iter_mut().zip(odd.as_flattened()) {
            *even = vaddq_f32(*even, *odd);
        }
        store(&even, out.add(row * stride), stride);
    }
}

#[target_feature(enable = "neon")]
unsafe fn scores(heads: Heads, q: &[f32], keys: Keys<'_>, blocks: Range<usize>, out: &mut [f32]) {
    // SAFETY: the caller checked that blocks, queries and scores lie inside their slices.
    unsafe {
        in_tiles!(heads.n, [4, 2, 1], |row, R| scores_tile::<R>(
            heads,
            q,
            keys,
            blocks.clone(),
            out,
            row
        ))
    }
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn scores_tile<const R: usize>(
    heads: Heads,
    q: &[f32],
    keys: Keys<'_>,
    blocks: Range<usize>,
    out: &mut [f32],
    head: usize,
) {
    let dim = heads.head_dim;
    // SAFETY: as promised by the caller of `scores`.
    unsafe {
        for (i, block) in blocks.enumerate() {
            let mut sums = [[vdupq_n_f32(0.0); 4]; R];
            for d in 0..dim {
                let at = (block * dim + d) * PANEL_ROWS;
                let key = match keys {
                    Keys::F16(k) => halves::<4>(k.as_ptr().add(at).cast()),
                    Keys::Q8(k, _) => {
                        let [a, b] = widened(vld1q_s8(k.as_ptr().add(at)));
                        [a[0], a[1], b[0], b[1]]
                    }
                };
                for (r, sums) in sums.iter_mut().enumerate() {
                    let q = *q.as_ptr().add((head + r) * dim + d);
                    for (sum, key) in sums.iter_mut().zip(key) {
                        *sum = vfmaq_n_f32(*sum, key, q);
                    }
                }
            }
            if let Keys::Q8(_, scales) = keys {
                for sums in &mut sums {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        let scale = scales.as_ptr().add(block * PANEL_ROWS + v * 4);
                        *sum = vmulq_f32(*sum, vld1q_f32(scale));
                    }
                }
            }
            let out = out.as_mut_ptr().add(head * heads.stride + i * PANEL_ROWS);
            store(&sums, out, heads.stride);
        }
    }
}

/// 16 bytes as floats.
#[inline]
#[target_feature(enable = "neon")]
fn widened(bytes: int8x16_t) -> [[float32x4_t; 2]; 2] {
    let wide = |half: int16x8_t| {
        let low = vmovl_s16(vget_low_s16(half));
        [vcvtq_f32_s32(low), vcvtq_f32_s32(vmovl_high_s16(half))]
    };
    [wide(vmovl_s8(vget_low_s8(bytes))), wide(vmovl_high_s8(bytes))]
}

#[target_feature(enable = "neon")]
unsafe fn values(
    heads: Heads,
    weights: &[f32],
    values: Values<'_>,
    positions: Range<usize>,
    out: &mut [f32],
) {
    // SAFETY: the caller checked that positions, weights and outputs lie inside their slices.
    unsafe {
        in_tiles!(heads.n, [8, 4, 2, 1], |row, R| values_tile::<R>(
            heads,
            weights,
            values,
            positions.clone(),
            out,
            row
        ));
    }
    values_from(heads.head_dim / 8 * 8, heads, weights, values, positions, out);
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn values_tile<const R: usize>(
    heads: Heads,
    weights: &[f32],
    values: Values<'_>,
    positions: Range<usize>,
    out: &mut [f32],
    head: usize,
) {
    let dim = heads.head_dim;
    let whole = dim / 8 * 8;
    // SAFETY: as promised by the caller of `values`.
    unsafe {
        let weight = |r: usize, i: usize| *weights.as_ptr().add((head + r) * heads.stride + i);
        for d in (0..whole).step_by(8) {
            let mut sums = [[vdupq_n_f32(0.0); 2]; R];
            for (i, position) in positions.clone().enumerate() {
                let at = position * dim + d;
                let (value, scale) = match values {
                    Values::F16(v) => (halves::<2>(v.as_ptr().add(at).cast()), 1.0),
                    Values::Q8(v, scales) => {
                        let bytes = vld1_s8(v.as_ptr().add(at));
                        let [value, _] = widened(vcombine_s8(bytes, bytes));
                        (value, *scales.as_ptr().add(position))
                    }
                };
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (sum, value) in sums.iter_mut().zip(value) {
                        *sum = vfmaq_n_f32(*sum, value, weight(r, i) * scale);
                    }
                }
            }
            store(&sums, out.as_mut_ptr().add(head * dim + d), dim);
        }
    }
}
