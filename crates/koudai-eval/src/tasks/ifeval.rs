//! Following instructions that a program can check: IFEval, and our own in Chinese.
//!
//! Each prompt carries instructions by id, with arguments; `english` and `chinese` say which ids there
//! are and what each one wants. Strict takes the answer as it is; loose lets eight variants of it
//! try, without asterisks and without the first or last line, where models put their pleasantries.

mod chinese;
mod english;
mod punkt;
mod words;

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::punkt::Punkt;
use super::{Item, Prompt, Request, Scores, Source, Task, data, point, written};
use crate::Error;

const METRICS: &[&str] = &["prompt_strict", "inst_strict", "prompt_loose", "inst_loose"];

pub(super) const TASKS: [Task; 2] = [
    Task {
        name: "ifeval",
        about: "following instructions in English",
        metrics: METRICS,
        shots: 0,
        runs_code: false,
        load: load_english,
    },
    Task {
        name: "ifeval_zh",
        about: "following instructions in Chinese",
        metrics: METRICS,
        shots: 0,
        runs_code: false,
        load: load_chinese,
    },
];

/// Our own prompts come with the program.
const CHINESE_PROMPTS: &str = include_str!("../../data/ifeval_zh.jsonl");

const MAX_TOKENS: usize = 1280;

/// A prompt and what is checked; the form in which IFEval was published.
#[derive(Clone, Debug, Deserialize)]
pub struct Instructed {
    /// Unique.
    #[serde(alias = "key")]
    pub id: u64,
    /// What the model is asked.
    pub prompt: String,
    /// Ids of the instructions in it.
    #[serde(rename = "instruction_id_list")]
    pub instructions: Vec<String>,
    /// Their arguments, one for each id.
    pub kwargs: Vec<Map<String, Value>>,
}

/// Whether a text follows an instruction.
pub type Check = Box<dyn Fn(&str) -> bool>;

/// Knows the instructions of a language.
pub struct Checker(Language);

enum Language {
    English(Punkt),
    Chinese,
}

impl Checker {
    /// IFEval's own 25 kinds. Sentences are counted as NLTK counts them if its model is in
    /// `ifeval/punkt_tab/english` of the data, and by a short list of abbreviations otherwise.
    pub fn english(data: &Path) -> Result<Checker, Error> {
        let folder = data.join("ifeval/punkt_tab/english");
        let punkt = match folder.is_dir() {
            true => Punkt::open(&folder)?,
            false => Punkt::built_in(),
        };
        Ok(Checker(Language::English(punkt)))
    }

    /// Ours.
    pub fn chinese() -> Checker {
        Checker(Language::Chinese)
    }

    /// The checks of a prompt. The error names the instruction and what is wrong with it.
    pub fn checks(&self, doc: &Instructed) -> Result<Vec<Check>, String> {
        if doc.instructions.len() != doc.kwargs.len() {
            return Err("instructions and kwargs differ in number".into());
        }
        let pairs = doc.instructions.iter().zip(&doc.kwargs);
        pairs
            .map(|(id, kwargs)| {
                let arguments = Arguments { id, kwargs };
                match &self.0 {
                    Language::English(punkt) => english::check(id, &arguments, punkt),
                    Language::Chinese => chinese::check(id, &arguments),
                }
            })
            .collect()
    }
}

/// An instruction's arguments, by name.
struct Arguments<'a> {
    id: &'a str,
    kwargs: &'a Map<String, Value>,
}

