//! Merges the symbols of one word: the lowest rank first, then the leftmost.
//!
//! A linked list of symbols and a heap of pairs, so a word of n symbols costs O(n log n) whatever
//! it spells. It knows pairs and ranks only, not text. Start at [`Merger::merge`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::section::View;

/// Room for merging, kept from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Reverse<Pair>>,
    last_pair: Option<[u32; 2]>, // the pair merged last since `clear`
    #[cfg(test)]
    pub(super) pops: usize,
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32, // DEAD once merged into the symbol before it
    before: usize,
    after: usize, // NONE at the ends
}

/// A pair that could merge when it was noted: by rank, then by place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    rank: u32,
    left: usize,
    result: u32,
}

const DEAD: u32 = u32::MAX;
const NONE: usize = usize::MAX;

impl Merger {
    /// Removes all symbols.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.last_pair = None;
    }

    /// Adds a symbol after the others.
    pub(super) fn push(&mut self, id: u32) {
        let at = self.symbols.len();
        self.symbols.push(Symbol { id, before: at.wrapping_sub(1), after: at + 1 });
    }

    /// The last symbol added.
    pub(super) fn last(&self) -> Option<u32> {
        self.symbols.last().map(|s| s.id)
    }

    /// The pair that merged last.
    pub(super) fn last_pair(&self) -> Option<[u32; 2]> {
        self.last_pair
    }

    /// Merges what can be merged and appends the ids left to `out`.
    pub(super) fn merge(&mut self, view: &View<'_>, out: &mut Vec<u32>) {
        if let Some(last) = self.symbols.last_mut() {
            last.after = NONE;
        }
        let mut pairs = std::mem::take(&mut self.pairs).into_vec();
        pairs.clear();
        for (left, two) in self.symbols.windows(2).enumerate() {
            if let Some((rank, result)) = view.merge(two[0].id, two[1].id) {
                pairs.push(Reverse(Pair { rank, left, result }));
            }
        }
        self.pairs = BinaryHeap::from(pairs);
        while let Some(Reverse(pair)) = self.pairs.pop() {
            #[cfg(test)]
            {
                self.pops += 1;
            }
            self.apply(view, &pair);
        }
        out.extend(self.symbols.iter().map(|s| s.id).filter(|&id| id != DEAD));
    }

    fn apply(&mut self, view: &View<'_>, pair: &Pair) {
        let left = self.symbols[pair.left];
        if left.id == DEAD || left.after == NONE {
            return;
        }
        // The symbols may have changed since. What counts is that they still give this result, even
        // if as another pair: that is the reference's rule, and with it ids agree on every input.
        let right = self.symbols[left.after];
        if view.merge(left.id, right.id).is_none_or(|(_, result)| result != pair.result) {
            return;
        }
        self.last_pair = Some([left.id, right.id]);
        self.symbols[left.after].id = DEAD;
        self.symbols[pair.left] =
            Symbol { id: pair.result, before: left.before, after: right.after };
        if right.after != NONE {
            self.symbols[right.after].before = pair.left;
            self.note(view, pair.left);
        }
        if left.before != NONE {
            self.note(view, left.before);
        }
    }

    /// Notes the pair that starts at `left`, which has a symbol after it.
    fn note(&mut self, view: &View<'_>, left: usize) {
        let symbol = self.symbols[left];
        if let Some((rank, result)) = view.merge(symbol.id, self.symbols[symbol.after].id) {
            self.pairs.push(Reverse(Pair { rank, left, result }));
        }
    }
}
