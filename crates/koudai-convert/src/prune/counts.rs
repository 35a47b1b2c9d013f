//! How often each token occurs in each domain: counted on all processors, saved, merged.
//!
//! Counts are whole numbers, so neither the number of threads nor the way that files were shared
//! out among machines changes them. The file's form is in docs/prune.md. Start with
//! [`Counts::count`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{SyncSender, sync_channel};

use koudai::PartialFile;
use koudai::tokenizer::{Kind, Spec, Special, Tokenizer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::convert::{Stage, Watch, hex, tell};
use crate::corpus::{self, Part};
use crate::error::Error;
use crate::folder::read_json;

/// Texts are handed to threads in batches of at least this many bytes.
const BATCH_BYTES: usize = 64 << 10;

/// Texts of one domain.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The domain they belong to.
    pub domain: String,
    files: Vec<PathBuf>,
}

impl Corpus {
    /// `path` is a file, a folder with all that is in it, or a pattern such as `web/**/*.jsonl`.
    pub fn find(domain: &str, path: &str) -> Result<Corpus, Error> {
        Ok(Corpus { domain: domain.to_owned(), files: corpus::find(path)? })
    }
}

/// How to read corpora.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Member of JSON lines, column of Parquet files.
    pub field: String,
    /// Which texts of each corpus.
    pub part: Part,
    /// Threads that tokenize, at least 1.
    pub threads: usize,
}

/// Counts of tokens by domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    format: Format,
    tokenizer: String,
    domains: BTreeMap<String, Domain>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Format {
    #[serde(rename = "koudai-counts-1")]
    One,
}

/// Counts of one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Bytes of text.
    pub bytes: u64,
    /// Bytes left out because they weren't UTF-8.
    pub skipped_bytes: u64,
    /// How often each id occurs; ids that don't are absent.
    pub counts: BTreeMap<u32, u64>,
}

impl Counts {
    /// Nothing counted so far.
    pub fn new(tokenizer: &Tokenizer) -> Counts {
        Counts { format: Format::One, tokenizer: identity(tokenizer), domains: BTreeMap::new() }
    }

    /// Adds what is in `corpora`.
    pub fn count(
        &mut self,
        tokenizer: &Tokenizer,
        corpora: &[Corpus],
        reading: &Reading,
        progress: &mut Watch<'_>,
    ) -> Result<(), Error> {
        let n = tokenizer.vocab_size();
        for_all(
            corpora,
            reading,
            || (Domain::default(), vec![0u64; n]),
            |(domain, counts), text, skipped| {
                domain.bytes += text.len() as u64;
                domain.skipped_bytes += skipped;
                let ids = tokenizer.encode(text, Special::Text);
                ids.iter().for_each(|&id| counts[id as usize] += 1);
            },
            &mut |name, (mut tally, counts): (Domain, Vec<u64>)| {
                let counted = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
                tally.counts = counted.map(|(id, count)| (id as u32, count)).collect();
                self.domains.entry(name.to_owned()).or_default().add(&tally);
            },
            &mut |done, total| tell(progress, Stage::Count, done, total),
        )
    }

    /// Adds counts made elsewhere, with the same tokenizer.
    pub fn merge(&mut self, other: &Counts) -> Result<(), Error> {
        if other.tokenizer != self.tokenizer {
            return Err(Error::Input("its counts are of another tokenizer".into()));
        }
        for (name, domain) in &other.domains {
            self.domains.entry(name.clone()).or_default().add(domain);
        }
        Ok(())
    }

    /// Reads a file written by [`Counts::save`].
    pub fn load(path: &Path) -> Result<Counts, Error> {
        let error = |why: String| Error::At(path.to_owned(), Box::new(Error::Input(why)));
        serde_json::from_slice(&read_json(path)?)
            .map_err(|e| error(format!("isn't a file of counts: {e}")))
    }

    /// Writes a file that [`Counts::load`] reads.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let json = serde_json::to_vec(self).map_err(|e| Error::Io(path.to_owned(), e.into()))?;
        PartialFile::write(path, &json).map_err(|e| Error::Io(path.to_owned(), e))
    }

    /// The domains by name.
    pub fn domains(&self) -> &BTreeMap<String, Domain> {
        &self.domains
    }

    /// How often each of `n` tokens occurs: its share of each domain, summed with `weights` (1 where
    /// there is none).
    pub(super) fn frequency(
        &self,
        n: usize,
        weights: &BTreeMap<String, f64>,
    ) -> Result<Vec<f64>, Error> {
        if let Some(name) = weights.keys().find(|name| !self.domains.contains_key(*name)) {
            let known: Vec<&str> = self.domains.keys().map(String::as_str).collect();
            let why =
                format!("there is a weight for `{name}`, the domains are {}", known.join(", "));
            return Err(Error::Input(why));
        }
        if self.domains.is_empty() {
            return Err(Error::Input(
                "there are no counts: nothing says which tokens to keep".into(),
            ));
        }
        let mut frequency = vec![0.0; n];
        for (name, domain) in &self.domains {
            let total = domain.tokens();
            if total == 0 {
                return Err(Error::Input(format!("the corpora of `{name}` have no text to count")));
            }
            let share = weights.get(name).copied().unwrap_or(1.0) / total as f64;
            for (&id, &count) in &domain.counts {
                let Some(sum) = frequency.get_mut(id as usize) else {
                    return Err(Error::Input(format!("`{name}` counts id {id} of {n} tokens")));
                };
                *sum += share * count as f64;
            }
        }
        Ok(frequency)
    }
}

