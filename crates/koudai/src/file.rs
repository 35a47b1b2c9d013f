//! The `.koudai` file: a header, a table of hashed sections, the sections.
//!
//! [`ModelFile::open`] maps the file and validates everything but the weights' hash in one pass;
//! after that, views are infallible and nothing is copied. [`FileWriter`] writes beside the final
//! name and renames when all is on disk. The bytes are specified in FORMAT.md. This module knows
//! places and sizes; it doesn't interpret tokenizers or templates.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use koudai_kernels::{Kind, Matrix};

use crate::bytes::SharedBytes;
use crate::codec::{Decoder, Encoder};
use crate::config::{Config, Role, Shape, TensorId};
use crate::partial::PartialFile;

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
        let weights = map
            .slice(weights.offset as usize..(weights.offset + weights.len) as usize)
            .expect("sections lie inside the file");
        Ok(ModelFile { sections, fingerprint, config, tensors, by_id, weights, map })
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

    /// Bytes of the whole file.
    pub fn len_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// BLAKE3 of the section table, and so of every byte that matters: sessions and drafts are tied
    /// to it.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// A section's bytes, if the file has it.
    pub fn section(&self, name: &str) -> Option<SharedBytes> {
        let s = self.sections.iter().find(|s| s.name == name)?;
        self.map.slice(s.offset as usize..(s.offset + s.len) as usize)
    }

    /// Pairs of strings about the model, sorted by key.
    pub fn meta(&self) -> Result<Vec<(String, String)>, FileError> {
        let Some(bytes) = self.section(section::META) else { return Ok(Vec::new()) };
        decode_meta(&bytes)
            .ok_or_else(|| FileError::Section(section::META, "it is malformed".into()))
    }

    /// Sampling advice.
    pub fn defaults(&self) -> Result<Defaults, FileError> {
        let Some(bytes) = self.section(section::DEFAULTS) else { return Ok(Defaults::default()) };
        Defaults::decode(&bytes)
            .ok_or_else(|| FileError::Section(section::DEFAULTS, "it is malformed".into()))
    }

    /// The chat template's source, if the model has one.
    pub fn template(&self) -> Result<Option<String>, FileError> {
        let Some(bytes) = self.section(section::TEMPLATE) else { return Ok(None) };
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(e) => Err(FileError::Section(
                section::TEMPLATE,
                format!("byte {} is not UTF-8", e.valid_up_to()),
            )),
        }
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

    /// Reads the whole file and compares every hash; also that gaps are zero.
    pub fn verify(&self) -> Result<(), FileError> {
        let mut end = HEADER_BYTES + self.sections.len() * ENTRY_BYTES;
        for s in &self.sections {
            let start = s.offset as usize;
            if self.map[end..start].iter().any(|b| *b != 0) {
                return Err(FileError::Table(format!("bytes before `{}` aren't zero", s.name)));
            }
            if *blake3::hash(view(&self.map, s)).as_bytes() != s.hash {
                return Err(FileError::Hash(s.name.clone()));
            }
            end = start + s.len as usize;
        }
        Ok(())
    }
}

