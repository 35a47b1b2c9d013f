//! Which configurations are looked at and how they are measured: a TOML file, checked.
//!
//! It makes no models and measures nothing. Start with [`Grid::read`] and [`Grid::candidates`].

use std::collections::HashSet;
use std::path::Path;

use koudai::kernels::Kind;
use koudai::{Activation, Config, LayerConfig, Shape, default_threads};
use serde::{Deserialize, Serialize};

use super::measure::Plan;
use crate::Error;

/// The grid that is used when no other is given.
pub const DEFAULT: &str = include_str!("../../../../recipes/search.toml");

/// Far more than anyone waits for.
const MAX_CANDIDATES: usize = 10_000;
const MAX_NAME: usize = 64;
/// Tokens of a context, and of work, at most.
const MAX_TOKENS: usize = 1 << 20;
/// A byte-level tokenizer needs this many.
const MIN_VOCAB: usize = 256;
/// More than any model for a phone; what a [`Config`] allows beyond it is refused there.
const MAX_WIDTH: usize = 1 << 18;
const MAX_LAYERS: usize = 512;

/// A grid as it is written. Keys are explained in `recipes/search.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grid {
    dims: Vec<usize>,
    layers: Vec<usize>,
    head_dim: usize,
    kv_heads: Option<usize>,
    queries_per_kv: Option<usize>,
    ffn_ratio: f64,
    vocab: usize,
    min_parameters: u64,
    max_parameters: u64,
    shapes: Vec<NamedShape>,
    contexts: Vec<usize>,
    prompt: usize,
    generate: usize,
    repeats: usize,
    threads: Option<usize>,
    memory_mb: Option<u64>,
    /// What a configuration must keep.
    pub limits: Limits,
}

/// What a configuration must keep.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Tokens in the context when the other two are looked at.
    pub context: usize,
    /// Peak memory over the start must be below this, in 10^6 bytes.
    pub peak_mb: f64,
    /// Decoding must be faster than this, in tokens per second.
    pub decode_tps: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedShape {
    name: String,
    dim: usize,
    layers: usize,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    ffn_dim: Option<usize>,
}

impl Default for Grid {
    fn default() -> Grid {
        Grid {
            dims: Vec::new(),
            layers: Vec::new(),
            head_dim: 64,
            kv_heads: None,
            queries_per_kv: None,
            ffn_ratio: 2.857,
            vocab: 65_536,
            min_parameters: 50_000_000,
            max_parameters: 1_300_000_000,
            shapes: Vec::new(),
            contexts: vec![128, 1024, 4096],
            prompt: 512,
            generate: 64,
            repeats: 3,
            threads: None,
            memory_mb: None,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { context: 128, peak_mb: 300.0, decode_tps: 200.0 }
    }
}

/// A configuration that could be built.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Such as `d896-l28`, or what the grid calls it.
    pub name: String,
    /// What decides its speed and memory.
    pub shape: ModelShape,
}

/// What decides speed and memory of a model: a decoder as Qwen 3 is, with the embedding as its head.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ModelShape {
    pub dim: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn_dim: usize,
    pub vocab: usize,
}

impl ModelShape {
    /// The engine's configuration, for contexts of up to `context` tokens.
    pub fn config(&self, context: usize) -> Config {
        let pairs = self.head_dim / 2;
        let layer = LayerConfig {
            n_heads: self.heads,
            n_kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            ffn_dim: self.ffn_dim,
            window: None,
            rope: 0,
            attn_scale: (self.head_dim as f32).sqrt().recip(),
            activation: Activation::Silu,
            qkv_bias: false,
            qk_norm: true,
            post_norms: false,
        };
        Config {
            dim: self.dim,
            vocab_size: self.vocab,
            context_length: context,
            norm_eps: 1e-6,
            embed_scale: 1.0,
            tied_head: true,
            ropes: vec![(0..pairs).map(|i| 1e6f64.powf(-(i as f64) / pairs as f64)).collect()],
            layers: vec![layer; self.layers],
        }
    }

