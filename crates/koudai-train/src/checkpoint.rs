//! A run's state in one safetensors file: weights, optimizer, and how far it is.
//!
//! Written beside its name and renamed, so that a run killed at any moment has the one before. Start
//! with [`save`] and [`load`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use koudai::PartialFile;
use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use crate::backend::{Tensor, floats, no_grad, to_floats};
use crate::optimizer::Optimizer;

/// How far a run is. Together with weights and optimizer it decides all that follows: the data's order
/// is the step's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps whose update was left out.
    pub skipped: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Loss of the last step, if there was one and it is a number.
    pub loss: Option<f64>,
    /// Lowest loss on held-out data.
    pub best: Option<f64>,
    /// Running mean of losses and of their squares, and how many.
    pub recent: (f64, f64, u64),
    /// Hash of the recipe.
    pub recipe: String,
}

const KEY: &str = "koudai_train";

/// Writes weights, optimizer and progress.
pub fn save(path: &Path, optimizer: &Optimizer, progress: &Progress) -> Result<()> {
    let tensors = named(optimizer).map(|(name, tensor)| (name, Stored::new(tensor)));
    let about = HashMap::from([(KEY.to_owned(), serde_json::to_string(progress)?)]);
    let write = || -> Result<()> {
        let mut file = PartialFile::create(path)?;
        // The library writes tensor by tensor, but only to a path, which it replaces; so what is to reach
        // the disk is the file that is there then.
        let partial = file.sync()?.to_owned();
        safetensors::serialize_to_file(tensors, Some(about), &partial)?;
        std::fs::File::open(&partial)?.sync_all()?;
        Ok(file.finish()?)
    };
    write().with_context(|| path.display().to_string())
}

/// Reads a file of [`save`] into the same parameters and state. None if there is no such file.
pub fn load(path: &Path, optimizer: &Optimizer) -> Result<Option<Progress>> {
    if !path.exists() {
        return Ok(None);
    }
    let read = || {
        let bytes = koudai::file::map_file(path)?;
        let (_, header) = SafeTensors::read_metadata(&bytes)?;
        let about = header.metadata().as_ref().and_then(|about| about.get(KEY));
        let progress = serde_json::from_str(about.context("it isn't a checkpoint of training")?)?;
        let file = SafeTensors::deserialize(&bytes)?;
        let mut stored: BTreeMap<&str, _> = file.iter().collect();
        for (name, mut tensor) in named(optimizer) {
            let Some(view) = stored.remove(name.as_str()) else { bail!("it has no `{name}`") };
            let shape: Vec<i64> = view.shape().iter().map(|n| *n as i64).collect();
            ensure!(view.dtype() == Dtype::F32, "`{name}` isn't F32");
            ensure!(shape == tensor.size(), "`{name}` is {shape:?}, not {:?}", tensor.size());
            let values: Vec<f32> = view
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            no_grad(|| tensor.copy_(&floats(&values, &shape, tensor.device())));
        }
        if let Some(name) = stored.keys().next() {
            bail!("it has `{name}`, which this run has not");
        }
        Ok(progress)
    };
    read().map(Some).with_context(|| path.display().to_string())
}

/// Parameters and optimizer state by their names in the file.
fn named(optimizer: &Optimizer) -> impl Iterator<Item = (String, Tensor)> {
    let parameters = optimizer.parameters().iter();
    let parameters = parameters.map(|p| (format!("model.{}", p.name), p.value.shallow_clone()));
    let state = optimizer.state().iter();
    parameters.chain(state.map(|(name, t)| (format!("optimizer.{name}"), t.shallow_clone())))
}

/// A tensor as the writer of safetensors wants it.
struct Stored {
    tensor: Tensor,
    shape: Vec<usize>,
}

impl Stored {
    fn new(tensor: Tensor) -> Stored {
        Stored { shape: tensor.size().iter().map(|n| *n as usize).collect(), tensor }
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        to_floats(&self.tensor).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into()
    }
    fn data_len(&self) -> usize {
        self.tensor.numel() * 4
    }
}
