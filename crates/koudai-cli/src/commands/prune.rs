//! `koudai prune`: a smaller vocabulary, chosen by what the texts that matter are made of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use koudai::file::ModelFile;
use koudai_convert::prune::{
    Corpus, Counts, Fertility, Options, Part, Pattern, Reading, Vocabulary, fertility,
};
use koudai_eval::bench::bytes_per_token;
use serde_json::{Value, json};

use crate::args::{ModelArgs, above_zero, threads};
use crate::output;

/// Prune the vocabulary of a model or a tokenizer.json
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    koudai prune tokenizer.json --corpus en=wiki/ --corpus zh='web/*.parquet' --weight zh=2 \\\n    \
    --vocab 65536 -o small/tokenizer.json\n  \
    koudai prune gemma3-270m --corpus en.txt --corpus zh.jsonl --vocab 65536 -o gemma-64k.koudai\n  \
    koudai prune tokenizer.json --corpus zh=shard-17.parquet --count-only --save-counts 17.json\n\n\
    docs/prune.md says what is kept and why, and how to count on many machines.")]
pub(crate) struct Args {
    /// A tokenizer.json, a .koudai or .gguf file, a Hugging Face folder, or a known name
    #[arg(value_name = "MODEL")]
    model: String,
    /// Text to count, of a domain: a file, a folder or a pattern; may be repeated. Files that end in
    /// .jsonl and .parquet are read as such. Without a name each is its own domain
    #[arg(long, value_name = "[NAME=]PATH", required_unless_present = "counts")]
    corpus: Vec<Named>,
    /// Counts saved before; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1..)]
    counts: Vec<PathBuf>,
    /// How much a domain matters; may be repeated [default: 1 each]
    #[arg(long, value_name = "NAME=W", value_parser = weight)]
    weight: Vec<(String, f64)>,
    /// Tokens to keep, added ones included
    #[arg(long, value_name = "N", value_parser = above_zero, allow_negative_numbers = true)]
    #[arg(required_unless_present = "count_only")]
    vocab: Option<usize>,
    /// The file to write: a .koudai file, or a tokenizer.json if that is what came in
    #[arg(short, long, value_name = "OUT", required_unless_present = "count_only")]
    output: Option<PathBuf>,
    /// Where to write which old id became which [default: OUT with .map.json for its ending]
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Take away added tokens spelled like this before all others, such as '<unused*>'
    #[arg(long, value_name = "PATTERN", value_parser = Pattern::new)]
    drop: Vec<Pattern>,
    /// Text to measure tokens per character in; may be repeated [default: every tenth text of each
    /// corpus, which then isn't counted]
    #[arg(long, value_name = "[NAME=]PATH")]
    held_out: Vec<Named>,
    /// Member of JSON lines and column of Parquet files that has the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Write the counts to this file
    #[arg(long, value_name = "FILE")]
    save_counts: Option<PathBuf>,
    /// Count and nothing else
    #[arg(long, requires = "save_counts", conflicts_with_all = ["vocab", "output", "map", "held_out"])]
    count_only: bool,
    /// Threads that count [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// A path and the domain it belongs to.
#[derive(Clone)]
struct Named {
    domain: String,
    path: String,
}

impl std::str::FromStr for Named {
    type Err = String;

    /// `NAME=PATH`, or a path that gives its own name.
    fn from_str(text: &str) -> Result<Named, String> {
        let (domain, path) = match text.split_once('=') {
            Some((name, path)) => (name.to_owned(), path),
            None => {
                (Path::new(text).file_stem().unwrap_or_default().to_string_lossy().into(), text)
            }
        };
        match domain.is_empty() || path.is_empty() {
            true => Err("it must be PATH or NAME=PATH".into()),
            false => Ok(Named { domain, path: path.to_owned() }),
        }
    }
}

fn weight(text: &str) -> Result<(String, f64), String> {
    let parts =
        text.rsplit_once('=').and_then(|(name, w)| Some((name.to_owned(), w.parse().ok()?)));
    parts
        .filter(|(_, w): &(String, f64)| w.is_finite() && *w >= 0.0)
        .ok_or_else(|| "it must be NAME=W, such as zh=2".into())
}

impl Args {
    /// Where the map goes, if there is one.
    fn map(&self) -> Option<PathBuf> {
        let beside = self.output.as_ref().map(|out| out.with_extension("map.json"));
        self.map.clone().or(beside)
    }

