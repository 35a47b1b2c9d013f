//! The loop that all stages share: schedule, guards, optimizer, evaluation, checkpoints.
//!
//! It knows no data and no loss; those are the stage's. Everything it decides follows from recipe,
//! checkpoint and step, so a run that was killed goes on as if it had not been. Start with [`train`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use koudai::Flow;
use koudai_convert::{ExportOptions, FloatModel, Options, Quant, export};

use crate::backend::{Device, Kind};
use crate::checkpoint::{self, Progress};
use crate::metrics::{Measured, Metrics};
use crate::model::{Decoder, Full, Weights};
use crate::optimizer::Optimizer;
use crate::recipe::{Precision, Recipe};
use crate::stage::{self, Evaluation, Stage};
use crate::{schedule, start};

/// Steps in a row that may be left out before the run ends.
const MAX_SKIPPED: u64 = 20;
/// Steps that the mean loss remembers, about; before as many nothing counts as a spike.
const RECENT: f64 = 50.0;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Steps and tokens done, best loss.
    pub progress: Progress,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
    /// It was interrupted; the checkpoint has what was done.
    pub interrupted: bool,
    /// Files and folders written at the end.
    pub exported: Vec<PathBuf>,
}

/// Trains as a recipe says, from its checkpoint if there is one. `interrupt` ends it after a step.
pub fn train(recipe: &Recipe, device: Device, interrupt: &AtomicBool) -> Result<Outcome> {
    let _locked = claim(&recipe.output)?;
    let mut model = start::start(&recipe.model, recipe.seed)?;
    ensure!(
        recipe.train.length <= model.config.context_length,
        "train.length is {}, the model's context {}",
        recipe.train.length,
        model.config.context_length
    );
    let weights = start::trainable(&model, device);
    let mut stage = stage::open(recipe, &model)?;
    let compute = match recipe.train.precision {
        Precision::F32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    };
    let run = Run {
        recipe,
        decoder: Decoder::new(model.config.clone(), compute, device),
        optimizer: Optimizer::new(&recipe.optimizer, weights.parameters()),
    };
    let mut outcome = run.steps(&weights, &mut *stage, interrupt)?;
    if !outcome.interrupted {
        start::collect(&weights, &mut model);
        outcome.exported = write(recipe, &model)?;
    }
    Ok(outcome)
}

