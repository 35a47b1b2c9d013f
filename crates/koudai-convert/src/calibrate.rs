//! Which inputs of a model's matrices matter: their mean squares, measured by running a text through the
//! engine.
//!
//! An error in a weight costs as much as the inputs that it meets are large, so a matrix's columns count
//! by E[x²]. That is all that is kept of the text; what is done with it is in [`crate::quantize`]. Start
//! with [`Calibration::new`].

use std::collections::BTreeMap;

use koudai::tokenizer::Special;
use koudai::{Config, Engine, Role, Session, SessionOptions, TensorId};

use crate::convert::{Stage, Watch, tell};
use crate::error::Error;

/// Tokens in a window.
const WINDOW: usize = 512;
/// Fewer tokens than this say next to nothing about a matrix.
const MIN_TOKENS: usize = 128;
/// Added to what each column counts, as a share of the mean: a column that the text hardly used still
/// counts.
const FLOOR: f64 = 0.01;

/// How much the columns of a model's matrices count.
#[derive(Clone, Debug)]
pub struct Calibration {
    config: Config,
    tokens: usize,
    /// By the matrix under which the engine shows inputs: what each column counts, 1 + [`FLOOR`] on
    /// average.
    importance: BTreeMap<TensorId, Vec<f32>>,
}

impl Calibration {
    /// Lets `engine`, which runs the model before it is quantized, read about `tokens` tokens of `texts`:
    /// as many of each, in windows spread evenly over it. Fails if they are too short to be of use.
    /// `progress` is told the tokens read.
    pub fn new(
        engine: &Engine,
        texts: &[String],
        tokens: usize,
        progress: &mut Watch<'_>,
    ) -> Result<Calibration, Error> {
        let windows = windows(engine, texts, tokens);
        let total: usize = windows.iter().map(Vec::len).sum();
        if total < MIN_TOKENS {
            return Err(Error::Input(format!(
                "the calibration text has {total} tokens, it needs {MIN_TOKENS} at least"
            )));
        }
        let mut squares: BTreeMap<TensorId, Vec<f64>> = BTreeMap::new();
        let mut observe = |id, row: &[f32]| {
            let sums = squares.entry(id).or_insert_with(|| vec![0.0; row.len()]);
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += (*x as f64).powi(2));
        };
        let context = WINDOW.min(engine.config().context_length);
        let options = SessionOptions { context: Some(context), ..SessionOptions::default() };
        let mut session = Session::new(engine, &options).map_err(Error::Model)?;
        let mut done = 0;
        for window in &windows {
            session.rewind(0);
            for tokens in window.chunks(128) {
                tell(progress, Stage::Calibrate, done as u64, total as u64)?;
                session.append_observed(tokens, &mut observe).map_err(Error::Model)?;
                done += tokens.len();
            }
        }
        let importance = squares.into_iter().map(|(id, sums)| (id, relative(&sums))).collect();
        Ok(Calibration { config: engine.config().clone(), tokens: total, importance })
    }

    /// Tokens that were read.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The configuration of the model that read them.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// How much each column of a matrix counts; `None` for an embedding that isn't the head too: its rows
    /// are looked up, not multiplied.
    pub(crate) fn importance(&self, id: TensorId) -> Option<&[f32]> {
        let role = match id.role {
            Role::AttnK | Role::AttnV => Role::AttnQ,
            Role::FfnUp => Role::FfnGate,
            Role::Embed if self.config.tied_head => Role::Head,
            role => role,
        };
        self.importance.get(&TensorId { role, ..id }).map(Vec::as_slice)
    }
}

/// Windows of tokens from all over the texts.
fn windows(engine: &Engine, texts: &[String], tokens: usize) -> Vec<Vec<u32>> {
    let tokenizer = engine.tokenizer();
    let first: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
    let size = WINDOW.min(engine.config().context_length);
    // More bytes than the tokens of a window stand for, but in odd text.
    let reach = size * 16;
    let mut windows = Vec::new();
    for text in texts {
        let count = (tokens / texts.len()).div_ceil(size);
        let mut start = 0;
        for i in 0..count {
            start = floor(text, start.max(text.len() / count * i));
            let part = &text[start..floor(text, start + reach)];
            if part.is_empty() {
                break;
            }
            let ids = tokenizer.encode(part, Special::Text);
            let window: Vec<u32> = first.iter().chain(&ids).copied().take(size).collect();
            start += tokenizer.decode_bytes(&window[first.len()..], true).len();
            windows.push(window);
        }
    }
    windows
}

/// The last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// Sums over their mean, and [`FLOOR`] more; all alike if the mean is 0 or not finite.
fn relative(sums: &[f64]) -> Vec<f32> {
    let mean = sums.iter().sum::<f64>() / sums.len() as f64;
    if !mean.is_normal() {
        return vec![1.0; sums.len()];
    }
    sums.iter().map(|sum| (sum / mean + FLOOR) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_by_their_share_and_never_nothing() {
        assert_eq!(relative(&[0.0, 3.0, 1.0, 0.0]), [0.01, 3.01, 1.01, 0.01]);
        for sums in [[0.0; 3], [f64::INFINITY, 1.0, 2.0], [f64::NAN, 1.0, 2.0]] {
            assert_eq!(relative(&sums), [1.0; 3]);
        }
    }

    #[test]
    fn cuts_fall_between_characters() {
        let text = "aé好";
        let cuts: Vec<usize> = (0..9).map(|at| floor(text, at)).collect();
        assert_eq!(cuts, [0, 1, 1, 3, 3, 3, 6, 6, 6]);
    }
}
