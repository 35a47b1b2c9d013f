//! Tiny random models of every architecture, written as real files.

use std::path::{Path, PathBuf};

use koudai::config::Shape;
use koudai::file::{Defaults, FileError, FileWriter, TensorHeader, section};
use koudai::kernels::num::f32_to_f16;
use koudai::kernels::{Kind, PanelWriter};
use koudai::tokenizer::{self, Matched, Pretokenizer, Spec, Token};
use koudai::{Activation, Config, LayerConfig, Role};

/// A small deterministic generator (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

pub(crate) const VOCAB: usize = 300;

fn rope(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect()
}

/// Configurations in the manner of four families, by name.
pub(crate) fn configs() -> Vec<(&'static str, Config)> {
    let layer = LayerConfig {
        n_heads: 8,
        n_kv_heads: 2,
        head_dim: 16,
        ffn_dim: 192,
        window: None,
        rope: 0,
        attn_scale: 0.25,
        activation: Activation::Silu,
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
    };
    let base = Config {
        dim: 64,
        vocab_size: VOCAB,
        context_length: 512,
        norm_eps: 1e-5,
        embed_scale: 1.0,
        tied_head: true,
        ropes: vec![rope(1e4, 16)],
        layers: vec![layer.clone(); 3],
    };
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = base.clone();
        change(&mut config);
        config
    };
    vec![
        ("llama", with(&|c| c.tied_head = false)),
        ("qwen2", with(&|c| c.layers.iter_mut().for_each(|l| l.qkv_bias = true))),
        ("qwen3", with(&|c| c.layers.iter_mut().for_each(|l| l.qk_norm = true))),
        (
            "gemma3",
            with(&|c| {
                c.embed_scale = 8.0;
                c.ropes = vec![rope(1e4, 32), rope(1e6, 32)];
                for (i, l) in c.layers.iter_mut().enumerate() {
                    (l.n_heads, l.n_kv_heads, l.head_dim) = (4, 1, 32);
                    (l.qk_norm, l.post_norms) = (true, true);
                    l.activation = Activation::GeluTanh;
                    l.rope = (i == 2) as usize;
                    l.window = (i < 2).then_some(20);
                }
            }),
        ),
    ]
}

/// 256 bytes, then control tokens up to a vocabulary of [`VOCAB`], the last of which ends texts.
pub(crate) fn spec() -> Spec {
    let token = |piece, kind, matched| Token { piece, kind, matched };
    let bytes = (0..=255).map(|b| token(vec![b], tokenizer::Kind::Normal, Matched::Never));
    let control =
        |i| token(format!("<|{i}|>").into_bytes(), tokenizer::Kind::Control, Matched::Raw);
    let end = VOCAB as u32 - 1;
    Spec {
        tokens: bytes.chain((256..VOCAB).map(control)).collect(),
        pretokenizer: Pretokenizer::Gpt2,
        eos: Some(end),
        ends: vec![end],
        ..Default::default()
    }
}

/// Writes a random model whose matrices are of `kind`.
pub(crate) fn write(dir: &Path, name: &str, config: &Config, kind: Kind) -> PathBuf {
    let path = dir.join(format!("{name}-{}.koudai", kind.name()));
    let mut random = Random(name.len() as u64);
    let mut file = FileWriter::create(&path).unwrap();
    file.config(config).unwrap();
    file.section(section::TOKENIZER, true, &spec().to_bytes().unwrap()).unwrap();
    file.defaults(&Defaults { temperature: Some(0.7), ..Default::default() }).unwrap();
    file.meta(&[("name".into(), name.into())]).unwrap();
    let headers: Vec<TensorHeader> = config
        .tensors()
        .into_iter()
        .map(|(id, shape)| match shape {
            Shape::Vector(_) => TensorHeader { id, kind: Kind::F32 },
            Shape::Matrix { .. } => TensorHeader { id, kind },
        })
        .collect();
    file.tensors::<FileError>(config, &headers, |header, shape, sink| match shape {
        Shape::Vector(n) => {
            let values: Vec<u8> =
                (0..n).flat_map(|_| (1.0 + 0.2 * random.unit()).to_le_bytes()).collect();
            sink.write(&values)
        }
        Shape::Matrix { rows, cols } => {
            let mut panel = vec![0; header.kind.panel_bytes(cols).unwrap()];
            for first in (0..rows).step_by(16) {
                let mut writer = PanelWriter::new(header.kind, cols, &mut panel);
                for lane in 0..(rows - first).min(16) {
                    put_row(&mut writer, header.kind, cols, lane, &mut random);
                }
                sink.write(&panel)?;
            }
            Ok(())
        }
    })
    .unwrap();
    file.finish().unwrap();
    path
}

