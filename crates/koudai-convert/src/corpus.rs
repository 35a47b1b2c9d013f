//! Texts of a corpus, one after the other: plain text, JSON lines, Parquet.
//!
//! Files are mapped or read record by record, so memory is bounded whatever their size. It knows
//! formats, not tokens. Start with [`find`] for files and [`read`] for what is in one.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use serde_json::{Map, Value};

use crate::error::Error;

/// Plain text is cut into pieces of at most this many bytes, after a line if there is one.
const PIECE_BYTES: usize = 16 << 10;
/// Longer lines of JSON are refused: each is parsed in memory.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Records of Parquet that are held at once.
const BATCH_RECORDS: usize = 64;

/// Which texts of a corpus to read. Those held out lie all over it, so that they are like the others
/// even where a corpus is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    Whole,
    /// Nine of ten.
    Counted,
    /// Every tenth.
    HeldOut,
}

impl Part {
    /// Whether the text with this number, from 0, belongs to the part.
    pub(crate) fn has(self, number: u64) -> bool {
        match self {
            Part::Whole => true,
            Part::Counted => number % 10 != 9,
            Part::HeldOut => number % 10 == 9,
        }
    }
}

/// One text of a corpus.
pub struct Text<'a> {
    /// The text.
    pub text: Cow<'a, str>,
    /// It goes on where the text before it was cut.
    pub continues: bool,
    /// Bytes that weren't UTF-8 and were left out.
    pub skipped: u64,
    /// Bytes of the file up to here, roughly.
    pub done: u64,
}

/// The files of a corpus: a file, all files of a folder and its folders, or a pattern with `*`, `?`,
/// `[…]` or `**`. Sorted; an error if there are none.
pub fn find(path: &str) -> Result<Vec<PathBuf>, Error> {
    let error = |why: String| Error::At(path.into(), Box::new(Error::Input(why)));
    let as_is = Path::new(path);
    let mut files = Vec::new();
    if as_is.exists() {
        add(as_is, &mut files)?;
    } else {
        for found in glob::glob(path).map_err(|e| error(e.msg.into()))? {
            add(&found.map_err(|e| Error::Io(e.path().to_owned(), e.into()))?, &mut files)?;
        }
    }
    if files.is_empty() {
        return Err(error("there are no files".into()));
    }
    files.sort();
    Ok(files)
}

fn add(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let io = |e| Error::Io(path.to_owned(), e);
    let meta = std::fs::metadata(path).map_err(io)?;
    if meta.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    if !meta.is_dir() {
        // Corpora are read more than once.
        let why = Error::Input("is neither a file nor a folder".into());
        return Err(Error::At(path.to_owned(), Box::new(why)));
    }
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        // A link to a folder could lead back up.
        if !(entry.file_type().map_err(io)?.is_symlink() && entry.path().is_dir()) {
            add(&entry.path(), files)?;
        }
    }
    Ok(())
}

/// Calls `visit` with the texts of a file: those of the member `field` if it ends in `.jsonl` or
/// `.ndjson`, those of the column `field` if it ends in `.parquet`, pieces of it otherwise.
pub fn read(
    path: &Path,
    field: &str,
    visit: &mut dyn FnMut(Text<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    if extension == "parquet" {
        return read_parquet(path, field, visit).map_err(|e| at(path, e));
    }
    if std::fs::metadata(path).map_err(|e| Error::Io(path.to_owned(), e))?.len() == 0 {
        return Ok(());
    }
    let bytes = koudai::file::map_file(path)?;
    if extension == "jsonl" || extension == "ndjson" {
        return read_json_lines(&bytes, field, visit).map_err(|e| at(path, e));
    }
    read_text(&bytes, visit).map_err(|e| at(path, e))
}

/// What is wrong with a file's content, with its path.
fn at(path: &Path, e: Error) -> Error {
    match e {
        Error::Input(_) => Error::At(path.to_owned(), Box::new(e)),
        other => other,
    }
}

fn read_text(
    bytes: &[u8],
    visit: &mut dyn FnMut(Text<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut done, mut all_skipped) = (0, 0);
    while done < bytes.len() {
        let piece = &bytes[done..][..piece_end(&bytes[done..])];
        let text = utf8(piece);
        let skipped = (piece.len() - text.len()) as u64;
        let continues = done > 0;
        done += piece.len();
        all_skipped += skipped;
        visit(Text { text, continues, skipped, done: done as u64 })?;
    }
    if all_skipped > bytes.len() as u64 / 10 {
        return Err(Error::Input("is not text: a tenth of it isn't UTF-8".into()));
    }
    Ok(())
}

/// What is UTF-8 of `bytes`. What isn't is left out: counted as U+FFFD it would look like text.
fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.utf8_chunks().map(|chunk| chunk.valid()).collect::<String>().into(),
    }
}

