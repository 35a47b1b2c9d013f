//! AVX-512 with VNNI: 16 rows of a panel are the 16 lanes of a register.
//!
//! Start with [`q4_tile`] and [`Dot`]: a 64-byte line unpacks into two operands of `vpdpbusd`, each
//! multiplied with 4 broadcast activation bytes per plane of every row in the tile. Tiles of 8, 4, 2
//! and 1 rows share the unpacking and do the same arithmetic per row, so a row's result never depends
//! on its neighbours. The `amx` table brings another [`Dot`] and shares the rest.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::matrix::{PANEL_ROWS, Q4_HEADER_BYTES, q8_scale_bytes};
use crate::rows::{ACTIVATION_GROUP, Keys, QuantizedRows, Values, by_planes, in_tiles};
use crate::table::{ByKind, Heads, Kernels};
use crate::vector::for_isa;

pub(crate) fn supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
        && crate::avx2::supported()
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "avx512",
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

for_isa!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c");

/// Integer products of a group of 32 inputs of a panel with a tile of activation rows.
pub(crate) trait Dot {
    /// 4-bit codes, 4 lines of them.
    unsafe fn q4<const PLANES: usize, const R: usize>(
        lines: *const u8,
        rows: &Tile<PLANES>,
        group: usize,
    ) -> [[__m512i; PLANES]; R];

    /// 8-bit codes whose zero is 128, 8 lines of them.
    unsafe fn q8<const PLANES: usize, const R: usize>(
        lines: *const u8,
        rows: &Tile<PLANES>,
        group: usize,
    ) -> [[__m512i; PLANES]; R];
}

/// `vpdpbusd`: one row of activations at a time, in registers.
pub(crate) struct Vnni;

impl Dot for Vnni {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
    unsafe fn q4<const PLANES: usize, const R: usize>(
        lines: *const u8,
        rows: &Tile<PLANES>,
        group: usize,
    ) -> [[__m512i; PLANES]; R] {
        let mut dots = [[_mm512_setzero_si512(); PLANES]; R];
        // SAFETY: the caller has 4 lines there and the group in every row.
        unsafe {
            for line in 0..4 {
                let codes = unpack(lines.add(line * 64));
                for (r, dots) in dots.iter_mut().enumerate() {
                    for (plane, dot) in dots.iter_mut().enumerate() {
                        let a = rows.quads(r, plane, group * ACTIVATION_GROUP + line * 8);
                        *dot = _mm512_dpbusd_epi32(*dot, codes[0], quad(a));
                        *dot = _mm512_dpbusd_epi32(*dot, codes[1], quad(a.add(1)));
                    }
                }
            }
        }
        dots
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
    unsafe fn q8<const PLANES: usize, const R: usize>(
        lines: *const u8,
        rows: &Tile<PLANES>,
        group: usize,
    ) -> [[__m512i; PLANES]; R] {
        // SAFETY: the caller has 8 lines there and the group in every row.
        unsafe {
            // Codes are unsigned with zero at 128: start from -128 · Σ a.
            let mut dots: [[__m512i; PLANES]; R] = std::array::from_fn(|r| {
                std::array::from_fn(|plane| _mm512_set1_epi32(-128 * rows.sum(r, plane, group)))
            });
            for line in 0..8 {
                let codes = load(lines.add(line * 64));
                for (r, dots) in dots.iter_mut().enumerate() {
                    for (plane, dot) in dots.iter_mut().enumerate() {
                        let a = rows.quads(r, plane, group * ACTIVATION_GROUP + line * 4);
                        *dot = _mm512_dpbusd_epi32(*dot, codes, quad(a));
                    }
                }
            }
            dots
        }
    }
}

/// A line of codes; asks for the one that comes 2 KB later, maybe of the next panel. The hardware's
/// own prefetching isn't far enough ahead of a core that multiplies: decoding on one thread is 1.3
/// times as fast with this (LOG.md, 2026-11-30).
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn load(line: *const u8) -> __m512i {
    // SAFETY: the caller has 64 bytes there; a prefetch of any address is harmless, and
    // `wrapping_add` may leave the panel.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(2048).cast());
        _mm512_loadu_si512(line.cast())
    }
}

