//! What a stage is: the gradient of a step, and what held-out data says about a model.
//!
//! A stage keeps no place in its data and draws nothing that isn't decided by the recipe's seed and a
//! step's number. So a run resumes exactly from weights, optimizer and a step. A new stage is a file
//! here, a name in [`StageKind`] and a line in [`open`].

mod next_token;

use anyhow::Result;
use koudai_convert::FloatModel;

use crate::model::{Decoder, Weights};
use crate::recipe::{Recipe, StageKind};

/// What a run trains for.
pub trait Stage {
    /// Adds the gradient of a step to the parameters of `weights`.
    fn gradient(&mut self, decoder: &Decoder, weights: &dyn Weights, step: u64) -> Result<Step>;

    /// The loss on held-out data; none if there is no such data.
    fn evaluate(&mut self, decoder: &Decoder, weights: &dyn Weights) -> Result<Option<Evaluation>>;

    /// What the user should know about the data, one line each.
    fn notes(&self) -> Vec<String>;
}

/// What the gradient of a step was made of.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Mean loss of targets, in nats.
    pub loss: f64,
    /// Tokens that went through the model, padding included.
    pub tokens: u64,
    /// Tokens with a loss.
    pub targets: u64,
}

/// What held-out data says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss of targets, in nats.
    pub loss: f64,
    /// Loss of all targets in bits, for each byte of their text; comparable across vocabularies.
    pub bits_per_byte: Option<f64>,
}

/// The stage of a recipe, its data ready.
pub fn open(recipe: &Recipe, model: &FloatModel) -> Result<Box<dyn Stage>> {
    Ok(match recipe.stage {
        StageKind::Pretrain => Box::new(next_token::NextToken::texts(recipe, model)?),
        StageKind::Sft => Box::new(next_token::NextToken::conversations(recipe, model)?),
    })
}
