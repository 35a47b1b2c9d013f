//! The decoder that trains: the engine's [`Config`] as differentiable operations.
//!
//! It shares with the engine what a model is (`Config`, the tensors it needs), not the code of a
//! forward pass: `tests/it/parity.rs` ties the two together. It knows no data, no loss and no
//! optimizer, and reads weights through [`Weights`], so that adapters and fake quantization can stand
//! between what is stored and what is used. Start with [`Decoder::hidden`] and [`Decoder::gradient`].

use std::collections::BTreeMap;

use koudai::{Activation, Config, LayerConfig, Role, TensorId};

use crate::backend::{Device, Kind, Tensor, backward_from, integers, leaf, no_grad};

/// Where the forward pass gets its weights.
pub trait Weights {
    /// A tensor as it is used: a matrix `(outputs, inputs)` or a vector, f32.
    fn get(&self, id: TensorId) -> Tensor;

    /// x · wᵀ + bias in the arithmetic of `compute`, with `x` `(…, inputs)`.
    fn linear(&self, x: &Tensor, id: TensorId, bias: Option<Tensor>, compute: Kind) -> Tensor {
        let bias = bias.map(|b| b.to_kind(compute));
        x.to_kind(compute).linear(&self.get(id).to_kind(compute), bias)
    }

    /// What is trained.
    fn parameters(&self) -> Vec<Parameter>;
}

/// A tensor that is trained.
#[derive(Debug)]
pub struct Parameter {
    /// Its name in checkpoints.
    pub name: String,
    /// Its values, which an optimizer changes in place.
    pub value: Tensor,
    /// How optimizers treat it.
    pub class: Class,
}

/// How optimizers treat a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A matrix between hidden states.
    Matrix,
    /// Embedding or head: a row for each token.
    Embedding,
    /// A norm or bias, which doesn't decay.
    Vector,
}

impl Class {
    /// How a tensor of a model is treated.
    pub fn of(id: TensorId, value: &Tensor) -> Class {
        match id.role {
            Role::Embed | Role::Head => Class::Embedding,
            _ if value.dim() == 1 => Class::Vector,
            _ => Class::Matrix,
        }
    }
}

/// Every tensor of a model, all of them trained.
#[derive(Debug)]
pub struct Full(pub BTreeMap<TensorId, Tensor>);

impl Weights for Full {
    fn get(&self, id: TensorId) -> Tensor {
        self.0[&id].shallow_clone()
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |(id, value): (&TensorId, &Tensor)| Parameter {
            name: id.to_string(),
            value: value.shallow_clone(),
            class: Class::of(*id, value),
        };
        self.0.iter().map(parameter).collect()
    }
}

/// Tokens of a micro-batch, `(rows, length)`.
#[derive(Debug)]
pub struct Inputs {
    tokens: Tensor,
    /// From 0 in each document.
    positions: Tensor,
    /// Numbers of documents within a row; none if each row is one.
    documents: Option<Tensor>,
}

impl Inputs {
    /// `rows` of equal length, each a list of documents; a token sees its own document only.
    ///
    /// `tokens` holds all rows one after the other, `lengths` the lengths of each row's documents, which
    /// add up to that of a row.
    pub fn packed(tokens: &[i64], lengths: &[Vec<usize>], device: Device) -> Inputs {
        let shape = [lengths.len() as i64, (tokens.len() / lengths.len()) as i64];
        let (mut positions, mut documents) = (Vec::new(), Vec::new());
        for row in lengths {
            for (document, &length) in row.iter().enumerate() {
                positions.extend(0..length as i64);
                documents.resize(documents.len() + length, document as i64);
            }
        }
        let packed = lengths.iter().any(|row| row.len() > 1);
        Inputs {
            tokens: integers(tokens, &shape, device),
            positions: integers(&positions, &shape, device),
            documents: packed.then(|| integers(&documents, &shape, device)),
        }
    }

    /// One sequence.
    pub fn sequence(tokens: &[i64], device: Device) -> Inputs {
        Inputs::packed(tokens, &[vec![tokens.len()]], device)
    }

    /// Rows and length.
    pub fn shape(&self) -> (i64, i64) {
        (self.tokens.size()[0], self.tokens.size()[1])
    }
}

/// What all layers of a pass share.
struct Pass {
    /// Cosine and sine of each rotary embedding's angles, `(rows, 1, length, head_dim / 2)`.
    angles: Vec<(Tensor, Tensor)>,
    /// What is added to scores, `(rows, 1, length, length)`, by window; none where a token sees all
    /// before it.
    masks: BTreeMap<Option<usize>, Option<Tensor>>,
}

