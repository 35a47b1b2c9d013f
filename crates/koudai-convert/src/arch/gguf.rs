//! GGUF's metadata keys and tensor names.
//!
//! Follows what llama.cpp does with the same file. Start with [`model`].

use koudai::{Role, TensorId};

use super::*;
use crate::gguf::{Gguf, Value};

/// Reads the configuration and maps every tensor. Refuses keys and tensors it doesn't know.
pub fn model(file: &Gguf<'_>) -> Result<Model, Error> {
    let name = file
        .str("general.architecture")?
        .ok_or_else(|| Error::key("general.architecture", "is missing"))?;
    let family = Family::from_name(name)
        .ok_or_else(|| Error::Architecture(name.chars().take(64).collect()))?;
    let keys = Keys { file, family };
    keys.refuse_unknown()?;
    let config = keys.hyper()?.config()?;
    let tensors = map_tensors(&config, tensor_name, |id| transform(family, &config, id));
    refuse_unknown_tensors(file, &tensors)?;
    Ok(Model { family, config, tensors })
}

/// What is done to a tensor of a GGUF file.
pub(crate) fn transform(family: Family, config: &Config, id: TensorId) -> Transform {
    match (family, id.role) {
        (Family::Llama, Role::AttnQ | Role::AttnK | Role::AttnQBias | Role::AttnKBias) => {
            Transform::UnpairRows { head_dim: config.layers[id.layer.unwrap_or(0)].head_dim }
        }
        _ => Transform::None,
    }
}

/// A tensor's name in GGUF.
pub fn tensor_name(id: TensorId) -> String {
    let stem = match id.role {
        Role::Embed => "token_embd.weight",
        Role::Head => "output.weight",
        Role::FinalNorm => "output_norm.weight",
        Role::AttnNorm => "attn_norm.weight",
        Role::AttnQ => "attn_q.weight",
        Role::AttnK => "attn_k.weight",
        Role::AttnV => "attn_v.weight",
        Role::AttnQBias => "attn_q.bias",
        Role::AttnKBias => "attn_k.bias",
        Role::AttnVBias => "attn_v.bias",
        Role::QNorm => "attn_q_norm.weight",
        Role::KNorm => "attn_k_norm.weight",
        Role::AttnOut => "attn_output.weight",
        Role::AttnPostNorm => "post_attention_norm.weight",
        Role::FfnNorm => "ffn_norm.weight",
        Role::FfnGate => "ffn_gate.weight",
        Role::FfnUp => "ffn_up.weight",
        Role::FfnDown => "ffn_down.weight",
        Role::FfnPostNorm => "post_ffw_norm.weight",
    };
    match id.layer {
        Some(layer) => format!("blk.{layer}.{stem}"),
        None => stem.into(),
    }
}

/// Factors that frequencies are divided by, each by its own.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Keys under the architecture's prefix that are read below.
const KNOWN_KEYS: [&str; 27] = [
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.causal",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_count",
    "expert_used_count",
];

/// Layers of the one Gemma 3 whose attention scale isn't 1/√head_dim. GGUF doesn't store the scale;
/// llama.cpp knows it by this number too.
const GEMMA3_27B_LAYERS: usize = 62;

/// By how much attention is scaled where `attention.scale` doesn't say.
pub(crate) fn default_attn_scale(
    family: Family,
    n_layers: usize,
    dim: usize,
    n_heads: usize,
    head_dim: usize,
) -> f32 {
    let gemma = family == Family::Gemma3;
    match n_layers {
        GEMMA3_27B_LAYERS if gemma => 1.0 / (dim as f32 / n_heads as f32).sqrt(),
        _ => 1.0 / (head_dim as f32).sqrt(),
    }
}

struct Keys<'a, 'b> {
    file: &'a Gguf<'b>,
    family: Family,
}

