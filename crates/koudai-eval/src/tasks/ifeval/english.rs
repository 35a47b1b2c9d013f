//! The 25 kinds of instructions of IFEval (Zhou et al. 2023), with the verdicts of
//! lm-evaluation-harness 0.4: patterns are Python's, with Python's idea of letters and spaces.
//!
//! One verdict differs on purpose: two prompts ask for a number of `#` or `!`, for which the harness
//! draws a random letter; here the asked-for character is counted.

use std::sync::LazyLock;

use fancy_regex::Regex;
use langdetect::{DetectorFactory, Seed};

use super::punkt::Punkt;
use super::words::{pattern, words};
use super::{Arguments, Check};

/// The check of an instruction.
pub(super) fn check(id: &str, a: &Arguments<'_>, punkt: &Punkt) -> Result<Check, String> {
    Ok(match id {
        "keywords:existence" => {
            let keywords = patterns(a, &a.texts("keywords")?, |k| k.to_owned())?;
            Box::new(move |text| keywords.iter().all(|k| matches(k, text)))
        }
        "keywords:frequency" => {
            let keyword = patterns(a, &[a.text("keyword")?], |k| k.trim().to_owned())?.remove(0);
            let fits = a.comparison("relation", "frequency")?;
            Box::new(move |text| fits(count(&keyword, text)))
        }
        "keywords:forbidden_words" => {
            // Python's `\b`, whose words have no combining marks.
            let border =
                r"(?:(?<![\p{L}\p{N}_])(?=[\p{L}\p{N}_])|(?<=[\p{L}\p{N}_])(?![\p{L}\p{N}_]))";
            let bordered = |word: &str| format!("{border}(?:{word}){border}");
            let forbidden = patterns(a, &a.texts("forbidden_words")?, bordered)?;
            Box::new(move |text| !forbidden.iter().any(|word| matches(word, text)))
        }
        "keywords:letter_frequency" => {
            let letter = a.text("letter")?.to_lowercase();
            let fits = a.comparison("let_relation", "let_frequency")?;
            Box::new(move |text| fits(text.to_lowercase().matches(letter.as_str()).count()))
        }
        "language:response_language" => {
            let language = a.text("language")?;
            Box::new(move |text| is_language(text, &language))
        }
        "length_constraints:number_sentences" => {
            let fits = a.comparison("relation", "num_sentences")?;
            let punkt = punkt.clone();
            Box::new(move |text| fits(punkt.sentences(text).len()))
        }
        "length_constraints:number_paragraphs" => {
            let wanted = a.number("num_paragraphs")?;
            Box::new(move |text| divided_paragraphs(text) == Some(wanted))
        }
        "length_constraints:number_words" => {
            let fits = a.comparison("relation", "num_words")?;
            Box::new(move |text| fits(count(&WORD, text)))
        }
        "length_constraints:nth_paragraph_first_word" => {
            let (number, nth) = (a.number("num_paragraphs")?, a.number("nth_paragraph")?);
            let word = a.text("first_word")?.to_lowercase();
            if !(1..=number).contains(&nth) {
                return Err(a.wrong("nth_paragraph", "one of the paragraphs"));
            }
            Box::new(move |text| nth_paragraph_starts(text, number, nth, &word))
        }
        "detectable_content:number_placeholders" => {
            let least = a.number("num_placeholders")?;
            Box::new(move |text| count(&PLACEHOLDER, text) >= least)
        }
        "detectable_content:postscript" => {
            let marker = a.text("postscript_marker")?;
            let postscript = match marker.trim() {
                "P.P.S" => r"p\.\s?p\.\s?s".into(),
                "P.S." => r"p\.\s?s\.".into(),
                other => other.to_lowercase(),
            };
            let postscript = patterns(a, &[postscript], |p| p.to_owned())?.remove(0);
            Box::new(move |text| matches(&postscript, &text.to_lowercase()))
        }
        "detectable_format:number_bullet_lists" => {
            let wanted = a.number("num_bullets")?;
            Box::new(move |text| count(&STAR_BULLET, text) + count(&DASH_BULLET, text) == wanted)
        }
        "detectable_format:constrained_response" => {
            let options = ["My answer is yes.", "My answer is no.", "My answer is maybe."];
            Box::new(move |text| options.iter().any(|o| text.contains(o)))
        }
        "detectable_format:number_highlighted_sections" => {
            let least = a.number("num_highlights")?;
            Box::new(move |text| highlights(text) >= least)
        }
        "detectable_format:multiple_sections" => {
            let least = a.number("num_sections")?;
            let section = |mark: &str| format!(r"\s?{}\s?\d+\s?", mark.trim());
            let section = pattern(&section(&a.text("section_spliter")?))
                .map_err(|e| format!("{}: {e}", a.id))?;
            Box::new(move |text| count(&section, text) >= least)
        }
        "detectable_format:json_format" => Box::new(is_json),
        "detectable_format:title" => Box::new(|text| {
            let inside =
                |m: &str| !m.trim_start_matches('<').trim_end_matches('>').trim().is_empty();
            found(&TITLE, text).any(inside)
        }),
        "combination:two_responses" => Box::new(two_responses),
        "combination:repeat_prompt" => {
            let prompt = a.text("prompt_to_repeat")?.trim().to_lowercase();
            Box::new(move |text| text.trim().to_lowercase().starts_with(&prompt))
        }
        "startend:end_checker" => {
            let end = a.text("end_phrase")?.trim().to_lowercase();
            Box::new(move |text| text.trim().trim_matches('"').to_lowercase().ends_with(&end))
        }
        "startend:quotation" => Box::new(|text| {
            let text = text.trim();
            text.len() > 1 && text.starts_with('"') && text.ends_with('"')
        }),
        "change_case:capital_word_frequency" => {
            let fits = a.comparison("capital_relation", "capital_frequency")?;
            let punkt = punkt.clone();
            Box::new(move |text| {
                let words = punkt.sentences(text).into_iter().flat_map(words);
                fits(words.filter(|w| is_upper(w)).count())
            })
        }
        "change_case:english_capital" => Box::new(|text| is_upper(text) && is_language(text, "en")),
        "change_case:english_lowercase" => {
            Box::new(|text| is_lower(text) && is_language(text, "en"))
        }
        "punctuation:no_comma" => Box::new(|text| !text.contains(',')),
        _ => return Err(format!("`{id}` is no known instruction")),
    })
}

