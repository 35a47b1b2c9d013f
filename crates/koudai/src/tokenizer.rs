//! Text to token ids and back, identical to the reference tokenizers id for id.
//!
//! Byte-level BPE (GPT-2, SmolLM, Qwen, Llama 3) and SentencePiece-style BPE with byte fallback
//! (Gemma, Llama 2), read in place from a section of the model file. It deliberately has no regular
//! expressions, no JSON and no other formats (the converter knows those), and no chat roles (see
//! [`crate::template`]). Opening checks everything; afterwards nothing fails, on any text.
//!
//! Start at [`Tokenizer::encode_into`], which reads in the order things happen: matched tokens,
//! normalization, words, merges.

mod bpe;
mod decode;
mod error;
mod matcher;
mod pretokenize;
mod section;
mod spec;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

pub use decode::DecodeStream;
pub use error::Error;
pub use spec::{Kind, Matched, Merge, Normalizer, Pretokenizer, Spec, Token};

use crate::bytes::SharedBytes;
use bpe::Merger;
use matcher::Matcher;
use section::{Section, View};

/// What the spelling of a control token means in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// The control token: for text the app wrote itself.
    Parse,
    /// Just characters: for text from anywhere else. No control id comes out.
    Text,
}

/// Turns text into ids and ids into text.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    section: Section,
    raw: Matcher,                        // spellings found in the text as given
    normalized: Matcher,                 // spellings found in normalized text
    bytes: Box<[Option<u32>; 256]>,      // token of each byte
    ascii: Box<[Option<u32>; 128]>,      // token of each ASCII character
    characters: Vec<(char, u32)>,        // tokens of the other single characters, ascending
    controls: Matcher,                   // all spellings of control tokens
    control_parts: Vec<(u32, [u32; 2])>, // control tokens that merges could make, ascending
}

impl Tokenizer {
    /// Opens a section written by [`Spec::to_bytes`], checking all of it.
    pub fn open(section: SharedBytes) -> Result<Self, Error> {
        let section = Section::open(section)?;
        let view = section.view();
        let mut tokenizer = Self {
            raw: Matcher::new(Vec::new())?,
            normalized: Matcher::new(Vec::new())?,
            controls: Matcher::new(Vec::new())?,
            bytes: Box::new([None; 256]),
            ascii: Box::new([None; 128]),
            characters: Vec::new(),
            control_parts: Vec::new(),
            section: section.clone(),
        };
        let mut raw = Vec::new();
        let mut normalized = Vec::new();
        let mut controls = Vec::new();
        for id in 0..view.n_tokens() {
            tokenizer.note_symbol(&view, id)?;
            let piece = view.piece(id);
            if view.matched(id) != Matched::Never && view.kind(id).is_special() {
                controls.push((piece.into(), id));
            }
            match view.matched(id) {
                Matched::Never => {}
                Matched::Raw => raw.push((piece.into(), id)),
                Matched::Normalized => {
                    let spelling = String::from_utf8_lossy(piece);
                    let spelling = normalize(section.normalizer, &spelling).into_owned();
                    normalized.push((spelling.into_bytes().into(), id));
                }
            }
        }
        tokenizer.characters.sort_unstable();
        tokenizer.raw = Matcher::new(raw)?;
        tokenizer.normalized = Matcher::new(normalized)?;
        tokenizer.controls = Matcher::new(controls)?;
        // Any way to make it will do: its parts spell it.
        let made = view.merges().filter(|m| view.kind(m.result).is_special());
        tokenizer.control_parts = made.map(|m| (m.result, [m.left, m.right])).collect();
        tokenizer.control_parts.sort_unstable();
        tokenizer.control_parts.dedup_by_key(|(id, _)| *id);
        Ok(tokenizer)
    }

