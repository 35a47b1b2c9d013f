//! The vocabulary of a GGUF as a [`Spec`].
//!
//! It deliberately guesses no pre-tokenizer: a wrong one gives plausible ids and a worse model.
//! Start at [`spec_from_gguf`].

use std::collections::HashMap;

use koudai::tokenizer::{self, Kind, Matched, Merge, Normalizer, Pretokenizer, Spec, Token};

use super::{Error, byte_level_piece, byte_token, set_ends, unsupported};

/// The values of a GGUF's `tokenizer.ggml.*` keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `gpt2` (byte-level) or `llama` (SentencePiece-style).
    pub model: &'a str,
    /// `pre`.
    pub pre: Option<&'a str>,
    /// `tokens`.
    pub tokens: &'a [&'a [u8]],
    /// `scores`.
    pub scores: Option<&'a [f32]>,
    /// `token_type`.
    pub types: Option<&'a [i32]>,
    /// `merges`.
    pub merges: Option<&'a [&'a [u8]]>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id` and `eom_token_id`: further ids that end generation.
    pub other_ends: &'a [u32],
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
}

const NAME_IT: &str = "; if you know which one the model was trained with, convert it with `--pre` \
                       and gpt-2, qwen2, llama-bpe or smollm";

/// Makes the description of a GGUF's tokenizer.
pub fn spec_from_gguf(vocab: &GgufVocab<'_>) -> Result<Spec, Error> {
    if vocab.remove_extra_whitespaces == Some(true) {
        return Err(unsupported("normalizer", "remove_extra_whitespaces"));
    }
    for (role, id) in [("bos", vocab.bos), ("eos", vocab.eos), ("pad", vocab.pad)] {
        if id.is_some_and(|id| id as usize >= vocab.tokens.len()) {
            return Err(tokenizer::Error::SpecialId { role, id }.into());
        }
    }
    let mut spec = match vocab.model {
        "gpt2" => byte_level(vocab)?,
        "llama" => sentencepiece(vocab)?,
        other => return Err(unsupported("model", format_args!("{other:?}"))),
    };
    (spec.bos, spec.eos, spec.pad) = (vocab.bos, vocab.eos, vocab.pad);
    spec.add_eos = vocab.add_eos.unwrap_or(false);
    set_ends(&mut spec, vocab.other_ends.iter().copied());
    spec.to_bytes()?; // all the rules a section has
    Ok(spec)
}

fn byte_level(vocab: &GgufVocab<'_>) -> Result<Spec, Error> {
    let Some(pre) = vocab.pre else {
        return Err(Error::Missing(format!("pre-tokenizer name (tokenizer.ggml.pre){NAME_IT}")));
    };
    // The reference Qwen 2 tokenizer composes characters, which a GGUF has no key to say.
    let (pretokenizer, normalizer) = match pre {
        "gpt-2" => (Pretokenizer::Gpt2, Normalizer::None),
        "smollm" => (Pretokenizer::SmolLm, Normalizer::None),
        "qwen2" => (Pretokenizer::Qwen2, Normalizer::Nfc),
        "llama-bpe" | "llama3" | "llama-v3" => (Pretokenizer::Llama3, Normalizer::None),
        other => return Err(unsupported("pre-tokenizer", format_args!("{other:?}{NAME_IT}"))),
    };
    let llama3 = pretokenizer == Pretokenizer::Llama3;
    let mut tokens = Vec::with_capacity(vocab.tokens.len());
    for (id, (&piece, kind)) in vocab.tokens.iter().zip(kinds(vocab)?).enumerate() {
        let real = match kind {
            Kind::Normal => std::str::from_utf8(piece).ok().and_then(byte_level_piece),
            Kind::Byte => None,
            _ => Some(piece.to_vec()),
        };
        let Some(real) = real else {
            let shown = String::from_utf8_lossy(piece);
            return Err(unsupported("vocabulary", format_args!("token {id} {shown:?}")));
        };
        tokens.push(Token { piece: real, kind, matched: matched(kind) });
    }

    let Some(merges) = vocab.merges else {
        return Err(Error::Missing("merges (tokenizer.ggml.merges)".to_owned()));
    };
    let ids = ids_by_piece(&tokens);
    let mut list = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let text = String::from_utf8_lossy(merge);
        let pieces = text.split_once(' ').and_then(|(left, right)| {
            let [left, right] = [byte_level_piece(left)?, byte_level_piece(right)?];
            let joined = [left.as_slice(), &right].concat();
            Some([*ids.get(&*left)?, *ids.get(&*right)?, *ids.get(&*joined)?])
        });
        let Some([left, right, result]) = pieces else {
            return Err(Error::Conflict(format!("merge {rank} {text:?} isn't in the vocabulary")));
        };
        list.push(Merge { left, right, result, rank: rank as u32 });
    }
    Ok(Spec {
        tokens,
        merges: list,
        normalizer,
        pretokenizer,
        ignore_merges: llama3,
        add_bos: vocab.add_bos.unwrap_or(llama3),
        ..Spec::default()
    })
}

fn sentencepiece(vocab: &GgufVocab<'_>) -> Result<Spec, Error> {
    if let Some(other) = vocab.pre.filter(|&pre| pre != "default") {
        return Err(unsupported("pre-tokenizer", format_args!("{other:?}")));
    }
    let Some(scores) = vocab.scores else {
        return Err(Error::Missing("scores (tokenizer.ggml.scores)".to_owned()));
    };
    if scores.len() != vocab.tokens.len() {
        let lengths = format!("{} scores for {} tokens", scores.len(), vocab.tokens.len());
        return Err(Error::Conflict(lengths));
    }
    let mut tokens = Vec::with_capacity(vocab.tokens.len());
    for (id, (&piece, kind)) in vocab.tokens.iter().zip(kinds(vocab)?).enumerate() {
        let piece = match (kind, byte_token(piece)) {
            (Kind::Byte, Some(byte)) => vec![byte],
            (Kind::Byte, None) => {
                let shown = String::from_utf8_lossy(piece);
                return Err(unsupported("vocabulary", format_args!("byte token {id} {shown:?}")));
            }
            _ => piece.to_vec(),
        };
        tokens.push(Token { piece, kind, matched: matched(kind) });
    }
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    Ok(Spec {
        merges: merges_from_scores(&tokens, scores)?,
        byte_fallback: tokens.iter().any(|token| token.kind == Kind::Byte),
        normalizer: if prefix { Normalizer::MetaspacePrepend } else { Normalizer::Metaspace },
        pretokenizer: Pretokenizer::None,
        strip_leading_space: prefix,
        unk: vocab.unk,
        add_bos: vocab.add_bos.unwrap_or(true),
        tokens,
        ..Spec::default()
    })
}

/// Every way to split a piece into two others merges, the best score of the whole first.
fn merges_from_scores(tokens: &[Token], scores: &[f32]) -> Result<Vec<Merge>, Error> {
    if let Some(id) = scores.iter().position(|score| score.is_nan()) {
        return Err(Error::Conflict(format!("the score of token {id} isn't a number")));
    }
    let ids = ids_by_piece(tokens);
    let mut results: Vec<u32> = (0..tokens.len() as u32).collect();
    results.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    let mut merges = Vec::new();
    let mut rank = 0;
    for (at, &result) in results.iter().enumerate() {
        // `==` rather than the order above: 0 and -0 are the same score.
        if at > 0 && scores[result as usize] != scores[results[at - 1] as usize] {
            rank = at as u32;
        }
        let token = &tokens[result as usize];
        if matches!(token.kind, Kind::Byte | Kind::Unused) {
            continue;
        }
        let Ok(piece) = std::str::from_utf8(&token.piece) else {
            return Err(unsupported("vocabulary", format_args!("token {result} isn't UTF-8")));
        };
        for (split, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(split);
            let pair = (ids.get(left.as_bytes()), ids.get(right.as_bytes()));
            if let (Some(&left), Some(&right)) = pair {
                merges.push(Merge { left, right, result, rank });
            }
        }
    }
    Ok(merges)
}

fn ids_by_piece(tokens: &[Token]) -> HashMap<&[u8], u32> {
    let indexed = tokens.iter().enumerate();
    indexed
        .filter(|(_, token)| !matches!(token.kind, Kind::Byte | Kind::Unused))
        .map(|(id, token)| (token.piece.as_slice(), id as u32))
        .collect()
}

/// Kinds in token order.
fn kinds(vocab: &GgufVocab<'_>) -> Result<Vec<Kind>, Error> {
    let Some(types) = vocab.types else {
        return Err(Error::Missing("token types (tokenizer.ggml.token_type)".to_owned()));
    };
    if types.len() != vocab.tokens.len() {
        let lengths = format!("{} types for {} tokens", types.len(), vocab.tokens.len());
        return Err(Error::Conflict(lengths));
    }
    let kind = |(id, &number): (usize, &i32)| match number {
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        // Files exist that call a token which ends turns an ordinary one; llama.cpp overrides them
        // too. A stranger's text must not be able to spell it.
        1 | 4 if ends_turns(vocab.tokens[id]) => Ok(Kind::Control),
        1 => Ok(Kind::Normal),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 => Ok(Kind::Byte),
        other => Err(unsupported("token type", format_args!("{other} of token {id}"))),
    };
    types.iter().enumerate().map(kind).collect()
}

pub(super) fn ends_turns(spelling: &[u8]) -> bool {
    super::END_SPELLINGS.iter().any(|end| end.as_bytes() == spelling)
}

fn matched(kind: Kind) -> Matched {
    match kind {
        Kind::Control | Kind::UserDefined | Kind::Unknown => Matched::Raw,
        Kind::Normal | Kind::Byte | Kind::Unused => Matched::Never,
    }
}
