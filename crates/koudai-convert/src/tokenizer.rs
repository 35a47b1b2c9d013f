//! Foreign tokenizers as a [`Spec`]: Hugging Face `tokenizer.json` and the vocabulary of a GGUF.
//!
//! A configuration is either recognised exactly or refused by the name of its component: nothing
//! here approximates. `to_gguf` and `to_json` go the other way. It deliberately reads no files
//! and parses no GGUF; it gets bytes and arrays.
//! Start at [`spec_from_tokenizer_json`] or [`spec_from_gguf`].

mod faithful;
mod gguf;
mod json;
pub(crate) mod to_gguf;
pub(crate) mod to_json;

use std::fmt;

use koudai::tokenizer::{self, Kind, Spec};

pub use gguf::{GgufVocab, spec_from_gguf};
pub use json::{TokenizerFiles, spec_from_tokenizer_json};

/// Why a tokenizer can't be converted.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Not JSON, or not the JSON of a tokenizer.
    Json(serde_json::Error),
    /// A component, or a setting of one, that we can't reproduce exactly.
    Unsupported {
        /// Which component.
        component: String,
        /// What it says.
        found: String,
    },
    /// Something needed isn't there.
    Missing(String),
    /// Two places contradict each other, or one contradicts itself.
    Conflict(String),
    /// The resulting description breaks a rule of the section.
    Invalid(tokenizer::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => write!(f, "tokenizer JSON: {error}"),
            Self::Unsupported { component, found } => {
                write!(f, "tokenizer {component} isn't supported: {found}")
            }
            Self::Missing(what) => write!(f, "tokenizer has no {what}"),
            Self::Conflict(what) => write!(f, "tokenizer contradicts itself: {what}"),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

// No `source`: every message has its cause in it already.
impl std::error::Error for Error {}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

impl From<tokenizer::Error> for Error {
    fn from(error: tokenizer::Error) -> Self {
        Self::Invalid(error)
    }
}

fn unsupported(component: &str, found: impl fmt::Display) -> Error {
    Error::Unsupported { component: component.to_owned(), found: found.to_string() }
}

/// Control tokens that end a turn or a text in the supported families, besides the model's own eos.
const END_SPELLINGS: [&str; 9] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<eos>",
    "</s>",
];

/// Sets `spec.ends`: `given`, eos, and the control tokens known to end a turn.
fn set_ends(spec: &mut Spec, given: impl IntoIterator<Item = u32>) {
    let known = spec.tokens.iter().enumerate().filter_map(|(id, token)| {
        let ends = token.kind == Kind::Control
            && END_SPELLINGS.iter().any(|spelling| spelling.as_bytes() == token.piece);
        ends.then_some(id as u32)
    });
    let mut ends: Vec<u32> = known.chain(spec.eos).chain(given).collect();
    ends.sort_unstable();
    ends.dedup();
    spec.ends = ends;
}

/// The byte that a character of GPT-2's printable alphabet stands for.
fn byte_of_char(c: char) -> Option<u8> {
    // Printable Latin-1 stands for itself; the others count up from U+0100 in byte order.
    match u32::from(c) {
        n @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(n as u8),
        n @ 0x100..=0x120 => Some((n - 0x100) as u8),
        n @ 0x121..=0x142 => Some((n - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// A character of GPT-2's printable alphabet for each byte: the inverse of [`byte_level_piece`].
fn byte_level_text(bytes: &[u8]) -> String {
    let char_of_byte = |byte: &u8| {
        let code = match *byte {
            byte @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u32::from(byte),
            byte @ 0..=0x20 => 0x100 + u32::from(byte),
            byte @ 0x7F..=0xA0 => 0x121 + u32::from(byte - 0x7F),
            0xAD => 0x143,
        };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    bytes.iter().map(char_of_byte).collect()
}

/// The real bytes of a byte-level piece, `None` if a character isn't of the alphabet.
fn byte_level_piece(piece: &str) -> Option<Vec<u8>> {
    piece.chars().map(byte_of_char).collect()
}

/// The byte that `<0x0A>` and its like stand for.
fn byte_token(piece: &[u8]) -> Option<u8> {
    let hex = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let upper = hex.len() == 2 && hex.iter().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
    u8::from_str_radix(std::str::from_utf8(hex).ok().filter(|_| upper)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printable_alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for c in (0..0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of_char(c) {
                assert!(!std::mem::replace(&mut seen[byte as usize], true), "{byte:#x} twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(byte_level_piece(&byte_level_text(&all)), Some(all));
        assert_eq!(byte_level_piece("ĠaĊ").as_deref(), Some(&b" a\n"[..]));
        assert_eq!(byte_level_piece("a b"), None);
    }

    #[test]
    fn byte_tokens_have_one_spelling() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        for other in ["<0x0a>", "<0x+A>", "<0xA>", "0x0A", "<0x0A> "] {
            assert_eq!(byte_token(other.as_bytes()), None, "{other}");
        }
    }
}
