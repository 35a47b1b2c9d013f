//! What configurations that weren't measured would do, and how far that is off.
//!
//! Each quantity is a sum of a few causes (bytes to read, layers, work on the context, what is fixed),
//! each with a weight that isn't negative, fitted to the measurements by least squares of relative
//! errors. How good it is comes from leaving out one configuration after the other and predicting it
//! from the rest. Start with [`Predictor::fit`].

use serde::Serialize;

use super::grid::ModelShape;
use super::measure::{AtContext, Measurement, Plan};

/// Measured configurations that a prediction needs: one more than the longest law has terms, and one
/// to leave out.
pub const LEAST: usize = 7;

/// A configuration and what it was measured to do.
pub type Sample = (ModelShape, Measurement);

/// What can be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    DecodeP50,
    DecodeP90,
    Prefill,
    Peak,
    File,
}

/// A quantity as a sum of causes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Law {
    /// What it predicts, with its unit.
    pub quantity: &'static str,
    /// Its causes and their weights: the quantity for one unit of the cause.
    pub terms: Vec<Term>,
    /// How far it is off.
    pub leave_one_out: Errors,
}

/// A cause and its weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// The cause.
    pub cause: &'static str,
    /// Its weight, never negative.
    pub coefficient: f64,
}

/// Relative errors, without their signs, of predictions of configurations that the law hasn't seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// The mean.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// Predictions.
    pub n: usize,
}

/// The laws of one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predictor {
    /// Configurations behind it.
    pub measured: usize,
    /// One for each quantity.
    pub laws: Vec<Law>,
    #[serde(skip)]
    plan: Plan,
}

impl Quantity {
    const ALL: [Quantity; 5] = [
        Quantity::DecodeP50,
        Quantity::DecodeP90,
        Quantity::Prefill,
        Quantity::Peak,
        Quantity::File,
    ];

