//! Recipes: what to train, on what, how. TOML, every key known and checked before anything starts.
//!
//! Paths are relative to the recipe's own folder. Start with [`Recipe::read`].

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// A training run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// What is trained for.
    pub stage: StageKind,
    /// Decides initial weights and the order of data.
    #[serde(default)]
    pub seed: u64,
    /// Folder of the run: checkpoints, metrics, the trained model.
    pub output: PathBuf,
    /// What is trained.
    pub model: ModelRecipe,
    /// What it is trained on.
    pub data: DataRecipe,
    /// How long and in which portions.
    pub train: TrainRecipe,
    /// How weights change.
    #[serde(default)]
    pub optimizer: OptimizerRecipe,
    /// How the learning rate changes.
    #[serde(default)]
    pub schedule: ScheduleRecipe,
    /// What is measured on the way.
    #[serde(default)]
    pub evaluate: EvaluateRecipe,
    /// What is written at the end besides checkpoints.
    #[serde(default)]
    pub export: ExportRecipe,
}

/// What a run trains for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StageKind {
    /// The next token of texts.
    Pretrain,
    /// Replies of conversations.
    Sft,
}

/// The model to start from: one that exists, or a new one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecipe {
    /// A Hugging Face folder, a GGUF or `.koudai` file.
    pub from: Option<PathBuf>,
    /// A `tokenizer.json`, or a model that has the tokenizer; for a new model.
    pub tokenizer: Option<PathBuf>,
    /// A Jinja file with the chat template; replaces that of the model.
    pub template: Option<PathBuf>,
    /// The name that the trained model gets.
    pub name: Option<String>,
    /// The shape of a new model with random weights.
    pub new: Option<NewModel>,
}

/// A new model; see [`koudai::Config`] for what the numbers mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct NewModel {
    pub dim: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub ffn_dim: usize,
    pub context_length: usize,
    /// Rows of the embedding beyond the tokenizer's, up to a multiple of this.
    #[serde(default = "one")]
    pub pad_vocab: usize,
    #[serde(default = "rope_theta")]
    pub rope_theta: f64,
    #[serde(default = "norm_eps")]
    pub norm_eps: f32,
    #[serde(default = "yes")]
    pub tied_head: bool,
    #[serde(default)]
    pub qk_norm: bool,
    #[serde(default)]
    pub qkv_bias: bool,
}

/// Texts or conversations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataRecipe {
    /// Where they are.
    pub sources: Vec<Source>,
    /// Where tokenized texts are kept; by default in the run's folder.
    pub cache: Option<PathBuf>,
    /// Share of documents held out for evaluation, where `evaluate.sources` names no others.
    #[serde(default)]
    pub held_out: f64,
}

/// Files of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A file, a folder or a pattern.
    pub path: String,
    /// Member of JSON lines or column of Parquet files: `text`, or `messages` of conversations.
    pub field: Option<String>,
    /// How often it is read in an epoch; 0.5 is every second document.
    #[serde(default = "one_time")]
    pub repeat: f64,
}

/// How long and in which portions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainRecipe {
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens of a row.
    pub length: usize,
    /// Rows that go through the model at once.
    pub rows: usize,
    /// Micro-batches whose gradients make a step.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// Arithmetic of matrix products.
    #[serde(default)]
    pub precision: Precision,
    /// Compute activations again in the backward pass instead of keeping them.
    #[serde(default)]
    pub recompute: bool,
    /// Steps between lines of metrics.
    #[serde(default = "ten")]
    pub log_every: u64,
    /// Steps between checkpoints.
    #[serde(default = "hundred")]
    pub save_every: u64,
    /// Skip a step whose loss is this many standard deviations above the recent mean; 0 never does.
    #[serde(default = "spike")]
    pub spike: f64,
}

/// Arithmetic of matrix products; weights, sums and all else are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of 32.
    Bf16,
}

