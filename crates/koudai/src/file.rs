//! The `.koudai` file: a header, a table of hashed sections, the sections.
//!
//! [`ModelFile::open`] maps the file and validates everything but the weights' hash in one pass;
//! after that, views are infallible and nothing is copied; [`ModelFile::verify`] compares the rest.
//! [`FileWriter`] writes beside the final name and renames when all is on disk. The bytes are specified in FORMAT.md. This module knows
//! places and sizes; it doesn't interpret tokenizers or templates.

mod attachment;
mod blocks;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use koudai_kernels::{Kind, Matrix};

use crate::bytes::SharedBytes;
use crate::codec::{Decoder, Encoder};
use crate::config::{Config, Role, Shape, TensorId};
use crate::trust::{self, Signature, Trust};

pub use attachment::{Attachment, AttachmentKind, MAX_ADAPTERS};
pub use blocks::BLOCK_BYTES;
use blocks::Hash;
pub use writer::{FileWriter, TensorHeader, TensorSink};

const MAGIC: [u8; 8] = *b"KOUDAI\r\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 64;
const MAX_SECTIONS: usize = 63;
/// Sections start after the header and a table with room for [`MAX_SECTIONS`].
const FIRST_SECTION: u64 = 4096;
const ALIGN: u64 = 64;
const WEIGHTS_ALIGN: u64 = 4096;
/// Sections other than weights are small; more than this is refused before it is read.
const MAX_SMALL_SECTION: u64 = 256 << 20;

/// Names of the sections, up to 8 ASCII bytes.
pub mod section {
    /// [`crate::Config`].
    pub const CONFIG: &str = "config";
    /// [`crate::tokenizer::Tokenizer`].
    pub const TOKENIZER: &str = "tokens";
    /// The chat template, as UTF-8 Jinja source.
    pub const TEMPLATE: &str = "template";
    /// [`crate::file::Defaults`].
    pub const DEFAULTS: &str = "defaults";
    /// Pairs of strings about the model.
    pub const META: &str = "meta";
    /// The directory of tensors.
    pub const TENSORS: &str = "tensors";
    /// The tensors' bytes.
    pub const WEIGHTS: &str = "weights";
    /// Hashes of the weights' blocks.
    pub const BLOCKS: &str = "blocks";
    /// The model card, as Markdown.
    pub const CARD: &str = "card";
    /// Pairs of strings about where the model comes from.
    pub const LINEAGE: &str = "lineage";
    /// [`crate::golden::Golden`].
    pub const GOLDEN: &str = "golden";
    /// A draft model.
    pub const DRAFT: &str = "draft";
    /// A decision head.
    pub const DECISION: &str = "decision";
    /// What the names of adapters' sections start with; two digits follow.
    pub const ADAPTERS: &str = "adapt";
    /// [`crate::trust::Signature`].
    pub const SIGNED: &str = "signed";
}

