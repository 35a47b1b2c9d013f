//! `koudai pack`: one file for everything that belongs to a model.

use std::path::{Path, PathBuf};

use koudai_convert::pack::{Additions, pack};
use serde_json::json;

use crate::args::{ModelArgs, pair, read_text};
use crate::{interrupt, output};

/// Add drafts, adapters, golden prompts, a card to a model's file
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  koudai pack model.koudai -o packed.koudai --golden prompts.txt \
    --card README.md\n  koudai pack model.koudai -o model.koudai --adapter support=support.bin \
    --lineage recipe=qat.toml\n\nWhat the file has already of the same name is replaced. An \
    adapter, draft or decision head works with this model only. Sign afterwards: a signature is of \
    what was there before."
)]
pub(crate) struct Args {
    /// A .koudai file, or anything that -m takes
    #[arg(value_name = "MODEL")]
    model: String,
    /// The file to write; may be the same
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// A draft model
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    /// A decision head
    #[arg(long, value_name = "FILE")]
    decision: Option<PathBuf>,
    /// An adapter; may be repeated
    #[arg(long, value_name = "NAME=FILE", value_parser = pair)]
    adapter: Vec<(String, String)>,
    /// Prompts, one on each line, to run now and compare by inspect --verify anywhere
    #[arg(long, value_name = "FILE")]
    golden: Option<String>,
    /// The model card, Markdown
    #[arg(long, value_name = "FILE")]
    card: Option<String>,
    /// A pair about the model; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// A pair about where the model comes from: a source's hash, a recipe, a seed; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    lineage: Vec<(String, String)>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let adapters = args.adapter.iter().map(|(_, file)| Path::new(file));
    let texts = [&args.golden, &args.card].into_iter().flatten().map(Path::new);
    let payloads = [&args.draft, &args.decision].into_iter().flatten().map(PathBuf::as_path);
    output::check_no_input(&args.output, adapters.chain(texts).chain(payloads))?;
    let lines = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let golden = args.golden.as_deref().map(read_text).transpose()?.map(lines);
    if let (Some([]), Some(file)) = (golden.as_deref(), &args.golden) {
        anyhow::bail!("{file}: there is no prompt in it");
    }
    let additions = Additions {
        draft: args.draft.clone(),
        decision: args.decision.clone(),
        adapters: args.adapter.iter().map(|(name, file)| (name.clone(), file.into())).collect(),
        golden: golden.unwrap_or_default(),
        card: args.card.as_deref().map(read_text).transpose()?,
        meta: args.meta.clone(),
        lineage: args.lineage.clone(),
    };
    let input = ModelArgs { model: args.model.clone() }.path()?;
    let mut progress = output::Progress::bytes();
    let packed = pack(&input, &args.output, &additions, &interrupt::token(), &mut |p| {
        super::pull::show(&mut progress, p)
    })?;
    drop(progress);
    if packed.dropped_signature {
        eprintln!("note: the signature was of what was there before; sign the new file");
    }
    if args.json {
        return output::print_json(&json!({
            "output": output::path(&args.output), "bytes": packed.bytes,
            "fingerprint": output::hex(&packed.fingerprint),
            "model_hash": output::hex(&packed.model_hash), "sections": packed.sections,
        }));
    }
    output::print_line(&format!(
        "{}: {}, with {}",
        args.output.display(),
        output::megabytes(packed.bytes),
        packed.sections.join(", ")
    ))
}
