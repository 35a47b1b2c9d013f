//! `koudai pull`: fetch a known model.

use koudai_convert::{Progress, Stage, hub};
use serde_json::json;

use crate::output;

/// Download a known model, with resume and checksum
#[derive(clap::Args)]
#[command(after_help = "Example:\n  koudai pull smollm2-135m\n\nkoudai models lists the names.")]
pub(crate) struct Args {
    /// Name of the model
    #[arg(value_name = "NAME", default_value = hub::DEFAULT_MODEL)]
    name: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut progress = output::Progress::bytes();
    let pulled = hub::pull(&args.name, &hub::Options::default(), &mut |p| show(&mut progress, p))?;
    drop(progress);
    if args.json {
        return output::print_json(&json!({
            "name": args.name, "path": pulled.path, "bytes": pulled.bytes, "sha256": pulled.sha256,
        }));
    }
    output::print_line(&format!(
        "{}: {}, sha256 {}",
        pulled.path.display(),
        output::megabytes(pulled.bytes),
        pulled.sha256
    ))
}

/// Shows the progress of a download or a conversion.
pub(crate) fn show(progress: &mut output::Progress, p: Progress) {
    let label = match p.stage {
        Stage::Download => "downloading",
        Stage::Hash => "checking",
        Stage::Convert => "converting",
    };
    progress.update(label, p.done, p.total);
}