impl Arguments<'_> {
    fn wrong(&self, name: &str, what: &str) -> String {
        format!("{}: `{name}` must be {what}", self.id)
    }

    fn text(&self, name: &str) -> Result<String, String> {
        let text = self.kwargs.get(name).and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| self.wrong(name, "a text"))
    }

    fn number(&self, name: &str) -> Result<usize, String> {
        let number = self.kwargs.get(name).and_then(Value::as_f64);
        let whole = number.filter(|n| *n >= 0.0 && n.fract() == 0.0 && *n < 1e9);
        whole.map(|n| n as usize).ok_or_else(|| self.wrong(name, "a whole number"))
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let list = self.kwargs.get(name).and_then(Value::as_array);
        let texts = list.map(|l| l.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        texts.flatten().ok_or_else(|| self.wrong(name, "a list of texts"))
    }

    /// A comparison with a number, as `relation` says.
    fn comparison(
        &self,
        name: &str,
        number: &str,
    ) -> Result<impl Fn(usize) -> bool + use<>, String> {
        let bound = self.number(number)?;
        let relation = match self.text(name)?.as_str() {
            "less than" => |n, bound| n < bound,
            "at least" => |n, bound| n >= bound,
            "at most" => |n, bound| n <= bound,
            "exactly" => |n, bound| n == bound,
            _ => return Err(self.wrong(name, "`less than`, `at least`, `at most` or `exactly`")),
        };
        Ok(move |n: usize| (relation as fn(usize, usize) -> bool)(n, bound))
    }
}

/// Whether each instruction is followed by the text as it is.
pub fn strict(checks: &[Check], text: &str) -> Vec<bool> {
    checks.iter().map(|check| !text.trim().is_empty() && check(text)).collect()
}

/// Whether each instruction is followed by any of the text's variants.
pub fn loose(checks: &[Check], text: &str) -> Vec<bool> {
    let lines: Vec<&str> = text.split('\n').collect();
    let joined = |lines: Option<&[&str]>| lines.unwrap_or(&[]).join("\n").trim().to_owned();
    let last = lines.len() - 1;
    let mut variants = vec![
        text.to_owned(),
        joined(lines.get(1..)),
        joined(lines.get(..last)),
        joined(lines.get(1..last)),
    ];
    let plain: Vec<String> = variants.iter().map(|v| v.replace('*', "")).collect();
    variants.extend(plain);
    let follows = |check: &Check| variants.iter().any(|v| !v.trim().is_empty() && check(v));
    checks.iter().map(follows).collect()
}

fn scores(checks: &[Check], text: &str) -> Scores {
    let points = |list: &[bool]| list.iter().map(|b| *b as u8 as f64).collect::<Vec<_>>();
    let (strict, loose) = (strict(checks, text), loose(checks, text));
    vec![
        ("prompt_strict", point(strict.iter().all(|b| *b))),
        ("inst_strict", points(&strict)),
        ("prompt_loose", point(loose.iter().all(|b| *b))),
        ("inst_loose", points(&loose)),
    ]
}

fn load_english(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let path = source.data.join("ifeval/input_data.jsonl");
    items(source, &path, data::lines(&path)?, &Checker::english(source.data)?)
}

fn load_chinese(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let path = Path::new("ifeval_zh.jsonl");
    let docs = CHINESE_PROMPTS
        .lines()
        .enumerate()
        .map(|(i, line)| serde_json::from_str(line).map_err(|e| Error::data(path, i + 1, e)));
    items(source, path, docs.collect::<Result<_, Error>>()?, &Checker::chinese())
}

fn items(
    source: &Source<'_>,
    path: &Path,
    docs: Vec<Instructed>,
    checker: &Checker,
) -> Result<Vec<Item>, Error> {
    if source.shots > 0 {
        return Err(Error::Unsupported("--shots: IFEval has no examples to show".into()));
    }
    let item = |(i, doc): (usize, Instructed)| {
        let checks = checker.checks(&doc).map_err(|why| Error::data(path, i + 1, why))?;
        Ok(Item {
            id: doc.id.to_string(),
            group: None,
            target: json!({ "instruction_id_list": doc.instructions, "kwargs": doc.kwargs }),
            request: Request::Generate(Prompt {
                text: doc.prompt,
                stop: Vec::new(),
                max_tokens: MAX_TOKENS,
            }),
            judge: Box::new(move |answer| Ok(scores(&checks, written(answer)))),
        })
    };
    docs.into_iter().enumerate().map(item).collect()
}
