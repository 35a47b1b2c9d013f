//! The quantization codec of record: groups of f32 weights to codes on a grid of f16 numbers, and back.
//!
//! Pure functions of one group, shared by the converter and by training, so that what training sees in
//! its forward pass ([`Grid::round`]) is what lands in the file. Scales and minima are rounded to f16
//! *before* codes are chosen: the codes are the best for the numbers that are stored. The same input
//! gives the same output on every machine (no fused or reordered arithmetic is relied upon: every sum
//! runs in index order). Start with [`Grid::search`].

use koudai_kernels::Kind;
use koudai_kernels::num::{f16_to_f32, f32_to_f16};

/// Largest magnitude that the f16 scales of every kind can hold without overflow.
pub const MAX_WEIGHT: f32 = 65504.0;

/// Candidate scales of the 4-bit search, as the number of steps that span min…max. More than 15 clips
/// the ends of the range and resolves the middle better.
const Q4_SPANS: [f32; 12] =
    [14.0, 14.5, 15.0, 15.3, 15.6, 15.9, 16.3, 16.8, 17.4, 18.0, 18.8, 19.6];

/// The same for 4 bits around zero, as steps from zero to the weight farthest from it.
const Q4_STEPS: [f32; 8] = [6.5, 7.0, 7.25, 7.5, 7.75, 8.25, 8.5, 9.0];

/// The values that the codes of one group stand for: `d · (q − zero) + m`, q from 0 to `top`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Scale; a number that f16 holds.
    d: f32,
    /// Minimum; a number that f16 holds, 0 in kinds that have none.
    m: f32,
    zero: f32,
    top: f32,
}

impl Grid {
    fn new(kind: Kind, d: f32, m: f32) -> Grid {
        assert!(kind.is_quantized(), "{} has no codes", kind.name());
        let top = if kind == Kind::Q8 { 255.0 } else { 15.0 };
        let stored = |x| f16_to_f32(f32_to_f16(x));
        Grid { d: stored(d), m: stored(m), zero: kind.zero() as f32, top }
    }

    /// Plain rounding to nearest. The grid from the smallest to the largest weight; in kinds without a
    /// minimum the one that puts the weight farthest from 0 on code 0 (q4s32, where d may be negative) or
    /// 127 from the middle (q8). Weights must be finite and at most [`MAX_WEIGHT`] in magnitude. Panics on
    /// kinds without codes.
    pub fn min_max(kind: Kind, weights: &[f32]) -> Grid {
        match kind {
            Kind::Q8 => Grid::new(kind, farthest(weights).abs() / 127.0, 0.0),
            Kind::Q4S32 => Grid::new(kind, farthest(weights) / -8.0, 0.0),
            _ => {
                let (low, high) = range(weights);
                Grid::new(kind, (high - low) / 15.0, low)
            }
        }
    }

    /// The grid with the least squared error found, each weight's square counted `importance` times;
    /// never worse than [`Grid::min_max`].
    ///
    /// Where there is a minimum, it starts from the affine map of min…max to 0…15, tries a fixed list of
    /// narrower and wider ranges, and refits (d, m) to the codes of each by least squares. q8 puts the
    /// largest magnitude on one of the codes 64…128 from zero: weights that lie on a coarser grid, as those
    /// of 5- and 6-bit formats do, then often fall on codes exactly. q4s32 does the same with a few.
    ///
    /// Weights must be finite and at most [`MAX_WEIGHT`] in magnitude, importance finite and above 0.
    /// Panics if the lengths differ or the kind has no codes.
    pub fn search(kind: Kind, weights: &[f32], importance: &[f32]) -> Grid {
        assert_eq!(weights.len(), importance.len());
        let mut best = Best::new(Grid::min_max(kind, weights), weights, importance);
        let farthest = farthest(weights);
        match kind {
            Kind::Q8 => {
                (64..=128).rev().for_each(|steps| {
                    best.offer(Grid::new(kind, farthest.abs() / steps as f32, 0.0));
                });
                return best.grid;
            }
            Kind::Q4S32 => {
                Q4_STEPS.iter().for_each(|steps| {
                    best.offer(Grid::new(kind, farthest / -steps, 0.0));
                });
                return best.grid;
            }
            _ => {}
        }
        let (low, high) = range(weights);
        if best.error == 0.0 || high <= low {
            return best.grid;
        }
        for span in Q4_SPANS {
            let scale = span / (high - low);
            // A range shorter than min…max is centred: both ends are clipped alike.
            let shift = (span - 15.0) / 2.0;
            best.offer(fit(kind, weights, importance, |w| (w - low) * scale - shift));
        }
        // Codes chosen for the best (d, m) allow a better fit; a few rounds settle it.
        for _ in 0..3 {
            let Grid { d, m, .. } = best.grid;
            let inverse = inverse(d);
            if !best.offer(fit(kind, weights, importance, |w| (w - m) * inverse)) {
                break;
            }
        }
        best.grid
    }