/// A line of 4-bit codes: its first and its last 4 inputs, a byte each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn unpack(line: *const u8) -> [__m512i; 2] {
    let nibble = _mm512_set1_epi8(15);
    // SAFETY: the caller has 64 bytes there.
    let bytes = unsafe { load(line) };
    [_mm512_and_si512(bytes, nibble), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), nibble)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(crate) unsafe fn matmul_q4<const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [8, 4, 2, 1], |row, R| q4_tile::<
            Vnni,
            BLOCK,
            GROUP,
            P,
            R,
        >(
            panel, x, out, stride, row
        )))
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(crate) unsafe fn q4_tile<
    D: Dot,
    const BLOCK: usize,
    const GROUP: usize,
    const PLANES: usize,
    const R: usize,
>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let x_groups = x.cols / ACTIVATION_GROUP;
    // SAFETY: every block of the panel has 64 + 8·BLOCK bytes and its inputs exist in every row.
    unsafe {
        let rows = Tile::<PLANES>::new(x, row);
        let mut sums = [_mm512_setzero_ps(); R];
        let mut at = panel.as_ptr();
        let mut xg = 0;
        while xg < x_groups {
            let header = at;
            at = at.add(Q4_HEADER_BYTES);
            for input in (0..BLOCK).step_by(ACTIVATION_GROUP) {
                let (d, m) = q4_scales::<BLOCK, GROUP>(header, input);
                let dots = D::q4::<PLANES, R>(at, &rows, xg);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(d, rows.scaled(r, xg, dots[r]), *sum);
                    *sum = _mm512_fmadd_ps(m, _mm512_set1_ps(rows.min(r, xg)), *sum);
                }
                at = at.add(256);
                xg += 1;
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            _mm512_storeu_ps(out.add((row + r) * stride), sum);
        }
    }
}

/// (d, m) of inputs from `input` on in a block of 4-bit codes; see `scalar::q4_scales`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn q4_scales<const BLOCK: usize, const GROUP: usize>(
    header: *const u8,
    input: usize,
) -> (__m512, __m512) {
    // SAFETY: the caller has a header of 64 bytes there.
    let halves = |at| unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(header.add(at).cast())) };
    if BLOCK == GROUP {
        return (halves(0), halves(32));
    }
    let d = halves(input / GROUP * 32);
    (d, _mm512_mul_ps(d, _mm512_set1_ps(-8.0)))
}

/// Where the activations of a tile of rows lie.
pub(crate) struct Tile<const PLANES: usize> {
    codes: *const i8,
    scales: *const f32,
    sums: *const i32,
    mins: *const f32,
    pub(crate) cols: usize,
    groups: usize,
}

impl<const PLANES: usize> Tile<PLANES> {
    /// The tile that starts at `row`.
    #[inline(always)]
    unsafe fn new(x: &QuantizedRows<'_>, row: usize) -> Self {
        let groups = x.cols / ACTIVATION_GROUP;
        // SAFETY: the caller's row exists.
        unsafe {
            Tile {
                codes: x.codes.as_ptr().add(row * PLANES * x.cols),
                scales: x.scales.as_ptr().add(row * PLANES * groups),
                sums: x.sums.as_ptr().add(row * PLANES * groups),
                mins: x.mins.as_ptr().add(row * groups),
                cols: x.cols,
                groups,
            }
        }
    }

    /// Codes from input `k` of row `r` on, four to a word.
    #[inline(always)]
    pub(crate) unsafe fn quads(&self, r: usize, plane: usize, k: usize) -> *const i32 {
        // SAFETY: the caller's row, plane and input exist.
        unsafe { self.codes.add((r * PLANES + plane) * self.cols + k).cast() }
    }

    #[inline(always)]
    unsafe fn min(&self, r: usize, group: usize) -> f32 {
        // SAFETY: the caller's row and group exist.
        unsafe { *self.mins.add(r * self.groups + group) }
    }

    /// Sum of the codes of a group.
    #[inline(always)]
    unsafe fn sum(&self, r: usize, plane: usize, group: usize) -> i32 {
        // SAFETY: the caller's row and group exist.
        unsafe { *self.sums.add((r * PLANES + plane) * self.groups + group) }
    }

    /// Σ over planes of scale · dot.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
    unsafe fn scaled(&self, r: usize, group: usize, dots: [__m512i; PLANES]) -> __m512 {
        // SAFETY: the caller's row and group exist.
        let scale = |plane: usize| unsafe {
            _mm512_set1_ps(*self.scales.add((r * PLANES + plane) * self.groups + group))
        };
        let first = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[0]), scale(0));
        match PLANES {
            2 => _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[PLANES - 1]), scale(1), first),
            _ => first,
        }
    }
}

