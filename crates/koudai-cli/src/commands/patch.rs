//! `koudai patch`: a new version of a model's file out of the old one and a delta.

use std::path::PathBuf;

use koudai::delta::apply;
use koudai::file::ModelFile;
use koudai_convert::{Progress, Stage};
use serde_json::json;

use crate::args::TrustArgs;
use crate::output;

/// Make a new version of a file out of the old one and a delta
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai patch old.koudai update.kdelta -o new.koudai\n  \
    koudai patch model.koudai update.kdelta --in-place --trust maker.key.pub\n\nThe new file is \
    verified before it gets its name; until then, and if anything goes wrong, what was there stays.")]
pub(crate) struct Args {
    /// The file that the delta was made for
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// What koudai diff wrote
    #[arg(value_name = "DELTA")]
    delta: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "NEW", required_unless_present = "in_place")]
    output: Option<PathBuf>,
    /// Replace OLD
    #[arg(long, conflicts_with = "output")]
    in_place: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let out = args.output.as_ref().unwrap_or(&args.old);
    output::check_no_input(out, [&args.delta])?;
    let mut progress = output::Progress::bytes();
    apply(&args.old, &args.delta, out, &args.trust.trust()?, &mut |done, total| {
        super::pull::show(&mut progress, Progress { stage: Stage::Write, done, total })
    })?;
    drop(progress);
    let file = ModelFile::open(out).map_err(|e| koudai::Error::File(out.clone(), e))?;
    let fingerprint = output::hex(&file.fingerprint());
    if args.json {
        return output::print_json(&json!({
            "output": output::path(out), "bytes": file.len_bytes(), "fingerprint": fingerprint,
        }));
    }
    let size = output::megabytes(file.len_bytes());
    output::print_line(&format!("{}: {size}, fingerprint {fingerprint}", out.display()))
}
