//! AVX2 with FMA and F16C: the 16 rows of a panel are two registers of 8 lanes.
//!
//! Start with [`q4_tile`]. What multiplies bytes is a [`Dot`]: here [`Pairs`], in the `avxvnni` table
//! one instruction for four products. Both give the same integers, and all else is shared.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::matrix::{PANEL_ROWS, Q4_HEADER_BYTES, q8_scale_bytes};
use crate::rows::{ACTIVATION_GROUP, Keys, QuantizedRows, Values, by_planes, in_tiles};
use crate::scalar::values_from;
use crate::table::{ByKind, Heads, Kernels};
use crate::vector::for_isa;

pub(crate) fn supported() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "avx2",
    matmul_q8: matmul_q8::<Pairs>,
    matmul_q4g32: matmul_q4::<Pairs, 32, 32>,
    matmul_q4g64: matmul_q4::<Pairs, 64, 64>,
    matmul_q4s32: matmul_q4::<Pairs, 64, 32>,
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

for_isa!("avx2,fma,f16c");

/// Products of unsigned codes with signed activations, added up in 8 lanes, one for each row.
pub(crate) trait Dot {
    /// `sum` + 8 inputs with 4-bit codes. Four inputs lie in a lane, so there are two vectors of each.
    unsafe fn q4(sum: __m256i, codes: [__m256i; 2], a: [__m256i; 2]) -> __m256i;

    /// The 32-bit sums of a group of 32 inputs that `q4` added up from zero.
    unsafe fn q4_sums(sum: __m256i) -> __m256i;

    /// What a group adds to with `q8`, given the sum of its activations.
    unsafe fn q8_start(a: i32) -> __m256i;

    /// `sum` + 4 inputs with 8-bit codes, whose zero is 128.
    unsafe fn q8(sum: __m256i, codes: __m256i, a: __m256i) -> __m256i;
}

/// `vpmaddubsw`, which adds up pairs of products in 16 bits.
struct Pairs;

impl Dot for Pairs {
    /// Codes are at most 15 and activations at most 127 in magnitude: nothing saturates, and a whole
    /// group fits 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q4(sum: __m256i, codes: [__m256i; 2], a: [__m256i; 2]) -> __m256i {
        let low = _mm256_maddubs_epi16(codes[0], a[0]);
        let high = _mm256_maddubs_epi16(codes[1], a[1]);
        _mm256_add_epi16(sum, _mm256_add_epi16(low, high))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q4_sums(sum: __m256i) -> __m256i {
        _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q8_start(_: i32) -> __m256i {
        _mm256_setzero_si256()
    }

    /// code - 128 as a signed byte has a magnitude of at most 128, so with signs moved to the
    /// activations a pair is at most 2 · 128 · 127, which fits 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn q8(sum: __m256i, codes: __m256i, a: __m256i) -> __m256i {
        let w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// 8 half floats at `at`, widened.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves(at: *const u8) -> __m256 {
    // SAFETY: the caller has 16 bytes there.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul_q4<D: Dot, const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe { by_planes!(x.planes, |P| q4_planes::<D, BLOCK, GROUP, P>(panel, x, out, stride)) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q4_planes<D: Dot, const BLOCK: usize, const GROUP: usize, const PLANES: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    let pairs = x.n_rows / 2 * 2;
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        for side in 0..2 {
            in_tiles!(pairs, [4, 2], |row, R| q4_tile::<D, BLOCK, GROUP, PLANES, R, 1>(
                panel, x, out, stride, side, row
            ));
        }
        if pairs < x.n_rows {
            // A row alone has registers for both sides, so the panel is read once, in order.
            q4_tile::<D, BLOCK, GROUP, PLANES, 1, 2>(panel, x, out, stride, 0, pairs);
        }
    }
}

/// `SIDES` halves of a panel from `side` on (8 rows each), times a tile of activation rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q4_tile<
    D: Dot,
    const BLOCK: usize,
    const GROUP: usize,
    const PLANES: usize,
    const R: usize,
    const SIDES: usize,
