//! Predicting the next token: of texts (`pretrain`), or of an assistant's replies (`sft`).
//!
//! The two differ only in which tokens are targets and whether documents may be cut.

use anyhow::{Result, ensure};
use koudai_convert::FloatModel;

use super::{Evaluation, Stage, Step};
use crate::backend::scalar;
use crate::data::{Batch, Rows, conversations, texts};
use crate::loss::cross_entropy;
use crate::model::{Decoder, Weights};
use crate::recipe::Recipe;

/// Cross-entropy of the next token.
pub(super) struct NextToken {
    train: Rows,
    held_out: Option<Rows>,
    rows: u64,
    accumulate: u64,
    recompute: bool,
    evaluation_rows: usize,
}

impl NextToken {
    /// Every token of texts is a target; texts are cut where a row ends.
    pub(super) fn texts(recipe: &Recipe, model: &FloatModel) -> Result<NextToken> {
        let reader = texts::Texts::of(model)?;
        NextToken::new(recipe, &reader, true)
    }

    /// The assistant's replies are targets; conversations stay whole.
    pub(super) fn conversations(recipe: &Recipe, model: &FloatModel) -> Result<NextToken> {
        let reader = conversations::Conversations::of(model)?;
        NextToken::new(recipe, &reader, false)
    }

    fn new(recipe: &Recipe, reader: &dyn crate::data::Reader, split: bool) -> Result<NextToken> {
        let (train, held_out) = crate::data::open(recipe, reader, split)?;
        let rows = &recipe.train;
        Ok(NextToken {
            train,
            held_out,
            rows: rows.rows as u64,
            accumulate: rows.accumulate as u64,
            recompute: rows.recompute,
            evaluation_rows: recipe.evaluate.rows,
        })
    }
}

impl Stage for NextToken {
    fn gradient(&mut self, decoder: &Decoder, weights: &dyn Weights, step: u64) -> Result<Step> {
        let first = step * self.accumulate;
        let numbers = (first..first + self.accumulate).map(|n| n * self.rows..(n + 1) * self.rows);
        let batches: Vec<Batch> =
            numbers.map(|numbers| self.train.batch(numbers, decoder.device)).collect();
        let targets: usize = batches.iter().map(|batch| batch.n_targets).sum();
        ensure!(targets > 0, "step {step} has no token to predict");
        // Each target counts alike, whichever micro-batch it is in.
        let scale = 1.0 / targets as f64;
        let (mut loss, mut tokens) = (0.0, 0);
        for batch in &batches {
            let (rows, length) = batch.inputs.shape();
            tokens += (rows * length) as u64;
            let sum = decoder.gradient(weights, &batch.inputs, self.recompute, |hidden| {
                cross_entropy(decoder, weights, hidden, &batch.targets, Some(scale))
            });
            loss += scalar(&sum) * scale;
        }
        Ok(Step { loss, tokens, targets: targets as u64 })
    }

    fn evaluate(&mut self, decoder: &Decoder, weights: &dyn Weights) -> Result<Option<Evaluation>> {
        let Some(held_out) = &self.held_out else { return Ok(None) };
        let n = held_out.n_rows().min(self.evaluation_rows);
        let (mut sum, mut targets, mut bytes) = (0.0, 0, 0);
        for first in (0..n).step_by(self.rows as usize) {
            let batch = held_out.in_order(first..n.min(first + self.rows as usize), decoder.device);
            let loss = crate::backend::no_grad(|| {
                let hidden = decoder.hidden(weights, &batch.inputs);
                cross_entropy(decoder, weights, &hidden, &batch.targets, None)
            });
            sum += scalar(&loss);
            targets += batch.n_targets;
            bytes += batch.n_bytes;
        }
        ensure!(targets > 0, "the held-out data has no token to predict");
        let bits_per_byte = (bytes > 0).then(|| sum / std::f64::consts::LN_2 / bytes as f64);
        Ok(Some(Evaluation { loss: sum / targets as f64, bits_per_byte }))
    }

    fn notes(&self) -> Vec<String> {
        let n = self.train.too_long;
        let note = || format!("{n} conversations are longer than train.length and were left out");
        (n > 0).then(note).into_iter().collect()
    }
}
