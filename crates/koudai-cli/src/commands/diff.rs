//! `koudai diff`: what changed between two versions of a model's file.

use std::path::PathBuf;

use koudai_convert::diff::diff;
use serde_json::json;

use crate::output;

/// Write what changed between two files as a delta
#[derive(clap::Args)]
#[command(after_help = "Example:\n  koudai diff old.koudai new.koudai -o update.kdelta\n\nkoudai \
    patch, or an app, makes the new file out of the old one and the delta.")]
pub(crate) struct Args {
    /// The file that users have
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The file that they shall have
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// The delta to write
    #[arg(short, long, value_name = "DELTA")]
    output: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    output::check_no_input(&args.output, [&args.old, &args.new])?;
    let mut progress = output::Progress::bytes();
    let report =
        diff(&args.old, &args.new, &args.output, &mut |p| super::pull::show(&mut progress, p))?;
    drop(progress);
    if args.json {
        return output::print_json(&json!({
            "output": output::path(&args.output), "bytes": report.bytes, "new_bytes": report.new_bytes,
            "copied_bytes": report.copied, "changed_bytes": report.changed,
        }));
    }
    output::print_line(&format!(
        "{}: {} bytes for a file of {}: {} copied, {} changed, {} new",
        args.output.display(),
        report.bytes,
        output::megabytes(report.new_bytes),
        output::megabytes(report.copied),
        output::megabytes(report.changed),
        output::megabytes(report.new_bytes - report.copied - report.changed)
    ))
}
