//! Models with random weights of any configuration, written straight to `.koudai`.
//!
//! Speed and memory don't depend on weight values, and tests of the engine need models of every
//! shape: both start here. The same specification gives the same bytes on every machine. Start with
//! [`write()`].

use std::path::Path;

use koudai::file::{FileWriter, TensorHeader, section};
use koudai::tokenizer::{Kind as TokenKind, Matched, Normalizer, Pretokenizer, Spec, Token};
use koudai::{CancelToken, Config, Shape};
use koudai_kernels::{Kind, PANEL_ROWS, PanelWriter};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::error::Error;
use crate::weights::{Method, fitting, put_row};

/// What to write.
#[derive(Clone, Debug)]
pub struct SyntheticSpec {
    /// The configuration.
    pub config: Config,
    /// How matrices are stored, where their columns fit; otherwise the nearest kind that does.
    pub kind: Kind,
    /// Another seed gives other weights.
    pub seed: u64,
    /// The tokenizer; see [`byte_tokenizer`].
    pub tokenizer: Spec,
    /// The chat template, if the model is to have one.
    pub template: Option<String>,
}

/// Standard deviation of matrices.
const WEIGHT_STD: f32 = 0.02;
/// Standard deviation of norms around 1.
const NORM_STD: f32 = 0.05;

/// Writes the model. Panics if the configuration is invalid.
///
/// Matrices are N(0, 0.02), quantized by minimum and maximum; norms are near 1, biases near 0.
pub fn write(path: &Path, spec: &SyntheticSpec) -> Result<(), Error> {
    write_until(path, spec, &CancelToken::default())
}

/// The same, unless `cancel` ends it: [`Error::Cancelled`], and nothing is left.
pub fn write_until(path: &Path, spec: &SyntheticSpec, cancel: &CancelToken) -> Result<(), Error> {
    if let Err(why) = spec.config.validate() {
        panic!("the configuration is invalid: {why}");
    }
    let mut file = FileWriter::create(path)?;
    file.config(&spec.config)?;
    let tokenizer = spec.tokenizer.to_bytes().map_err(|e| Error::Tokenizer(e.into()))?;
    file.section(section::TOKENIZER, true, &tokenizer)?;
    if let Some(template) = &spec.template {
        file.section(section::TEMPLATE, false, template.as_bytes())?;
    }
    let pairs = [("name", "synthetic"), ("architecture", "synthetic")];
    file.meta(&pairs.map(|(k, v)| (k.to_owned(), v.to_owned())))?;
    let headers: Vec<TensorHeader> = spec
        .config
        .tensors()
        .into_iter()
        .map(|(id, shape)| {
            let kind = match shape {
                Shape::Vector(_) => Kind::F32,
                Shape::Matrix { cols, .. } => fitting(spec.kind, cols),
            };
            TensorHeader { id, kind }
        })
        .collect();
    let mut noise = Noise(Pcg64Mcg::seed_from_u64(spec.seed));
    file.tensors(&spec.config, &headers, |header, shape, sink| -> Result<(), Error> {
        let (rows, cols) = match shape {
            Shape::Vector(n) => {
                let center = if crate::arch::is_norm(header.id.role) { 1.0 } else { 0.0 };
                let values = (0..n).flat_map(|_| (center + noise.next(NORM_STD)).to_le_bytes());
                return Ok(sink.write(&values.collect::<Vec<u8>>())?);
            }
            Shape::Matrix { rows, cols } => (rows, cols),
        };
        let mut panel = vec![0; header.kind.panel_bytes(cols).unwrap_or(0)];
        let mut values = vec![0.0; cols];
        for first in (0..rows).step_by(PANEL_ROWS) {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let mut writer = PanelWriter::new(header.kind, cols, &mut panel);
            for lane in 0..(rows - first).min(PANEL_ROWS) {
                values.iter_mut().for_each(|v| *v = noise.next(WEIGHT_STD));
                put_row(&mut writer, header.kind, lane, &values, Method::MinMax);
            }
            sink.write(&panel)?;
        }
        Ok(())
    })?;
    file.finish()?;
    Ok(())
}

/// A byte-level tokenizer of `vocab_size` tokens: the 256 bytes, then `<|im_start|>`, `<|im_end|>`
/// (which ends generation) as far as there is room, then tokens that mean nothing. Panics below 256.
pub fn byte_tokenizer(vocab_size: usize) -> Spec {
    assert!(vocab_size >= 256, "every byte needs a token");
    let bytes = (0..=255u8).map(|b| (vec![b], TokenKind::Normal, Matched::Never));
    let control = ["<|im_start|>", "<|im_end|>"]
        .map(|piece| (piece.as_bytes().to_vec(), TokenKind::Control, Matched::Raw));
    let unused = std::iter::repeat((Vec::new(), TokenKind::Unused, Matched::Never));
    let tokens = bytes.chain(control).chain(unused).take(vocab_size);
    let end = (vocab_size > 257).then_some(257);
    Spec {
        tokens: tokens.map(|(piece, kind, matched)| Token { piece, kind, matched }).collect(),
        normalizer: Normalizer::None,
        pretokenizer: Pretokenizer::Gpt2,
        eos: end,
        ends: end.into_iter().collect(),
        ..Spec::default()
    }
}

/// Nearly normal numbers: sums of four uniform ones, the same on every machine.
struct Noise(Pcg64Mcg);

impl Noise {
    fn next(&mut self, std: f32) -> f32 {
        let bits = self.0.next_u64();
        let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u32 & 0xffff).sum();
        // Four uniforms on 0..65536 have variance 65536²/3.
        (sum as f32 - 131_070.0) / 65_536.0 * 1.732_050_8 * std
    }
}