>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    side: usize,
    row: usize,
) {
    let x_groups = x.cols / ACTIVATION_GROUP;
    let nibble = _mm256_set1_epi8(15);
    // SAFETY: every block of the panel has 64 + 8·BLOCK bytes and its inputs exist in every row.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); SIDES]; R];
        let mut at = panel.as_ptr();
        let mut xg = 0;
        while xg < x_groups {
            let header = at.add(side * 16);
            at = at.add(Q4_HEADER_BYTES);
            for input in (0..BLOCK).step_by(ACTIVATION_GROUP) {
                let mut dots = [[[_mm256_setzero_si256(); PLANES]; SIDES]; R];
                for line in 0..4 {
                    for half in 0..SIDES {
                        let bytes = at.add(line * 64 + (side + half) * 32);
                        let bytes = _mm256_loadu_si256(bytes.cast());
                        let codes = [bytes, _mm256_srli_epi16::<4>(bytes)]
                            .map(|bytes| _mm256_and_si256(bytes, nibble));
                        for (r, dots) in dots.iter_mut().enumerate() {
                            for (plane, dot) in dots[half].iter_mut().enumerate() {
                                let a = quads(x, row + r, plane, xg * ACTIVATION_GROUP + line * 8);
                                *dot = D::q4(*dot, codes, [quad(a), quad(a.add(1))]);
                            }
                        }
                    }
                    if R == 1 {
                        prefetch(at.wrapping_add(line * 64));
                    }
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let min = _mm256_set1_ps(*x.mins.get_unchecked((row + r) * x_groups + xg));
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let (d, m) = q4_scales::<BLOCK, GROUP>(header.add(half * 16), input);
                        let dots = dots[r][half].map(|dot| D::q4_sums(dot));
                        *sum = _mm256_fmadd_ps(d, scaled(x, row + r, xg, dots), *sum);
                        *sum = _mm256_fmadd_ps(m, min, *sum);
                    }
                }
                at = at.add(256);
                xg += 1;
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (half, sum) in sums.into_iter().enumerate() {
                _mm256_storeu_ps(out.add((row + r) * stride + (side + half) * 8), sum);
            }
        }
    }
}

/// (d, m) of 8 rows for inputs from `input` on in a block of 4-bit codes; see `scalar::q4_scales`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn q4_scales<const BLOCK: usize, const GROUP: usize>(
    header: *const u8,
    input: usize,
) -> (__m256, __m256) {
    // SAFETY: the caller has the rows' side of a header of 64 bytes there.
    unsafe {
        if BLOCK == GROUP {
            return (halves(header), halves(header.add(32)));
        }
        let d = halves(header.add(input / GROUP * 32));
        (d, _mm256_mul_ps(d, _mm256_set1_ps(-8.0)))
    }
}

/// Asks for the weights that come 2 KB later, maybe of the next panel: the hardware's own prefetching
/// isn't far enough ahead of a core that multiplies.
#[inline(always)]
fn prefetch(at: *const u8) {
    // SAFETY: a prefetch of any address is harmless, and `wrapping_add` may leave the panel.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(2048).cast()) }
}

/// Codes of a row from input `k` on, four to a word.
#[inline(always)]
unsafe fn quads(x: &QuantizedRows<'_>, row: usize, plane: usize, k: usize) -> *const i32 {
    // SAFETY: the caller's row, plane and input exist.
    unsafe { x.codes.as_ptr().add((row * x.planes + plane) * x.cols + k).cast() }
}

/// Four codes in every lane.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quad(codes: *const i32) -> __m256i {
    // SAFETY: the caller has four bytes there.
    _mm256_set1_epi32(unsafe { codes.read_unaligned() })
}

/// Σ over planes of scale · dot.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scaled<const PLANES: usize>(
    x: &QuantizedRows<'_>,
    row: usize,
    group: usize,
    dots: [__m256i; PLANES],
) -> __m256 {
    let groups = x.cols / ACTIVATION_GROUP;
    // SAFETY: the caller's row and group exist.
    let scale = |plane: usize| unsafe {
        _mm256_set1_ps(*x.scales.get_unchecked((row * PLANES + plane) * groups + group))
    };
    let first = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[0]), scale(0));
    match PLANES {
        2 => _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[PLANES - 1]), scale(1), first),
        _ => first,
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul_q8<D: Dot>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        for side in 0..2 {
            by_planes!(x.planes, |P| in_tiles!(x.n_rows, [4, 2, 1], |row, R| q8_tile::<D, P, R>(
                panel, x, out, stride, side, row
            )))
        }
    }
}