/// Four codes in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn quad(codes: *const i32) -> __m512i {
    // SAFETY: the caller has four bytes there.
    _mm512_set1_epi32(unsafe { codes.read_unaligned() })
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(crate) unsafe fn matmul_q8(panel: &[u8], x: &QuantizedRows<'_>, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [8, 4, 2, 1], |row, R| q8_tile::<Vnni, P, R>(
            panel, x, out, stride, row
        )))
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(crate) unsafe fn q8_tile<D: Dot, const PLANES: usize, const R: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        let rows = Tile::<PLANES>::new(x, row);
        let mut sums = [_mm512_setzero_ps(); R];
        let mut at = panel.as_ptr().add(q8_scale_bytes(x.cols));
        for g in 0..rows.groups {
            let d = _mm512_cvtph_ps(_mm256_loadu_si256(panel.as_ptr().add(g * 32).cast()));
            let dots = D::q8::<PLANES, R>(at, &rows, g);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(d, rows.scaled(r, g, dots[r]), *sum);
            }
            at = at.add(512);
        }
        for (r, sum) in sums.into_iter().enumerate() {
            _mm512_storeu_ps(out.add((row + r) * stride), sum);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn f32_q4_tile<const BLOCK: usize, const GROUP: usize, const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); 4]; R];
    let nibble = _mm512_set1_epi32(15);
    // SAFETY: every block of the panel has 64 + 8·BLOCK bytes and its inputs exist in every row.
    unsafe {
        let mut at = panel.as_ptr();
        for block in 0..cols / BLOCK {
            let header = at;
            at = at.add(Q4_HEADER_BYTES);
            for line in 0..BLOCK / 8 {
                let (d, m) = q4_scales::<BLOCK, GROUP>(header, line * 8);
                let mut bytes = _mm512_loadu_si512(at.add(line * 64).cast());
                for j in 0..4 {
                    let low = _mm512_and_si512(bytes, nibble);
                    let high = _mm512_and_si512(_mm512_srli_epi32::<4>(bytes), nibble);
                    bytes = _mm512_srli_epi32::<8>(bytes);
                    let low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), d, m);
                    let high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), d, m);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = x.as_ptr().add((row + r) * cols + block * BLOCK + line * 8 + j);
                        sums[j] = _mm512_fmadd_ps(low, _mm512_set1_ps(*x), sums[j]);
                        sums[j] = _mm512_fmadd_ps(high, _mm512_set1_ps(*x.add(4)), sums[j]);
                    }
                }
            }
            at = at.add(BLOCK * 8);
        }
        store(sums, out, stride, row);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn f32_q8_tile<const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); 4]; R];
    let byte = _mm512_set1_epi32(255);
    // SAFETY: the panel has 32 bytes of scales and 512 of codes per group; inputs exist in every row.
    unsafe {
        let lines = panel.as_ptr().add(q8_scale_bytes(cols));
        for line in 0..cols / 4 {
            let d = panel.as_ptr().add(line / 8 * 32);
            let d = _mm512_cvtph_ps(_mm256_loadu_si256(d.cast()));
            let mut bytes = _mm512_loadu_si512(lines.add(line * 64).cast());
            for j in 0..4 {
                let q = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, byte));
                bytes = _mm512_srli_epi32::<8>(bytes);
                let w = _mm512_mul_ps(d, _mm512_sub_ps(q, _mm512_set1_ps(128.0)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = *x.as_ptr().add((row + r) * cols + line * 4 + j);
                    sums[j] = _mm512_fmadd_ps(w, _mm512_set1_ps(x), sums[j]);
                }
            }
        }
        store(sums, out, stride, row);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn matmul_float<const FORMAT: usize>(
    panel: &[u8],
    x: &[f32],
    n_rows: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        in_tiles!(n_rows, [4, 2, 1], |row, R| float_tile::<FORMAT, R>(
            panel,
            x,
            x.len() / n_rows,
            out,
            stride,
            row
        ))
    }
}