/// The forward pass of a configuration.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The configuration.
    pub config: Config,
    /// Arithmetic of matrix products and attention: f32 or bf16. All else is f32.
    pub compute: Kind,
    /// What keys and values are rounded to: nothing less than `compute`, or f16 as in the engine's cache.
    pub cache: Kind,
    /// Where it runs.
    pub device: Device,
}

impl Decoder {
    /// A forward pass whose keys and values are what `compute` makes of them.
    pub fn new(config: Config, compute: Kind, device: Device) -> Decoder {
        Decoder { config, compute, cache: compute, device }
    }

    /// Final hidden states, normalized, `(rows, length, dim)`: what the head reads.
    pub fn hidden(&self, weights: &dyn Weights, inputs: &Inputs) -> Tensor {
        let pass = self.pass(inputs);
        let mut x = self.embed(weights, inputs);
        for index in 0..self.config.layers.len() {
            x = self.layer(weights, index, &x, &pass);
        }
        self.norm(weights, &x, at(None, Role::FinalNorm))
    }

    /// Logits of hidden states, f32.
    pub fn logits(&self, weights: &dyn Weights, hidden: &Tensor) -> Tensor {
        let role = if self.config.tied_head { Role::Embed } else { Role::Head };
        weights.linear(hidden, at(None, role), None, self.compute).to_kind(Kind::Float)
    }

    /// Forward and backward. `loss` gets the final hidden states as a leaf and has to leave its gradient
    /// there, by calling `backward` on what it computes from them; gradients of parameters add up in the
    /// parameters.
    ///
    /// With `recompute`, activations inside layers aren't kept but computed again: one layer's memory
    /// at a time for a third more work. The result is the same.
    pub fn gradient<R>(
        &self,
        weights: &dyn Weights,
        inputs: &Inputs,
        recompute: bool,
        loss: impl FnOnce(&Tensor) -> R,
    ) -> R {
        let through_loss = |hidden: &Tensor| {
            let end = leaf(hidden);
            let result = loss(&end);
            backward_from(hidden, &end.grad());
            result
        };
        if !recompute {
            return through_loss(&self.hidden(weights, inputs));
        }
        let pass = self.pass(inputs);
        let mut x = no_grad(|| self.embed(weights, inputs));
        let mut entries = Vec::with_capacity(self.config.layers.len());
        for index in 0..self.config.layers.len() {
            entries.push(x.shallow_clone());
            x = no_grad(|| self.layer(weights, index, &x, &pass));
        }
        let entry = leaf(&x);
        let result = through_loss(&self.norm(weights, &entry, at(None, Role::FinalNorm)));
        let mut gradient = entry.grad();
        for (index, x) in entries.iter().enumerate().rev() {
            let entry = leaf(x);
            backward_from(&self.layer(weights, index, &entry, &pass), &gradient);
            gradient = entry.grad();
        }
        backward_from(&self.embed(weights, inputs), &gradient);
        result
    }

    fn embed(&self, weights: &dyn Weights, inputs: &Inputs) -> Tensor {
        let table = weights.get(at(None, Role::Embed));
        let x = Tensor::embedding(&table, &inputs.tokens, -1, false, false);
        if self.config.embed_scale == 1.0 { x } else { x * f64::from(self.config.embed_scale) }
    }

    /// One transformer layer, `(rows, length, dim)` to the same.
    fn layer(&self, weights: &dyn Weights, index: usize, x: &Tensor, pass: &Pass) -> Tensor {
        let layer = &self.config.layers[index];
        let id = |role| at(Some(index), role);
        let post_norm = |x: Tensor, role| match layer.post_norms {
            true => self.norm(weights, &x, id(role)),
            false => x,
        };
        let linear = |x: &Tensor, role| weights.linear(x, id(role), None, self.compute);

        let normed = self.norm(weights, x, id(Role::AttnNorm));
        let attended = self.attention(weights, index, layer, &normed, pass);
        let out = linear(&attended, Role::AttnOut).to_kind(Kind::Float);
        let x = x + post_norm(out, Role::AttnPostNorm);

        let normed = self.norm(weights, &x, id(Role::FfnNorm)).to_kind(self.compute);
        let gate = match layer.activation {
            Activation::Silu => linear(&normed, Role::FfnGate).silu(),
            Activation::GeluTanh => linear(&normed, Role::FfnGate).gelu("tanh"),
        };
        let gated = gate * linear(&normed, Role::FfnUp);
        let out = linear(&gated, Role::FfnDown).to_kind(Kind::Float);
        x + post_norm(out, Role::FfnPostNorm)
    }

