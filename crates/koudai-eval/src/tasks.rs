//! What is asked, and what counts as right: a task loads items, each with its whole prompt and its
//! own judge. Protocols follow lm-evaluation-harness 0.4; docs/eval.md says where they don't.
//!
//! A task knows no model: [`crate::evaluate`] puts its items to one. Start with [`Task::all`] and
//! [`Task::load`].

mod bbh;
mod choice;
mod code;
pub(crate) mod data;
mod exam;
pub mod ifeval;
mod math;

use std::path::Path;
use std::sync::Arc;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::Value;

use crate::Error;
use crate::sandbox::Sandbox;

/// A benchmark.
#[derive(Clone, Copy)]
pub struct Task {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    /// What is reported; the first is the one that averages use.
    pub metrics: &'static [&'static str],
    /// Worked examples that are customary before the question.
    pub shots: usize,
    /// It can only be judged by running what the model wrote.
    pub runs_code: bool,
    load: fn(&Source<'_>) -> Result<Vec<Item>, Error>,
}

/// Where items come from and how they are put.
#[derive(Clone)]
pub struct Source<'a> {
    /// The folder that holds a folder for each benchmark.
    pub data: &'a Path,
    /// Worked examples before each question.
    pub shots: usize,
    /// The prompt will be a user's message rather than a text to continue.
    pub chat: bool,
    /// Draws items and examples at random; `None` takes the first.
    pub seed: Option<u64>,
    /// Tokens of a generated answer at most, instead of what is customary.
    pub max_tokens: Option<usize>,
    /// Where generated programs run.
    pub sandbox: Option<Arc<Sandbox>>,
}

/// One question.
pub struct Item {
    /// Unique within the task.
    pub id: String,
    /// The subject, where a task has several.
    pub group: Option<String>,
    /// What the model is asked.
    pub request: Request,
    /// What would be right, for who reads the records.
    pub target: Value,
    /// What the answer is worth.
    pub judge: Judge,
}

/// What a model is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Say how likely each text is after its context.
    Choices(Vec<Choice>),
    /// Write on, taking the likeliest token always.
    Generate(Prompt),
}

/// A context and what may follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The text before; choices of one item mostly share it.
    pub context: Arc<str>,
    /// The text whose likelihood is wanted, with the space that separates it.
    pub continuation: String,
}

/// What to continue, and until when.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The whole prompt.
    pub text: String,
    /// Texts that end the answer; they aren't part of it.
    pub stop: Vec<String>,
    /// Tokens at most.
    pub max_tokens: usize,
}

/// What a model answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// For each choice.
    Choices(Vec<Likelihood>),
    /// The generated text.
    Text(String),
}

/// How likely a continuation is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// It is what greedy generation would write.
    pub greedy: bool,
}

/// Points for each metric: one for most, several where an item is more than one question.
pub type Scores = Vec<(&'static str, Vec<f64>)>;

/// Says what an answer is worth.
pub type Judge = Box<dyn Fn(&Answer) -> Result<Scores, Error>>;

/// Tasks of the default suite.
pub const POCKET11: [&str; 11] = [
    "mmlu",
    "cmmlu",
    "ceval",
    "arc_challenge",
    "hellaswag",
    "gsm8k",
    "mgsm_zh",
    "humaneval",
    "mbpp",
    "bbh",
    "ifeval",
];

impl Task {
    /// All tasks.
    pub fn all() -> impl Iterator<Item = Task> {
        [&choice::TASKS[..], &exam::TASKS, &math::TASKS, &bbh::TASKS, &code::TASKS, &ifeval::TASKS]
            .into_iter()
            .flatten()
            .copied()
    }

    /// The task of this name.
    pub fn named(name: &str) -> Result<Task, Error> {
        Task::all().find(|t| t.name == name).ok_or_else(|| {
            let names: Vec<&str> = Task::all().map(|t| t.name).collect();
            Error::Unsupported(format!("there is no task `{name}`; there are {}", names.join(", ")))
        })
    }

    /// Its items, in the data's order or shuffled by the source's seed; at most `limit`, taken evenly
    /// from all subjects.
    pub fn load(&self, source: &Source<'_>, limit: Option<usize>) -> Result<Vec<Item>, Error> {
        let mut items = (self.load)(source)?;
        if let Some(most) = source.max_tokens {
            for item in &mut items {
                if let Request::Generate(prompt) = &mut item.request {
                    prompt.max_tokens = most;
                }
            }
        }
        if let Some(seed) = source.seed {
            shuffle(&mut items, seed);
        }
        let Some(limit) = limit.filter(|l| *l < items.len()) else { return Ok(items) };
        // Rank of each item within its subject: the lowest ranks of all subjects come first.
        let mut seen = std::collections::HashMap::new();
        let mut ranked: Vec<(usize, usize)> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let n = seen.entry(item.group.clone()).or_insert(0);
            ranked.push((*n, i));
            *n += 1;
        }
        ranked.sort_unstable();
        let mut kept: Vec<usize> = ranked.into_iter().take(limit).map(|(_, i)| i).collect();
        kept.sort_unstable();
        let mut kept = kept.into_iter().peekable();
        let mut index = 0..;
        items.retain(|_| kept.next_if_eq(&index.next().unwrap_or_default()).is_some());
        Ok(items)
    }
}

/// A question with its answer, as prompts show it.
#[derive(Clone, Debug)]
pub(crate) struct Example {
    pub(crate) question: String,
    /// What follows the question at once, a separating space included.
    pub(crate) answer: String,
}

/// A description, worked examples and the question, separated as the field does.
pub(crate) fn prompt<'a>(
    description: &str,
    examples: impl IntoIterator<Item = &'a Example>,
    question: &str,
) -> String {
    let mut text = description.to_owned();
    for example in examples {
        text.extend([&example.question, &example.answer, "\n\n"]);
    }
    text.push_str(question);
    text
}

impl Source<'_> {
    /// The examples to show out of a pool: the first, or as the seed draws them.
    pub(crate) fn draw(&self, mut pool: Vec<Example>) -> Result<Vec<Example>, Error> {
        if let Some(seed) = self.seed {
            shuffle(&mut pool, seed);
        }
        if pool.len() < self.shots {
            let why = format!("--shots {}: there are only {} examples", self.shots, pool.len());
            return Err(Error::Unsupported(why));
        }
        pool.truncate(self.shots);
        Ok(pool)
    }
}

/// Fisher–Yates: the same seed, the same order.
fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut random = Pcg64::seed_from_u64(seed);
    for i in (1..list.len()).rev() {
        // The bias of a remainder over 64 bits is below anything that matters here.
        list.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
    }
}

/// One point or none.
pub(crate) fn point(right: bool) -> Vec<f64> {
    vec![right as u8 as f64]
}

/// The text of an answer; a judge of texts is never given anything else.
pub(crate) fn written(answer: &Answer) -> &str {
    match answer {
        Answer::Text(text) => text,
        Answer::Choices(_) => unreachable!("asked for a text"),
    }
}

/// The likelihoods of an answer; a judge of choices is never given anything else.
pub(crate) fn likelihoods(answer: &Answer) -> &[Likelihood] {
    match answer {
        Answer::Choices(list) => list,
        Answer::Text(_) => unreachable!("asked for likelihoods"),
    }
}
