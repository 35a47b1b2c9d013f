//! From logits to a token: penalties and bias, temperature, top-k, top-p, min-p, one draw.
//!
//! In that order, as the field's most used library has it. The same seed and logits give the same
//! tokens, as far as a platform's `exp` rounds the same. Any logits give a token or an error: NaN
//! counts as impossible.

use std::collections::HashMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::Error;

/// How to choose the next token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 takes the likeliest token always.
    pub temperature: f32,
    /// Keep the k likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of tokens already in the context and multiplies negative ones; 1 is
    /// off (Keskar et al. 2019, CTRL).
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens generated at least once.
    pub presence_penalty: f32,
    /// Subtracted from logits of generated tokens, once for each time.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for SamplingParams {
    /// The likeliest token always.
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every value; the error names the parameter.
    pub fn validate(&self, vocab_size: usize) -> Result<(), Error> {
        let check = |ok: bool, what: &str, value: f32| match ok {
            true => Ok(()),
            false => Err(Error::Parameter(format!("{what} is {value}"))),
        };
        let t = self.temperature;
        check(t.is_finite() && t >= 0.0, "temperature must be 0 or more; it", t)?;
        check((0.0..=1.0).contains(&self.top_p), "top_p must be in 0..=1; it", self.top_p)?;
        check((0.0..=1.0).contains(&self.min_p), "min_p must be in 0..=1; it", self.min_p)?;
        let r = self.repetition_penalty;
        check(r.is_finite() && r > 0.0, "repetition_penalty must be above 0; it", r)?;
        let p = self.presence_penalty;
        check(p.is_finite(), "presence_penalty must be a number; it", p)?;
        let f = self.frequency_penalty;
        check(f.is_finite(), "frequency_penalty must be a number; it", f)?;
        for (id, bias) in &self.logit_bias {
            if *id as usize >= vocab_size {
                return Err(Error::Parameter(format!(
                    "logit_bias names token {id}; the vocabulary has {vocab_size}"
                )));
            }
            check(!bias.is_nan(), "a logit_bias must be a number; it", *bias)?;
        }
        Ok(())
    }
}

/// Chooses tokens one after the other for one generation.
pub struct Sampler {
    params: SamplingParams,
    random: Pcg64,
    /// How often each token occurs: in prompt and generation, and in the generation alone.
    seen: HashMap<u32, (u32, u32)>,
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler for a context that starts with `prompt`.
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Sampler {
        let mut seen = HashMap::new();
        if params.repetition_penalty != 1.0 {
            for id in prompt {
                seen.entry(*id).or_insert((0, 0)).0 += 1;
            }
        }
        let random = Pcg64::seed_from_u64(params.seed);
        Sampler { params, random, seen, candidates: Vec::new() }
    }

    /// The next token, noted for the penalties.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, Error> {
        let id = self.choose(logits)?;
        let seen = self.seen.entry(id).or_insert((0, 0));
        (seen.0, seen.1) = (seen.0 + 1, seen.1 + 1);
        Ok(id)
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32, Error> {
        let adjusted = self.adjusted(logits);
        let logits = adjusted.as_deref().unwrap_or(logits);
        let (best, max) = argmax(logits).ok_or(Error::NoCandidate)?;
        let p = &self.params;
        // So small a temperature would overflow the division; its limit is the likeliest token.
        if p.temperature < 1e-4 || p.top_k == 1 || max == f32::INFINITY {
            return Ok(best);
        }
        let candidates = &mut self.candidates;
        candidates.clear();
        // Weights relative to the likeliest; what rounds to 0 can't be drawn.
        let inverse = 1.0 / p.temperature;
        for (id, logit) in logits.iter().enumerate() {
            let weight = ((logit - max) * inverse).exp();
            if weight > 0.0 {
                candidates.push((weight, id as u32));
            }
        }
        let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if p.top_k > 0 && p.top_k < candidates.len() {
            candidates.select_nth_unstable_by(p.top_k - 1, order);
            candidates.truncate(p.top_k);
        }
        if p.top_p < 1.0 {
            candidates.sort_unstable_by(order);
            let total: f64 = candidates.iter().map(|c| c.0 as f64).sum();
            let mut sum = 0.0;
            let reached = |c: &(f32, u32)| {
                sum += c.0 as f64;
                sum >= p.top_p as f64 * total
            };
            if let Some(last) = candidates.iter().position(reached) {
                candidates.truncate(last + 1);
            }
        }
        if p.min_p > 0.0 {
            candidates.retain(|c| c.0 >= p.min_p);
        }
        // Draw in the order of ids, which no selection algorithm can change.
        candidates.sort_unstable_by_key(|c| c.1);
        let total: f64 = candidates.iter().map(|c| c.0 as f64).sum();
        let mut left = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        for (weight, id) in candidates.iter() {
            left -= *weight as f64;
            if left < 0.0 {
                return Ok(*id);
            }
        }
        Ok(candidates.last().map_or(best, |c| c.1))
    }

    /// Logits after penalties and bias, if there are any.
    fn adjusted(&self, logits: &[f32]) -> Option<Vec<f32>> {
        let p = &self.params;
        let counted =
            p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        if !counted && p.logit_bias.is_empty() {
            return None;
        }
        let mut logits = logits.to_vec();
        for (id, (anywhere, generated)) in self.seen.iter().filter(|_| counted) {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            if *anywhere > 0 {
                *logit = match *logit > 0.0 {
                    true => *logit / p.repetition_penalty,
                    false => *logit * p.repetition_penalty,
                };
            }
            if *generated > 0 {
                *logit -= p.presence_penalty + p.frequency_penalty * *generated as f32;
            }
        }
        for (id, bias) in &p.logit_bias {
            logits[*id as usize] += bias;
        }
        Some(logits)
    }
}

