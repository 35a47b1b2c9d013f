//! From files of text to micro-batches, the same ones for the same recipe on every run.
//!
//! [`tokens`] keeps documents tokenized in a mapped file, [`packing`] lays them into rows; here the two
//! make [`Rows`], which gives any micro-batch by its number. So a run's position in its data is a
//! number, and resuming needs nothing else. Start with [`Rows`].

pub mod conversations;
pub mod packing;
pub mod texts;
pub mod tokens;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use koudai_convert::{Error, corpus};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::backend::{Device, integers};
use crate::loss::Targets;
use crate::model::Inputs;
use crate::recipe::{Recipe, Source};
use packing::{Piece, pack};
use tokens::{TokenFile, Writer};

/// Makes documents of the files of a source.
pub trait Reader {
    /// All that decides what becomes of a text.
    fn identity(&self) -> Vec<&[u8]>;

    /// Writes the documents of a source.
    fn read(&self, source: &Source, writer: &mut Writer) -> Result<(), Error>;
}

/// The rows that a recipe trains on, and those it evaluates on, if any.
pub fn open(recipe: &Recipe, reader: &dyn Reader, split: bool) -> Result<(Rows, Option<Rows>)> {
    let cache = recipe.data.cache.clone().unwrap_or_else(|| recipe.output.join("tokens"));
    let files = |sources: &[Source]| -> Result<Vec<TokenFile>> {
        sources.iter().map(|source| token_file(&cache, reader, source)).collect()
    };
    let rows =
        |files, documents, seed| Rows::new(files, documents, recipe.train.length, split, seed);
    let sources = &recipe.data.sources;
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    let train_files = files(sources)?;
    for (file, (source, tokens)) in sources.iter().zip(&train_files).enumerate() {
        for number in 0..tokens.n_documents() as u32 {
            let document = Document { file: file as u32, number };
            // Documents of an even spread, at which the running sum reaches the next whole number.
            let times = |share: f64| {
                let upto = |n: u32| (f64::from(n) * share) as u64;
                upto(number + 1) - upto(number)
            };
            match recipe.evaluate.sources.is_empty() && times(recipe.data.held_out) > 0 {
                true => held_out.push(document),
                false => (0..times(source.repeat)).for_each(|_| train.push(document)),
            }
        }
    }
    let held_out = match recipe.evaluate.sources.is_empty() {
        _ if recipe.evaluate.every == 0 => None,
        true => Some(rows(files(sources)?, held_out, 0).context("the data held out")?),
        false => {
            let files = files(&recipe.evaluate.sources)?;
            let all = files.iter().enumerate().flat_map(|(file, tokens)| {
                let document = move |number| Document { file: file as u32, number };
                (0..tokens.n_documents() as u32).map(document)
            });
            let all = all.collect();
            Some(rows(files, all, 0).context("evaluate.sources")?)
        }
    };
    Ok((rows(train_files, train, recipe.seed).context("data.sources")?, held_out))
}

/// The tokens of a source, made now unless they were before.
fn token_file(cache: &Path, reader: &dyn Reader, source: &Source) -> Result<TokenFile> {
    let mut key = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        key.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    reader.identity().into_iter().for_each(&mut add);
    add(format!("{:?}", source.field).as_bytes());
    for file in corpus::find(&source.path)? {
        let about = file.metadata().with_context(|| file.display().to_string())?;
        add(file.as_os_str().as_encoded_bytes());
        add(format!("{} {:?}", about.len(), about.modified().ok()).as_bytes());
    }
    TokenFile::open(cache, &key.finalize(), |writer| reader.read(source, writer))
}

/// Documents laid into rows of one length, in an order that a seed decides.
pub struct Rows {
    files: Vec<TokenFile>,
    rows: Vec<Vec<Piece>>,
    length: usize,
    seed: u64,
    /// Documents that no row is long enough for.
    pub too_long: usize,
    /// The epoch whose order is at hand.
    order: (u64, Vec<u32>),
}

