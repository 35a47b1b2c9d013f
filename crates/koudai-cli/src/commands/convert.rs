//! `koudai convert`: a GGUF file or Hugging Face folder becomes a `.koudai` file.

use std::path::PathBuf;

use clap::ValueEnum;
use koudai_convert::{Options, Quant};
use serde_json::{Value, json};

use crate::output;

/// Convert a model to a .koudai file
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai convert model.gguf -o model.koudai\n  \
    koudai convert Qwen3-0.6B/ -o qwen3.koudai --quant q4g64")]
pub(crate) struct Args {
    /// A .gguf file or a Hugging Face folder
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// How to store matrices
    #[arg(long, value_enum, default_value = "keep")]
    quant: QuantArg,
    /// Pre-tokenizer of a GGUF that doesn't name its own; a wrong one makes a worse model
    #[arg(long, value_name = "NAME", value_parser = ["gpt-2", "qwen2", "llama-bpe", "smollm"])]
    pre: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum QuantArg {
    /// The nearest to the source, exact where that is possible
    Keep,
    /// 4 bits, groups of 64
    Q4g64,
    /// 4 bits, groups of 32
    Q4g32,
    /// 8 bits
    Q8,
    /// Half floats
    F16,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let quant = match args.quant {
        QuantArg::Keep => Quant::Keep,
        QuantArg::Q4g64 => Quant::Q4G64,
        QuantArg::Q4g32 => Quant::Q4G32,
        QuantArg::Q8 => Quant::Q8,
        QuantArg::F16 => Quant::F16,
    };
    let options = Options { quant, pre: args.pre.clone(), ..Default::default() };
    let mut progress = output::Progress::bytes();
    let report = koudai_convert::convert(&args.input, &args.output, &options, &mut |p| {
        super::pull::show(&mut progress, p)
    })?;
    drop(progress);
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    let roles = report.by_role();
    if args.json {
        let error: Vec<Value> = roles
            .iter()
            .map(|r| {
                json!({
                    "role": r.role.name(), "from": r.from, "to": r.to, "tensors": r.count,
                    "bytes": r.bytes, "exact": r.exact, "max_error": r.max_error,
                    "rms_error": r.rms_error,
                })
            })
            .collect();
        return output::print_json(&json!({
            "output": args.output,
            "architecture": report.architecture,
            "tensors": report.tensors.len(),
            "bytes": report.bytes,
            "bits_per_weight": report.bits_per_weight,
            "source_sha256": report.source_sha256,
            "notes": report.notes,
            "error": error,
        }));
    }
    let mut text = format!("{:<16}{:>6}  {:<16}{:<10}error\n", "tensor", "count", "from", "to");
    for r in &roles {
        let error = match r.exact {
            true => "exact".into(),
            false => format!("rms {:.2e}, max {:.2e}", r.rms_error, r.max_error),
        };
        text +=
            &format!("{:<16}{:>6}  {:<16}{:<10}{error}\n", r.role.name(), r.count, r.from, r.to);
    }
    text += &format!(
        "{}: {}, {:.2} bits per weight",
        args.output.display(),
        output::megabytes(report.bytes),
        report.bits_per_weight
    );
    output::print_line(&text)
}
