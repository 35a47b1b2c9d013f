//! Puts a task's items to a model, keeps what came back, and says how good it was.
//!
//! [`Model`] is what answers: [`Local`] runs a model here, [`Endpoint`] asks a server. [`Records`]
//! keeps every prompt and answer, so that an evaluation that was interrupted goes on. Start with
//! [`evaluate`].

mod endpoint;
mod local;
mod records;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use endpoint::Endpoint;
pub use local::Local;
pub use records::Records;

pub use crate::journal::Settings;

use crate::Error;
use crate::tasks::{Answer, Choice, Item, Likelihood, Prompt, Request, Scores, Task};

/// What answers.
pub trait Model {
    /// How likely each choice is.
    fn score(&mut self, choices: &[Choice]) -> Result<Vec<Likelihood>, Error>;

    /// Continues every prompt, greedily. `done(i, text)` is called for each in the order in which they
    /// end.
    fn generate(
        &mut self,
        prompts: &[&Prompt],
        done: &mut dyn FnMut(usize, String) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// Prompts so far that had to lose their beginning to fit the context.
    fn truncated(&self) -> usize;
}

/// How good a model is at a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// For each metric of the task, in its order.
    pub metrics: Vec<Metric>,
    /// The first metric's mean for each subject, where there are several.
    pub groups: BTreeMap<String, Metric>,
    /// Items answered now, not read from the records.
    pub answered: usize,
    /// Prompts that lost their beginning.
    pub truncated: usize,
    /// Time it took now.
    pub elapsed: Duration,
}

/// A mean and how sure it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// What is measured.
    pub name: &'static str,
    /// The mean.
    pub value: f64,
    /// Values behind it.
    pub n: usize,
    /// Half the width of the 95% interval: 1.96 standard errors, s/√n. 0 for a single value.
    pub ci95: f64,
}

impl Metric {
    /// The mean of values.
    pub fn of(name: &'static str, values: &[f64]) -> Metric {
        let n = values.len();
        let value = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - value).powi(2)).sum::<f64>() / (n as f64 - 1.0);
        let ci95 = if n > 1 { 1.96 * (variance / n as f64).sqrt() } else { 0.0 };
        Metric { name, value, n, ci95 }
    }
}

/// Puts to the model the items that the records don't have, and judges.
/// `progress(done)` is told the items done so far.
pub fn evaluate(
    task: &Task,
    items: &[Item],
    model: &mut dyn Model,
    records: &mut Records,
    mut progress: impl FnMut(usize),
) -> Result<Report, Error> {
    let (start, truncated) = (Instant::now(), model.truncated());
    let open: Vec<&Item> = items.iter().filter(|i| records.scores(&i.id).is_none()).collect();
    let mut done = items.len() - open.len();
    let mut keep = |item: &Item, answer: Answer| {
        let scores = (item.judge)(&answer)?;
        records.add(item, &answer, scores)?;
        done += 1;
        progress(done);
        Ok(())
    };
    let mut prompts: Vec<(&Item, &Prompt)> = Vec::new();
    for item in &open {
        match &item.request {
            Request::Choices(choices) => {
                let likelihoods = model.score(choices)?;
                keep(item, Answer::Choices(likelihoods))?;
            }
            Request::Generate(prompt) => prompts.push((item, prompt)),
        }
    }
    let texts: Vec<&Prompt> = prompts.iter().map(|(_, p)| *p).collect();
    model.generate(&texts, &mut |i, text| keep(prompts[i].0, Answer::Text(text)))?;
    let scored: Vec<(&Item, &Scores)> =
        items.iter().filter_map(|i| Some((i, records.scores(&i.id)?))).collect();
    let mut groups: BTreeMap<String, Vec<&Scores>> = BTreeMap::new();
    for (item, scores) in &scored {
        if let Some(group) = &item.group {
            groups.entry(group.clone()).or_default().push(scores);
        }
    }
    let all: Vec<&Scores> = scored.iter().map(|(_, scores)| *scores).collect();
    Ok(Report {
        metrics: task.metrics.iter().map(|name| mean(name, &all)).collect(),
        groups: groups.into_iter().map(|(g, list)| (g, mean(task.metrics[0], &list))).collect(),
        answered: open.len(),
        truncated: model.truncated() - truncated,
        elapsed: start.elapsed(),
    })
}

/// A metric's mean over what items scored.
fn mean(name: &'static str, scores: &[&Scores]) -> Metric {
    let values = scores.iter().flat_map(|s| s.iter()).filter(|(n, _)| *n == name);
    Metric::of(name, &values.flat_map(|(_, v)| v.iter().copied()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_knows_how_sure_it_is() {
        let m = Metric::of("acc", &[1.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!((m.value, m.n), (0.6, 5));
        // s² = (2·0.36 + 3·0.16) / 4 = 0.3
        assert!((m.ci95 - 1.96 * (0.3f64 / 5.0).sqrt()).abs() < 1e-12);
        assert_eq!(Metric::of("acc", &[1.0]).ci95, 0.0);
        assert!(Metric::of("acc", &[]).value.is_nan());
    }
}
