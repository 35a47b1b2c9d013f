//! What can be wrong with a tokenizer section or with the description it is made from.
//!
//! Start at [`Error`]. Encoding and decoding have no errors: everything is checked when opening.

use std::fmt;

/// Why a tokenizer can't be opened or written. Ids are token ids, offsets are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The section is not as long as its header says (or too short for a header).
    Length {
        /// Length its counts ask for.
        expected: u64,
        /// Length it has.
        found: u64,
    },
    /// The section doesn't start with `KTOK`.
    Magic,
    /// A header field holds a value that this version doesn't know or allow.
    Header {
        /// Name of the field.
        field: &'static str,
        /// The value found there.
        value: u64,
    },
    /// The offset of this token's piece lies before the one before it, or past the piece bytes.
    PieceOffset {
        /// The token.
        id: u32,
    },
    /// A token breaks a rule about single tokens.
    Token {
        /// The token.
        id: u32,
        /// The rule.
        rule: &'static str,
    },
    /// Two tokens have the same piece.
    Duplicate {
        /// The token seen first.
        first: u32,
        /// The other one.
        second: u32,
    },
    /// The index of pieces is out of order or names a token it may not.
    Index {
        /// Position in the index.
        position: u32,
    },
    /// A merge breaks a rule.
    Merge {
        /// Position in the table (or, for a description, in its list).
        position: u32,
        /// The rule.
        rule: &'static str,
    },
    /// An id of a special role (`bos`, `eos`, …) is missing or outside the vocabulary.
    SpecialId {
        /// The role.
        role: &'static str,
        /// The id, `None` if it is missing.
        id: Option<u32>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, found } => {
                write!(f, "tokenizer section has {found} bytes, its header asks for {expected}")
            }
            Self::Magic => write!(f, "tokenizer section doesn't start with KTOK"),
            Self::Header { field, value } => {
                write!(f, "tokenizer header: {field} can't be {value}")
            }
            Self::PieceOffset { id } => write!(f, "token {id}: piece offset out of order"),
            Self::Token { id, rule } => write!(f, "token {id}: {rule}"),
            Self::Duplicate { first, second } => {
                write!(f, "tokens {first} and {second} have the same piece")
            }
            Self::Index { position } => write!(f, "piece index is wrong at entry {position}"),
            Self::Merge { position, rule } => write!(f, "merge {position}: {rule}"),
            Self::SpecialId { role, id: Some(id) } => {
                write!(f, "{role} token id {id} is outside the vocabulary")
            }
            Self::SpecialId { role, id: None } => {
                write!(f, "tokenizer adds {role} but has no {role} token id")
            }
        }
    }
}

impl std::error::Error for Error {}
