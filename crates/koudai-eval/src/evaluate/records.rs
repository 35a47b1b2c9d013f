//! Every prompt, answer and verdict of a task as lines of JSON, written as they come.
//!
//! The first line holds the settings. A file that was interrupted is continued if the settings are
//! the same; a last line that is cut short is dropped. Items are found by their ids, so that a run
//! with another limit takes what is there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::Error;
use crate::tasks::{Answer, Item, Request, Scores, Task};

/// What an evaluation depends on, by name.
pub type Settings = Map<String, Value>;

/// Verdicts so far, in memory and maybe in a file.
pub struct Records {
    out: Option<(PathBuf, File)>,
    done: HashMap<String, Scores>,
}

impl Records {
    /// Kept in memory only.
    pub fn in_memory() -> Records {
        Records { out: None, done: HashMap::new() }
    }

    /// Opens or starts the file at `path`. Fails if it was made with other settings, naming them, or
    /// if another process writes to it.
    pub fn open(path: &Path, task: &Task, settings: &Settings) -> Result<Records, Error> {
        let io = |e| Error::Io(path.into(), e);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(io)?;
        if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::Settings(path.into(), "another process is writing to it".into()));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut done = HashMap::new();
        for (i, line) in text[..whole].lines().enumerate() {
            let line: Value =
                serde_json::from_str(line).map_err(|e| Error::data(path, i + 1, e))?;
            if i == 0 {
                compare(path, &line, settings)?;
                continue;
            }
            let scores = task.metrics.iter().filter_map(|name| {
                let values = line["scores"][name].as_array()?;
                Some((*name, values.iter().filter_map(Value::as_f64).collect()))
            });
            let id = line["id"].as_str();
            let id = id.ok_or_else(|| Error::data(path, i + 1, "it has no id"))?;
            done.insert(id.to_owned(), scores.collect());
        }
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut records = Records { out: Some((path.into(), file)), done };
        if whole == 0 {
            records.write(&json!({ "settings": settings }))?;
        }
        Ok(records)
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
        if self.out.is_some() {
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
            self.write(&json!({
                "id": item.id, "prompt": prompt, "output": output, "target": target,
                "scores": scores,
            }))?;
        }
        self.done.insert(item.id.clone(), scores);
        Ok(())
    }

    fn write(&mut self, line: &Value) -> Result<(), Error> {
        let Some((path, file)) = &mut self.out else { return Ok(()) };
        file.write_all(format!("{line}\n").as_bytes()).map_err(|e| Error::Io(path.clone(), e))
    }
}

/// Fails on the first setting that differs.
fn compare(path: &Path, header: &Value, settings: &Settings) -> Result<(), Error> {
    let Some(old) = header["settings"].as_object() else {
        return Err(Error::data(path, 1, "it doesn't start with settings"));
    };
    let names = settings.keys().chain(old.keys().filter(|k| !settings.contains_key(*k)));
    for name in names {
        let (old, new) = (old.get(name), settings.get(name));
        if old != new {
            let show = |v: Option<&Value>| v.map_or("nothing".into(), Value::to_string);
            let why = format!(
                "it was made with {name} {}, not {}; give another --out",
                show(old),
                show(new)
            );
            return Err(Error::Settings(path.into(), why));
        }
    }
    Ok(())
}
