//! The public stories260K model: its greedy stories, token for token, with every instruction set.
//!
//! Reads a llama2.c checkpoint here, because the command doesn't: the weights go into the file as
//! they are, and nothing but the engine's arithmetic can differ. Needs `KOUDAI_DATA`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use koudai::config::Shape;
use koudai::file::{FileError, FileWriter, TensorHeader, section};
use koudai::kernels::{Kernels, Kind, PANEL_ROWS, PanelWriter};
use koudai::tokenizer::{Spec, Tokenizer};
use koudai::{Activation, Config, LayerConfig, Role};
use koudai_convert::tokenizer::{GgufVocab, spec_from_gguf};
use serde_json::Value;

use crate::golden::{check_strings, data, golden, note, numbers};
use crate::support::{command, document, finish, text};
use crate::tiny;

const HEAD_DIM: usize = 8;

/// Margins below this may fall the other way: keys and values are half floats here.
const CLOSE: f64 = 0.05;

fn config() -> Config {
    let layer = LayerConfig {
        n_heads: 8,
        n_kv_heads: 4,
        head_dim: HEAD_DIM,
        ffn_dim: 172,
        window: None,
        rope: 0,
        attn_scale: (HEAD_DIM as f32).sqrt().recip(),
        activation: Activation::Silu,
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
    };
    Config {
        dim: 64,
        vocab_size: 512,
        context_length: 512,
        norm_eps: 1e-5,
        embed_scale: 1.0,
        tied_head: true,
        ropes: vec![
            (0..HEAD_DIM / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / HEAD_DIM as f64)).collect(),
        ],
        layers: vec![layer; 5],
    }
}

/// The vocabulary: for each token a score, a length and bytes, after the longest length.
fn spec(file: &Path) -> Spec {
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[4..];
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head
    };
    let (mut pieces, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..512 {
        scores.push(f32::from_le_bytes(take(4).try_into().unwrap()));
        let len = i32::from_le_bytes(take(4).try_into().unwrap()) as usize;
        let piece = std::str::from_utf8(take(len)).unwrap();
        let byte = piece.starts_with("<0x") && piece.len() == 6;
        // GGUF's numbers: 1 normal, 2 unknown, 3 control, 6 byte.
        types.push(match id {
            0 => 2,
            1 | 2 => 3,
            _ if byte => 6,
            _ => 1,
        });
        pieces.push(if id < 3 { piece.trim().into() } else { piece.replace(' ', "\u{2581}") });
    }
    assert!(rest.is_empty());
    let tokens: Vec<&[u8]> = pieces.iter().map(|p| p.as_bytes()).collect();
    spec_from_gguf(&GgufVocab {
        model: "llama",
        pre: Some("default"),
        tokens: &tokens,
        scores: Some(&scores),
        types: Some(&types),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: Some(true),
        add_eos: Some(false),
        add_space_prefix: Some(true),
        ..Default::default()
    })
    .unwrap()
}

/// Where the checkpoint keeps each kind of tensor, in values: a kind holds all layers.
fn place(weights: &[f32], config: &Config, role: Role, layer: usize) -> Vec<f32> {
    let (dim, ffn, n) = (64, 172, config.layers.len());
    let kv = 4 * HEAD_DIM;
    let order = [
        (Role::Embed, 512 * dim, 1),
        (Role::AttnNorm, dim, n),
        (Role::AttnQ, dim * dim, n),
        (Role::AttnK, kv * dim, n),
        (Role::AttnV, kv * dim, n),
        (Role::AttnOut, dim * dim, n),
        (Role::FfnNorm, dim, n),
        (Role::FfnGate, ffn * dim, n),
        (Role::FfnDown, dim * ffn, n),
        (Role::FfnUp, ffn * dim, n),
        (Role::FinalNorm, dim, 1),
    ];
    let mut at = 0;
    for (kind, size, count) in order {
        if kind == role {
            return weights[at + layer * size..][..size].to_vec();
        }
        at += size * count;
    }
    panic!("{role:?} isn't in the checkpoint")
}

/// Rotations pair channels 2i and 2i + 1 there, i and i + half here.
fn unpair(values: &[f32], cols: usize) -> Vec<f32> {
    let row = |r: usize| {
        let (head, d) = (r / HEAD_DIM * HEAD_DIM, r % HEAD_DIM);
        let half = HEAD_DIM / 2;
        let from = if d < half { 2 * d } else { 2 * (d - half) + 1 };
        &values[(head + from) * cols..][..cols]
    };
    (0..values.len() / cols).flat_map(row).copied().collect()
}