fn put_row(w: &mut PanelWriter<'_>, kind: Kind, cols: usize, lane: usize, random: &mut Random) {
    if !kind.is_quantized() {
        let row: Vec<f32> = (0..cols).map(|_| 0.2 * random.unit()).collect();
        return w.put_row(lane, &row);
    }
    for group in 0..cols / kind.group() {
        let (d, m, top) = match kind {
            Kind::Q8 => (0.0015 + 0.0005 * random.unit(), 0.0, 256),
            Kind::Q4S32 => (0.025 + 0.005 * random.unit(), 0.0, 16),
            _ => (0.025 + 0.005 * random.unit(), -0.19, 16),
        };
        let q: Vec<u8> = (0..kind.group()).map(|_| (random.bits() % top) as u8).collect();
        w.put_group(lane, group, f32_to_f16(d), f32_to_f16(m), &q);
    }
}

/// A model that writes `pieces`, whatever the prompt, and then ends: token 256 + i follows 256 + i - 1.
/// Pieces are two bytes long or longer and differ, and need not be whole characters.
pub(crate) fn script(dir: &Path, pieces: &[&[u8]]) -> PathBuf {
    const DIM: usize = 64;
    let end = 256 + pieces.len();
    let config = Config {
        dim: DIM,
        vocab_size: end + 1,
        context_length: 512,
        norm_eps: 1e-5,
        embed_scale: 1.0,
        tied_head: false,
        ropes: vec![vec![1.0]],
        layers: vec![LayerConfig {
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 2,
            ffn_dim: 1,
            window: None,
            rope: 0,
            attn_scale: 1.0,
            activation: Activation::Silu,
            qkv_bias: false,
            qk_norm: false,
            post_norms: false,
        }],
    };
    let token = |piece: &[u8]| Token {
        piece: piece.to_vec(),
        kind: tokenizer::Kind::Normal,
        matched: Matched::Never,
    };
    let bytes = (0..=255u8).map(|b| token(&[b]));
    let control = Token { kind: tokenizer::Kind::Control, ..token(b"<|end|>") };
    let spec = Spec {
        tokens: bytes.chain(pieces.iter().map(|p| token(p))).chain([control]).collect(),
        pretokenizer: Pretokenizer::Gpt2,
        eos: Some(end as u32),
        ends: vec![end as u32],
        ..Default::default()
    };
    // Directions are nearly orthogonal; step s is what bytes (0) or piece s - 1 point to.
    let mut random = Random(5);
    let steps: Vec<Vec<f32>> =
        (0..=pieces.len()).map(|_| (0..DIM).map(|_| random.unit().signum()).collect()).collect();
    let path = dir.join("script.koudai");
    let mut file = FileWriter::create(&path).unwrap();
    file.config(&config).unwrap();
    file.section(section::TOKENIZER, true, &spec.to_bytes().unwrap()).unwrap();
    let headers: Vec<TensorHeader> =
        config.tensors().iter().map(|(id, _)| TensorHeader { id: *id, kind: Kind::F32 }).collect();
    file.tensors::<FileError>(&config, &headers, |header, shape, sink| match shape {
        Shape::Vector(n) => sink.write(&1f32.to_le_bytes().repeat(n)),
        Shape::Matrix { rows, cols } => {
            let row = |r: usize| match header.id.role {
                Role::Embed if r < 256 => steps[0].clone(),
                Role::Embed => steps[(r - 255).min(pieces.len())].clone(),
                Role::Head if r >= 256 => steps[r - 256].clone(),
                _ => vec![0.0; cols],
            };
            let mut panel = vec![0; header.kind.panel_bytes(cols).unwrap()];
            for first in (0..rows).step_by(16) {
                let mut writer = PanelWriter::new(header.kind, cols, &mut panel);
                for lane in 0..(rows - first).min(16) {
                    writer.put_row(lane, &row(first + lane));
                }
                sink.write(&panel)?;
            }
            Ok(())
        }
    })
    .unwrap();
    file.finish().unwrap();
    path
}

/// Deterministic ordinary tokens.
pub(crate) fn tokens(n: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| (random.bits() % 256) as u32).collect()
}
