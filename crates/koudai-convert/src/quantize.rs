//! The quantization codec: f32 weights to codes with f16 scales, and nothing else.
//!
//! Pure functions of one group of weights, shared by the converter and by training, so that what
//! training sees in its forward pass is what lands in the file. Scales and minima are rounded to
//! f16 *before* codes are chosen: the codes are the best for the numbers that are stored. The same
//! input gives the same output on every machine (no fused or reordered arithmetic is relied upon:
//! every sum runs in index order). Start with [`q4_group`].

use koudai_kernels::num::{f16_to_f32, f32_to_f16};

/// Largest magnitude that the f16 scales of every kind can hold without overflow.
pub const MAX_WEIGHT: f32 = 65504.0;

/// Candidate scales of the search in [`q4_group`], as the number of steps that span min…max. More
/// than 15 clips the ends of the range and resolves the middle better.
const Q4_SPANS: [f32; 12] =
    [14.0, 14.5, 15.0, 15.3, 15.6, 15.9, 16.3, 16.8, 17.4, 18.0, 18.8, 19.6];

/// Quantizes one group to 4 bits, `w ≈ d·q + m`; returns (d, m) as f16 bits.
///
/// Starts from the affine map of min…max to 0…15, then tries a fixed list of narrower and wider
/// ranges, refits (d, m) to the codes of each by least squares, and keeps what has the smallest
/// squared error with (d, m) rounded to f16. Never worse than [`q4_group_minmax`]. Panics if the lengths
/// differ; weights must be finite and at most [`MAX_WEIGHT`] in magnitude.
pub fn q4_group(weights: &[f32], codes: &mut [u8]) -> (u16, u16) {
    assert_eq!(weights.len(), codes.len());
    let (mut best_d, mut best_m) = q4_group_minmax(weights, codes);
    let mut best_error = q4_error(weights, best_d, best_m);
    let (low, high) = min_max(weights);
    if best_error == 0.0 || high <= low {
        return (best_d, best_m);
    }
    for span in Q4_SPANS {
        let scale = span / (high - low);
        // A range shorter than min…max is centred: both ends are clipped alike.
        let shift = (span - 15.0) / 2.0;
        let (d, m) = refit(weights, |w| ((w - low) * scale - shift).clamp(0.0, 15.0));
        let error = q4_error(weights, d, m);
        if error < best_error {
            (best_error, best_d, best_m) = (error, d, m);
        }
    }
    // Codes chosen for the best (d, m) allow a better fit; a few rounds settle it.
    for _ in 0..3 {
        let (d, m) = (f16_to_f32(best_d), f16_to_f32(best_m));
        let inverse = inverse(d);
        let (d, m) = refit(weights, |w| ((w - m) * inverse).clamp(0.0, 15.0));
        let error = q4_error(weights, d, m);
        if error >= best_error {
            break;
        }
        (best_error, best_d, best_m) = (error, d, m);
    }
    q4_codes(weights, best_d, best_m, codes);
    (best_d, best_m)
}

/// Quantizes one group to 4 bits by its minimum and maximum alone; returns (d, m) as f16 bits.
pub fn q4_group_minmax(weights: &[f32], codes: &mut [u8]) -> (u16, u16) {
    let (low, high) = min_max(weights);
    let (d, m) = (f32_to_f16((high - low) / 15.0), f32_to_f16(low));
    q4_codes(weights, d, m, codes);
    (d, m)
}

/// The codes nearest to `weights` for a given scale and minimum.
pub fn q4_codes(weights: &[f32], d: u16, m: u16, codes: &mut [u8]) {
    let (d, m) = (f16_to_f32(d), f16_to_f32(m));
    let inverse = inverse(d);
    for (w, q) in weights.iter().zip(codes) {
        *q = round((w - m) * inverse).clamp(0.0, 15.0) as u8;
    }
}

