//! A smaller vocabulary: of a `tokenizer.json`, or of a model with the rows of its embedding.
//!
//! Tokens are counted in texts of the domains that matter ([`Counts`]), the cheapest are taken away
//! (`leaves.rs`), and the rest is renumbered (`rewrite.rs`). Nothing is trained and no weight
//! changes. What the theorem behind it promises is in docs/prune.md. Start with
//! [`Vocabulary::prune`].

mod counts;
mod leaves;
mod rewrite;

use std::collections::BTreeMap;
use std::path::Path;

use koudai::PartialFile;
use koudai::bytes::SharedBytes;
use koudai::file::{ModelFile, section};
use koudai::tokenizer::{Spec, Tokenizer};
use serde_json::{Value, json};

pub use crate::corpus::Part;
pub use counts::{Corpus, Counts, Domain, Fertility, Reading, fertility};
pub use glob::Pattern;

use crate::convert::{Watch, hex};
use crate::error::Error;
use crate::folder::read_json;
use crate::tokenizer::{TokenizerFiles, spec_from_tokenizer_json};

/// A vocabulary and what it came with.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    spec: Spec,
    source: Source,
}

enum Source {
    Json(Value),
    Model(Box<ModelFile>),
}

/// What to keep.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens to keep, added ones included.
    pub size: usize,
    /// Weights of domains; 1 where there is none.
    pub weights: BTreeMap<String, f64>,
    /// Added tokens spelled like this go first.
    pub unwanted: Vec<Pattern>,
}

/// A vocabulary of which it is known what stays.
pub struct Pruned<'a> {
    of: &'a Vocabulary,
    ids: NewIds,
    spec: Spec,
    tokenizer: Tokenizer,
    lineage: Vec<(String, String)>,
}

/// Which tokens stay. Their order stays too, so a token's new id is its place among them.
struct NewIds {
    kept: Vec<u32>,
}

impl NewIds {
    /// The old ids, ascending.
    fn kept(&self) -> &[u32] {
        &self.kept
    }

    /// The new id of an old one.
    fn of(&self, old: u32) -> Option<u32> {
        self.kept.binary_search(&old).ok().map(|new| new as u32)
    }
}

impl Vocabulary {
    /// Opens a `tokenizer.json`.
    pub fn open_json(path: &Path) -> Result<Vocabulary, Error> {
        let read = || {
            let bytes = read_json(path)?;
            let files = TokenizerFiles { tokenizer: &bytes, ..Default::default() };
            let spec = spec_from_tokenizer_json(&files)?;
            let json = serde_json::from_slice(&bytes).map_err(crate::tokenizer::Error::Json)?;
            Ok((open(&spec)?, spec, json))
        };
        let (tokenizer, spec, json) = read().map_err(|e: Error| match e {
            Error::Tokenizer(_) => Error::At(path.to_owned(), Box::new(e)),
            other => other,
        })?;
        Ok(Vocabulary { tokenizer, spec, source: Source::Json(json) })
    }

    /// Opens a `.koudai` file.
    pub fn open_model(path: &Path) -> Result<Vocabulary, Error> {
        let read = || {
            let file = ModelFile::open(path)?;
            // Its weights get new hashes: damage would become what they vouch for.
            file.verify()?;
            let bytes = file.section(section::TOKENIZER).unwrap_or_else(|| Vec::new().into());
            let tokenizer = Tokenizer::open(bytes).map_err(|e| Error::Tokenizer(e.into()))?;
            if tokenizer.vocab_size() > file.config().vocab_size {
                return Err(Error::Input("has more tokens than embedding rows".into()));
            }
            Ok((tokenizer, file))
        };
        let (tokenizer, file) = read().map_err(|e| Error::At(path.to_owned(), Box::new(e)))?;
        Ok(Vocabulary { spec: tokenizer.spec(), tokenizer, source: Source::Model(Box::new(file)) })
    }

    /// The tokenizer, to count with.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model it is of, if it isn't a `tokenizer.json` alone.
    pub fn model(&self) -> Option<&ModelFile> {
        match &self.source {
            Source::Json(_) => None,
            Source::Model(file) => Some(file),
        }
    }

    /// Chooses the tokens that `counts` make worth keeping.
    pub fn prune(&self, counts: &Counts, options: &Options) -> Result<Pruned<'_>, Error> {
        let n = self.tokenizer.vocab_size();
        if options.size > n {
            let why = format!("{} tokens can't be kept: there are {n}", options.size);
            return Err(Error::Input(why));
        }
        let frequency = counts.frequency(n, &options.weights)?;
        let unwanted = rewrite::matching(&self.spec, &options.unwanted);
        let kept = leaves::keep(&self.tokenizer, &self.spec, &frequency, &unwanted, options.size)?;
        let ids = NewIds { kept };
        let spec = rewrite::spec(&self.spec, &ids);
        let domains = counts.domains().iter().map(|(name, domain)| {
            let weight = options.weights.get(name).copied().unwrap_or(1.0);
            format!("{name} {weight} ({} tokens)", domain.tokens())
        });
        let mut lineage = vec![
            ("pruned_vocab".to_owned(), format!("{n} to {}", ids.kept.len())),
            ("pruned_for".to_owned(), domains.collect::<Vec<_>>().join(", ")),
        ];
        if let Some(file) = self.model() {
            lineage.push(("pruned_from".to_owned(), hex(&file.fingerprint())));
        }
        Ok(Pruned { of: self, tokenizer: open(&spec)?, ids, spec, lineage })
    }
}

impl Pruned<'_> {
    /// The smaller tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Old ids of the tokens that stay, ascending: the new id of each is its place.
    pub fn kept(&self) -> &[u32] {
        self.ids.kept()
    }

    /// Writes the `tokenizer.json` or the model. Returns what the user should know.
    pub fn write(&self, output: &Path, progress: &mut Watch<'_>) -> Result<Vec<String>, Error> {
        match &self.of.source {
            Source::Json(root) => {
                let json = rewrite::tokenizer_json(root, &self.of.spec, &self.ids);
                let bytes =
                    serde_json::to_vec_pretty(&json).map_err(crate::tokenizer::Error::Json)?;
                write_file(output, &bytes)?;
                Ok(Vec::new())
            }
            Source::Model(file) => {
                let lineage = self.lineage.clone();
                let left = rewrite::model(file, &self.spec, &self.ids, lineage, output, progress)?;
                let note =
                    |name| format!("section `{name}` belongs to the old vocabulary: left out");
                Ok(left.into_iter().map(note).collect())
            }
        }
    }

    /// Writes which old id became which new one.
    pub fn write_map(&self, path: &Path) -> Result<(), Error> {
        let map = json!({
            "format": "koudai-vocabulary-map-1",
            "from": self.of.tokenizer.vocab_size(),
            "to": self.ids.kept.len(),
            "old_ids": self.ids.kept,
        });
        write_file(path, map.to_string().as_bytes())
    }
}

fn open(spec: &Spec) -> Result<Tokenizer, Error> {
    let bytes = spec.to_bytes().map_err(|e| Error::Tokenizer(e.into()))?;
    Tokenizer::open(SharedBytes::from(bytes)).map_err(|e| Error::Tokenizer(e.into()))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    PartialFile::write(path, bytes).map_err(|e| Error::Io(path.to_owned(), e))
}
