//! Writing a `.koudai` file, section after section.
//!
//! Start with [`FileWriter`]. It knows places, sizes and hashes; what sections say is their owners'.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use koudai_kernels::Kind;

use super::attachment::{Attachment, kind_of_section, section_name};
use super::blocks::{BLOCK_BYTES, BlockHasher};
use super::{
    ALIGN, Defaults, ENTRY_BYTES, FIRST_SECTION, FileError, HEADER_BYTES, MAGIC, MAX_SECTIONS,
    MAX_SMALL_SECTION, ModelFile, SectionInfo, VERSION, WEIGHTS_ALIGN, encode_pairs, fingerprint,
    section, view,
};
use crate::codec::Encoder;
use crate::config::{Config, Shape, TensorId};
use crate::partial::PartialFile;
use crate::trust::Signature;

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
///
/// Tensors bring their blocks' hashes with them. Sections that aren't needed to run the model may
/// follow.
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
        self.section_of(name, required, &[bytes])
    }

    /// Adds a section that is these parts in a row.
    fn section_of(&mut self, name: &str, required: bool, parts: &[&[u8]]) -> Result<(), FileError> {
        assert!((1..=8).contains(&name.len()) && name.is_ascii() && name != section::WEIGHTS);
        assert!(self.sections.iter().all(|s| s.name != name), "section `{name}` is there already");
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if len > MAX_SMALL_SECTION {
            let why = format!("section `{name}` would have {len} bytes");
            return Err(FileError::Table(format!("{why}, {MAX_SMALL_SECTION} are allowed")));
        }
        if self.sections.len() == MAX_SECTIONS {
            let why = format!("section `{name}` would be number {}", MAX_SECTIONS + 1);
            return Err(FileError::Table(format!("{why}, {MAX_SECTIONS} are allowed")));
        }
        self.pad(ALIGN)?;
        let (name, offset) = (name.to_owned(), self.at);
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
            self.write(part)?;
        }
        let hash = *hasher.finalize().as_bytes();
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
        self.section(section::META, false, &encode_pairs(&pairs))
    }

    /// Adds pairs of strings about where the model comes from.
    pub fn lineage(&mut self, pairs: &[(String, String)]) -> Result<(), FileError> {
        self.section(section::LINEAGE, false, &encode_pairs(pairs))
    }

    /// Adds an attachment; `index` counts those of one kind. Panics if there are more than a file
    /// can have.
    pub fn attachment(&mut self, index: usize, attachment: &Attachment) -> Result<(), FileError> {
        let name = section_name(attachment.kind, index);
        assert!(kind_of_section(&name) == Some(attachment.kind), "{index} is too many");
        self.section_of(&name, false, &[&attachment.envelope(), &attachment.payload])
    }

    /// Adds a section of another file as it is.
    pub fn copy(&mut self, file: &ModelFile, name: &str) -> Result<(), FileError> {
        let s = file.sections().iter().find(|s| s.name == name).expect("the file has the section");
        self.section(name, s.required, view(&file.map, s))
    }

    /// Adds the tensors of another file as they are, comparing their hash. Asks `each` after every
    /// piece with its bytes.
    pub fn copy_tensors<E: From<FileError>>(
        &mut self,
        file: &ModelFile,
        mut each: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        self.copy(file, section::TENSORS)?;
        self.pad(WEIGHTS_ALIGN)?;
        let start = self.at;
        let mut hasher = BlockHasher::default();
        for piece in file.weights.chunks(1 << 20) {
            hasher.update(piece);
            self.write(piece)?;
            each(piece.len() as u64)?;
        }
        self.end_weights(start, hasher)?;
        let of = |sections: &[SectionInfo]| {
            sections.iter().find(|s| s.name == section::WEIGHTS).map(|s| s.hash)
        };
        match of(&self.sections) == of(&file.sections) {
            true => Ok(()),
            // The file's own check names the block.
            false => Err(file.verify().err().unwrap_or(FileError::Hash("weights".into())).into()),
        }
    }

    /// Adds the signature, the last section: it is of everything before.
    pub fn sign(&mut self, signature: &Signature) -> Result<(), FileError> {
        self.section(section::SIGNED, false, &signature.encode())
    }

    /// The fingerprint of the file so far, and what a signature is of.
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.table())
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
        let mut hasher = BlockHasher::default();
        for ((header, (_, shape)), (offset, len)) in headers.iter().zip(&expected).zip(places) {
            let gap = start + offset - self.at;
            hasher.update(&[0; 64][..gap as usize]);
            self.write(&[0; 64][..gap as usize])?;
            let mut sink = TensorSink { writer: self, hasher: &mut hasher };
            write(header, *shape, &mut sink)?;
            assert_eq!(self.at, start + offset + len, "{} has its exact size", header.id);
        }
        self.end_weights(start, hasher)?;
        Ok(())
    }

    /// Notes the weights that were written from `start` on, and adds their blocks' hashes.
    fn end_weights(&mut self, start: u64, hasher: BlockHasher) -> Result<(), FileError> {
        let (name, len) = (section::WEIGHTS.to_owned(), self.at - start);
        let (leaves, hash) = hasher.finish();
        self.sections.push(SectionInfo { name, offset: start, len, hash, required: true });
        let mut e = Encoder::default();
        e.u32(1);
        e.u32(BLOCK_BYTES as u32);
        e.0.extend(leaves.as_flattened());
        self.section(section::BLOCKS, false, &e.0)
    }

    /// Writes the table, flushes to disk and gives the file its name.
    pub fn finish(mut self) -> Result<(), FileError> {
        let table = self.table();
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

    fn table(&self) -> Vec<u8> {
        let mut table = Vec::with_capacity(self.sections.len() * ENTRY_BYTES);
        for s in &self.sections {
            let mut name = [0u8; 8];
            name[..s.name.len()].copy_from_slice(s.name.as_bytes());
            table.extend(name);
            table.extend(s.offset.to_le_bytes());
            table.extend(s.len.to_le_bytes());
            table.extend((s.required as u64).to_le_bytes());
            table.extend(s.hash);
        }
        table
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
    hasher: &'a mut BlockHasher,
}

impl TensorSink<'_> {
    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.hasher.update(bytes);
        self.writer.write(bytes)
    }
}