    fn name(self) -> &'static str {
        match self {
            Quantity::DecodeP50 => "decode p50, ms per token",
            Quantity::DecodeP90 => "decode p90, ms per token",
            Quantity::Prefill => "prefill, ms per token",
            Quantity::Peak => "peak memory, bytes",
            Quantity::File => "file, bytes",
        }
    }

    /// The causes, in the order of [`Quantity::causes`].
    fn terms(self) -> &'static [&'static str] {
        match self {
            Quantity::DecodeP50 | Quantity::DecodeP90 => &[
                "bytes of weights",
                "layers",
                "layers × width of queries × context",
                "bytes of keys and values",
                "fixed",
            ],
            Quantity::Prefill => &[
                "weights in layers",
                "layers × (dim + ffn)",
                "layers × width of queries × prompt",
                "weights of the head / prompt",
                "fixed",
            ],
            Quantity::Peak => &[
                "bytes of weights",
                "bytes of keys and values",
                "width of a row",
                "vocabulary",
                "fixed",
            ],
            Quantity::File => &["bytes of weights", "fixed"],
        }
    }

    /// How much there is of each cause with `context` tokens.
    fn causes(self, shape: &ModelShape, context: usize, plan: &Plan) -> Vec<f64> {
        let (layers, queries) = (shape.layers as f64, shape.q_dim() as f64);
        let bytes = shape.weight_bytes() as f64;
        match self {
            Quantity::DecodeP50 | Quantity::DecodeP90 => {
                // Contexts grow while tokens are decoded.
                let mean = context + plan.generate / 2;
                let kv = shape.kv_bytes(mean) as f64;
                vec![bytes, layers, layers * queries * mean as f64, kv, 1.0]
            }
            Quantity::Prefill => {
                let head = (shape.vocab * shape.dim) as f64;
                let prompt = plan.prompt as f64;
                let rows = layers * (shape.dim + shape.ffn_dim) as f64;
                let attention = layers * queries * prompt;
                vec![shape.parameters() as f64 - head, rows, attention, head / prompt, 1.0]
            }
            Quantity::Peak => {
                let kv = shape.kv_bytes(context + plan.generate) as f64;
                let row = (shape.dim + shape.q_dim() + shape.ffn_dim) as f64;
                vec![bytes, kv, row, shape.vocab as f64, 1.0]
            }
            Quantity::File => vec![bytes, 1.0],
        }
    }

    /// What was measured, and with how many tokens in the context.
    fn observed(self, m: &Measurement) -> Vec<(usize, f64)> {
        let each =
            |f: fn(&AtContext) -> f64| m.contexts.iter().map(|c| (c.context, f(c))).collect();
        match self {
            Quantity::DecodeP50 => each(|c| c.p50_ms),
            Quantity::DecodeP90 => each(|c| c.p90_ms),
            Quantity::Peak => each(|c| c.peak_bytes.max(1) as f64),
            Quantity::Prefill => vec![(0, 1e3 / m.prefill_tps)],
            Quantity::File => vec![(0, m.file_bytes as f64)],
        }
    }

    fn coefficients<'a>(self, samples: impl Iterator<Item = &'a Sample>, plan: &Plan) -> Vec<f64> {
        let mut equations = Vec::new();
        for (shape, measured) in samples {
            for (context, value) in self.observed(measured) {
                equations.push((self.causes(shape, context, plan), value));
            }
        }
        non_negative(&equations, self.terms().len())
    }

    fn law(self, samples: &[Sample], plan: &Plan) -> Law {
        let mut errors = Vec::new();
        for (left_out, (shape, measured)) in samples.iter().enumerate() {
            let rest = samples.iter().enumerate().filter(|(i, _)| *i != left_out);
            let coefficients = self.coefficients(rest.map(|(_, s)| s), plan);
            for (context, value) in self.observed(measured) {
                let predicted = dot(&self.causes(shape, context, plan), &coefficients);
                errors.push((predicted / value - 1.0).abs());
            }
        }
        let coefficients = self.coefficients(samples.iter(), plan);
        let terms = self.terms().iter().zip(coefficients);
        Law {
            quantity: self.name(),
            terms: terms.map(|(cause, coefficient)| Term { cause, coefficient }).collect(),
            leave_one_out: Errors {
                mean: errors.iter().sum::<f64>() / errors.len() as f64,
                max: errors.iter().copied().fold(0.0, f64::max),
                n: errors.len(),
            },
        }
    }
}

impl Law {
    fn value(&self, causes: &[f64]) -> f64 {
        self.terms.iter().zip(causes).map(|(term, cause)| term.coefficient * cause).sum()
    }
}

impl Predictor {
    /// Fits all laws; `None` if there are fewer than [`LEAST`] samples.
    pub fn fit(samples: &[Sample], plan: &Plan) -> Option<Predictor> {
        (samples.len() >= LEAST).then(|| Predictor {
            measured: samples.len(),
            laws: Quantity::ALL.map(|quantity| quantity.law(samples, plan)).to_vec(),
            plan: plan.clone(),
        })
    }

    /// What a configuration would be measured to do.
    pub fn predict(&self, shape: &ModelShape) -> Measurement {
        let value = |quantity: Quantity, context| {
            // Laws are in the order of the quantities.
            self.laws[quantity as usize].value(&quantity.causes(shape, context, &self.plan))
        };
        let at = |context| {
            let p50_ms = value(Quantity::DecodeP50, context);
            AtContext {
                context,
                p50_ms,
                p90_ms: value(Quantity::DecodeP90, context).max(p50_ms),
                peak_bytes: value(Quantity::Peak, context) as u64,
            }
        };
        Measurement {
            file_bytes: value(Quantity::File, 0) as u64,
            prefill_tps: 1e3 / value(Quantity::Prefill, 0),
            contexts: self.plan.contexts.iter().map(|&context| at(context)).collect(),
        }
    }
}

