//! Finds the longest of a set of spellings at a place in a text.
//!
//! Not an automaton: a sorted list narrowed byte by byte, because few bytes of ordinary text start
//! a spelling at all. Start at [`Matcher::longest_at`].

use super::Error;

/// Longest spelling accepted: bounds the work at one place of a hostile text.
pub(super) const MAX_SPELLING: usize = 1024;

/// A set of spellings, each with its token.
#[derive(Debug, Clone)]
pub(super) struct Matcher {
    spellings: Vec<(Box<[u8]>, u32)>, // ascending
    starts: Vec<u32>, // (257): spellings starting with byte b are starts[b]..starts[b + 1]
}

impl Matcher {
    /// Takes (spelling, id) pairs in any order; none may be empty.
    pub(super) fn new(mut spellings: Vec<(Box<[u8]>, u32)>) -> Result<Self, Error> {
        spellings.sort_unstable();
        for pair in spellings.windows(2) {
            if pair[0].0 == pair[1].0 {
                return Err(Error::Duplicate { first: pair[0].1, second: pair[1].1 });
            }
        }
        let mut starts = Vec::with_capacity(257);
        for byte in 0..=256u16 {
            let at = spellings.partition_point(|(s, _)| s.first().map_or(0, |&b| b as u16) < byte);
            starts.push(at as u32);
        }
        Ok(Self { spellings, starts })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spellings.is_empty()
    }

    /// The id and length of the longest spelling that `text` starts with.
    pub(super) fn longest_at(&self, text: &[u8]) -> Option<(u32, usize)> {
        self.longest_where(text, |_, _| true)
    }

    /// The longest spelling that `text` starts with of those that `allowed` (id, length) allows.
    pub(super) fn longest_where(
        &self,
        text: &[u8],
        allowed: impl Fn(u32, usize) -> bool,
    ) -> Option<(u32, usize)> {
        let first = *text.first()? as usize;
        let mut low = self.starts[first] as usize;
        let mut high = self.starts[first + 1] as usize;
        let mut depth = 1;
        let mut found = None;
        // Here spellings[low..high] are those that share text[..depth], shortest first.
        while low < high {
            let (shortest, id) = &self.spellings[low];
            if high - low == 1 {
                let matches = text.starts_with(shortest) && allowed(*id, shortest.len());
                return if matches { Some((*id, shortest.len())) } else { found };
            }
            if shortest.len() == depth {
                if allowed(*id, depth) {
                    found = Some((*id, depth));
                }
                low += 1;
            }
            let Some(&byte) = text.get(depth) else { break };
            let range = &self.spellings[low..high];
            let from = range.partition_point(|(s, _)| s[depth] < byte);
            let to = range.partition_point(|(s, _)| s[depth] <= byte);
            (low, high) = (low + from, low + to);
            depth += 1;
        }
        found
    }

    /// Whether some spelling starts with all of `text` and goes on.
    pub(super) fn continues(&self, text: &[u8]) -> bool {
        let at = self.spellings.partition_point(|(spelling, _)| **spelling <= *text);
        self.spellings.get(at).is_some_and(|(spelling, _)| spelling.starts_with(text))
    }

    /// All spellings.
    pub(super) fn spellings(&self) -> impl Iterator<Item = &[u8]> {
        self.spellings.iter().map(|(spelling, _)| &**spelling)
    }

    /// The first spelling at or after `from`, longest there: (id, start, end).
    pub(super) fn next(&self, text: &[u8], from: usize) -> Option<(u32, usize, usize)> {
        (from..text.len()).find_map(|start| {
            let (id, len) = self.longest_at(&text[start..])?;
            Some((id, start, start + len))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(words: &[&str]) -> Matcher {
        let list = words.iter().enumerate().map(|(i, w)| (w.as_bytes().into(), i as u32));
        Matcher::new(list.collect()).unwrap()
    }

    #[test]
    fn leftmost_then_longest() {
        let m = matcher(&["\n", "\n\n", "\n\n\n\n", "<a>", "<ab>", "é"]);
        assert_eq!(m.longest_at(b"\n\n\nx"), Some((1, 2)));
        assert_eq!(m.longest_at(b"\n\n\n\n\n"), Some((2, 4)));
        assert_eq!(m.longest_at(b"<ab"), None);
        assert_eq!(m.next("x<a<ab>é".as_bytes(), 0), Some((4, 3, 7)));
        assert_eq!(m.next("x<a<ab>é".as_bytes(), 4), Some((5, 7, 9)));
        assert_eq!(m.longest_at(b""), None);
        assert_eq!(m.longest_where(b"\n\n\n\n", |_, len| len < 4), Some((1, 2)));
        assert!(m.continues(b"<a") && m.continues(b"\n\n\n"));
        assert!(!m.continues(b"<ab>") && !m.continues(b"b") && !m.continues(b"\n\n\n\n"));
    }

    #[test]
    fn the_same_spelling_twice_is_refused() {
        let list = vec![(b"a"[..].into(), 7), (b"a"[..].into(), 3)];
        assert_eq!(Matcher::new(list).unwrap_err(), Error::Duplicate { first: 3, second: 7 });
    }
}
