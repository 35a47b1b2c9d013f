//! One table of functions per instruction set, and the only ways to get one.
//!
//! Fields are private: holding a `&'static Kernels` proves that the processor can run it, so its
//! methods are safe. They check sizes once at the entry and then trust them.

use std::ops::Range;
use std::sync::OnceLock;

use crate::matrix::{Kind, Matrix, PANEL_ROWS};
use crate::rows::{ACTIVATION_GROUP, Columns, Keys, QuantizedRows, Rows, Values};

/// One panel of quantized weights times 8-bit rows: `(panel, rows, out, out_stride)`.
pub(crate) type MatmulQuantized = unsafe fn(&[u8], &QuantizedRows<'_>, *mut f32, usize);
/// One panel of weights times f32 rows: `(panel, rows, n_rows, out, out_stride)`.
pub(crate) type MatmulF32 = unsafe fn(&[u8], &[f32], usize, *mut f32, usize);

/// Rounds a row to 8-bit planes: `(x, codes, scales, sums, mins)`; see [`Kernels::quantize`].
pub(crate) type Quantize = unsafe fn(&[f32], &mut [i8], &mut [f32], &mut [i32], &mut [f32]);

/// A panel kernel for each way in which weights are stored.
#[derive(Clone, Copy)]
pub(crate) struct ByKind<F> {
    pub(crate) f32: F,
    pub(crate) f16: F,
    pub(crate) bf16: F,
    pub(crate) q8: F,
    pub(crate) q4g32: F,
    pub(crate) q4g64: F,
    pub(crate) q4s32: F,
}

impl<F: Copy> ByKind<F> {
    fn get(&self, kind: Kind) -> F {
        match kind {
            Kind::F32 => self.f32,
            Kind::F16 => self.f16,
            Kind::Bf16 => self.bf16,
            Kind::Q8 => self.q8,
            Kind::Q4G32 => self.q4g32,
            Kind::Q4G64 => self.q4g64,
            Kind::Q4S32 => self.q4s32,
        }
    }
}

/// Queries against keys: shape of the work shared by [`Kernels::scores`] and [`Kernels::values`].
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) n: usize,
    pub(crate) head_dim: usize,
    /// Floats between the scores of one query and those of the next.
    pub(crate) stride: usize,
}

/// What a processor can do with numbers.
pub struct Kernels {
    pub(crate) name: &'static str,
    pub(crate) matmul_q8: MatmulQuantized,
    pub(crate) matmul_q4g32: MatmulQuantized,
    pub(crate) matmul_q4g64: MatmulQuantized,
    pub(crate) matmul_q4s32: MatmulQuantized,
    pub(crate) matmul_f32: ByKind<MatmulF32>,
    pub(crate) quantize: Quantize,
    pub(crate) rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(crate) rope: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub(crate) silu_mul: unsafe fn(&mut [f32], &[f32]),
    pub(crate) gelu_mul: unsafe fn(&mut [f32], &[f32]),
    pub(crate) softmax: unsafe fn(&mut [f32]),
    pub(crate) scores: unsafe fn(Heads, &[f32], Keys<'_>, Range<usize>, &mut [f32]),
    pub(crate) values: unsafe fn(Heads, &[f32], Values<'_>, Range<usize>, &mut [f32]),
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.name)
    }
}

