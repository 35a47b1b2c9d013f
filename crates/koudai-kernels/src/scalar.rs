//! The readable reference and the definition of correct; runs everywhere.
//!
//! Start with [`matmul_q4`]. Every other table must produce the same integers; floats may differ by
//! rounding, as the order of additions does.

use std::ops::Range;

use crate::matrix::{PANEL_ROWS, Q4_HEADER_BYTES, q8_scale_bytes};
use crate::num::{bf16_to_f32, f16_to_f32};
use crate::rows::{ACTIVATION_GROUP, Keys, QuantizedRows, Values};
use crate::table::{ByKind, Heads, Kernels};
use crate::vector;

pub(crate) static KERNELS: Kernels = Kernels {
    name: "scalar",
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

fn half(bytes: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]))
}

/// Writes 16 outputs of one row.
///
/// # Safety
/// `out + row · stride` must be valid for 16 writes.
unsafe fn put(out: *mut f32, stride: usize, row: usize, values: [f32; PANEL_ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { out.add(row * stride).cast::<[f32; PANEL_ROWS]>().write_unaligned(values) }
}

/// (d, m) of inputs from `input` on in a block of 4-bit codes that opens with `header`. Where a block
/// has more than one group, codes are around 8: `w = d·(q − 8)`.
fn q4_scales<const BLOCK: usize, const GROUP: usize>(
    header: &[u8],
    input: usize,
    lane: usize,
) -> (f32, f32) {
    if BLOCK == GROUP {
        return (half(header, lane), half(header, PANEL_ROWS + lane));
    }
    let d = half(header, input / GROUP * PANEL_ROWS + lane);
    (d, -8.0 * d)
}

/// out = Σ over groups of d · Σ over planes of s · Σ q·a, + m · Σ x, with x the rounded activations.
unsafe fn matmul_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    let x_groups = x.cols / ACTIVATION_GROUP;
    for row in 0..x.n_rows {
        let mut sums = [0.0; PANEL_ROWS];
        for xg in 0..x_groups {
            let (block, input) = (xg * ACTIVATION_GROUP / BLOCK, xg * ACTIVATION_GROUP % BLOCK);
            let block = &panel[block * (Q4_HEADER_BYTES + BLOCK * 8)..];
            let (header, lines) = block.split_at(Q4_HEADER_BYTES);
            let lines = &lines[input * 8..][..256];
            for (lane, sum) in sums.iter_mut().enumerate() {
                let mut total = 0.0;
                for plane in 0..x.planes {
                    let at = row * x.planes + plane;
                    let a = &x.codes[at * x.cols + xg * ACTIVATION_GROUP..][..ACTIVATION_GROUP];
                    let mut dot = 0i32;
                    for (line, a) in lines.chunks_exact(64).zip(a.chunks_exact(8)) {
                        for j in 0..4 {
                            let byte = line[lane * 4 + j];
                            dot += (byte & 15) as i32 * a[j] as i32;
                            dot += (byte >> 4) as i32 * a[j + 4] as i32;
                        }
                    }
                    total += x.scales[at * x_groups + xg] * dot as f32;
                }
                let (d, m) = q4_scales::<BLOCK, GROUP>(header, input, lane);
                *sum += d * total;
                *sum += m * x.mins[row * x_groups + xg];
            }
        }
        // SAFETY: the caller owns the panel's 16 columns in every row.
        unsafe { put(out, stride, row, sums) };
    }
}

/// out = Σ over groups of d · Σ over planes of s · Σ (q − 128)·a.
unsafe fn matmul_q8(panel: &[u8], x: &QuantizedRows<'_>, out: *mut f32, stride: usize) {
    let groups = x.cols / ACTIVATION_GROUP;
    let (header, lines) = panel.split_at(q8_scale_bytes(x.cols));
    for row in 0..x.n_rows {
        let mut sums = [0.0; PANEL_ROWS];
        for g in 0..groups {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let mut total = 0.0;
                for plane in 0..x.planes {
                    let at = row * x.planes + plane;
                    let a = &x.codes[at * x.cols + g * ACTIVATION_GROUP..][..ACTIVATION_GROUP];
                    let mut dot = 0i32;
                    for (i, a) in a.iter().enumerate() {
                        let q = lines[g * 512 + i / 4 * 64 + lane * 4 + i % 4];
                        dot += (q as i32 - 128) * *a as i32;
                    }
                    total += x.scales[at * groups + g] * dot as f32;
                }
                *sum += half(header, g * PANEL_ROWS + lane) * total;
            }
        }
        // SAFETY: as in `matmul_q4`.
        unsafe { put(out, stride, row, sums) };
    }
}