const KNOWN: [&str; 7] = [
    section::CONFIG,
    section::TOKENIZER,
    section::TEMPLATE,
    section::DEFAULTS,
    section::META,
    section::TENSORS,
    section::WEIGHTS,
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
    Ok((sections, hash))
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

fn decode_meta(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let mut d = Decoder(bytes);
    let count = d.count(8)?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((d.str()?.to_owned(), d.str()?.to_owned()));
    }
    d.end()?;
    Some(pairs)
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

/// A tensor about to be written.
#[derive(Clone, Copy, Debug)]
pub struct TensorHeader {
    /// Which tensor.
    pub id: TensorId,
    /// How its weights are stored; vectors are [`Kind::F32`].
    pub kind: Kind,
}

/// Writes a `.koudai` file: small sections first, then the tensors in the configuration's order.
///
/// Until [`FileWriter::finish`] the bytes lie beside the final name, and dropping the writer removes
/// them.
pub struct FileWriter {
    file: PartialFile,
    sections: Vec<SectionInfo>,
    at: u64,
}

impl FileWriter {
    /// Starts a file that will appear at `path`.
    pub fn create(path: &Path) -> Result<FileWriter, FileError> {
        let io = |e| FileError::Io(path.to_owned(), e);
        let mut file = PartialFile::create(path).map_err(io)?;
        file.seek(SeekFrom::Start(FIRST_SECTION)).map_err(io)?;
        Ok(FileWriter { file, sections: Vec::new(), at: FIRST_SECTION })
    }

    /// Adds a section that readers must know (`required`) or may skip. Panics on a bad name, and on
    /// one that was added already.
    pub fn section(&mut self, name: &str, required: bool, bytes: &[u8]) -> Result<(), FileError> {
        assert!((1..=8).contains(&name.len()) && name.is_ascii() && name != section::WEIGHTS);
        assert!(self.sections.iter().all(|s| s.name != name), "section `{name}` is there already");
        self.pad(ALIGN)?;
        let hash = *blake3::hash(bytes).as_bytes();
        let (name, offset, len) = (name.to_owned(), self.at, bytes.len() as u64);
        self.write(bytes)?;
        self.sections.push(SectionInfo { name, offset, len, hash, required });
        Ok(())
    }

    /// Adds the configuration.
    pub fn config(&mut self, config: &Config) -> Result<(), FileError> {
        self.section(section::CONFIG, true, &config.encode())
    }

    /// Adds sampling advice.
    pub fn defaults(&mut self, defaults: &Defaults) -> Result<(), FileError> {
        self.section(section::DEFAULTS, false, &defaults.encode())
    }

    /// Adds pairs of strings about the model; sorts them by key.
    pub fn meta(&mut self, pairs: &[(String, String)]) -> Result<(), FileError> {
        let mut pairs = pairs.to_vec();
        pairs.sort();
        let mut e = Encoder::default();
        e.u32(pairs.len() as u32);
        for (key, value) in &pairs {
            e.str(key);
            e.str(value);
        }
        self.section(section::META, false, &e.0)
    }

    /// Adds all tensors. `write` is called for each tensor of `config.tensors()` in turn and puts
    /// exactly its stored bytes into the sink, in as many pieces as it likes. Panics if `headers` or
    /// the bytes aren't what `config` needs.
    pub fn tensors<E: From<FileError>>(
        &mut self,
        config: &Config,
        headers: &[TensorHeader],
        mut write: impl FnMut(&TensorHeader, Shape, &mut TensorSink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let expected = config.tensors();
        let ids = headers.iter().map(|h| h.id);
        assert!(ids.eq(expected.iter().map(|t| t.0)), "headers in the configuration's order");
        let mut e = Encoder::default();
        e.u32(1);
        e.u32(headers.len() as u32);
        let mut offset = 0u64;
        let mut places = Vec::new();
        for (header, (id, shape)) in headers.iter().zip(&expected) {
            let (rows, cols, len) = match *shape {
                Shape::Vector(n) => (n, 1, n.checked_mul(4)),
                Shape::Matrix { rows, cols } => (rows, cols, header.kind.matrix_bytes(rows, cols)),
            };
            let len = len.unwrap_or_else(|| panic!("{id} can't be {}", header.kind.name())) as u64;
            offset = offset.next_multiple_of(64);
            e.u32(id.layer.map_or(u32::MAX, |l| l as u32));
            e.u8(id.role as u8);
            e.u8(header.kind as u8);
            e.u32(rows as u32);
            e.u32(cols as u32);
            e.u64(offset);
            places.push((offset, len));
            offset += len;
        }
        self.section(section::TENSORS, true, &e.0)?;
        self.pad(WEIGHTS_ALIGN)?;
        let start = self.at;
        let mut hasher = blake3::Hasher::new();
        for ((header, (_, shape)), (offset, len)) in headers.iter().zip(&expected).zip(places) {
            let gap = start + offset - self.at;
            hasher.update(&[0; 64][..gap as usize]);
            self.write(&[0; 64][..gap as usize])?;
            let mut sink = TensorSink { writer: self, hasher: &mut hasher };
            write(header, *shape, &mut sink)?;
            assert_eq!(self.at, start + offset + len, "{} has its exact size", header.id);
        }
        let (name, len) = (section::WEIGHTS.to_owned(), self.at - start);
        let hash = *hasher.finalize().as_bytes();
        self.sections.push(SectionInfo { name, offset: start, len, hash, required: true });
        Ok(())
    }

    /// Writes the table, flushes to disk and gives the file its name.
    pub fn finish(mut self) -> Result<(), FileError> {
        let mut table = Vec::with_capacity(self.sections.len() * ENTRY_BYTES);
        assert!(self.sections.len() <= MAX_SECTIONS);
        for s in &self.sections {
            let mut name = [0u8; 8];
            name[..s.name.len()].copy_from_slice(s.name.as_bytes());
            table.extend(name);
            table.extend(s.offset.to_le_bytes());
            table.extend(s.len.to_le_bytes());
            table.extend((s.required as u64).to_le_bytes());
            table.extend(s.hash);
        }
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.sections.len() as u32).to_le_bytes());
        header.extend(self.at.to_le_bytes());
        header.extend(blake3::hash(&table).as_bytes());
        header.extend([0; 8]);
        let path = self.file.path().to_owned();
        let mut write = || -> std::io::Result<()> {
            self.file.rewind()?;
            self.file.write_all(&header)?;
            self.file.write_all(&table)
        };
        write().and_then(|()| self.file.finish()).map_err(|e| FileError::Io(path, e))
    }

    fn pad(&mut self, align: u64) -> Result<(), FileError> {
        let gap = self.at.next_multiple_of(align) - self.at;
        self.write(&vec![0; gap as usize])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| FileError::Io(self.file.path().to_owned(), e))
    }
}

/// Takes the bytes of one tensor.
pub struct TensorSink<'a> {
    writer: &'a mut FileWriter,
    hasher: &'a mut blake3::Hasher,
}

impl TensorSink<'_> {
    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.hasher.update(bytes);
        self.writer.write(bytes)
    }
}