impl Domain {
    /// Tokens counted.
    pub fn tokens(&self) -> u64 {
        self.counts.values().fold(0, |sum, &count| sum.saturating_add(count))
    }

    fn add(&mut self, other: &Domain) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.skipped_bytes = self.skipped_bytes.saturating_add(other.skipped_bytes);
        for (&id, &count) in &other.counts {
            let sum = self.counts.entry(id).or_default();
            *sum = sum.saturating_add(count);
        }
    }
}

/// How long texts are in tokens, before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fertility {
    /// Characters of text.
    pub characters: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Tokens before.
    pub before: u64,
    /// Tokens after.
    pub after: u64,
}

impl Fertility {
    /// Tokens for each character, before and after.
    pub fn per_character(&self) -> (f64, f64) {
        let characters = self.characters.max(1) as f64;
        (self.before as f64 / characters, self.after as f64 / characters)
    }
}

/// Tokenizes `corpora` with both tokenizers: by domain, those without text left out.
pub fn fertility(
    before: &Tokenizer,
    after: &Tokenizer,
    corpora: &[Corpus],
    reading: &Reading,
    progress: &mut Watch<'_>,
) -> Result<BTreeMap<String, Fertility>, Error> {
    let mut domains: BTreeMap<String, Fertility> = BTreeMap::new();
    for_all(
        corpora,
        reading,
        Fertility::default,
        |sum, text, _| {
            sum.characters += text.chars().count() as u64;
            sum.bytes += text.len() as u64;
            sum.before += before.encode(text, Special::Text).len() as u64;
            sum.after += after.encode(text, Special::Text).len() as u64;
        },
        &mut |name, tally| {
            let sum = domains.entry(name.to_owned()).or_default();
            sum.characters += tally.characters;
            sum.bytes += tally.bytes;
            sum.before += tally.before;
            sum.after += tally.after;
        },
        &mut |done, total| tell(progress, Stage::Measure, done, total),
    )?;
    domains.retain(|_, sum| sum.characters > 0);
    Ok(domains)
}

/// Texts on their way to a thread, each with the bytes left out of it.
type Batch = Vec<(String, u64)>;

/// Gives every text of `corpora` to `work` on one of several threads, with a state of that thread
/// and corpus; then the states of the corpus, and its domain, to `finish`.
fn for_all<S: Send>(
    corpora: &[Corpus],
    reading: &Reading,
    new: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &str, u64) + Sync,
    finish: &mut dyn FnMut(&str, S),
    progress: &mut dyn FnMut(u64, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |m| m.len());
    let total = corpora.iter().flat_map(|c| &c.files).map(size).sum();
    let mut done = 0;
    for corpus in corpora {
        let (sender, receiver) = sync_channel::<Batch>(2 * reading.threads);
        let receiver = Mutex::new(receiver);
        let next = || receiver.lock().unwrap_or_else(|e| e.into_inner()).recv();
        let thread = || {
            let mut state = new();
            while let Ok(batch) = next() {
                batch.iter().for_each(|(text, skipped)| work(&mut state, text, *skipped));
            }
            state
        };
        let states = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..reading.threads).map(|_| scope.spawn(thread)).collect();
            let mut number = 0;
            let read = corpus.files.iter().try_for_each(|path| {
                let so_far = done;
                done += size(path);
                let progress = &mut |of_file| progress(so_far + of_file, total);
                send(path, reading, &mut number, &sender, progress)
            });
            // Without a sender, threads come to their end.
            drop(sender);
            let states = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let states: Vec<S> = states.collect();
            read.map(|()| states)
        })?;
        states.into_iter().for_each(|state| finish(&corpus.domain, state));
    }
    Ok(())
}

/// Sends the texts of a file in batches. `number` is that of the corpus's next text.
fn send(
    path: &Path,
    reading: &Reading,
    number: &mut u64,
    sender: &SyncSender<Batch>,
    progress: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut batch, mut bytes) = (Batch::new(), 0);
    corpus::read(path, &reading.field, &mut |text| {
        *number += 1;
        if reading.part.has(*number - 1) {
            bytes += text.text.len();
            batch.push((text.text.into_owned(), text.skipped));
        }
        if bytes >= BATCH_BYTES {
            bytes = 0;
            // It fails when no thread is left, which is when one panicked: joining them says so.
            let _ = sender.send(std::mem::take(&mut batch));
        }
        progress(text.done)
    })?;
    let _ = sender.send(batch);
    Ok(())
}

/// SHA-256 of all that decides which ids a text has: roles of tokens and rows without meaning at the
/// end don't, and a `tokenizer.json` alone doesn't say them.
fn identity(tokenizer: &Tokenizer) -> String {
    let mut spec = Spec { bos: None, eos: None, pad: None, ends: Vec::new(), ..tokenizer.spec() };
    (spec.add_bos, spec.add_eos) = (false, false);
    while spec.tokens.pop_if(|token| token.kind == Kind::Unused).is_some() {}
    // What can't be written without those rows isn't a tokenizer for any text.
    hex(&Sha256::digest(spec.to_bytes().unwrap_or_default()))
}