/// Quantizes one group to 8 bits, `w ≈ d·(q − 128)`; returns d as f16 bits.
///
/// The largest magnitude goes to one of the codes 64…128 from zero, whichever leaves the least
/// squared error: weights that lie on a coarser grid, as those of 5- and 6-bit formats do, then often
/// fall on codes exactly. Panics if the lengths differ; weights must be finite and at most
/// [`MAX_WEIGHT`] in magnitude.
pub fn q8_group(weights: &[f32], codes: &mut [u8]) -> u16 {
    assert_eq!(weights.len(), codes.len());
    let largest = weights.iter().fold(0.0f32, |a, w| a.max(w.abs()));
    let code = |w: f32, inverse: f32| round(w * inverse).clamp(-128.0, 127.0);
    let (mut best, mut least) = (f32_to_f16(largest / 127.0), f32::INFINITY);
    for steps in (64..=128).rev() {
        let bits = f32_to_f16(largest / steps as f32);
        let d = f16_to_f32(bits);
        let inverse = inverse(d);
        let error = |w: &f32| {
            let e = w - d * code(*w, inverse);
            e * e
        };
        let error: f32 = weights.iter().map(error).sum();
        if error < least {
            (best, least) = (bits, error);
        }
    }
    let inverse = inverse(f16_to_f32(best));
    for (w, q) in weights.iter().zip(codes) {
        *q = (code(*w, inverse) + 128.0) as u8;
    }
    best
}

/// Quantizes one group to 4 bits around zero, `w ≈ d·(q − 8)`; returns d as f16 bits.
///
/// The value of largest magnitude goes to code 0, the one farthest from zero, so d may be negative.
/// Panics if the lengths differ; weights must be finite and at most [`MAX_WEIGHT`] in magnitude.
pub fn q4s_group(weights: &[f32], codes: &mut [u8]) -> u16 {
    assert_eq!(weights.len(), codes.len());
    let farthest = weights.iter().fold(0.0f32, |a, w| if w.abs() > a.abs() { *w } else { a });
    let d = f32_to_f16(farthest / -8.0);
    let inverse = inverse(f16_to_f32(d));
    for (w, q) in weights.iter().zip(codes) {
        *q = (round(w * inverse) + 8.0).clamp(0.0, 15.0) as u8;
    }
    d
}

fn min_max(weights: &[f32]) -> (f32, f32) {
    weights
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), w| (low.min(*w), high.max(*w)))
}

/// 1/d, and 0 where d is: then every code is 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// To the nearest integer, ties to even, for magnitudes below 2^22. One addition and subtraction
/// where `f32::round_ties_even` is a library call on baseline x86-64.
fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 · 2^23
    if x.abs() < 4_194_304.0 { (x + MAGIC) - MAGIC } else { x }
}

/// Least-squares (d, m) for codes `round(code(w))`, rounded to f16.
fn refit(weights: &[f32], code: impl Fn(f32) -> f32) -> (u16, u16) {
    let (mut q1, mut q2, mut w1, mut wq) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for &w in weights {
        let q = round(code(w));
        q1 += q;
        q2 += q * q;
        w1 += w;
        wq += w * q;
    }
    let n = weights.len() as f32;
    let det = n * q2 - q1 * q1;
    if det <= 0.0 {
        return (0, f32_to_f16(w1 / n));
    }
    let d = (n * wq - q1 * w1) / det;
    let m = (w1 - d * q1) / n;
    (f32_to_f16(d), f32_to_f16(m))
}

