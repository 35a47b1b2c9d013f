//! Sentences as NLTK's Punkt tokenizer has them (Kiss and Strunk 2006, Unsupervised Multilingual
//! Sentence Boundary Detection), with a model that was trained elsewhere.
//!
//! A full stop ends a sentence unless its word is an abbreviation or initial, which is decided by
//! lists and by how the next word is written here and in the training text. Start with
//! [`Punkt::sentences`].

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use fancy_regex::Regex;

use super::words::pattern;
use crate::Error;
use crate::tasks::data;

/// How a word was written in the training text: bits of `ortho_context`.
const BEGIN_UPPER: u32 = 1 << 1;
const MIDDLE_UPPER: u32 = 1 << 2;
const UNKNOWN_UPPER: u32 = 1 << 3;
const BEGIN_LOWER: u32 = 1 << 4;
const MIDDLE_LOWER: u32 = 1 << 5;
const UNKNOWN_LOWER: u32 = 1 << 6;
const UPPER: u32 = BEGIN_UPPER | MIDDLE_UPPER | UNKNOWN_UPPER;
const LOWER: u32 = BEGIN_LOWER | MIDDLE_LOWER | UNKNOWN_LOWER;

/// Common abbreviations, for who doesn't have the trained model.
const ABBREVIATIONS: &str = "adm al apr aug av ave ca cf co col corp dec dept dr e.g eq est d.c etc feb \
    fig gen gov hon i.e inc jan jr jul jun lt ltd maj mar messrs mr mrs ms mt no nov oct op p.m a.m \
    l.a n.y ph.d pp prof rep rev sen sep sept sgt sr st u.k u.s u.s.a vol vs";

/// A trained model; cloning shares it.
#[derive(Clone)]
pub(super) struct Punkt(Arc<Model>);

#[derive(Default)]
struct Model {
    abbreviations: HashSet<String>,
    collocations: HashSet<(String, String)>,
    starters: HashSet<String>,
    contexts: HashMap<String, u32>,
}

impl Punkt {
    /// A model as NLTK distributes it (`punkt_tab/english`).
    pub(super) fn open(folder: &Path) -> Result<Punkt, Error> {
        let words = |name: &str| -> Result<HashSet<String>, Error> {
            Ok(data::text(&folder.join(name))?.lines().map(str::to_owned).collect())
        };
        let pairs = |name: &str| -> Result<Vec<(String, String)>, Error> {
            let path = folder.join(name);
            let pair = |(i, line): (usize, &str)| match line.split_once('\t') {
                Some((a, b)) => Ok((a.to_owned(), b.to_owned())),
                None => Err(Error::data(&path, i + 1, "it isn't two words with a tab")),
            };
            data::text(&path)?.lines().enumerate().map(pair).collect()
        };
        let path = folder.join("ortho_context.tab");
        let contexts =
            pairs("ortho_context.tab")?.into_iter().enumerate().map(|(i, (word, bits))| {
                bits.parse().map(|bits| (word, bits)).map_err(|e| Error::data(&path, i + 1, e))
            });
        Ok(Punkt(Arc::new(Model {
            abbreviations: words("abbrev_types.txt")?,
            collocations: pairs("collocations.tab")?.into_iter().collect(),
            starters: words("sent_starters.txt")?,
            contexts: contexts.collect::<Result<_, Error>>()?,
        })))
    }

    /// A short list of abbreviations and nothing else.
    pub(super) fn built_in() -> Punkt {
        let abbreviations = ABBREVIATIONS.split_whitespace().map(str::to_owned).collect();
        Punkt(Arc::new(Model { abbreviations, ..Default::default() }))
    }

