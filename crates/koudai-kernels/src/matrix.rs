//! Weight matrices as they lie in a `.koudai` file: panels of 16 output rows, ready for every kernel.
//!
//! A matrix is `(rows, cols)` = (outputs, inputs). Rows are padded with zeros to a multiple of 16 and
//! stored panel after panel. Inside a panel:
//!
//! - **q4**, `w = d·q + m`: groups of 32 or 64 inputs one after the other, each
//!   `[16 × d: f16][16 × m: f16][codes]`. Codes come in lines of 64 bytes holding 8 inputs: byte
//!   `4·row + j` has the code of input `8·line + j` in its low nibble and of input `8·line + 4 + j`
//!   in its high nibble.
//! - **q4s32**, `w = d·(q − 8)`: as q4 with groups of 64, but where the minima would be there are the
//!   scales of the second 32 inputs.
//! - **q8**, `w = d·(q − 128)`: first all scales, `[16 × d: f16]` per group of 32 inputs (padded to
//!   64 bytes), then codes in lines of 64 bytes holding 4 inputs: byte `4·row + j`.
//! - **f32, f16, bf16**: 16 values (one per row) for input 0, then for input 1, and so on.
//!
//! A line is what one `vpdpbusd` wants; narrower units take it in pieces. So one layout serves all,
//! and opening a file repacks nothing. This module knows sizes and places; it multiplies nothing.

use crate::num::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Output rows in one panel.
pub const PANEL_ROWS: usize = 16;

/// How a matrix stores its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// 32-bit floats.
    F32 = 1,
    /// IEEE half floats.
    F16 = 2,
    /// bfloat16.
    Bf16 = 3,
    /// 8-bit codes, one f16 scale per 32 inputs: 8.5 bits per weight.
    Q8 = 4,
    /// 4-bit codes, f16 scale and minimum per 32 inputs: 5 bits per weight.
    Q4G32 = 5,
    /// 4-bit codes, f16 scale and minimum per 64 inputs: 4.5 bits per weight.
    Q4G64 = 6,
    /// 4-bit codes around 8, f16 scale per 32 inputs, stored in pairs: 4.5 bits per weight.
    Q4S32 = 7,
}

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Kind; 7] =
        [Kind::F32, Kind::F16, Kind::Bf16, Kind::Q8, Kind::Q4G32, Kind::Q4G64, Kind::Q4S32];

    /// The kind with this code, as written in files.
    pub fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| *k as u8 == code)
    }

    /// The field's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::F32 => "f32",
            Kind::F16 => "f16",
            Kind::Bf16 => "bf16",
            Kind::Q8 => "q8",
            Kind::Q4G32 => "q4g32",
            Kind::Q4G64 => "q4g64",
            Kind::Q4S32 => "q4s32",
        }
    }

    /// Inputs that share a scale; 1 for floats.
    pub fn group(self) -> usize {
        match self {
            Kind::F32 | Kind::F16 | Kind::Bf16 => 1,
            Kind::Q8 | Kind::Q4G32 | Kind::Q4S32 => 32,
            Kind::Q4G64 => 64,
        }
    }

    /// Inputs that are stored together, one group or two: `cols` must be a multiple of it.
    pub fn block(self) -> usize {
        if self == Kind::Q4S32 { 64 } else { self.group() }
    }

    /// The code of 0 in the kinds that have no minimum, 0 in the others.
    pub fn zero(self) -> u8 {
        match self {
            Kind::Q8 => 128,
            Kind::Q4S32 => 8,
            _ => 0,
        }
    }

    /// True for the integer-coded kinds.
    pub fn is_quantized(self) -> bool {
        self.group() > 1
    }

    /// Bytes of one panel of 16 rows, or `None` if `cols` doesn't fit the block or overflows.
    pub fn panel_bytes(self, cols: usize) -> Option<usize> {
        if cols == 0 || !cols.is_multiple_of(self.block()) {
            return None;
        }
        match self {
            Kind::F32 => cols.checked_mul(64),
            Kind::F16 | Kind::Bf16 => cols.checked_mul(32),
            Kind::Q8 => cols.checked_mul(16)?.checked_add(q8_scale_bytes(cols)),
            Kind::Q4G32 | Kind::Q4G64 | Kind::Q4S32 => {
                (cols / self.block()).checked_mul(Q4_HEADER_BYTES + self.block() * 8)
            }
        }
    }

    /// Bytes of a whole `(rows, cols)` matrix, or `None` if the shape is impossible.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> Option<usize> {
        if rows == 0 {
            return None;
        }
        self.panel_bytes(cols)?.checked_mul(rows.div_ceil(PANEL_ROWS))
    }
}

