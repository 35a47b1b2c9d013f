//! `koudai pull`: fetch a known model.

use koudai::Flow;
use koudai_convert::{Cache, Progress, PullOptions, Stage, models};
use serde_json::json;

use crate::{interrupt, output};

/// Download a known model, with resume and checksum
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  koudai pull smollm2-135m\n\nkoudai models lists the names. A download \
                  that was cut or stopped goes on where it was."
)]
pub(crate) struct Args {
    /// Name of the model
    #[arg(value_name = "NAME", default_value = models::DEFAULT)]
    name: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut progress = output::Progress::bytes();
    let pulled =
        koudai_convert::pull(&Cache::from_env()?, &args.name, &PullOptions::default(), &mut |p| {
            show(&mut progress, p)
        })?;
    drop(progress);
    for note in &pulled.notes {
        eprintln!("note: {note}");
    }
    if args.json {
        return output::print_json(&json!({
            "name": pulled.name, "path": pulled.path, "bytes": pulled.bytes,
            "sha256": pulled.sha256, "origin": pulled.origin,
        }));
    }
    output::print_line(&format!(
        "{}: {}, made from a file with sha256 {}",
        pulled.path.display(),
        output::megabytes(pulled.bytes),
        pulled.sha256
    ))
}

/// Shows the progress of a download or a conversion, and ends it after Ctrl-C.
pub(crate) fn show(progress: &mut output::Progress, p: Progress) -> Flow {
    let label = match p.stage {
        Stage::Download => "downloading",
        Stage::Unpack => "unpacking",
        Stage::Hash => "checking",
        Stage::Calibrate => "calibrating",
        Stage::Count => "counting",
        Stage::Measure => "measuring",
        Stage::Convert => "converting",
        Stage::Export => "exporting",
        Stage::Compare => "comparing",
        Stage::Write => "writing",
    };
    interrupt::may_exit(p.stage == Stage::Download);
    progress.update(label, p.done, p.total);
    match interrupt::requested() {
        true => Flow::Break(()),
        false => Flow::Continue(()),
    }
}
