//! Words of a sentence as NLTK's `word_tokenize` has them: the rules of the Penn Treebank, applied as
//! replacements one after the other.

use std::sync::LazyLock;

use fancy_regex::Regex;

/// A pattern as Python reads it.
pub(super) fn pattern(text: &str) -> Result<Regex, fancy_regex::Error> {
    Regex::new(text)
}

/// Quotes that open, punctuation, brackets and dashes.
const FIRST: [(&str, &str); 19] = [
    ("([«“‘„]|[`]+)", " $1 "),
    ("^\"", "``"),
    ("(``)", " $1 "),
    ("([ \\(\\[{<])(\"|'{2})", "$1 `` "),
    (r"(?i)(?<!\w)(')(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", "$1 "),
    ("([^\\.])(\\.)([\\]\\)}>\"'»”’ ]*+)\\s*$", "$1 $2 $3 "),
    (r"([:,])([^\d])", " $1 $2"),
    ("([:,])$", " $1 "),
    (r"(\.{2,})", " $1 "),
    ("([;@#$%&])", " $1 "),
    (r"([\u2012-\u2015])", " $1 "),
    ("([^\\.])(\\.)([\\]\\)}>\"']*)\\s*$", "$1 $2$3 "),
    ("([?!])", " $1 "),
    ("([^'])' ", "$1 ' "),
    (r"([*])", " $1 "),
    (r"([\]\[\(\)\{\}<>])", " $1 "),
    ("(--)", " $1 "),
    // Room for what follows.
    (r"\A", " "),
    (r"\z", " "),
];

/// Quotes that close, and contractions.
const LAST: [(&str, &str); 15] = [
    ("([»”’])", " $1 "),
    ("''", " '' "),
    ("\"", " '' "),
    (r"\s+", " "),
    ("([^' ])('[sS]|'[mM]|'[dD]|') ", "$1 $2 "),
    ("([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1 $2 "),
    (r"(?i)\b(can)(not)\b", " $1 $2 "),
    (r"(?i)\b(d)('ye)\b", " $1 $2 "),
    (r"(?i)\b(gim)(me)\b", " $1 $2 "),
    (r"(?i)\b(gon)(na)\b", " $1 $2 "),
    (r"(?i)\b(got)(ta)\b", " $1 $2 "),
    (r"(?i)\b(lem)(me)\b", " $1 $2 "),
    (r"(?i)\b(more)('n)\b", " $1 $2 "),
    (r"(?i)\b(wan)(na)(?=\s)", " $1 $2 "),
    (r"(?i) ('t)(is|was)\b", " $1 $2 "),
];

/// The words of one sentence.
pub(super) fn words(sentence: &str) -> Vec<String> {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let rule =
            |(from, to): &(&str, &'static str)| (pattern(from).expect("a constant pattern"), *to);
        FIRST.iter().chain(&LAST).map(rule).collect()
    });
    let mut text = sentence.to_owned();
    for (from, to) in RULES.iter() {
        // A search that would take too long leaves the text as it is.
        if let Ok(replaced) = from.try_replacen(&text, 0, *to) {
            text = replaced.into_owned();
        }
    }
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_treebanks() {
        let joined = |text: &str| words(text).join("|");
        assert_eq!(
            joined("I can't, and won't pay $3.88 in New York."),
            "I|ca|n't|,|and|wo|n't|pay|$|3.88|in|New|York|."
        );
        assert_eq!(
            joined("\"GIMME that,\" she said (U.S.A. style)..."),
            "``|GIM|ME|that|,|''|she|said|(|U.S.A.|style|)|..."
        );
        assert_eq!(joined("'Tis 5:30 -- don't CANNOT it's"), "'|Tis|5:30|--|do|n't|CAN|NOT|it|'s");
    }
}
