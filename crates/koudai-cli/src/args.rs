//! Options that several commands share, and what they mean to the engine.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use koudai::file::Defaults;
use koudai::{
    Engine, GenerateParams, KvKind, OpenOptions, Precision, SamplingParams, Session,
    SessionOptions, Trust, Verify,
};
use koudai_convert::{Cache, PullOptions, models, sign};

use crate::{interrupt, output};

/// Which model.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// A .koudai file, a .gguf file or Hugging Face folder (converted on first use), or a known name
    #[arg(short, long, value_name = "MODEL", default_value = models::DEFAULT)]
    pub(crate) model: String,
}

impl ModelArgs {
    /// The .koudai file, downloaded or converted if need be.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        self.path_with(&PullOptions::default())
    }

    /// The same, converted as `options` say.
    pub(crate) fn path_with(&self, options: &PullOptions) -> anyhow::Result<PathBuf> {
        let mut progress = output::Progress::bytes();
        let path = koudai_convert::resolve(
            &Cache::from_env()?,
            &self.model,
            options,
            &mut |known| {
                let size = known.bytes.map(|b| output::megabytes(b) + ", ").unwrap_or_default();
                let (name, license) = (known.name, known.license);
                eprintln!("{name} isn't here yet: downloading it, once ({size}license {license})");
                true
            },
            &mut |p| crate::commands::pull::show(&mut progress, p),
        )?;
        Ok(path)
    }
}

/// Whose signature a file must have.
#[derive(Args)]
pub(crate) struct TrustArgs {
    /// Open only files signed by this public key; may be repeated, and KOUDAI_TRUST adds more
    #[arg(long, value_name = "KEY.pub")]
    trust: Vec<PathBuf>,
}

impl TrustArgs {
    pub(crate) fn trust(&self) -> anyhow::Result<Trust> {
        let always = std::env::var_os("KOUDAI_TRUST").unwrap_or_default();
        let always = std::env::split_paths(&always).filter(|path| !path.as_os_str().is_empty());
        let keys = self.trust.iter().cloned().chain(always);
        let keys: Vec<_> = keys.map(|path| sign::read_public(&path)).collect::<Result<_, _>>()?;
        Ok(if keys.is_empty() { Trust::Any } else { Trust::Signed(keys) })
    }
}

/// When weights are compared with their hashes.
#[derive(Clone, Copy, ValueEnum)]
enum VerifyArg {
    /// Only by `inspect --verify`
    OnRequest,
    /// Each layer before it is first used
    FirstUse,
    /// All before the start
    Open,
}

/// How to run it.
#[derive(Args)]
pub(crate) struct EngineArgs {
    /// Threads [default: one for each physical core]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Refuse to use more memory than this
    #[arg(long, value_name = "MB")]
    memory_limit: Option<u64>,
    #[command(flatten)]
    trust: TrustArgs,
    /// When to compare weights with their hashes; with trusted keys at least on first use
    #[arg(long, value_name = "WHEN", value_enum, default_value = "on-request")]
    check_weights: VerifyArg,
}

impl EngineArgs {
    pub(crate) fn options(&self) -> anyhow::Result<OpenOptions> {
        Ok(OpenOptions {
            threads: self.threads,
            memory_limit: self.memory_limit.map(|mb| mb.saturating_mul(1_000_000)),
            trust: self.trust.trust()?,
            verify: match self.check_weights {
                VerifyArg::OnRequest => Verify::OnRequest,
                VerifyArg::FirstUse => Verify::FirstUse,
                VerifyArg::Open => Verify::Open,
            },
        })
    }

    pub(crate) fn open(&self, model: &ModelArgs) -> anyhow::Result<Engine> {
        Ok(Engine::open(&model.path()?, &self.options()?)?)
    }
}

/// Arithmetic with quantized weights.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ActivationArg {
    /// Activations in some 15 bits
    Auto,
    /// Activations in 8 bits: faster on long prompts
    Int8,
    /// Exact weights, f32 activations: for measuring
    F32,
}

impl From<ActivationArg> for Precision {
    fn from(arg: ActivationArg) -> Precision {
        match arg {
            ActivationArg::Auto => Precision::Auto,
            ActivationArg::Int8 => Precision::Int8,
            ActivationArg::F32 => Precision::F32,
        }
    }
}

/// How keys and values are stored.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum KvArg {
    F16,
    Q8,
}

impl From<KvArg> for KvKind {
    fn from(arg: KvArg) -> KvKind {
        match arg {
            KvArg::F16 => KvKind::F16,
            KvArg::Q8 => KvKind::Q8,
        }
    }
}

/// A session's size and arithmetic.
#[derive(Args)]
pub(crate) struct SessionArgs {
    /// Tokens of context [default: the model's, at most 4096]
    #[arg(long, value_name = "N", value_parser = above_zero, allow_negative_numbers = true)]
    pub(crate) ctx: Option<usize>,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value = "f16")]
    kv: KvArg,
    /// Arithmetic with quantized weights
    #[arg(long, value_enum, default_value = "auto")]
    activation: ActivationArg,
}

