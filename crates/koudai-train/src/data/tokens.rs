//! Documents as tokens, in a file that is made once and mapped after that.
//!
//! The file's name is a hash of all that decides its content: tokenizer, template, and path, size and
//! time of each source file. Its bytes (numbers little-endian): `KTOKENS1`, tokens u64, documents u64;
//! the tokens, u32 each, with the highest bit set if the token is to be predicted; padding to 8 bytes;
//! for each document and once more at the end, u64 each: its first token, and the bytes of predicted
//! text before it. Start with [`TokenFile::open`].

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use koudai::PartialFile;
use koudai::bytes::SharedBytes;
use koudai_convert::Error;

const MAGIC: &[u8; 8] = b"KTOKENS1";
const HEADER: usize = 24;
/// Set in tokens that are to be predicted.
const TARGET: u32 = 1 << 31;

/// A token that is to be predicted, as it is stored.
pub fn target(id: u32) -> u32 {
    id | TARGET
}

/// The id of a stored token.
pub fn id(token: u32) -> i64 {
    i64::from(token & !TARGET)
}

/// Whether a stored token is to be predicted.
pub fn is_target(token: u32) -> bool {
    token & TARGET != 0
}

/// One document of a file.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// Its tokens, at least 2.
    pub tokens: &'a [u32],
    /// Bytes of text that its predicted tokens stand for.
    pub bytes: u64,
}

/// A mapped file of documents.
pub struct TokenFile {
    bytes: SharedBytes,
    n_tokens: usize,
    n_documents: usize,
}

impl TokenFile {
    /// Opens the file of this key in `folder`; if it isn't there, `make` writes its documents.
    pub fn open(
        folder: &Path,
        key: &blake3::Hash,
        make: impl FnOnce(&mut Writer) -> Result<(), Error>,
    ) -> Result<TokenFile> {
        let path = folder.join(format!("{}.tokens", &key.to_hex()[..32]));
        if !path.exists() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            let mut writer = Writer::create(&path)?;
            make(&mut writer)?;
            writer.finish()?;
        }
        TokenFile::map(&path)
    }

    fn map(path: &Path) -> Result<TokenFile> {
        let at = || path.display().to_string();
        let bytes = koudai::file::map_file(path).map_err(anyhow::Error::msg).with_context(at)?;
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
        };
        let (Some(n_tokens), Some(n_documents)) = (number(8), number(16)) else {
            bail!("{}: it is cut short", at());
        };
        let size = n_documents.checked_add(1).and_then(|n| n.checked_mul(16));
        let size = size.and_then(|n| n.checked_add(index_at(n_tokens)?));
        if !bytes.starts_with(MAGIC) || size != Some(bytes.len()) {
            bail!("{}: it isn't a file of tokens, or damaged; it can be deleted", at());
        }
        let file = TokenFile { bytes, n_tokens, n_documents };
        let index = file.index();
        let entries = index.chunks_exact(2).zip(index.chunks_exact(2).skip(1));
        let in_order = |(a, b): (&[u64], &[u64])| a[0] + 2 <= b[0] && a[1] <= b[1];
        let ends =
            index.first() == Some(&0) && index.get(2 * n_documents) == Some(&(n_tokens as u64));
        if !ends || !entries.into_iter().all(in_order) {
            bail!("{}: its documents aren't in order; it can be deleted", at());
        }
        Ok(file)
    }

    /// Documents in it.
    pub fn n_documents(&self) -> usize {
        self.n_documents
    }

    /// Tokens in it.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// A document by its number.
    pub fn document(&self, number: u32) -> Document<'_> {
        let entry = &self.index()[2 * number as usize..][..4];
        let tokens = &self.bytes[HEADER..][..4 * self.n_tokens];
        let tokens: &[u32] = bytemuck::cast_slice(tokens);
        Document {
            tokens: &tokens[entry[0] as usize..entry[2] as usize],
            bytes: entry[3] - entry[1],
        }
    }

    /// First token of each document and bytes of text before it, and both for the end.
    fn index(&self) -> &[u64] {
        // A mapping starts at a page, so both parts are aligned.
        bytemuck::cast_slice(&self.bytes[index_at(self.n_tokens).unwrap_or(0)..])
    }
}

/// Where the index starts in a file of so many tokens.
fn index_at(n_tokens: usize) -> Option<usize> {
    n_tokens.checked_mul(4)?.checked_next_multiple_of(8)?.checked_add(HEADER)
}

/// Writes a file of documents.
pub struct Writer {
    path: PathBuf,
    file: PartialFile,
    n_tokens: u64,
    n_bytes: u64,
    /// As in the file, without the end.
    index: Vec<u64>,
}

impl Writer {
    fn create(path: &Path) -> Result<Writer, Error> {
        let create = || {
            let mut file = PartialFile::create(path)?;
            file.write_all(&[0; HEADER])?;
            Ok(file)
        };
        let file = create().map_err(|e: std::io::Error| Error::Io(path.to_owned(), e))?;
        Ok(Writer { path: path.to_owned(), file, n_tokens: 0, n_bytes: 0, index: Vec::new() })
    }

    /// Adds a document of which `bytes` of text are to be predicted. One of less than two tokens says
    /// nothing and is left out.
    pub fn document(&mut self, tokens: &[u32], bytes: u64) -> Result<(), Error> {
        if tokens.len() < 2 {
            return Ok(());
        }
        self.index.extend([self.n_tokens, self.n_bytes]);
        self.n_tokens += tokens.len() as u64;
        self.n_bytes += bytes;
        self.write(bytemuck::cast_slice(&tokens.iter().map(|t| t.to_le()).collect::<Vec<u32>>()))
    }

    fn finish(mut self) -> Result<(), Error> {
        if self.n_tokens % 2 == 1 {
            self.write(&[0; 4])?;
        }
        let n_documents = self.index.len() as u64 / 2;
        self.index.extend([self.n_tokens, self.n_bytes]);
        let index: Vec<u8> = self.index.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.write(&index)?;
        self.file.seek(SeekFrom::Start(0)).map_err(|e| Error::Io(self.path.clone(), e))?;
        let header = [*MAGIC, self.n_tokens.to_le_bytes(), n_documents.to_le_bytes()].concat();
        self.write(&header)?;
        self.file.finish().map_err(|e| Error::Io(self.path.clone(), e))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|e| Error::Io(self.path.clone(), e))
    }
}
