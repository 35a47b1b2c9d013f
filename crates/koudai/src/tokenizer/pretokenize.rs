//! Splits text into words the way each family's regular expression does, without an engine.
//!
//! Each `*_len` function takes non-empty text and gives the length of its first word; all look at a
//! character a bounded number of times, so a text is split in linear time. The patterns are quoted
//! above their functions; `\p{L}` and `\p{N}` are general categories, `\s` is `White_Space`.
//! Start at [`words`].

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use super::spec::Pretokenizer;

/// Calls `word` with each word of `text`, in order; together they are all of it.
pub(super) fn words(kind: Pretokenizer, text: &str, word: &mut impl FnMut(&str)) {
    match kind {
        Pretokenizer::None if text.is_empty() => {}
        Pretokenizer::None => word(text),
        Pretokenizer::Gpt2 => each(text, gpt2_len, word),
        Pretokenizer::SmolLm => {
            // The pattern runs on each part alone: its look-ahead must not see the digit after.
            let mut rest = text;
            while let Some(digit) = rest.find(char::is_numeric) {
                each(&rest[..digit], gpt2_len, word);
                let after = digit + char_len(&rest[digit..]);
                word(&rest[digit..after]);
                rest = &rest[after..];
            }
            each(rest, gpt2_len, word);
        }
        Pretokenizer::Qwen2 => each(text, |t| cl100k_len(t, 1), word),
        Pretokenizer::Llama3 => each(text, |t| cl100k_len(t, 3), word),
    }
}

fn each(mut text: &str, first_len: impl Fn(&str) -> usize, word: &mut impl FnMut(&str)) {
    while !text.is_empty() {
        let (first, rest) = text.split_at(first_len(text));
        word(first);
        text = rest;
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2_len(text: &str) -> usize {
    if let Some(len) = contraction_len(text, false) {
        return len;
    }
    let space = usize::from(text.starts_with(' '));
    match class_at(text, space) {
        None | Some(Class::Space) => spaces_len(text),
        Some(class) => space + run_len(&text[space..], class, usize::MAX),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}`
/// `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn cl100k_len(text: &str, digits: usize) -> usize {
    if let Some(len) = contraction_len(text, true) {
        return len;
    }
    let first_len = char_len(text);
    let first_class = class_at(text, 0);
    if first_class == Some(Class::Number) {
        return run_len(text, Class::Number, digits);
    }
    if first_class == Some(Class::Letter) {
        return run_len(text, Class::Letter, usize::MAX);
    }
    if !text.starts_with(['\r', '\n']) && class_at(text, first_len) == Some(Class::Letter) {
        return first_len + run_len(&text[first_len..], Class::Letter, usize::MAX);
    }
    let space = usize::from(text.starts_with(' '));
    if class_at(text, space) == Some(Class::Other) {
        let marks = space + run_len(&text[space..], Class::Other, usize::MAX);
        let newlines = text[marks..].bytes().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        return marks + newlines;
    }
    let spaces = run_len(text, Class::Space, usize::MAX);
    match text[..spaces].rfind(['\r', '\n']) {
        Some(newline) => newline + 1,
        None => spaces_len(text),
    }
}

/// `\s+(?!\S)|\s+`: all spaces at the end of the text, else all but the last, else the only one.
fn spaces_len(text: &str) -> usize {
    let all = run_len(text, Class::Space, usize::MAX);
    if all == text.len() {
        return all;
    }
    let last = text[..all].chars().next_back().map_or(0, char::len_utf8);
    if last == all { all } else { all - last }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, in any case if asked.
fn contraction_len(text: &str, any_case: bool) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let fold = |c: char| match c {
        'ſ' if any_case => 's', // the only other character whose simple case folding is one of ours
        c if any_case => c.to_ascii_lowercase(),
        c => c,
    };
    let mut chars = rest.chars();
    let first = chars.next()?;
    let second = chars.next().map(fold);
    match (fold(first), second) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// Bytes of the run of at most `most` characters of `class` that `text` starts with.
fn run_len(text: &str, class: Class, most: usize) -> usize {
    text.chars().take(most).take_while(|&c| class_of(c) == class).map(char::len_utf8).sum()
}

fn char_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

fn class_at(text: &str, at: usize) -> Option<Class> {
    text[at..].chars().next().map(class_of)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Space,  // \s
    Letter, // \p{L}
    Number, // \p{N}
    Other,
}

#[inline]
fn class_of(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\x7F' => Class::Other,
        // The bulk of Chinese, Japanese and Korean text, without the table.
        '\u{3041}'..='\u{3096}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' => {
            Class::Letter
        }
        '\u{AC00}'..='\u{D7A3}' => Class::Letter,
        c if c.is_whitespace() => Class::Space,
        c => match c.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            _ => Class::Other,
        },
    }
}