    /// Files `id` under the byte or character it stands for, if it does.
    fn note_symbol(&mut self, view: &View<'_>, id: u32) -> Result<(), Error> {
        let piece = view.piece(id);
        let kind = view.kind(id);
        let characters = self.section.pretokenizer == Pretokenizer::None;
        match (kind, piece) {
            (Kind::Byte, &[byte]) => {
                if let Some(first) = self.bytes[byte as usize].replace(id) {
                    return Err(Error::Duplicate { first, second: id });
                }
            }
            (Kind::Normal | Kind::UserDefined, &[byte]) if !characters => {
                self.bytes[byte as usize] = Some(id);
            }
            (Kind::Normal | Kind::UserDefined, _) if characters && piece.len() <= 4 => {
                let mut chars = std::str::from_utf8(piece).unwrap_or_default().chars();
                match (chars.next(), chars.next()) {
                    (Some(c), None) if c.is_ascii() => self.ascii[c as usize] = Some(id),
                    (Some(c), None) => self.characters.push((c, id)),
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The ids of `text`, nothing added.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        self.encode_into(text, special, &mut ids);
        ids
    }

    /// The ids of a prompt: starts with exactly one beginning-of-sequence if the model wants one.
    pub fn encode_prompt(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = self.encode(text, special);
        if let Some(bos) = self.bos().filter(|_| self.add_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Appends the ids of `text` to `ids`.
    pub fn encode_into(&self, text: &str, special: Special, ids: &mut Vec<u32>) {
        Encoder::new(self, special, ids).raw_text(text);
    }

    /// What a token's text is made of where the token itself isn't to be had: the two tokens that
    /// merge into it, wherever in a text that happens; the tokens of its text, if no merge makes it;
    /// the byte tokens of a character. Empty where there is nothing smaller, as for a byte.
    pub fn parts(&self, id: u32) -> Vec<u32> {
        if let Some(parts) = self.control_parts_of(id) {
            return parts.to_vec();
        }
        let piece = self.piece(id).unwrap_or_default();
        let characters = self.section.pretokenizer == Pretokenizer::None;
        let mut ids = Vec::new();
        let mut encoder = Encoder::new(self, Special::Text, &mut ids);
        match std::str::from_utf8(piece) {
            _ if self.kind(id) == Some(Kind::Byte) => {}
            Ok(text) if characters => text.chars().for_each(|c| encoder.character(c)),
            Err(_) if characters => {}
            _ => piece.iter().for_each(|&byte| encoder.byte(byte)),
        }
        match encoder.merged() {
            Some(pair) if ids == [id] => pair.to_vec(),
            None if ids == [id] && characters => self.byte_tokens(piece).unwrap_or_default(),
            _ if ids == [id] => Vec::new(),
            _ => ids,
        }
    }

    /// The byte tokens of `bytes`, if characters fall back to them and all are there.
    fn byte_tokens(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let ids = bytes.iter().map(|&byte| self.bytes[byte as usize]);
        if self.section.byte_fallback { ids.collect() } else { None }
    }

    /// The parts of a control token that merges could make.
    fn control_parts_of(&self, id: u32) -> Option<[u32; 2]> {
        let at = self.control_parts.binary_search_by_key(&id, |entry| entry.0).ok()?;
        Some(self.control_parts[at].1)
    }

    /// The ids of a text of which some ranges of bytes, ascending, come from strangers.
    ///
    /// A spelling becomes its control token only where none of its bytes is in such a range. If
    /// the ranges hold no part of a control token's spelling, the ids are those of
    /// [`Special::Parse`] on the whole text. Nothing is added.
    pub fn encode_mixed(&self, text: &str, untrusted: &[Range<usize>]) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        let mut done = 0;
        for (id, cut) in self.trusted_controls(text, untrusted) {
            self.encode_into(&text[done..cut.start], Special::Text, &mut ids);
            ids.push(id);
            done = cut.end;
        }
        self.encode_into(&text[done..], Special::Text, &mut ids);
        ids
    }

    /// The control tokens spelled in `text` by trusted bytes alone, and where.
    pub(crate) fn trusted_controls(
        &self,
        text: &str,
        untrusted: &[Range<usize>],
    ) -> Vec<(u32, Range<usize>)> {
        let view = self.section.view();
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        let mut ranges = untrusted;
        let mut at = 0;
        while at < bytes.len() {
            while ranges.first().is_some_and(|range| range.end <= at) {
                ranges = &ranges[1..];
            }
            let trusted_end = ranges.first().map_or(bytes.len(), |range| range.start.max(at));
            let control = self.controls.longest_where(&bytes[at..], |_, len| {
                let spelling = &bytes[at..at + len];
                at + len <= trusted_end && !spelling.iter().all(u8::is_ascii_whitespace)
            });
            // Other tokens hide control tokens inside them, as they do in any text.
            let ordinary = |id, _| !view.kind(id).is_special();
            let other = self.raw.longest_where(&bytes[at..], ordinary);
            at += match (control, other) {
                (Some((id, len)), other) if other.is_none_or(|(_, other)| other < len) => {
                    found.push((id, at..at + len));
                    len
                }
                (_, Some((_, len))) => len,
                _ => 1,
            };
        }
        found
    }

    /// The characters of control tokens' spellings, spaces aside.
    pub(crate) fn control_characters(&self) -> BTreeSet<char> {
        let spellings = self.controls.spellings();
        let text = spellings.filter_map(|spelling| std::str::from_utf8(spelling).ok());
        text.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
    }

    /// Where in `text` a character must be kept from helping to spell a control token: the starts
    /// of such spellings, of what the end of `text` has of one, and of what its start has.
    pub(crate) fn control_starts(&self, text: &str) -> Vec<usize> {
        let bytes = text.as_bytes();
        let visible = |range: Range<usize>| {
            let found = text[range.clone()].find(|c: char| !c.is_whitespace());
            found.map(|at| range.start + at)
        };
        let within = self.controls.spellings().any(|spelling| {
            spelling.windows(bytes.len().max(1)).any(|part| part == bytes)
                || (1..spelling.len()).any(|cut| bytes.starts_with(&spelling[cut..]))
        });
        let mut starts: Vec<usize> = Vec::new();
        if within {
            starts.extend(visible(0..text.len()));
        }
        for (at, _) in text.char_indices() {
            let whole = self.controls.longest_at(&bytes[at..]).map(|(_, len)| at + len);
            let near_end = bytes.len() - at < matcher::MAX_SPELLING;
            let cut = (near_end && self.controls.continues(&bytes[at..])).then_some(bytes.len());
            starts.extend(whole.or(cut).and_then(|end| visible(at..end)));
        }
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// The text of `ids`; with `skip_control`, control tokens give none. Ids outside the
    /// vocabulary give none either. What isn't UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_control: bool) -> String {
        let bytes = self.decode_bytes(ids, skip_control);
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// As [`Tokenizer::decode`], but the bytes themselves.
    pub fn decode_bytes(&self, ids: &[u32], skip_control: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        ids.iter().for_each(|&id| self.append_piece(id, skip_control, &mut bytes));
        if self.strip_leading_space() && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        bytes
    }

    fn append_piece(&self, id: u32, skip_control: bool, bytes: &mut Vec<u8>) {
        let view = self.section.view();
        if id >= view.n_tokens() || (skip_control && view.kind(id).is_special()) {
            return;
        }
        let piece = view.piece(id);
        let metaspace = "▁".as_bytes();
        if self.section.pretokenizer != Pretokenizer::None || view.kind(id) == Kind::Byte {
            return bytes.extend_from_slice(piece);
        }
        let mut rest = piece;
        while let Some((&first, after)) = rest.split_first() {
            if let Some(after) = rest.strip_prefix(metaspace) {
                bytes.push(b' ');
                rest = after;
            } else {
                bytes.push(first);
                rest = after;
            }
        }
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.section.view().n_tokens() as usize
    }

    /// The token with exactly this piece (byte tokens have none).
    pub fn token_to_id(&self, piece: &[u8]) -> Option<u32> {
        self.section.view().find(piece)
    }

    /// The piece of a token: the bytes it stands for, `▁` kept.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        let view = self.section.view();
        (id < view.n_tokens()).then(|| view.piece(id))
    }

    /// What sort of token it is.
    pub fn kind(&self, id: u32) -> Option<Kind> {
        let view = self.section.view();
        (id < view.n_tokens()).then(|| view.kind(id))
    }

    /// Whether the token steers the model.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(Kind::Control)
    }

    /// Whether generation stops after the token.
    pub fn is_end(&self, id: u32) -> bool {
        self.section.view().is_end(id)
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.section.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.section.eos
    }

    /// Padding.
    pub fn pad(&self) -> Option<u32> {
        self.section.pad
    }

    /// Whether a prompt starts with [`Tokenizer::bos`].
    pub fn add_bos(&self) -> bool {
        self.section.add_bos
    }

    /// Whether a training document ends with [`Tokenizer::eos`].
    pub fn add_eos(&self) -> bool {
        self.section.add_eos
    }

    fn strip_leading_space(&self) -> bool {
        self.section.strip_leading_space
    }

    /// Everything in the section, as a description that writes the same section again.
    pub fn spec(&self) -> Spec {
        let view = self.section.view();
        let mut merges: Vec<Merge> = view.merges().collect();
        merges.sort_by_key(|m| m.rank);
        Spec {
            tokens: (0..view.n_tokens()).map(|id| section::token(&view, id)).collect(),
            merges,
            normalizer: self.section.normalizer,
            pretokenizer: self.section.pretokenizer,
            byte_fallback: self.section.byte_fallback,
            ignore_merges: self.section.ignore_merges,
            fuse_unk: self.section.fuse_unk,
            strip_leading_space: self.section.strip_leading_space,
            bos: self.section.bos,
            eos: self.section.eos,
            pad: self.section.pad,
            unk: self.section.unk,
            ends: view.ends().collect(),
            add_bos: self.section.add_bos,
            add_eos: self.section.add_eos,
        }
    }
}

/// One call of [`Tokenizer::encode_into`].
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    view: View<'a>,
    special: Special,
    merger: Merger,
    /// Where in `ids` each word already seen came out.
    known: HashMap<Box<str>, (usize, usize)>,
    ids: &'a mut Vec<u32>,
}

/// Words and characters remembered in one call: bounds the memory that text can make it use.
const MAX_KNOWN_WORDS: usize = 16 * 1024;
const MAX_KNOWN_BYTES: usize = 48;

impl<'a> Encoder<'a> {
    fn new(tokenizer: &'a Tokenizer, special: Special, ids: &'a mut Vec<u32>) -> Self {
        let (view, merger) = (tokenizer.section.view(), Merger::default());
        Self { tokenizer, view, special, merger, known: HashMap::new(), ids }
    }

    fn raw_text(&mut self, text: &str) {
        let tokenizer = self.tokenizer;
        self.between_matches(&tokenizer.raw, text, |encoder, part| {
            let part = normalize(tokenizer.section.normalizer, part);
            encoder.between_matches(&tokenizer.normalized, &part, Self::plain_text);
        });
    }

    /// Emits the tokens that `matcher` finds in `text` and calls `part` for what lies between.
    ///
    /// A control token that may not be parsed still ends the search for others inside its
    /// spelling, as in the reference, but its spelling stays part of what lies around it.
    fn between_matches(
        &mut self,
        matcher: &Matcher,
        text: &str,
        mut part: impl FnMut(&mut Self, &str),
    ) {
        let mut done = 0;
        let mut from = 0;
        while let Some((id, start, end)) =
            (!matcher.is_empty()).then(|| matcher.next(text.as_bytes(), from)).flatten()
        {
            from = end;
            if self.special == Special::Text && self.view.kind(id).is_special() {
                continue;
            }
            if done < start {
                part(self, &text[done..start]);
            }
            self.ids.push(id);
            done = end;
        }
        if done < text.len() {
            part(self, &text[done..]);
        }
    }

    fn plain_text(&mut self, text: &str) {
        let pretokenizer = self.tokenizer.section.pretokenizer;
        pretokenize::words(pretokenizer, text, &mut |word| self.word(word));
    }

    fn word(&mut self, word: &str) {
        if self.tokenizer.section.ignore_merges
            && let Some(id) = self.view.find(word.as_bytes())
            && !self.view.kind(id).is_special()
        {
            return self.ids.push(id);
        }
        if let Some(&(start, end)) = self.known.get(word) {
            return self.ids.extend_from_within(start..end);
        }
        let start = self.ids.len();
        self.merger.clear();
        if self.tokenizer.section.pretokenizer == Pretokenizer::None {
            word.chars().for_each(|c| self.character(c));
        } else {
            word.bytes().for_each(|byte| self.byte(byte));
        }
        self.merged();
        if word.len() <= MAX_KNOWN_BYTES && self.known.len() < MAX_KNOWN_WORDS {
            self.known.insert(word.into(), (start, self.ids.len()));
        }
    }

    fn character(&mut self, c: char) {
        let tokenizer = self.tokenizer;
        let id = if c.is_ascii() {
            tokenizer.ascii[c as usize]
        } else {
            let at = tokenizer.characters.binary_search_by_key(&c, |entry| entry.0);
            at.ok().map(|at| tokenizer.characters[at].1)
        };
        let bytes = || tokenizer.byte_tokens(c.encode_utf8(&mut [0; 4]).as_bytes());
        match id.is_none().then(bytes).flatten() {
            Some(bytes) => bytes.into_iter().for_each(|id| self.merger.push(id)),
            None => self.symbol_or_unknown(id),
        }
    }

    fn byte(&mut self, byte: u8) {
        self.symbol_or_unknown(self.tokenizer.bytes[byte as usize]);
    }

    fn symbol_or_unknown(&mut self, id: Option<u32>) {
        let unk = self.tokenizer.section.unk.filter(|&unk| self.view.kind(unk) != Kind::Control);
        match (id, unk) {
            (Some(id), _) => self.merger.push(id),
            (None, Some(unk)) => {
                if !(self.tokenizer.section.fuse_unk && self.merger.last() == Some(unk)) {
                    self.merger.push(unk);
                }
            }
            (None, None) => {}
        }
    }

    /// Merges the symbols and emits what is left; the pair that merged last.
    fn merged(&mut self) -> Option<[u32; 2]> {
        let start = self.ids.len();
        self.merger.merge(&self.view, self.ids);
        if !self.tokenizer.control_parts.is_empty() {
            self.take_control_apart(start);
        }
        self.merger.last_pair()
    }

    /// Replaces control tokens that merges made since `start` by the parts they were made of.
    fn take_control_apart(&mut self, start: usize) {
        let parts_of = |id: u32| self.tokenizer.control_parts_of(id);
        if self.ids[start..].iter().all(|&id| parts_of(id).is_none()) {
            return;
        }
        let mut stack: Vec<u32> = self.ids.drain(start..).rev().collect();
        while let Some(id) = stack.pop() {
            match parts_of(id) {
                Some([left, right]) => stack.extend([right, left]),
                None => self.ids.push(id),
            }
        }
    }
}

/// Applies the normalizer to text that no token matched in.
///
/// Form C of a character never changes once Unicode has it, so all versions agree about those that
/// both have. The reference's tables are of Unicode 9, ours are newer: a combining mark assigned in
/// between (such as U+16FF0, of Unicode 13) is put into canonical order here and left in place there.
fn normalize(normalizer: Normalizer, text: &str) -> Cow<'_, str> {
    match normalizer {
        Normalizer::None => text.into(),
        Normalizer::Nfc if is_nfc_quick(text.chars()) == IsNormalized::Yes => text.into(),
        Normalizer::Nfc => text.nfc().collect::<String>().into(),
        Normalizer::Metaspace if text.contains(' ') => text.replace(' ', "▁").into(),
        Normalizer::Metaspace => text.into(),
        Normalizer::MetaspacePrepend if text.is_empty() => text.into(),
        Normalizer::MetaspacePrepend => format!("▁{}", text.replace(' ', "▁")).into(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
