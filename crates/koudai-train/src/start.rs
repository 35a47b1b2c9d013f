//! What a run starts from, and the way back to a model file.
//!
//! Reading and writing formats is `koudai-convert`'s; here numbers become tensors and a recipe a
//! configuration. Start with [`start`].

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use koudai::file::Defaults;
use koudai::{Activation, Config, Flow, LayerConfig, Role, Shape, TensorId};
use koudai_convert::FloatModel;
use koudai_convert::prune::Vocabulary;

use crate::backend::{Device, Kind, Tensor, floats, no_grad, seed, to_floats};
use crate::model::Full;
use crate::recipe::{ModelRecipe, NewModel};

/// Standard deviation of initial matrices.
pub const INIT_STD: f64 = 0.02;

/// The model that a recipe starts from, with its numbers.
pub fn start(recipe: &ModelRecipe, seed: u64) -> Result<FloatModel> {
    let mut model = match (&recipe.from, &recipe.new, &recipe.tokenizer) {
        (Some(from), ..) => FloatModel::read(from, &mut |_| Flow::Continue(()))?,
        (None, Some(new), Some(tokenizer)) => {
            let vocabulary = match tokenizer.extension().is_some_and(|e| e == "json") {
                true => Vocabulary::open_json(tokenizer)?,
                false => Vocabulary::open_model(tokenizer)?,
            };
            let tokenizer = vocabulary.tokenizer();
            let config = config(new, tokenizer.vocab_size())?;
            FloatModel {
                tensors: random(&config, seed),
                config,
                architecture: String::new(),
                tokenizer: tokenizer.spec().to_bytes().map_err(anyhow::Error::msg)?,
                template: None,
                defaults: Defaults::default(),
                meta: Vec::new(),
            }
        }
        _ => anyhow::bail!("the recipe names no model"),
    };
    if let Some(path) = &recipe.template {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        model.template = Some(text);
    }
    if let Some(name) = &recipe.name {
        model.meta.retain(|(key, _)| key != "name");
        model.meta.push(("name".into(), name.clone()));
    }
    Ok(model)
}

/// The configuration of a new model for a tokenizer of `vocab_size` tokens.
fn config(new: &NewModel, vocab_size: usize) -> Result<Config> {
    ensure!(new.n_heads > 0 && new.pad_vocab > 0, "model.new has a count of 0");
    let head_dim = new.head_dim.unwrap_or(new.dim / new.n_heads);
    let rope = (0..head_dim / 2).map(|i| new.rope_theta.powf(-2.0 * i as f64 / head_dim as f64));
    let layer = LayerConfig {
        n_heads: new.n_heads,
        n_kv_heads: new.n_kv_heads.unwrap_or(new.n_heads),
        head_dim,
        ffn_dim: new.ffn_dim,
        window: None,
        rope: 0,
        attn_scale: 1.0 / (head_dim as f32).sqrt(),
        activation: Activation::Silu,
        qkv_bias: new.qkv_bias,
        qk_norm: new.qk_norm,
        post_norms: false,
    };
    let config = Config {
        dim: new.dim,
        vocab_size: vocab_size.next_multiple_of(new.pad_vocab),
        context_length: new.context_length,
        norm_eps: new.norm_eps,
        embed_scale: 1.0,
        tied_head: new.tied_head,
        ropes: vec![rope.collect()],
        layers: vec![layer; new.n_layers],
    };
    config.validate().map_err(|why| anyhow::anyhow!("model.new: {why}"))?;
    Ok(config)
}

/// Initial weights: matrices N(0, 0.02), those that write to the residual stream divided by
/// √(2 · layers), norms 1, biases 0.
pub fn random(config: &Config, seed_of_weights: u64) -> BTreeMap<TensorId, Vec<f32>> {
    seed(seed_of_weights);
    let residual_std = INIT_STD / (2.0 * config.layers.len() as f64).sqrt();
    let values = |(id, shape): (TensorId, Shape)| {
        let values = match (shape, id.role) {
            (Shape::Vector(n), Role::AttnQBias | Role::AttnKBias | Role::AttnVBias) => vec![0.0; n],
            (Shape::Vector(n), _) => vec![1.0; n],
            (Shape::Matrix { rows, cols }, role) => {
                let std = match role {
                    Role::AttnOut | Role::FfnDown => residual_std,
                    _ => INIT_STD,
                };
                let size = [rows as i64, cols as i64];
                to_floats(&(Tensor::randn(size, (Kind::Float, Device::Cpu)) * std))
            }
        };
        (id, values)
    };
    config.tensors().into_iter().map(values).collect()
}

/// All tensors of a model on a device, each a leaf that collects its gradient.
pub fn trainable(model: &FloatModel, device: Device) -> Full {
    let tensor = |(id, shape): (TensorId, Shape)| {
        let size = match shape {
            Shape::Vector(n) => vec![n as i64],
            Shape::Matrix { rows, cols } => vec![rows as i64, cols as i64],
        };
        (id, floats(&model.tensors[&id], &size, device).set_requires_grad(true))
    };
    Full(model.config.tensors().into_iter().map(tensor).collect())
}

/// Copies trained weights back into the model they started from.
pub fn collect(weights: &Full, model: &mut FloatModel) {
    no_grad(|| {
        for (id, value) in &weights.0 {
            model.tensors.insert(*id, to_floats(value));
        }
    });
}
