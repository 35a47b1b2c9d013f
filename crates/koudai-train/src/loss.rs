//! Losses over a vocabulary, without all logits in memory at once.
//!
//! Start with [`cross_entropy`].

use crate::backend::{IndexOp, Kind, Reduction, Tensor, no_grad};
use crate::model::{Decoder, Weights};

/// Logits of some rows take about this much, in f32; their gradient as much again.
const LOGIT_BYTES: i64 = 128 << 20;

/// Where a loss is taken: rows of flattened hidden states, and the token due after each.
#[derive(Debug)]
pub struct Targets {
    /// Indices into `(rows · length)`.
    pub at: Tensor,
    /// Ids.
    pub tokens: Tensor,
}

/// Σ −ln p(target) over `targets`, as a tensor with one value. If `scale` is given, gradients of the sum
/// times `scale` add up in `hidden`, a leaf `(rows, length, dim)`, and in the head.
pub fn cross_entropy(
    decoder: &Decoder,
    weights: &dyn Weights,
    hidden: &Tensor,
    targets: &Targets,
    scale: Option<f64>,
) -> Tensor {
    let mut total = Tensor::zeros([], (Kind::Float, decoder.device));
    for rows in chunks(decoder, targets.at.size()[0]) {
        let (at, tokens) = (targets.at.i(rows.clone()), targets.tokens.i(rows));
        let part = || {
            let hidden = hidden.flatten(0, 1).index_select(0, &at);
            let logits = decoder.logits(weights, &hidden);
            logits.cross_entropy_loss::<Tensor>(&tokens, None, Reduction::Sum, -100, 0.0)
        };
        let sum = match scale {
            Some(scale) => {
                let sum = part();
                (&sum * scale).backward();
                sum.detach()
            }
            None => no_grad(part),
        };
        total += sum;
    }
    total
}

/// Ranges of rows whose logits fit into memory together.
pub fn chunks(decoder: &Decoder, n: i64) -> impl Iterator<Item = std::ops::Range<i64>> {
    let size = (LOGIT_BYTES / 4 / decoder.config.vocab_size as i64).max(1);
    (0..n).step_by(size as usize).map(move |start| start..(start + size).min(n))
}
