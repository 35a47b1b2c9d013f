//! A configuration as GGUF's metadata keys, the inverse of [`crate::arch::gguf`].
//!
//! Start with [`keys`].

use super::*;
use crate::arch::gguf::default_attn_scale;
use crate::gguf::write::Metadata;

/// Layers of a Gemma 3 come in sixes, the last of which sees everything: readers take that for
/// granted.
const GEMMA3_PERIOD: usize = 6;

/// Adds the architecture's keys. Returns the factors of `rope_freqs.weight`, if the model needs
/// that tensor.
pub(crate) fn keys(
    description: &mut Description,
    metadata: &mut Metadata,
) -> Result<Option<Vec<f32>>, Error> {
    let hyper = description.hyper.clone();
    let name = hyper.family.name();
    let key = |k: &str| format!("{name}.{k}");
    description.check_embed_scale((hyper.dim as f32).sqrt())?;
    for (k, value) in [
        ("vocab_size", hyper.vocab_size),
        ("context_length", hyper.context_length),
        ("embedding_length", hyper.dim),
        ("block_count", hyper.layers.len()),
        ("attention.key_length", hyper.head_dim),
        ("attention.value_length", hyper.head_dim),
        ("rope.dimension_count", hyper.head_dim),
    ] {
        metadata.u32(&key(k), value as u32);
    }
    let mut per_layer = |k: &str, value: fn(&HyperLayer) -> usize| {
        let all: Vec<u32> = hyper.layers.iter().map(|l| value(l) as u32).collect();
        match all.iter().all(|n| *n == all[0]) {
            true => metadata.u32(&key(k), all[0]),
            false => metadata.u32s(&key(k), &all),
        }
    };
    per_layer("feed_forward_length", |l| l.ffn_dim);
    per_layer("attention.head_count", |l| l.n_heads);
    per_layer("attention.head_count_kv", |l| l.n_kv_heads);
    metadata.f32(&key("attention.layer_norm_rms_epsilon"), hyper.norm_eps as f32);
    let n_heads = hyper.layers[0].n_heads;
    let (n_layers, head_dim) = (hyper.layers.len(), hyper.head_dim);
    if hyper.attn_scale != default_attn_scale(hyper.family, n_layers, hyper.dim, n_heads, head_dim)
    {
        metadata.f32(&key("attention.scale"), hyper.attn_scale);
        let scale = hyper.attn_scale;
        description.notes.push(format!("attention.scale {scale} isn't known to all readers"));
    }
    match (description.window()?, hyper.family) {
        (Some(window), Family::Gemma3) => {
            metadata.u32(&key("attention.sliding_window"), window as u32);
            let local = description.local();
            let period = |p: usize| local.iter().enumerate().all(|(i, l)| *l == ((i + 1) % p != 0));
            let pattern = "attention.sliding_window_pattern";
            match (1..=local.len() + 1).find(|p| period(*p)) {
                _ if period(GEMMA3_PERIOD) => {}
                Some(p) => metadata.u32(&key(pattern), p as u32),
                None => metadata.bools(&key(pattern), &local),
            }
        }
        (Some(window), _) => {
            return Err(Error::Input(format!(
                "has windows of {window}, which a GGUF {name} hasn't"
            )));
        }
        (None, _) => {}
    }
    if let Some(local) = &hyper.local_rope {
        let plain = description.plain_rope(local).filter(|r| r.factor == 1.0);
        let theta = plain.ok_or_else(|| refused_rope(hyper.family))?.theta;
        metadata.f32(&key("rope.freq_base_swa"), theta as f32);
    }
    if let Some(rope) = description.plain_rope(&hyper.rope) {
        metadata.f32(&key("rope.freq_base"), rope.theta as f32);
        if rope.factor != 1.0 {
            metadata.str(&key("rope.scaling.type"), "linear");
            metadata.f32(&key("rope.scaling.factor"), rope.factor as f32);
        }
        return Ok(None);
    }
    // Any base will do where each frequency has a factor of its own.
    let base = PlainRope { factor: 1.0, ..PlainRope::guess(&hyper.rope) };
    let table = base.frequencies(hyper.rope.len());
    let factors: Vec<f32> = table.iter().zip(&hyper.rope).map(|(t, f)| (t / f) as f32).collect();
    let said: Vec<f64> = table.iter().zip(&factors).map(|(t, f)| t / f64::from(*f)).collect();
    let usable = hyper.family == Family::Llama && factors.iter().all(|f| f.is_normal() && *f > 0.0);
    match agree(&said, &hyper.rope).filter(|_| usable) {
        Some(exact) => description.note_rounding(exact),
        None => return Err(refused_rope(hyper.family)),
    }
    metadata.f32(&key("rope.freq_base"), base.theta as f32);
    Ok(Some(factors))
}
