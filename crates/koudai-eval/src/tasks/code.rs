//! Writing Python: HumanEval and MBPP. A program counts if its tests pass in the [`Sandbox`].
//!
//! Greedy, one program each, so `pass@1` is the share that passes.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::math::DEFAULT_MAX_TOKENS;
use super::{Example, Item, Judge, Prompt, Request, Source, Task, data, point, prompt, written};
use crate::Error;
use crate::sandbox::Sandbox;

pub(super) const TASKS: [Task; 2] = [
    Task {
        name: "humaneval",
        about: "164 Python functions from their descriptions",
        metrics: &["pass@1"],
        shots: 0,
        runs_code: true,
        load: humaneval,
    },
    Task {
        name: "mbpp",
        about: "500 short Python programs",
        metrics: &["pass@1"],
        shots: 3,
        runs_code: true,
        load: mbpp,
    },
];

/// Runs the program that `program` makes of an answer.
fn judge(source: &Source<'_>, program: impl Fn(&str) -> String + 'static) -> Result<Judge, Error> {
    let sandbox: Arc<Sandbox> = source
        .sandbox
        .clone()
        .ok_or_else(|| Error::Sandbox("there is no sandbox to run programs in".into()))?;
    Ok(Box::new(move |answer| {
        let outcome = sandbox.run(&program(written(answer)))?;
        Ok(vec![("pass@1", point(outcome.passed()))])
    }))
}

/// The first fenced block of a reply, or all of it.
fn fenced(text: &str) -> &str {
    let Some((_, rest)) = text.split_once("```") else { return text };
    let (_, code) = rest.split_once('\n').unwrap_or(("", rest));
    code.split("```").next().unwrap_or(code)
}

#[derive(Deserialize)]
struct HumanEval {
    task_id: String,
    prompt: String,
    entry_point: String,
    test: String,
}

fn humaneval(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    if source.shots > 0 {
        return Err(Error::Unsupported("--shots: HumanEval has no examples to show".into()));
    }
    let docs = data::lines::<HumanEval>(&source.data.join("humaneval/HumanEval.jsonl.gz"))?;
    let item = |d: HumanEval| {
        let tests = format!("\n{}\ncheck({})", d.test, d.entry_point);
        let (start, chat) = (d.prompt.clone(), source.chat);
        let header = format!("def {}", d.entry_point);
        let program = move |answer: &str| {
            let code = if chat { fenced(answer) } else { answer };
            match chat && code.contains(&header) {
                // Imports of the description may be what the reply relies on.
                true => format!("{}\n{code}{tests}", imports(&start)),
                false => format!("{start}{code}{tests}"),
            }
        };
        let (text, stop): (String, &[&str]) = match chat {
            true => (
                format!(
                    "Write a solution to the following problem and make sure that it passes the \
                     tests:\n```python\n{}\n```\n",
                    d.prompt
                ),
                &[],
            ),
            false => (d.prompt, &["\nclass", "\ndef", "\n#", "\nif", "\nprint"]),
        };
        let stop = stop.iter().map(|s| s.to_string()).collect();
        Ok(Item {
            id: d.task_id,
            group: None,
            request: Request::Generate(Prompt { text, stop, max_tokens: 1024 }),
            target: json!(d.entry_point),
            judge: judge(source, program)?,
        })
    };
    docs.into_iter().map(item).collect()
}

fn imports(program: &str) -> String {
    let import = |line: &&str| line.starts_with("import ") || line.starts_with("from ");
    program.lines().filter(import).collect::<Vec<_>>().join("\n")
}

#[derive(Deserialize)]
struct Mbpp {
    task_id: usize,
    text: String,
    code: String,
    test_list: Vec<String>,
}

impl Mbpp {
    fn question(&self) -> String {
        format!(
            "You are an expert Python programmer, and here is your task: {} Your code should pass \
             these tests:\n\n{}\n[BEGIN]\n",
            self.text,
            self.test_list.join("\n")
        )
    }
}

fn mbpp(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let docs = data::lines::<Mbpp>(&source.data.join("mbpp/mbpp.jsonl"))?;
    let example =
        |d: &Mbpp| Example { question: d.question(), answer: format!("{}\n[DONE]", d.code) };
    let pool = docs.iter().filter(|d| (2..=4).contains(&d.task_id)).map(example).collect();
    let examples = source.draw(pool)?;
    let chat = source.chat;
    let item = |d: Mbpp| {
        let tests = format!("\n{}", d.test_list.join("\n"));
        let program = move |answer: &str| {
            let code = if chat { fenced(answer) } else { answer };
            format!("{code}{tests}")
        };
        Ok(Item {
            id: d.task_id.to_string(),
            group: None,
            request: Request::Generate(Prompt {
                text: prompt("", &examples, &d.question()),
                stop: vec!["[DONE]".into()],
                max_tokens: DEFAULT_MAX_TOKENS,
            }),
            target: json!(d.test_list),
            judge: judge(source, program)?,
        })
    };
    docs.into_iter().filter(|d| (11..=510).contains(&d.task_id)).map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_code_is_taken_out() {
        assert_eq!(fenced("Here:\n```python\nx = 1\n```\nDone."), "x = 1\n");
        assert_eq!(fenced("```\nx = 1"), "x = 1");
        assert_eq!(fenced("    return 1"), "    return 1");
        assert_eq!(
            imports("import os\nfrom typing import List\n\ndef f():\n  import re\n"),
            "import os\nfrom typing import List"
        );
    }
}