    /// Fails if an output can't be written or is another file of this command.
    fn check_outputs(&self, input: &Path) -> anyhow::Result<()> {
        let map = self.map();
        let outputs: Vec<&PathBuf> =
            [&self.output, &map, &self.save_counts].into_iter().flatten().collect();
        for (i, path) in outputs.iter().enumerate() {
            output::check_no_input(path, [input])?;
            output::check_no_input(path, &self.counts)?;
            let texts = self.corpus.iter().chain(&self.held_out).map(|named| &named.path);
            output::check_no_input(path, texts)?;
            output::check_writable(path)?;
            if outputs[..i].contains(path) {
                bail!("{}: two outputs can't be one file", path.display());
            }
        }
        Ok(())
    }

    fn reading(&self, part: Part) -> Reading {
        let all = || std::thread::available_parallelism().map_or(1, |threads| threads.get());
        Reading { field: self.field.clone(), part, threads: self.threads.unwrap_or_else(all) }
    }

    /// Corpora are counted whole: nothing is measured, or in other texts.
    fn counts_all(&self) -> bool {
        self.count_only || !self.held_out.is_empty()
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (input, vocabulary) = open(&args.model)?;
    args.check_outputs(&input)?;
    let (corpora, held_out) = (find(&args.corpus)?, find(&args.held_out)?);
    let mut progress = output::Progress::bytes();
    let mut watch = |p| super::pull::show(&mut progress, p);

    let mut counts = Counts::new(vocabulary.tokenizer());
    for path in &args.counts {
        counts.merge(&Counts::load(path)?).with_context(|| path.display().to_string())?;
    }
    let part = if args.counts_all() { Part::Whole } else { Part::Counted };
    counts.count(vocabulary.tokenizer(), &corpora, &args.reading(part), &mut watch)?;
    if let Some(path) = &args.save_counts {
        counts.save(path)?;
    }
    let skipped = counts.domains().iter().filter(|(_, domain)| domain.skipped_bytes > 0);
    for (name, domain) in skipped {
        eprintln!("note: {} bytes of {name} aren't UTF-8 and were left out", domain.skipped_bytes);
    }
    let (Some(size), Some(out), Some(map)) = (args.vocab, &args.output, args.map()) else {
        return show_counts(args, &counts);
    };

    let weights: BTreeMap<String, f64> = args.weight.iter().cloned().collect();
    let options = Options { size, weights, unwanted: args.drop.clone() };
    let pruned = vocabulary.prune(&counts, &options)?;
    let (texts, part) = match args.counts_all() {
        true => (&held_out, Part::Whole),
        false => (&corpora, Part::HeldOut),
    };
    let (before, after) = (vocabulary.tokenizer(), pruned.tokenizer());
    let fertility = fertility(before, after, texts, &args.reading(part), &mut watch)?;
    if fertility.is_empty() {
        eprintln!("note: the texts are too short to hold a part out: nothing is measured");
    }
    let notes = pruned.write(out, &mut watch)?;
    pruned.write_map(&map)?;
    drop(progress);
    notes.iter().for_each(|note| eprintln!("note: {note}"));

    let written = vocabulary.model().map(|_| ModelFile::open(out)).transpose()?;
    let report = Report {
        before: Size::of(&input, vocabulary.model(), before.vocab_size())?,
        after: Size::of(out, written.as_ref(), after.vocab_size())?,
        fertility,
        map,
    };
    match args.json {
        true => output::print_json(&report.json(out)),
        false => output::print(&report.text(out)),
    }
}

fn find(named: &[Named]) -> anyhow::Result<Vec<Corpus>> {
    named.iter().map(|n| Ok(Corpus::find(&n.domain, &n.path)?)).collect()
}

/// The vocabulary of a `tokenizer.json` or of a model, and the file it is in.
fn open(model: &str) -> anyhow::Result<(PathBuf, Vocabulary)> {
    if model.ends_with(".json") {
        let path = PathBuf::from(model);
        return Ok((path.clone(), Vocabulary::open_json(&path)?));
    }
    let path = ModelArgs { model: model.to_owned() }.path()?;
    let vocabulary = Vocabulary::open_model(&path)?;
    Ok((path, vocabulary))
}

fn show_counts(args: &Args, counts: &Counts) -> anyhow::Result<()> {
    if args.json {
        let domains = counts.domains().iter().map(|(name, d)| {
            let counted = json!({ "tokens": d.tokens(), "bytes": d.bytes, "used": d.counts.len() });
            (name.clone(), counted)
        });
        let domains: serde_json::Map<String, Value> = domains.collect();
        return output::print_json(&json!({
            "counts": args.save_counts.as_deref().map(output::path), "domains": domains,
        }));
    }
    let line = |(name, d): (&String, &koudai_convert::prune::Domain)| {
        let (bytes, tokens, used) = (output::megabytes(d.bytes), d.tokens(), d.counts.len());
        format!("{name}: {tokens} tokens in {bytes}, {used} different ones\n")
    };
    output::print(&counts.domains().iter().map(line).collect::<String>())
}

/// A file and its vocabulary.
struct Size {
    tokens: usize,
    bytes: u64,
    /// Of weights, for each decoded token; none for a tokenizer alone.
    bytes_per_token: Option<u64>,
}

impl Size {
    fn of(path: &Path, model: Option<&ModelFile>, tokens: usize) -> anyhow::Result<Size> {
        let metadata = std::fs::metadata(path).with_context(|| path.display().to_string())?;
        Ok(Size { tokens, bytes: metadata.len(), bytes_per_token: model.map(bytes_per_token) })
    }

