//! Which architecture to train for a machine: a grid of configurations, measured on the real engine or
//! predicted, under limits of memory and speed.
//!
//! It trains nothing: what a configuration would learn is judged by its parameters, or by losses that
//! were measured elsewhere ([`quality`]). Start with [`search`].

mod choose;
mod grid;
mod measure;
mod predict;
pub mod quality;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use koudai::CancelToken;
use koudai::kernels::Kernels;
use serde_json::{Value, json};

pub use choose::{Choice, Configuration, choose, mark_pareto};
pub use grid::{Candidate, DEFAULT, Grid, Limits, ModelShape};
pub use measure::{AtContext, ENTRY, Lab, Measurement, Plan, measure, run};
pub use predict::{Errors, LEAST, Law, Predictor, Sample, Term};
pub use quality::Quality;
pub use report::{csv, document};

use crate::Error;
use crate::journal::{Journal, Settings};
use crate::machine::Machine;

/// How to search.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that measures; it calls [`run`] when its first argument is [`ENTRY`].
    pub launcher: PathBuf,
    /// Where measurements are kept and models are written meanwhile; `None` keeps nothing.
    pub out: Option<PathBuf>,
    /// Configurations to measure now at most, those first that are farthest from what was measured;
    /// the others are predicted. `None` measures all.
    pub count: Option<usize>,
    /// Losses of twins by configuration; those without one are left out then.
    pub quality: Option<BTreeMap<String, Quality>>,
    /// Ends the search; what was measured is kept.
    pub cancel: CancelToken,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Study {
    /// The machine.
    pub machine: Machine,
    /// Kernels used.
    pub isa: &'static str,
    /// How it was measured.
    pub plan: Plan,
    /// What a configuration must keep.
    pub limits: Limits,
    /// All configurations, in the grid's order.
    pub configurations: Vec<Configuration>,
    /// How the others were predicted, if enough were measured.
    pub predictor: Option<Predictor>,
    /// What to build.
    pub choice: Choice,
}

/// Where a search is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Configurations measured now.
    pub done: usize,
    /// Configurations to measure now.
    pub total: usize,
    /// The most disk that any of them takes while it is measured, in bytes.
    pub disk_bytes: u64,
}

/// Measures what isn't measured yet, predicts the rest, and chooses.
pub fn search(
    grid: &Grid,
    options: &Options,
    mut progress: impl FnMut(Progress),
) -> Result<Study, Error> {
    let candidates = known(grid.candidates()?, options.quality.as_ref())?;
    let plan = grid.plan();
    let machine = Machine::here();
    let isa = Kernels::detect().map_err(koudai::Error::Isa)?.name();
    let mut records = Records::open(options.out.as_deref(), &plan, &machine, isa)?;
    measure_missing(&candidates, grid, options, &mut records, &mut progress)?;

    let mut samples: Vec<Sample> = records.done.into_iter().collect();
    // In an order that doesn't depend on hashes, as sums of floats do on theirs.
    samples.sort_by_cached_key(|(shape, _)| format!("{shape:?}"));
    let predictor = Predictor::fit(&samples, &plan);
    let measured: HashMap<ModelShape, Measurement> = samples.into_iter().collect();
    let is_missing = |c: &&Candidate| !measured.contains_key(&c.shape);
    let missing = candidates.iter().filter(is_missing).count();
    if missing > 0 && predictor.is_none() {
        return Err(Error::Unsupported(format!(
            "{} configurations are measured, at least {LEAST} are needed to predict the other \
             {missing}: measure more",
            measured.len()
        )));
    }
    let judged = candidates.into_iter().filter_map(|candidate| {
        let own = measured.get(&candidate.shape).cloned();
        let is_measured = own.is_some();
        let performance = own.or_else(|| Some(predictor.as_ref()?.predict(&candidate.shape)))?;
        let quality = options.quality.as_ref().and_then(|q| q.get(&candidate.name).cloned());
        Some(Configuration::new(candidate, is_measured, performance, quality, &grid.limits))
    });
    let mut configurations: Vec<Configuration> = judged.collect();
    mark_pareto(&mut configurations);
    let choice = choose(&configurations, &grid.limits);
    let limits = grid.limits.clone();
    Ok(Study { machine, isa, plan, limits, configurations, predictor, choice })
}

/// Measures as many of the candidates that have no measurement as the options ask for.
fn measure_missing(
    candidates: &[Candidate],
    grid: &Grid,
    options: &Options,
    records: &mut Records,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), Error> {
    let schedule = schedule(candidates, &records.done, options.count);
    if schedule.is_empty() {
        return Ok(());
    }
    let temporary = tempfile::Builder::new().prefix("koudai-search-").tempdir();
    let temporary = temporary.map_err(|e| Error::Io(std::env::temp_dir(), e))?;
    let folder = options.out.as_deref().unwrap_or(temporary.path()).join("measuring");
    let lab = Lab::new(options.launcher.clone(), folder, grid.plan(), options.cancel.clone())?;
    lab.check_room(&schedule, grid.memory_bytes())?;
    let disk_bytes = schedule.iter().map(|c| Lab::disk_bytes(&c.shape)).max().unwrap_or(0);
    for (done, candidate) in schedule.iter().enumerate() {
        progress(Progress { done, total: schedule.len(), disk_bytes });
        records.add(&candidate.shape, lab.measure(&candidate.shape)?)?;
    }
    Ok(())
}