/// Bytes that open a block of 4-bit codes: 16 × d and 16 × m, or 16 × d of either group.
pub(crate) const Q4_HEADER_BYTES: usize = 64;

/// Where a group of 4-bit codes lies in its panel.
struct Q4Place {
    d: usize,
    /// Of the minima, if the kind has them.
    m: Option<usize>,
    codes: usize,
}

impl Q4Place {
    fn new(kind: Kind, group: usize) -> Q4Place {
        let at = group * kind.group();
        let start = at / kind.block() * (Q4_HEADER_BYTES + kind.block() * 8);
        let inside = at % kind.block();
        let m = (kind != Kind::Q4S32).then_some(start + 32);
        Q4Place { d: start + inside, m, codes: start + Q4_HEADER_BYTES + inside * 8 }
    }
}

/// Bytes of the scales that open a q8 panel.
pub(crate) const fn q8_scale_bytes(cols: usize) -> usize {
    (cols / 32 * 32).next_multiple_of(64)
}

/// A matrix in its stored layout, borrowed from a file or a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    kind: Kind,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    data: &'a [u8],
}

/// One group of quantized weights of one row: `w = d·(q − zero) + m`, with [`Kind::zero`].
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Scale, as f16 bits.
    pub d: u16,
    /// Minimum, as f16 bits; 0 for kinds that have none.
    pub m: u16,
    /// Codes, one byte each; `kind.group()` of them.
    pub q: Vec<u8>,
}

impl<'a> Matrix<'a> {
    /// A view of `data`, or `None` unless its length is exactly that of the shape.
    pub fn new(kind: Kind, rows: usize, cols: usize, data: &'a [u8]) -> Option<Matrix<'a>> {
        let panel_bytes = kind.panel_bytes(cols)?;
        (kind.matrix_bytes(rows, cols)? == data.len()).then_some(Matrix {
            kind,
            rows,
            cols,
            panel_bytes,
            data,
        })
    }

    /// How weights are stored.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panels of 16 rows, the last one padded.
    pub fn n_panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// The stored bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The stored bytes of one panel. Panics if there is no such panel.
    #[inline]
    pub fn panel(&self, index: usize) -> &'a [u8] {
        &self.data[index * self.panel_bytes..][..self.panel_bytes]
    }

    /// Reads one group of a row back. Panics if the kind is a float or the place is outside.
    pub fn group(&self, row: usize, group: usize) -> Group {
        assert!(self.kind.is_quantized() && row < self.rows);
        let size = self.kind.group();
        assert!(group < self.cols / size);
        let (panel, lane) = (self.panel(row / PANEL_ROWS), row % PANEL_ROWS);
        let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
        if self.kind == Kind::Q8 {
            let codes = &panel[q8_scale_bytes(self.cols) + group * 512..][..512];
            let q = (0..32).map(|i| codes[i / 4 * 64 + lane * 4 + i % 4]).collect();
            return Group { d: half(group * 32 + lane * 2), m: 0, q };
        }
        let place = Q4Place::new(self.kind, group);
        let codes = &panel[place.codes..][..size * 8];
        let code = |i: usize| {
            let byte = codes[i / 8 * 64 + lane * 4 + i % 4];
            if i % 8 < 4 { byte & 15 } else { byte >> 4 }
        };
        Group {
            d: half(place.d + lane * 2),
            m: place.m.map_or(0, |m| half(m + lane * 2)),
            q: (0..size).map(code).collect(),
        }
    }

