//! `koudai tokens`: text to token ids and back.

use anyhow::Context;
use koudai::Error;
use koudai::tokenizer::{Special, Tokenizer};
use serde_json::json;

use crate::args::{ModelArgs, TrustArgs, ids};
use crate::output;

/// Turn text into token ids, or ids into text
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai tokens 'Hello, world!'\n  \
    koudai tokens --decode 19556,28,905,17\n  koudai tokens -m tokenizer.json --special '<|im_end|>'")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text
    #[arg(value_name = "TEXT", required_unless_present_any = ["decode", "file"])]
    text: Option<String>,
    /// Token ids to turn into text, as 1,2,3
    #[arg(long, value_name = "IDS", conflicts_with_all = ["text", "file"])]
    decode: Option<String>,
    /// Read texts from a file, one JSON string on each line
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    file: Option<String>,
    /// Let the text spell control tokens
    #[arg(long)]
    special: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print JSON: one document, or a line for each line of --file
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tokenizer = open(args)?;
    let special = if args.special { Special::Parse } else { Special::Text };
    if let Some(list) = &args.decode {
        let ids = ids(list)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size()) {
            anyhow::bail!("token id {id} is outside the vocabulary of {}", tokenizer.vocab_size());
        }
        let text = tokenizer.decode(&ids, false);
        return match args.json {
            true => output::print_json(&json!({ "ids": ids, "text": text })),
            false => output::print_line(&text),
        };
    }
    if let Some(file) = &args.file {
        for (i, line) in crate::args::read_text(file)?.lines().enumerate() {
            let text: String = serde_json::from_str(line)
                .with_context(|| format!("{file} line {}: not a JSON string", i + 1))?;
            show(&tokenizer, &text, special, args.json)?;
        }
        return Ok(());
    }
    show(&tokenizer, args.text.as_deref().unwrap_or_default(), special, args.json)
}

fn show(tokenizer: &Tokenizer, text: &str, special: Special, json: bool) -> anyhow::Result<()> {
    let ids = tokenizer.encode(text, special);
    if json {
        let pieces: Vec<String> = ids.iter().map(|id| piece(tokenizer, *id)).collect();
        return output::print_json(&json!({ "ids": ids, "pieces": pieces }));
    }
    let parts: Vec<String> =
        ids.iter().map(|id| format!("{id}:{:?}", piece(tokenizer, *id))).collect();
    output::print_line(&format!("{}\n{} tokens", parts.join(" "), ids.len()))
}

/// A token's bytes as text, what isn't UTF-8 replaced.
pub(crate) fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned()
}

/// The tokenizer of a model, or of a `tokenizer.json` alone.
fn open(args: &Args) -> anyhow::Result<Tokenizer> {
    let model = &args.model;
    if model.model.ends_with(".json") {
        let json = koudai_convert::read_json(model.model.as_ref())?;
        let spec = koudai_convert::tokenizer::spec_from_tokenizer_json(
            &koudai_convert::tokenizer::TokenizerFiles {
                tokenizer: &json,
                config: None,
                end_ids: &[],
            },
        )
        .with_context(|| model.model.clone())?;
        let bytes = spec.to_bytes().with_context(|| model.model.clone())?;
        return Tokenizer::open(bytes.into()).with_context(|| model.model.clone());
    }
    let path = model.path()?;
    let name = || path.display().to_string();
    let at = |e| Error::File(path.clone(), e);
    let file = koudai::file::ModelFile::open(&path).map_err(at)?;
    file.check_trust(&args.trust.trust()?).map_err(at)?;
    let section = file.section(koudai::file::section::TOKENIZER).context("it has no tokenizer")?;
    Tokenizer::open(section).with_context(name)
}