    /// The sentences of a text.
    pub(super) fn sentences<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let slices = self.slices(text);
        let mut sentences = Vec::new();
        let mut skip = 0;
        for (i, &(start, end)) in slices.iter().enumerate() {
            let start = (start + skip).min(end);
            let next = slices.get(i + 1).map(|&(start, end)| &text[start..end]);
            let closing = next.and_then(|next| CLOSING.find(next).ok().flatten());
            match closing {
                // Closing quotes and brackets at the start of the next belong to this one.
                Some(m) => {
                    sentences.push(&text[start..slices[i + 1].0 + m.as_str().trim_end().len()]);
                    skip = m.end();
                }
                None => {
                    skip = 0;
                    if start < end {
                        sentences.push(&text[start..end]);
                    }
                }
            }
        }
        sentences
    }

    /// Where sentences start and end, before closing quotes are moved.
    fn slices(&self, text: &str) -> Vec<(usize, usize)> {
        let mut slices = Vec::new();
        let mut start = 0;
        for candidate in candidates(text) {
            if self.breaks(&text[candidate.word..candidate.context_end]) {
                slices.push((start, candidate.end));
                start = candidate.next.unwrap_or(candidate.end);
            }
        }
        let end = text.trim_end().len();
        slices.push((start.min(end), end));
        slices
    }

    /// True if a sentence ends inside the text: at a token that isn't the last.
    fn breaks(&self, text: &str) -> bool {
        let mut tokens: Vec<Token> = text.split('\n').flat_map(tokens).collect();
        for token in &mut tokens {
            self.first_pass(token);
        }
        for i in 1..tokens.len() {
            let (before, after) = tokens.split_at_mut(i);
            self.second_pass(&mut before[i - 1], &after[0]);
        }
        tokens.split_last().is_some_and(|(_, before)| before.iter().any(|t| t.ends_sentence))
    }

    /// By the word alone.
    fn first_pass(&self, token: &mut Token) {
        let text = token.text;
        if matches!(text, "." | "?" | "!") {
            token.ends_sentence = true;
        } else if token.is_ellipsis() {
            token.ellipsis = true;
        } else if text.ends_with('.') && !text.ends_with("..") {
            let word = text[..text.len() - 1].to_lowercase();
            let last = word.rsplit('-').next().unwrap_or_default();
            let known = |word: &str| self.0.abbreviations.contains(word);
            match known(&word) || known(last) {
                true => token.abbreviation = true,
                false => token.ends_sentence = true,
            }
        }
    }

    /// By the word and the next.
    fn second_pass(&self, token: &mut Token, next: &Token) {
        if !token.text.ends_with('.') {
            return;
        }
        let (word, initial) = (token.without_period().to_owned(), token.is_initial());
        let next_word = next.in_context();
        if self.0.collocations.contains(&(word.clone(), next_word.to_owned())) {
            (token.ends_sentence, token.abbreviation) = (false, true);
            return;
        }
        if (token.abbreviation || token.ellipsis) && !initial {
            let starter = next.is_upper() && self.0.starters.contains(next_word);
            if self.starts_sentence(next) == Some(true) || starter {
                token.ends_sentence = true;
                return;
            }
        }
        if initial || word == NUMBER {
            let starts = self.starts_sentence(next);
            let name = starts.is_none()
                && initial
                && next.is_upper()
                && self.context(next_word) & LOWER == 0;
            if starts == Some(false) || name {
                (token.ends_sentence, token.abbreviation) = (false, true);
            }
        }
    }

    /// Whether the way a token is written tells that it starts a sentence.
    fn starts_sentence(&self, token: &Token) -> Option<bool> {
        if matches!(token.text, ";" | ":" | "," | "." | "!" | "?") {
            return Some(false);
        }
        let context = self.context(token.in_context());
        if token.is_upper() && context & LOWER != 0 && context & MIDDLE_UPPER == 0 {
            return Some(true);
        }
        if token.is_lower() && (context & UPPER != 0 || context & BEGIN_LOWER == 0) {
            return Some(false);
        }
        None
    }

    fn context(&self, word: &str) -> u32 {
        self.0.contexts.get(word).copied().unwrap_or(0)
    }
}

