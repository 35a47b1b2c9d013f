//! Why an evaluation can't be done; every message names the file, the setting or the server.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file of the data isn't there.
    Missing(PathBuf),
    /// A file of the data isn't as it should be: where, and how.
    Data(PathBuf, usize, String),
    /// A file isn't what a command of ours printed: how.
    Document(PathBuf, String),
    /// Reading or writing a file failed.
    Io(PathBuf, io::Error),
    /// Saved results were made with other settings.
    Settings(PathBuf, String),
    /// A setting that the task or the model doesn't have.
    Unsupported(String),
    /// Generated programs can't be contained here.
    Sandbox(String),
    /// A server didn't answer as it should.
    Endpoint(String, String),
    /// The engine refused.
    Model(koudai::Error),
    /// It was cancelled; what is done is saved.
    Cancelled,
}

impl Error {
    pub(crate) fn data(path: &Path, line: usize, why: impl fmt::Display) -> Error {
        Error::Data(path.into(), line, why.to_string())
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |e| match e.kind() {
            io::ErrorKind::NotFound => Error::Missing(path.into()),
            _ => Error::Io(path.into(), e),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing(path) => write!(f, "{}: there is no such file", path.display()),
            Error::Data(path, line, why) => write!(f, "{} line {line}: {why}", path.display()),
            Error::Document(path, why) => write!(f, "{}: {why}", path.display()),
            Error::Io(path, e) => write!(f, "{}: {e}", path.display()),
            Error::Settings(path, why) => write!(f, "{}: {why}", path.display()),
            Error::Unsupported(why) => f.write_str(why),
            Error::Sandbox(why) => write!(f, "generated programs can't be contained: {why}"),
            Error::Endpoint(url, why) => write!(f, "{url}: {why}"),
            Error::Model(e) => e.fmt(f),
            Error::Cancelled => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}

impl From<koudai::Error> for Error {
    fn from(e: koudai::Error) -> Error {
        match e {
            koudai::Error::Cancelled => Error::Cancelled,
            e => Error::Model(e),
        }
    }
}