    /// Scale and minimum as f16 bits, as they are stored.
    pub fn stored(&self) -> (u16, u16) {
        (f32_to_f16(self.d), f32_to_f16(self.m))
    }

    /// The code nearest to a weight.
    pub fn code(&self, weight: f32) -> u8 {
        (round((weight - self.m) * inverse(self.d)) + self.zero).clamp(0.0, self.top) as u8
    }

    /// What a code stands for.
    pub fn value(&self, code: u8) -> f32 {
        self.d * (code as f32 - self.zero) + self.m
    }

    /// The weight as it will be read back: fake quantization.
    pub fn round(&self, weight: f32) -> f32 {
        self.value(self.code(weight))
    }

    fn error(&self, weights: &[f32], importance: &[f32]) -> f32 {
        if !(self.d.is_finite() && self.m.is_finite()) {
            return f32::INFINITY;
        }
        let inverse = inverse(self.d);
        let term = |(w, h): (&f32, &f32)| {
            let q = (round((w - self.m) * inverse) + self.zero).clamp(0.0, self.top);
            let e = w - (self.d * (q - self.zero) + self.m);
            h * (e * e)
        };
        weights.iter().zip(importance).map(term).sum()
    }
}

/// The best grid so far.
struct Best<'a> {
    grid: Grid,
    error: f32,
    weights: &'a [f32],
    importance: &'a [f32],
}

impl<'a> Best<'a> {
    fn new(grid: Grid, weights: &'a [f32], importance: &'a [f32]) -> Best<'a> {
        Best { grid, error: grid.error(weights, importance), weights, importance }
    }

    /// Takes a grid if it is better.
    fn offer(&mut self, grid: Grid) -> bool {
        let error = grid.error(self.weights, self.importance);
        let better = error < self.error;
        if better {
            (self.grid, self.error) = (grid, error);
        }
        better
    }
}

fn range(weights: &[f32]) -> (f32, f32) {
    weights
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), w| (low.min(*w), high.max(*w)))
}

/// The weight of largest magnitude.
fn farthest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0f32, |a, w| if w.abs() > a.abs() { *w } else { a })
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

