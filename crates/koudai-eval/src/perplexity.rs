//! How well a model predicts a text: perplexity, bits per byte, and distance to a reference.
//!
//! The text is tokenized as a whole, without special parsing, and cut into windows of `context`
//! tokens that don't overlap; each starts with the beginning-of-sequence token if the model wants
//! one. Every token of a window but the first is predicted from those before it in the window.

use koudai::sampler::log_sum_exp;
use koudai::tokenizer::Special;
use koudai::{Engine, Error, Precision, Session, SessionOptions};

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens in a window.
    pub context: usize,
    /// Tokens to use at most, over all windows.
    pub limit_tokens: Option<usize>,
    /// Sessions of the model that is measured.
    pub session: SessionOptions,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Predicted tokens.
    pub tokens: usize,
    /// Bytes of text that these tokens stand for.
    pub bytes: usize,
    /// exp of the mean negative log-likelihood per token.
    pub perplexity: f64,
    /// Mean negative log2-likelihood per byte: comparable across vocabularies.
    pub bits_per_byte: f64,
    /// Distance to the reference, if there is one.
    pub distance: Option<Distance>,
}

/// How far a model's predictions are from a reference's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    /// Mean KL divergence of the model from the reference, in nats.
    pub kl: f64,
    /// Share of positions where both find the same token likeliest.
    pub same_top: f64,
    /// The reference's perplexity.
    pub reference_perplexity: f64,
}

/// Cuts a text into windows of tokens.
pub fn windows(engine: &Engine, text: &str, options: &Options) -> Vec<Vec<u32>> {
    let tokenizer = engine.tokenizer();
    let ids = tokenizer.encode(text, Special::Text);
    let first: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
    let size = options.context.saturating_sub(first.len()).max(1);
    let mut left = options.limit_tokens.unwrap_or(usize::MAX);
    let mut windows = Vec::new();
    for chunk in ids.chunks(size) {
        let n = (first.len() + chunk.len()).min(left);
        if n < 2 {
            break;
        }
        left -= n;
        windows.push(first.iter().chain(chunk).copied().take(n).collect());
    }
    windows
}

/// Runs the windows through a model and, in step, through a reference in f32 arithmetic.
///
/// `each(logits)` is called with the logits of every predicted position, in order, and may fail.
/// `progress(done)` is told the tokens done so far.
pub fn measure<E: From<Error>>(
    engine: &Engine,
    reference: Option<&Engine>,
    windows: &[Vec<u32>],
    options: &Options,
    mut each: impl FnMut(&[f32]) -> Result<(), E>,
    mut progress: impl FnMut(usize),
) -> Result<Perplexity, E> {
    // A few positions at a time: with a large vocabulary, logits of a window would fill memory.
    const STEP: usize = 8;
    let context = Some(windows.iter().map(Vec::len).max().unwrap_or(1));
    let mut session = Session::new(engine, &SessionOptions { context, ..options.session.clone() })?;
    let exact = SessionOptions { context, precision: Precision::F32, ..Default::default() };
    let mut exact = reference.map(|r| Session::new(r, &exact)).transpose()?;
    let mut nll = 0.0;
    let (mut n, mut bytes, mut done) = (0, 0, 0);
    let (mut kl, mut same, mut exact_nll) = (0.0, 0, 0.0);
    for window in windows {
        session.rewind(0);
        if let Some(exact) = &mut exact {
            exact.rewind(0);
        }
        bytes += engine.tokenizer().decode_bytes(&window[1..], false).len();
        let inputs = &window[..window.len() - 1];
        for (i, tokens) in inputs.chunks(STEP).enumerate() {
            let targets = &window[i * STEP + 1..];
            let mut wanted = Vec::new();
            if let Some(exact) = &mut exact {
                exact.append_each(tokens, |_, logits| wanted.push(logits.to_vec()))?;
            }
            let mut failed = None;
            session.append_each(tokens, |r, logits| {
                let lse = log_sum_exp(logits);
                nll += lse - logits[targets[r] as usize] as f64;
                n += 1;
                if let Some(reference) = wanted.get(r) {
                    let (divergence, lse_r) = kl_divergence(reference, logits, lse);
                    kl += divergence;
                    exact_nll += lse_r - reference[targets[r] as usize] as f64;
                    same += (top(reference) == top(logits)) as usize;
                }
                if failed.is_none() {
                    failed = each(logits).err();
                }
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            done += tokens.len();
            progress(done);
        }
    }
    let mean = |sum: f64| if n == 0 { f64::NAN } else { sum / n as f64 };
    Ok(Perplexity {
        tokens: n,
        bytes,
        perplexity: mean(nll).exp(),
        bits_per_byte: nll / std::f64::consts::LN_2 / bytes.max(1) as f64,
        distance: reference.map(|_| Distance {
            kl: mean(kl),
            same_top: mean(same as f64),
            reference_perplexity: mean(exact_nll).exp(),
        }),
    })
}

/// KL(reference ‖ model) in nats, and the reference's log Σ exp.
fn kl_divergence(reference: &[f32], model: &[f32], lse: f64) -> (f64, f64) {
    let lse_r = log_sum_exp(reference);
    let terms = reference.iter().zip(model).map(|(r, m)| {
        let (log_r, log_m) = (*r as f64 - lse_r, *m as f64 - lse);
        if log_r < -60.0 { 0.0 } else { log_r.exp() * (log_r - log_m) }
    });
    (terms.sum(), lse_r)
}

fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best
}