    /// softmax(q · keys) · values of all heads, `(rows, length, n_heads · head_dim)`.
    fn attention(
        &self,
        weights: &dyn Weights,
        index: usize,
        layer: &LayerConfig,
        x: &Tensor,
        pass: &Pass,
    ) -> Tensor {
        let (rows, length, _) = x.size3().unwrap_or_default();
        let id = |role| at(Some(index), role);
        let bias = |role| layer.qkv_bias.then(|| weights.get(id(role)));
        let x = x.to_kind(self.compute);
        // (rows, heads, length, head_dim)
        let project = |role, bias_role, heads: usize| {
            let y = weights.linear(&x, id(role), bias(bias_role), self.compute);
            y.view([rows, length, heads as i64, layer.head_dim as i64]).transpose(1, 2)
        };
        let place = |y: Tensor, role| {
            let y = match layer.qk_norm {
                true => self.norm(weights, &y, id(role)),
                false => y,
            };
            rotate(&y, &pass.angles[layer.rope]).to_kind(self.compute)
        };
        let cached = |y: Tensor| y.to_kind(self.cache).to_kind(self.compute);
        let q = place(project(Role::AttnQ, Role::AttnQBias, layer.n_heads), Role::QNorm);
        let k = cached(place(project(Role::AttnK, Role::AttnKBias, layer.n_kv_heads), Role::KNorm));
        let v = cached(project(Role::AttnV, Role::AttnVBias, layer.n_kv_heads));
        let group = (layer.n_heads / layer.n_kv_heads) as i64;
        let (k, v) = match group {
            1 => (k, v),
            _ => (
                k.repeat_interleave_self_int(group, 1, None),
                v.repeat_interleave_self_int(group, 1, None),
            ),
        };
        let mask = &pass.masks[&layer.window];
        let out = Tensor::scaled_dot_product_attention(
            &q,
            &k,
            &v,
            mask.as_ref(),
            0.0,
            mask.is_none(),
            f64::from(layer.attn_scale),
            false,
        );
        out.transpose(1, 2).reshape([rows, length, -1])
    }

    /// RMS norm over the last dimension, f32.
    fn norm(&self, weights: &dyn Weights, x: &Tensor, id: TensorId) -> Tensor {
        let w = weights.get(id);
        x.to_kind(Kind::Float).rms_norm(w.size(), Some(&w), f64::from(self.config.norm_eps))
    }

    fn pass(&self, inputs: &Inputs) -> Pass {
        // (rows, 1, length, 1)
        let positions = inputs.positions.to_kind(Kind::Double).unsqueeze(1).unsqueeze(-1);
        let angles = |frequencies: &Vec<f64>| {
            let angles = &positions * Tensor::from_slice(frequencies).to_device(self.device);
            (angles.cos().to_kind(Kind::Float), angles.sin().to_kind(Kind::Float))
        };
        let windows = self.config.layers.iter().map(|l| l.window);
        Pass {
            angles: self.config.ropes.iter().map(angles).collect(),
            masks: windows.map(|window| (window, self.mask(inputs, window))).collect(),
        }
    }

    fn mask(&self, inputs: &Inputs, window: Option<usize>) -> Option<Tensor> {
        let (_, length) = inputs.shape();
        let window = window.map(|w| w as i64).filter(|w| *w < length);
        if inputs.documents.is_none() && window.is_none() {
            return None;
        }
        let place = Tensor::arange(length, (Kind::Int64, self.device));
        let distance = place.unsqueeze(1) - place.unsqueeze(0); // (length, length)
        let mut seen = distance.ge(0);
        if let Some(window) = window {
            seen = seen.logical_and(&distance.lt(window));
        }
        if let Some(documents) = &inputs.documents {
            let same = documents.unsqueeze(2).eq_tensor(&documents.unsqueeze(1));
            seen = same.logical_and(&seen).unsqueeze(1);
        }
        let mask = Tensor::zeros(seen.size(), (self.compute, self.device));
        Some(mask.masked_fill(&seen.logical_not(), f64::NEG_INFINITY))
    }
}

fn at(layer: Option<usize>, role: Role) -> TensorId {
    TensorId { layer, role }
}

/// Rotary embedding of halves: (a, b) becomes (a · cos − b · sin, b · cos + a · sin).
fn rotate(x: &Tensor, (cos, sin): &(Tensor, Tensor)) -> Tensor {
    let halves = x.chunk(2, -1);
    let (a, b) = (&halves[0], &halves[1]);
    Tensor::cat(&[a * cos - b * sin, b * cos + a * sin], -1)
}