/// The 4-bit grid that fits the codes `round(place(w))` best, by least squares.
fn fit(kind: Kind, weights: &[f32], importance: &[f32], place: impl Fn(f32) -> f32) -> Grid {
    let (mut h0, mut q1, mut q2, mut w1, mut wq) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for (&w, &h) in weights.iter().zip(importance) {
        let q = round(place(w).clamp(0.0, 15.0));
        h0 += h;
        q1 += h * q;
        q2 += h * (q * q);
        w1 += h * w;
        wq += h * (w * q);
    }
    let det = h0 * q2 - q1 * q1;
    if det <= 0.0 {
        return Grid::new(kind, 0.0, w1 / h0);
    }
    let d = (h0 * wq - q1 * w1) / det;
    Grid::new(kind, d, (w1 - d * q1) / h0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONES: [f32; 64] = [1.0; 64];

    fn uniform(seed: u32) -> impl FnMut() -> f32 {
        let mut s = seed;
        move || {
            s = s.wrapping_mul(1664525).wrapping_add(1013904223);
            (s >> 8) as f32 / (1 << 24) as f32
        }
    }

    fn weights(seed: u32, n: usize) -> Vec<f32> {
        let mut next = uniform(seed);
        // A sum of uniforms is near enough to a normal distribution.
        (0..n).map(|_| (0..6).map(|_| next() - 0.5).sum::<f32>() * 0.03).collect()
    }

    fn error(grid: &Grid, weights: &[f32], importance: &[f32]) -> f64 {
        let term = |(w, h): (&f32, &f32)| *h as f64 * ((*w - grid.round(*w)) as f64).powi(2);
        weights.iter().zip(importance).map(term).sum()
    }

    fn rms(grid: &Grid, weights: &[f32]) -> f64 {
        let power: f64 = weights.iter().map(|w| (*w as f64).powi(2)).sum();
        (error(grid, weights, &ONES[..weights.len()]) / power).sqrt()
    }

    #[test]
    fn the_search_beats_min_max_and_q8_is_near_exact() {
        let (mut plain, mut searched, mut q8) = (0.0, 0.0, 0.0);
        for seed in 0..200 {
            let w = weights(seed, 64);
            let a = rms(&Grid::min_max(Kind::Q4G64, &w), &w);
            let b = rms(&Grid::search(Kind::Q4G64, &w, &ONES), &w);
            assert!(b <= a * 1.000_001, "seed {seed}: {b} > {a}");
            q8 += rms(&Grid::search(Kind::Q8, &w[..32], &ONES[..32]), &w[..32]);
            plain += a;
            searched += b;
        }
        println!("mean relative RMS error: min/max {plain}, searched {searched}, q8 {q8} (/200)");
        assert!(searched < plain * 0.95);
        assert!(q8 / 200.0 < 0.006);
    }

    #[test]
    fn the_search_is_never_worse_by_the_weights_that_count() {
        for kind in [Kind::Q4G32, Kind::Q4G64, Kind::Q4S32, Kind::Q8] {
            let n = kind.group();
            let (mut blind, mut weighted) = (0.0, 0.0);
            for seed in 0..200 {
                let (w, mut next) = (weights(seed, n), uniform(seed + 1000));
                let importance: Vec<f32> = (0..n).map(|_| 0.01 + next().powi(8) * 50.0).collect();
                let grid = Grid::search(kind, &w, &importance);
                let found = error(&grid, &w, &importance);
                let plain = error(&Grid::min_max(kind, &w), &w, &importance);
                assert!(found <= plain * 1.000_01, "{} seed {seed}: {found} {plain}", kind.name());
                weighted += found;
                blind += error(&Grid::search(kind, &w, &ONES[..n]), &w, &importance);
            }
            assert!(weighted < blind, "{}: {weighted} {blind}", kind.name());
        }
    }

    #[test]
    fn what_is_already_quantized_comes_back_exactly() {
        for seed in 0..50u32 {
            let was = Grid::new(Kind::Q4G64, 0.001 * (seed + 1) as f32, -0.01 * (seed % 7) as f32);
            let mut codes: Vec<u8> = (0..64u32).map(|i| ((i * 7 + seed) % 16) as u8).collect();
            (codes[0], codes[1]) = (0, 15);
            let w: Vec<f32> = codes.iter().map(|q| was.value(*q)).collect();
            let grid = Grid::search(Kind::Q4G64, &w, &ONES);
            assert!(w.iter().zip(&codes).all(|(w, q)| grid.code(*w) == *q), "seed {seed}");
            assert!(w.iter().all(|w| (w - grid.round(*w)).abs() <= 1e-6 * w.abs().max(1e-3)));
        }
    }

    #[test]
    fn grids_are_what_is_stored_and_rounding_again_changes_nothing() {
        for kind in [Kind::Q4G32, Kind::Q4G64, Kind::Q4S32, Kind::Q8] {
            for seed in 0..50 {
                let w = weights(seed, kind.group());
                for grid in [Grid::min_max(kind, &w), Grid::search(kind, &w, &ONES[..w.len()])] {
                    let (d, m) = grid.stored();
                    assert_eq!((f16_to_f32(d), f16_to_f32(m)), (grid.d, grid.m));
                    for w in &w {
                        let back = grid.round(*w);
                        assert_eq!(grid.round(back), back, "{} seed {seed}", kind.name());
                    }
                    let top = if kind == Kind::Q8 { 255 } else { 15 };
                    // Where d is negative, codes count downwards.
                    let mut ends = [grid.code(-1e9), grid.code(1e9)];
                    ends.sort();
                    assert_eq!(ends, [0, top], "{} seed {seed}", kind.name());
                }
            }
        }
    }

    #[test]
    fn constants_zeros_and_extremes_are_defined() {
        let q4 = |w: &[f32]| Grid::search(Kind::Q4G32, w, &ONES[..32]);
        assert_eq!((q4(&[0.0; 32]).stored(), q4(&[0.0; 32]).code(0.0)), ((0, 0), 0));
        let half = q4(&[0.5; 32]);
        assert_eq!((half.stored().0, half.round(0.5)), (0, 0.5));
        let q8 = Grid::search(Kind::Q8, &[0.0; 32], &ONES[..32]);
        assert_eq!((q8.stored().0, q8.code(0.0)), (0, 128));
        let mut w = [1e-30f32; 32];
        w[3] = -1e-30;
        assert!(w.iter().all(|x| q4(&w).round(*x) == 0.0));
        w[0] = MAX_WEIGHT;
        w[1] = -MAX_WEIGHT;
        let grid = q4(&w);
        assert!(grid.d.is_finite() && grid.m.is_finite());
        assert_eq!((grid.code(w[0]), grid.code(w[1])), (15, 0));
    }
}
