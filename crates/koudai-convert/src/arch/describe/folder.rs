//! A configuration as `config.json`, the inverse of [`crate::arch::folder`].
//!
//! Written in the keys that every release of Transformers since these architectures reads. Start
//! with [`config_json`].

use serde_json::{Map, Value, json};

use super::*;
use crate::arch::folder::{Llama3, embed_scale};
use crate::dequant::TensorType;

/// The file's content for weights stored as `dtype`; ids of tokens aside.
pub(crate) fn config_json(
    description: &mut Description,
    dtype: TensorType,
) -> Result<Map<String, Value>, Error> {
    let hyper = description.hyper.clone();
    let (family, first) = (hyper.family, &hyper.layers[0]);
    description.check_embed_scale(embed_scale(hyper.dim, Some(dtype)))?;
    let uneven = |l: &HyperLayer| {
        (l.n_heads, l.n_kv_heads, l.ffn_dim) != (first.n_heads, first.n_kv_heads, first.ffn_dim)
    };
    if let Some(layer) = hyper.layers.iter().position(uneven) {
        let why = format!("layers.{layer} has other heads or another width than layer 0");
        return Err(Error::Input(why));
    }
    let (model_type, class) = match family {
        Family::Llama => ("llama", "LlamaForCausalLM"),
        Family::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
        Family::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
        Family::Gemma3 => ("gemma3_text", "Gemma3ForCausalLM"),
    };
    let mut config = object(json!({
        "architectures": [class],
        "model_type": model_type,
        "torch_dtype": torch_name(dtype),
        "vocab_size": hyper.vocab_size,
        "hidden_size": hyper.dim,
        "intermediate_size": first.ffn_dim,
        "num_hidden_layers": hyper.layers.len(),
        "num_attention_heads": first.n_heads,
        "num_key_value_heads": first.n_kv_heads,
        "head_dim": hyper.head_dim,
        "max_position_embeddings": hyper.context_length,
        "rms_norm_eps": hyper.norm_eps,
        "tie_word_embeddings": hyper.tied_head,
        "attention_dropout": 0.0,
        "use_cache": true,
    }));
    if family != Family::Qwen2 {
        config.insert("attention_bias".into(), false.into());
    }
    let (rope_theta, rope_scaling) = rope(description, &hyper.rope)?;
    config.insert("rope_theta".into(), rope_theta);
    config.insert("rope_scaling".into(), rope_scaling);
    if family == Family::Gemma3 {
        config.insert("hidden_activation".into(), "gelu_pytorch_tanh".into());
        config.insert("query_pre_attn_scalar".into(), query_scalar(hyper.attn_scale)?);
        let local = hyper.local_rope.as_ref().unwrap_or(&hyper.rope);
        let plain = description.plain_rope(local).filter(|r| r.factor == 1.0);
        let theta = plain.ok_or_else(|| refused_rope(family))?.theta;
        config.insert("rope_local_base_freq".into(), theta.into());
    } else {
        config.insert("hidden_act".into(), "silu".into());
        if hyper.attn_scale != 1.0 / (hyper.head_dim as f32).sqrt() {
            let why = format!("attention is scaled by {}, not by 1/√head_dim", hyper.attn_scale);
            return Err(Error::Input(why));
        }
    }
    windows(description, &mut config)?;
    Ok(config)
}

/// PyTorch's name for a type.
pub(crate) fn torch_name(dtype: TensorType) -> &'static str {
    match dtype {
        TensorType::F16 => "float16",
        TensorType::BF16 => "bfloat16",
        _ => "float32",
    }
}

/// `rope_theta` and `rope_scaling`.
fn rope(description: &mut Description, frequencies: &[f64]) -> Result<(Value, Value), Error> {
    if let Some(rope) = description.plain_rope(frequencies) {
        let scaling = match rope.factor {
            1.0 => Value::Null,
            factor => json!({"rope_type": "linear", "factor": factor}),
        };
        return Ok((rope.theta.into(), scaling));
    }
    // The slowest frequency is divided by the factor, the fastest are left alone. The other numbers
    // are those of every released model.
    let base = PlainRope { factor: 1.0, ..PlainRope::guess(frequencies) };
    let table = base.frequencies(frequencies.len());
    let factor = match (table.last(), frequencies.last()) {
        (Some(slow), Some(scaled)) => (slow / scaled).round(),
        _ => 1.0,
    };
    let scaling = Llama3 { factor, low: 1.0, high: 4.0, context: 8192.0 };
    let said: Vec<f64> = table.into_iter().map(|f| scaling.apply(f)).collect();
    let exact = agree(&said, frequencies);
    description.note_rounding(exact.ok_or_else(|| refused_rope(description.hyper.family))?);
    let scaling = json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.context as u64,
    });
    Ok((base.theta.into(), scaling))
}

/// The number whose inverse root is `scale`.
fn query_scalar(scale: f32) -> Result<Value, Error> {
    let squared = 1.0 / (f64::from(scale) * f64::from(scale));
    let gives = |n: &f64| 1.0 / (n.sqrt() as f32) == scale;
    match [squared.round(), squared].into_iter().find(gives) {
        Some(n) if n == n.trunc() => Ok((n as u64).into()),
        Some(n) => Ok(n.into()),
        None => Err(Error::Input(format!("attention is scaled by {scale}, which is no 1/√n"))),
    }
}

fn windows(description: &Description, config: &mut Map<String, Value>) -> Result<(), Error> {
    let family = description.hyper.family;
    let window = description.window()?;
    let local = description.local();
    let (Some(first), Some(window)) = (local.iter().position(|l| *l), window) else {
        if family == Family::Gemma3 {
            config.insert("layer_types".into(), vec!["full_attention"; local.len()].into());
        }
        return Ok(());
    };
    if family == Family::Llama {
        let why = format!("has windows of {window}, which a llama in Transformers hasn't");
        return Err(Error::Input(why));
    }
    let names = local.iter().map(|l| if *l { "sliding_attention" } else { "full_attention" });
    config.insert("layer_types".into(), names.collect::<Vec<_>>().into());
    config.insert("sliding_window".into(), window.into());
    if family != Family::Gemma3 {
        config.insert("use_sliding_window".into(), true.into());
        config.insert("max_window_layers".into(), first.into());
    }
    Ok(())
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
