//! `koudai bench`: speed and memory on this machine.

use std::path::PathBuf;

use anyhow::Context;
use koudai_eval::bench::{Options, Report, bench};
use koudai_eval::plot;
use serde_json::{Value, json};

use crate::args::{ActivationArg, EngineArgs, KvArg, ModelArgs, above_zero, read_text};
use crate::{interrupt, output};

/// Measure speed and memory: a warm-up, then medians of several runs
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai bench -m model.koudai -p 512 -n 128 -r 5\n  \
    koudai bench -d 0,512,2048 --plot speed.svg\n  \
    koudai bench --verify 2,4,8")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = above_zero)]
    prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = above_zero)]
    generate: usize,
    /// Tokens already in the context; several as 0,512,2048
    #[arg(short, long, value_name = "N,…", default_value = "0", value_delimiter = ',')]
    depth: Vec<usize>,
    /// Rows of a pass that verifies a draft, several as 4,8: its time over that of one row
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = above_zero)]
    verify: Vec<usize>,
    /// Measured runs
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = above_zero)]
    runs: usize,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value = "f16")]
    kv: KvArg,
    /// Arithmetic with quantized weights
    #[arg(long, value_enum, default_value = "auto")]
    activation: ActivationArg,
    /// Compare with an earlier run's --json
    #[arg(long, value_name = "FILE")]
    compare: Option<String>,
    /// Draw speed over depth to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = Options {
        prompt: args.prompt,
        generate: args.generate,
        depths: args.depth.clone(),
        verify: args.verify.clone(),
        runs: args.runs,
        kv: args.kv.into(),
        precision: args.activation.into(),
        open: args.engine.options()?,
    };
    let earlier = args.compare.as_deref().map(earlier).transpose()?;
    let path = args.model.path()?;
    interrupt::may_exit(true);
    let report = bench(&path, &options)?;
    interrupt::may_exit(false);
    let mut document = document(args, &report);
    document["model"] = json!(output::path(&path));
    if let Some(file) = &args.plot {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let title =
            format!("{name}: {}, {}, {} threads", report.machine.cpu, report.isa, report.threads);
        plot::speed_over_depth(file, &title, &report.depths)
            .with_context(|| file.display().to_string())?;
    }
    let ratios = earlier.map(|earlier| ratios(&earlier, &document));
    if args.json {
        if let Some(ratios) = ratios {
            document["compared"] = ratios.into_iter().collect();
        }
        return output::print_json(&document);
    }
    output::print_line(&text(args, &report))?;
    for (name, ratio) in ratios.into_iter().flatten() {
        output::print_line(&format!("{name:<24} {ratio:>8.3} × the earlier run"))?;
    }
    Ok(())
}

fn document(args: &Args, r: &Report) -> Value {
    let (measured, used) = (r.bandwidth / 1e9, r.used_bandwidth() / 1e9);
    let runs = |runs: &[(f64, f64)]| -> Vec<Value> {
        let run = |(p, d): &(f64, f64)| json!({ "prefill_tps": p, "decode_tps": d });
        runs.iter().map(run).collect()
    };
    let depths: Vec<Value> = r
        .depths
        .iter()
        .map(|d| {
            json!({ "depth": d.depth, "prefill_tps": d.prefill_tps, "decode_tps": d.decode_tps,
                    "runs": runs(&d.runs) })
        })
        .collect();
    let verify: Vec<Value> = r
        .verify
        .iter()
        .map(|v| json!({ "rows": v.rows, "pass_ms": v.pass_ms, "ratio": v.ratio }))
        .collect();
    let first = &r.depths[0];
    json!({
        "prompt": args.prompt,
        "generate": args.generate,
        "prefill_tps": first.prefill_tps,
        "decode_tps": first.decode_tps,
        "depths": depths,
        "verify": verify,
        "load_ms": r.load_ms,
        "first_token_ms": r.first_token_ms,
        "peak_increment_bytes": r.peak_increment_bytes,
        "planned_bytes": r.planned_bytes,
        "file_bytes": r.file_bytes,
        "runs": runs(&first.runs),
        "machine": { "cpu": r.machine.cpu, "isa": r.isa, "threads": r.threads,
                     "processors": r.machine.processors },
        "bandwidth": { "measured_gbps": measured, "used_gbps": used, "fraction": used / measured },
    })
}

fn text(args: &Args, r: &Report) -> String {
    let (measured, used) = (r.bandwidth / 1e9, r.used_bandwidth() / 1e9);
    let mut text = format!("{}, {}, {} threads\n", r.machine.cpu, r.isa, r.threads);
    for d in &r.depths {
        let at = if d.depth > 0 { format!(" after {}", d.depth) } else { String::new() };
        text += &format!("prefill {:>5} {:>10.1} tokens/s{at}\n", args.prompt, d.prefill_tps);
        text += &format!("decode {:>6} {:>10.1} tokens/s{at}\n", args.generate, d.decode_tps);
    }
    for v in &r.verify {
        let (rows, ms, ratio) = (v.rows, v.pass_ms, v.ratio);
        text += &format!("verify {rows:>6} {ms:>10.2} ms, {ratio:.2} × a pass of one row\n");
    }
    let peak = r.peak_increment_bytes.map_or("not measurable here".into(), output::megabytes);
    text += &format!(
        "open          {:>10.1} ms\n\
         first token   {:>10.1} ms (open, 16 prompt tokens)\n\
         bandwidth     {used:>10.1} GB/s of weights, {:.0}% of the {measured:.1} measured\n\
         peak memory   {peak:>13} over the start; file {}, planned at most {}",
        r.load_ms,
        r.first_token_ms,
        used / measured * 100.0,
        output::megabytes(r.file_bytes),
        output::megabytes(r.planned_bytes),
    );
    text
}

fn earlier(path: &str) -> anyhow::Result<Value> {
    let text = read_text(path)?;
    serde_json::from_str(&text).with_context(|| format!("{path}: not the --json of a bench run"))
}

/// Each number that both runs have, this one over the earlier.
fn ratios(earlier: &Value, now: &Value) -> Vec<(String, f64)> {
    let names = [
        "prefill_tps",
        "decode_tps",
        "load_ms",
        "first_token_ms",
        "peak_increment_bytes",
        "file_bytes",
    ];
    let ratio = |name: &str| Some(now[name].as_f64()? / earlier[name].as_f64()?);
    names.iter().filter_map(|name| Some((name.to_string(), ratio(name)?))).collect()
}