/// Makes a run's folder this process's own until the result is dropped, and removes what a killed run
/// left half written.
fn claim(folder: &Path) -> Result<File> {
    let open = || -> std::io::Result<(File, bool)> {
        std::fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        let claimed = lock.try_lock().is_ok();
        for entry in std::fs::read_dir(folder)?.filter(|_| claimed) {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // `.tmp` is what the library of checkpoints writes beside them.
            if name.contains(".partial-") || name.starts_with(".tmp") {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok((lock, claimed))
    };
    let (lock, claimed) = open().with_context(|| folder.display().to_string())?;
    ensure!(claimed, "{}: another run is going on in it", folder.display());
    Ok(lock)
}

struct Run<'a> {
    recipe: &'a Recipe,
    decoder: Decoder,
    optimizer: Optimizer,
}

impl Run<'_> {
    fn steps(
        &self,
        weights: &Full,
        stage: &mut dyn Stage,
        interrupt: &AtomicBool,
    ) -> Result<Outcome> {
        let (recipe, steps) = (self.recipe, self.recipe.train.steps);
        let (last, best) = (self.file("last"), self.file("best"));
        let hash = recipe_hash(recipe);
        let new = Progress { recipe: hash.clone(), ..Progress::default() };
        let mut progress = checkpoint::load(&last, &self.optimizer)?.unwrap_or(new);
        if progress.recipe != hash {
            bail!("{}: it is of another recipe; give another output, or delete it", last.display());
        }
        let mut metrics = Metrics::open(&recipe.output, progress.step, steps)?;
        stage.notes().iter().for_each(|note| metrics.say(&format!("note: {note}")));
        let (mut evaluation, mut in_a_row) = (None, 0);
        while progress.step < steps && !interrupt.load(Ordering::Relaxed) {
            let started = Instant::now();
            let made = stage.gradient(&self.decoder, weights, progress.step)?;
            let norm = self.optimizer.clip();
            let factor = schedule::factor(&recipe.schedule, progress.step, steps);
            let skipped = !norm.is_finite() || self.is_spike(&progress, made.loss);
            if skipped {
                progress.skipped += 1;
                in_a_row += 1;
            } else {
                self.optimizer.step(progress.step, factor);
                remember(&mut progress, made.loss);
                in_a_row = 0;
            }
            self.optimizer.clear();
            ensure!(
                in_a_row < MAX_SKIPPED,
                "step {}: the loss is {} and the gradient's norm {norm}, and {MAX_SKIPPED} steps in a \
                 row were left out; a lower optimizer.lr may help",
                progress.step,
                made.loss
            );
            progress.loss = Some(made.loss).filter(|loss| loss.is_finite());
            progress.step += 1;
            progress.tokens += made.tokens;
            progress.seconds += started.elapsed().as_secs_f64();
            let step = progress.step;
            let due = |every: u64| every > 0 && (step.is_multiple_of(every) || step == steps);
            let (lr, tokens) = (recipe.optimizer.lr * factor, progress.tokens);
            let measured = Measured { step, of: made, norm, lr, skipped, tokens };
            metrics.step(&measured, due(recipe.train.log_every) || skipped)?;
            if due(recipe.evaluate.every)
                && let Some(found) = stage.evaluate(&self.decoder, weights)?
            {
                metrics.evaluation(step, &found)?;
                evaluation = Some(found);
                if progress.best.is_none_or(|best| found.loss < best) {
                    progress.best = Some(found.loss);
                    checkpoint::save(&best, &self.optimizer, &progress)?;
                }
            }
            if due(recipe.train.save_every) || interrupt.load(Ordering::Relaxed) {
                checkpoint::save(&last, &self.optimizer, &progress)?;
            }
        }
        let interrupted = progress.step < steps;
        Ok(Outcome { progress, evaluation, interrupted, exported: Vec::new() })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.recipe.output.join(format!("{name}.safetensors"))
    }

    fn is_spike(&self, progress: &Progress, loss: f64) -> bool {
        let (mean, square, n) = progress.recent;
        let deviation = (square - mean * mean).max(0.0).sqrt();
        let limit = self.recipe.train.spike;
        !loss.is_finite()
            || (limit > 0.0 && n as f64 >= RECENT && loss > mean + limit * deviation.max(0.01))
    }
}

/// Takes a loss into the running mean and mean square.
fn remember(progress: &mut Progress, loss: f64) {
    let (mean, square, n) = &mut progress.recent;
    *n += 1;
    let weight = 1.0 / (*n as f64).min(RECENT);
    *mean += (loss - *mean) * weight;
    *square += (loss * loss - *square) * weight;
}

/// Hash of what decides a run's course.
fn recipe_hash(recipe: &Recipe) -> String {
    let mut course = recipe.clone();
    // A run may be moved, and be exported in other ways.
    course.output = PathBuf::new();
    course.export = Default::default();
    blake3::hash(format!("{course:?}").as_bytes()).to_hex()[..32].to_owned()
}

/// Writes the trained model as the recipe wants it.
fn write(recipe: &Recipe, model: &FloatModel) -> Result<Vec<PathBuf>> {
    let default = recipe.output.join("model.koudai");
    let koudai = recipe.export.koudai.as_ref().unwrap_or(&default);
    let quant = recipe.export.quant.as_deref().unwrap_or("keep");
    let quant = Quant::from_name(quant).with_context(|| format!("export.quant is `{quant}`"))?;
    let go_on = &mut |_| Flow::Continue(());
    model.write(koudai, &Options { quant, ..Options::default() }, go_on)?;
    let mut written = vec![koudai.clone()];
    if let Some(folder) = &recipe.export.folder {
        export_folder(model, koudai, quant, folder)?;
        written.push(folder.clone());
    }
    Ok(written)
}

/// A Hugging Face folder holds floats: those of the model, not what quantization left of them.
fn export_folder(model: &FloatModel, koudai: &Path, quant: Quant, folder: &Path) -> Result<()> {
    let go_on = &mut |_| Flow::Continue(());
    let options = ExportOptions { force: true, ..ExportOptions::default() };
    if quant == Quant::Keep {
        export(koudai, folder, &options, go_on)?;
        return Ok(());
    }
    let whole = koudai.with_extension("f32.koudai");
    model.write(&whole, &Options::default(), go_on)?;
    let result = export(&whole, folder, &options, go_on);
    std::fs::remove_file(&whole).with_context(|| whole.display().to_string())?;
    result?;
    Ok(())
}
