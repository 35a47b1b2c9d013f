//! The tokenizer section of a model file: writing it, checking it, looking things up in it.
//!
//! `FORMAT.md` is the layout in prose. [`Section::open`] checks everything in one
//! pass without allocating; afterwards [`View`] reads in place and nothing can go wrong. It
//! deliberately knows nothing about text.

use std::ops::Range;

use super::Error;
use super::spec::{Kind, Matched, Merge, Normalizer, Pretokenizer, Spec, Token};
use crate::bytes::SharedBytes;

const MAGIC: &[u8; 4] = b"KTOK";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 52;
const NO_ID: u32 = u32::MAX;
/// Most tokens a section may have; far above any vocabulary, far below any overflow.
const MAX_TOKENS: u32 = 1 << 24;
const MAX_MERGES: u32 = 1 << 27;

const BYTE_FALLBACK: u8 = 1;
const IGNORE_MERGES: u8 = 2;
const ADD_BOS: u8 = 4;
const ADD_EOS: u8 = 8;
const FUSE_UNK: u8 = 16;
const STRIP_LEADING_SPACE: u8 = 32;
const ALL_FLAGS: u8 = 63;

const KIND_BITS: u8 = 0b111;
const MATCHED_SHIFT: u8 = 3;

/// A checked section: its header, and where its tables lie.
#[derive(Debug, Clone)]
pub(super) struct Section {
    bytes: SharedBytes,
    tables: Tables,
    pub(super) normalizer: Normalizer,
    pub(super) pretokenizer: Pretokenizer,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    pub(super) fuse_unk: bool,
    pub(super) strip_leading_space: bool,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) pad: Option<u32>,
    pub(super) unk: Option<u32>,
}

#[derive(Debug, Clone)]
struct Tables {
    offsets: Range<usize>,
    kinds: Range<usize>,
    index: Range<usize>,
    rows: Range<usize>,
    merges: Range<usize>,
    ends: Range<usize>,
    pieces: Range<usize>,
}

/// The tables of a checked section, borrowed once per call rather than once per look-up.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    offsets: &'a [[u8; 4]], // (n_tokens + 1): piece i is pieces[offsets[i]..offsets[i + 1]]
    kinds: &'a [u8],        // (n_tokens)
    index: &'a [[u8; 4]],   // ids, ascending by piece
    rows: &'a [[u8; 4]],    // (n_tokens + 1): merges with left = i are merges[rows[i]..rows[i + 1]]
    merges: &'a [[u8; 12]], // right, rank, result; ascending by right within a row
    ends: &'a [[u8; 4]],    // ascending ids
    pieces: &'a [u8],
}

