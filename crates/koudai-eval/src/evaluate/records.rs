//! Every prompt, answer and verdict of a task, in a [`Journal`].
//!
//! Items are found by their ids, so that a run with another limit takes what is there.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::journal::{Journal, Settings};
use crate::tasks::{Answer, Item, Request, Scores, Task};

/// Verdicts so far, in memory and maybe in a file.
pub struct Records {
    journal: Option<Journal>,
    done: HashMap<String, Scores>,
}

impl Records {
    /// Kept in memory only.
    pub fn in_memory() -> Records {
        Records { journal: None, done: HashMap::new() }
    }

    /// Opens or starts the file at `path`. Fails if it was made with other settings, naming them, or
    /// if another process writes to it.
    pub fn open(path: &Path, task: &Task, settings: &Settings) -> Result<Records, Error> {
        let (journal, entries) = Journal::open(path, settings)?;
        let mut done = HashMap::new();
        for (line, entry) in entries {
            let scores = task.metrics.iter().filter_map(|name| {
                let values = entry["scores"][name].as_array()?;
                Some((*name, values.iter().filter_map(Value::as_f64).collect()))
            });
            let id = entry["id"].as_str();
            let id = id.ok_or_else(|| Error::data(path, line, "it has no id"))?;
            done.insert(id.to_owned(), scores.collect());
        }
        Ok(Records { journal: Some(journal), done })
    }

    /// What an item scored, if it is done.
    pub(crate) fn scores(&self, id: &str) -> Option<&Scores> {
        self.done.get(id)
    }

    /// Keeps an answer and its verdict.
    pub(crate) fn add(
        &mut self,
        item: &Item,
        answer: &Answer,
        scores: Scores,
    ) -> Result<(), Error> {
        if let Some(journal) = &mut self.journal {
            let (prompt, output) = match (&item.request, answer) {
                (Request::Choices(choices), Answer::Choices(likelihoods)) => {
                    let list = choices.iter().zip(likelihoods).map(|(c, l)| {
                        json!({
                            "continuation": c.continuation, "logprob": l.logprob, "greedy": l.greedy,
                        })
                    });
                    (json!(&*choices[0].context), list.collect())
                }
                (Request::Generate(prompt), Answer::Text(text)) => {
                    (json!(prompt.text), json!(text))
                }
                _ => unreachable!("an answer of the kind that was asked for"),
            };
            let scores: Map<String, Value> =
                scores.iter().map(|(name, values)| (name.to_string(), json!(values))).collect();
            let target = &item.target;
            journal.write(&json!({
                "id": item.id, "prompt": prompt, "output": output, "target": target,
                "scores": scores,
            }))?;
        }
        self.done.insert(item.id.clone(), scores);
        Ok(())
    }
}