/// Rows 0..8 (`side` 0) or 8..16 of a panel, times a tile of activation rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q8_tile<D: Dot, const PLANES: usize, const R: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    side: usize,
    row: usize,
) {
    let groups = x.cols / ACTIVATION_GROUP;
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); R];
        let codes = panel.as_ptr().add(q8_scale_bytes(x.cols) + side * 32);
        for g in 0..groups {
            let mut dots: [[__m256i; PLANES]; R] = std::array::from_fn(|r| {
                std::array::from_fn(|plane| {
                    let at = ((row + r) * PLANES + plane) * groups + g;
                    D::q8_start(*x.sums.get_unchecked(at))
                })
            });
            for line in 0..8 {
                let codes = _mm256_loadu_si256(codes.add(g * 512 + line * 64).cast());
                for (r, dots) in dots.iter_mut().enumerate() {
                    for (plane, dot) in dots.iter_mut().enumerate() {
                        let a = quad(quads(x, row + r, plane, g * ACTIVATION_GROUP + line * 4));
                        *dot = D::q8(*dot, codes, a);
                    }
                }
            }
            let d = halves(panel.as_ptr().add(g * 32 + side * 16));
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_fmadd_ps(d, scaled(x, row + r, g, dots[r]), *sum);
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            _mm256_storeu_ps(out.add((row + r) * stride + side * 8), sum);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn matmul_f32_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        for side in 0..2 {
            let cols = x.len() / n_rows;
            in_tiles!(n_rows, [2, 1], |row, R| f32_q4_tile::<BLOCK, GROUP, R>(
                panel, x, cols, out, stride, side, row
            ))
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::too_many_arguments)] // a kernel's inner tile
unsafe fn f32_q4_tile<const BLOCK: usize, const GROUP: usize, const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    side: usize,
    row: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); 4]; R];
    let nibble = _mm256_set1_epi32(15);
    // SAFETY: every block of the panel has 64 + 8·BLOCK bytes and its inputs exist in every row.
    unsafe {
        let mut at = panel.as_ptr();
        for block in 0..cols / BLOCK {
            let header = at.add(side * 16);
            at = at.add(Q4_HEADER_BYTES);
            for line in 0..BLOCK / 8 {
                let (d, m) = q4_scales::<BLOCK, GROUP>(header, line * 8);
                let mut bytes = _mm256_loadu_si256(at.add(line * 64 + side * 32).cast());
                for j in 0..4 {
                    let low = _mm256_and_si256(bytes, nibble);
                    let high = _mm256_and_si256(_mm256_srli_epi32::<4>(bytes), nibble);
                    bytes = _mm256_srli_epi32::<8>(bytes);
                    let low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), d, m);
                    let high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), d, m);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = x.as_ptr().add((row + r) * cols + block * BLOCK + line * 8 + j);
                        sums[j] = _mm256_fmadd_ps(low, _mm256_set1_ps(*x), sums[j]);
                        sums[j] = _mm256_fmadd_ps(high, _mm256_set1_ps(*x.add(4)), sums[j]);
                    }
                }
            }
            at = at.add(BLOCK * 8);
        }
        store(sums, out.add(side * 8), stride, row);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn matmul_f32_q8(panel: &[u8], x: &[f32], n_rows: usize, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        for side in 0..2 {
            let cols = x.len() / n_rows;
            in_tiles!(n_rows, [2, 1], |row, R| f32_q8_tile::<R>(
                panel, x, cols, out, stride, side, row
            ))
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::too_many_arguments)] // a kernel's inner tile
unsafe fn f32_q8_tile<const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    side: usize,
    row: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); 4]; R];
    let byte = _mm256_set1_epi32(255);
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        let lines = panel.as_ptr().add(q8_scale_bytes(cols) + side * 32);
        for line in 0..cols / 4 {
            let d = halves(panel.as_ptr().add(line / 8 * 32 + side * 16));
            let mut bytes = _mm256_loadu_si256(lines.add(line * 64).cast());
            for j in 0..4 {
                let q = _mm256_cvtepi32_ps(_mm256_and_si256(bytes, byte));
                bytes = _mm256_srli_epi32::<8>(bytes);
                let w = _mm256_mul_ps(d, _mm256_sub_ps(q, _mm256_set1_ps(128.0)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = *x.as_ptr().add((row + r) * cols + line * 4 + j);
                    sums[j] = _mm256_fmadd_ps(w, _mm256_set1_ps(x), sums[j]);
                }
            }
        }
        store(sums, out.add(side * 8), stride, row);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn matmul_float<const FORMAT: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        for side in 0..2 {
            let cols = x.len() / n_rows;
            in_tiles!(n_rows, [2, 1], |row, R| float_tile::<FORMAT, R>(
                panel, x, cols, out, stride, side, row
            ))
        }
    }
}

