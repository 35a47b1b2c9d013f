//! A tokenizer as plain owned data: what converters build and the pruner edits.
//!
//! [`Spec`] knows nothing of file formats other than its own section (see `section.rs`), and it
//! isn't used while encoding: write it with [`Spec::to_bytes`], open that with
//! [`Tokenizer::open`](super::Tokenizer::open).

use super::Error;
use super::section;

/// Everything that decides how text becomes ids and back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// One entry per id, in id order.
    pub tokens: Vec<Token>,
    /// Pairs that merge, most urgent first unless [`Merge::rank`] says otherwise.
    pub merges: Vec<Merge>,
    /// What happens to text before it is split.
    pub normalizer: Normalizer,
    /// How text is split into words that merge on their own.
    pub pretokenizer: Pretokenizer,
    /// A character without a token becomes its UTF-8 bytes' [`Kind::Byte`] tokens.
    pub byte_fallback: bool,
    /// A word that is a token becomes that token, whatever the merges say.
    pub ignore_merges: bool,
    /// Neighbouring unknown characters become one unknown token instead of one each.
    pub fuse_unk: bool,
    /// Decoding drops one space at the start of the text.
    pub strip_leading_space: bool,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Stands for what has no token; unknown characters vanish without one.
    pub unk: Option<u32>,
    /// Ids after which generation stops, ascending.
    pub ends: Vec<u32>,
    /// A prompt starts with [`Spec::bos`].
    pub add_bos: bool,
    /// A training document ends with [`Spec::eos`].
    pub add_eos: bool,
}

impl Spec {
    /// Writes the section that [`Tokenizer::open`](super::Tokenizer::open) reads.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        section::write(self)
    }
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The real bytes it stands for (not a byte-to-character alphabet). SentencePiece-style pieces
    /// keep their `▁`.
    pub piece: Vec<u8>,
    /// What sort of token it is.
    pub kind: Kind,
    /// Whether its spelling is searched for in the text before anything else happens.
    pub matched: Matched,
}

/// What sort of token it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An ordinary token.
    Normal = 0,
    /// Steers the model (turn markers, end of text): never made from untrusted text.
    Control = 1,
    /// An ordinary token that is found whole before text is split.
    UserDefined = 2,
    /// One byte of a SentencePiece-style vocabulary with byte fallback.
    Byte = 3,
    /// Stands for what has no token. Treated as [`Kind::Control`], except that unknown characters
    /// do become it.
    Unknown = 4,
    /// A row without meaning; its piece may be empty or equal another's.
    Unused = 5,
}

impl Kind {
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Normal,
            1 => Self::Control,
            2 => Self::UserDefined,
            3 => Self::Byte,
            4 => Self::Unknown,
            5 => Self::Unused,
            _ => return None,
        })
    }

    /// Whether only trusted text may spell it, and decoding may leave it out.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// Whether its piece is in the index of pieces.
    pub(super) fn is_indexed(self) -> bool {
        !matches!(self, Self::Byte | Self::Unused)
    }
}

/// Where a token's spelling is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Matched {
    /// Nowhere: it comes from merges.
    #[default]
    Never = 0,
    /// In the text as given.
    Raw = 1,
    /// In the normalized text between the raw matches; its spelling is normalized too.
    Normalized = 2,
}

/// `left` then `right` may become `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// First token of the pair.
    pub left: u32,
    /// Second token of the pair.
    pub right: u32,
    /// What they become; its piece is theirs joined.
    pub result: u32,
    /// Lowest goes first; among equals, the leftmost in the text.
    pub rank: u32,
}

/// What happens to text before it is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Normalizer {
    /// Nothing.
    #[default]
    None = 0,
    /// Unicode normalization form C.
    Nfc = 1,
    /// Each space becomes `▁` (U+2581). Decoding turns it back.
    Metaspace = 2,
    /// As [`Normalizer::Metaspace`], with one more `▁` put first.
    MetaspacePrepend = 3,
}

/// How text is split into words that merge on their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Pretokenizer {
    /// SentencePiece style: not at all, and merges start from characters. Goes with a metaspace
    /// [`Normalizer`]. All others are byte-level: merges start from bytes.
    #[default]
    None = 0,
    /// GPT-2's pattern.
    Gpt2 = 1,
    /// Single digits, then GPT-2's pattern on each part between.
    SmolLm = 2,
    /// Qwen 2's pattern: contractions in any case, single digits.
    Qwen2 = 3,
    /// Llama 3's pattern: contractions in any case, digits in threes.
    Llama3 = 4,
}
