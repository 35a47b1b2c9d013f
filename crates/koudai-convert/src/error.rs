//! What can go wrong in a conversion. Every message names the key, tensor, file or offset.

use std::path::PathBuf;

use koudai::file::FileError;

use crate::gguf::GgufError;

/// Why a model can't be converted.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system's word on a file.
    Io(PathBuf, std::io::Error),
    /// The input is not something that can be converted.
    Input(String),
    /// The GGUF file is malformed.
    Gguf(GgufError),
    /// A file of a model folder is malformed.
    Folder {
        /// The file's name.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// An architecture that isn't supported.
    Architecture(String),
    /// A key of the model's configuration that is missing, impossible or not understood.
    Key {
        /// The key as the source spells it.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A tensor that is missing, unexpected or of the wrong shape or type.
    Tensor {
        /// The tensor's name as the source spells it.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The tokenizer can't be represented.
    Tokenizer(crate::tokenizer::Error),
    /// The output can't be written.
    Output(FileError),
    /// A model can't be used.
    Model(koudai::Error),
    /// A download that didn't work; trying again may.
    Download {
        /// What was fetched.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// A download that won't work by trying again.
    Refused {
        /// What was fetched.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// A downloaded file that isn't what it should be. It was removed.
    Checksum {
        /// The file.
        file: PathBuf,
        /// SHA-256 (or size) that it should have.
        expected: String,
        /// SHA-256 that it has.
        found: String,
    },
    /// The caller's progress callback asked to stop.
    Cancelled,
    /// Another error, with the file it concerns.
    At(PathBuf, Box<Error>),
}

impl Error {
    pub(crate) fn key(key: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Key { key: key.into(), why: why.into() }
    }

    /// An error about the content of the file at `path`, with that path; errors that name a file
    /// already, and those that aren't about one, as they are.
    pub(crate) fn in_file(path: &std::path::Path, error: impl Into<Error>) -> Error {
        match error.into() {
            Error::Output(e) if !matches!(e, FileError::Io(..)) => {
                Error::At(path.to_owned(), Box::new(Error::Output(e)))
            }
            other => other,
        }
    }

    pub(crate) fn tensor(name: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Tensor { name: name.into(), why: why.into() }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Io(path, e) => write!(f, "{}: {e}", path.display()),
            Error::Input(why) => f.write_str(why),
            Error::Gguf(e) => e.fmt(f),
            Error::Folder { file, why } => write!(f, "{file}: {why}"),
            Error::Architecture(name) => write!(
                f,
                "architecture `{name}` isn't supported (known: {})",
                crate::arch::Family::NAMES
            ),
            Error::Key { key, why } => write!(f, "`{key}` {why}"),
            Error::Tensor { name, why } => write!(f, "tensor `{name}` {why}"),
            Error::Tokenizer(e) => e.fmt(f),
            Error::Output(e) => e.fmt(f),
            Error::Model(e) => e.fmt(f),
            Error::Download { what, why } | Error::Refused { what, why } => {
                write!(f, "{what}: {}", why.lines().next().unwrap_or_default())
            }
            Error::Checksum { file, expected, found } => write!(
                f,
                "{}: its SHA-256 is {found}, it should be {expected}: the download is damaged",
                file.display()
            ),
            Error::Cancelled => f.write_str("cancelled"),
            Error::At(path, e) => write!(f, "{}: {e}", path.display()),
        }
    }
}

// No `source`: every message has its causes in it already, and printing the chain would repeat them.
impl std::error::Error for Error {}

impl From<GgufError> for Error {
    fn from(e: GgufError) -> Error {
        Error::Gguf(e)
    }
}

impl From<FileError> for Error {
    fn from(e: FileError) -> Error {
        Error::Output(e)
    }
}

impl From<koudai::Error> for Error {
    fn from(e: koudai::Error) -> Error {
        match e {
            koudai::Error::Cancelled => Error::Cancelled,
            other => Error::Model(other),
        }
    }
}

impl From<crate::tokenizer::Error> for Error {
    fn from(e: crate::tokenizer::Error) -> Error {
        Error::Tokenizer(e)
    }
}
