//! `koudai export`: a `.koudai` file becomes a GGUF file or a Hugging Face folder.

use std::path::PathBuf;

use clap::ValueEnum;
use koudai_convert::ExportOptions;
use koudai_convert::dequant::TensorType;
use serde_json::{Value, json};

use crate::output;

/// Write a .koudai file as GGUF or as a Hugging Face folder
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai export model.koudai -o model.gguf\n  \
    koudai export model.koudai -o model-hf/")]
pub(crate) struct Args {
    /// A .koudai file
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// A file whose name ends in .gguf, or a folder
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// How a folder stores weights [default: the narrowest that keeps every value]
    #[arg(long, value_enum)]
    dtype: Option<DtypeArg>,
    /// Replace a folder that holds an earlier export
    #[arg(long)]
    force: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum DtypeArg {
    F32,
    F16,
    Bf16,
}

impl From<DtypeArg> for TensorType {
    fn from(arg: DtypeArg) -> TensorType {
        match arg {
            DtypeArg::F32 => TensorType::F32,
            DtypeArg::F16 => TensorType::F16,
            DtypeArg::Bf16 => TensorType::BF16,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = ExportOptions { dtype: args.dtype.map(TensorType::from), force: args.force };
    let mut progress = output::Progress::bytes();
    let report = koudai_convert::export(&args.input, &args.output, &options, &mut |p| {
        super::pull::show(&mut progress, p)
    })?;
    drop(progress);
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    let roles = report.by_role();
    if args.json {
        let tensors: Vec<Value> = roles
            .iter()
            .map(|r| {
                json!({
                    "role": r.role.name(), "from": r.from.name(), "to": r.to.name(),
                    "tensors": r.count, "bytes": r.bytes, "exact": r.inexact == 0,
                })
            })
            .collect();
        let inexact: Vec<Value> = report
            .tensors
            .iter()
            .filter_map(|t| Some(json!({ "tensor": t.name, "reason": t.rounded()? })))
            .collect();
        return output::print_json(&json!({
            "path": output::path(&args.output),
            "format": report.format,
            "architecture": report.architecture,
            "bytes": report.bytes,
            "exact": report.exact(),
            "tensors": tensors,
            "inexact": inexact,
            "notes": report.notes,
        }));
    }
    let mut text = format!("{:<16}{:>6}  {:<10}{:<10}values\n", "tensor", "count", "from", "to");
    for r in &roles {
        let values = match r.inexact {
            0 => "exact".into(),
            n => format!("{n} rounded"),
        };
        let (from, to) = (r.from.name(), r.to.name());
        text += &format!("{:<16}{:>6}  {from:<10}{to:<10}{values}\n", r.role.name(), r.count);
    }
    text += &format!("{}: {}", args.output.display(), output::megabytes(report.bytes));
    output::print_line(&text)
}
