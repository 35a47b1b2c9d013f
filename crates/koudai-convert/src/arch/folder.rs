//! `config.json`'s keys and the tensor names of Hugging Face folders.
//!
//! Follows what Transformers computes for the same folder. Every key is read, known to be harmless,
//! or refused by name. Start with [`model`].

use koudai::{Role, TensorId};
use serde_json::{Map, Value};

use super::*;
use crate::dequant::TensorType;

/// Reads the configuration and maps every tensor. `stored` tells how a tensor is stored, if it is
/// there.
pub fn model(
    config: &Map<String, Value>,
    stored: impl Fn(&str) -> Option<TensorType>,
) -> Result<Model, Error> {
    let family = family(config)?;
    let keys = Keys { config, family };
    keys.refuse_unknown()?;
    let embed_kind = stored("model.embed_tokens.weight");
    let config = keys.hyper(embed_kind)?.config()?;
    let name = |id| tensor_name(family, id);
    let tensors = map_tensors(&config, name, |id| transform(family, id));
    Ok(Model { family, config, tensors })
}

/// What is done to a tensor of a folder.
pub(crate) fn transform(family: Family, id: TensorId) -> Transform {
    match family {
        Family::Gemma3 if is_norm(id.role) => Transform::AddOne,
        _ => Transform::None,
    }
}

/// A tensor's name in Hugging Face folders.
pub fn tensor_name(family: Family, id: TensorId) -> String {
    let stem = match id.role {
        Role::Embed => "model.embed_tokens.weight",
        Role::Head => "lm_head.weight",
        Role::FinalNorm => "model.norm.weight",
        Role::AttnNorm => "input_layernorm.weight",
        Role::AttnQ => "self_attn.q_proj.weight",
        Role::AttnK => "self_attn.k_proj.weight",
        Role::AttnV => "self_attn.v_proj.weight",
        Role::AttnQBias => "self_attn.q_proj.bias",
        Role::AttnKBias => "self_attn.k_proj.bias",
        Role::AttnVBias => "self_attn.v_proj.bias",
        Role::QNorm => "self_attn.q_norm.weight",
        Role::KNorm => "self_attn.k_norm.weight",
        Role::AttnOut => "self_attn.o_proj.weight",
        // What follows attention: in Gemma a norm of its output, elsewhere the next block's norm.
        Role::AttnPostNorm => "post_attention_layernorm.weight",
        Role::FfnNorm if family == Family::Gemma3 => "pre_feedforward_layernorm.weight",
        Role::FfnNorm => "post_attention_layernorm.weight",
        Role::FfnGate => "mlp.gate_proj.weight",
        Role::FfnUp => "mlp.up_proj.weight",
        Role::FfnDown => "mlp.down_proj.weight",
        Role::FfnPostNorm => "post_feedforward_layernorm.weight",
    };
    match id.layer {
        Some(layer) => format!("model.layers.{layer}.{stem}"),
        None => stem.into(),
    }
}

/// Keys that are read below.
const READ_KEYS: [&str; 36] = [
    "_sliding_window_pattern",
    "architectures",
    "attention_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "hidden_size",
    "intermediate_size",
    "is_decoder",
    "is_encoder_decoder",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "pretraining_tp",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_interleaved",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "sliding_window_pattern",
    "tie_word_embeddings",
    "use_bidirectional_attention",
    "use_mrope",
    "use_sliding_window",
    "vocab_size",
];

/// Keys that can't change what is computed: records of training and of the library, and how the
/// library runs or samples.
const HARMLESS_KEYS: [&str; 42] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "language",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "problem_type",
    "repetition_penalty",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "use_mambapy",
    "use_return_dict",
    "do_sample",
    "max_length",
    "min_length",
    "model_max_length",
];

fn family(config: &Map<String, Value>) -> Result<Family, Error> {
    let refuse = |key: &str, value: &Value| -> Result<Family, Error> {
        Err(Error::key(key, format!("is {}, which isn't supported", short(value))))
    };
    let null = Value::Null;
    let model_type = config.get("model_type").unwrap_or(&null);
    let (family, class) = match model_type.as_str() {
        Some("llama") => (Family::Llama, "LlamaForCausalLM"),
        Some("qwen2") => (Family::Qwen2, "Qwen2ForCausalLM"),
        Some("qwen3") => (Family::Qwen3, "Qwen3ForCausalLM"),
        Some("gemma3_text") => (Family::Gemma3, "Gemma3ForCausalLM"),
        Some("gemma3") => {
            let why =
                "holds a model of images; only its text-only form (`gemma3_text`) is supported";
            return Err(Error::key("vision_config", why));
        }
        Some(name) => return Err(Error::Architecture(name.chars().take(64).collect())),
        None => return Err(Error::key("model_type", "is missing")),
    };
    match config.get("architectures") {
        None | Some(Value::Null) => Ok(family),
        Some(Value::Array(list)) if list.iter().all(|v| v.as_str() == Some(class)) => Ok(family),
        Some(other) => refuse("architectures", other),
    }
}

