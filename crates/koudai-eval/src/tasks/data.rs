//! Reading the data's files: lines of JSON, whole JSON, tables. Errors name the file and the line.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::de::DeserializeOwned;

use crate::Error;

/// Longest file that is read, unpacked: far beyond any of the benchmarks.
const MAX_BYTES: u64 = 256 << 20;

/// Text of a file; `.gz` is unpacked.
pub(crate) fn text(path: &Path) -> Result<String, Error> {
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    let mut text = String::new();
    let mut read = |from: &mut dyn Read| from.take(MAX_BYTES + 1).read_to_string(&mut text);
    match path.extension().is_some_and(|e| e == "gz") {
        true => read(&mut GzDecoder::new(file)),
        false => read(&mut &file),
    }
    .map_err(Error::io(path))?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(Error::data(path, 1, format!("it is longer than {MAX_BYTES} bytes"))),
        false => Ok(text),
    }
}

/// A value for each line that isn't empty.
pub(crate) fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    let text = text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| serde_json::from_str(line).map_err(|e| Error::data(path, i + 1, e)))
        .collect()
}

/// The one value that a file holds.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    serde_json::from_str(&text(path)?).map_err(|e| Error::data(path, e.line(), e))
}

/// Rows of a table with a row of names first.
pub(crate) fn csv<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    table(path, csv::ReaderBuilder::new().delimiter(b','))
}

/// Rows of a tab-separated table with a row of names first; quotes mean nothing there.
pub(crate) fn tsv<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    table(path, csv::ReaderBuilder::new().delimiter(b'\t').quoting(false))
}

/// Rows of a tab-separated table without names.
pub(crate) fn tsv_rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    table(path, csv::ReaderBuilder::new().delimiter(b'\t').quoting(false).has_headers(false))
}

fn table<T: DeserializeOwned>(path: &Path, format: &csv::ReaderBuilder) -> Result<Vec<T>, Error> {
    let text = text(path)?;
    let mut reader = format.from_reader(text.as_bytes());
    let row = |row: csv::Result<T>| {
        row.map_err(|e| {
            Error::data(path, e.position().map_or(1, |p| p.line() as usize), e.to_string())
        })
    };
    reader.deserialize().map(row).collect()
}

/// Names (without the ending) of the files in a folder that end so, sorted.
pub(crate) fn names(folder: &Path, ending: &str) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let name = entry.map_err(Error::io(folder))?.file_name();
        names.extend(name.to_str().and_then(|n| n.strip_suffix(ending)).map(str::to_owned));
    }
    match names.is_empty() {
        true => Err(Error::Missing(folder.join(format!("*{ending}")))),
        false => {
            names.sort();
            Ok(names)
        }
    }
}
