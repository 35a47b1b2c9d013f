//! Stop texts in a stream: found across the borders of tokens, never shown in part.

/// Watches text that arrives in pieces for the first of several stop texts.
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    held: String,
    found: bool,
}

impl StopMatcher {
    /// Empty stop texts are ignored: they would stop everything.
    pub(crate) fn new(stops: &[String]) -> StopMatcher {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopMatcher { stops, held: String::new(), found: false }
    }

    /// Takes a piece and returns the text that can be shown: up to a stop text, and without an end
    /// that could still become one.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        if self.found {
            return String::new();
        }
        self.held.push_str(piece);
        let first = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min();
        if let Some(at) = first {
            self.found = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// True once a stop text was seen.
    pub(crate) fn found(&self) -> bool {
        self.found
    }

    /// The text held back, when nothing more comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|n| text.as_bytes().ends_with(&stop.as_bytes()[..*n]) && stop.is_char_boundary(*n))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(stops: &[&str], pieces: &[&str]) -> (String, bool, Vec<String>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut m = StopMatcher::new(&stops);
        let shown: Vec<String> = pieces.iter().map(|p| m.push(p)).collect();
        let all = shown.concat() + &m.finish();
        (all, m.found(), shown)
    }

    #[test]
    fn stops_are_found_across_pieces_and_never_shown() {
        assert_eq!(
            feed(&["END"], &["a E", "N", "D b"]),
            ("a ".into(), true, vec!["a ".into(), "".into(), "".into()])
        );
        assert_eq!(feed(&["END"], &["a E", "N", "X"]).0, "a ENX");
        assert_eq!(feed(&["停止"], &["好停", "止了"]).0, "好");
        assert_eq!(feed(&["停止"], &["好停", "了止"]).0, "好停了止");
        assert_eq!(feed(&["ab", "abc"], &["xa", "bc"]).0, "x");
        assert_eq!(feed(&["aab"], &["aa", "aab"]).0, "aa");
        assert_eq!(feed(&["", "\n\n"], &["a\n", "b\n", "\nc"]).0, "a\nb");
        assert_eq!(feed(&[], &["a", "b"]), ("ab".into(), false, vec!["a".into(), "b".into()]));
        // Held back to the end, then shown.
        assert_eq!(feed(&["STOP"], &["ST", "O"]).0, "STO");
        assert_eq!(feed(&["b", "a"], &["xab"]).0, "x");
    }
}
