//! Everything that can go wrong in the engine, in words that say what to do.

use std::path::PathBuf;

use crate::file::FileError;

/// Why the engine can't do what was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The model file can't be used.
    File(PathBuf, FileError),
    /// The tokenizer section can't be used.
    Tokenizer(PathBuf, crate::tokenizer::Error),
    /// `KOUDAI_ISA` names kernels that this processor can't run or this build doesn't have.
    Isa(String),
    /// The model has no chat template, so it can't chat.
    NoTemplate(PathBuf),
    /// The chat template can't be used, or not with these messages.
    Template(crate::template::Error),
    /// A value is out of range; the message names it.
    Parameter(String),
    /// A token id is outside the vocabulary.
    Token {
        /// The id.
        id: u32,
        /// Entries in the vocabulary.
        vocab_size: usize,
    },
    /// There is nothing to continue from.
    EmptyPrompt,
    /// The context can't hold so many tokens.
    ContextFull {
        /// Tokens that should fit.
        needed: usize,
        /// Tokens the session holds at most.
        context: usize,
    },
    /// The memory limit is too low; the message says what would fit.
    Memory(String),
    /// No token is possible: all logits are -∞ or NaN.
    NoCandidate,
    /// The work was cancelled.
    Cancelled,
    /// A saved session can't be used here.
    Session(PathBuf, String),
    /// A delta can't be applied.
    Delta(PathBuf, String),
    /// The operating system's word.
    Io(String, std::io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::File(path, FileError::Io(_, e)) => write!(f, "{}: {e}", path.display()),
            Error::File(path, e) => write!(f, "{}: {e}", path.display()),
            Error::Tokenizer(path, e) => write!(f, "{}: section `tokens`: {e}", path.display()),
            Error::Isa(name) => {
                let names: Vec<_> =
                    koudai_kernels::Kernels::available().iter().map(|k| k.name()).collect();
                write!(
                    f,
                    "KOUDAI_ISA={name} isn't available here; choose from {}",
                    names.join(", ")
                )
            }
            Error::NoTemplate(path) => write!(
                f,
                "{}: the model has no chat template; use it for plain completion",
                path.display()
            ),
            Error::Template(e) => write!(f, "{e}"),
            Error::Parameter(why) => f.write_str(why),
            Error::Token { id, vocab_size } => {
                write!(f, "token id {id} is outside the vocabulary of {vocab_size}")
            }
            Error::EmptyPrompt => f.write_str("the prompt is empty: there is nothing to continue"),
            Error::ContextFull { needed, context } => write!(
                f,
                "{needed} tokens don't fit the context of {context}; shorten the text or raise the \
                 context"
            ),
            Error::Memory(why) => f.write_str(why),
            Error::NoCandidate => f.write_str("no token is possible: every logit is -inf or NaN"),
            Error::Cancelled => f.write_str("cancelled"),
            Error::Session(path, why) | Error::Delta(path, why) => {
                write!(f, "{}: {why}", path.display())
            }
            Error::Io(what, e) => write!(f, "{what}: {e}"),
        }
    }
}

impl std::error::Error for Error {}