    /// Writes the dequantized weights of one row to `out` (`cols` values). Panics if out of range.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols);
        let (panel, lane) = (self.panel(row / PANEL_ROWS), row % PANEL_ROWS);
        let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
        match self.kind {
            Kind::F32 => {
                for (i, value) in out.iter_mut().enumerate() {
                    let at = (i * PANEL_ROWS + lane) * 4;
                    *value = f32::from_le_bytes(panel[at..at + 4].try_into().unwrap());
                }
            }
            Kind::F16 => {
                for (i, value) in out.iter_mut().enumerate() {
                    *value = f16_to_f32(half((i * PANEL_ROWS + lane) * 2));
                }
            }
            Kind::Bf16 => {
                for (i, value) in out.iter_mut().enumerate() {
                    *value = bf16_to_f32(half((i * PANEL_ROWS + lane) * 2));
                }
            }
            Kind::Q8 => {
                let codes = &panel[q8_scale_bytes(self.cols)..];
                for (i, value) in out.iter_mut().enumerate() {
                    let d = f16_to_f32(half(i / 32 * 32 + lane * 2));
                    *value = d * (codes[i / 4 * 64 + lane * 4 + i % 4] as f32 - 128.0);
                }
            }
            Kind::Q4G32 | Kind::Q4G64 | Kind::Q4S32 => {
                let size = self.kind.group();
                for (g, values) in out.chunks_exact_mut(size).enumerate() {
                    let place = Q4Place::new(self.kind, g);
                    let d = f16_to_f32(half(place.d + lane * 2));
                    let m = place.m.map_or(-8.0 * d, |m| f16_to_f32(half(m + lane * 2)));
                    let lines = panel[place.codes..][..size * 8].chunks_exact(64);
                    for (line, values) in lines.zip(values.chunks_exact_mut(8)) {
                        for j in 0..4 {
                            let byte = line[lane * 4 + j];
                            values[j] = d * (byte & 15) as f32 + m;
                            values[j + 4] = d * (byte >> 4) as f32 + m;
                        }
                    }
                }
            }
        }
    }
}

/// Fills one panel of 16 rows, row by row; rows never written stay zero.
pub struct PanelWriter<'a> {
    kind: Kind,
    cols: usize,
    data: &'a mut [u8],
}