/// Closing quotes and brackets before a space.
static CLOSING: LazyLock<Regex> =
    LazyLock::new(|| constant("(?m)\\A[\"')\\]}‘’“”«»]+?(?:\\s+|(?=--)|$)"));
/// What can't be part of a word.
const NO_WORD: &str = "[)\";}\\]*:@'({\\[‘’“”«»?!]";
const DOTS: &str = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)";
/// A mark that may end a sentence, and what follows: other punctuation, or a space and a word.
static MARK: LazyLock<Regex> =
    LazyLock::new(|| constant(&format!(r"[.?!](?=({NO_WORD}|\s+(\S+)))")));
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    constant(&format!(
        r#"{DOTS}|(?=[^("`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{NO_WORD}|{DOTS}|,(?=$|\s|{NO_WORD}|{DOTS}))|\S"#
    ))
});
static NUMERIC: LazyLock<Regex> = LazyLock::new(|| constant(r"^-?[.,]?\d[\d,.\-]*\.?$"));
/// What stands for every number.
const NUMBER: &str = "##number##";

fn constant(text: &str) -> Regex {
    pattern(text).expect("a constant pattern")
}

/// A place where a sentence may end, as offsets into the text.
struct Candidate {
    /// Start of the word before the mark.
    word: usize,
    /// Behind the mark.
    end: usize,
    /// Behind what follows.
    context_end: usize,
    /// The next word's start, if a space comes first.
    next: Option<usize>,
}

/// Marks that may end a sentence; of several at one word, the last.
fn candidates(text: &str) -> Vec<Candidate> {
    let mut list: Vec<Candidate> = Vec::new();
    let (mut word_start, mut word_end) = (0, 0);
    for captures in MARK.captures_iter(text).map_while(Result::ok) {
        let (Some(mark), Some(after)) = (captures.get(0), captures.get(1)) else { continue };
        let space = |c: char| matches!(c, ' ' | '\t'..='\r');
        // A space at the very beginning counts as none, there as here.
        let last_space = text[word_end..mark.start()].rfind(space).filter(|at| *at > 0);
        let start = last_space.map_or(word_start, |at| word_end + at + 1);
        if word_end > start {
            list.pop();
        }
        (word_start, word_end) = (start, mark.start());
        list.push(Candidate {
            word: start,
            end: mark.end(),
            context_end: after.end(),
            next: captures.get(2).map(|m| m.start()),
        });
    }
    list
}

/// A word or punctuation with what is thought of it.
struct Token<'a> {
    text: &'a str,
    /// In lower case, numbers made one.
    kind: String,
    ends_sentence: bool,
    abbreviation: bool,
    ellipsis: bool,
}

fn tokens(line: &str) -> impl Iterator<Item = Token<'_>> {
    TOKEN.find_iter(line).map_while(Result::ok).map(|m| {
        let lower = m.as_str().to_lowercase();
        let kind = if NUMERIC.is_match(&lower).unwrap_or(false) { NUMBER.into() } else { lower };
        Token { text: m.as_str(), kind, ends_sentence: false, abbreviation: false, ellipsis: false }
    })
}

impl Token<'_> {
    fn is_ellipsis(&self) -> bool {
        self.text.len() > 1 && self.text.bytes().all(|b| b == b'.')
    }

    /// One letter and a full stop.
    fn is_initial(&self) -> bool {
        let mut chars = self.text.chars();
        let letter = chars.next().is_some_and(|c| c == '_' || c.is_alphabetic());
        letter && chars.as_str() == "."
    }

    fn is_upper(&self) -> bool {
        self.text.starts_with(char::is_uppercase)
    }

    fn is_lower(&self) -> bool {
        self.text.starts_with(char::is_lowercase)
    }

    fn without_period(&self) -> &str {
        self.kind.strip_suffix('.').filter(|rest| !rest.is_empty()).unwrap_or(&self.kind)
    }

    /// The kind as the lists have it: without the full stop of a sentence.
    fn in_context(&self) -> &str {
        if self.ends_sentence { self.without_period() } else { &self.kind }
    }
}