impl Section {
    /// Checks `bytes` whole: afterwards every table is what the layout says it is.
    pub(super) fn open(bytes: SharedBytes) -> Result<Self, Error> {
        let raw: &[u8] = &bytes;
        let found = raw.len() as u64;
        let Some((header, _)) = raw.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Error::Length { expected: HEADER_BYTES as u64, found });
        };
        if &header[..4] != MAGIC {
            return Err(Error::Magic);
        }
        let word = |at: usize| u32_at(header, at);
        let bad = |field, value: u32| Err(Error::Header { field, value: value.into() });
        if word(4) != VERSION {
            return bad("version", word(4));
        }
        let [n_tokens, n_merges, n_index, n_ends, piece_bytes] =
            [word(8), word(12), word(16), word(20), word(24)];
        if n_tokens == 0 || n_tokens > MAX_TOKENS {
            return bad("token count", n_tokens);
        }
        if n_merges > MAX_MERGES {
            return bad("merge count", n_merges);
        }
        if n_index > n_tokens {
            return bad("index count", n_index);
        }
        if n_ends > n_tokens {
            return bad("end count", n_ends);
        }
        let Some(normalizer) = normalizer_from(header[28]) else {
            return bad("normalizer", header[28].into());
        };
        let Some(pretokenizer) = pretokenizer_from(header[29]) else {
            return bad("pretokenizer", header[29].into());
        };
        let flags = header[30];
        if flags & !ALL_FLAGS != 0 {
            return bad("flags", flags.into());
        }
        if header[31] != 0 || word(48) != 0 {
            return bad("reserved field", header[31].max(u8::from(word(48) != 0)).into());
        }

        // The counts are bounded, so these sums fit a u64; the length must match them exactly.
        let mut end = HEADER_BYTES as u64;
        let mut table = |bytes: u64| {
            let start = end;
            end += bytes;
            start..end
        };
        let n = u64::from(n_tokens);
        let offsets = table(4 * (n + 1));
        let kinds = table(n);
        let padding = table((4 - n % 4) % 4);
        let index = table(4 * u64::from(n_index));
        let rows = table(4 * (n + 1));
        let merges = table(12 * u64::from(n_merges));
        let ends = table(4 * u64::from(n_ends));
        let pieces = table(u64::from(piece_bytes));
        if end != found {
            return Err(Error::Length { expected: end, found });
        }
        // They end at the length of a slice, so they fit a usize.
        let local = |range: Range<u64>| range.start as usize..range.end as usize;
        if raw[local(padding)].iter().any(|&b| b != 0) {
            return bad("padding", 1);
        }
        let tables = Tables {
            offsets: local(offsets),
            kinds: local(kinds),
            index: local(index),
            rows: local(rows),
            merges: local(merges),
            ends: local(ends),
            pieces: local(pieces),
        };
        let special = |role, at| match word(at) {
            NO_ID => Ok(None),
            id if id < n_tokens => Ok(Some(id)),
            id => Err(Error::SpecialId { role, id: Some(id) }),
        };
        let flag = |bit| flags & bit != 0;
        let section = Self {
            normalizer,
            pretokenizer,
            byte_fallback: flag(BYTE_FALLBACK),
            ignore_merges: flag(IGNORE_MERGES),
            fuse_unk: flag(FUSE_UNK),
            strip_leading_space: flag(STRIP_LEADING_SPACE),
            add_bos: flag(ADD_BOS),
            add_eos: flag(ADD_EOS),
            bos: special("bos", 32)?,
            eos: special("eos", 36)?,
            pad: special("pad", 40)?,
            unk: special("unk", 44)?,
            bytes: bytes.clone(),
            tables,
        };
        section.check_header()?;
        section.view().check(section.pretokenizer == Pretokenizer::None)?;
        Ok(section)
    }

    fn check_header(&self) -> Result<(), Error> {
        let characters = self.pretokenizer == Pretokenizer::None;
        let metaspace =
            matches!(self.normalizer, Normalizer::Metaspace | Normalizer::MetaspacePrepend);
        if characters != metaspace {
            let value = self.normalizer as u64;
            return Err(Error::Header { field: "normalizer with this pretokenizer", value });
        }
        if self.add_bos && self.bos.is_none() {
            return Err(Error::SpecialId { role: "bos", id: None });
        }
        if self.add_eos && self.eos.is_none() {
            return Err(Error::SpecialId { role: "eos", id: None });
        }
        Ok(())
    }

    pub(super) fn view(&self) -> View<'_> {
        let raw: &[u8] = &self.bytes;
        let words = |range: &Range<usize>| raw[range.clone()].as_chunks::<4>().0;
        View {
            offsets: words(&self.tables.offsets),
            kinds: &raw[self.tables.kinds.clone()],
            index: words(&self.tables.index),
            rows: words(&self.tables.rows),
            merges: raw[self.tables.merges.clone()].as_chunks::<12>().0,
            ends: words(&self.tables.ends),
            pieces: &raw[self.tables.pieces.clone()],
        }
    }
}

impl<'a> View<'a> {
    /// Checks all tables, cheapest first, so that every later look-up stays inside them.
    fn check(&self, characters: bool) -> Result<(), Error> {
        self.check_tokens(characters)?;
        self.check_index()?;
        self.check_merges()?;
        let mut least = 0;
        for &end in self.ends {
            let id = u32::from_le_bytes(end);
            if id < least || id >= self.n_tokens() {
                return Err(Error::SpecialId { role: "end", id: Some(id) });
            }
            least = id + 1;
        }
        Ok(())
    }