fn import(checkpoint: &Path, vocabulary: &Path, out: &Path) {
    let config = config();
    let bytes = std::fs::read(checkpoint).unwrap();
    let weights: Vec<f32> =
        bytes[28..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let mut file = FileWriter::create(out).unwrap();
    file.config(&config).unwrap();
    file.section(section::TOKENIZER, true, &spec(vocabulary).to_bytes().unwrap()).unwrap();
    let headers: Vec<TensorHeader> =
        config.tensors().iter().map(|(id, _)| TensorHeader { id: *id, kind: Kind::F32 }).collect();
    file.tensors::<FileError>(&config, &headers, |header, shape, sink| {
        let role = header.id.role;
        let mut values = place(&weights, &config, role, header.id.layer.unwrap_or(0));
        let Shape::Matrix { rows, cols } = shape else {
            return sink.write(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        };
        if matches!(role, Role::AttnQ | Role::AttnK) {
            values = unpair(&values, cols);
        }
        let mut panel = vec![0; header.kind.panel_bytes(cols).unwrap()];
        for first in (0..rows).step_by(PANEL_ROWS) {
            let mut writer = PanelWriter::new(header.kind, cols, &mut panel);
            for lane in 0..(rows - first).min(PANEL_ROWS) {
                writer.put_row(lane, &values[(first + lane) * cols..][..cols]);
            }
            sink.write(&panel)?;
        }
        Ok(())
    })
    .unwrap();
    file.finish().unwrap();
}

/// The converted model, or `None` with a printed reason where the data isn't.
fn model(test: &str) -> Option<&'static Path> {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    let checkpoint = data(test, "models/stories260K/stories260K.bin")?;
    let vocabulary = data(test, "models/stories260K/tokenizer.bin")?;
    Some(MODEL.get_or_init(|| {
        let out = tiny::fresh("stories").join("stories260K.koudai");
        import(&checkpoint, &vocabulary, &out);
        out
    }))
}

#[test]
fn greedy_stories_from_koudai_data_are_the_reference_on_every_instruction_set() {
    let Some(model) = model("stories260K's stories") else { return };
    let kernels: Vec<&str> = Kernels::available().iter().map(|k| k.name()).collect();
    if cfg!(target_arch = "x86_64") {
        assert!(kernels.len() >= 2, "only {kernels:?}");
    }
    let golden = golden("stories260k.json");
    let mut steps = Vec::new();
    for isa in &kernels {
        for activation in ["f32", "auto"] {
            for prompt in golden["prompts"].as_array().unwrap() {
                let start = prompt["text"].as_str().unwrap();
                let args = [
                    "run",
                    "-m",
                    text(model),
                    "-p",
                    start,
                    "-n",
                    "200",
                    "--activation",
                    activation,
                    "--json",
                ];
                let done = finish(command(&args).env("KOUDAI_ISA", isa), "");
                let d = document(&done, &args);
                let label = format!("{isa} {activation} {start:?}");
                assert_eq!(d["prompt_tokens"], prompt["ids"].as_array().unwrap().len(), "{label}");
                let (got, want) = (numbers(&d["tokens"]), numbers(&prompt["greedy"]));
                let same = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
                let margin = prompt["margins"][same].as_f64();
                assert!(
                    same == want.len() || margin.is_some_and(|m| m < CLOSE),
                    "{label}: step {same} differs at margin {margin:?}"
                );
                if same == want.len() {
                    let story = prompt["story"].as_str().unwrap();
                    let said = d["text"].as_str().unwrap();
                    assert!(story.trim_end().ends_with(said.trim()), "{label}: {said:?}");
                }
                steps.push(same);
            }
        }
    }
    let whole = steps.iter().filter(|s| **s == 200).count();
    note(&format!(
        "stories260K: {whole} of {} stories are the reference's to the last of 200 tokens, the \
         others for {:?}; kernels {kernels:?}",
        steps.len(),
        steps.iter().filter(|s| **s < 200).collect::<Vec<_>>()
    ));
}

#[test]
fn token_ids_with_the_tokenizer_from_koudai_data_stories260k() {
    let test = "stories260K's token ids";
    let Some(vocabulary) = data(test, "models/stories260K/tokenizer.bin") else { return };
    let section = spec(&vocabulary).to_bytes().unwrap();
    let tokenizer = Tokenizer::open(section.into()).unwrap();
    let golden: Value = golden("tokens-stories260k.json");
    check_strings("stories260K", &tokenizer, &golden);
}