/// How weights change.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerRecipe {
    /// Which optimizer.
    pub kind: OptimizerKind,
    /// Learning rate at its highest.
    pub lr: f64,
    /// Decay of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Share of matrices taken away each step, times the learning rate.
    pub weight_decay: f64,
    /// Largest norm of the gradient; 0 doesn't clip.
    pub clip: f64,
    /// Momentum of Muon.
    pub momentum: f64,
}

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW for everything.
    Adamw,
    /// Muon for matrices between hidden states, AdamW for the rest.
    Muon,
}

impl Default for OptimizerRecipe {
    fn default() -> OptimizerRecipe {
        OptimizerRecipe {
            kind: OptimizerKind::Adamw,
            lr: 1e-3,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
            momentum: 0.95,
        }
    }
}

/// How the learning rate changes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleRecipe {
    /// Its form after the warm-up.
    pub kind: ScheduleKind,
    /// Share of the steps in which it rises.
    pub warmup: f64,
    /// Share of the steps in which `wsd` falls.
    pub decay: f64,
    /// The lowest rate at the end, as a share of the highest.
    pub floor: f64,
}

/// The form of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Stable, then falling in a line.
    Wsd,
    /// Half a cosine.
    Cosine,
    /// Stable to the end.
    Constant,
}

impl Default for ScheduleRecipe {
    fn default() -> ScheduleRecipe {
        ScheduleRecipe { kind: ScheduleKind::Wsd, warmup: 0.02, decay: 0.2, floor: 0.0 }
    }
}

/// What is measured on the way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateRecipe {
    /// Steps between evaluations; 0 never evaluates.
    pub every: u64,
    /// Rows that are evaluated at most.
    pub rows: usize,
    /// Texts that are evaluated; otherwise those held out of the data.
    pub sources: Vec<Source>,
}

impl Default for EvaluateRecipe {
    fn default() -> EvaluateRecipe {
        EvaluateRecipe { every: 0, rows: 64, sources: Vec::new() }
    }
}

/// What is written at the end besides checkpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportRecipe {
    /// A `.koudai` file.
    pub koudai: Option<PathBuf>,
    /// How the `.koudai` file stores matrices: `keep` (f32), `f16`, `q8`, `q4g32` or `q4g64`.
    pub quant: Option<String>,
    /// A Hugging Face folder.
    pub folder: Option<PathBuf>,
}

fn one() -> usize {
    1
}
fn one_time() -> f64 {
    1.0
}
fn ten() -> u64 {
    10
}
fn hundred() -> u64 {
    100
}
fn spike() -> f64 {
    6.0
}
fn yes() -> bool {
    true
}
fn rope_theta() -> f64 {
    1e4
}
fn norm_eps() -> f32 {
    1e-6
}