/// Why a file can't be used. Every message names the section or offset.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system's word.
    Io(PathBuf, std::io::Error),
    /// It isn't a `.koudai` file.
    NotKoudai,
    /// A version this reader doesn't know.
    Version(u32),
    /// The file is shorter or longer than its header says: a broken download or copy.
    Length {
        /// Bytes that the header promises, or that the smallest file has.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The section table is damaged.
    Table(String),
    /// A section's bytes don't have the recorded hash.
    Hash(String),
    /// A section is missing.
    Missing(&'static str),
    /// A section that must be understood isn't known to this reader.
    UnknownSection(String),
    /// A section's content makes no sense.
    Section(&'static str, String),
    /// A block of the weights doesn't have its hash.
    Block {
        /// Index of the block in the weights.
        index: usize,
        /// Its bytes in the file.
        range: Range<u64>,
        /// The tensors that lie in it.
        tensors: String,
    },
    /// An attachment's section can't be used.
    Attachment(String, String),
    /// The file isn't signed as it should be.
    Untrusted(String),
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileError::Io(path, e) => write!(f, "{}: {e}", path.display()),
            FileError::NotKoudai => f.write_str("not a .koudai file (wrong first bytes)"),
            FileError::Version(v) => {
                write!(f, "format version {v}; this build reads version {VERSION}")
            }
            FileError::Length { expected, found } => {
                let how = if found < expected { "cut short" } else { "damaged" };
                let least = if *expected == FIRST_SECTION { "at least " } else { "" };
                write!(
                    f,
                    "the file has {found} bytes and should have {least}{expected}: it is {how}"
                )
            }
            FileError::Table(why) => write!(f, "section table: {why}"),
            FileError::Hash(name) => {
                write!(f, "section `{name}`: its bytes don't match their hash: the file is damaged")
            }
            FileError::Missing(name) => write!(f, "section `{name}` is missing"),
            FileError::UnknownSection(name) => {
                write!(f, "section `{name}` is needed and this build doesn't know it")
            }
            FileError::Section(name, why) => write!(f, "section `{name}`: {why}"),
            FileError::Block { index, range, tensors } => write!(
                f,
                "section `weights`: block {index}, bytes {} to {} of the file ({tensors}), doesn't \
                 match its hash: the file is damaged",
                range.start, range.end
            ),
            FileError::Attachment(name, why) => write!(f, "section `{name}`: {why}"),
            FileError::Untrusted(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for FileError {}

/// One row of the section table.
#[derive(Clone, Debug)]
pub struct SectionInfo {
    /// Its name.
    pub name: String,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// BLAKE3 of its bytes.
    pub hash: [u8; 32],
    /// A reader that doesn't know the section must refuse the file.
    pub required: bool,
}

/// One row of the tensor directory.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Which tensor.
    pub id: TensorId,
    /// Its shape.
    pub shape: Shape,
    /// How its weights are stored; vectors are always [`Kind::F32`].
    pub kind: Kind,
    /// First byte, from the start of the weights section.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Sampling and stopping as the model's makers advise; all optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Keep the k likeliest tokens.
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Keep tokens at least this likely, relative to the likeliest.
    pub min_p: Option<f32>,
    /// Divide the logits of tokens already seen.
    pub repetition_penalty: Option<f32>,
}

impl Defaults {
    fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u32(1);
        let fields = [
            self.temperature.map(f32::to_bits),
            self.top_k,
            self.top_p.map(f32::to_bits),
            self.min_p.map(f32::to_bits),
            self.repetition_penalty.map(f32::to_bits),
        ];
        for field in fields {
            e.u8(field.is_some() as u8);
            e.u32(field.unwrap_or(0));
        }
        e.0
    }

    fn decode(bytes: &[u8]) -> Option<Defaults> {
        let mut d = Decoder(bytes);
        if d.u32()? != 1 {
            return None;
        }
        let mut field = || match (d.u8()?, d.u32()?) {
            (0, 0) => Some(None),
            (1, bits) => Some(Some(bits)),
            _ => None,
        };
        let defaults = Defaults {
            temperature: field()?.map(f32::from_bits),
            top_k: field()?,
            top_p: field()?.map(f32::from_bits),
            min_p: field()?.map(f32::from_bits),
            repetition_penalty: field()?.map(f32::from_bits),
        };
        d.end()?;
        let numbers =
            [defaults.temperature, defaults.top_p, defaults.min_p, defaults.repetition_penalty];
        numbers.iter().flatten().all(|v| v.is_finite() && *v >= 0.0).then_some(defaults)
    }
}

/// An open, validated file.
pub struct ModelFile {
    map: SharedBytes,
    sections: Vec<SectionInfo>,
    fingerprint: [u8; 32],
    config: Config,
    tensors: Vec<TensorInfo>,
    by_id: HashMap<TensorId, usize>,
    weights: SharedBytes,
    /// Where the weights start in the file.
    weights_offset: u64,
    /// Hashes of the weights' blocks, if the file has them.
    blocks: Option<SharedBytes>,
}

impl ModelFile {
    /// Maps `path` and checks header, table, all sections' hashes but that of the weights, the
    /// configuration and every tensor's place and shape.
    pub fn open(path: &Path) -> Result<ModelFile, FileError> {
        let io = |e| FileError::Io(path.to_owned(), e);
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        if len < FIRST_SECTION {
            let mut start = Vec::new();
            (&file).take(8).read_to_end(&mut start).map_err(io)?;
            // An empty file too is the start of one.
            return Err(match MAGIC.starts_with(&start) {
                true => FileError::Length { expected: FIRST_SECTION, found: len },
                false => FileError::NotKoudai,
            });
        }
        Self::from_bytes(map(&file).map_err(io)?)
    }

    /// The same for a file already in memory.
    pub fn from_bytes(map: SharedBytes) -> Result<ModelFile, FileError> {
        let (sections, fingerprint) = read_table(&map)?;
        for s in &sections {
            if s.name == section::WEIGHTS {
                continue;
            }
            if *blake3::hash(view(&map, s)).as_bytes() != s.hash {
                return Err(FileError::Hash(s.name.clone()));
            }
            if s.required && !KNOWN.contains(&s.name.as_str()) {
                return Err(FileError::UnknownSection(s.name.clone()));
            }
        }
        let find = |name: &'static str| {
            sections.iter().find(|s| s.name == name).ok_or(FileError::Missing(name))
        };
        let config = Config::decode(view(&map, find(section::CONFIG)?))
            .map_err(|e| FileError::Section(section::CONFIG, e))?;
        let weights = find(section::WEIGHTS)?;
        let tensors = read_tensors(view(&map, find(section::TENSORS)?), &config, weights.len)
            .map_err(|e| FileError::Section(section::TENSORS, e))?;
        find(section::TOKENIZER)?;
        let by_id = tensors.iter().enumerate().map(|(i, t)| (t.id, i)).collect();
        let share = |s: &SectionInfo| {
            map.slice(s.offset as usize..(s.offset + s.len) as usize)
                .expect("sections lie inside the file")
        };
        let blocks = find(section::BLOCKS).ok().map(&share);
        let blocks = match blocks.map(|bytes| read_blocks(&bytes, weights.len)) {
            None => None,
            Some(Ok(blocks)) => Some(blocks),
            Some(Err(why)) => return Err(FileError::Section(section::BLOCKS, why)),
        };
        let (weights, weights_offset) = (share(weights), weights.offset);
        Ok(ModelFile {
            sections,
            fingerprint,
            config,
            tensors,
            by_id,
            weights,
            weights_offset,
            blocks,
            map,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The section table, in file order.
    pub fn sections(&self) -> &[SectionInfo] {
        &self.sections
    }

    /// The tensor directory, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// BLAKE3 of the whole section table, a signature's row included.
    pub fn table_hash(&self) -> [u8; 32] {
        self.map[24..56].try_into().unwrap()
    }

    /// Bytes of the whole file.
    pub fn len_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// BLAKE3 of the section table without a signature's row, and so of every byte that matters:
    /// saved sessions, deltas and signatures are tied to it.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Identifies the model itself, whatever else is in the file: BLAKE3 of the hashes of
    /// configuration, tokenizer, tensors and weights. Attachments are tied to it.
    pub fn model_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for name in [section::CONFIG, section::TOKENIZER, section::TENSORS, section::WEIGHTS] {
            let s = self.sections.iter().find(|s| s.name == name).expect("checked when opened");
            hasher.update(&s.hash);
        }
        *hasher.finalize().as_bytes()
    }

    /// A section's bytes, if the file has it.
    pub fn section(&self, name: &str) -> Option<SharedBytes> {
        let s = self.sections.iter().find(|s| s.name == name)?;
        self.map.slice(s.offset as usize..(s.offset + s.len) as usize)
    }

    /// Pairs of strings about the model, sorted by key.
    pub fn meta(&self) -> Result<Vec<(String, String)>, FileError> {
        self.pairs(section::META)
    }

    /// Pairs of strings about where the model comes from, in the order they were added; keys may
    /// come more than once.
    pub fn lineage(&self) -> Result<Vec<(String, String)>, FileError> {
        self.pairs(section::LINEAGE)
    }

    fn pairs(&self, name: &'static str) -> Result<Vec<(String, String)>, FileError> {
        let Some(bytes) = self.section(name) else { return Ok(Vec::new()) };
        decode_pairs(&bytes).ok_or_else(|| FileError::Section(name, "it is malformed".into()))
    }

    /// Sampling advice.
    pub fn defaults(&self) -> Result<Defaults, FileError> {
        let Some(bytes) = self.section(section::DEFAULTS) else { return Ok(Defaults::default()) };
        Defaults::decode(&bytes)
            .ok_or_else(|| FileError::Section(section::DEFAULTS, "it is malformed".into()))
    }

    /// The chat template's source, if the model has one.
    pub fn template(&self) -> Result<Option<String>, FileError> {
        self.text(section::TEMPLATE)
    }

    /// The model card, as Markdown, if the model has one.
    pub fn card(&self) -> Result<Option<String>, FileError> {
        self.text(section::CARD)
    }

    fn text(&self, name: &'static str) -> Result<Option<String>, FileError> {
        let Some(bytes) = self.section(name) else { return Ok(None) };
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(e) => {
                Err(FileError::Section(name, format!("byte {} is not UTF-8", e.valid_up_to())))
            }
        }
    }

    /// Draft, decision head and adapters. Refuses those that were made for another model.
    pub fn attachments(&self) -> Result<Vec<Attachment>, FileError> {
        let mut all: Vec<Attachment> = Vec::new();
        for s in &self.sections {
            let Some(kind) = attachment::kind_of_section(&s.name) else { continue };
            let refuse = |why: String| FileError::Attachment(s.name.clone(), why);
            let bytes = self.section(&s.name).expect("it is in the table");
            let attachment = Attachment::decode(&bytes)
                .filter(|a| a.kind == kind)
                .ok_or_else(|| refuse("it is malformed".into()))?;
            if attachment.target != self.model_hash() {
                return Err(refuse("it was made for another model".into()));
            }
            if all.iter().any(|a| (a.kind, &a.name) == (kind, &attachment.name)) {
                return Err(refuse(format!("a second adapter `{}`", attachment.name)));
            }
            all.push(attachment);
        }
        Ok(all)
    }

    /// Who signed the file, or claims to have.
    pub fn signature(&self) -> Result<Option<Signature>, FileError> {
        let Some(bytes) = self.section(section::SIGNED) else { return Ok(None) };
        let malformed = || FileError::Section(section::SIGNED, "it is malformed".into());
        Signature::decode(&bytes).ok_or_else(malformed).map(Some)
    }

    /// Refuses a file that isn't signed as `trust` wants it. What is signed are the hashes; weights
    /// are only known to have theirs after [`ModelFile::verify`].
    pub fn check_trust(&self, trust: &Trust) -> Result<(), FileError> {
        if let Trust::Any = trust {
            return Ok(());
        }
        trust.check(&self.fingerprint, self.signature()?.as_ref()).map_err(FileError::Untrusted)
    }

    /// Where a tensor lies. Panics if the configuration has no such tensor.
    pub fn tensor(&self, id: TensorId) -> &TensorInfo {
        &self.tensors[self.by_id[&id]]
    }

    /// A tensor's stored bytes.
    pub fn tensor_bytes(&self, info: &TensorInfo) -> SharedBytes {
        self.weights
            .slice(info.offset..info.offset + info.len)
            .expect("checked when the file was opened")
    }

    /// The same, borrowed from the file.
    pub fn tensor_data(&self, info: &TensorInfo) -> &[u8] {
        &self.weights[info.offset..info.offset + info.len]
    }

    /// A matrix of the model. Panics if the configuration has no such matrix.
    pub fn matrix(&self, id: TensorId) -> Matrix<'_> {
        let info = self.tensor(id);
        let Shape::Matrix { rows, cols } = info.shape else { panic!("{id} is a vector") };
        let data = self.tensor_data(info);
        Matrix::new(info.kind, rows, cols, data).expect("checked when the file was opened")
    }

    /// A vector of the model, copied out. Panics if the configuration has no such vector.
    pub fn vector(&self, id: TensorId) -> Vec<f32> {
        let info = self.tensor(id);
        assert!(matches!(info.shape, Shape::Vector(_)), "{id} is a matrix");
        let data = self.tensor_data(info);
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Reads the whole file and compares every hash; also that gaps are zero, that attachments are
    /// of this model and that a signature is of this content. Where the weights are damaged, names
    /// the first block.
    pub fn verify(&self) -> Result<(), FileError> {
        let mut end = HEADER_BYTES + self.sections.len() * ENTRY_BYTES;
        for s in &self.sections {
            let start = s.offset as usize;
            if self.map[end..start].iter().any(|b| *b != 0) {
                return Err(FileError::Table(format!("bytes before `{}` aren't zero", s.name)));
            }
            if s.name == section::WEIGHTS && self.blocks.is_some() {
                self.verify_tree()?;
                self.verify_weights(0..self.weights.len())?;
            } else if *blake3::hash(view(&self.map, s)).as_bytes() != s.hash {
                return Err(FileError::Hash(s.name.clone()));
            }
            end = start + s.len as usize;
        }
        if self.signature()?.is_some_and(|s| !s.is_of(&self.fingerprint)) {
            return Err(FileError::Untrusted(trust::MISMATCH.into()));
        }
        self.attachments().map(drop)
    }

    /// True if blocks of the weights have hashes of their own, so that parts can be verified.
    pub fn has_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// Checks that the blocks' hashes are those of the weights' hash: then a block that has its hash
    /// is right. Reads no weights. Panics if the file has none.
    pub fn verify_tree(&self) -> Result<(), FileError> {
        let leaves = self.blocks.as_ref().expect("the file has hashes of blocks");
        let leaves: Vec<Hash> =
            leaves.chunks_exact(32).map(|leaf| leaf.try_into().unwrap()).collect();
        let weights = self.sections.iter().find(|s| s.name == section::WEIGHTS);
        if weights.is_some_and(|s| s.hash == blocks::root(&leaves)) {
            return Ok(());
        }
        let why = "its hashes aren't those of the weights' hash";
        Err(FileError::Section(section::BLOCKS, why.into()))
    }

    /// Compares the blocks that hold these bytes of the weights with their hashes. Panics if the
    /// file has none.
    pub fn verify_weights(&self, range: Range<usize>) -> Result<(), FileError> {
        let leaves = self.blocks.as_ref().expect("the file has hashes of blocks");
        let weights: &[u8] = &self.weights;
        let n_blocks = leaves.len() / 32;
        for index in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
            let start = index * BLOCK_BYTES;
            let end = (start + BLOCK_BYTES).min(weights.len());
            if blocks::leaf(index, n_blocks, &weights[start..end]) != leaves[index * 32..][..32] {
                let inside = self
                    .tensors
                    .iter()
                    .filter(|t| t.offset < end && t.offset + t.len > start)
                    .map(|t| t.id.to_string());
                let at = |place: usize| self.weights_offset + place as u64;
                return Err(FileError::Block {
                    index,
                    range: at(start)..at(end),
                    tensors: inside.collect::<Vec<_>>().join(", "),
                });
            }
        }
        Ok(())
    }
}

const KNOWN: [&str; 14] = [
    section::CONFIG,
    section::TOKENIZER,
    section::TEMPLATE,
    section::DEFAULTS,
    section::META,
    section::TENSORS,
    section::WEIGHTS,
    section::BLOCKS,
    section::CARD,
    section::LINEAGE,
    section::GOLDEN,
    section::DRAFT,
    section::DECISION,
    section::SIGNED,
];

fn view<'a>(map: &'a [u8], s: &SectionInfo) -> &'a [u8] {
    &map[s.offset as usize..(s.offset + s.len) as usize]
}