impl SessionArgs {
    pub(crate) fn options(&self) -> SessionOptions {
        SessionOptions { context: self.ctx, kv: self.kv.into(), precision: self.activation.into() }
    }

    /// A session that Ctrl-C cancels.
    pub(crate) fn open(&self, engine: &Engine) -> anyhow::Result<Session> {
        let mut session = match (Session::new(engine, &self.options()), self.ctx) {
            (Err(error @ koudai::Error::Parameter(_)), Some(ctx)) => {
                return Err(error).with_context(|| format!("--ctx {ctx}"));
            }
            (result, _) => result?,
        };
        session.set_cancel_token(interrupt::token());
        Ok(session)
    }
}

/// How to choose tokens and when to stop.
#[derive(Args)]
pub(crate) struct GenerateArgs {
    /// Tokens to generate at most
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Randomness; 0 takes the likeliest token always
    #[arg(long, value_name = "T", value_parser = zero_or_more, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Keep the likeliest tokens that together reach P
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the likeliest
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Make tokens of the context less likely; 1 is off
    #[arg(long, value_name = "R", value_parser = positive, allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtract from the logits of generated tokens
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = number, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtract from the logits of generated tokens, once for each time
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = number, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Add to the logit of a token, as ID=X; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Stop at this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl GenerateArgs {
    /// What was asked for; what wasn't comes from the model's advice, then from `fallback`.
    pub(crate) fn params(
        &self,
        advice: &Defaults,
        fallback: &SamplingParams,
        max_tokens: usize,
    ) -> GenerateParams {
        let or = |given: Option<f32>, advised: Option<f32>, otherwise: f32| {
            given.or(advised).unwrap_or(otherwise)
        };
        let sampling = SamplingParams {
            temperature: or(self.temperature, advice.temperature, fallback.temperature),
            top_k: self.top_k.or(advice.top_k.map(|k| k as usize)).unwrap_or(fallback.top_k),
            top_p: or(self.top_p, advice.top_p, fallback.top_p),
            min_p: or(self.min_p, advice.min_p, fallback.min_p),
            repetition_penalty: or(
                self.repetition_penalty,
                advice.repetition_penalty,
                fallback.repetition_penalty,
            ),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random_seed),
        };
        GenerateParams {
            max_tokens: self.max_tokens.unwrap_or(max_tokens),
            sampling,
            stop: self.stop.clone(),
            ignore_end: false,
        }
    }
}

/// A parser of numbers for which `ok` holds.
fn checked<T: std::str::FromStr>(
    text: &str,
    ok: impl Fn(&T) -> bool,
    what: &str,
) -> Result<T, String> {
    text.parse().ok().filter(ok).ok_or_else(|| format!("it must be {what}"))
}

fn zero_or_more(text: &str) -> Result<f32, String> {
    checked(text, |v: &f32| v.is_finite() && *v >= 0.0, "0 or more")
}

/// A finite number above 0.
pub(crate) fn positive(text: &str) -> Result<f32, String> {
    checked(text, |v: &f32| v.is_finite() && *v > 0.0, "above 0")
}

fn share(text: &str) -> Result<f32, String> {
    checked(text, |v| (0.0..=1.0).contains(v), "from 0 to 1")
}

fn number(text: &str) -> Result<f32, String> {
    checked(text, |v: &f32| v.is_finite(), "a number")
}

pub(crate) fn threads(text: &str) -> Result<usize, String> {
    checked(text, |n| (1..=256).contains(n), "1 to 256")
}

/// A whole number above 0.
pub(crate) fn above_zero(text: &str) -> Result<usize, String> {
    checked(text, |n| *n > 0, "a number above 0")
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, x)| Some((id.parse().ok()?, x.parse().ok()?)));
    parts
        .filter(|(_, x): &(u32, f32)| !x.is_nan())
        .ok_or_else(|| "it must be ID=X, such as 42=-1.5".into())
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher is seeded by the system.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// `KEY=VALUE`, neither empty.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(key, value)| !key.is_empty() && !value.is_empty())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| "it must be KEY=VALUE".into())
}

/// Token ids as `1,2,3`.
pub(crate) fn ids(text: &str) -> anyhow::Result<Vec<u32>> {
    text.split([',', ' '])
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().with_context(|| format!("`{part}` is not a token id")))
        .collect()
}

/// Text of a file, or of standard input for `-`. What isn't UTF-8 is an error that says where.
pub(crate) fn read_text(path: &str) -> anyhow::Result<String> {
    let bytes = if path == "-" {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes)?;
        bytes
    } else {
        std::fs::read(path).with_context(|| path.to_owned())?
    };
    String::from_utf8(bytes).map_err(|e| {
        anyhow::anyhow!("{path}: byte {} is not UTF-8 text", e.utf8_error().valid_up_to())
    })
}
