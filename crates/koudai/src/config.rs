//! A model is data: one flat [`Config`] and one [`LayerConfig`] per layer.
//!
//! Nothing here knows architectures by name; the converter turns names into these fields. Which
//! tensors a configuration needs, and their shapes, is [`Config::tensors`], shared with training.

use crate::codec::{Decoder, Encoder};

/// Everything about a decoder that isn't a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub dim: usize,
    /// Entries in the vocabulary, rows of the embedding.
    pub vocab_size: usize,
    /// Longest context the model was trained for, in tokens.
    pub context_length: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Embedding rows are multiplied by this.
    pub embed_scale: f32,
    /// True if the head is the embedding.
    pub tied_head: bool,
    /// Inverse frequencies of each rotary embedding, `head_dim / 2` values, in radians per position.
    pub ropes: Vec<Vec<f64>>,
    /// The layers, in order.
    pub layers: Vec<LayerConfig>,
}

/// One transformer layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Hidden width of the feed-forward block.
    pub ffn_dim: usize,
    /// Attention sees the last this many positions, itself included; `None` sees all.
    pub window: Option<usize>,
    /// Index into [`Config::ropes`].
    pub rope: usize,
    /// Query-key products are multiplied by this before the softmax.
    pub attn_scale: f32,
    /// Nonlinearity of the feed-forward gate.
    pub activation: Activation,
    /// Query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Queries and keys pass an RMS norm per head, before the rotary embedding.
    pub qk_norm: bool,
    /// Outputs of attention and feed-forward pass an RMS norm before they are added.
    pub post_norms: bool,
}

/// Nonlinearity of a gated feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu = 0,
    /// The tanh approximation of GELU.
    GeluTanh = 1,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // FORMAT.md has their shapes, "What the numbers mean" their use.
pub enum Role {
    Embed = 1,
    Head = 2,
    FinalNorm = 3,
    AttnNorm = 16,
    AttnQ = 17,
    AttnK = 18,
    AttnV = 19,
    AttnQBias = 20,
    AttnKBias = 21,
    AttnVBias = 22,
    QNorm = 23,
    KNorm = 24,
    AttnOut = 25,
    AttnPostNorm = 26,
    FfnNorm = 27,
    FfnGate = 28,
    FfnUp = 29,
    FfnDown = 30,
    FfnPostNorm = 31,
}

impl Role {
    const ALL: [Role; 19] = [
        Role::Embed,
        Role::Head,
        Role::FinalNorm,
        Role::AttnNorm,
        Role::AttnQ,
        Role::AttnK,
        Role::AttnV,
        Role::AttnQBias,
        Role::AttnKBias,
        Role::AttnVBias,
        Role::QNorm,
        Role::KNorm,
        Role::AttnOut,
        Role::AttnPostNorm,
        Role::FfnNorm,
        Role::FfnGate,
        Role::FfnUp,
        Role::FfnDown,
        Role::FfnPostNorm,
    ];

    pub(crate) fn from_code(code: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|r| *r as u8 == code)
    }

    /// Its name in listings, such as `attn_q`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Embed => "embed",
            Role::Head => "head",
            Role::FinalNorm => "final_norm",
            Role::AttnNorm => "attn_norm",
            Role::AttnQ => "attn_q",
            Role::AttnK => "attn_k",
            Role::AttnV => "attn_v",
            Role::AttnQBias => "attn_q_bias",
            Role::AttnKBias => "attn_k_bias",
            Role::AttnVBias => "attn_v_bias",
            Role::QNorm => "q_norm",
            Role::KNorm => "k_norm",
            Role::AttnOut => "attn_out",
            Role::AttnPostNorm => "attn_post_norm",
            Role::FfnNorm => "ffn_norm",
            Role::FfnGate => "ffn_gate",
            Role::FfnUp => "ffn_up",
            Role::FfnDown => "ffn_down",
            Role::FfnPostNorm => "ffn_post_norm",
        }
    }
}

/// Which tensor: its role and, inside a layer, the layer's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// The layer it belongs to; `None` for embedding, head and final norm.
    pub layer: Option<usize>,
    /// What it is for.
    pub role: Role,
}

impl std::fmt::Display for TensorId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.role.name()),
            None => f.write_str(self.role.name()),
        }
    }
}

/// Shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// f32 values: norms and biases.
    Vector(usize),
    /// A weight matrix, outputs by inputs, of any [`koudai_kernels::Kind`].
    Matrix {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
}

