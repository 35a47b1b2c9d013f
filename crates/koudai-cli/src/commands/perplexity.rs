//! `koudai perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use anyhow::{Context, bail};
use koudai::PartialFile;
use koudai_eval::npy;
use koudai_eval::perplexity::{Options, measure, windows};
use serde_json::json;

use crate::args::{EngineArgs, ModelArgs, SessionArgs, read_text};
use crate::{interrupt, output};

/// Perplexity and bits per byte of a text
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai perplexity --file wiki.txt\n  \
    koudai perplexity -m small.koudai --reference big.koudai --file wiki.txt --limit-tokens 4096")]
#[command(mut_arg("ctx", |arg| arg.help("Tokens in each window [default: 512]")))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; - is standard input
    #[arg(long, value_name = "FILE")]
    file: String,
    /// Use at most this many tokens
    #[arg(long, value_name = "N")]
    limit_tokens: Option<usize>,
    /// A model to compare with, in f32 arithmetic: adds KL divergence and same-top-token rate
    #[arg(long, value_name = "MODEL")]
    reference: Option<String>,
    /// Write the logits of every predicted position to this .npy file
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let text = read_text(&args.file)?;
    let engine = args.engine.open(&args.model)?;
    let reference = args.reference.clone().map(|model| args.engine.open(&ModelArgs { model }));
    let reference = reference.transpose()?;
    if let Some(r) = &reference
        && r.config().vocab_size != engine.config().vocab_size
    {
        bail!("the reference's vocabulary differs; only bits_per_byte can be compared");
    }
    let session = args.session.options();
    let context = session.context.unwrap_or(512.min(engine.config().context_length));
    let options = Options { context, limit_tokens: args.limit_tokens, session };
    let windows = windows(&engine, &text, &options);
    if windows.is_empty() {
        bail!("{}: too short to predict anything", args.file);
    }
    let named = || args.save_logits.as_ref().map_or_else(String::new, |p| p.display().to_string());
    let create =
        |path: &PathBuf| npy::Writer::new(PartialFile::create(path)?, engine.config().vocab_size);
    let mut logits = args.save_logits.as_ref().map(create).transpose().with_context(named)?;
    let total: usize = windows.iter().map(|w| w.len() - 1).sum();
    let mut progress = output::Progress::tokens();
    let result = measure::<anyhow::Error>(
        &engine,
        reference.as_ref(),
        &windows,
        &options,
        |row| {
            if interrupt::requested() {
                bail!("interrupted");
            }
            match &mut logits {
                Some(file) => file.row(row).with_context(named),
                None => Ok(()),
            }
        },
        |done| progress.update("scoring", done as u64, total as u64),
    )?;
    drop(progress);
    if let Some(file) = logits {
        file.finish().and_then(PartialFile::finish).with_context(named)?;
    }
    if args.json {
        let mut document = json!({
            "tokens": result.tokens,
            "bytes": result.bytes,
            "perplexity": result.perplexity,
            "bits_per_byte": result.bits_per_byte,
        });
        if let Some(d) = result.distance {
            document["kl"] = json!(d.kl);
            document["same_top"] = json!(d.same_top);
            document["reference_perplexity"] = json!(d.reference_perplexity);
        }
        if args.save_logits.is_some() {
            document["token_windows"] = json!(windows);
        }
        return output::print_json(&document);
    }
    output::print_line(&format!(
        "perplexity {:.4}, {:.4} bits per byte, over {} tokens and {} bytes",
        result.perplexity, result.bits_per_byte, result.tokens, result.bytes
    ))?;
    if let Some(d) = result.distance {
        output::print_line(&format!(
            "KL to the reference {:.6} nats, same top token {:.2}%, reference perplexity {:.4}",
            d.kl,
            d.same_top * 100.0,
            d.reference_perplexity
        ))?;
    }
    Ok(())
}
