//! A tensor of the input, whatever stores it: rows of GGML blocks or floats, or the panels of a
//! `.koudai` file.
//!
//! Two views of it, as in [`dequant`]: its values, row by row, and its codes where they can be kept as
//! they are. What a tensor becomes is decided in [`crate::weights`].

use koudai_kernels::num::f16_to_f32;
use koudai_kernels::{Kind, Matrix};

use crate::dequant::{self, Group, TensorType};

/// A tensor stored row after row, as GGUF files and safetensors do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Source<'a> {
    /// How its values are stored.
    pub kind: TensorType,
    /// Rows; 1 for vectors.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Its bytes, row after row.
    pub data: &'a [u8],
}

/// A tensor of any input.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// Row after row.
    Rows(Source<'a>),
    /// In the panels of a `.koudai` file.
    Panels(Matrix<'a>),
    /// As numbers in memory, row after row.
    Floats {
        /// Values of a row.
        cols: usize,
        /// All values.
        values: &'a [f32],
    },
}

impl<'a> From<Source<'a>> for Stored<'a> {
    fn from(source: Source<'a>) -> Stored<'a> {
        Stored::Rows(source)
    }
}

impl<'a> From<Matrix<'a>> for Stored<'a> {
    fn from(matrix: Matrix<'a>) -> Stored<'a> {
        Stored::Panels(matrix)
    }
}

impl Source<'_> {
    fn row(&self, row: usize) -> &[u8] {
        let bytes = self.kind.row_bytes(self.cols).unwrap_or(0);
        self.data.get(row * bytes..(row + 1) * bytes).unwrap_or(&[])
    }
}

impl Stored<'_> {
    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match self {
            Stored::Rows(source) => (source.rows, source.cols),
            Stored::Panels(matrix) => (matrix.rows(), matrix.cols()),
            Stored::Floats { cols, values } => (values.len() / cols, *cols),
        }
    }

    /// What its format calls the way it is stored.
    pub(crate) fn format(&self) -> &'static str {
        match self {
            Stored::Rows(source) => source.kind.name(),
            Stored::Panels(matrix) => matrix.kind().name(),
            Stored::Floats { .. } => TensorType::F32.name(),
        }
    }

    /// Whether its values can be read; `Err` is what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Stored::Rows(source) = self else { return Ok(()) };
        if !source.kind.is_supported() {
            return Err(format!("is stored as {}, which isn't supported", source.kind.name()));
        }
        let bytes = source.kind.row_bytes(source.cols).and_then(|b| b.checked_mul(source.rows));
        match bytes == Some(source.data.len()) {
            true => Ok(()),
            false => Err("doesn't have the bytes its shape needs".into()),
        }
    }

    /// The kind nearest to it; its codes can be carried over to more.
    pub(crate) fn native_kind(&self) -> Kind {
        match self {
            Stored::Rows(source) => match source.kind {
                TensorType::F32 => Kind::F32,
                TensorType::F16 => Kind::F16,
                TensorType::BF16 => Kind::Bf16,
                TensorType::Q4_0 if source.cols.is_multiple_of(64) => Kind::Q4S32,
                TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4_K => Kind::Q4G32,
                _ => Kind::Q8,
            },
            Stored::Panels(matrix) => match matrix.kind() {
                // Its halves become one again.
                Kind::Q4G64 => Kind::Q4G32,
                kind => kind,
            },
            Stored::Floats { .. } => Kind::F32,
        }
    }

    /// True if `kind` can hold its codes, if it can hold their scales. (Two groups of 32 may be one of 64:
    /// see [`Stored::may_merge`].)
    pub(crate) fn keeps_codes(&self, kind: Kind) -> bool {
        let around_zero = self.native_kind() == Kind::Q4S32;
        match self {
            Stored::Rows(source) => match source.kind {
                TensorType::Q4_0 => kind == Kind::Q4G32 || (kind == Kind::Q4S32 && around_zero),
                TensorType::Q4_1 | TensorType::Q4_K => kind == Kind::Q4G32,
                TensorType::Q5_0 | TensorType::Q8_0 => kind == Kind::Q8,
                _ => false,
            },
            Stored::Panels(matrix) => match matrix.kind() {
                Kind::Q4G32 | Kind::Q4G64 => kind == Kind::Q4G32,
                Kind::Q4S32 => matches!(kind, Kind::Q4G32 | Kind::Q4S32),
                Kind::Q8 => kind == Kind::Q8,
                _ => false,
            },
            Stored::Floats { .. } => false,
        }
    }

    /// True if it is stored as codes.
    pub(crate) fn is_quantized(&self) -> bool {
        match self {
            Stored::Rows(source) => source.kind.block_len() > 1,
            Stored::Panels(matrix) => matrix.kind().is_quantized(),
            Stored::Floats { .. } => false,
        }
    }

    /// Two of its groups of 32 may be one of 64 if their scales are equal.
    pub(crate) fn may_merge(&self) -> bool {
        match self {
            Stored::Rows(source) => source.kind == TensorType::Q4_1,
            Stored::Panels(matrix) => matches!(matrix.kind(), Kind::Q4G32 | Kind::Q4G64),
            Stored::Floats { .. } => false,
        }
    }

    /// Writes the values of a row to `out`; `None` if they can't be read.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) -> Option<()> {
        match self {
            Stored::Rows(source) => dequant::read_row(source.kind, source.row(row), out),
            Stored::Panels(matrix) => {
                matrix.read_row(row, out);
                Some(())
            }
            Stored::Floats { cols, values } => {
                out.copy_from_slice(&values[row * cols..][..*cols]);
                Some(())
            }
        }
    }

    /// Calls `each` for every 32 codes of a row; nothing for floats and types whose codes can't be
    /// kept.
    pub(crate) fn for_each_group(&self, row: usize, mut each: impl FnMut(&Group)) {
        match self {
            Stored::Rows(source) => {
                let _ = dequant::for_each_group(source.kind, source.row(row), each);
            }
            Stored::Panels(matrix) if matrix.kind().is_quantized() => {
                let zero = matrix.kind().zero() as f32;
                for index in 0..matrix.cols() / matrix.kind().group() {
                    let group = matrix.group(row, index);
                    let (d, m) = (f16_to_f32(group.d), f16_to_f32(group.m));
                    for half in group.q.chunks_exact(32) {
                        let mut q = [0; 32];
                        q.copy_from_slice(half);
                        each(&Group { d, m, zero, q });
                    }
                }
            }
            Stored::Panels(_) | Stored::Floats { .. } => {}
        }
    }
}