/// Largest accepted values: far above any model for a phone, far below what would overflow.
const MAX_DIM: usize = 1 << 16;
const MAX_FFN_DIM: usize = 1 << 18;
const MAX_VOCAB: usize = 1 << 22;
const MAX_LAYERS: usize = 512;
const MAX_HEADS: usize = 512;
pub(crate) const MAX_HEAD_DIM: usize = 1024;
const MAX_CONTEXT: usize = 1 << 24;

impl Config {
    /// Every tensor of the model with its shape, in the order in which a forward pass reads them.
    pub fn tensors(&self) -> Vec<(TensorId, Shape)> {
        let mut all = Vec::with_capacity(3 + self.layers.len() * 16);
        let mut add = |layer, role, shape| all.push((TensorId { layer, role }, shape));
        let matrix = |rows, cols| Shape::Matrix { rows, cols };
        if !self.tied_head {
            add(None, Role::Embed, matrix(self.vocab_size, self.dim));
        }
        for (i, l) in self.layers.iter().enumerate() {
            let at = Some(i);
            let (q_dim, kv_dim) = (l.n_heads * l.head_dim, l.n_kv_heads * l.head_dim);
            add(at, Role::AttnNorm, Shape::Vector(self.dim));
            add(at, Role::AttnQ, matrix(q_dim, self.dim));
            add(at, Role::AttnK, matrix(kv_dim, self.dim));
            add(at, Role::AttnV, matrix(kv_dim, self.dim));
            if l.qkv_bias {
                add(at, Role::AttnQBias, Shape::Vector(q_dim));
                add(at, Role::AttnKBias, Shape::Vector(kv_dim));
                add(at, Role::AttnVBias, Shape::Vector(kv_dim));
            }
            if l.qk_norm {
                add(at, Role::QNorm, Shape::Vector(l.head_dim));
                add(at, Role::KNorm, Shape::Vector(l.head_dim));
            }
            add(at, Role::AttnOut, matrix(self.dim, q_dim));
            if l.post_norms {
                add(at, Role::AttnPostNorm, Shape::Vector(self.dim));
            }
            add(at, Role::FfnNorm, Shape::Vector(self.dim));
            add(at, Role::FfnGate, matrix(l.ffn_dim, self.dim));
            add(at, Role::FfnUp, matrix(l.ffn_dim, self.dim));
            add(at, Role::FfnDown, matrix(self.dim, l.ffn_dim));
            if l.post_norms {
                add(at, Role::FfnPostNorm, Shape::Vector(self.dim));
            }
        }
        add(None, Role::FinalNorm, Shape::Vector(self.dim));
        if self.tied_head {
            add(None, Role::Embed, matrix(self.vocab_size, self.dim));
        } else {
            add(None, Role::Head, matrix(self.vocab_size, self.dim));
        }
        all
    }

    /// Weights in all tensors.
    pub fn n_parameters(&self) -> u64 {
        self.tensors()
            .iter()
            .map(|(_, shape)| match *shape {
                Shape::Vector(n) => n as u64,
                Shape::Matrix { rows, cols } => rows as u64 * cols as u64,
            })
            .sum()
    }

    /// Values in all norms and biases.
    pub(crate) fn n_vector_values(&self) -> usize {
        let size = |shape: &Shape| if let Shape::Vector(n) = shape { *n } else { 0 };
        self.tensors().iter().map(|(_, shape)| size(shape)).sum()
    }

    /// Checks ranges and that parts fit together; `Err` names the field and its value.
    pub fn validate(&self) -> Result<(), String> {
        range("dim", self.dim, 1, MAX_DIM)?;
        range("vocab_size", self.vocab_size, 1, MAX_VOCAB)?;
        range("context_length", self.context_length, 1, MAX_CONTEXT)?;
        range("layers", self.layers.len(), 1, MAX_LAYERS)?;
        range("ropes", self.ropes.len(), 1, 16)?;
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0 && self.norm_eps <= 1.0) {
            return Err(format!("norm_eps is {}, not in (0, 1]", self.norm_eps));
        }
        if !(self.embed_scale.is_finite() && self.embed_scale > 0.0) {
            return Err(format!("embed_scale is {}", self.embed_scale));
        }
        for (i, rope) in self.ropes.iter().enumerate() {
            if rope.iter().any(|f| !f.is_finite() || *f < 0.0 || *f > 1e3) {
                return Err(format!("ropes.{i} has an impossible frequency"));
            }
        }
        for (i, l) in self.layers.iter().enumerate() {
            l.validate(self).map_err(|e| format!("layers.{i}: {e}"))?;
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u32(1); // version of this section
        for n in [self.dim, self.vocab_size, self.context_length] {
            e.u32(n as u32);
        }
        e.f32(self.norm_eps);
        e.f32(self.embed_scale);
        e.u8(self.tied_head as u8);
        e.u32(self.ropes.len() as u32);
        for rope in &self.ropes {
            e.u32(rope.len() as u32);
            rope.iter().for_each(|f| e.f64(*f));
        }
        e.u32(self.layers.len() as u32);
        for l in &self.layers {
            for n in [l.n_heads, l.n_kv_heads, l.head_dim, l.ffn_dim, l.window.unwrap_or(0)] {
                e.u32(n as u32);
            }
            e.u8(l.rope as u8);
            e.f32(l.attn_scale);
            e.u8(l.activation as u8);
            e.u8(l.qkv_bias as u8 | (l.qk_norm as u8) << 1 | (l.post_norms as u8) << 2);
        }
        e.0
    }