impl Keys<'_, '_> {
    fn hyper(&self) -> Result<Hyper, Error> {
        let gemma = self.family == Family::Gemma3;
        let n_layers = self.size("block_count", 1, MAX_LAYERS)?;
        let dim = self.size("embedding_length", 1, MAX_DIM)?;
        let heads = self.per_layer("attention.head_count", n_layers, None, MAX_HEADS)?;
        let kv_heads =
            self.per_layer("attention.head_count_kv", n_layers, Some(&heads), MAX_HEADS)?;
        let ffn = self.per_layer("feed_forward_length", n_layers, None, MAX_FFN_DIM)?;
        let head_dim = self.head_dim(dim, heads[0])?;
        for (n, kv) in heads.iter().zip(&kv_heads) {
            if !n.is_multiple_of(*kv) {
                let why = format!("is {kv}, which doesn't divide attention.head_count {n}");
                return Err(Error::key(self.key("attention.head_count_kv"), why));
            }
        }
        let windows = self.windows(n_layers)?;
        let (rope, local_rope) = self.ropes(head_dim)?;
        self.refuse_neutral_keys()?;
        let default_scale = default_attn_scale(self.family, n_layers, dim, heads[0], head_dim);
        let attn_scale = match self.float("attention.scale")? {
            Some(scale) if scale != 0.0 => {
                positive(&self.key("attention.scale"), scale, 1e6)? as f32
            }
            _ => default_scale,
        };
        let vocab_size = self.vocab_size()?;
        let layers = (0..n_layers).map(|i| HyperLayer {
            n_heads: heads[i],
            n_kv_heads: kv_heads[i],
            ffn_dim: ffn[i],
            window: windows[i],
            qkv_bias: match self.family {
                Family::Qwen2 => true,
                Family::Llama => self.file.tensor(&format!("blk.{i}.attn_q.bias")).is_some(),
                Family::Qwen3 | Family::Gemma3 => false,
            },
        });
        Ok(Hyper {
            family: self.family,
            dim,
            vocab_size,
            context_length: self.size("context_length", 1, MAX_CONTEXT)?,
            norm_eps: {
                let key = "attention.layer_norm_rms_epsilon";
                positive(&self.key(key), self.required(self.float(key)?, key)?, 1.0)?
            },
            head_dim,
            // Unrounded, as llama.cpp computes it for the same file.
            embed_scale: if gemma { (dim as f32).sqrt() } else { 1.0 },
            attn_scale,
            tied_head: self.tied_head(),
            rope,
            local_rope,
            layers: layers.collect(),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name())
    }

    fn required<T>(&self, value: Option<T>, name: &str) -> Result<T, Error> {
        value.ok_or_else(|| Error::key(self.key(name), "is missing"))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, Error> {
        Ok(self.file.float(&self.key(name))?)
    }

    fn optional_size(&self, name: &str, low: usize, high: usize) -> Result<Option<usize>, Error> {
        let key = self.key(name);
        self.file.uint(&key)?.map(|v| in_range(&key, v, low, high)).transpose()
    }

    fn size(&self, name: &str, low: usize, high: usize) -> Result<usize, Error> {
        self.required(self.optional_size(name, low, high)?, name)
    }

    /// One number for all layers or an array with one for each.
    fn per_layer(
        &self,
        name: &str,
        n_layers: usize,
        default: Option<&[usize]>,
        high: usize,
    ) -> Result<Vec<usize>, Error> {
        let key = self.key(name);
        let Some(Value::Array(array)) = self.file.get(&key) else {
            return match (self.optional_size(name, 1, high)?, default) {
                (Some(n), _) => Ok(vec![n; n_layers]),
                (None, Some(default)) => Ok(default.to_vec()),
                (None, None) => self.required(None, name),
            };
        };
        let values = array.integers().filter(|v| v.len() == n_layers).ok_or_else(|| {
            Error::key(&key, format!("is not an array of {n_layers} integers, one per layer"))
        })?;
        values.map(|v| in_range(&key, u64::try_from(v).unwrap_or(u64::MAX), 1, high)).collect()
    }

    fn head_dim(&self, dim: usize, n_heads: usize) -> Result<usize, Error> {
        let key_length = self.optional_size("attention.key_length", 2, MAX_HEAD_DIM)?;
        let head_dim = match key_length {
            Some(n) => n,
            None if dim.is_multiple_of(n_heads) => {
                in_range(&self.key("attention.head_count"), (dim / n_heads) as u64, 2, MAX_HEAD_DIM)
                    .map_err(|_| {
                        let why = format!("is {n_heads}, which makes heads of {}", dim / n_heads);
                        Error::key(self.key("attention.head_count"), why)
                    })?
            }
            None => {
                let why = format!("is {n_heads}, which doesn't divide embedding_length {dim}");
                return Err(Error::key(self.key("attention.head_count"), why));
            }
        };
        let source =
            if key_length.is_some() { "attention.key_length" } else { "attention.head_count" };
        if !head_dim.is_multiple_of(2) {
            let why = format!("makes heads of {head_dim}, an odd number");
            return Err(Error::key(self.key(source), why));
        }
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = self.optional_size(name, 0, MAX_DIM)?
                && n != head_dim
            {
                let why = format!("is {n}; only the head's {head_dim} is supported");
                return Err(Error::key(self.key(name), why));
            }
        }
        Ok(head_dim)
    }

    fn windows(&self, n_layers: usize) -> Result<Vec<Option<usize>>, Error> {
        const NAME: &str = "attention.sliding_window";
        const PATTERN: &str = "attention.sliding_window_pattern";
        let window = self.optional_size(NAME, 0, MAX_CONTEXT)?.filter(|w| *w > 0);
        if self.family != Family::Gemma3 {
            return match (window, self.file.get(&self.key(PATTERN))) {
                (Some(w), _) => {
                    Err(Error::key(self.key(NAME), format!("is {w}, which isn't supported")))
                }
                (None, Some(_)) => Err(Error::key(self.key(PATTERN), "isn't supported")),
                (None, None) => Ok(vec![None; n_layers]),
            };
        }
        let key = self.key(PATTERN);
        let local: Vec<bool> = match self.file.get(&key) {
            None => (1..=n_layers).map(|i| i % 6 != 0).collect(),
            Some(Value::Array(array)) if array.len() == n_layers => array
                .iter()
                .map(|v| match v {
                    Value::Bool(b) => Ok(b),
                    _ => Err(Error::key(&key, "is not an array of bools")),
                })
                .collect::<Result<_, _>>()?,
            Some(Value::Array(array)) => {
                let why = format!("has {} items for {n_layers} layers", array.len());
                return Err(Error::key(&key, why));
            }
            Some(_) => {
                let period = self.size(PATTERN, 1, MAX_LAYERS)?;
                (1..=n_layers).map(|i| i % period != 0).collect()
            }
        };
        Ok(local.into_iter().map(|local| window.filter(|_| local)).collect())
    }

    /// The tables of frequencies: of layers that see everything, and of those with a window.
    fn ropes(&self, head_dim: usize) -> Result<(Vec<f64>, Option<Vec<f64>>), Error> {
        let base = |name: &str, default: f64| -> Result<f64, Error> {
            match self.float(name)? {
                Some(theta) => positive(&self.key(name), theta, MAX_ROPE_THETA),
                None => Ok(default),
            }
        };
        let mut rope = rope_table(base("rope.freq_base", 10_000.0)?, head_dim);
        let factor = self.rope_factor()?;
        rope.iter_mut().for_each(|f| *f /= factor);
        if let Some(tensor) = self.file.tensor(ROPE_FACTORS) {
            if self.family != Family::Llama {
                return Err(Error::tensor(ROPE_FACTORS, "isn't known for this architecture"));
            }
            let mut factors = vec![0.0; head_dim / 2];
            let fits = tensor.dims == [head_dim / 2];
            fits.then(|| crate::dequant::read_row(tensor.kind, tensor.data, &mut factors))
                .flatten()
                .ok_or_else(|| {
                    let why = format!(
                        "is {:?} {:?}, not {} floats",
                        tensor.kind,
                        tensor.dims,
                        head_dim / 2
                    );
                    Error::tensor(ROPE_FACTORS, why)
                })?;
            for (frequency, factor) in rope.iter_mut().zip(factors) {
                if !(factor.is_normal() && factor > 0.0) {
                    return Err(Error::tensor(ROPE_FACTORS, format!("has the factor {factor}")));
                }
                *frequency /= factor as f64;
            }
        }
        let local = match self.family {
            // Scaling applies to the global table alone.
            Family::Gemma3 => Some(rope_table(base("rope.freq_base_swa", 10_000.0)?, head_dim)),
            _ => {
                let key = self.key("rope.freq_base_swa");
                if self.file.get(&key).is_some() {
                    return Err(Error::key(key, "isn't supported for this architecture"));
                }
                None
            }
        };
        Ok((rope, local))
    }

    /// By how much positions are divided.
    fn rope_factor(&self) -> Result<f64, Error> {
        let key = self.key("rope.scaling.type");
        let kind = self.file.str(&key)?;
        if !matches!(kind, None | Some("none" | "linear")) {
            let why = format!("is `{}`, which isn't supported", kind.unwrap_or_default());
            return Err(Error::key(key, why));
        }
        let attn_factor = self.float("rope.scaling.attn_factor")?;
        if attn_factor.is_some_and(|f| f != 1.0 && f != 0.0) {
            return Err(Error::key(self.key("rope.scaling.attn_factor"), "isn't supported"));
        }
        for name in ["rope.scaling.factor", "rope.scale_linear"] {
            match self.float(name)? {
                None | Some(0.0) => {}
                Some(factor) => {
                    let factor = positive(&self.key(name), factor, 1e6)?;
                    return Ok(if kind == Some("none") { 1.0 } else { factor });
                }
            }
        }
        Ok(1.0)
    }

    /// Keys that are fine as long as they ask for nothing.
    fn refuse_neutral_keys(&self) -> Result<(), Error> {
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = self.float(name)?
                && cap != 0.0
            {
                return Err(Error::key(self.key(name), format!("is {cap}, which isn't supported")));
            }
        }
        for name in ["expert_count", "expert_used_count"] {
            if let Some(n) = self.file.uint(&self.key(name))?
                && n != 0
            {
                return Err(Error::key(self.key(name), format!("is {n}, which isn't supported")));
            }
        }
        if self.file.bool(&self.key("attention.causal"))? == Some(false) {
            return Err(Error::key(
                self.key("attention.causal"),
                "is false, which isn't supported",
            ));
        }
        Ok(())
    }