fn read_table(map: &[u8]) -> Result<(Vec<SectionInfo>, [u8; 32]), FileError> {
    if map.get(..8) != Some(&MAGIC) {
        return Err(FileError::NotKoudai);
    }
    let cut = |expected| FileError::Length { expected, found: map.len() as u64 };
    let mut d = Decoder(map.get(8..HEADER_BYTES).ok_or(cut(FIRST_SECTION))?);
    let mut field = || d.u32().expect("the header is long enough");
    let version = field();
    if version != VERSION {
        return Err(FileError::Version(version));
    }
    let count = field() as usize;
    let len = field() as u64 | (field() as u64) << 32;
    if len != map.len() as u64 {
        return Err(cut(len));
    }
    if count > MAX_SECTIONS || len < FIRST_SECTION {
        return Err(FileError::Table(format!("{count} sections in {len} bytes")));
    }
    let hash: [u8; 32] = map[24..56].try_into().unwrap();
    let table = &map[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES];
    if map[56..HEADER_BYTES] != [0; 8] || *blake3::hash(table).as_bytes() != hash {
        return Err(FileError::Table("its hash is wrong: the file is damaged".into()));
    }
    let mut sections: Vec<SectionInfo> = Vec::with_capacity(count);
    let mut end = FIRST_SECTION;
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let name = entry[..8].split(|b| *b == 0).next().unwrap_or(&[]);
        let name = match std::str::from_utf8(name) {
            Ok(n) if !n.is_empty() && entry[n.len()..8].iter().all(|b| *b == 0) => n.to_owned(),
            _ => return Err(FileError::Table("a name is malformed".into())),
        };
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
        let (offset, size, flags) = (word(8), word(16), word(24));
        if sections.iter().any(|s| s.name == name) {
            return Err(FileError::Table(format!("two sections `{name}`")));
        }
        if flags > 1 {
            return Err(FileError::Table(format!("section `{name}` has unknown flags")));
        }
        let weights = name == section::WEIGHTS;
        let align = if weights { WEIGHTS_ALIGN } else { ALIGN };
        let stop = offset.checked_add(size).filter(|stop| *stop <= len);
        let (true, Some(stop)) = (offset >= end && offset.is_multiple_of(align), stop) else {
            return Err(FileError::Table(format!("section `{name}` lies outside its place")));
        };
        if !weights && size > MAX_SMALL_SECTION {
            return Err(FileError::Table(format!("section `{name}` has {size} bytes")));
        }
        end = stop;
        let hash = entry[32..64].try_into().unwrap();
        sections.push(SectionInfo { name, offset, len: size, hash, required: flags & 1 != 0 });
    }
    if end != len {
        return Err(FileError::Table(format!("{} bytes follow the last section", len - end)));
    }
    Ok((sections, fingerprint(table)))
}