impl<'a> PanelWriter<'a> {
    /// Starts a panel of zeros in `data`. Panics unless `data` has exactly `panel_bytes(cols)` bytes.
    pub fn new(kind: Kind, cols: usize, data: &'a mut [u8]) -> PanelWriter<'a> {
        assert_eq!(kind.panel_bytes(cols), Some(data.len()), "panel size");
        data.fill(0);
        if kind == Kind::Q8 {
            // Code 128 is zero, whatever the scale.
            data[q8_scale_bytes(cols)..].fill(128);
        }
        PanelWriter { kind, cols, data }
    }

    /// Writes one group of row `lane` (0..16). Panics if the kind is a float or sizes disagree.
    pub fn put_group(&mut self, lane: usize, group: usize, d: u16, m: u16, q: &[u8]) {
        let size = self.kind.group();
        assert!(self.kind.is_quantized() && lane < PANEL_ROWS);
        assert!(q.len() == size && group < self.cols / size);
        assert!(self.kind.zero() == 0 || m == 0, "{} has no minimum", self.kind.name());
        if self.kind == Kind::Q8 {
            let codes_at = q8_scale_bytes(self.cols) + group * 512;
            self.data[group * 32 + lane * 2..][..2].copy_from_slice(&d.to_le_bytes());
            for (i, &code) in q.iter().enumerate() {
                self.data[codes_at + i / 4 * 64 + lane * 4 + i % 4] = code;
            }
            return;
        }
        let place = Q4Place::new(self.kind, group);
        self.data[place.d + lane * 2..][..2].copy_from_slice(&d.to_le_bytes());
        if let Some(at) = place.m {
            self.data[at + lane * 2..][..2].copy_from_slice(&m.to_le_bytes());
        }
        for (i, &code) in q.iter().enumerate() {
            assert!(code < 16, "a 4-bit code");
            let byte = &mut self.data[place.codes + i / 8 * 64 + lane * 4 + i % 4];
            *byte |= if i % 8 < 4 { code } else { code << 4 };
        }
    }

    /// Writes row `lane` (0..16) of a float kind, rounding to nearest. Panics on other kinds or sizes.
    pub fn put_row(&mut self, lane: usize, values: &[f32]) {
        assert!(lane < PANEL_ROWS && values.len() == self.cols);
        for (i, &value) in values.iter().enumerate() {
            let at = i * PANEL_ROWS + lane;
            match self.kind {
                Kind::F32 => self.data[at * 4..][..4].copy_from_slice(&value.to_le_bytes()),
                Kind::F16 => {
                    self.data[at * 2..][..2].copy_from_slice(&f32_to_f16(value).to_le_bytes())
                }
                Kind::Bf16 => {
                    self.data[at * 2..][..2].copy_from_slice(&f32_to_bf16(value).to_le_bytes())
                }
                _ => panic!("quantized rows are written group by group"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_rows_come_back_as_written() {
        for kind in Kind::ALL {
            let (rows, cols) = (21, 192);
            let mut data = vec![0xaa; kind.matrix_bytes(rows, cols).unwrap()];
            let panel_bytes = kind.panel_bytes(cols).unwrap();
            let mut state = 7u32;
            let mut next = || {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                state >> 16
            };
            let mut written = Vec::new();
            for (p, panel) in data.chunks_exact_mut(panel_bytes).enumerate() {
                let mut panel = PanelWriter::new(kind, cols, panel);
                for lane in 0..(rows - p * 16).min(16) {
                    if !kind.is_quantized() {
                        let values: Vec<f32> = (0..cols).map(|_| next() as u8 as f32).collect();
                        panel.put_row(lane, &values);
                        written.push((values, Vec::new()));
                        continue;
                    }
                    let (mut values, mut groups) = (Vec::new(), Vec::new());
                    for g in 0..cols / kind.group() {
                        let d = f32_to_f16(next() as f32 / 65536.0);
                        let has_minimum = kind.zero() == 0;
                        let m = if has_minimum { f32_to_f16(-(next() as f32)) } else { 0 };
                        let limit = if kind == Kind::Q8 { 256 } else { 16 };
                        let q: Vec<u8> =
                            (0..kind.group()).map(|_| (next() % limit) as u8).collect();
                        panel.put_group(lane, g, d, m, &q);
                        let zero = kind.zero() as f32;
                        values.extend(
                            q.iter().map(|&q| f16_to_f32(d) * (q as f32 - zero) + f16_to_f32(m)),
                        );
                        groups.push(Group { d, m, q });
                    }
                    written.push((values, groups));
                }
            }
            let matrix = Matrix::new(kind, rows, cols, &data).unwrap();
            let mut row = vec![0.0; cols];
            for (r, (values, groups)) in written.iter().enumerate() {
                matrix.read_row(r, &mut row);
                assert_eq!(&row, values, "{} row {r}", kind.name());
                for (g, group) in groups.iter().enumerate() {
                    assert_eq!(&matrix.group(r, g), group, "{} row {r} group {g}", kind.name());
                }
            }
        }
    }

    #[test]
    fn impossible_shapes_have_no_size() {
        assert_eq!(Kind::Q4G64.matrix_bytes(16, 96), None);
        assert_eq!(Kind::Q4S32.matrix_bytes(16, 96), None);
        assert_eq!(Kind::Q8.matrix_bytes(0, 64), None);
        assert_eq!(Kind::F32.matrix_bytes(1 << 40, 1 << 40), None);
        assert_eq!(Kind::Q4G64.matrix_bytes(65536, 896), Some(65536 * 896 / 16 * 9));
        assert!(Matrix::new(Kind::F16, 16, 8, &[0; 255]).is_none());
    }
}