/// Weights used exactly, activations in f32.
unsafe fn matmul_f32_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    for (row, x) in x.chunks_exact(x.len() / n_rows).enumerate() {
        let mut sums = [0.0; PANEL_ROWS];
        for (block, x) in panel.chunks_exact(Q4_HEADER_BYTES + BLOCK * 8).zip(x.chunks(BLOCK)) {
            let (header, lines) = block.split_at(Q4_HEADER_BYTES);
            for (lane, sum) in sums.iter_mut().enumerate() {
                for (i, x) in x.iter().enumerate() {
                    let (d, m) = q4_scales::<BLOCK, GROUP>(header, i, lane);
                    let byte = lines[i / 8 * 64 + lane * 4 + i % 4];
                    let q = if i % 8 < 4 { byte & 15 } else { byte >> 4 };
                    *sum += (d * q as f32 + m) * x;
                }
            }
        }
        // SAFETY: as in `matmul_q4`.
        unsafe { put(out, stride, row, sums) };
    }
}

unsafe fn matmul_f32_q8(panel: &[u8], x: &[f32], n_rows: usize, out: *mut f32, stride: usize) {
    let cols = x.len() / n_rows;
    let (header, lines) = panel.split_at(q8_scale_bytes(cols));
    for (row, x) in x.chunks_exact(cols).enumerate() {
        let mut sums = [0.0; PANEL_ROWS];
        for (lane, sum) in sums.iter_mut().enumerate() {
            for (i, x) in x.iter().enumerate() {
                let q = lines[i / 4 * 64 + lane * 4 + i % 4];
                *sum += half(header, i / 32 * PANEL_ROWS + lane) * (q as f32 - 128.0) * x;
            }
        }
        // SAFETY: as in `matmul_q4`.
        unsafe { put(out, stride, row, sums) };
    }
}

/// Float weights; `FORMAT` is 4 for f32, 2 for f16, 3 for bf16.
unsafe fn matmul_float<const FORMAT: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    let bytes = if FORMAT == 4 { 4 } else { 2 };
    for (row, x) in x.chunks_exact(x.len() / n_rows).enumerate() {
        let mut sums = [0.0; PANEL_ROWS];
        for (weights, x) in panel.chunks_exact(PANEL_ROWS * bytes).zip(x) {
            for (w, sum) in weights.chunks_exact(bytes).zip(&mut sums) {
                let w = match FORMAT {
                    4 => f32::from_le_bytes([w[0], w[1], w[2], w[3]]),
                    2 => half(w, 0),
                    _ => bf16_to_f32(u16::from_le_bytes([w[0], w[1]])),
                };
                *sum += w * x;
            }
        }
        // SAFETY: as in `matmul_q4`.
        unsafe { put(out, stride, row, sums) };
    }
}

fn scores(heads: Heads, q: &[f32], keys: Keys<'_>, blocks: Range<usize>, scores: &mut [f32]) {
    for (q, scores) in q.chunks_exact(heads.head_dim).zip(scores.chunks_exact_mut(heads.stride)) {
        for (block, scores) in blocks.clone().zip(scores.chunks_exact_mut(PANEL_ROWS)) {
            for (lane, score) in scores.iter_mut().enumerate() {
                let key = |d: usize| (block * heads.head_dim + d) * PANEL_ROWS + lane;
                *score = match keys {
                    Keys::F16(k) => {
                        q.iter().enumerate().map(|(d, q)| q * f16_to_f32(k[key(d)])).sum()
                    }
                    Keys::Q8(k, s) => {
                        let dot: f32 =
                            q.iter().enumerate().map(|(d, q)| q * k[key(d)] as f32).sum();
                        dot * s[block * PANEL_ROWS + lane]
                    }
                };
            }
        }
    }
}

fn values(heads: Heads, weights: &[f32], v: Values<'_>, positions: Range<usize>, out: &mut [f32]) {
    values_from(0, heads, weights, v, positions, out)
}

/// The sums from value `first` of each head on: all of them, or those that fill no vector.
pub(crate) fn values_from(
    first: usize,
    heads: Heads,
    weights: &[f32],
    v: Values<'_>,
    positions: Range<usize>,
    out: &mut [f32],
) {
    let dim = heads.head_dim;
    for (weights, out) in weights.chunks_exact(heads.stride).zip(out.chunks_exact_mut(dim)) {
        for (d, out) in out.iter_mut().enumerate().skip(first) {
            let at = |position: usize| position * dim + d;
            let terms = positions.clone().zip(weights).map(|(p, weight)| match v {
                Values::F16(v) => weight * f16_to_f32(v[at(p)]),
                Values::Q8(v, s) => weight * s[p] * v[at(p)] as f32,
            });
            *out = terms.sum();
        }
    }
}