static WORD: LazyLock<Regex> = LazyLock::new(|| constant(r"[\p{L}\p{N}_]+"));
static PLACEHOLDER: LazyLock<Regex> = LazyLock::new(|| constant(r"\[.*?\]"));
static STAR_BULLET: LazyLock<Regex> = LazyLock::new(|| constant(r"(?m)^\s*\*[^\*].*$"));
static DASH_BULLET: LazyLock<Regex> = LazyLock::new(|| constant(r"(?m)^\s*-.*$"));
static HIGHLIGHT: LazyLock<Regex> = LazyLock::new(|| constant(r"\*[^\n\*]*\*"));
static DOUBLE_HIGHLIGHT: LazyLock<Regex> = LazyLock::new(|| constant(r"\*\*[^\n\*]*\*\*"));
static TITLE: LazyLock<Regex> = LazyLock::new(|| constant(r"<<[^\n]+>>"));
static DIVIDER: LazyLock<Regex> = LazyLock::new(|| constant(r"\s?\*\*\*\s?"));

fn constant(text: &str) -> Regex {
    pattern(text).expect("a constant pattern")
}

/// Patterns that ignore case. Keywords are patterns in the harness too.
fn patterns(
    a: &Arguments<'_>,
    texts: &[String],
    whole: impl Fn(&str) -> String,
) -> Result<Vec<Regex>, String> {
    let make = |text: &String| pattern(&format!("(?i){}", whole(text)));
    texts.iter().map(|t| make(t).map_err(|e| format!("{}: {e}", a.id))).collect()
}

fn matches(pattern: &Regex, text: &str) -> bool {
    found(pattern, text).next().is_some()
}

fn count(pattern: &Regex, text: &str) -> usize {
    found(pattern, text).count()
}

/// Matches that don't overlap; a search that would take too long ends there.
fn found<'a>(pattern: &'a Regex, text: &'a str) -> impl Iterator<Item = &'a str> {
    pattern.find_iter(text).map_while(Result::ok).map(|m| m.as_str())
}

/// There are letters with case, and all are capital.
fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
}

fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
}

/// The language that langdetect finds likeliest; text without features counts as any.
fn is_language(text: &str, language: &str) -> bool {
    static FACTORY: LazyLock<DetectorFactory> = LazyLock::new(|| {
        let mut factory = DetectorFactory::builtin().clone();
        factory.seed = Seed::Int(0);
        factory
    });
    FACTORY.detect(text).map_or(true, |found| found == language)
}

/// Paragraphs between lines of `***`; `None` if one inside is empty.
fn divided_paragraphs(text: &str) -> Option<usize> {
    let parts: Vec<&str> = DIVIDER.split(text).map_while(Result::ok).collect();
    let empty = |part: &&str| part.trim().is_empty();
    let last = parts.len() - 1;
    if parts.iter().enumerate().any(|(i, p)| empty(p) && i != 0 && i != last) {
        return None;
    }
    Some(parts.iter().filter(|p| !empty(p)).count())
}

/// There are `number` paragraphs, divided by empty lines, and the `nth` starts with `word`.
fn nth_paragraph_starts(text: &str, number: usize, nth: usize, word: &str) -> bool {
    let paragraphs: Vec<&str> = text.split("\n\n").collect();
    let full = paragraphs.iter().filter(|p| !p.trim().is_empty()).count();
    if nth > full {
        return false;
    }
    let Some(first) = paragraphs[nth - 1].split_whitespace().next() else { return false };
    let first = first.trim_start_matches('\'').trim_start_matches('"');
    let punctuation = ['.', ',', '?', '!', '\'', '"'];
    let first = first.split(punctuation).next().unwrap_or_default().to_lowercase();
    full == number && first == word
}

fn highlights(text: &str) -> usize {
    let single = found(&HIGHLIGHT, text).filter(|m| !m.trim_matches('*').trim().is_empty());
    let inside = |m: &&str| {
        let m = m.strip_prefix("**").unwrap_or(m);
        !m.strip_suffix("**").unwrap_or(m).trim().is_empty()
    };
    single.count() + found(&DOUBLE_HIGHLIGHT, text).filter(inside).count()
}

fn is_json(text: &str) -> bool {
    let mut text = text.trim();
    for fence in ["```json", "```Json", "```JSON", "```"] {
        text = text.strip_prefix(fence).unwrap_or(text);
    }
    let text = text.strip_suffix("```").unwrap_or(text).trim();
    serde_json::from_str::<serde_json::Value>(text).is_ok()
}

/// Two texts between six asterisks that differ; nothing empty between them.
fn two_responses(text: &str) -> bool {
    let parts: Vec<&str> = text.split("******").map(str::trim).collect();
    let last = parts.len() - 1;
    let hollow = parts.iter().enumerate().any(|(i, p)| p.is_empty() && i != 0 && i != last);
    let full: Vec<&&str> = parts.iter().filter(|p| !p.is_empty()).collect();
    !hollow && full.len() == 2 && full[0] != full[1]
}