    fn json(&self) -> Value {
        json!({
            "tokens": self.tokens, "bytes": self.bytes, "bytes_per_token": self.bytes_per_token,
        })
    }
}

struct Report {
    before: Size,
    after: Size,
    fertility: BTreeMap<String, Fertility>,
    map: PathBuf,
}

impl Report {
    fn json(&self, out: &Path) -> Value {
        let domains = self.fertility.iter().map(|(name, f)| {
            let (before, after) = f.per_character();
            let tokens = json!({ "before": f.before, "after": f.after });
            let of_domain = json!({
                "before": before, "after": after,
                "characters": f.characters, "bytes": f.bytes, "tokens": tokens,
            });
            (name.clone(), of_domain)
        });
        json!({
            "output": output::path(out),
            "before": self.before.json(),
            "after": self.after.json(),
            "fertility": domains.collect::<serde_json::Map<String, Value>>(),
            "map": output::path(&self.map),
        })
    }

    fn text(&self, out: &Path) -> String {
        let mut text = String::new();
        if !self.fertility.is_empty() {
            text += &format!(
                "{:<16}{:>12}{:>12}{:>12}{:>10}\n",
                "tokens/character", "held out", "before", "after", "change"
            );
        }
        for (name, f) in &self.fertility {
            let (before, after) = f.per_character();
            let (size, change) = (output::megabytes(f.bytes), (after / before - 1.0) * 100.0);
            text += &format!("{name:<16}{size:>12}{before:>12.4}{after:>12.4}{change:>+9.2}%\n");
        }
        let (before, after) = (&self.before, &self.after);
        text += &format!("vocabulary {} → {}\n", before.tokens, after.tokens);
        if let (Some(old), Some(new)) = (before.bytes_per_token, after.bytes_per_token) {
            let (old, new) = (output::megabytes(old), output::megabytes(new));
            text += &format!("read for each decoded token {old} → {new}\n");
        }
        let (old, new) = (output::megabytes(before.bytes), output::megabytes(after.bytes));
        text += &format!("{}: {old} → {new}\n{}: old ids\n", out.display(), self.map.display());
        text
    }
}
