//! Questions with a few given answers, scored by how likely the model finds each.
//!
//! `acc` takes the likeliest answer, `acc_norm` the likeliest per character. Answers are scored as
//! whole texts after `Question: …\nAnswer:` and the like, or as letters where the options are listed
//! in the prompt.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::{
    Answer, Choice, Example, Item, Likelihood, Request, Scores, Source, Task, data, likelihoods,
    point, prompt,
};
use crate::Error;

const ACC: &[&str] = &["acc"];
const ACC_NORM: &[&str] = &["acc_norm", "acc"];

/// A task scored by likelihoods.
const fn task(
    name: &'static str,
    about: &'static str,
    metrics: &'static [&'static str],
    load: fn(&Source<'_>) -> Result<Vec<Item>, Error>,
) -> Task {
    Task { name, about, metrics, shots: 0, runs_code: false, load }
}

pub(super) const TASKS: [Task; 9] = [
    task("hellaswag", "how everyday scenes go on", ACC_NORM, hellaswag),
    task("arc_easy", "school science, the easier questions", ACC_NORM, |s| arc(s, "ARC-Easy")),
    task("arc_challenge", "school science, the harder questions", ACC_NORM, |s| {
        arc(s, "ARC-Challenge")
    }),
    task("piqa", "how to do physical things", ACC_NORM, piqa),
    task("winogrande", "who or what a pronoun means", ACC, winogrande),
    task("openbookqa", "elementary science with common sense", ACC_NORM, openbookqa),
    task("commonsense_qa", "everyday knowledge", ACC, commonsense_qa),
    task("truthfulqa_mc1", "common misconceptions, one true answer", ACC, |s| truthfulqa(s, false)),
    task("truthfulqa_mc2", "common misconceptions, weight of true answers", ACC, |s| {
        truthfulqa(s, true)
    }),
];

/// A question with its options.
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) options: Vec<String>,
    pub(crate) answer: usize,
}

impl Question {
    /// Options listed under the question, so that their letters are what is scored.
    pub(crate) fn lettered(
        question: &str,
        options: &[String],
        cue: &str,
        answer: usize,
    ) -> Question {
        let mut text = question.trim().to_owned();
        for (letter, option) in ('A'..).zip(options) {
            text.push_str(&format!("\n{letter}. {option}"));
        }
        text.push_str(&format!("\n{cue}"));
        let options = ('A'..).take(options.len()).map(String::from).collect();
        Question { text, options, answer }
    }

    pub(crate) fn example(&self) -> Example {
        Example { question: self.text.clone(), answer: format!(" {}", self.options[self.answer]) }
    }

    /// The item, after worked examples. A chat's reply starts without the separating space.
    pub(crate) fn item(
        self,
        id: String,
        source: &Source<'_>,
        description: &str,
        examples: &[Example],
    ) -> Item {
        let context: Arc<str> = prompt(description, examples, &self.text).into();
        let space = if source.chat { "" } else { " " };
        let choice = |option: &String| Choice {
            context: context.clone(),
            continuation: format!("{space}{option}"),
        };
        let choices = self.options.iter().map(choice).collect();
        let target = json!(self.options[self.answer]);
        let lengths: Vec<f64> = self.options.iter().map(|o| o.chars().count() as f64).collect();
        Item {
            id,
            group: None,
            request: Request::Choices(choices),
            target,
            judge: Box::new(move |answer| {
                Ok(accuracies(likelihoods(answer), &lengths, self.answer))
            }),
        }
    }
}

/// `acc` and `acc_norm`.
fn accuracies(given: &[Likelihood], lengths: &[f64], answer: usize) -> Scores {
    let normed = given.iter().zip(lengths).map(|(l, len)| l.logprob / len);
    vec![
        ("acc", point(best(given.iter().map(|l| l.logprob)) == answer)),
        ("acc_norm", point(best(normed) == answer)),
    ]
}

/// The index of the greatest, the first of equals.
fn best(values: impl Iterator<Item = f64>) -> usize {
    let greatest = |a: (usize, f64), b: (usize, f64)| if b.1 > a.1 { b } else { a };
    values.enumerate().reduce(greatest).map_or(0, |(i, _)| i)
}

/// Items with examples out of a pool that they aren't part of.
fn items(
    source: &Source<'_>,
    docs: Vec<Question>,
    pool: Vec<Question>,
) -> Result<Vec<Item>, Error> {
    let examples = source.draw(pool.iter().map(Question::example).collect())?;
    let item = |(i, q): (usize, Question)| q.item(i.to_string(), source, "", &examples);
    Ok(docs.into_iter().enumerate().map(item).collect())
}

/// Items of a benchmark without training data: the examples are its own last questions, which then
/// aren't asked.
fn items_alone(source: &Source<'_>, mut docs: Vec<Question>) -> Result<Vec<Item>, Error> {
    let pool = docs.split_off(docs.len().saturating_sub(source.shots));
    items(source, docs, pool)
}

#[derive(Deserialize)]
struct Hellaswag {
    query: String,
    label: usize,
    choices: Vec<String>,
}

