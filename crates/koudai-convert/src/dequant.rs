//! GGML's block formats: what they are called, how large they are, and how their values are read.
//!
//! Two views of the same bytes: [`read_row`] gives f32 values for every supported type, and
//! [`for_each_group`] gives integer codes with their scale for the types whose codes can be kept as
//! they are. This module doesn't choose what a tensor becomes; that is `weights.rs`.

use koudai_kernels::num::{bf16_to_f32, f16_to_f32};

/// A GGML tensor type that has a name, supported or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType(u8);

/// Number, name, values per block, bytes per block.
const TYPES: [(u8, &str, usize, usize); 34] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

#[allow(missing_docs)] // GGML's names.
impl TensorType {
    pub const F32: TensorType = TensorType(0);
    pub const F16: TensorType = TensorType(1);
    pub const Q4_0: TensorType = TensorType(2);
    pub const Q4_1: TensorType = TensorType(3);
    pub const Q5_0: TensorType = TensorType(6);
    pub const Q5_1: TensorType = TensorType(7);
    pub const Q8_0: TensorType = TensorType(8);
    pub const Q2_K: TensorType = TensorType(10);
    pub const Q3_K: TensorType = TensorType(11);
    pub const Q4_K: TensorType = TensorType(12);
    pub const Q5_K: TensorType = TensorType(13);
    pub const Q6_K: TensorType = TensorType(14);
    pub const BF16: TensorType = TensorType(30);
}

impl TensorType {
    /// The types that [`read_row`] reads.
    pub const SUPPORTED: [TensorType; 13] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q2_K,
        TensorType::Q3_K,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
    ];

    /// The type with GGML's number for it.
    pub fn from_code(code: u32) -> Option<TensorType> {
        let known = TYPES.iter().find(|t| u32::from(t.0) == code)?;
        Some(TensorType(known.0))
    }

    /// GGML's number for it.
    pub fn code(self) -> u32 {
        self.0.into()
    }

    fn entry(self) -> &'static (u8, &'static str, usize, usize) {
        // Every value of this type was taken from the table.
        TYPES.iter().find(|t| t.0 == self.0).unwrap_or(&TYPES[0])
    }

    /// GGML's name for it.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Values per block.
    pub fn block_len(self) -> usize {
        self.entry().2
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.entry().3
    }

    /// True if [`read_row`] reads it.
    pub fn is_supported(self) -> bool {
        TensorType::SUPPORTED.contains(&self)
    }

    /// Bytes of a row of `cols` values, or `None` if the blocks don't fit or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Debug for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Writes the values of one row. `None` if the type isn't supported or the sizes disagree.
///
/// Values are computed as GGML's reference does, operation by operation, so they are equal to its
/// values bit for bit.
#[must_use]
pub fn read_row(kind: TensorType, data: &[u8], out: &mut [f32]) -> Option<()> {
    if kind.row_bytes(out.len())? != data.len() {
        return None;
    }
    let blocks = data.chunks_exact(kind.block_bytes()).zip(out.chunks_exact_mut(kind.block_len()));
    match kind {
        TensorType::F32 => blocks.for_each(|(b, y)| y[0] = f32_at(b)),
        TensorType::F16 => blocks.for_each(|(b, y)| y[0] = half(b, 0)),
        TensorType::BF16 => {
            blocks.for_each(|(b, y)| y[0] = bf16_to_f32(u16::from_le_bytes([b[0], b[1]])));
        }
        TensorType::Q2_K => blocks.for_each(|(b, y)| q2_k(b, y)),
        TensorType::Q3_K => blocks.for_each(|(b, y)| q3_k(b, y)),
        TensorType::Q6_K => blocks.for_each(|(b, y)| q6_k(b, y)),
        _ => {
            let mut groups = out.chunks_exact_mut(32);
            return for_each_group(kind, data, |g| {
                let Some(y) = groups.next() else { return };
                for (y, q) in y.iter_mut().zip(g.q) {
                    *y = g.d * (q as f32 - g.zero) + g.m;
                }
            });
        }
    }
    Some(())
}

/// 32 neighbouring values as GGML stores them: `w = d·(q − zero) + m`.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Scale.
    pub d: f32,
    /// Minimum; 0 for the symmetric types.
    pub m: f32,
    /// The code of 0 in the symmetric types, 0 in the others.
    pub zero: f32,
    /// Codes. Q8_0's are shifted by 128 to be unsigned.
    pub q: [u8; 32],
}