/// Squared error of the nearest codes for (d, m); infinite if either isn't finite.
fn q4_error(weights: &[f32], d: u16, m: u16) -> f32 {
    let (d, m) = (f16_to_f32(d), f16_to_f32(m));
    if !(d.is_finite() && m.is_finite()) {
        return f32::INFINITY;
    }
    let inverse = inverse(d);
    let mut sum = 0.0;
    for &w in weights {
        let q = round(((w - m) * inverse).clamp(0.0, 15.0));
        let e = w - (d * q + m);
        sum += e * e;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(seed: u32, n: usize) -> Vec<f32> {
        let mut s = seed;
        let mut next = || {
            s = s.wrapping_mul(1664525).wrapping_add(1013904223);
            (s >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        // A sum of uniforms is near enough to a normal distribution.
        (0..n).map(|_| (0..6).map(|_| next()).sum::<f32>() * 0.03).collect()
    }

    fn rms(weights: &[f32], d: u16, m: u16, codes: &[u8], zero: f32) -> f32 {
        let (d, m) = (f16_to_f32(d), f16_to_f32(m));
        let sum: f32 = weights
            .iter()
            .zip(codes)
            .map(|(w, q)| (w - (d * (*q as f32 - zero) + m)).powi(2))
            .sum();
        let power: f32 = weights.iter().map(|w| w * w).sum();
        (sum / power).sqrt()
    }

    #[test]
    fn the_search_beats_min_max_and_q8_is_near_exact() {
        let (mut plain, mut searched, mut q8) = (0.0, 0.0, 0.0);
        for seed in 0..200 {
            let w = weights(seed, 64);
            let mut codes = [0; 64];
            let (d, m) = q4_group_minmax(&w, &mut codes);
            let a = rms(&w, d, m, &codes, 0.0);
            let (d, m) = q4_group(&w, &mut codes);
            let b = rms(&w, d, m, &codes, 0.0);
            assert!(b <= a * 1.000_001, "seed {seed}: {b} > {a}");
            let d = q8_group(&w[..32], &mut codes[..32]);
            q8 += rms(&w[..32], d, 0, &codes[..32], 128.0);
            plain += a;
            searched += b;
        }
        println!("mean relative RMS error: min/max {plain}, searched {searched}, q8 {q8} (/200)");
        assert!(searched < plain * 0.95);
        assert!(q8 / 200.0 < 0.006);
    }

    #[test]
    fn what_is_already_quantized_comes_back_exactly() {
        for seed in 0..50u32 {
            let d = f32_to_f16(0.001 * (seed + 1) as f32);
            let m = f32_to_f16(-0.01 * (seed % 7) as f32);
            let mut q: Vec<u8> = (0..64u32).map(|i| ((i * 7 + seed) % 16) as u8).collect();
            q[0] = 0;
            q[1] = 15;
            let w: Vec<f32> = q.iter().map(|q| f16_to_f32(d) * *q as f32 + f16_to_f32(m)).collect();
            let mut codes = vec![0; 64];
            let (d2, m2) = q4_group(&w, &mut codes);
            let back: Vec<f32> =
                codes.iter().map(|q| f16_to_f32(d2) * *q as f32 + f16_to_f32(m2)).collect();
            assert_eq!(codes, q, "seed {seed}");
            assert!(w.iter().zip(&back).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs().max(1e-3)));
        }
    }

    #[test]
    fn constants_zeros_and_extremes_are_defined() {
        let mut codes = [9; 32];
        assert_eq!(q4_group(&[0.0; 32], &mut codes), (0, 0));
        assert_eq!(codes, [0; 32]);
        let (d, m) = q4_group(&[0.5; 32], &mut codes);
        assert_eq!((d, f16_to_f32(m)), (0, 0.5));
        assert_eq!(q8_group(&[0.0; 32], &mut codes), 0);
        assert_eq!(codes, [128; 32]);
        let mut w = [1e-30f32; 32];
        w[3] = -1e-30;
        q4_group(&w, &mut codes);
        q8_group(&w, &mut codes);
        w[0] = MAX_WEIGHT;
        w[1] = -MAX_WEIGHT;
        let (d, m) = q4_group(&w, &mut codes);
        assert!(f16_to_f32(d).is_finite() && f16_to_f32(m).is_finite());
        assert_eq!((codes[0], codes[1]), (15, 0));
    }
}