/// The `n` weights, none negative, for which the sum of (causes · weights / value − 1)² over all
/// equations is least.
///
/// With so few weights, every set of them that may be above zero is tried: the best one without a
/// negative weight is the solution, because the solution is the plain least squares of its own set.
fn non_negative(equations: &[(Vec<f64>, f64)], n: usize) -> Vec<f64> {
    // Relative to the value, and each cause to its length, so that bytes and layers are of one size.
    let relative: Vec<Vec<f64>> = equations
        .iter()
        .map(|(causes, value)| causes.iter().map(|c| c / value).collect())
        .collect();
    let lengths: Vec<f64> =
        (0..n).map(|i| relative.iter().map(|row| row[i] * row[i]).sum::<f64>().sqrt()).collect();
    let mut best = (f64::INFINITY, vec![0.0; n]);
    for set in 1..1usize << n {
        let chosen: Vec<usize> =
            (0..n).filter(|i| set >> i & 1 == 1 && lengths[*i] > 0.0).collect();
        let rows: Vec<Vec<f64>> = relative
            .iter()
            .map(|row| chosen.iter().map(|&i| row[i] / lengths[i]).collect())
            .collect();
        let Some(weights) = least_squares(&rows, chosen.len()) else { continue };
        if weights.iter().any(|w| *w < 0.0) {
            continue;
        }
        let error: f64 = rows.iter().map(|row| (dot(row, &weights) - 1.0).powi(2)).sum();
        // A cause that adds nothing stays out.
        if error < best.0 * (1.0 - 1e-9) {
            let mut all = vec![0.0; n];
            chosen.iter().zip(weights).for_each(|(&i, w)| all[i] = w / lengths[i]);
            best = (error, all);
        }
    }
    best.1
}