/// Calls `each` for every 32 values of a row whose type stores integer codes with one scale (and
/// minimum) per 32 values: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K and Q5_K. `None` for other types.
#[must_use]
pub fn for_each_group(kind: TensorType, data: &[u8], mut each: impl FnMut(&Group)) -> Option<()> {
    let blocks = data.chunks_exact(kind.block_bytes());
    match kind {
        TensorType::Q4_0 => blocks.for_each(|b| {
            each(&Group { d: half(b, 0), m: 0.0, zero: 8.0, q: nibbles(&b[2..]) });
        }),
        TensorType::Q4_1 => blocks.for_each(|b| {
            each(&Group { d: half(b, 0), m: half(b, 2), zero: 0.0, q: nibbles(&b[4..]) });
        }),
        TensorType::Q5_0 => blocks.for_each(|b| {
            let q = with_fifth_bit(nibbles(&b[6..]), &b[2..6]);
            each(&Group { d: half(b, 0), m: 0.0, zero: 16.0, q });
        }),
        TensorType::Q5_1 => blocks.for_each(|b| {
            let q = with_fifth_bit(nibbles(&b[8..]), &b[4..8]);
            each(&Group { d: half(b, 0), m: half(b, 2), zero: 0.0, q });
        }),
        TensorType::Q8_0 => blocks.for_each(|b| {
            let mut q = [0; 32];
            q.iter_mut().zip(&b[2..]).for_each(|(q, b)| *q = b ^ 0x80);
            each(&Group { d: half(b, 0), m: 0.0, zero: 128.0, q });
        }),
        TensorType::Q4_K => blocks.for_each(|b| {
            for_each_k_group(b, &b[16..], |_, d, m, q| each(&Group { d, m, zero: 0.0, q }));
        }),
        TensorType::Q5_K => blocks.for_each(|b| {
            for_each_k_group(b, &b[48..], |j, d, m, mut q| {
                for (q, high) in q.iter_mut().zip(&b[16..48]) {
                    *q |= (high >> j & 1) << 4;
                }
                each(&Group { d, m, zero: 0.0, q });
            });
        }),
        _ => return None,
    }
    Some(())
}

fn f32_at(b: &[u8]) -> f32 {
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

fn half(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

/// 16 bytes: values 0..16 in the low nibbles, 16..32 in the high ones.
fn nibbles(b: &[u8]) -> [u8; 32] {
    let mut q = [0; 32];
    for (i, b) in b.iter().take(16).enumerate() {
        q[i] = b & 15;
        q[i + 16] = b >> 4;
    }
    q
}

fn with_fifth_bit(mut q: [u8; 32], high: &[u8]) -> [u8; 32] {
    for (i, q) in q.iter_mut().enumerate() {
        *q |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
    q
}

/// The eight groups of a Q4_K or Q5_K block: index, scale, minimum, low four bits of the codes.
fn for_each_k_group(b: &[u8], low: &[u8], mut each: impl FnMut(usize, f32, f32, [u8; 32])) {
    let (d, d_min) = (half(b, 0), half(b, 2));
    let s = &b[4..16];
    for j in 0..8 {
        let (scale, min) = if j < 4 {
            (s[j] & 63, s[j + 4] & 63)
        } else {
            (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
        };
        let mut q = [0; 32];
        for (q, b) in q.iter_mut().zip(&low[j / 2 * 32..]) {
            *q = if j % 2 == 0 { b & 15 } else { b >> 4 };
        }
        each(j, d * scale as f32, -(d_min * min as f32), q);
    }
}

fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, codes) = (&b[..16], &b[16..80]);
    let (d, d_min) = (half(b, 80), half(b, 82));
    for (i, y) in y.iter_mut().enumerate() {
        let code = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        let scale = scales[i / 16];
        *y = d * (scale & 15) as f32 * code as f32 - d_min * (scale >> 4) as f32;
    }
}

fn q3_k(b: &[u8], y: &mut [f32]) {
    let (high, codes, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half(b, 108);
    for (i, y) in y.iter_mut().enumerate() {
        let g = i / 16;
        let low4 = if g < 8 { packed[g] & 15 } else { packed[g - 8] >> 4 };
        let scale = low4 | (packed[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
        let low2 = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        let code = low2 as i32 - if high[i % 32] >> (i / 32) & 1 == 0 { 4 } else { 0 };
        *y = d * (scale as i32 - 32) as f32 * code as f32;
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        let byte = low[half * 64 + quarter % 2 * 32 + l];
        let low4 = if quarter < 2 { byte & 15 } else { byte >> 4 };
        let code = low4 | (high[half * 32 + l] >> (quarter * 2) & 3) << 4;
        *y = d * (scales[i / 16] as i8) as f32 * (code as i32 - 32) as f32;
    }
}