/// BLAKE3 of the table without the signature's row, so that a file keeps its fingerprint when it is
/// signed.
fn fingerprint(table: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let signed = |entry: &&[u8]| entry[..8].split(|b| *b == 0).next() == Some(b"signed");
    for entry in table.chunks_exact(ENTRY_BYTES).filter(|entry| !signed(entry)) {
        hasher.update(entry);
    }
    *hasher.finalize().as_bytes()
}

/// The leaves of the section `blocks`.
fn read_blocks(bytes: &SharedBytes, weights: u64) -> Result<SharedBytes, String> {
    let mut d = Decoder(bytes);
    if (d.u32(), d.u32()) != (Some(1), Some(BLOCK_BYTES as u32)) {
        return Err("unknown version or size of blocks".into());
    }
    let n_blocks = weights.div_ceil(BLOCK_BYTES as u64).max(1);
    if d.0.len() as u64 != n_blocks * 32 {
        return Err(format!("{} bytes of hashes for {n_blocks} blocks", d.0.len()));
    }
    Ok(bytes.slice(bytes.len() - d.0.len()..bytes.len()).expect("it is the rest"))
}

fn read_tensors(bytes: &[u8], config: &Config, weights: u64) -> Result<Vec<TensorInfo>, String> {
    let expected = config.tensors();
    let mut d = Decoder(bytes);
    let malformed = || "it is cut short or malformed".to_owned();
    if d.u32().ok_or_else(malformed)? != 1 {
        return Err("unknown version".into());
    }
    let count = d.count(TENSOR_BYTES).ok_or_else(malformed)?;
    if count != expected.len() {
        return Err(format!("{count} tensors, the configuration needs {}", expected.len()));
    }
    let mut tensors = Vec::with_capacity(count);
    let mut end = 0usize;
    for (id, shape) in expected {
        let mut row = || {
            let (layer, role, kind) = (d.u32()?, Role::from_code(d.u8()?)?, d.u8()?);
            let (rows, cols) = (d.u32()? as usize, d.u32()? as usize);
            let offset = usize::try_from(d.u64()?).ok()?;
            let layer = (layer != u32::MAX).then_some(layer as usize);
            Some((TensorId { layer, role }, kind, rows, cols, offset))
        };
        let (found, kind, rows, cols, offset) = row().ok_or_else(malformed)?;
        if found != id {
            return Err(format!("`{found}` stands where `{id}` is due"));
        }
        let kind = Kind::from_code(kind).ok_or(format!("`{id}` has unknown kind {kind}"))?;
        let (fits, len) = match shape {
            Shape::Vector(n) => ((rows, cols, kind) == (n, 1, Kind::F32), n.checked_mul(4)),
            Shape::Matrix { rows: r, cols: c } => {
                ((rows, cols) == (r, c), kind.matrix_bytes(rows, cols))
            }
        };
        let (true, Some(len)) = (fits, len) else {
            return Err(format!("`{id}` is {} {rows}×{cols}, it should be {shape:?}", kind.name()));
        };
        let stop = offset.checked_add(len).filter(|stop| *stop as u64 <= weights);
        let (true, Some(stop)) = (offset >= end && offset.is_multiple_of(64), stop) else {
            return Err(format!("`{id}` lies outside its place"));
        };
        end = stop;
        tensors.push(TensorInfo { id, shape, kind, offset, len });
    }
    d.end().ok_or_else(malformed)?;
    if end as u64 != weights {
        return Err("bytes follow the last tensor".into());
    }
    Ok(tensors)
}

const TENSOR_BYTES: usize = 4 + 1 + 1 + 4 + 4 + 8;

fn decode_pairs(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let mut d = Decoder(bytes);
    let count = d.count(8)?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((d.str()?.to_owned(), d.str()?.to_owned()));
    }
    d.end()?;
    Some(pairs)
}

fn encode_pairs(pairs: &[(String, String)]) -> Vec<u8> {
    let mut e = Encoder::default();
    e.u32(pairs.len() as u32);
    for (key, value) in pairs {
        e.str(key);
        e.str(value);
    }
    e.0
}

/// Maps a file of any sort, read-only.
pub fn map_file(path: &Path) -> Result<SharedBytes, FileError> {
    let io = |e| FileError::Io(path.to_owned(), e);
    map(&File::open(path).map_err(io)?).map_err(io)
}

fn map(file: &File) -> std::io::Result<SharedBytes> {
    #[allow(unsafe_code)]
    // SAFETY: the map is private and read-only. Another process that truncates the file while we run
    // could raise SIGBUS, as with every program that maps files; writers here always rename instead.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(SharedBytes::new(map))
}
