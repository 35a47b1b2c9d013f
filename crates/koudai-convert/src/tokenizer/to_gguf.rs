//! A [`Spec`] as the vocabulary of a GGUF, the inverse of [`super::gguf`].
//!
//! Start with [`GgufTokens::of`].

use std::collections::{BTreeMap, HashSet};

use koudai::tokenizer::{Kind, Normalizer, Pretokenizer, Spec, Token};

use super::gguf::ends_turns;
use super::{Error, GgufVocab, byte_level_text, faithful, spec_from_gguf, unsupported};

/// The values of `tokenizer.ggml.*`; those that are ids are the [`Spec`]'s own.
pub(crate) struct GgufTokens {
    pub(crate) model: &'static str,
    pub(crate) pre: &'static str,
    pub(crate) tokens: Vec<Vec<u8>>,
    pub(crate) types: Vec<i32>,
    pub(crate) scores: Option<Vec<f32>>,
    pub(crate) merges: Option<Vec<String>>,
    pub(crate) add_space_prefix: Option<bool>,
    /// Ids that end generation besides eos: the first two have keys.
    pub(crate) other_ends: Vec<u32>,
    /// What readers will do otherwise.
    pub(crate) notes: Vec<String>,
}

impl GgufTokens {
    /// One token for each of `rows` rows of the embedding. Refuses what would give other ids.
    pub(crate) fn of(spec: &Spec, rows: usize) -> Result<GgufTokens, Error> {
        let characters = spec.pretokenizer == Pretokenizer::None;
        let pre = match spec.pretokenizer {
            Pretokenizer::None => "default",
            Pretokenizer::Gpt2 => "gpt-2",
            Pretokenizer::SmolLm => "smollm",
            Pretokenizer::Qwen2 => "qwen2",
            Pretokenizer::Llama3 => "llama-bpe",
        };
        // Readers know the usual ends by their spelling.
        let needs_key =
            |id: &u32| Some(*id) != spec.eos && !ends_turns(&spec.tokens[*id as usize].piece);
        let prefix = spec.normalizer == Normalizer::MetaspacePrepend;
        let mut all = GgufTokens {
            model: if characters { "llama" } else { "gpt2" },
            pre,
            tokens: spellings(spec, rows)?,
            types: spec.tokens.iter().map(|t| token_type(t.kind)).collect(),
            scores: characters.then(|| scores(spec, rows)),
            merges: (!characters).then(|| merges(spec)),
            add_space_prefix: characters.then_some(prefix),
            other_ends: spec.ends.iter().copied().filter(needs_key).take(2).collect(),
            notes: Vec::new(),
        };
        all.types.resize(rows, token_type(Kind::Unused));
        all.notes = faithful::compare(spec, &all.read_back(spec)?, "GGUF")?;
        Ok(all)
    }

    /// What this crate's reader makes of it.
    fn read_back(&self, spec: &Spec) -> Result<Spec, Error> {
        let tokens: Vec<&[u8]> = self.tokens.iter().map(Vec::as_slice).collect();
        let merges = self.merges.as_ref().map(|all| all.iter().map(String::as_bytes).collect());
        let merges: Option<Vec<&[u8]>> = merges;
        spec_from_gguf(&GgufVocab {
            model: self.model,
            pre: Some(self.pre),
            tokens: &tokens,
            scores: self.scores.as_deref(),
            types: Some(&self.types),
            merges: merges.as_deref(),
            bos: spec.bos,
            eos: spec.eos,
            other_ends: &self.other_ends,
            pad: spec.pad,
            unk: spec.unk,
            add_bos: Some(spec.add_bos),
            add_eos: Some(spec.add_eos),
            add_space_prefix: self.add_space_prefix,
            remove_extra_whitespaces: None,
        })
    }
}

fn token_type(kind: Kind) -> i32 {
    match kind {
        Kind::Normal => 1,
        Kind::Unknown => 2,
        Kind::Control => 3,
        Kind::UserDefined => 4,
        Kind::Unused => 5,
        Kind::Byte => 6,
    }
}

/// One spelling for each row, no two alike: some readers take tokens for keys.
fn spellings(spec: &Spec, rows: usize) -> Result<Vec<Vec<u8>>, Error> {
    let characters = spec.pretokenizer == Pretokenizer::None;
    let text = |token: &Token| match token.kind {
        Kind::Normal if !characters => byte_level_text(&token.piece).into_bytes(),
        Kind::Byte => {
            token.piece.iter().flat_map(|b| format!("<0x{b:02X}>").into_bytes()).collect()
        }
        _ => token.piece.clone(),
    };
    let mut seen = HashSet::new();
    for (id, token) in spec.tokens.iter().enumerate().filter(|(_, t)| t.kind != Kind::Unused) {
        if !seen.insert(text(token)) {
            let found = format!("token {id} is spelled as another one is");
            return Err(unsupported("vocabulary", found));
        }
    }
    let mut spelling = |id: usize| match spec.tokens.get(id) {
        Some(token) if token.kind != Kind::Unused => text(token),
        // Rows without meaning keep what spelling they have, if nobody else has it.
        Some(token) if !token.piece.is_empty() && seen.insert(token.piece.clone()) => {
            token.piece.clone()
        }
        _ => format!("[PAD{id}]").into_bytes(),
    };
    Ok((0..rows).map(&mut spelling).collect())
}

/// Merges in their order, in the printable alphabet.
fn merges(spec: &Spec) -> Vec<String> {
    let text = |id: u32| byte_level_text(&spec.tokens[id as usize].piece);
    let mut merges: Vec<_> = spec.merges.iter().collect();
    merges.sort_by_key(|m| m.rank);
    merges.iter().map(|m| format!("{} {}", text(m.left), text(m.right))).collect()
}

/// Scores whose order is that of the merges: of two pairs, the one that makes the token with the
/// higher score goes first.
///
/// A token's score is minus its place, as SentencePiece trains them. Tokens that merges make take
/// the place of the first merge that makes them, or the next free one; the others fill the gaps,
/// lowest ids first. A model read from a GGUF so gets back the places that its scores had.
fn scores(spec: &Spec, rows: usize) -> Vec<f32> {
    let mut rank_of: BTreeMap<u32, u32> = BTreeMap::new();
    for merge in &spec.merges {
        let rank = rank_of.entry(merge.result).or_insert(merge.rank);
        *rank = merge.rank.min(*rank);
    }
    let mut made: Vec<(u32, u32)> = rank_of.iter().map(|(id, rank)| (*rank, *id)).collect();
    made.sort_unstable();
    let mut others = (0..rows as u32).filter(|id| !rank_of.contains_key(id)).peekable();
    let mut scores = vec![0.0; rows];
    let mut place = 0;
    for tied in made.chunk_by(|a, b| a.0 == b.0) {
        while place < tied[0].0
            && let Some(id) = others.next()
        {
            scores[id as usize] = -(place as f32);
            place += 1;
        }
        for (_, id) in tied {
            scores[*id as usize] = -(place as f32);
        }
        place += tied.len() as u32;
    }
    for id in others {
        scores[id as usize] = -(place as f32);
        place += 1;
    }
    scores
}