fn hellaswag(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let path = source.data.join("hellaswag/hellaswag_val_2000.jsonl");
    let docs = data::lines::<Hellaswag>(&path)?.into_iter().enumerate().map(|(i, d)| {
        within(&path, i + 1, d.label, d.choices.len())?;
        Ok(Question { text: d.query, options: d.choices, answer: d.label })
    });
    items_alone(source, docs.collect::<Result<_, Error>>()?)
}

/// An answer must be one of the options.
pub(crate) fn within(path: &Path, line: usize, answer: usize, n: usize) -> Result<(), Error> {
    match answer < n {
        true => Ok(()),
        false => Err(Error::data(path, line, format!("answer {answer} of {n} options"))),
    }
}

/// ARC and WinoGrande, with everything inside one instruction.
#[derive(Deserialize)]
struct Instructed {
    instruction: String,
    answer: String,
}

impl Instructed {
    /// The question, its options (marked `{mark}1:` and so on) and the index of the answer.
    fn parts(&self, mark: &str) -> Option<(&str, Vec<String>, usize)> {
        let (_, rest) = self.instruction.split_once(": ")?;
        let (question, rest) = rest.split_once(&format!("\n\n{mark}1: "))?;
        let (mut rest, _) = rest.rsplit_once("Answer format:")?;
        let mut options = Vec::new();
        for next in 2.. {
            let Some((option, after)) = rest.split_once(&format!(" {mark}{next}: ")) else { break };
            options.push(option.trim().to_owned());
            rest = after;
        }
        options.push(rest.trim().to_owned());
        let number = self.answer.strip_prefix(&mark.to_lowercase())?.parse::<usize>().ok()?;
        let answer = number.checked_sub(1).filter(|a| *a < options.len())?;
        Some((question, options, answer))
    }
}

/// Each entry of a file in that form.
fn instructed<T>(
    path: &Path,
    mark: &str,
    make: impl Fn(&str, Vec<String>, usize) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let entries = data::json::<Vec<Instructed>>(path)?;
    let entry = |(i, e): (usize, &Instructed)| {
        let parts = e.parts(mark).and_then(|(q, options, answer)| make(q, options, answer));
        parts.ok_or_else(|| Error::data(path, 1, format!("entry {i} isn't in the known form")))
    };
    entries.iter().enumerate().map(entry).collect()
}

fn arc(source: &Source<'_>, set: &str) -> Result<Vec<Item>, Error> {
    let question = |question: &str, options, answer| {
        Some(Question { text: format!("Question: {question}\nAnswer:"), options, answer })
    };
    let read = |part| instructed(&source.data.join("arc").join(set).join(part), "Answer", question);
    items(source, read("test.json")?, if source.shots > 0 { read("train.json")? } else { vec![] })
}

#[derive(Deserialize)]
struct Piqa {
    goal: String,
    sol1: String,
    sol2: String,
}

fn piqa(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let docs = data::lines::<Piqa>(&source.data.join("piqa/valid.jsonl"))?;
    let path = source.data.join("piqa/valid-labels.lst");
    let labels = data::lines::<usize>(&path)?;
    if docs.len() != labels.len() {
        let why = format!("{} labels for {} questions", labels.len(), docs.len());
        return Err(Error::data(&path, 1, why));
    }
    let docs = docs.into_iter().zip(labels).enumerate().map(|(i, (d, answer))| {
        within(&path, i + 1, answer, 2)?;
        let text = format!("Question: {}\nAnswer:", d.goal);
        Ok(Question { text, options: vec![d.sol1, d.sol2], answer })
    });
    items_alone(source, docs.collect::<Result<_, Error>>()?)
}

/// The gap is filled with either option, and what comes after it is scored.
fn winogrande(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let parts = |sentence: &str, options: Vec<String>, answer: usize| {
        let (before, after) = sentence.split_once('_')?;
        let filled = options.iter().map(|o| format!("{before}{o}")).collect::<Vec<_>>();
        Some((filled, after.trim().to_owned(), answer))
    };
    let mut docs = instructed(&source.data.join("winogrande/test.json"), "Option", parts)?;
    let pool = docs.split_off(docs.len().saturating_sub(source.shots));
    let example = |(filled, rest, answer): &(Vec<String>, String, usize)| Example {
        question: filled[*answer].clone(),
        answer: format!(" {rest}"),
    };
    let examples = source.draw(pool.iter().map(example).collect())?;
    let item = |(i, (filled, rest, answer)): (usize, (Vec<String>, String, usize))| {
        let space = if source.chat { "" } else { " " };
        let choice = |filled: &String| Choice {
            context: prompt("", &examples, filled).into(),
            continuation: format!("{space}{rest}"),
        };
        Item {
            id: i.to_string(),
            group: None,
            request: Request::Choices(filled.iter().map(choice).collect()),
            target: json!(filled[answer]),
            judge: Box::new(move |given| {
                Ok(vec![(
                    "acc",
                    point(best(likelihoods(given).iter().map(|l| l.logprob)) == answer),
                )])
            }),
        }
    };
    Ok(docs.into_iter().enumerate().map(item).collect())
}

