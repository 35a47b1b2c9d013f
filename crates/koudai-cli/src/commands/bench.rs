//! `koudai bench`: speed and memory on this machine.

use koudai_eval::bench::{Options, bench};
use serde_json::json;

use crate::args::{ActivationArg, EngineArgs, KvArg, ModelArgs};
use crate::output;

/// Measure speed and memory: a warm-up, then medians of several runs
#[derive(clap::Args)]
#[command(after_help = "Example:\n  koudai bench -m model.koudai -p 512 -n 128 -r 5")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = positive)]
    prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = positive)]
    generate: usize,
    /// Tokens already in the context
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Measured runs
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive)]
    runs: usize,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value = "f16")]
    kv: KvArg,
    /// Arithmetic with quantized weights
    #[arg(long, value_enum, default_value = "auto")]
    activation: ActivationArg,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("it should be a number above 0".into()),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = Options {
        prompt: args.prompt,
        generate: args.generate,
        depth: args.depth,
        runs: args.runs,
        kv: args.kv.into(),
        precision: args.activation.into(),
        open: args.engine.options(),
    };
    let path = args.model.path()?;
    let r = bench(&path, &options)?;
    let (measured, used) = (r.bandwidth / 1e9, r.used_bandwidth() / 1e9);
    if args.json {
        let runs: Vec<_> = r
            .runs
            .iter()
            .map(|(prefill, decode)| json!({ "prefill_tps": prefill, "decode_tps": decode }))
            .collect();
        return output::print_json(&json!({
            "model": path,
            "prompt": args.prompt,
            "generate": args.generate,
            "depth": args.depth,
            "prefill_tps": r.prefill_tps,
            "decode_tps": r.decode_tps,
            "load_ms": r.load_ms,
            "first_token_ms": r.first_token_ms,
            "peak_increment_bytes": r.peak_increment_bytes,
            "planned_bytes": r.planned_bytes,
            "file_bytes": r.file_bytes,
            "runs": runs,
            "machine": { "cpu": r.machine.cpu, "isa": r.isa, "threads": r.threads,
                         "processors": r.machine.processors },
            "bandwidth": { "measured_gbps": measured, "used_gbps": used,
                           "fraction": used / measured },
        }));
    }
    let peak = r.peak_increment_bytes.map_or("not measurable here".into(), output::megabytes);
    output::print_line(&format!(
        "{}, {}, {} threads\n\
         prefill {:>4}     {:>9.1} tokens/s\n\
         decode {:>5}     {:>9.1} tokens/s   ({used:.1} of {measured:.1} GB/s, {:.0}%)\n\
         open             {:>9.1} ms\n\
         first token      {:>9.1} ms   (open, 16 prompt tokens)\n\
         peak memory      {peak:>12}   over the start; file {}, planned at most {}",
        r.machine.cpu,
        r.isa,
        r.threads,
        args.prompt,
        r.prefill_tps,
        args.generate,
        r.decode_tps,
        used / measured * 100.0,
        r.load_ms,
        r.first_token_ms,
        output::megabytes(r.file_bytes),
        output::megabytes(r.planned_bytes),
    ))
}