impl Kernels {
    /// Every table this processor can run, best last.
    pub fn available() -> &'static [&'static Kernels] {
        static TABLES: OnceLock<Vec<&'static Kernels>> = OnceLock::new();
        TABLES.get_or_init(|| {
            #[allow(unused_mut)]
            let mut tables = vec![&crate::scalar::KERNELS];
            #[cfg(target_arch = "x86_64")]
            {
                if crate::avx2::supported() {
                    tables.push(&crate::avx2::KERNELS);
                }
                if crate::avxvnni::supported() {
                    tables.push(&crate::avxvnni::KERNELS);
                }
                if crate::avx512::supported() {
                    tables.push(&crate::avx512::KERNELS);
                }
                if crate::amx::supported() {
                    tables.push(&crate::amx::KERNELS);
                }
            }
            #[cfg(target_arch = "aarch64")]
            {
                if crate::neon::supported() {
                    tables.push(&crate::neon::KERNELS);
                }
                if crate::dotprod::supported() {
                    tables.push(&crate::dotprod::KERNELS);
                }
                if crate::i8mm::supported() {
                    tables.push(&crate::i8mm::KERNELS);
                }
            }
            tables
        })
    }

    /// The best table, or the one that the environment variable `KOUDAI_ISA` names. `Err` holds that
    /// name if the processor can't run it.
    pub fn detect() -> Result<&'static Kernels, String> {
        let best = *Kernels::available().last().expect("scalar is always there");
        match std::env::var("KOUDAI_ISA") {
            Ok(name) if !name.is_empty() => Kernels::named(&name).ok_or(name),
            _ => Ok(best),
        }
    }

    /// The table with this name, if this processor can run it.
    pub fn named(name: &str) -> Option<&'static Kernels> {
        Kernels::available().iter().copied().find(|k| k.name == name)
    }

    /// The instruction set's name, as in `KOUDAI_ISA`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `out[r, j] = Σ_k w[j, k] · x[r, k]` for the output rows `j` of the panels that `out` owns.
    ///
    /// The result of a row depends neither on the other rows nor on which panels come together.
    /// Outputs that pad the last panel become 0. Panics if sizes disagree or if 8-bit rows meet
    /// float weights.
    pub fn matmul(&self, w: &Matrix<'_>, x: Rows<'_>, out: &mut Columns<'_>) {
        let panels = out.panels();
        assert!(panels.end <= w.n_panels(), "more output columns than weight rows");
        let n_rows = out.n_rows();
        match x {
            Rows::F32(x) => {
                assert_eq!(x.len(), n_rows * w.cols(), "activation rows");
                let kernel = self.matmul_f32.get(w.kind());
                for p in panels {
                    let (ptr, stride) = out.panel_ptr(p);
                    // SAFETY: the processor runs this table; `Matrix` sized the panel by its kind and
                    // columns, `x` holds n_rows rows, and `out` owns 16 columns in as many rows.
                    unsafe { kernel(w.panel(p), x, n_rows, ptr, stride) };
                }
            }
            Rows::Quantized(x) => {
                assert!(x.n_rows == n_rows && x.cols == w.cols(), "activation rows");
                let kernel = match w.kind() {
                    Kind::Q8 => self.matmul_q8,
                    Kind::Q4G32 => self.matmul_q4g32,
                    Kind::Q4G64 => self.matmul_q4g64,
                    Kind::Q4S32 => self.matmul_q4s32,
                    kind => panic!("8-bit activations with {} weights", kind.name()),
                };
                for p in panels {
                    let (ptr, stride) = out.panel_ptr(p);
                    // SAFETY: as above; `QuantizedRows::new` checked the lengths of its parts.
                    unsafe { kernel(w.panel(p), &x, ptr, stride) };
                }
            }
        }
    }

    /// Rounds one row to one or two planes of 8-bit codes in groups of 32, plane after plane:
    /// `scale = max|x| / 127`, codes to the nearest (ties to even), `sums` of the codes; the second
    /// plane does the same for what the first left over. `mins` adds up `scale · sum` of the planes.
    ///
    /// `codes` has a length of one or two rows. Panics if another length disagrees.
    pub fn quantize(
        &self,
        x: &[f32],
        codes: &mut [i8],
        scales: &mut [f32],
        sums: &mut [i32],
        mins: &mut [f32],
    ) {
        let (groups, planes) = (x.len() / ACTIVATION_GROUP, codes.len() / x.len().max(1));
        assert!(x.len().is_multiple_of(ACTIVATION_GROUP) && (1..=2).contains(&planes));
        assert!(codes.len() == planes * x.len() && mins.len() == groups);
        assert!(scales.len() == planes * groups && sums.len() == planes * groups);
        // SAFETY: the processor runs this table; lengths were checked.
        unsafe { (self.quantize)(x, codes, scales, sums, mins) }
    }

    /// `out = x / sqrt(mean(x²) + eps) · w`.
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == w.len() && x.len() == out.len());
        // SAFETY: as in `quantize`.
        unsafe { (self.rms_norm)(x, w, eps, out) }
    }

    /// Rotates the pairs `(x[i], x[i + n/2])` of one head by the angles whose cosines and sines are
    /// given (`n/2` each).
    pub fn rope(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(x.len() == 2 * cos.len() && cos.len() == sin.len());
        // SAFETY: as in `quantize`.
        unsafe { (self.rope)(x, cos, sin) }
    }

    /// `gate = silu(gate) · up`.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        // SAFETY: as in `quantize`.
        unsafe { (self.silu_mul)(gate, up) }
    }

    /// `gate = gelu(gate) · up`, in the tanh approximation.
    pub fn gelu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        // SAFETY: as in `quantize`.
        unsafe { (self.gelu_mul)(gate, up) }
    }

    /// `x = exp(x − max) / Σ exp(x − max)`.
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: as in `quantize`.
        unsafe { (self.softmax)(x) }
    }

    /// Products of queries with the keys of whole blocks of 16 positions:
    /// `scores[h · stride + i] = q[h] · key[16 · blocks.start + i]`.
    ///
    /// `q` holds `(n_heads, head_dim)`. Panics if a block or a score lies outside its slice.
    pub fn scores(
        &self,
        q: &[f32],
        head_dim: usize,
        keys: Keys<'_>,
        blocks: Range<usize>,
        scores: &mut [f32],
    ) {
        assert!(head_dim > 0 && q.len().is_multiple_of(head_dim) && !q.is_empty());
        let n = q.len() / head_dim;
        assert!(scores.len().is_multiple_of(n));
        let heads = Heads { n, head_dim, stride: scores.len() / n };
        let (end, width) = (blocks.end * PANEL_ROWS, blocks.len() * PANEL_ROWS);
        assert!(blocks.start <= blocks.end && width <= heads.stride);
        match keys {
            Keys::F16(k) => assert!(end * head_dim <= k.len()),
            Keys::Q8(k, s) => assert!(end * head_dim <= k.len() && end <= s.len()),
        }
        // SAFETY: as in `quantize`.
        unsafe { (self.scores)(heads, q, keys, blocks, scores) }
    }

    /// Weighted sums of values: `out[h] = Σ_i weights[h · stride + i] · value[positions.start + i]`.
    ///
    /// `out` holds `(n_heads, head_dim)`. Panics if a position or a weight lies outside its slice.
    pub fn values(
        &self,
        weights: &[f32],
        values: Values<'_>,
        positions: Range<usize>,
        head_dim: usize,
        out: &mut [f32],
    ) {
        assert!(head_dim > 0 && out.len().is_multiple_of(head_dim) && !out.is_empty());
        let n = out.len() / head_dim;
        assert!(weights.len().is_multiple_of(n));
        let heads = Heads { n, head_dim, stride: weights.len() / n };
        assert!(positions.start <= positions.end && positions.len() <= heads.stride);
        match values {
            Values::F16(v) => assert!(positions.end * head_dim <= v.len()),
            Values::Q8(v, s) => {
                assert!(positions.end * head_dim <= v.len() && positions.end <= s.len())
            }
        }
        // SAFETY: as in `quantize`.
        unsafe { (self.values)(heads, weights, values, positions, out) }
    }
}