struct Keys<'a> {
    config: &'a Map<String, Value>,
    family: Family,
}

impl Keys<'_> {
    fn hyper(&self, embed_kind: Option<TensorType>) -> Result<Hyper, Error> {
        let gemma = self.family == Family::Gemma3;
        self.refuse_neutral_keys()?;
        let dim = self.size("hidden_size", 1, MAX_DIM)?;
        let n_layers = self.size("num_hidden_layers", 1, MAX_LAYERS)?;
        let n_heads = self.size("num_attention_heads", 1, MAX_HEADS)?;
        let n_kv_heads =
            self.optional_size("num_key_value_heads", 1, MAX_HEADS)?.unwrap_or(n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            let why =
                format!("is {n_kv_heads}, which doesn't divide num_attention_heads {n_heads}");
            return Err(Error::key("num_key_value_heads", why));
        }
        let head_dim = match self.optional_size("head_dim", 2, MAX_HEAD_DIM)? {
            Some(n) => n,
            None if matches!(self.family, Family::Qwen3 | Family::Gemma3) => {
                return Err(Error::key("head_dim", "is missing"));
            }
            None if dim.is_multiple_of(n_heads) => dim / n_heads,
            None => {
                let why = format!("is {n_heads}, which doesn't divide hidden_size {dim}");
                return Err(Error::key("num_attention_heads", why));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(Error::key("head_dim", format!("is {head_dim}, an odd number")));
        }
        let ffn_dim = self.size("intermediate_size", 1, MAX_FFN_DIM)?;
        let windows = self.windows(n_layers)?;
        let (rope, local_rope) = self.ropes(head_dim)?;
        let attn_scale = match self.float("query_pre_attn_scalar")? {
            Some(scalar) if gemma => {
                1.0 / positive("query_pre_attn_scalar", scalar, 1e6)?.sqrt() as f32
            }
            Some(_) => return Err(Error::key("query_pre_attn_scalar", "isn't known here")),
            None if gemma => return Err(Error::key("query_pre_attn_scalar", "is missing")),
            None => 1.0 / (head_dim as f32).sqrt(),
        };
        let attention_bias = self.bool("attention_bias")?.unwrap_or(false);
        let qkv_bias = self.family == Family::Qwen2 || attention_bias;
        let layer = |window| HyperLayer { n_heads, n_kv_heads, ffn_dim, window, qkv_bias };
        Ok(Hyper {
            family: self.family,
            dim,
            vocab_size: self.size("vocab_size", 1, 1 << 22)?,
            context_length: self.size("max_position_embeddings", 1, MAX_CONTEXT)?,
            norm_eps: positive("rms_norm_eps", self.float("rms_norm_eps")?.unwrap_or(1e-6), 1.0)?,
            head_dim,
            embed_scale: if gemma { embed_scale(dim, embed_kind) } else { 1.0 },
            attn_scale,
            tied_head: self.bool("tie_word_embeddings")?.unwrap_or(gemma),
            rope,
            local_rope,
            layers: windows.into_iter().map(layer).collect(),
        })
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|v| !v.is_null())
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.get(key)
            .map(|v| v.as_bool().ok_or_else(|| Error::key(key, format!("is {}", short(v)))))
            .transpose()
    }

    fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        self.get(key).map(|v| number(key, v)).transpose()
    }

    fn optional_size(&self, key: &str, low: usize, high: usize) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let n = value.as_u64().ok_or_else(|| {
            Error::key(key, format!("is {}, not an integer in {low}..={high}", short(value)))
        })?;
        in_range(key, n, low, high).map(Some)
    }

    fn size(&self, key: &str, low: usize, high: usize) -> Result<usize, Error> {
        self.optional_size(key, low, high)?.ok_or_else(|| Error::key(key, "is missing"))
    }

    fn windows(&self, n_layers: usize) -> Result<Vec<Option<usize>>, Error> {
        let window = self.optional_size("sliding_window", 1, MAX_CONTEXT)?;
        let none = vec![None; n_layers];
        let default_local: Vec<bool> = match self.family {
            Family::Llama => {
                return match window {
                    Some(w) => {
                        Err(Error::key("sliding_window", format!("is {w}, which isn't supported")))
                    }
                    None => Ok(none),
                };
            }
            Family::Qwen2 | Family::Qwen3 => {
                if !self.bool("use_sliding_window")?.unwrap_or(false) {
                    return match self.layer_types(n_layers)? {
                        Some(local) if local.contains(&true) => Err(Error::key(
                            "layer_types",
                            "asks for windows, use_sliding_window for none",
                        )),
                        _ => Ok(none),
                    };
                }
                let first = self.size("max_window_layers", 0, MAX_LAYERS)?;
                (0..n_layers).map(|i| i >= first).collect()
            }
            Family::Gemma3 => {
                let mut period = 6;
                for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
                    period = self.optional_size(key, 1, MAX_LAYERS)?.unwrap_or(period);
                }
                (1..=n_layers).map(|i| i % period != 0).collect()
            }
        };
        let local = self.layer_types(n_layers)?.unwrap_or(default_local);
        if local.contains(&true) && window.is_none() {
            return Err(Error::key("sliding_window", "is missing"));
        }
        Ok(local.into_iter().map(|local| window.filter(|_| local)).collect())
    }

    fn layer_types(&self, n_layers: usize) -> Result<Option<Vec<bool>>, Error> {
        const KEY: &str = "layer_types";
        let Some(value) = self.get(KEY) else { return Ok(None) };
        let types = value.as_array().filter(|a| a.len() == n_layers);
        let types = types.ok_or_else(|| {
            Error::key(KEY, format!("is not a list of {n_layers} types, one per layer"))
        })?;
        let local = types.iter().map(|t| match t.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(Error::key(KEY, format!("has {}, which isn't supported", short(t)))),
        });
        local.collect::<Result<_, _>>().map(Some)
    }

    fn ropes(&self, head_dim: usize) -> Result<(Vec<f64>, Option<Vec<f64>>), Error> {
        let gemma = self.family == Family::Gemma3;
        let default_theta = if gemma { 1e6 } else { 1e4 };
        let theta = self.float("rope_theta")?.unwrap_or(default_theta);
        let local_theta = self.float("rope_local_base_freq")?;
        if local_theta.is_some() && !gemma {
            return Err(Error::key("rope_local_base_freq", "isn't known for this architecture"));
        }
        let local_theta = local_theta.unwrap_or(1e4);
        const OLD: &str = "rope_scaling";
        const NEW: &str = "rope_parameters";
        let Some(new) = self.get(NEW) else {
            let rope = rope(OLD, self.get(OLD), theta, head_dim)?;
            let local = gemma.then(|| rope_local("rope_local_base_freq", local_theta, head_dim));
            return Ok((rope, local.transpose()?));
        };
        if self.get(OLD).is_some() {
            return Err(Error::key(OLD, "stands beside rope_parameters"));
        }
        if !gemma {
            return Ok((rope(NEW, Some(new), theta, head_dim)?, None));
        }
        let parts = new.as_object().ok_or_else(|| Error::key(NEW, "is no object"))?;
        if let Some(key) =
            parts.keys().find(|k| !matches!(k.as_str(), "full_attention" | "sliding_attention"))
        {
            return Err(Error::key(format!("{NEW}.{key}"), "isn't known to this converter"));
        }
        let part =
            |name: &str, theta| rope(&format!("{NEW}.{name}"), parts.get(name), theta, head_dim);
        Ok((part("full_attention", theta)?, Some(part("sliding_attention", local_theta)?)))
    }

    /// Keys that are fine as long as they ask for nothing.
    fn refuse_neutral_keys(&self) -> Result<(), Error> {
        for (key, fine) in [
            ("mlp_bias", Value::from(false)),
            ("rope_interleaved", false.into()),
            ("use_bidirectional_attention", false.into()),
            ("use_mrope", false.into()),
            ("is_encoder_decoder", false.into()),
            ("is_decoder", false.into()),
            ("pretraining_tp", 1.into()),
            ("partial_rotary_factor", 1.0.into()),
        ] {
            if let Some(value) = self.get(key)
                && *value != fine
                && !(fine.is_number() && value.as_f64() == fine.as_f64())
            {
                return Err(Error::key(key, format!("is {}, which isn't supported", short(value))));
            }
        }
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(value) = self.get(key) {
                return Err(Error::key(key, format!("is {}, which isn't supported", short(value))));
            }
        }
        let act = if self.family == Family::Gemma3 { "gelu_pytorch_tanh" } else { "silu" };
        for key in ["hidden_act", "hidden_activation"] {
            if let Some(value) = self.get(key)
                && value.as_str() != Some(act)
            {
                let why = format!("is {}; only \"{act}\" is supported here", short(value));
                return Err(Error::key(key, why));
            }
        }
        Ok(())
    }

    fn refuse_unknown(&self) -> Result<(), Error> {
        for (key, value) in self.config {
            let known = READ_KEYS.contains(&key.as_str()) || HARMLESS_KEYS.contains(&key.as_str());
            // Null is how the library writes what isn't set.
            if !known && !value.is_null() {
                return Err(Error::key(key, "isn't known to this converter"));
            }
        }
        Ok(())
    }
}

