//! Word problems whose answer is a number: GSM8K and MGSM, after worked examples with their steps.
//!
//! `strict` wants the number where the examples have it; `flexible` takes the last number written.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::json;

use super::{Example, Item, Judge, Prompt, Request, Source, Task, data, point, prompt, written};
use crate::Error;

/// The harness gives generation tasks so many tokens unless they say otherwise.
pub(super) const DEFAULT_MAX_TOKENS: usize = 256;

const fn task(
    name: &'static str,
    about: &'static str,
    shots: usize,
    load: fn(&Source<'_>) -> Result<Vec<Item>, Error>,
) -> Task {
    Task { name, about, metrics: &["strict", "flexible"], shots, runs_code: false, load }
}

pub(super) const TASKS: [Task; 3] = [
    task("gsm8k", "grade-school word problems", 5, gsm8k),
    task("mgsm_en", "250 of them in English, after the examples of the other languages", 8, |s| {
        mgsm(s, &ENGLISH)
    }),
    task("mgsm_zh", "the same 250 in Chinese", 8, |s| mgsm(s, &CHINESE)),
];

static NUMBERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(-?[$0-9.,]{2,})|(-?[0-9]+)"));

/// A pattern of this module; all are constant.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern")
}

/// The last number in a text.
fn last_number(text: &str) -> Option<&str> {
    NUMBERS.find_iter(text).last().map(|m| m.as_str())
}

/// What the first group of the pattern's first match holds.
fn first_group<'a>(pattern: &Regex, text: &'a str) -> Option<&'a str> {
    Some(pattern.captures(text)?.get(1)?.as_str())
}

/// Compares what `strict` finds and the last number with a target, both made plain first.
fn judge(strict: Regex, target: String, plain: fn(&str) -> String) -> Judge {
    let target = plain(&target);
    Box::new(move |answer| {
        let text = written(answer);
        let right = |found: Option<&str>| point(found.is_some_and(|n| plain(n.trim()) == target));
        Ok(vec![
            ("strict", right(first_group(&strict, text))),
            ("flexible", right(last_number(text))),
        ])
    })
}

#[derive(Deserialize)]
struct Gsm8k {
    question: String,
    answer: String,
}

impl Gsm8k {
    fn text(&self) -> String {
        format!("Question: {}\nAnswer:", self.question)
    }
}

fn gsm8k(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let folder = source.data.join("gsm8k");
    let pool = match source.shots {
        0 => Vec::new(),
        _ => data::lines::<Gsm8k>(&folder.join("train.jsonl"))?,
    };
    let example = |d: &Gsm8k| Example { question: d.text(), answer: format!(" {}", d.answer) };
    let examples = source.draw(pool.iter().map(example).collect())?;
    let strict = pattern(r"#### (-?[0-9.,]+)");
    let item = |(i, d): (usize, Gsm8k)| Item {
        id: i.to_string(),
        group: None,
        request: Request::Generate(Prompt {
            text: prompt("", &examples, &d.text()),
            stop: ["Question:", "</s>", "<|im_end|>"].map(String::from).into(),
            max_tokens: DEFAULT_MAX_TOKENS,
        }),
        target: json!(d.answer),
        judge: judge(strict.clone(), d.answer, gsm8k_number),
    };
    let docs = data::lines::<Gsm8k>(&folder.join("test.jsonl"))?;
    Ok(docs.into_iter().enumerate().map(item).collect())
}

/// A number as it is compared: what follows `#### `, without separators, currency and final point.
fn gsm8k_number(text: &str) -> String {
    let text = text.replace([',', '$'], "");
    let text = text.rsplit_once("#### ").map_or(text.as_str(), |(_, number)| number);
    text.strip_suffix('.').unwrap_or(text).to_lowercase()
}

/// What differs between languages.
struct Language {
    code: &'static str,
    question: &'static str,
    cue: &'static str,
    /// How the exemplars' answers begin, which the prompt has already.
    answer: &'static str,
    stop: &'static str,
    strict: &'static str,
}

const ENGLISH: Language = Language {
    code: "en",
    question: "Question: ",
    cue: "\nStep-by-Step Answer:",
    answer: "Step-by-Step Answer: ",
    stop: "Question:",
    strict: r"The answer is (-?[0-9.,]+)",
};

const CHINESE: Language = Language {
    code: "zh",
    question: "问题： ",
    cue: "\n逐步解答:",
    answer: "逐步解答：",
    stop: "问题：",
    strict: r"答案是 (-?[0-9.,]+)。",
};

#[derive(Deserialize)]
struct Exemplars {
    #[serde(rename = "MGSM_EXEMPLARS")]
    languages: BTreeMap<String, BTreeMap<usize, Exemplar>>,
}

#[derive(Deserialize)]
struct Exemplar {
    q: String,
    a: String,
}

fn mgsm(source: &Source<'_>, language: &Language) -> Result<Vec<Item>, Error> {
    let folder = source.data.join("mgsm");
    let path = folder.join("mgsm_exemplars_en_zh.json");
    let mut exemplars = data::json::<Exemplars>(&path)?;
    let pool = exemplars.languages.remove(language.code).unwrap_or_default();
    let example = |e: Exemplar| Example {
        question: e.q + language.cue,
        answer: format!(" {}", e.a.strip_prefix(language.answer).unwrap_or(&e.a)),
    };
    let examples = source.draw(pool.into_values().map(example).collect())?;
    let strict = pattern(language.strict);
    let item = |(i, (question, number)): (usize, (String, String))| Item {
        id: i.to_string(),
        group: None,
        request: Request::Generate(Prompt {
            text: prompt(
                "",
                &examples,
                &format!("{}{question}{}", language.question, language.cue),
            ),
            stop: [language.stop, "</s>", "<|im_end|>"].map(String::from).into(),
            max_tokens: DEFAULT_MAX_TOKENS,
        }),
        target: json!(number),
        judge: judge(strict.clone(), number, without_punctuation),
    };
    let rows = data::tsv_rows(&folder.join(format!("mgsm_{}.tsv", language.code)))?;
    Ok(rows.into_iter().enumerate().map(item).collect())
}

fn without_punctuation(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_punctuation()).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Answer;

    fn scores(judge: &Judge, text: &str) -> (f64, f64) {
        let scores = judge(&Answer::Text(text.into())).unwrap();
        (scores[0].1[0], scores[1].1[0])
    }

    #[test]
    fn numbers_are_found_where_they_should_be() {
        let gsm8k = judge(pattern(r"#### (-?[0-9.,]+)"), "Steps.\n#### 1,800".into(), gsm8k_number);
        for (text, expected) in [
            ("It is 1800.\n#### 1,800", (1.0, 1.0)),
            ("#### 1800.", (1.0, 1.0)),
            ("#### $1800", (0.0, 1.0)),
            ("so $1,800.", (0.0, 1.0)),
            ("#### 1800 or 5", (1.0, 0.0)),
            ("#### 7\n#### 1800", (0.0, 1.0)),
            ("eighteen hundred", (0.0, 0.0)),
            ("", (0.0, 0.0)),
        ] {
            assert_eq!(scores(&gsm8k, text), expected, "{text}");
        }
        let zh = judge(pattern(CHINESE.strict), "18".into(), without_punctuation);
        assert_eq!(scores(&zh, "16 - 3 = 13。答案是 18。"), (1.0, 1.0));
        assert_eq!(scores(&zh, "答案是18。"), (0.0, 1.0));
        assert_eq!(scores(&zh, "答案是 18.。"), (1.0, 1.0));
        assert_eq!(scores(&zh, "答案是 180。"), (0.0, 0.0));
    }
}
