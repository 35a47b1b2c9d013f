//! Which tokens stay: leaves go first, the cheapest of them.
//!
//! A leaf is a token that no other token left is made of. Taking one away makes each of its
//! occurrences longer by its parts less one, and its parts occur that much more often. So what stays
//! has all its parts, and every word whose tokens all stay is cut as before. It counts nothing and
//! writes nothing. Start with [`keep`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use koudai::tokenizer::{Kind, Spec, Tokenizer};

use crate::error::Error;

/// What a byte token costs, in tokens. Models hardly know them: Gemma 3 270M takes some 45 bits for
/// each, where a piece of a word that was cut takes some 11.
const BYTE_COST: f64 = 4.0;

/// Ids of the `size` tokens to keep, ascending.
///
/// `tokenizer` is `spec`'s. `frequency` says how often each token occurs, in any unit. Tokens of
/// `unwanted` and rows without meaning go before all others. Single bytes, added tokens, tokens with
/// a role and what has no smaller parts never go; an error says how many must stay if they are more
/// than `size`.
pub(super) fn keep(
    tokenizer: &Tokenizer,
    spec: &Spec,
    frequency: &[f64],
    unwanted: &[bool],
    size: usize,
) -> Result<Vec<u32>, Error> {
    let ids = 0..tokenizer.vocab_size() as u32;
    let parts: Vec<Vec<u32>> = ids.clone().map(|id| tokenizer.parts(id)).collect();
    let mut users = vec![0u32; parts.len()];
    parts.iter().flatten().for_each(|&part| users[part as usize] += 1);
    let mut frequency = frequency.to_vec();
    let mut gone = vec![false; parts.len()];
    let roles = [spec.bos, spec.eos, spec.pad, spec.unk];
    let token = |id: u32| &spec.tokens[id as usize];
    let leaf = |id: u32, frequency: &[f64]| -> Option<Leaf> {
        if roles.contains(&Some(id)) || tokenizer.is_end(id) {
            return None;
        }
        if token(id).kind == Kind::Unused || unwanted[id as usize] {
            return Some(Leaf { cost: -1.0, id });
        }
        let parts = &parts[id as usize];
        let spelled = parts.iter().flat_map(|&part| &token(part).piece).eq(&token(id).piece);
        if token(id).kind != Kind::Normal || token(id).piece.len() == 1 || !spelled {
            return None;
        }
        let cost = |&part: &u32| if token(part).kind == Kind::Byte { BYTE_COST } else { 1.0 };
        let longer = parts.iter().map(cost).sum::<f64>() - 1.0;
        Some(Leaf { cost: frequency[id as usize] * longer, id })
    };
    let first = ids.clone().filter(|&id| users[id as usize] == 0);
    let mut leaves: BinaryHeap<Reverse<Leaf>> =
        first.filter_map(|id| leaf(id, &frequency)).map(Reverse).collect();
    let mut left = parts.len();
    while left > size {
        let Some(Reverse(Leaf { id, .. })) = leaves.pop() else {
            let why = format!(
                "{size} tokens are too few: {left} must stay (bytes, added tokens and their parts)"
            );
            return Err(Error::Input(why));
        };
        gone[id as usize] = true;
        left -= 1;
        for &part in &parts[id as usize] {
            frequency[part as usize] += frequency[id as usize];
            users[part as usize] -= 1;
            if users[part as usize] == 0 {
                leaves.extend(leaf(part, &frequency).map(Reverse));
            }
        }
    }
    Ok(ids.filter(|&id| !gone[id as usize]).collect())
}

/// A token that may go, and what it costs: tokens more than before, in the unit of frequencies.
#[derive(PartialEq)]
struct Leaf {
    cost: f64,
    id: u32,
}

impl Eq for Leaf {}

impl Ord for Leaf {
    /// By cost; of equal ones the last id is the least, since vocabularies are made in the order of
    /// what occurs most.
    fn cmp(&self, other: &Leaf) -> std::cmp::Ordering {
        self.cost.total_cmp(&other.cost).then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Leaf {
    fn partial_cmp(&self, other: &Leaf) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