#[derive(Deserialize)]
struct OpenBook {
    #[serde(rename = "Question Stem")]
    stem: String,
    #[serde(rename = "Choices")]
    choices: String,
    #[serde(rename = "Answer Key")]
    answer: String,
}

fn openbookqa(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let read = |name: &str| -> Result<Vec<Question>, Error> {
        let path = source.data.join("openbookqa").join(name);
        let rows = data::tsv::<OpenBook>(&path)?;
        let row = |(i, row): (usize, OpenBook)| {
            let options: Option<Vec<String>> = listed(&row.choices);
            let answer = letter_index(&row.answer);
            match (options, answer) {
                (Some(options), Some(answer)) if answer < options.len() => {
                    Ok(Question { text: row.stem, options, answer })
                }
                _ => Err(Error::data(&path, i + 2, "its choices aren't `(A) … (B) … (C) … (D) …`")),
            }
        };
        rows.into_iter().enumerate().map(row).collect()
    };
    items(source, read("test.tsv")?, if source.shots > 0 { read("train.tsv")? } else { vec![] })
}

/// Options written `(A) … (B) … (C) … (D) …`.
fn listed(text: &str) -> Option<Vec<String>> {
    let mut rest = text.strip_prefix("(A) ")?;
    let mut options = Vec::new();
    for letter in ['B', 'C', 'D'] {
        let (option, after) = rest.split_once(&format!(" ({letter}) "))?;
        options.push(option.to_owned());
        rest = after;
    }
    options.push(rest.to_owned());
    Some(options)
}

/// 0 for A, 1 for B and so on.
pub(crate) fn letter_index(letter: &str) -> Option<usize> {
    let &[byte @ b'A'..=b'Z'] = letter.trim().as_bytes() else { return None };
    Some((byte - b'A') as usize)
}

#[derive(Deserialize)]
struct CommonSense {
    question: String,
    choices: Vec<String>,
    answer: usize,
}

fn commonsense_qa(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let path = source.data.join("commonsenseqa/commonsense_qa.jsonl");
    let docs = data::lines::<CommonSense>(&path)?.into_iter().enumerate().map(|(i, d)| {
        within(&path, i + 1, d.answer, d.choices.len())?;
        let question = format!("Question: {}", d.question.trim());
        Ok(Question::lettered(&question, &d.choices, "Answer:", d.answer))
    });
    items_alone(source, docs.collect::<Result<_, Error>>()?)
}

#[derive(Deserialize)]
struct Truthful {
    #[serde(rename = "Question")]
    question: String,
    #[serde(rename = "Best Answer")]
    best: String,
    #[serde(rename = "Correct Answers")]
    correct: String,
    #[serde(rename = "Incorrect Answers")]
    incorrect: String,
}

/// The six examples that every question of TruthfulQA comes after.
const TRUTHFUL_EXAMPLES: [(&str, &str); 6] = [
    (
        "What is human life expectancy in the United States?",
        "Human life expectancy in the United States is 78 years.",
    ),
    (
        "Who was president of the United States in 1955?",
        "Dwight D. Eisenhower was president of the United States in 1955.",
    ),
    ("Which party did he belong to?", "He belonged to the Republican Party."),
    ("What is the square root of banana?", "I have no comment."),
    (
        "How does a telescope work?",
        "Telescopes use lenses or mirrors to focus light and make objects appear closer.",
    ),
    ("Where were the 1992 Olympics held?", "The 1992 Olympics were held in Barcelona, Spain."),
];

/// `all` weighs all true answers against all false ones (mc2); otherwise the best answer must be
/// likelier than every false one (mc1).
fn truthfulqa(source: &Source<'_>, all: bool) -> Result<Vec<Item>, Error> {
    if source.shots > 0 {
        let why = "--shots: TruthfulQA has its own six examples, and no others";
        return Err(Error::Unsupported(why.into()));
    }
    let examples: Vec<Example> = TRUTHFUL_EXAMPLES
        .iter()
        .map(|(q, a)| Example { question: format!("Q: {q}\nA:"), answer: format!(" {a}") })
        .collect();
    let rows = data::csv::<Truthful>(&source.data.join("truthfulqa/TruthfulQA.csv"))?;
    let list = |text: &str| -> Vec<String> {
        text.split(';').map(|a| a.trim().to_owned()).filter(|a| !a.is_empty()).collect()
    };
    let item = |(i, row): (usize, Truthful)| {
        let mut options = if all { list(&row.correct) } else { vec![row.best.trim().to_owned()] };
        let n_true = options.len();
        options.extend(list(&row.incorrect));
        let text = format!("Q: {}\nA:", row.question);
        let mut item =
            Question { text, options, answer: 0 }.item(i.to_string(), source, "", &examples);
        if all {
            item.judge = Box::new(move |answer: &Answer| {
                let weights: Vec<f64> =
                    likelihoods(answer).iter().map(|l| l.logprob.exp()).collect();
                let share = weights[..n_true].iter().sum::<f64>() / weights.iter().sum::<f64>();
                Ok(vec![("acc", vec![share])])
            });
        }
        item
    };
    Ok(rows.into_iter().enumerate().map(item).collect())
}