/// Solves rows · x ≈ 1 by the normal equations, whose matrix has ones on its diagonal. `None` if they
/// don't determine x.
fn least_squares(rows: &[Vec<f64>], n: usize) -> Option<Vec<f64>> {
    const SINGULAR: f64 = 1e-10;
    let mut m: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let with = |j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>();
            (0..n).map(with).chain([rows.iter().map(|row| row[i]).sum()]).collect()
        })
        .collect();
    for i in 0..n {
        // The matrix is positive definite: its pivots are positive without a search.
        if m[i][i] < SINGULAR {
            return None;
        }
        let pivot = m[i].clone();
        for (_, row) in m.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = row[i] / pivot[i];
            row.iter_mut().zip(&pivot).for_each(|(x, p)| *x -= factor * p);
        }
    }
    Some((0..n).map(|i| m[i][n] / m[i][i]).collect())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dim: usize, layers: usize) -> ModelShape {
        let heads = dim / 64;
        let ffn_dim = dim * 3;
        ModelShape { dim, layers, heads, kv_heads: 2, head_dim: 64, ffn_dim, vocab: 65_536 }
    }

    fn plan() -> Plan {
        Plan { contexts: vec![128, 4096], prompt: 512, generate: 64, repeats: 3, threads: 2 }
    }

    /// A machine of which everything is known: 30 GB/s, 20 µs for a layer, and so on; `noise` is a
    /// relative error.
    fn measured(shape: &ModelShape, mut noise: impl FnMut() -> f64) -> Measurement {
        let plan = plan();
        let at = |context: usize, noise: f64| {
            let mean = (context + 32) as f64;
            let products = (shape.layers * shape.q_dim()) as f64 * mean;
            let ms = shape.weight_bytes() as f64 / 30e6
                + 0.02 * shape.layers as f64
                + products * 2e-7
                + 0.1;
            let kv = shape.kv_bytes(context + 64) as f64;
            let row = (shape.dim + shape.q_dim() + shape.ffn_dim) as f64;
            let peak = shape.weight_bytes() as f64 + kv + 3000.0 * row + 6e6;
            let p90_ms = 1.1 * ms * noise;
            AtContext { context, p50_ms: ms * noise, p90_ms, peak_bytes: (peak * noise) as u64 }
        };
        let head = (shape.vocab * shape.dim) as f64;
        let ms = (shape.parameters() as f64 - head) / 150e6 + 0.05;
        Measurement {
            file_bytes: (shape.weight_bytes() as f64 * 1.002 + 2e6) as u64,
            prefill_tps: 1e3 / ms * noise(),
            contexts: plan.contexts.iter().map(|&c| at(c, noise())).collect(),
        }
    }

    fn samples(noise: impl FnMut() -> f64) -> Vec<Sample> {
        let mut noise = noise;
        let shapes =
            [512, 768, 1024, 2048].map(|dim| [12, 24, 36].map(|layers| shape(dim, layers)));
        shapes.into_iter().flatten().map(|s| (s.clone(), measured(&s, &mut noise))).collect()
    }

    #[test]
    fn a_known_machine_is_found_again() {
        let predictor = Predictor::fit(&samples(|| 1.0), &plan()).unwrap();
        for law in &predictor.laws {
            assert!(law.leave_one_out.max < 1e-4, "{law:?}");
            assert!(law.terms.iter().all(|t| t.coefficient >= 0.0), "{law:?}");
        }
        let decode = &predictor.laws[0];
        let coefficient = |i: usize| decode.terms[i].coefficient;
        assert!((coefficient(0) * 30e6 - 1.0).abs() < 1e-3, "{decode:?}");
        assert!((coefficient(1) / 0.02 - 1.0).abs() < 1e-2, "{decode:?}");
        let unseen = shape(1536, 20);
        let (truth, guess) = (measured(&unseen, || 1.0), predictor.predict(&unseen));
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-3, "{truth:?} {guess:?}");
        close(guess.prefill_tps, truth.prefill_tps);
        close(guess.file_bytes as f64, truth.file_bytes as f64);
        for (g, t) in guess.contexts.iter().zip(&truth.contexts) {
            close(g.p50_ms, t.p50_ms);
            close(g.p90_ms, t.p90_ms);
            close(g.peak_bytes as f64, t.peak_bytes as f64);
        }
    }

    #[test]
    fn errors_are_those_of_what_was_left_out() {
        // Alternately 5% more and less: no law can follow that.
        let mut sign = 1.0;
        let noisy = samples(|| {
            sign = -sign;
            1.0 + 0.05 * sign
        });
        let predictor = Predictor::fit(&noisy, &plan()).unwrap();
        let decode = &predictor.laws[0].leave_one_out;
        assert_eq!((decode.n, predictor.laws[4].leave_one_out.n), (24, 12));
        assert!(decode.mean > 0.03 && decode.mean < 0.08, "{decode:?}");
        assert!(decode.max >= decode.mean);
    }

    #[test]
    fn too_few_measurements_predict_nothing() {
        let few = &samples(|| 1.0)[..LEAST - 1];
        assert_eq!(Predictor::fit(few, &plan()), None);
        assert!(Predictor::fit(&samples(|| 1.0)[..LEAST], &plan()).is_some());
    }

    #[test]
    fn weights_are_never_negative_and_the_best_that_are_not() {
        // y = 2a − b has no such law; without b, the best multiple of a is found.
        let equations: Vec<(Vec<f64>, f64)> = (1..6)
            .map(|i| (vec![i as f64, (i % 2) as f64], 2.0 * i as f64 - (i % 2) as f64))
            .collect();
        let weights = non_negative(&equations, 2);
        assert_eq!(weights[1], 0.0);
        let error =
            |w: f64| -> f64 { equations.iter().map(|(c, y)| (w * c[0] / y - 1.0).powi(2)).sum() };
        assert!(error(weights[0]) < error(weights[0] * 1.01));
        assert!(error(weights[0]) < error(weights[0] * 0.99));
        // A cause that never occurs, and two that are the same.
        let twice: Vec<(Vec<f64>, f64)> =
            (1..6).map(|i| (vec![i as f64, i as f64, 0.0], 3.0 * i as f64)).collect();
        let weights = non_negative(&twice, 3);
        assert!((weights[0] + weights[1] - 3.0).abs() < 1e-9 && weights[2] == 0.0, "{weights:?}");
    }
}
