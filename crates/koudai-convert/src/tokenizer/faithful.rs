//! Whether a tokenizer written in another format reads back as itself.
//!
//! Exports are read again by this crate's own reader, and the two descriptions are compared: what
//! would change ids is an error, what changes less is a note. Start with [`compare`].

use std::collections::HashMap;

use koudai::tokenizer::{Kind, Merge, Normalizer, Pretokenizer, Spec};

use super::{Error, unsupported};

/// What the reader of `back` has otherwise than that of `spec`, or why ids would differ.
pub(super) fn compare(spec: &Spec, back: &Spec, format: &str) -> Result<Vec<String>, Error> {
    let mut notes = Vec::new();
    compare_settings(spec, back, format, &mut notes)?;
    compare_tokens(spec, back, format, &mut notes)?;
    match merges_agree(&spec.merges, &back.merges) {
        Some(true) => {}
        Some(false) => notes.push(format!(
            "{format} orders merges of equal rank in its own way: on rare texts ids may differ"
        )),
        None => return Err(unsupported("order of merges", cant_say(format))),
    }
    Ok(notes)
}

fn cant_say(format: &str) -> String {
    format!("{format} can't say it")
}

fn compare_settings(
    spec: &Spec,
    back: &Spec,
    format: &str,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    for (name, same) in [
        ("pre-tokenizer", spec.pretokenizer == back.pretokenizer),
        ("ignore_merges", spec.ignore_merges == back.ignore_merges),
        ("byte fallback", spec.byte_fallback == back.byte_fallback),
        ("leading space", spec.strip_leading_space == back.strip_leading_space),
        ("bos", (spec.bos, spec.add_bos) == (back.bos, back.add_bos)),
        ("eos", (spec.eos, spec.add_eos) == (back.eos, back.add_eos)),
        ("pad", spec.pad == back.pad),
    ] {
        if !same {
            return Err(unsupported(name, cant_say(format)));
        }
    }
    match (spec.normalizer, back.normalizer) {
        (a, b) if a == b => {}
        (Normalizer::Nfc, Normalizer::None) => {
            notes.push(format!("{format} doesn't say that text is composed (NFC) first"));
        }
        (Normalizer::None, Normalizer::Nfc) => {
            notes.push(format!("{format} lets readers compose text (NFC) first"));
        }
        _ => return Err(unsupported("normalizer", cant_say(format))),
    }
    let unknown = |s: &Spec| s.unk.filter(|id| s.tokens[*id as usize].kind != Kind::Control);
    let same = (unknown(spec), spec.fuse_unk) == (unknown(back), back.fuse_unk);
    if !same && !has_all_bytes(spec) {
        notes.push(format!("{format} has other tokens for text that has none"));
    }
    if spec.ends != back.ends {
        let (ours, theirs) = (&spec.ends, &back.ends);
        notes.push(format!("generation ends after {ours:?}, for readers of {format} {theirs:?}"));
    }
    Ok(())
}

/// Every byte has a token, so no text is ever unknown.
fn has_all_bytes(spec: &Spec) -> bool {
    let characters = spec.pretokenizer == Pretokenizer::None;
    let mut seen = [false; 256];
    for token in &spec.tokens {
        let is_byte = match token.kind {
            Kind::Byte => true,
            Kind::Normal | Kind::UserDefined => !characters,
            _ => false,
        };
        if let (true, &[byte]) = (is_byte, &token.piece[..]) {
            seen[usize::from(byte)] = true;
        }
    }
    seen.iter().all(|seen| *seen) && (spec.byte_fallback || !characters)
}

fn compare_tokens(
    spec: &Spec,
    back: &Spec,
    format: &str,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let used = |s: &Spec, id: usize| s.tokens.get(id).is_some_and(|t| t.kind != Kind::Unused);
    let (mut kinds, mut matched) = (Vec::new(), Vec::new());
    for id in 0..spec.tokens.len().max(back.tokens.len()) {
        if !used(spec, id) && !used(back, id) {
            continue;
        }
        let (Some(ours), Some(theirs)) = (spec.tokens.get(id), back.tokens.get(id)) else {
            return Err(unsupported(
                "vocabulary",
                format_args!("token {id}: {}", cant_say(format)),
            ));
        };
        if ours.piece != theirs.piece {
            let shown = String::from_utf8_lossy(&ours.piece);
            let found = format!("token {id} {shown:?}: {}", cant_say(format));
            return Err(unsupported("vocabulary", found));
        }
        if ours.kind != theirs.kind {
            kinds.push(id);
        } else if ours.matched != theirs.matched {
            matched.push(id);
        }
    }
    for (ids, what) in [(kinds, "another kind"), (matched, "another place to be searched for")] {
        if let Some(first) = ids.first() {
            let shown = String::from_utf8_lossy(&spec.tokens[*first].piece);
            let more = match ids.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            notes.push(format!("{format} gives token {first} {shown:?}{more} {what}"));
        }
    }
    Ok(())
}

/// Whether the same pairs merge in the same order: `Some(true)` exactly, `Some(false)` if one of
/// the two leaves open what the other decides.
fn merges_agree(ours: &[Merge], theirs: &[Merge]) -> Option<bool> {
    let pair = |m: &Merge| (m.left, m.right, m.result);
    let ranks: HashMap<_, u32> = theirs.iter().map(|m| (pair(m), m.rank)).collect();
    if ours.len() != theirs.len() {
        return None;
    }
    let mut both = Vec::with_capacity(ours.len());
    for merge in ours {
        both.push((merge.rank, *ranks.get(&pair(merge))?));
    }
    both.sort_unstable();
    // The highest of theirs among ours of lower rank.
    let (mut exact, mut highest, mut start) = (true, None, 0);
    for group in both.chunk_by(|a, b| a.0 == b.0) {
        let (least, most) = (group[0].1, group[group.len() - 1].1);
        if start > 0 && Some(least) < highest {
            return None;
        }
        exact &= least == most && (start == 0 || Some(least) != highest);
        (highest, start) = (highest.max(Some(most)), start + group.len());
    }
    Some(exact)
}