    /// Reads and validates; `Err` is a phrase for the reader's error.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Config, String> {
        let config = Config::parse(bytes).ok_or("it is cut short or malformed")?;
        config.validate()?;
        Ok(config)
    }

    fn parse(bytes: &[u8]) -> Option<Config> {
        let mut d = Decoder(bytes);
        if d.u32()? != 1 {
            return None;
        }
        let (dim, vocab_size, context_length) =
            (d.u32()? as usize, d.u32()? as usize, d.u32()? as usize);
        let (norm_eps, embed_scale) = (d.f32()?, d.f32()?);
        let tied_head = flag(d.u8()?)?;
        let mut ropes = Vec::new();
        for _ in 0..d.count(4)? {
            let n = d.count(8)?;
            ropes.push((0..n).map(|_| d.f64()).collect::<Option<Vec<f64>>>()?);
        }
        let mut layers = Vec::new();
        for _ in 0..d.count(27)? {
            let (n_heads, n_kv_heads) = (d.u32()? as usize, d.u32()? as usize);
            let (head_dim, ffn_dim) = (d.u32()? as usize, d.u32()? as usize);
            let window = Some(d.u32()? as usize).filter(|w| *w > 0);
            let (rope, attn_scale) = (d.u8()? as usize, d.f32()?);
            let activation = match d.u8()? {
                0 => Activation::Silu,
                1 => Activation::GeluTanh,
                _ => return None,
            };
            let flags = d.u8()?;
            if flags > 7 {
                return None;
            }
            layers.push(LayerConfig {
                n_heads,
                n_kv_heads,
                head_dim,
                ffn_dim,
                window,
                rope,
                attn_scale,
                activation,
                qkv_bias: flags & 1 != 0,
                qk_norm: flags & 2 != 0,
                post_norms: flags & 4 != 0,
            });
        }
        d.end()?;
        Some(Config {
            dim,
            vocab_size,
            context_length,
            norm_eps,
            embed_scale,
            tied_head,
            ropes,
            layers,
        })
    }
}

impl LayerConfig {
    fn validate(&self, config: &Config) -> Result<(), String> {
        range("n_heads", self.n_heads, 1, MAX_HEADS)?;
        range("n_kv_heads", self.n_kv_heads, 1, self.n_heads)?;
        range("head_dim", self.head_dim, 2, MAX_HEAD_DIM)?;
        range("ffn_dim", self.ffn_dim, 1, MAX_FFN_DIM)?;
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(format!(
                "n_heads is {}, not a multiple of n_kv_heads {}",
                self.n_heads, self.n_kv_heads
            ));
        }
        if self.window.is_some_and(|w| w == 0 || w > MAX_CONTEXT) {
            return Err(format!("window is {}", self.window.unwrap_or(0)));
        }
        match config.ropes.get(self.rope) {
            Some(rope) if rope.len() * 2 == self.head_dim => {}
            Some(rope) => {
                return Err(format!(
                    "head_dim is {}, but rope {} has {} frequencies",
                    self.head_dim,
                    self.rope,
                    rope.len()
                ));
            }
            None => return Err(format!("rope is {}, there are {}", self.rope, config.ropes.len())),
        }
        if !(self.attn_scale.is_finite() && self.attn_scale > 0.0) {
            return Err(format!("attn_scale is {}", self.attn_scale));
        }
        Ok(())
    }
}

fn flag(byte: u8) -> Option<bool> {
    (byte < 2).then_some(byte == 1)
}

fn range(name: &str, value: usize, low: usize, high: usize) -> Result<(), String> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(format!("{name} is {value}, not in {low}..={high}"))
}