/// The candidates that take part: all, or those with a loss. Fails if a loss is of none of them.
fn known(
    candidates: Vec<Candidate>,
    quality: Option<&BTreeMap<String, Quality>>,
) -> Result<Vec<Candidate>, Error> {
    let Some(quality) = quality else { return Ok(candidates) };
    let stranger = quality.keys().find(|name| candidates.iter().all(|c| c.name != **name));
    if let Some(name) = stranger {
        return Err(Error::Unsupported(format!(
            "there are losses of `{name}`, which is no configuration of the grid"
        )));
    }
    let all: Vec<Candidate> =
        candidates.into_iter().filter(|c| quality.contains_key(&c.name)).collect();
    match all.is_empty() {
        true => Err(Error::Unsupported("there are no losses to choose by".into())),
        false => Ok(all),
    }
}

/// What measurements depend on.
fn settings(plan: &Plan, machine: &Machine, isa: &str) -> Settings {
    let mut settings = Settings::new();
    settings.insert("cpu".into(), json!(machine.cpu));
    settings.insert("processors".into(), json!(machine.processors));
    settings.insert("isa".into(), json!(isa));
    let Value::Object(plan) = json!(plan) else { unreachable!("a struct is an object") };
    settings.extend(plan);
    settings
}

/// What to measure, in order: always the candidate that is farthest from all that were measured, by
/// the ratios of its sizes. So any beginning is a spread sample. The first of all is the smallest.
fn schedule<'a>(
    candidates: &'a [Candidate],
    done: &HashMap<ModelShape, Measurement>,
    count: Option<usize>,
) -> Vec<&'a Candidate> {
    let place = |s: &ModelShape| {
        [s.dim, s.layers, s.ffn_dim, s.heads, s.kv_heads].map(|size| (size as f64).ln())
    };
    let distance = |a: &ModelShape, b: &ModelShape| -> f64 {
        place(a).iter().zip(place(b)).map(|(a, b)| (a - b).powi(2)).sum()
    };
    let open = candidates.iter().filter(|c| !done.contains_key(&c.shape));
    let from_done = |c: &Candidate| {
        done.keys().map(|shape| distance(&c.shape, shape)).fold(f64::INFINITY, f64::min)
    };
    let mut open: Vec<(&Candidate, f64)> = open.map(|c| (c, from_done(c))).collect();
    let mut order: Vec<&Candidate> = Vec::new();
    while order.len() < count.unwrap_or(usize::MAX) {
        let farthest = open.iter().enumerate().max_by(|(_, a), (_, b)| {
            let smaller = b.0.shape.parameters().cmp(&a.0.shape.parameters());
            a.1.total_cmp(&b.1).then(smaller)
        });
        let Some((index, _)) = farthest else { break };
        let (next, _) = open.remove(index);
        for (candidate, nearest) in &mut open {
            *nearest = nearest.min(distance(&candidate.shape, &next.shape));
        }
        order.push(next);
    }
    order
}

/// Measurements by shape, in memory and maybe in a file.
struct Records {
    journal: Option<Journal>,
    done: HashMap<ModelShape, Measurement>,
}

impl Records {
    fn open(
        out: Option<&Path>,
        plan: &Plan,
        machine: &Machine,
        isa: &str,
    ) -> Result<Records, Error> {
        let Some(out) = out else { return Ok(Records { journal: None, done: HashMap::new() }) };
        std::fs::create_dir_all(out).map_err(|e| Error::Io(out.into(), e))?;
        let path = out.join("measurements.jsonl");
        let (journal, entries) = Journal::open(&path, &settings(plan, machine, isa))?;
        let mut done = HashMap::new();
        for (line, mut entry) in entries {
            let malformed = |e| Error::data(&path, line, e);
            let shape = serde_json::from_value(entry["shape"].take()).map_err(malformed)?;
            let measured: Measurement =
                serde_json::from_value(entry["measured"].take()).map_err(malformed)?;
            if !measured.contexts.iter().map(|at| at.context).eq(plan.contexts.iter().copied()) {
                return Err(Error::data(&path, line, "its contexts aren't those of the settings"));
            }
            done.insert(shape, measured);
        }
        Ok(Records { journal: Some(journal), done })
    }

    fn add(&mut self, shape: &ModelShape, measured: Measurement) -> Result<(), Error> {
        if let Some(journal) = &mut self.journal {
            journal.write(&json!({ "shape": shape, "measured": measured }))?;
        }
        self.done.insert(shape.clone(), measured);
        Ok(())
    }
}