    fn check_tokens(&self, characters: bool) -> Result<(), Error> {
        let mut start = 0;
        if self.offsets[0] != [0; 4] {
            return Err(Error::PieceOffset { id: 0 });
        }
        for id in 0..self.n_tokens() {
            let end = u32::from_le_bytes(self.offsets[id as usize + 1]);
            if end < start || end as usize > self.pieces.len() {
                return Err(Error::PieceOffset { id });
            }
            let bits = self.kinds[id as usize];
            let Some(kind) = Kind::from_bits(bits & KIND_BITS) else {
                return Err(Error::Token { id, rule: "unknown kind" });
            };
            let Some(matched) = matched_from(bits >> MATCHED_SHIFT) else {
                return Err(Error::Token { id, rule: "unknown way of matching" });
            };
            let piece = self.piece(id);
            check_token(id, piece, kind, matched, characters)?;
            start = end;
        }
        if start as usize != self.pieces.len() {
            return Err(Error::PieceOffset { id: self.n_tokens() });
        }
        Ok(())
    }

    /// Strictly ascending pieces of as many tokens as should be there: then each is there once.
    fn check_index(&self) -> Result<(), Error> {
        let mut before: Option<u32> = None;
        for (position, &entry) in self.index.iter().enumerate() {
            let id = u32::from_le_bytes(entry);
            if id >= self.n_tokens() || !self.kind(id).is_indexed() {
                return Err(Error::Index { position: position as u32 });
            }
            if let Some(before) = before {
                match self.piece(before).cmp(self.piece(id)) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => {
                        let (first, second) = (before.min(id), before.max(id));
                        return Err(Error::Duplicate { first, second });
                    }
                    std::cmp::Ordering::Greater => {
                        return Err(Error::Index { position: position as u32 });
                    }
                }
            }
            before = Some(id);
        }
        let indexed = (0..self.n_tokens()).filter(|&id| self.kind(id).is_indexed()).count();
        if indexed != self.index.len() {
            return Err(Error::Index { position: self.index.len() as u32 });
        }
        Ok(())
    }

    fn check_merges(&self) -> Result<(), Error> {
        let mut start = 0;
        if self.rows[0] != [0; 4] {
            return Err(Error::Merge { position: 0, rule: "rows don't start at 0" });
        }
        for left in 0..self.n_tokens() {
            let end = u32::from_le_bytes(self.rows[left as usize + 1]);
            if end < start || end as usize > self.merges.len() {
                return Err(Error::Merge { position: end, rule: "row out of order" });
            }
            let mut least = 0;
            for position in start..end {
                let (right, _, result) = self.merge_at(position as usize);
                if right < least {
                    return Err(Error::Merge { position, rule: "pair out of order or repeated" });
                }
                if let Some(rule) = self.broken_merge_rule(left, right, result) {
                    return Err(Error::Merge { position, rule });
                }
                least = right + 1;
            }
            start = end;
        }
        if start as usize != self.merges.len() {
            return Err(Error::Merge { position: start, rule: "merges after the last row" });
        }
        Ok(())
    }

    fn broken_merge_rule(&self, left: u32, right: u32, result: u32) -> Option<&'static str> {
        for id in [left, right, result] {
            if id >= self.n_tokens() {
                return Some("id outside the vocabulary");
            }
            if !self.kind(id).is_indexed() {
                return Some("byte and unused tokens don't merge");
            }
        }
        let [left, right, whole] = [left, right, result].map(|id| self.piece(id));
        let joined = whole.len() == left.len() + right.len()
            && whole.starts_with(left)
            && whole.ends_with(right);
        if joined { None } else { Some("the result's piece isn't the two joined") }
    }

    pub(super) fn n_tokens(&self) -> u32 {
        self.kinds.len() as u32
    }

    pub(super) fn piece(&self, id: u32) -> &'a [u8] {
        let start = u32::from_le_bytes(self.offsets[id as usize]);
        let end = u32::from_le_bytes(self.offsets[id as usize + 1]);
        &self.pieces[start as usize..end as usize]
    }

    pub(super) fn kind(&self, id: u32) -> Kind {
        Kind::from_bits(self.kinds[id as usize] & KIND_BITS).unwrap_or(Kind::Unused)
    }

    pub(super) fn matched(&self, id: u32) -> Matched {
        matched_from(self.kinds[id as usize] >> MATCHED_SHIFT).unwrap_or_default()
    }

    /// The token with this piece, byte and unused tokens aside.
    pub(super) fn find(&self, piece: &[u8]) -> Option<u32> {
        let id = |entry: &[u8; 4]| u32::from_le_bytes(*entry);
        let at = self.index.binary_search_by(|entry| self.piece(id(entry)).cmp(piece)).ok()?;
        Some(id(&self.index[at]))
    }

    /// What `left` then `right` become, and how urgently: (rank, result).
    pub(super) fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let start = u32::from_le_bytes(self.rows[left as usize]) as usize;
        let end = u32::from_le_bytes(self.rows[left as usize + 1]) as usize;
        let row = &self.merges[start..end];
        let at = row.binary_search_by_key(&right, |merge| u32_at(merge, 0)).ok()?;
        Some((u32_at(&row[at], 4), u32_at(&row[at], 8)))
    }

    pub(super) fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search_by_key(&id, |&end| u32::from_le_bytes(end)).is_ok()
    }

    pub(super) fn ends(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.ends.iter().map(|&end| u32::from_le_bytes(end))
    }

    /// All merges, ascending by (left, right).
    pub(super) fn merges(&self) -> impl Iterator<Item = Merge> + use<'a> {
        let view = *self;
        (0..view.n_tokens()).flat_map(move |left| {
            let start = u32::from_le_bytes(view.rows[left as usize]);
            let end = u32::from_le_bytes(view.rows[left as usize + 1]);
            (start..end).map(move |position| {
                let (right, rank, result) = view.merge_at(position as usize);
                Merge { left, right, result, rank }
            })
        })
    }

    fn merge_at(&self, position: usize) -> (u32, u32, u32) {
        let merge = &self.merges[position];
        (u32_at(merge, 0), u32_at(merge, 4), u32_at(merge, 8))
    }
}