/// The likeliest token and its logit, the first of equals; `None` if nothing is possible.
pub(crate) fn argmax(logits: &[f32]) -> Option<(u32, f32)> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > max {
            (best, max) = (Some(id as u32), *logit);
        }
    }
    best.map(|id| (id, max))
}

/// log Σ exp(logits), in f64; impossible ones don't count.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    if !max.is_finite() {
        return max as f64;
    }
    let sum: f64 = logits.iter().filter(|l| !l.is_nan()).map(|l| (l - max).exp() as f64).sum();
    max as f64 + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> SamplingParams {
        SamplingParams { temperature: 1.0, ..Default::default() }
    }

    fn draws(params: SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
        (0..n as u64)
            .map(|seed| {
                let mut s = Sampler::new(SamplingParams { seed, ..params.clone() }, &[]);
                s.sample(logits).unwrap()
            })
            .collect()
    }

    #[test]
    fn truncation_keeps_what_it_promises() {
        let logits = [0.0, 3.0, 1.0, 2.0, -50.0];
        let kept = |p: SamplingParams| {
            let mut ids = draws(p, &logits, 2000);
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(kept(params()), [0, 1, 2, 3]);
        assert_eq!(kept(SamplingParams { top_k: 2, ..params() }), [1, 3]);
        assert_eq!(kept(SamplingParams { top_k: 99, ..params() }), [0, 1, 2, 3]);
        // Probabilities are .64, .24, .09, .03.
        assert_eq!(kept(SamplingParams { top_p: 0.6, ..params() }), [1]);
        assert_eq!(kept(SamplingParams { top_p: 0.7, ..params() }), [1, 3]);
        assert_eq!(kept(SamplingParams { top_p: 0.0, ..params() }), [1]);
        assert_eq!(kept(SamplingParams { min_p: 0.3, ..params() }), [1, 3]);
        assert_eq!(kept(SamplingParams { min_p: 1.0, ..params() }), [1]);
        assert_eq!(kept(SamplingParams { temperature: 0.0, ..params() }), [1]);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0f32, (2.0f32).ln(), (5.0f32).ln()];
        let ids = draws(params(), &logits, 8000);
        for (id, want) in [(0, 1000.0), (1, 2000.0), (2, 5000.0)] {
            let got = ids.iter().filter(|i| **i == id).count() as f64;
            assert!(
                (got - want).abs() < 4.5 * (want * (1.0 - want / 8000.0)).sqrt(),
                "{id}: {got}"
            );
        }
    }

    #[test]
    fn penalties_and_bias_move_logits() {
        let mut s =
            Sampler::new(SamplingParams { repetition_penalty: 4.0, ..Default::default() }, &[1, 1]);
        assert_eq!(s.sample(&[1.0, 3.0, -1.0]).unwrap(), 0);
        // Now 0 is seen too: 0.25 and 0.75 remain, so 1 wins.
        assert_eq!(s.sample(&[1.0, 3.0, -1.0]).unwrap(), 1);
        let params = SamplingParams { frequency_penalty: 1.0, ..Default::default() };
        let mut s = Sampler::new(params, &[0, 0, 0]);
        let got: Vec<u32> = (0..4).map(|_| s.sample(&[2.5, 1.0]).unwrap()).collect();
        assert_eq!(got, [0, 0, 1, 0]);
        let params = SamplingParams { presence_penalty: 2.0, ..Default::default() };
        let mut s = Sampler::new(params, &[]);
        let got: Vec<u32> = (0..3).map(|_| s.sample(&[2.5, 1.0]).unwrap()).collect();
        assert_eq!(got, [0, 1, 0]);
        let logit_bias = vec![(1, f32::INFINITY)];
        let mut s = Sampler::new(SamplingParams { logit_bias, ..params_hot() }, &[]);
        assert_eq!(s.sample(&[2.5, 1.0]).unwrap(), 1);
    }

    fn params_hot() -> SamplingParams {
        SamplingParams { temperature: 1e5, ..Default::default() }
    }

    #[test]
    fn strange_logits_give_a_token_or_an_error() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let odd: [&[f32]; 7] = [
            &[nan, nan],
            &[-inf, -inf],
            &[nan, 1.0],
            &[inf, 1.0],
            &[-inf, 1.0, nan, inf],
            &[0.0; 4],
            &[f32::MAX, f32::MIN],
        ];
        for temperature in [0.0, 1e-38, 1e-5, 1.0, 1e5] {
            for top_k in [0, 1, usize::MAX] {
                for (top_p, min_p) in [(0.0, 0.0), (1.0, 1.0), (0.5, 0.5)] {
                    for logits in odd {
                        let p = SamplingParams { temperature, top_k, top_p, min_p, ..params() };
                        let impossible = logits.iter().all(|l| l.is_nan() || *l == -inf);
                        match Sampler::new(p, &[]).sample(logits) {
                            Ok(id) => assert!(!logits[id as usize].is_nan() && !impossible),
                            Err(e) => assert!(impossible, "{e}"),
                        }
                    }
                }
            }
        }
        for bad in [
            SamplingParams { temperature: nan, ..params() },
            SamplingParams { temperature: -1.0, ..params() },
            SamplingParams { top_p: 1.5, ..params() },
            SamplingParams { min_p: -0.1, ..params() },
            SamplingParams { repetition_penalty: 0.0, ..params() },
            SamplingParams { logit_bias: vec![(4, 1.0)], ..params() },
        ] {
            assert!(bad.validate(4).is_err());
        }
    }
}
