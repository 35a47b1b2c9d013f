//! Work that can be interrupted, as lines of JSON, written as they come.
//!
//! The first line holds the settings. A file that was interrupted is continued if the settings are
//! the same; a last line that is cut short is dropped. What an entry means is its owner's: the answers
//! of an evaluation, the measurements of a search. Start with [`Journal::open`].

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::Error;

/// What the entries depend on, by name.
pub type Settings = Map<String, Value>;

/// A file of entries that grows; no other process writes to it meanwhile.
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or starts the file at `path`, and gives its entries with their line numbers. Fails if it
    /// was made with other settings, naming them, or if another process writes to it.
    pub fn open(path: &Path, settings: &Settings) -> Result<(Journal, Vec<(usize, Value)>), Error> {
        let io = |e| Error::Io(path.into(), e);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(io)?;
        if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::Settings(path.into(), "another process is writing to it".into()));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut entries = Vec::new();
        for (line, text) in (1..).zip(text[..whole].lines()) {
            let value = serde_json::from_str(text).map_err(|e| Error::data(path, line, e))?;
            match line {
                1 => compare(path, &value, settings)?,
                _ => entries.push((line, value)),
            }
        }
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut journal = Journal { path: path.into(), file };
        if whole == 0 {
            journal.write(&json!({ "settings": settings }))?;
        }
        Ok((journal, entries))
    }

    /// Adds an entry.
    pub fn write(&mut self, entry: &Value) -> Result<(), Error> {
        let line = format!("{entry}\n");
        self.file.write_all(line.as_bytes()).map_err(|e| Error::Io(self.path.clone(), e))
    }
}

/// Fails on the first setting that differs.
fn compare(path: &Path, header: &Value, settings: &Settings) -> Result<(), Error> {
    let Some(old) = header["settings"].as_object() else {
        return Err(Error::data(path, 1, "it doesn't start with settings"));
    };
    let names = settings.keys().chain(old.keys().filter(|k| !settings.contains_key(*k)));
    for name in names {
        let (old, new) = (old.get(name), settings.get(name));
        if old != new {
            let show = |v: Option<&Value>| v.map_or("nothing".into(), Value::to_string);
            let why = format!(
                "it was made with {name} {}, not {}; give another --out",
                show(old),
                show(new)
            );
            return Err(Error::Settings(path.into(), why));
        }
    }
    Ok(())
}