/// Where the first piece of `bytes` ends: after a line, else after a character.
fn piece_end(bytes: &[u8]) -> usize {
    if bytes.len() <= PIECE_BYTES {
        return bytes.len();
    }
    if let Some(line) = bytes[..PIECE_BYTES].iter().rposition(|&b| b == b'\n') {
        return line + 1;
    }
    let first_of_character = |&at: &usize| bytes[at] & 0xC0 != 0x80;
    (PIECE_BYTES - 3..=PIECE_BYTES).rev().find(first_of_character).unwrap_or(PIECE_BYTES)
}

fn read_json_lines(
    bytes: &[u8],
    field: &str,
    visit: &mut dyn FnMut(Text<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for_each_record(bytes, &mut |record| match record.members.get(field) {
        Some(Value::String(text)) => {
            visit(Text { text: text.into(), continues: false, skipped: 0, done: record.done })
        }
        Some(_) => Err(record.error(&format!("`{field}` is no string"))),
        None => Err(record.error(&format!("there is no `{field}`"))),
    })
}

/// One line of JSON.
pub struct Record {
    /// What it says.
    pub members: Map<String, Value>,
    /// Bytes of the file up to here.
    pub done: u64,
    line: usize,
}

impl Record {
    /// An error that says which line it is about.
    pub fn error(&self, why: &str) -> Error {
        Error::Input(format!("line {}: {why}", self.line))
    }
}

/// Calls `visit` with every line of a file of JSON objects, empty ones aside.
pub fn read_records(
    path: &Path,
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
) -> Result<(), Error> {
    if std::fs::metadata(path).map_err(|e| Error::Io(path.to_owned(), e))?.len() == 0 {
        return Ok(());
    }
    for_each_record(&koudai::file::map_file(path)?, visit).map_err(|e| at(path, e))
}

fn for_each_record(
    bytes: &[u8],
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut record = Record { members: Map::new(), done: 0, line: 0 };
    for line in bytes.split_inclusive(|&b| b == b'\n') {
        record.done += line.len() as u64;
        record.line += 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        if line.len() > MAX_LINE_BYTES {
            let why = format!("has {} bytes, at most {MAX_LINE_BYTES} are read", line.len());
            return Err(record.error(&why));
        }
        let members = serde_json::from_slice(line).map_err(|e| record.error(&e.to_string()))?;
        visit(Record { members, ..record })?;
    }
    Ok(())
}

fn read_parquet(
    path: &Path,
    field: &str,
    visit: &mut dyn FnMut(Text<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = |e| Error::Io(path.to_owned(), e);
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let file = guarded(|| SerializedFileReader::new(file))?;
    let schema = file.metadata().file_metadata().schema_descr();
    let of_name = |i: &usize| schema.column(*i).path().string() == field;
    let Some(column) = (0..schema.num_columns()).find(of_name) else {
        return Err(Error::Input(format!("there is no column `{field}`")));
    };
    let descriptor = schema.column(column);
    if descriptor.physical_type() != Type::BYTE_ARRAY || descriptor.max_rep_level() > 0 {
        return Err(Error::Input(format!("column `{field}` isn't of strings")));
    }
    let rows = file.metadata().file_metadata().num_rows().max(0) as u64;
    let mut row = 0;
    for group in 0..file.num_row_groups() {
        let group = guarded(|| file.get_row_group(group))?;
        let mut strings = guarded(|| Strings::open(&*group, column))?;
        let group_end = row + group.metadata().num_rows().max(0) as u64;
        while row < group_end {
            let batch = guarded(|| strings.next(BATCH_RECORDS))?;
            row += batch.records;
            if batch.records == 0 {
                return Err(Error::Input(format!("it ends in row {row} of {rows}")));
            }
            let done = (bytes as f64 * row as f64 / rows.max(1) as f64) as u64;
            for value in &batch.values {
                let text = utf8(value.data());
                let skipped = (value.len() - text.len()) as u64;
                visit(Text { text, continues: false, skipped, done })?;
            }
        }
    }
    Ok(())
}

/// What `read` makes of a file, as our errors: the crate panics on some damaged pages.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Error> {
    // What was read from is dropped after a panic, not used again.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|e| Error::Input(e.to_string())),
        Err(_) => Err(Error::Input("its Parquet data is damaged".into())),
    }
}

/// The strings of one column of a row group.
struct Strings {
    reader: ColumnReaderImpl<ByteArrayType>,
}

/// Some records of a column, those without a value left out.
struct Batch {
    records: u64,
    values: Vec<parquet::data_type::ByteArray>,
}

impl Strings {
    fn open(group: &dyn RowGroupReader, column: usize) -> Result<Strings, ParquetError> {
        match group.get_column_reader(column)? {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(Strings { reader }),
            _ => Err(ParquetError::General("the column isn't of strings".into())),
        }
    }

    fn next(&mut self, records: usize) -> Result<Batch, ParquetError> {
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let (records, _, _) =
            self.reader.read_records(records, Some(&mut levels), None, &mut values)?;
        Ok(Batch { records: records as u64, values })
    }
}
