//! What kernels read and write besides weights: activation rows, output columns, cached keys and
//! values. Shapes and bounds only; no arithmetic.

use std::marker::PhantomData;
use std::ops::Range;

use crate::matrix::PANEL_ROWS;

/// Inputs that share one activation scale.
pub const ACTIVATION_GROUP: usize = 32;

/// Activations as 8-bit codes in groups of [`ACTIVATION_GROUP`]: `x ≈ Σ over planes of scale · code`.
///
/// One plane is the usual 8-bit rounding. A second holds what the first left over, in the same form:
/// together they have some 15 bits, for twice the products.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    pub(crate) n_rows: usize,
    pub(crate) planes: usize,
    pub(crate) cols: usize,
    pub(crate) codes: &'a [i8],
    pub(crate) scales: &'a [f32],
    pub(crate) sums: &'a [i32],
    pub(crate) mins: &'a [f32],
}

impl<'a> QuantizedRows<'a> {
    /// `n_rows` rows of `cols` activations in one or two `planes`, as [`crate::Kernels::quantize`]
    /// makes them: per row and plane `cols` codes, `cols / 32` scales and as many sums of codes; per
    /// row `cols / 32` `mins`, the sums of what the codes stand for. Panics if a length disagrees.
    pub fn new(
        n_rows: usize,
        planes: usize,
        cols: usize,
        (codes, scales, sums, mins): (&'a [i8], &'a [f32], &'a [i32], &'a [f32]),
    ) -> QuantizedRows<'a> {
        let groups = n_rows * (cols / ACTIVATION_GROUP);
        assert!(cols.is_multiple_of(ACTIVATION_GROUP) && (1..=2).contains(&planes));
        assert!(codes.len() == n_rows * planes * cols && mins.len() == groups);
        assert!(scales.len() == groups * planes && sums.len() == groups * planes);
        QuantizedRows { n_rows, planes, cols, codes, scales, sums, mins }
    }
}

/// The right-hand side of a matmul: one row per token.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// `(n_rows, cols)` floats, row-major: weights are used as they are, in f32 arithmetic.
    F32(&'a [f32]),
    /// 8-bit activations, for quantized weights only.
    Quantized(QuantizedRows<'a>),
}

/// Panels of columns of a row-major `(n_rows, stride)` output, owned by one thread at a time.
pub struct Columns<'a> {
    ptr: *mut f32,
    n_rows: usize,
    stride: usize,
    panels: Range<usize>,
    _out: PhantomData<&'a mut f32>,
}

// SAFETY: it is the exclusive right to write its columns, like `&mut [f32]`.
unsafe impl Send for Columns<'_> {}
// SAFETY: shared references allow no writes except through `unsafe` `part`.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    /// All columns of `out`. Panics unless `stride` is a multiple of 16 and `out` holds the rows.
    pub fn new(out: &'a mut [f32], n_rows: usize, stride: usize) -> Columns<'a> {
        assert!(stride.is_multiple_of(PANEL_ROWS) && out.len() >= n_rows * stride);
        let panels = 0..stride / PANEL_ROWS;
        Columns { ptr: out.as_mut_ptr(), n_rows, stride, panels, _out: PhantomData }
    }

    /// Rows of the output.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The panels it may write.
    pub fn panels(&self) -> Range<usize> {
        self.panels.clone()
    }

    /// The right to write some of its panels. Panics if they aren't all its own.
    ///
    /// # Safety
    /// Parts used at the same time must not overlap, and `self` must not be written meanwhile.
    pub unsafe fn part(&self, panels: Range<usize>) -> Columns<'_> {
        assert!(self.panels.start <= panels.start && panels.end <= self.panels.end);
        Columns {
            ptr: self.ptr,
            n_rows: self.n_rows,
            stride: self.stride,
            panels,
            _out: PhantomData,
        }
    }

    /// The part of row `r` that it may write. Panics if there is no such row.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        assert!(r < self.n_rows);
        let (start, len) = (self.panels.start * PANEL_ROWS, self.panels.len() * PANEL_ROWS);
        // SAFETY: its panels lie inside the row, the row inside the output, and both are its own.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(r * self.stride + start), len) }
    }

    /// Where the 16 outputs of `panel` for row 0 go; row r follows at `r · stride`.
    pub(crate) fn panel_ptr(&mut self, panel: usize) -> (*mut f32, usize) {
        assert!(self.panels.contains(&panel));
        // SAFETY: the panel lies inside the row, so inside the output.
        (unsafe { self.ptr.add(panel * PANEL_ROWS) }, self.stride)
    }
}

/// Cached keys of one head, in blocks of 16 positions: value `d` of position `p` is at
/// `(p / 16 · head_dim + d) · 16 + p % 16`.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// Half floats, as bits.
    F16(&'a [u16]),
    /// 8-bit codes and a scale per position.
    Q8(&'a [i8], &'a [f32]),
}

/// Cached values of one head: value `d` of position `p` is at `p · head_dim + d`.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Half floats, as bits.
    F16(&'a [u16]),
    /// 8-bit codes and a scale per position.
    Q8(&'a [i8], &'a [f32]),
}

/// Runs a call over `$n` rows in tiles of the sizes given, largest first; inside it, `$row` is the
/// first row of the tile and the constant `$size` its number of rows.
macro_rules! in_tiles {
    ($n:expr, [$($rows:literal),+], |$row:ident, $size:ident| $call:expr) => {{
        let (n, mut $row) = ($n, 0);
        $(
            while n - $row >= $rows {
                const $size: usize = $rows;
                $call;
                $row += $size;
            }
        )+
        debug_assert_eq!($row, n);
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use in_tiles;

/// Runs a call with the constant `$size` set to the number of planes, 1 or 2.
macro_rules! by_planes {
    ($planes:expr, |$size:ident| $call:expr) => {
        if $planes == 2 {
            const $size: usize = 2;
            $call
        } else {
            const $size: usize = 1;
            $call
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use by_planes;