    /// Rows of the embedding; the tokenizer's size is checked against it later.
    fn vocab_size(&self) -> Result<usize, Error> {
        let embed = self
            .file
            .tensor("token_embd.weight")
            .ok_or_else(|| Error::tensor("token_embd.weight", "is missing"))?;
        let [_, rows] = embed.dims[..] else {
            return Err(Error::tensor("token_embd.weight", format!("has shape {:?}", embed.dims)));
        };
        if let Some(n) = self.file.uint(&self.key("vocab_size"))?
            && n != rows as u64
        {
            let why = format!("is {n}, but token_embd.weight has {rows} rows");
            return Err(Error::key(self.key("vocab_size"), why));
        }
        Ok(rows)
    }

    /// True without `output.weight`, and where it repeats the embedding byte for byte.
    fn tied_head(&self) -> bool {
        match (self.file.tensor("output.weight"), self.file.tensor("token_embd.weight")) {
            (Some(head), Some(embed)) => {
                (head.kind, &head.dims, head.data) == (embed.kind, &embed.dims, embed.data)
            }
            _ => true,
        }
    }

    fn refuse_unknown(&self) -> Result<(), Error> {
        let prefix = self.key("");
        for (key, _) in self.file.metadata() {
            if let Some(name) = key.strip_prefix(&prefix)
                && !KNOWN_KEYS.contains(&name)
            {
                return Err(Error::key(*key, "isn't known to this converter"));
            }
        }
        Ok(())
    }
}

fn refuse_unknown_tensors(file: &Gguf<'_>, used: &[Mapped]) -> Result<(), Error> {
    let used: std::collections::HashSet<&str> = used.iter().map(|m| m.source.as_str()).collect();
    for tensor in file.tensors() {
        // A head that is the embedding, and factors already applied.
        let consumed = ["output.weight", ROPE_FACTORS].contains(&tensor.name);
        if !used.contains(tensor.name) && !consumed {
            return Err(Error::tensor(tensor.name, "isn't known to this converter"));
        }
    }
    Ok(())
}