/// A document of some file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// Which file.
    pub file: u32,
    /// Which of its documents.
    pub number: u32,
}

/// A micro-batch.
pub struct Batch {
    /// What the model reads.
    pub inputs: Inputs,
    /// What it is to predict.
    pub targets: Targets,
    /// Tokens it is to predict.
    pub n_targets: usize,
    /// Bytes of their text; 0 where it isn't known.
    pub n_bytes: u64,
}

impl Rows {
    /// Packs `documents` of `files` into rows of `length` tokens. Documents that are longer are cut
    /// into pieces if `split`, and left out otherwise.
    pub fn new(
        files: Vec<TokenFile>,
        mut documents: Vec<Document>,
        length: usize,
        split: bool,
        seed: u64,
    ) -> Result<Rows> {
        shuffle(&mut documents, seed, u64::MAX);
        // The last token of a document predicts nothing.
        let inputs = |d: &Document| files[d.file as usize].document(d.number).tokens.len() - 1;
        let packed = pack(&documents, inputs, length, split);
        ensure!(!packed.rows.is_empty(), "there are no documents that fit rows of {length} tokens");
        Ok(Rows {
            files,
            rows: packed.rows,
            length,
            seed,
            too_long: packed.too_long,
            order: (u64::MAX, Vec::new()),
        })
    }

    /// Rows of an epoch.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The rows with these numbers, which go on through epochs, as a micro-batch.
    pub fn batch(&mut self, numbers: std::ops::Range<u64>, device: Device) -> Batch {
        let rows: Vec<usize> = numbers.map(|number| self.row(number)).collect();
        self.collate(rows.into_iter(), device)
    }

    /// Rows as they were packed, without shuffling: for evaluation.
    pub fn in_order(&self, rows: std::ops::Range<usize>, device: Device) -> Batch {
        self.collate(rows, device)
    }

    fn row(&mut self, number: u64) -> usize {
        let n = self.rows.len() as u64;
        let epoch = number / n;
        if self.order.0 != epoch {
            let mut order: Vec<u32> = (0..self.rows.len() as u32).collect();
            shuffle(&mut order, self.seed, epoch);
            self.order = (epoch, order);
        }
        self.order.1[(number % n) as usize] as usize
    }

    fn collate(&self, rows: impl Iterator<Item = usize>, device: Device) -> Batch {
        let (mut ids, mut lengths) = (Vec::new(), Vec::new());
        let (mut at, mut targets, mut n_bytes) = (Vec::new(), Vec::new(), 0.0);
        for row in rows {
            let mut of_row = Vec::new();
            let end = ids.len() + self.length;
            for piece in &self.rows[row] {
                let Document { file, number } = piece.document;
                let document = self.files[file as usize].document(number);
                let part = &document.tokens[piece.start..][..piece.len + 1];
                for (&input, &target) in part.iter().zip(&part[1..]) {
                    if tokens::is_target(target) {
                        at.push(ids.len() as i64);
                        targets.push(tokens::id(target));
                    }
                    ids.push(tokens::id(input));
                }
                let share = piece.len as f64 / (document.tokens.len() - 1) as f64;
                n_bytes += document.bytes as f64 * share;
                of_row.push(piece.len);
            }
            if ids.len() < end {
                of_row.push(end - ids.len());
                ids.resize(end, 0);
            }
            lengths.push(of_row);
        }
        let n = targets.len();
        Batch {
            inputs: Inputs::packed(&ids, &lengths, device),
            targets: Targets {
                at: integers(&at, &[n as i64], device),
                tokens: integers(&targets, &[n as i64], device),
            },
            n_targets: n,
            n_bytes: n_bytes.round() as u64,
        }
    }
}

/// Fisher–Yates, the same on every machine for the same seed and epoch.
pub fn shuffle<T>(items: &mut [T], seed: u64, epoch: u64) {
    let mut random = Pcg64Mcg::seed_from_u64(seed ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for i in (1..items.len()).rev() {
        // The bias of a 64-bit remainder is beyond notice.
        items.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
    }
}