/// `FORMAT` is 4 for f32, 2 for f16, 3 for bf16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::too_many_arguments)] // a kernel's inner tile
unsafe fn float_tile<const FORMAT: usize, const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    side: usize,
    row: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); 4]; R];
    // SAFETY: the panel has 16 values per input, and inputs exist in every row.
    unsafe {
        let weights = |k: usize| match FORMAT {
            4 => _mm256_loadu_ps(panel.as_ptr().add(k * 64 + side * 32).cast()),
            2 => halves(panel.as_ptr().add(k * 32 + side * 16)),
            _ => {
                let bits = _mm_loadu_si128(panel.as_ptr().add(k * 32 + side * 16).cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
            }
        };
        let x = |r: usize, k: usize| _mm256_set1_ps(*x.as_ptr().add((row + r) * cols + k));
        let quads = cols / 4 * 4;
        for k in (0..quads).step_by(4) {
            for j in 0..4 {
                let w = weights(k + j);
                for (r, sums) in sums.iter_mut().enumerate() {
                    sums[j] = _mm256_fmadd_ps(w, x(r, k + j), sums[j]);
                }
            }
        }
        for k in quads..cols {
            let w = weights(k);
            for (r, sums) in sums.iter_mut().enumerate() {
                sums[k - quads] = _mm256_fmadd_ps(w, x(r, k), sums[k - quads]);
            }
        }
        store(sums, out.add(side * 8), stride, row);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const R: usize>(sums: [[__m256; 4]; R], out: *mut f32, stride: usize, row: usize) {
    for (r, [a, b, c, d]) in sums.into_iter().enumerate() {
        let sum = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
        // SAFETY: the caller owns 8 columns of these rows.
        unsafe { _mm256_storeu_ps(out.add((row + r) * stride), sum) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
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
            let mut sums = [[_mm256_setzero_ps(); 2]; R];
            for d in 0..dim {
                let at = (block * dim + d) * PANEL_ROWS;
                let (low, high) = match keys {
                    Keys::F16(k) => {
                        let at = k.as_ptr().add(at).cast::<u8>();
                        (halves(at), halves(at.add(16)))
                    }
                    Keys::Q8(k, _) => {
                        let codes = _mm_loadu_si128(k.as_ptr().add(at).cast());
                        let high = _mm_unpackhi_epi64(codes, codes);
                        (
                            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
                            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
                        )
                    }
                };
                for (r, sum) in sums.iter_mut().enumerate() {
                    let q = _mm256_set1_ps(*q.as_ptr().add((head + r) * dim + d));
                    sum[0] = _mm256_fmadd_ps(low, q, sum[0]);
                    sum[1] = _mm256_fmadd_ps(high, q, sum[1]);
                }
            }
            for (r, mut sum) in sums.into_iter().enumerate() {
                if let Keys::Q8(_, scales) = keys {
                    let at = scales.as_ptr().add(block * PANEL_ROWS);
                    sum[0] = _mm256_mul_ps(sum[0], _mm256_loadu_ps(at));
                    sum[1] = _mm256_mul_ps(sum[1], _mm256_loadu_ps(at.add(8)));
                }
                let at = out.as_mut_ptr().add((head + r) * heads.stride + i * PANEL_ROWS);
                _mm256_storeu_ps(at, sum[0]);
                _mm256_storeu_ps(at.add(8), sum[1]);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
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
            let mut sums = [_mm256_setzero_ps(); R];
            for (i, position) in positions.clone().enumerate() {
                let at = position * dim + d;
                let (value, scale) = match values {
                    Values::F16(v) => (halves(v.as_ptr().add(at).cast()), 1.0),
                    Values::Q8(v, scales) => {
                        let codes = _mm_loadl_epi64(v.as_ptr().add(at).cast());
                        let value = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
                        (value, *scales.as_ptr().add(position))
                    }
                };
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_fmadd_ps(value, _mm256_set1_ps(weight(r, i) * scale), *sum);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                _mm256_storeu_ps(out.as_mut_ptr().add((head + r) * dim + d), sum);
            }
        }
    }
}
