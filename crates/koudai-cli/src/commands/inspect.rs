//! `koudai inspect`: what is in a file.

use std::fmt::Write;

use koudai::file::{ModelFile, TensorInfo};
use koudai::golden::{Checked, Golden};
use koudai::{Engine, Error, KvKind, OpenOptions, Shape};
use serde_json::{Value, json};

use crate::args::{ModelArgs, TrustArgs};
use crate::{interrupt, output};

/// Show metadata, sections, tensors and memory of a model
#[derive(clap::Args)]
#[command(after_help = "Example:\n  koudai inspect model.koudai --verify")]
pub(crate) struct Args {
    /// A .koudai file, or anything that -m takes
    #[arg(value_name = "FILE")]
    file: String,
    /// Read the whole file, compare its hashes and signature, and run its golden prompts
    #[arg(long)]
    verify: bool,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let path = ModelArgs { model: args.file.clone() }.path()?;
    let at = |e| Error::File(path.clone(), e);
    let file = ModelFile::open(&path).map_err(at)?;
    file.check_trust(&args.trust.trust()?).map_err(at)?;
    if args.verify {
        file.verify().map_err(at)?;
    }
    let golden = Golden::of(&file).map_err(at)?;
    // One thread is enough to look; golden prompts are work.
    let threads = (!args.verify || golden.is_none()).then_some(1);
    let engine = Engine::open(&path, &OpenOptions { threads, ..Default::default() })?;
    let checked = match &golden {
        Some(golden) if args.verify => Some(golden.check(&engine, &interrupt::token())?),
        _ => None,
    };
    let document = document(&engine, &file, args.verify, golden.as_ref(), checked)?;
    if args.json {
        return output::print_json(&document);
    }
    output::print(&text(&document, &file, args.tensors))
}

fn document(
    engine: &Engine,
    file: &ModelFile,
    verified: bool,
    golden: Option<&Golden>,
    checked: Option<Checked>,
) -> anyhow::Result<Value> {
    let config = file.config();
    let layers: Vec<Value> = config
        .layers
        .iter()
        .map(|l| {
            json!({
                "n_heads": l.n_heads, "n_kv_heads": l.n_kv_heads, "head_dim": l.head_dim,
                "ffn_dim": l.ffn_dim, "window": l.window, "rope": l.rope,
                "attn_scale": l.attn_scale, "activation": format!("{:?}", l.activation),
                "qkv_bias": l.qkv_bias, "qk_norm": l.qk_norm, "post_norms": l.post_norms,
            })
        })
        .collect();
    let sections: Vec<Value> = file
        .sections()
        .iter()
        .map(
            |s| json!({ "name": s.name, "offset": s.offset, "bytes": s.len, "hash": output::hex(&s.hash) }),
        )
        .collect();
    let tensors: Vec<Value> = file
        .tensors()
        .iter()
        .map(|t| {
            json!({ "name": t.id.to_string(), "shape": shape(t), "kind": t.kind.name(), "bytes": t.len })
        })
        .collect();
    let plan = |context: usize, kv| -> anyhow::Result<Value> {
        let p = engine.plan(context, kv)?;
        Ok(json!({
            "context": context, "kv": kv.name(), "file_bytes": p.file, "kv_cache_bytes": p.kv_cache,
            "buffer_bytes": p.buffers, "fixed_bytes": p.fixed, "total_bytes": p.total(),
        }))
    };
    let mut plans = Vec::new();
    for context in [512, 4096] {
        for kv in [KvKind::F16, KvKind::Q8] {
            plans.push(plan(context.min(config.context_length), kv)?);
        }
    }
    let defaults = engine.defaults();
    let meta: serde_json::Map<String, Value> =
        file.meta()?.into_iter().map(|(k, v)| (k, Value::from(v))).collect();
    let at = |e| Error::File(engine.path().into(), e);
    let signature = file
        .signature()
        .map_err(at)?
        .map(|s| json!({ "key": s.key.to_string(), "valid": s.is_of(&file.fingerprint()) }));
    let attachments: Vec<Value> = file
        .attachments()
        .map_err(at)?
        .iter()
        .map(|a| json!({ "kind": a.kind.name(), "name": a.name, "bytes": a.payload.len() }))
        .collect();
    let golden = golden.map(|golden| {
        let isas: Vec<&str> = golden.hashes.iter().map(|(isa, _)| isa.as_str()).collect();
        json!({
            "prompts": golden.prompts.len(), "tolerance": golden.tolerance, "isas": isas,
            "checked": checked.map(|c| json!({
                "isa": engine.isa(), "largest_difference": c.largest, "same_bits": c.same_bits,
            })),
        })
    });
    let bits: usize = file.tensors().iter().map(|t| t.len * 8).sum();
    Ok(json!({
        "path": output::path(engine.path()),
        "bytes": file.len_bytes(),
        "fingerprint": output::hex(&file.fingerprint()),
        "model_hash": output::hex(&file.model_hash()),
        "verified": verified,
        "signature": signature,
        "meta": meta,
        "lineage": file.lineage().map_err(at)?,
        "card": file.card().map_err(at)?,
        "attachments": attachments,
        "golden": golden,
        "parameters": config.n_parameters(),
        "bits_per_weight": bits as f64 / config.n_parameters() as f64,
        "config": {
            "dim": config.dim, "vocab_size": config.vocab_size,
            "context_length": config.context_length, "norm_eps": config.norm_eps,
            "embed_scale": config.embed_scale, "tied_head": config.tied_head, "layers": layers,
        },
        "tokenizer": {
            "tokens": engine.tokenizer().vocab_size(), "bos": engine.tokenizer().bos(),
            "eos": engine.tokenizer().eos(), "add_bos": engine.tokenizer().add_bos(),
        },
        "chat_template": engine.template(),
        "defaults": {
            "temperature": defaults.temperature, "top_k": defaults.top_k, "top_p": defaults.top_p,
            "min_p": defaults.min_p, "repetition_penalty": defaults.repetition_penalty,
        },
        "sections": sections,
        "tensors": tensors,
        "memory": plans,
    }))
}