/// Writes the section, refusing what [`Section::open`] would refuse.
pub(super) fn write(spec: &Spec) -> Result<Vec<u8>, Error> {
    let n_tokens = spec.tokens.len();
    if n_tokens == 0 || n_tokens > MAX_TOKENS as usize {
        return Err(Error::Header { field: "token count", value: n_tokens as u64 });
    }
    if spec.merges.len() > MAX_MERGES as usize {
        return Err(Error::Header { field: "merge count", value: spec.merges.len() as u64 });
    }
    let piece_bytes: u64 = spec.tokens.iter().map(|t| t.piece.len() as u64).sum();
    let Ok(piece_bytes) = u32::try_from(piece_bytes) else {
        return Err(Error::Header { field: "piece bytes", value: piece_bytes });
    };
    let mut index: Vec<u32> =
        (0..n_tokens as u32).filter(|&id| spec.tokens[id as usize].kind.is_indexed()).collect();
    index.sort_by(|&a, &b| spec.tokens[a as usize].piece.cmp(&spec.tokens[b as usize].piece));
    let mut merges: Vec<(usize, &Merge)> = spec.merges.iter().enumerate().collect();
    merges.sort_by_key(|(_, m)| (m.left, m.right));
    if let Some(pair) =
        merges.windows(2).find(|p| (p[0].1.left, p[0].1.right) == (p[1].1.left, p[1].1.right))
    {
        return Err(Error::Merge { position: pair[1].0 as u32, rule: "repeats an earlier pair" });
    }
    if let Some((at, _)) = merges.last().filter(|(_, m)| m.left as usize >= n_tokens) {
        return Err(Error::Merge { position: *at as u32, rule: "id outside the vocabulary" });
    }

    let mut out = Vec::with_capacity(
        HEADER_BYTES + 13 * (n_tokens + 1) + 12 * merges.len() + piece_bytes as usize,
    );
    out.extend_from_slice(MAGIC);
    let counts = [VERSION, n_tokens as u32, merges.len() as u32, index.len() as u32];
    put(&mut out, counts);
    put(&mut out, [spec.ends.len() as u32, piece_bytes]);
    let flags = [
        (spec.byte_fallback, BYTE_FALLBACK),
        (spec.ignore_merges, IGNORE_MERGES),
        (spec.add_bos, ADD_BOS),
        (spec.add_eos, ADD_EOS),
        (spec.fuse_unk, FUSE_UNK),
        (spec.strip_leading_space, STRIP_LEADING_SPACE),
    ];
    let flags = flags.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit);
    out.extend_from_slice(&[spec.normalizer as u8, spec.pretokenizer as u8, flags, 0]);
    let specials = [("bos", spec.bos), ("eos", spec.eos), ("pad", spec.pad), ("unk", spec.unk)];
    for (role, id) in specials {
        if id.is_some_and(|id| id as usize >= n_tokens) {
            return Err(Error::SpecialId { role, id });
        }
        put(&mut out, [id.unwrap_or(NO_ID)]);
    }
    put(&mut out, [0]); // reserved

    let mut offset = 0;
    put(&mut out, [0]);
    for token in &spec.tokens {
        offset += token.piece.len() as u32;
        put(&mut out, [offset]);
    }
    out.extend(spec.tokens.iter().map(|t| t.kind as u8 | ((t.matched as u8) << MATCHED_SHIFT)));
    out.resize(out.len().next_multiple_of(4), 0);
    put(&mut out, index);
    let mut row_end = 0;
    put(&mut out, [0]);
    for left in 0..n_tokens as u32 {
        row_end += merges[row_end..].iter().take_while(|(_, m)| m.left == left).count();
        put(&mut out, [row_end as u32]);
    }
    put(&mut out, merges.iter().flat_map(|(_, m)| [m.right, m.rank, m.result]));
    put(&mut out, spec.ends.iter().copied());
    for token in &spec.tokens {
        out.extend_from_slice(&token.piece);
    }
    // One place decides what is allowed.
    let written = SharedBytes::from(out);
    Section::open(written.clone())?;
    Ok(written.to_vec())
}

