//! Element-wise work, written once in plain Rust and compiled for each instruction set.
//!
//! Every function is `inline(always)`, so that a table's `#[target_feature]` wrapper (made by
//! [`for_isa`]) lets the compiler use its vectors. Sums keep 16 partial sums in fixed lanes, and
//! nothing is contracted into fused multiply-adds: all instruction sets give the same bits.

use crate::rows::ACTIVATION_GROUP;

const LANES: usize = 16;

/// Adds 16 partial sums in one fixed order.
#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let mut sums = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

#[inline(always)]
pub(crate) fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let mut squares = [0.0; LANES];
    let chunks = x.chunks_exact(LANES);
    for (lane, value) in chunks.remainder().iter().enumerate() {
        squares[lane] += value * value;
    }
    for chunk in chunks {
        for (square, value) in squares.iter_mut().zip(chunk) {
            *square += value * value;
        }
    }
    let scale = 1.0 / (total(squares) / x.len() as f32 + eps).sqrt();
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = x * scale * w;
    }
}

#[inline(always)]
pub(crate) fn rope(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = x.split_at_mut(cos.len());
    for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}

/// e^x to about 2 units in the last place; below -87 it is the smallest normal number, so never 0.
/// Cody-Waite reduction and the Cephes polynomial for single precision.
#[inline(always)]
#[allow(clippy::excessive_precision)] // written as published
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer
    // Comparisons rather than `clamp`: they vectorize, and let NaN through.
    let x = if x < -87.336_54 { -87.336_54 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = x - n * 0.693_359_375;
    let r = r - n * -2.121_944_4e-4;
    let mut p = 1.987_569_150_0e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 1.666_666_545_9e-1;
    p = p * r + 5.000_000_120_1e-1;
    let y = p * (r * r) + r + 1.0;
    // n + ROUND has n in its low mantissa bits: no float-to-int conversion is needed.
    let bits = (n + ROUND).to_bits() << 23;
    y * f32::from_bits(bits.wrapping_add(0x3f80_0000))
}

#[inline(always)]
pub(crate) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

#[inline(always)]
pub(crate) fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        let x = *g;
        // (1 + tanh(y)) / 2 = 1 / (1 + exp(-2y)), with y = sqrt(2/π) · (x + 0.044715 x³).
        let y2 = 1.595_769 * (x + 0.044_715 * (x * x * x));
        *g = x / (1.0 + exp(-y2)) * u;
    }
}

#[inline(always)]
pub(crate) fn softmax(x: &mut [f32]) {
    let mut peaks = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    for (peak, value) in peaks.iter_mut().zip(chunks.remainder()) {
        *peak = if *value > *peak { *value } else { *peak };
    }
    for chunk in chunks {
        for (peak, value) in peaks.iter_mut().zip(chunk) {
            *peak = if *value > *peak { *value } else { *peak };
        }
    }
    let max = peaks.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
    let mut sums = [0.0; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *value = exp(*value - max);
            *sum += *value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(chunks.into_remainder()) {
        *value = exp(*value - max);
        *sum += *value;
    }
    let scale = 1.0 / total(sums);
    for value in x {
        *value *= scale;
    }
}

#[inline(always)]
pub(crate) fn quantize(
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i32],
    mins: &mut [f32],
) {
    let groups = x.len() / ACTIVATION_GROUP;
    for (g, x) in x.chunks_exact(ACTIVATION_GROUP).enumerate() {
        let mut rest: [f32; ACTIVATION_GROUP] = x.try_into().expect("a whole group");
        mins[g] = 0.0;
        for (plane, codes) in codes.chunks_exact_mut(groups * ACTIVATION_GROUP).enumerate() {
            let codes = &mut codes[g * ACTIVATION_GROUP..][..ACTIVATION_GROUP];
            let (scale, sum) = quantize_group(&mut rest, codes);
            scales[plane * groups + g] = scale;
            sums[plane * groups + g] = sum;
            mins[g] += scale * sum as f32;
        }
    }
}

/// Rounds a group, leaves in `x` what that lost, returns the scale and the sum of the codes.
#[inline(always)]
fn quantize_group(x: &mut [f32; ACTIVATION_GROUP], codes: &mut [i8]) -> (f32, i32) {
    const ROUND: f32 = 12_582_912.0;
    let mut peaks = [0.0f32; LANES];
    for chunk in x.chunks_exact(LANES) {
        for (peak, value) in peaks.iter_mut().zip(chunk) {
            let value = value.abs();
            *peak = if value > *peak { value } else { *peak };
        }
    }
    let max = peaks.iter().fold(0.0f32, |a, b| if *b > a { *b } else { a });
    let scale = max / 127.0;
    // Below this the inverse would overflow; such a group is zero for all purposes.
    let inverse = if max > 1e-30 { 127.0 / max } else { 0.0 };
    let mut sum = 0i32;
    for (code, value) in codes.iter_mut().zip(x) {
        // |value · inverse| ≤ 127, so the integer sits in the low bits of the rounded sum.
        let rounded = *value * inverse + ROUND;
        *code = (rounded.to_bits() as i32 - ROUND.to_bits() as i32) as i8;
        sum += *code as i32;
        *value -= (rounded - ROUND) * scale;
    }
    (scale, sum)
}

/// Wraps the functions above for one instruction set, in a module `vector` beside the table.
macro_rules! for_isa {
    ($features:literal) => {
        mod vector {
            use crate::vector as generic;

            #[target_feature(enable = $features)]
            pub(super) fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
                generic::rms_norm(x, w, eps, out)
            }
            #[target_feature(enable = $features)]
            pub(super) fn rope(x: &mut [f32], cos: &[f32], sin: &[f32]) {
                generic::rope(x, cos, sin)
            }
            #[target_feature(enable = $features)]
            pub(super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
                generic::silu_mul(gate, up)
            }
            #[target_feature(enable = $features)]
            pub(super) fn gelu_mul(gate: &mut [f32], up: &[f32]) {
                generic::gelu_mul(gate, up)
            }
            #[target_feature(enable = $features)]
            pub(super) fn softmax(x: &mut [f32]) {
                generic::softmax(x)
            }
            #[target_feature(enable = $features)]
            pub(super) fn quantize(
                x: &[f32],
                codes: &mut [i8],
                scales: &mut [f32],
                sums: &mut [i32],
                mins: &mut [f32],
            ) {
                generic::quantize(x, codes, scales, sums, mins)
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use for_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_range() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -87.0 + i as f32 * (175.0 / 200_000.0);
            let (got, want) = (exp(x) as f64, (x as f64).exp());
            worst = worst.max(((got - want) / want).abs());
        }
        assert!(worst < 2.5e-7, "relative error {worst}");
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::NAN).is_nan());
    }

    #[test]
    fn softmax_sums_to_one_for_any_length() {
        for n in [1, 2, 15, 16, 17, 100] {
            let mut x: Vec<f32> = (0..n).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
            let want: Vec<f64> = x.iter().map(|v| (*v as f64).exp()).collect();
            let sum: f64 = want.iter().sum();
            softmax(&mut x);
            for (got, want) in x.iter().zip(want) {
                assert!((*got as f64 - want / sum).abs() < 1e-6);
            }
        }
    }
}