fn shape(t: &TensorInfo) -> Vec<usize> {
    match t.shape {
        Shape::Vector(n) => vec![n],
        Shape::Matrix { rows, cols } => vec![rows, cols],
    }
}

fn text(d: &Value, file: &ModelFile, tensors: bool) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{:<16}{}", output::one_line(name), output::one_line(&value));
    };
    let plain = |v: &Value| v.as_str().map_or(v.to_string(), str::to_owned);
    line("file", plain(&d["path"]));
    line("size", output::megabytes(file.len_bytes()));
    for (key, value) in d["meta"].as_object().into_iter().flatten() {
        line("meta", format!("{key} = {}", plain(value)));
    }
    let c = file.config();
    let l = &c.layers[0];
    line("parameters", format!("{:.1} M", c.n_parameters() as f64 / 1e6));
    line("bits per weight", format!("{:.2}", d["bits_per_weight"].as_f64().unwrap_or(0.0)));
    line(
        "shape",
        format!(
            "{} layers, dim {}, {} heads, {} kv heads, head_dim {}, ffn {}, vocabulary {}, context {}",
            c.layers.len(),
            c.dim,
            l.n_heads,
            l.n_kv_heads,
            l.head_dim,
            l.ffn_dim,
            c.vocab_size,
            c.context_length
        ),
    );
    line("chat template", if d["chat_template"].is_null() { "no" } else { "yes" }.into());
    line("fingerprint", plain(&d["fingerprint"]));
    line("model hash", plain(&d["model_hash"]));
    if d["verified"] == true {
        line("verified", "every hash is right".into());
    }
    let signature = &d["signature"];
    if signature.is_object() {
        let valid = if signature["valid"] == true { "" } else { "NOT VALID: " };
        line("signed by", format!("{valid}{}", plain(&signature["key"])));
    }
    for pair in d["lineage"].as_array().into_iter().flatten() {
        line("lineage", format!("{} = {}", plain(&pair[0]), plain(&pair[1])));
    }
    for a in d["attachments"].as_array().into_iter().flatten() {
        line(&plain(&a["kind"]), format!("{} ({} bytes)", plain(&a["name"]), a["bytes"]));
    }
    if d["golden"].is_object() {
        line("golden prompts", golden(&d["golden"]));
    }
    for p in d["memory"].as_array().into_iter().flatten() {
        let total = output::megabytes(p["total_bytes"].as_u64().unwrap_or(0));
        line(
            "memory",
            format!("{total} at most with context {} in {}", p["context"], plain(&p["kv"])),
        );
    }
    for s in file.sections() {
        line("section", format!("{:<10}{:>12} bytes at {}", s.name, s.len, s.offset));
    }
    if tensors {
        for t in file.tensors() {
            line("tensor", format!("{:<28}{:<7}{:?}", t.id.to_string(), t.kind.name(), shape(t)));
        }
    }
    if let Some(card) = d["card"].as_str() {
        let _ = write!(out, "\n{}\n", card.trim_end());
    }
    out
}

/// What golden prompts there are, and how they went.
fn golden(d: &Value) -> String {
    let checked = &d["checked"];
    let result = match checked["same_bits"].as_bool() {
        _ if checked.is_null() => "not run".into(),
        Some(true) => format!("the same bits on {}", checked["isa"].as_str().unwrap_or_default()),
        _ => format!(
            "as recorded within {:.1e} nats",
            checked["largest_difference"].as_f64().unwrap_or(0.0)
        ),
    };
    format!("{}, {result}", d["prompts"])
}
