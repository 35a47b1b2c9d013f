//! `koudai report`: what the measuring commands found, as one page.

use std::path::PathBuf;

use anyhow::Context;
use koudai::PartialFile;
use koudai_eval::report;
use serde_json::json;

use crate::output;

/// Make one HTML page of what bench, eval and search printed with --json
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai bench -d 0,512,2048 --json > speed.json\n  \
    koudai eval --tasks piqa,arc_easy --json > scores.json\n  \
    koudai report speed.json scores.json -o report.html")]
pub(crate) struct Args {
    /// Documents of bench, eval and search, mixed as you like
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What stands above it
    #[arg(long, value_name = "TEXT", default_value = "Model measurements")]
    title: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    output::check_no_input(&args.output, &args.files)?;
    let page = report::page(&args.title, &args.files)?;
    let path = output::path(&args.output);
    PartialFile::write(&args.output, page.html.as_bytes()).with_context(|| path.clone())?;
    if args.json {
        return output::print_json(&json!({
            "path": path, "bytes": page.html.len(), "models": page.models,
        }));
    }
    output::print_line(&format!("{path}: {} bytes", page.html.len()))
}
