//! Golden prompts: what a model said when it was packed, to be compared where it runs.
//!
//! Prompts are run in f32 arithmetic and the likeliest tokens recorded with their log-probabilities,
//! which every machine must find within a tolerance: between instruction sets, sums are ordered
//! differently. For those it was recorded on, there is also a hash of every logit's bits. It says
//! nothing about speed or about how good the model is. Start with [`Golden::record`] and
//! [`Golden::check`].

use crate::codec::{Decoder, Encoder};
use crate::engine::Engine;
use crate::file::{FileError, ModelFile, section};
use crate::sampler::log_sum_exp;
use crate::session::{CancelToken, Session, SessionOptions};
use crate::tokenizer::Special;
use crate::{Error, Precision};

/// Prompts of a file at most.
pub const MAX_PROMPTS: usize = 64;
/// Tokens of a prompt at most.
pub const MAX_PROMPT_TOKENS: usize = 512;
/// Tokens that follow a prompt at most.
pub const MAX_STEPS: usize = 64;
/// Tokens that follow a prompt when it is recorded.
const STEPS: usize = 8;
/// Likeliest tokens recorded for each.
const TOP: usize = 5;
/// Difference of log-probabilities that is allowed, in nats.
const TOLERANCE: f32 = 0.01;

/// Recorded prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct Golden {
    /// Difference of log-probabilities that is allowed, in nats.
    pub tolerance: f32,
    /// For each instruction set it was recorded on: its name, and BLAKE3 of all logits in order.
    pub hashes: Vec<(String, [u8; 32])>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
}

/// One prompt and what followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its text, in which control tokens may be spelled.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// For each token that followed, the likeliest tokens with their log-probabilities, likeliest
    /// first: that one followed.
    pub steps: Vec<Vec<(u32, f32)>>,
}

/// How close a model came to what was recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    /// Prompts compared.
    pub prompts: usize,
    /// The largest difference of a log-probability, in nats.
    pub largest: f64,
    /// Whether every bit of every logit is the same; `None` if nothing was recorded on this
    /// instruction set. It may be `false` after a change of kernels that is none of the model.
    pub same_bits: Option<bool>,
}

impl Golden {
    /// What a file has recorded, if anything.
    pub fn of(file: &ModelFile) -> Result<Option<Golden>, FileError> {
        let Some(bytes) = file.section(section::GOLDEN) else { return Ok(None) };
        let malformed = || FileError::Section(section::GOLDEN, "it is malformed".into());
        Golden::decode(&bytes).ok_or_else(malformed).map(Some)
    }

