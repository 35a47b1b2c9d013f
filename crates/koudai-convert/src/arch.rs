//! From the names and keys of other formats to [`Config`] and its tensors.
//!
//! The only place that knows architectures by name. [`gguf`] and [`folder`] each read their format's
//! keys into `Hyper`; `Hyper::config` makes the configuration of both, so that the two can't
//! drift apart; `describe` goes the other way. What isn't understood is refused by name: a model that
//! runs is a model whose every key was read. Weights are not looked at here.

pub(crate) mod describe;
pub mod folder;
pub mod gguf;

use koudai::{Activation, Config, LayerConfig, Role, Shape, TensorId};

use crate::error::Error;

/// A family of architectures that differ only in values of [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

impl Family {
    pub(crate) const NAMES: &str = "llama, qwen2, qwen3, gemma3";

    /// The family that GGUF calls `name`.
    pub fn from_name(name: &str) -> Option<Family> {
        Some(match name {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            "gemma3" => Family::Gemma3,
            _ => return None,
        })
    }

    /// What GGUF calls it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 => "gemma3",
        }
    }
}

/// A model's configuration and where its tensors come from.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its family.
    pub family: Family,
    /// Its configuration, valid.
    pub config: Config,
    /// One entry per tensor of the configuration, in its order.
    pub tensors: Vec<Mapped>,
}

/// Where a tensor comes from and what is done to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapped {
    /// Which tensor.
    pub id: TensorId,
    /// Its shape.
    pub shape: Shape,
    /// Its name in the source.
    pub source: String,
    /// What is done to it besides quantization.
    pub transform: Transform,
}

/// What is done to a tensor besides quantization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// Nothing.
    None,
    /// Rows of each head are moved from pairs (0, 1), (2, 3)… to halves (0, n), (1, n + 1)…: GGUF's
    /// Llama files store queries and keys for a rotary embedding of neighbours.
    UnpairRows {
        /// Rows of one head.
        head_dim: usize,
    },
    /// 1 is added to every value: Gemma's norms are stored around 0.
    AddOne,
}

impl Transform {
    /// The result's row for a row of the source: the inverse of [`Transform::source_row`].
    pub fn result_row(self, row: usize) -> usize {
        match self {
            Transform::None | Transform::AddOne => row,
            Transform::UnpairRows { head_dim } => {
                let (head, r) = (row / head_dim, row % head_dim);
                head * head_dim + r % 2 * (head_dim / 2) + r / 2
            }
        }
    }

    /// The source's row for a row of the result.
    pub fn source_row(self, row: usize) -> usize {
        match self {
            Transform::None | Transform::AddOne => row,
            Transform::UnpairRows { head_dim } => {
                let (head, r) = (row / head_dim, row % head_dim);
                let (half, pair) = (r / (head_dim / 2), r % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
        }
    }
}

/// What both formats' keys come down to.
#[derive(Clone, Debug)]
struct Hyper {
    family: Family,
    dim: usize,
    vocab_size: usize,
    context_length: usize,
    norm_eps: f64,
    head_dim: usize,
    embed_scale: f32,
    attn_scale: f32,
    tied_head: bool,
    /// Frequencies of layers that see everything, and of all layers where there is only one table.
    rope: Vec<f64>,
    /// Frequencies of layers with a window, where they differ.
    local_rope: Option<Vec<f64>>,
    layers: Vec<HyperLayer>,
}

#[derive(Clone, Debug)]
struct HyperLayer {
    n_heads: usize,
    n_kv_heads: usize,
    ffn_dim: usize,
    window: Option<usize>,
    qkv_bias: bool,
}

impl Hyper {
    fn config(&self) -> Result<Config, Error> {
        let gemma = self.family == Family::Gemma3;
        let layers = self.layers.iter().map(|l| LayerConfig {
            n_heads: l.n_heads,
            n_kv_heads: l.n_kv_heads,
            head_dim: self.head_dim,
            ffn_dim: l.ffn_dim,
            window: l.window,
            rope: (l.window.is_some() && self.local_rope.is_some()) as usize,
            attn_scale: self.attn_scale,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            qkv_bias: l.qkv_bias,
            qk_norm: matches!(self.family, Family::Qwen3 | Family::Gemma3),
            post_norms: gemma,
        });
        let config = Config {
            dim: self.dim,
            vocab_size: self.vocab_size,
            context_length: self.context_length,
            norm_eps: self.norm_eps as f32,
            embed_scale: self.embed_scale,
            tied_head: self.tied_head,
            ropes: [Some(self.rope.clone()), self.local_rope.clone()]
                .into_iter()
                .flatten()
                .collect(),
            layers: layers.collect(),
        };
        config
            .validate()
            .map_err(|why| Error::Input(format!("the configuration is invalid: {why}")))?;
        Ok(config)
    }
}

/// Inverse frequencies θ^(−2i/head_dim), i < head_dim/2.
fn rope_table(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-(2.0 * i as f64) / head_dim as f64)).collect()
}

/// A number the source gives for `key`, refused unless it lies in `low..=high`.
fn in_range(key: &str, value: u64, low: usize, high: usize) -> Result<usize, Error> {
    match usize::try_from(value) {
        Ok(v) if (low..=high).contains(&v) => Ok(v),
        _ => Err(Error::key(key, format!("is {value}, not in {low}..={high}"))),
    }
}

fn positive(key: &str, value: f64, high: f64) -> Result<f64, Error> {
    // Checked as f32 too: that is what the engine computes with.
    if value.is_finite() && (value as f32).is_normal() && value > 0.0 && value <= high {
        return Ok(value);
    }
    Err(Error::key(key, format!("is {value}, not in (0, {high}]")))
}

const MAX_LAYERS: usize = 512;
const MAX_DIM: usize = 1 << 16;
const MAX_FFN_DIM: usize = 1 << 18;
const MAX_HEADS: usize = 512;
const MAX_HEAD_DIM: usize = 1024;
const MAX_CONTEXT: usize = 1 << 24;
const MAX_ROPE_THETA: f64 = 1e12;

/// The tensors of `config` under the names that `name` gives them.
fn map_tensors(
    config: &Config,
    name: impl Fn(TensorId) -> String,
    transform: impl Fn(TensorId) -> Transform,
) -> Vec<Mapped> {
    let entry = |(id, shape)| Mapped { id, shape, source: name(id), transform: transform(id) };
    config.tensors().into_iter().map(entry).collect()
}

/// True for the RMS norms of the model.
pub(crate) fn is_norm(role: Role) -> bool {
    matches!(
        role,
        Role::FinalNorm
            | Role::AttnNorm
            | Role::QNorm
            | Role::KNorm
            | Role::AttnPostNorm
            | Role::FfnNorm
            | Role::FfnPostNorm
    )
}