/// Rules about a token by itself, for the reader (and so for the writer).
fn check_token(
    id: u32,
    piece: &[u8],
    kind: Kind,
    matched: Matched,
    characters: bool,
) -> Result<(), Error> {
    let broken = |rule| Err(Error::Token { id, rule });
    if piece.is_empty() && kind != Kind::Unused {
        return broken("empty piece");
    }
    if kind == Kind::Byte && piece.len() != 1 {
        return broken("a byte token's piece must be one byte");
    }
    if kind == Kind::Byte && !characters {
        return broken("a byte-level vocabulary has no byte tokens");
    }
    if matched == Matched::Never {
        return Ok(());
    }
    if !kind.is_indexed() {
        return broken("byte and unused tokens aren't matched in text");
    }
    if piece.len() > super::matcher::MAX_SPELLING {
        return broken("too long to be matched in text");
    }
    if std::str::from_utf8(piece).is_err() {
        return broken("matched in text but not UTF-8");
    }
    Ok(())
}

/// A token of a checked section as owned data.
pub(super) fn token(view: &View<'_>, id: u32) -> Token {
    Token { piece: view.piece(id).to_vec(), kind: view.kind(id), matched: view.matched(id) }
}

fn put(out: &mut Vec<u8>, words: impl IntoIterator<Item = u32>) {
    words.into_iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn normalizer_from(bits: u8) -> Option<Normalizer> {
    use Normalizer::*;
    [None, Nfc, Metaspace, MetaspacePrepend].into_iter().find(|n| *n as u8 == bits)
}

fn pretokenizer_from(bits: u8) -> Option<Pretokenizer> {
    use Pretokenizer::*;
    [None, Gpt2, SmolLm, Qwen2, Llama3].into_iter().find(|p| *p as u8 == bits)
}

fn matched_from(bits: u8) -> Option<Matched> {
    use Matched::*;
    [Never, Raw, Normalized].into_iter().find(|m| *m as u8 == bits)
}
