//! What a search found, as one JSON document and as a table for spreadsheets.

use serde_json::{Map, Value, json};

use super::Study;
use super::choose::Configuration;

/// Everything as one document.
pub fn document(study: &Study) -> Value {
    json!({
        "machine": {
            "cpu": study.machine.cpu, "processors": study.machine.processors, "isa": study.isa,
            "threads": study.plan.threads,
        },
        "plan": study.plan,
        "limits": study.limits,
        "configurations": study.configurations.iter().map(row).collect::<Vec<_>>(),
        "predictor": study.predictor,
        "chosen": study.choice,
    })
}

fn row(c: &Configuration) -> Value {
    let decode: Map<String, Value> = c
        .performance
        .contexts
        .iter()
        .map(|at| {
            let speeds = json!({
                "p50": at.tps(), "p90": 1e3 / at.p90_ms, "p50_ms": at.p50_ms, "p90_ms": at.p90_ms,
                "peak_bytes": at.peak_bytes,
            });
            (at.context.to_string(), speeds)
        })
        .collect();
    json!({
        "name": c.name,
        "layers": c.shape.layers,
        "dim": c.shape.dim,
        "heads": c.shape.heads,
        "kv_heads": c.shape.kv_heads,
        "head_dim": c.shape.head_dim,
        "ffn_dim": c.shape.ffn_dim,
        "vocab": c.shape.vocab,
        "parameters": c.parameters,
        "measured": c.measured,
        "file_bytes": c.performance.file_bytes,
        "peak_bytes": c.peak_bytes,
        "prefill_tps": c.performance.prefill_tps,
        "decode_tps": c.decode_tps,
        "decode": decode,
        "quality": c.quality,
        "meets_memory": c.meets_memory,
        "meets_speed": c.meets_speed,
        "pareto": c.pareto,
    })
}

/// A header and a line for each configuration. Speeds are tokens per second.
pub fn csv(study: &Study) -> Result<Vec<u8>, csv::Error> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let fixed = [
        "name",
        "layers",
        "dim",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn_dim",
        "vocab",
        "parameters",
        "measured",
        "file_bytes",
        "peak_bytes",
        "prefill_tps",
        "loss",
        "loss_spread",
        "meets_memory",
        "meets_speed",
        "pareto",
        "chosen",
    ];
    let of_contexts = study.plan.contexts.iter().flat_map(|context| {
        ["decode_p50_tps", "decode_p90_tps", "peak_bytes"].map(|name| format!("{name}_{context}"))
    });
    table.write_record(fixed.map(str::to_owned).into_iter().chain(of_contexts))?;
    for c in &study.configurations {
        let (s, m) = (&c.shape, &c.performance);
        let loss = |f: fn(&super::Quality) -> f64| {
            c.quality.as_ref().map_or(String::new(), |q| f(q).to_string())
        };
        let fixed = [
            c.name.clone(),
            s.layers.to_string(),
            s.dim.to_string(),
            s.heads.to_string(),
            s.kv_heads.to_string(),
            s.head_dim.to_string(),
            s.ffn_dim.to_string(),
            s.vocab.to_string(),
            c.parameters.to_string(),
            c.measured.to_string(),
            m.file_bytes.to_string(),
            c.peak_bytes.to_string(),
            format!("{:.2}", m.prefill_tps),
            loss(|q| q.loss),
            loss(|q| q.spread),
            c.meets_memory.to_string(),
            c.meets_speed.to_string(),
            c.pareto.to_string(),
            (study.choice.name.as_ref() == Some(&c.name)).to_string(),
        ];
        let of_contexts = m.contexts.iter().flat_map(|at| {
            let p90 = 1e3 / at.p90_ms;
            [format!("{:.2}", at.tps()), format!("{p90:.2}"), at.peak_bytes.to_string()]
        });
        table.write_record(fixed.into_iter().chain(of_contexts))?;
    }
    table.into_inner().map_err(|e| e.into_error().into())
}
