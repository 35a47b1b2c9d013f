//! How well small twins of configurations learned, as measured elsewhere.
//!
//! Lines of JSON, one for each trained twin: `{"name": "d896-l28", "seed": 1, "loss": 3.21}`; other
//! members are left alone. Start with [`read`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Fewer don't say how much luck there is.
const LEAST_SEEDS: usize = 3;

/// The loss of a configuration's twins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// The mean over the seeds.
    pub loss: f64,
    /// The standard deviation over the seeds.
    pub spread: f64,
    /// Seeds.
    pub seeds: usize,
}

impl Quality {
    fn of(losses: &[f64]) -> Quality {
        let n = losses.len() as f64;
        let loss = losses.iter().sum::<f64>() / n;
        let variance = losses.iter().map(|l| (l - loss).powi(2)).sum::<f64>() / (n - 1.0);
        Quality { loss, spread: variance.sqrt(), seeds: losses.len() }
    }

    /// The mean's standard error, squared.
    pub(super) fn variance_of_mean(&self) -> f64 {
        self.spread * self.spread / self.seeds as f64
    }
}

#[derive(Deserialize)]
struct Line {
    name: String,
    seed: u64,
    loss: f64,
}

/// Reads losses by the names of configurations. Fails on a line that isn't one, on a seed that comes
/// twice and on a configuration with fewer than three.
pub fn read(path: &Path) -> Result<BTreeMap<String, Quality>, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let mut losses: BTreeMap<String, (BTreeSet<u64>, Vec<f64>)> = BTreeMap::new();
    for (number, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let line: Line = serde_json::from_str(text).map_err(|e| Error::data(path, number, e))?;
        if !(line.loss.is_finite() && line.loss >= 0.0) {
            return Err(Error::data(path, number, format!("loss is {}, not 0 or more", line.loss)));
        }
        let (seeds, list) = losses.entry(line.name.clone()).or_default();
        if !seeds.insert(line.seed) {
            let why = format!("seed {} of `{}` comes a second time", line.seed, line.name);
            return Err(Error::data(path, number, why));
        }
        list.push(line.loss);
    }
    if let Some((name, (seeds, _))) = losses.iter().find(|(_, (s, _))| s.len() < LEAST_SEEDS) {
        let why = format!("`{name}` has {} seeds, at least {LEAST_SEEDS} are needed", seeds.len());
        return Err(Error::Settings(path.into(), why));
    }
    Ok(losses.into_iter().map(|(name, (_, list))| (name, Quality::of(&list))).collect())
}