    /// Weights in all tensors.
    pub fn parameters(&self) -> u64 {
        self.config(1).n_parameters()
    }

    /// Bytes of all weights in 4 bits and groups of 64: what a decoded token reads.
    pub fn weight_bytes(&self) -> u64 {
        let bytes = |shape| match shape {
            Shape::Vector(n) => 4 * n,
            Shape::Matrix { rows, cols } => Kind::Q4G64.matrix_bytes(rows, cols).unwrap_or(0),
        };
        self.config(1).tensors().into_iter().map(|(_, shape)| bytes(shape) as u64).sum()
    }

    /// Bytes of the keys and values of a context, in half floats.
    pub fn kv_bytes(&self, context: usize) -> u64 {
        (self.layers * self.kv_heads * self.head_dim * 4) as u64 * context as u64
    }

    fn check(&self) -> Result<(), String> {
        let widths = [self.dim, self.head_dim, self.ffn_dim, self.heads, self.kv_heads];
        if widths.iter().any(|n| !(1..=MAX_WIDTH).contains(n)) {
            return Err(format!("every width must be from 1 to {MAX_WIDTH}"));
        }
        between("layers", self.layers, 1, MAX_LAYERS)?;
        between("vocab", self.vocab, MIN_VOCAB, usize::MAX)?;
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head_dim is {}, not even", self.head_dim));
        }
        let inputs =
            [("dim", self.dim), ("ffn_dim", self.ffn_dim), ("heads × head_dim", self.q_dim())];
        let group = Kind::Q4G64.block();
        for (name, inputs) in inputs {
            if !inputs.is_multiple_of(group) {
                return Err(format!("{name} is {inputs}, not a multiple of {group}"));
            }
        }
        self.config(1).validate().map_err(|e| e.trim_start_matches("layers.0: ").to_owned())
    }

    /// Width of all queries.
    pub(super) fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl Grid {
    /// The default grid.
    pub fn standard() -> Grid {
        Grid::parse(DEFAULT).unwrap_or_else(|(line, why)| panic!("line {line}: {why}"))
    }

    /// Reads and checks a grid; errors name the line or the key.
    pub fn read(path: &Path) -> Result<Grid, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let grid = Grid::parse(&text).map_err(|(line, why)| Error::data(path, line, why))?;
        grid.check().map_err(|why| Error::Settings(path.into(), why))?;
        Ok(grid)
    }

    /// `Err` holds a line and what is wrong there.
    fn parse(text: &str) -> Result<Grid, (usize, String)> {
        toml::from_str(text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start);
            let line = text.bytes().take(start).filter(|b| *b == b'\n').count() + 1;
            (line, e.message().lines().collect::<Vec<_>>().join(" "))
        })
    }

    /// How configurations are measured.
    pub fn plan(&self) -> Plan {
        let mut contexts = self.contexts.clone();
        contexts.sort_unstable();
        Plan {
            contexts,
            prompt: self.prompt,
            generate: self.generate,
            repeats: self.repeats,
            threads: self.threads.unwrap_or_else(default_threads),
        }
    }

    /// The most memory that a measurement may need, in bytes, if the grid says.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_mb.map(|mb| mb.saturating_mul(1_000_000))
    }

    /// The configurations: named shapes first, then the grid's that aren't among them. Fails if there
    /// are none, or if one can't be built.
    pub fn candidates(&self) -> Result<Vec<Candidate>, Error> {
        self.all().map_err(Error::Unsupported)
    }

    fn all(&self) -> Result<Vec<Candidate>, String> {
        let n = self.dims.len().saturating_mul(self.layers.len()).saturating_add(self.shapes.len());
        if n > MAX_CANDIDATES {
            return Err(format!("the grid has {n} configurations, {MAX_CANDIDATES} are allowed"));
        }
        let of_grid = self.dims.iter().flat_map(|&dim| {
            self.layers.iter().map(move |&layers| NamedShape {
                name: format!("d{dim}-l{layers}"),
                dim,
                layers,
                heads: None,
                kv_heads: None,
                head_dim: None,
                ffn_dim: None,
            })
        });
        let mut all: Vec<Candidate> = Vec::new();
        let (mut names, mut shapes) = (HashSet::new(), HashSet::new());
        for (i, named) in self.shapes.iter().cloned().chain(of_grid).enumerate() {
            let explicit = i < self.shapes.len();
            let shape = self.shape(&named);
            shape.check().map_err(|why| format!("configuration `{}`: {why}", named.name))?;
            let wanted = (self.min_parameters..=self.max_parameters).contains(&shape.parameters());
            if !explicit && (!wanted || shapes.contains(&shape)) {
                continue;
            }
            if !names.insert(named.name.clone()) {
                return Err(format!("there are two configurations `{}`", named.name));
            }
            shapes.insert(shape.clone());
            all.push(Candidate { name: named.name, shape });
        }
        match all.is_empty() {
            true => Err("the grid has no configuration with as many parameters as it wants".into()),
            false => Ok(all),
        }
    }

    fn shape(&self, named: &NamedShape) -> ModelShape {
        const FFN_STEP: f64 = 64.0;
        let head_dim = named.head_dim.unwrap_or(self.head_dim);
        let heads = named.heads.unwrap_or(named.dim.checked_div(head_dim).unwrap_or(0));
        let by_rule = match self.queries_per_kv {
            Some(queries) => heads / queries.max(1),
            None => self.kv_heads.unwrap_or(2),
        };
        // As floats become integers: nothing below 0, nothing above the largest.
        let ffn = (named.dim as f64 * self.ffn_ratio / FFN_STEP).round() * FFN_STEP;
        ModelShape {
            dim: named.dim,
            layers: named.layers,
            heads,
            kv_heads: named.kv_heads.unwrap_or(by_rule),
            head_dim,
            ffn_dim: named.ffn_dim.unwrap_or(ffn as usize),
            vocab: self.vocab,
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.kv_heads.is_some() && self.queries_per_kv.is_some() {
            return Err("give kv_heads or queries_per_kv, not both".into());
        }
        if let Some(queries) = self.queries_per_kv {
            between("queries_per_kv", queries, 1, MAX_WIDTH)?;
        }
        positive("ffn_ratio", self.ffn_ratio)?;
        positive("limits.peak_mb", self.limits.peak_mb)?;
        positive("limits.decode_tps", self.limits.decode_tps)?;
        between("prompt", self.prompt, 1, MAX_TOKENS)?;
        between("generate", self.generate, 1, MAX_TOKENS)?;
        between("repeats", self.repeats, 1, 1000)?;
        if let Some(threads) = self.threads {
            between("threads", threads, 1, 256)?;
        }
        between("contexts", self.contexts.len(), 1, 16).map_err(|e| format!("{e}, in number"))?;
        for &context in &self.contexts {
            between("contexts", context, 1, MAX_TOKENS)?;
        }
        if self.contexts.iter().collect::<HashSet<_>>().len() < self.contexts.len() {
            return Err("contexts has a number twice".into());
        }
        if !self.contexts.contains(&self.limits.context) {
            return Err(format!("limits.context is {}, not in contexts", self.limits.context));
        }
        for NamedShape { name, .. } in &self.shapes {
            let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '"');
            if !(1..=MAX_NAME).contains(&name.len()) || !name.chars().all(plain) {
                let rule = format!("1 to {MAX_NAME} letters, digits and signs but comma and quote");
                return Err(format!("a shape's name must be {rule}: {name:?}"));
            }
        }
        self.all().map(drop)
    }
}

fn between(key: &str, value: usize, low: usize, high: usize) -> Result<(), String> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false if high == usize::MAX => Err(format!("{key} is {value}, not at least {low}")),
        false => Err(format!("{key} is {value}, not from {low} to {high}")),
    }
}

fn positive(key: &str, value: f64) -> Result<(), String> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(format!("{key} is {value}, not above 0")),
    }
}
