//! One file for everything that belongs to a model: adds a draft, a decision head, adapters, golden
//! prompts, a model card and pairs of strings to a `.koudai` file.
//!
//! Weights are copied as they are, and compared with their hash. What attachments say is for whoever
//! reads them; here they are only tied to the model. Start with [`pack`].

use std::path::{Path, PathBuf};

use koudai::file::{
    Attachment, AttachmentKind, FileWriter, MAX_ADAPTERS, ModelFile, map_file, section,
};
use koudai::golden::Golden;
use koudai::{CancelToken, Engine, OpenOptions};

use crate::convert::{Stage, Watch, tell};
use crate::error::Error;

type Pairs = Vec<(String, String)>;

/// What to add to a file. What it has already of the same name is replaced, and the rest stays.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// A file with a draft model.
    pub draft: Option<PathBuf>,
    /// A file with a decision head.
    pub decision: Option<PathBuf>,
    /// Adapters: name and file.
    pub adapters: Vec<(String, PathBuf)>,
    /// Prompts to record; see [`Golden`].
    pub golden: Vec<String>,
    /// The model card, as Markdown.
    pub card: Option<String>,
    /// Pairs about the model.
    pub meta: Pairs,
    /// Pairs about where it comes from, appended to those that are there.
    pub lineage: Pairs,
}

/// What was packed.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Bytes of the file.
    pub bytes: u64,
    /// Its fingerprint.
    pub fingerprint: [u8; 32],
    /// The hash that attachments are tied to.
    pub model_hash: [u8; 32],
    /// Names of its sections.
    pub sections: Vec<String>,
    /// The input was signed, and the signature isn't of the new content.
    pub dropped_signature: bool,
}

/// Writes `input` with additions to `output`, which may be the same. Golden prompts are run now, on
/// this machine's instruction set; `cancel` stops them.
///
/// An attachment's file is one that [`Attachment::envelope`] starts, and then it must have been made
/// for this model; any other file is a payload that is tied to this model now.
pub fn pack(
    input: &Path,
    output: &Path,
    additions: &Additions,
    cancel: &CancelToken,
    progress: &mut Watch<'_>,
) -> Result<Packed, Error> {
    for (i, (name, _)) in additions.adapters.iter().enumerate() {
        if additions.adapters[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(Error::Input(format!("adapter `{name}` is given twice")));
        }
    }
    let at = |e| Error::in_file(input, e);
    let file = ModelFile::open(input).map_err(at)?;
    let attachments = attachments(&file, additions).map_err(|e| Error::in_file(input, e))?;
    let golden = golden(&file, input, &additions.golden, cancel)?;
    let mut lineage = file.lineage().map_err(at)?;
    lineage.extend(additions.lineage.iter().cloned());
    let card = match &additions.card {
        Some(card) => Some(card.clone()),
        None => file.card().map_err(at)?,
    };

    let mut writer = FileWriter::create(output)?;
    for s in file.sections().iter().filter(|s| !is_written_anew(&s.name)) {
        writer.copy(&file, &s.name)?;
    }
    writer.meta(&updated(file.meta().map_err(at)?, &additions.meta))?;
    copy_tensors(&mut writer, &file, input, progress)?;
    if let Some(card) = card {
        writer.section(section::CARD, false, card.as_bytes())?;
    }
    if !lineage.is_empty() {
        writer.lineage(&lineage)?;
    }
    if let Some(golden) = golden {
        writer.section(section::GOLDEN, false, &golden.encode())?;
    }
    let mut counts = [0; 4];
    for attachment in &attachments {
        let count = &mut counts[attachment.kind as usize];
        writer.attachment(*count, attachment)?;
        *count += 1;
    }
    writer.finish()?;
    let packed = ModelFile::open(output)?;
    Ok(Packed {
        bytes: packed.len_bytes(),
        fingerprint: packed.fingerprint(),
        model_hash: packed.model_hash(),
        sections: packed.sections().iter().map(|s| s.name.clone()).collect(),
        dropped_signature: file.section(section::SIGNED).is_some(),
    })
}

/// True for sections that aren't just copied: tensors, what may have additions, and a signature.
fn is_written_anew(name: &str) -> bool {
    let sections = [
        section::TENSORS,
        section::WEIGHTS,
        section::BLOCKS,
        section::META,
        section::CARD,
        section::LINEAGE,
        section::GOLDEN,
        section::DRAFT,
        section::DECISION,
        section::SIGNED,
    ];
    sections.contains(&name) || name.starts_with(section::ADAPTERS)
}

/// Copies the tensors of the file at `input`, telling how far it is.
pub(crate) fn copy_tensors(
    writer: &mut FileWriter,
    file: &ModelFile,
    input: &Path,
    progress: &mut Watch<'_>,
) -> Result<(), Error> {
    let mut done = 0;
    let copied = writer.copy_tensors(file, |bytes| {
        done += bytes;
        tell(progress, Stage::Write, done, file.len_bytes())
    });
    copied.map_err(|e| Error::in_file(input, e))
}

/// The pairs with some of them replaced or added.
fn updated(mut pairs: Pairs, changes: &Pairs) -> Pairs {
    for (key, value) in changes {
        pairs.retain(|(k, _)| k != key);
        pairs.push((key.clone(), value.clone()));
    }
    pairs
}

/// Those of the file that aren't replaced, and the new ones.
fn attachments(file: &ModelFile, additions: &Additions) -> Result<Vec<Attachment>, Error> {
    let mut all = file.attachments()?;
    let draft = additions.draft.iter().map(|p| (AttachmentKind::Draft, "", p));
    let decision = additions.decision.iter().map(|p| (AttachmentKind::Decision, "", p));
    let adapters =
        additions.adapters.iter().map(|(name, p)| (AttachmentKind::Adapter, name.as_str(), p));
    for (kind, name, path) in draft.chain(decision).chain(adapters) {
        let refuse = |why: &str| Error::At(path.clone(), Box::new(Error::Input(why.into())));
        let bytes = map_file(path)?;
        let mut attachment = match Attachment::recognizes(&bytes) {
            true => Attachment::decode(&bytes).ok_or_else(|| refuse("a malformed attachment"))?,
            false => {
                Attachment { kind, name: String::new(), target: file.model_hash(), payload: bytes }
            }
        };
        if attachment.kind != kind {
            let is = attachment.kind.name();
            return Err(refuse(&format!("is an attachment for --{is}, not for --{}", kind.name())));
        }
        if attachment.target != file.model_hash() {
            return Err(refuse("was made for another model"));
        }
        attachment.name = name.to_owned();
        all.retain(|a| (a.kind, &a.name) != (kind, &attachment.name));
        all.push(attachment);
    }
    let n_adapters = all.iter().filter(|a| a.kind == AttachmentKind::Adapter).count();
    if n_adapters > MAX_ADAPTERS {
        let why = format!("{n_adapters} adapters; {MAX_ADAPTERS} are allowed");
        return Err(Error::Input(why));
    }
    Ok(all)
}

/// The file's golden prompts, or new ones.
fn golden(
    file: &ModelFile,
    input: &Path,
    prompts: &[String],
    cancel: &CancelToken,
) -> Result<Option<Golden>, Error> {
    let earlier = Golden::of(file).map_err(|e| Error::in_file(input, e))?;
    if prompts.is_empty() {
        return Ok(earlier);
    }
    let engine = Engine::open(input, &OpenOptions::default())?;
    let mut golden = Golden::record(&engine, prompts, cancel)?;
    if let Some(earlier) = earlier {
        golden.join(&earlier);
    }
    Ok(Some(golden))
}