impl Recipe {
    /// Reads and checks a recipe. `changes` are `KEY=VALUE` with dotted keys and TOML values, such as
    /// `train.steps=100`.
    pub fn read(path: &Path, changes: &[String]) -> Result<Recipe> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let recipe = Recipe::parse(&text, changes);
        let mut recipe = recipe.with_context(|| path.display().to_string())?;
        recipe.resolve(path.parent().unwrap_or(Path::new("")));
        Ok(recipe)
    }

    /// The same from a text; paths stay as they are.
    pub fn parse(text: &str, changes: &[String]) -> Result<Recipe> {
        let recipe: Recipe = match changes {
            [] => toml::from_str(text).map_err(one_line)?,
            _ => {
                let mut table: toml::Table = toml::from_str(text).map_err(one_line)?;
                for change in changes {
                    let parsed: toml::Table = toml::from_str(change)
                        .map_err(|_| anyhow::anyhow!("`{change}` isn't KEY=VALUE in TOML"))?;
                    merge(&mut table, parsed);
                }
                table.try_into().map_err(one_line)?
            }
        };
        recipe.check()?;
        Ok(recipe)
    }

    fn resolve(&mut self, folder: &Path) {
        let join = |path: &mut PathBuf| *path = folder.join(&path);
        join(&mut self.output);
        for path in [
            &mut self.model.from,
            &mut self.model.tokenizer,
            &mut self.model.template,
            &mut self.data.cache,
            &mut self.export.koudai,
            &mut self.export.folder,
        ] {
            path.as_mut().map(join);
        }
        for source in self.data.sources.iter_mut().chain(&mut self.evaluate.sources) {
            source.path = folder.join(&source.path).to_string_lossy().into_owned();
        }
    }

    fn check(&self) -> Result<()> {
        let positive = |key: &str, value: f64| {
            ensure!(value.is_finite() && value > 0.0, "{key} is {value}, not above 0");
            Ok(())
        };
        let share = |key: &str, value: f64| {
            ensure!((0.0..=1.0).contains(&value), "{key} is {value}, not from 0 to 1");
            Ok(())
        };
        let count = |key: &str, value: u64, most: u64| {
            ensure!((1..=most).contains(&value), "{key} is {value}, not in 1..={most}");
            Ok(())
        };
        match (&self.model.from, &self.model.new) {
            (None, None) => bail!("model needs `from`, a model to start from, or `new`, a new one"),
            (Some(_), Some(_)) => bail!("model has both `from` and `new`"),
            (None, Some(_)) if self.model.tokenizer.is_none() => {
                bail!("model.tokenizer is missing: a new model needs one")
            }
            (Some(_), None) if self.model.tokenizer.is_some() => {
                bail!("model.tokenizer is for new models; `from` has its own")
            }
            _ => {}
        }
        let train = &self.train;
        count("train.steps", train.steps, 1 << 40)?;
        count("train.length", train.length as u64, 1 << 20)?;
        count("train.rows", train.rows as u64, 1 << 16)?;
        count("train.accumulate", train.accumulate as u64, 1 << 16)?;
        count("train.log_every", train.log_every, u64::MAX)?;
        count("train.save_every", train.save_every, u64::MAX)?;
        ensure!(train.spike.is_finite() && train.spike >= 0.0, "train.spike is {}", train.spike);
        let optimizer = &self.optimizer;
        positive("optimizer.lr", optimizer.lr)?;
        positive("optimizer.eps", optimizer.eps)?;
        for (key, value) in [
            ("optimizer.betas[0]", optimizer.betas[0]),
            ("optimizer.betas[1]", optimizer.betas[1]),
            ("optimizer.momentum", optimizer.momentum),
        ] {
            ensure!((0.0..1.0).contains(&value), "{key} is {value}, not from 0 to below 1");
        }
        for (key, value) in
            [("optimizer.weight_decay", optimizer.weight_decay), ("optimizer.clip", optimizer.clip)]
        {
            ensure!(value.is_finite() && value >= 0.0, "{key} is {value}, not 0 or more");
        }
        share("schedule.warmup", self.schedule.warmup)?;
        share("schedule.decay", self.schedule.decay)?;
        share("schedule.floor", self.schedule.floor)?;
        share("data.held_out", self.data.held_out)?;
        ensure!(!self.data.sources.is_empty(), "data.sources is empty");
        for source in self.data.sources.iter().chain(&self.evaluate.sources) {
            positive("repeat of a source", source.repeat)?;
        }
        if self.evaluate.every > 0 {
            count("evaluate.rows", self.evaluate.rows as u64, 1 << 30)?;
            ensure!(
                self.data.held_out > 0.0 || !self.evaluate.sources.is_empty(),
                "evaluate.every is set, but neither evaluate.sources nor data.held_out"
            );
        }
        Ok(())
    }
}

/// A TOML error in one line that still says where.
fn one_line(error: toml::de::Error) -> anyhow::Error {
    let text = error.to_string();
    let mut lines = text.lines();
    let place =
        lines.next().unwrap_or_default().strip_prefix("TOML parse error ").map(str::to_owned);
    match place {
        Some(place) => anyhow::anyhow!("{}, {place}", error.message().replace('\n', " ")),
        None => anyhow::anyhow!("{}", error.message().replace('\n', " ")),
    }
}

/// Puts the values of `changes` into `table`, tables into tables.
fn merge(table: &mut toml::Table, changes: toml::Table) {
    for (key, value) in changes {
        match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}