/// √dim as Transformers multiplies it in: rounded to the type of the embedding.
pub(crate) fn embed_scale(dim: usize, embed_kind: Option<TensorType>) -> f32 {
    use koudai_kernels::num::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
    let scale = (dim as f32).sqrt();
    match embed_kind {
        Some(TensorType::F32) => scale,
        Some(TensorType::F16) => f16_to_f32(f32_to_f16(scale)),
        _ => bf16_to_f32(f32_to_bf16(scale)),
    }
}

fn rope_local(key: &str, theta: f64, head_dim: usize) -> Result<Vec<f64>, Error> {
    Ok(rope_table(positive(key, theta, MAX_ROPE_THETA)?, head_dim))
}

/// The frequencies that `rope_scaling` or `rope_parameters` under `key` asks for.
fn rope(
    key: &str,
    value: Option<&Value>,
    default_theta: f64,
    head_dim: usize,
) -> Result<Vec<f64>, Error> {
    let empty = Map::new();
    let object = match value {
        None => &empty,
        Some(v) => v.as_object().ok_or_else(|| Error::key(key, "is no object"))?,
    };
    let at = |name: &str| format!("{key}.{name}");
    let float = |name: &str| match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => number(&at(name), v).map(Some),
    };
    let required = |name: &str| {
        let value = float(name)?.ok_or_else(|| Error::key(at(name), "is missing"))?;
        positive(&at(name), value, 1e9)
    };
    let theta = match float("rope_theta")? {
        Some(theta) => positive(&at("rope_theta"), theta, MAX_ROPE_THETA)?,
        None => positive("rope_theta", default_theta, MAX_ROPE_THETA)?,
    };
    let table = rope_table(theta, head_dim);
    let kind = object.get("rope_type").or(object.get("type"));
    let kind = match kind {
        None => "default",
        Some(v) => v.as_str().ok_or_else(|| Error::key(at("rope_type"), "is no string"))?,
    };
    let allowed: &[&str] = match kind {
        "default" => &[],
        "linear" => &["factor"],
        "llama3" => {
            &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
        }
        other => {
            return Err(Error::key(
                at("rope_type"),
                format!("is `{other}`, which isn't supported"),
            ));
        }
    };
    let common = ["rope_type", "type", "rope_theta"];
    for (name, value) in object {
        let known = common.contains(&name.as_str()) || allowed.contains(&name.as_str());
        let neutral = name == "partial_rotary_factor" && value.as_f64() == Some(1.0);
        if !known && !neutral && !value.is_null() {
            return Err(Error::key(at(name), format!("isn't known for `{kind}`")));
        }
    }
    Ok(match kind {
        "linear" => {
            let factor = required("factor")?;
            table.into_iter().map(|f| f / factor).collect()
        }
        "llama3" => {
            let scaling = Llama3 {
                factor: required("factor")?,
                low: required("low_freq_factor")?,
                high: required("high_freq_factor")?,
                context: required("original_max_position_embeddings")?,
            };
            if scaling.high <= scaling.low {
                return Err(Error::key(at("high_freq_factor"), "is not above low_freq_factor"));
            }
            table.into_iter().map(|f| scaling.apply(f)).collect()
        }
        _ => table,
    })
}

/// Llama 3's scaling: slow frequencies are divided, fast ones stay, those between are blended.
pub(crate) struct Llama3 {
    pub(crate) factor: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) context: f64,
}

impl Llama3 {
    pub(crate) fn apply(&self, frequency: f64) -> f64 {
        // Turns that the frequency makes over the original context.
        let turns = self.context * frequency / std::f64::consts::TAU;
        if turns < self.low {
            frequency / self.factor
        } else if turns > self.high {
            frequency
        } else {
            let fast = (turns - self.low) / (self.high - self.low);
            (1.0 - fast) * frequency / self.factor + fast * frequency
        }
    }
}

fn number(key: &str, value: &Value) -> Result<f64, Error> {
    value.as_f64().ok_or_else(|| Error::key(key, format!("is {}, not a number", short(value))))
}

/// A value as JSON, cut to what fits in a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