    /// Runs prompts and records what follows. Fails if there is no prompt or too many, and on one
    /// that is empty, too long, or doesn't fit the model's context.
    pub fn record(
        engine: &Engine,
        prompts: &[String],
        cancel: &CancelToken,
    ) -> Result<Golden, Error> {
        if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
            let why = format!("{} golden prompts; 1 to {MAX_PROMPTS} are allowed", prompts.len());
            return Err(Error::Parameter(why));
        }
        let mut recorded = Vec::with_capacity(prompts.len());
        let mut hasher = blake3::Hasher::new();
        for text in prompts {
            let ids = engine.tokenizer().encode_prompt(text, Special::Parse);
            if ids.len() > MAX_PROMPT_TOKENS {
                let n = ids.len();
                let why = format!("a golden prompt of {n} tokens; {MAX_PROMPT_TOKENS} are allowed");
                return Err(Error::Parameter(why));
            }
            let mut steps = Vec::with_capacity(STEPS);
            walk(engine, &ids, STEPS, cancel, |_, logits| {
                hash_logits(&mut hasher, logits);
                let top = top(logits);
                let next = top.first().map(|t| t.0).ok_or(Error::NoCandidate)?;
                steps.push(top);
                Ok(next)
            })?;
            recorded.push(Prompt { text: text.clone(), ids, steps });
        }
        let hashes = vec![(engine.isa().to_owned(), *hasher.finalize().as_bytes())];
        Ok(Golden { tolerance: TOLERANCE, hashes, prompts: recorded })
    }

    /// Runs the prompts and compares. Fails on a difference beyond the tolerance, naming it.
    pub fn check(&self, engine: &Engine, cancel: &CancelToken) -> Result<Checked, Error> {
        let mut largest = 0.0f64;
        let mut hasher = blake3::Hasher::new();
        for (i, prompt) in self.prompts.iter().enumerate() {
            let differs = |why: String| {
                let why = format!("prompt {}: {why}", i + 1);
                Error::File(engine.path().into(), FileError::Section(section::GOLDEN, why))
            };
            if engine.tokenizer().encode_prompt(&prompt.text, Special::Parse) != prompt.ids {
                return Err(differs("its tokens are others than recorded".into()));
            }
            walk(engine, &prompt.ids, prompt.steps.len(), cancel, |step, logits| {
                hash_logits(&mut hasher, logits);
                let difference = self.compare(&prompt.steps[step], logits);
                largest = largest
                    .max(difference.map_err(|why| differs(format!("after {step} tokens, {why}")))?);
                Ok(prompt.steps[step][0].0)
            })?;
        }
        let hash = *hasher.finalize().as_bytes();
        let recorded = self.hashes.iter().find(|(isa, _)| isa == engine.isa());
        let same_bits = recorded.map(|(_, recorded)| *recorded == hash);
        Ok(Checked { prompts: self.prompts.len(), largest, same_bits })
    }

    /// The largest difference of a recorded log-probability, or what is too different.
    fn compare(&self, recorded: &[(u32, f32)], logits: &[f32]) -> Result<f64, String> {
        let tolerance = self.tolerance as f64;
        let lse = log_sum_exp(logits);
        let mut largest = 0.0f64;
        for (id, wanted) in recorded {
            let found = *logits.get(*id as usize).ok_or(format!("there is no token {id}"))? as f64;
            let difference = (found - lse - *wanted as f64).abs();
            if difference.is_nan() || difference > tolerance {
                return Err(format!(
                    "token {id} has log-probability {:.4} and should have {wanted:.4}",
                    found - lse
                ));
            }
            largest = largest.max(difference);
        }
        // Another token may only be likeliest if it was nearly so.
        let best = top(logits).first().map(|t| t.0);
        let close = |t: &&(u32, f32)| (recorded[0].1 - t.1) as f64 <= 2.0 * tolerance;
        match recorded.iter().filter(close).any(|t| Some(t.0) == best) {
            true => Ok(largest),
            false => Err(format!("the likeliest token isn't {}", recorded[0].0)),
        }
    }

    /// Takes over what was recorded on other instruction sets, if the same prompts were followed by
    /// the same tokens there.
    pub fn join(&mut self, earlier: &Golden) {
        let tokens = |golden: &Golden| -> Vec<(Vec<u32>, Vec<u32>)> {
            let follow = |p: &Prompt| p.steps.iter().map(|top| top[0].0).collect();
            golden.prompts.iter().map(|p| (p.ids.clone(), follow(p))).collect()
        };
        if tokens(self) == tokens(earlier) {
            let isa = self.hashes[0].0.clone();
            self.hashes.extend(earlier.hashes.iter().filter(|h| h.0 != isa).cloned());
        }
    }

    /// The section's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u32(1);
        e.f32(self.tolerance);
        e.u32(self.hashes.len() as u32);
        for (isa, hash) in &self.hashes {
            e.str(isa);
            e.0.extend(hash);
        }
        e.u32(self.prompts.len() as u32);
        for prompt in &self.prompts {
            e.str(&prompt.text);
            e.u32(prompt.ids.len() as u32);
            prompt.ids.iter().for_each(|id| e.u32(*id));
            e.u32(prompt.steps.len() as u32);
            for top in &prompt.steps {
                e.u32(top.len() as u32);
                for (id, logprob) in top {
                    e.u32(*id);
                    e.f32(*logprob);
                }
            }
        }
        e.0
    }

    /// Reads a section; `None` if it is malformed or beyond the limits.
    pub fn decode(bytes: &[u8]) -> Option<Golden> {
        let mut d = Decoder(bytes);
        if d.u32()? != 1 {
            return None;
        }
        let tolerance = d.f32().filter(|t| (0.0..=1.0).contains(t))?;
        let hashes = d.list(4 + 32, |d| Some((d.str()?.to_owned(), d.array()?)))?;
        let prompts = d.list(12, |d| {
            let text = d.str()?.to_owned();
            let ids = d.list(4, Decoder::u32)?;
            let steps = d.list(4, |d| d.list(8, |d| Some((d.u32()?, d.f32()?))))?;
            let sizes = (1..=MAX_PROMPT_TOKENS).contains(&ids.len())
                && (1..=MAX_STEPS).contains(&steps.len());
            let tops = steps.iter().all(|top| (1..=TOP).contains(&top.len()));
            (sizes && tops).then_some(Prompt { text, ids, steps })
        })?;
        d.end()?;
        (1..=MAX_PROMPTS).contains(&prompts.len()).then_some(Golden { tolerance, hashes, prompts })
    }
}

/// Runs a prompt in f32 arithmetic and `n_steps` tokens after it: `each` is given the logits for
/// each of them, and gives the token.
fn walk(
    engine: &Engine,
    ids: &[u32],
    n_steps: usize,
    cancel: &CancelToken,
    mut each: impl FnMut(usize, &[f32]) -> Result<u32, Error>,
) -> Result<(), Error> {
    // The last token isn't run.
    let context = (ids.len() + n_steps).saturating_sub(1);
    let options = SessionOptions {
        context: Some(context.max(1)),
        precision: Precision::F32,
        ..Default::default()
    };
    let mut session = Session::new(engine, &options)?;
    session.set_cancel_token(cancel.clone());
    let mut next = each(0, session.append(ids)?)?;
    for step in 1..n_steps {
        next = each(step, session.append(&[next])?)?;
    }
    Ok(())
}

/// The likeliest tokens with their log-probabilities, likeliest first.
fn top(logits: &[f32]) -> Vec<(u32, f32)> {
    let lse = log_sum_exp(logits);
    let mut all: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]);
    all.sort_unstable_by(|a, b| by_logit(a, b).then(a.cmp(b)));
    all.truncate(TOP);
    all.iter().map(|id| (*id, (logits[*id as usize] as f64 - lse) as f32)).collect()
}

fn hash_logits(hasher: &mut blake3::Hasher, logits: &[f32]) {
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    hasher.update(&bytes);
}