/// `FORMAT` is 4 for f32, 2 for f16, 3 for bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn float_tile<const FORMAT: usize, const R: usize>(
    panel: &[u8],
    x: &[f32],
    cols: usize,
    out: *mut f32,
    stride: usize,
    row: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); 4]; R];
    // SAFETY: the panel has 16 values per input, and inputs exist in every row.
    unsafe {
        let weights = |k: usize| match FORMAT {
            4 => _mm512_loadu_ps(panel.as_ptr().add(k * 64).cast()),
            2 => _mm512_cvtph_ps(_mm256_loadu_si256(panel.as_ptr().add(k * 32).cast())),
            _ => {
                let bits = _mm256_loadu_si256(panel.as_ptr().add(k * 32).cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
            }
        };
        let x = |r: usize, k: usize| _mm512_set1_ps(*x.as_ptr().add((row + r) * cols + k));
        let quads = cols / 4 * 4;
        for k in (0..quads).step_by(4) {
            for j in 0..4 {
                let w = weights(k + j);
                for (r, sums) in sums.iter_mut().enumerate() {
                    sums[j] = _mm512_fmadd_ps(w, x(r, k + j), sums[j]);
                }
            }
        }
        for k in quads..cols {
            let w = weights(k);
            for (r, sums) in sums.iter_mut().enumerate() {
                sums[k - quads] = _mm512_fmadd_ps(w, x(r, k), sums[k - quads]);
            }
        }
        store(sums, out, stride, row);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const R: usize>(sums: [[__m512; 4]; R], out: *mut f32, stride: usize, row: usize) {
    for (r, [a, b, c, d]) in sums.into_iter().enumerate() {
        let sum = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
        // SAFETY: the caller owns 16 columns of these rows.
        unsafe { _mm512_storeu_ps(out.add((row + r) * stride), sum) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn scores(heads: Heads, q: &[f32], keys: Keys<'_>, blocks: Range<usize>, out: &mut [f32]) {
    // SAFETY: the caller checked that blocks, queries and scores lie inside their slices.
    unsafe {
        in_tiles!(heads.n, [8, 4, 2, 1], |row, R| scores_tile::<R>(
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
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
            let mut sums = [_mm512_setzero_ps(); R];
            for d in 0..dim {
                let at = (block * dim + d) * PANEL_ROWS;
                let key = match keys {
                    Keys::F16(k) => _mm512_cvtph_ps(_mm256_loadu_si256(k.as_ptr().add(at).cast())),
                    Keys::Q8(k, _) => {
                        let codes = _mm_loadu_si128(k.as_ptr().add(at).cast());
                        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))
                    }
                };
                for (r, sum) in sums.iter_mut().enumerate() {
                    let q = _mm512_set1_ps(*q.as_ptr().add((head + r) * dim + d));
                    *sum = _mm512_fmadd_ps(key, q, *sum);
                }
            }
            for (r, mut sum) in sums.into_iter().enumerate() {
                if let Keys::Q8(_, scales) = keys {
                    let scale = _mm512_loadu_ps(scales.as_ptr().add(block * PANEL_ROWS));
                    sum = _mm512_mul_ps(sum, scale);
                }
                let at = (head + r) * heads.stride + i * PANEL_ROWS;
                _mm512_storeu_ps(out.as_mut_ptr().add(at), sum);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
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
        ))
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn values_tile<const R: usize>(
    heads: Heads,
    weights: &[f32],
    values: Values<'_>,
    positions: Range<usize>,
    out: &mut [f32],
    head: usize,
) {
    let dim = heads.head_dim;
    // SAFETY: as promised by the caller of `values`; masks keep tails inside.
    unsafe {
        for d in (0..dim).step_by(16) {
            let mask = if dim - d >= 16 { 0xffff } else { (1u16 << (dim - d)) - 1 };
            let mut sums = [_mm512_setzero_ps(); R];
            for (i, position) in positions.clone().enumerate() {
                let at = position * dim + d;
                let (value, scale) = match values {
                    Values::F16(v) => {
                        let bits = _mm256_maskz_loadu_epi16(mask, v.as_ptr().add(at).cast());
                        (_mm512_cvtph_ps(bits), 1.0)
                    }
                    Values::Q8(v, scales) => {
                        let codes = _mm_maskz_loadu_epi8(mask, v.as_ptr().add(at));
                        let value = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
                        (value, *scales.as_ptr().add(position))
                    }
                };
                for (r, sum) in sums.iter_mut().enumerate() {
                    let weight = *weights.as_ptr().add((head + r) * heads.stride + i) * scale;
                    *sum = _mm512_fmadd_ps(value, _mm512_set1_ps(weight), *sum);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                _mm512_mask_storeu_ps(out.as_mut_ptr().add((head + r) * dim + d), mask, sum);
            }
        }
    }
}
