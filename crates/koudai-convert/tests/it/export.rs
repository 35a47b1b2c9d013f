//! What is exported is the model that was read: imported again, every byte that matters is equal.

use std::path::{Path, PathBuf};

use koudai::bytes::SharedBytes;
use koudai::file::{ModelFile, section};
use koudai::tokenizer::{Kind as TokenKind, Matched, Spec, Special, Token, Tokenizer};
use koudai::{Config, Flow, Role, TensorId};
use koudai_convert::arch::Family;
use koudai_convert::dequant::TensorType;
use koudai_convert::gguf::Gguf;
use koudai_convert::synthetic::{SyntheticSpec, byte_tokenizer};
use koudai_convert::tokenizer::{GgufVocab, spec_from_gguf};
use koudai_convert::{
    Error, ExportOptions, ExportReport, Options, Quant, convert, export, synthetic,
};
use koudai_kernels::Kind;
use koudai_kernels::num::{f16_to_f32, f32_to_f16};
use serde_json::{Value, json};

use crate::support::*;
use crate::tokenizer::{Pair, same, small, varied_texts};

const FAMILIES: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gemma3];

/// A scratch folder with a `.koudai` file in it.
struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Converts what is at `from`.
    fn convert(&self, from: &Path, quant: Quant) -> PathBuf {
        let to = self.path(&format!("{}.koudai", from.file_name().unwrap().display()));
        convert(from, &to, &Options { quant, ..Options::default() }, &mut on).unwrap();
        to
    }

    /// A `.koudai` of a random model with this configuration and tokenizer.
    fn synthetic(&self, config: Config, tokenizer: Spec) -> PathBuf {
        let path = self.path("synthetic.koudai");
        let spec = SyntheticSpec { config, kind: Kind::Q8, seed: 1, tokenizer, template: None };
        synthetic::write(&path, &spec).unwrap();
        path
    }

    fn export(&self, from: &Path, to: &str) -> Result<ExportReport, Error> {
        export(from, &self.path(to), &ExportOptions::default(), &mut on)
    }

    #[track_caller]
    fn refused(&self, from: &Path, to: &str, part: &str) {
        let before = self.names();
        let e = self.export(from, to).err().unwrap_or_else(|| panic!("exported, though {part}"));
        let text = e.to_string();
        assert!(text.contains(part) && !text.contains('\n'), "`{text}` doesn't name `{part}`");
        assert_eq!(self.names(), before, "nothing is left");
    }
}

/// Every section that says what the model computes.
#[track_caller]
fn equal(a: &Path, b: &Path) {
    equal_sections(a, b, &[section::TOKENIZER, section::DEFAULTS]);
    equal_but_tokens(a, b);
}

/// The same where rows without a token in one file have a name in the other.
#[track_caller]
fn equal_but_tokens(a: &Path, b: &Path) {
    let names = [section::CONFIG, section::TEMPLATE, section::TENSORS, section::WEIGHTS];
    equal_sections(a, b, &names);
}

#[track_caller]
fn equal_sections(a: &Path, b: &Path, names: &[&str]) {
    let open = |path: &Path| ModelFile::open(path).unwrap();
    let (a, b) = (open(a), open(b));
    assert_eq!(a.config(), b.config());
    for name in names {
        let bytes = |file: &ModelFile| file.section(name).map(|bytes| bytes.to_vec());
        assert!(bytes(&a) == bytes(&b), "section `{name}` differs");
    }
}

fn meta(path: &Path, key: &str) -> Option<String> {
    let meta = ModelFile::open(path).unwrap().meta().unwrap();
    meta.into_iter().find(|(k, _)| k == key).map(|(_, value)| value)
}

fn spec_of(path: &Path) -> Spec {
    let section = ModelFile::open(path).unwrap().section(section::TOKENIZER).unwrap();
    Tokenizer::open(section).unwrap().spec()
}

/// A tiny model of the family with room for a vocabulary.
fn config_for(family: Family, rows: usize) -> Config {
    Config { vocab_size: rows, ..TinyModel::new(family, true).config }
}

// ---- Weights ----------------------------------------------------------------------------------

#[test]
fn gguf_and_back_is_the_same_file_in_every_family_and_kind() {
    for family in FAMILIES {
        for (tied, quant) in [true, false].into_iter().flat_map(|t| Quant::ALL.map(|q| (t, q))) {
            let scratch = Scratch::new();
            let source = scratch.path("in.gguf");
            let mut model = TinyModel::new(family, tied).gguf(F32);
            model.str("general.license", "mit").f32("general.sampling.temp", 0.5);
            std::fs::write(&source, model.build()).unwrap();
            let first = scratch.convert(&source, quant);
            let report = scratch.export(&first, "out.gguf").unwrap();
            assert!(report.exact() && report.notes.is_empty(), "{family:?} {:?}", report.notes);
            assert_eq!(report.bytes, scratch.path("out.gguf").metadata().unwrap().len());
            assert_eq!((report.format, report.architecture), ("gguf", family.name()));
            let second = scratch.convert(&scratch.path("out.gguf"), Quant::Keep);
            equal(&first, &second);
            for key in ["name", "license", "architecture"] {
                assert_eq!(meta(&first, key), meta(&second, key));
            }
        }
    }
}

#[test]
fn tensors_of_a_gguf_come_out_with_the_bytes_they_had() {
    for family in FAMILIES {
        for kind in [F32, F16, BF16] {
            let scratch = Scratch::new();
            let mut source = TinyModel::new(family, false).gguf(kind);
            for (name, kind, seed) in [
                ("token_embd.weight", TensorType::Q8_0, 1),
                ("blk.0.attn_q.weight", TensorType::Q4_0, 2),
                ("blk.0.attn_k.weight", TensorType::Q4_1, 3),
                ("blk.1.attn_q.weight", TensorType::Q8_0, 4),
            ] {
                let tensor = source.tensor_mut(name);
                (tensor.kind, tensor.data) = (kind.code(), blocks(kind, &tensor.dims, seed));
            }
            std::fs::write(scratch.path("in.gguf"), source.build()).unwrap();
            let koudai = scratch.convert(&scratch.path("in.gguf"), Quant::Keep);
            scratch.export(&koudai, "out.gguf").unwrap();
            let read = |name: &str| std::fs::read(scratch.path(name)).unwrap();
            let (before, after) = (read("in.gguf"), read("out.gguf"));
            let (before, after) = (Gguf::parse(&before).unwrap(), Gguf::parse(&after).unwrap());
            assert_eq!(before.tensors().len(), after.tensors().len());
            for tensor in before.tensors() {
                assert_eq!(Some(tensor), after.tensor(tensor.name), "{family:?}");
            }
        }
    }
}

/// Random blocks with scales that are ordinary numbers.
fn blocks(kind: TensorType, dims: &[u64], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let n = (dims[0] * dims[1]) as usize;
    let mut data: Vec<u8> = (0..kind.row_bytes(n).unwrap()).map(|_| random.next() as u8).collect();
    let scales = if kind == TensorType::Q4_1 { 2 } else { 1 };
    for block in data.chunks_exact_mut(kind.block_bytes()) {
        for at in 0..scales {
            block[2 * at..2 * at + 2].copy_from_slice(&f32_to_f16(random.weight()).to_le_bytes());
        }
    }
    data
}

/// Pairs of blocks that share scale and minimum are one group of 64 here, and two blocks again
/// there; without a minimum of their own if it is −8 scales.
#[test]
fn groups_of_64_become_blocks_of_32() {
    for (symmetric, to) in [(false, TensorType::Q4_1), (true, TensorType::Q4_0)] {
        let scratch = Scratch::new();
        let mut source = TinyModel::new(Family::Qwen3, true).gguf(F32);
        let up = source.tensor_mut("blk.0.ffn_up.weight");
        let mut data = blocks(TensorType::Q4_1, &up.dims, 7);
        for pair in data.as_chunks_mut::<40>().0 {
            if symmetric {
                let d = f16_to_f32(u16::from_le_bytes([pair[0], pair[1]]));
                pair[2..4].copy_from_slice(&f32_to_f16(-8.0 * d).to_le_bytes());
            }
            pair.copy_within(..4, 20);
        }
        (up.kind, up.data) = (Q4_1, data.clone());
        std::fs::write(scratch.path("in.gguf"), source.build()).unwrap();
        let first = scratch.convert(&scratch.path("in.gguf"), Quant::Keep);
        let report = scratch.export(&first, "out.gguf").unwrap();
        let id = TensorId { layer: Some(0), role: Role::FfnUp };
        let up = report.tensors.iter().find(|t| t.id == id).unwrap();
        assert_eq!((up.from, up.to, up.exact), (Kind::Q4G64, to, true));
        let second = scratch.convert(&scratch.path("out.gguf"), Quant::Keep);
        let [a, b] = [&first, &second].map(|path| read(&ModelFile::open(path).unwrap(), id));
        assert_eq!(a, b);
        if !symmetric {
            let bytes = std::fs::read(scratch.path("out.gguf")).unwrap();
            assert!(Gguf::parse(&bytes).unwrap().tensor(&up.name).unwrap().data == data);
            equal(&first, &second);
        }
    }
}

#[test]
fn a_folder_and_back_is_the_same_file_in_every_family() {
    for family in FAMILIES {
        for tied in [true, false] {
            let scratch = Scratch::new();
            let source = scratch.path("tiny");
            TinyModel::new(family, tied).folder(&source, 1);
            std::fs::write(source.join("README.md"), "---\nlicense: mit\n---\n").unwrap();
            let first = scratch.convert(&source, Quant::Keep);
            let report = scratch.export(&first, "out").unwrap();
            assert!(report.exact() && report.notes.is_empty(), "{family:?} {:?}", report.notes);
            assert!(report.tensors.iter().all(|t| t.to == TensorType::BF16), "{family:?}");
            let files = std::fs::read_dir(scratch.path("out")).unwrap();
            let bytes: u64 = files.map(|f| f.unwrap().metadata().unwrap().len()).sum();
            assert_eq!(report.bytes, bytes);
            let second = scratch.convert(&scratch.path("out"), Quant::Keep);
            equal(&first, &second);
            assert_eq!(meta(&second, "license").as_deref(), Some("mit"));
        }
    }
}

#[test]
fn a_folder_of_quantized_weights_holds_exactly_their_values() {
    for family in FAMILIES {
        for quant in Quant::ALL {
            let scratch = Scratch::new();
            std::fs::write(scratch.path("in.gguf"), TinyModel::new(family, true).gguf(F32).build())
                .unwrap();
            let first = scratch.convert(&scratch.path("in.gguf"), quant);
            assert!(scratch.export(&first, "out").unwrap().exact());
            let second = scratch.convert(&scratch.path("out"), Quant::Keep);
            let [first, second] = [first, second].map(|path| ModelFile::open(&path).unwrap());
            assert_eq!(first.config(), second.config());
            for tensor in first.tensors() {
                assert_eq!(read(&first, tensor.id), read(&second, tensor.id), "{}", tensor.id);
            }
        }
    }
}

#[test]
fn a_narrower_type_says_which_tensors_it_rounded() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("in.gguf"), TinyModel::new(Family::Gemma3, true).gguf(F32).build())
        .unwrap();
    let koudai = scratch.convert(&scratch.path("in.gguf"), Quant::Q4G32);
    for dtype in [TensorType::F16, TensorType::BF16] {
        let options = ExportOptions { dtype: Some(dtype), force: true };
        let report = export(&koudai, &scratch.path("out"), &options, &mut on).unwrap();
        assert!(!report.exact());
        let embed = report.tensors.iter().find(|t| t.id.role == Role::Embed).unwrap();
        assert!(embed.rounded().unwrap().contains(dtype.name()));
        let role = report.by_role().into_iter().find(|r| r.role == Role::Embed).unwrap();
        assert_eq!((role.count, role.inexact, role.bytes), (1, 1, embed.bytes));
        let names = ["config.json", "model.safetensors", "tokenizer.json"];
        assert!(names.iter().all(|name| scratch.path("out").join(name).exists()));
    }
    let options = ExportOptions { dtype: Some(TensorType::F16), force: false };
    let e = export(&koudai, &scratch.path("out.gguf"), &options, &mut on).unwrap_err();
    assert!(e.to_string().contains("--dtype"), "{e}");
}

// ---- Configurations ---------------------------------------------------------------------------

fn folder_model(
    scratch: &Scratch,
    family: Family,
    edit: impl FnOnce(&mut serde_json::Map<String, Value>),
) -> PathBuf {
    TinyModel::new(family, true).folder_with(&scratch.path("tiny"), 1, edit, |_| {});
    scratch.convert(&scratch.path("tiny"), Quant::Keep)
}

#[test]
fn rotary_scaling_is_found_again() {
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    let llama3 = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    for (family, theta, scaling, exact_in_gguf) in [
        (Family::Llama, 1e5, Value::Null, true),
        (Family::Llama, 5e5, linear.clone(), true),
        (Family::Qwen3, 1e6, linear.clone(), true),
        (Family::Gemma3, 1e6, linear, true),
        (Family::Llama, 5e5, llama3, false),
    ] {
        let scratch = Scratch::new();
        let first = folder_model(&scratch, family, |config| {
            config.insert("rope_theta".into(), json!(theta));
            config.insert("rope_scaling".into(), scaling);
        });
        scratch.export(&first, "out").unwrap();
        equal(&first, &scratch.convert(&scratch.path("out"), Quant::Keep));
        let report = scratch.export(&first, "out.gguf").unwrap();
        let second = scratch.convert(&scratch.path("out.gguf"), Quant::Keep);
        assert_eq!(report.notes.is_empty(), exact_in_gguf, "{:?}", report.notes);
        if exact_in_gguf {
            equal_but_tokens(&first, &second);
        }
        let ropes = |path: &Path| ModelFile::open(path).unwrap().config().ropes.concat();
        for (a, b) in ropes(&first).iter().zip(ropes(&second)) {
            assert!((a - b).abs() <= 1e-7 * a, "{a} {b}");
        }
        // A second time nothing is left to round.
        scratch.export(&second, "again.gguf").unwrap();
        equal(&second, &scratch.convert(&scratch.path("again.gguf"), Quant::Keep));
    }
}

#[test]
fn windows_and_scales_are_kept_or_refused() {
    let scratch = Scratch::new();
    let qwen = folder_model(&scratch, Family::Qwen2, |config| {
        config.insert("use_sliding_window".into(), json!(true));
        config.insert("sliding_window".into(), json!(64));
        config.insert("max_window_layers".into(), json!(2));
    });
    scratch.export(&qwen, "out").unwrap();
    equal(&qwen, &scratch.convert(&scratch.path("out"), Quant::Keep));
    scratch.refused(&qwen, "out.gguf", "windows of 64");
    for pattern in [json!(2), json!(6), json!(100)] {
        let scratch = Scratch::new();
        let gemma = folder_model(&scratch, Family::Gemma3, |config| {
            config.insert("sliding_window_pattern".into(), pattern);
            config.insert("query_pre_attn_scalar".into(), json!(10));
        });
        for out in ["out", "out.gguf"] {
            scratch.export(&gemma, out).unwrap();
            equal_but_tokens(&gemma, &scratch.convert(&scratch.path(out), Quant::Keep));
        }
    }
    let scratch = Scratch::new();
    let gemma = folder_model(&scratch, Family::Gemma3, |config| {
        let types: Vec<_> = (0..LAYERS)
            .map(|i| ["sliding_attention", "full_attention"][(i == 1) as usize])
            .collect();
        config.insert("layer_types".into(), json!(types));
    });
    for out in ["out", "out.gguf"] {
        scratch.export(&gemma, out).unwrap();
        equal_but_tokens(&gemma, &scratch.convert(&scratch.path(out), Quant::Keep));
    }
}

#[test]
fn what_other_formats_have_no_word_for_is_refused_by_name() {
    type Edit = fn(&mut Config);
    let edits: [(&str, &str, Edit); 7] = [
        ("out", "heads", |c| c.layers[1].ffn_dim = 64),
        ("out", "layers.3", |c| c.layers[3].attn_scale = 0.5),
        ("out.gguf", "layers.2", |c| c.layers[2].post_norms = true),
        ("out.gguf", "embed_scale", |c| c.embed_scale = 3.0),
        ("out.gguf", "rotary frequencies", |c| c.ropes[0][3] *= 1.5),
        ("out", "rotary frequencies", |c| c.ropes[0][3] *= 1.5),
        ("out", "scaled by", |c| c.layers.iter_mut().for_each(|l| l.attn_scale = 0.3)),
    ];
    for (out, part, edit) in edits {
        let scratch = Scratch::new();
        let mut config = TinyModel::new(Family::Qwen3, true).config;
        edit(&mut config);
        let file = scratch.synthetic(config, byte_tokenizer(VOCAB));
        scratch.refused(&file, out, part);
    }
    // Layers of different widths have a key in GGUF, and each frequency a factor for Llama.
    let scratch = Scratch::new();
    let mut config = TinyModel::new(Family::Llama, true).config;
    (config.layers[1].ffn_dim, config.ropes[0][3]) = (64, 0.01);
    let file = scratch.synthetic(config, byte_tokenizer(VOCAB));
    scratch.export(&file, "out.gguf").unwrap();
    let second = scratch.convert(&scratch.path("out.gguf"), Quant::Keep);
    let second = ModelFile::open(&second).unwrap();
    assert_eq!(second.config().layers[1].ffn_dim, 64);
    assert!((second.config().ropes[0][3] / 0.01 - 1.0).abs() < 1e-7);
    let scratch = Scratch::new();
    let mut config = TinyModel::new(Family::Llama, true).config;
    config.layers.iter_mut().for_each(|l| l.qkv_bias = true);
    let file = scratch.synthetic(config, byte_tokenizer(VOCAB));
    assert_eq!(scratch.export(&file, "out").unwrap().architecture, "qwen2");
}

// ---- Tokenizers -------------------------------------------------------------------------------

fn tokenizer_of(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("tokenizer.json")).unwrap()
}

#[test]
fn exported_tokenizers_give_the_ids_of_the_reference() {
    for (i, pair) in small().iter().enumerate() {
        let scratch = Scratch::new();
        let spec = pair.ours.spec();
        let config = config_for(Family::Qwen3, spec.tokens.len() + 5);
        let file = scratch.synthetic(config, spec.clone());
        let report = scratch.export(&file, "out").unwrap();
        assert_eq!(report.notes, Vec::<String>::new(), "{i}");
        let exported = Pair::new(&tokenizer_of(&scratch.path("out")));
        for text in varied_texts(400) {
            same(&exported, &text).unwrap_or_else(|e| panic!("{i}: {e}"));
            let ids = pair.ours.encode(&text, Special::Parse);
            assert_eq!(exported.ours.encode(&text, Special::Parse), ids, "{i}: {text:?}");
        }
        let back = spec_of(&scratch.convert(&scratch.path("out"), Quant::Keep));
        assert_eq!((back.tokens, back.merges), (spec.tokens, spec.merges), "{i}");
    }
}

#[test]
fn byte_level_tokenizers_survive_gguf() {
    let mut refused = 0;
    for pair in small() {
        let scratch = Scratch::new();
        let spec = pair.ours.spec();
        let n = spec.tokens.len();
        let file = scratch.synthetic(config_for(Family::Llama, n + 5), spec.clone());
        let Ok(report) = scratch.export(&file, "out.gguf") else {
            refused += 1;
            continue;
        };
        // `</think>` is searched for in normalized text, which GGUF doesn't say.
        assert!(report.notes.iter().any(|note| note.contains("</think>")), "{:?}", report.notes);
        let mut back = spec_of(&scratch.convert(&scratch.path("out.gguf"), Quant::Keep));
        assert!(back.tokens.split_off(n).iter().all(|t| t.kind == TokenKind::Unused));
        assert_eq!(back.merges, spec.merges);
        let pieces =
            |s: &Spec| -> Vec<_> { s.tokens.iter().map(|t| (t.piece.clone(), t.kind)).collect() };
        assert_eq!(pieces(&back), pieces(&spec));
    }
    // Those whose merges follow from no scores, and those that ignore merges in their own way.
    println!("{refused} of {} refused", small().len());
    assert!(refused < small().len());
}

/// A SentencePiece-style vocabulary from pieces with scores; equal scores are ties.
fn scored(pieces: &[(&str, f32)]) -> Spec {
    let bytes: Vec<String> = (0..=255u8).map(|b| format!("<0x{b:02X}>")).collect();
    let mut tokens: Vec<&[u8]> = vec![b"<unk>", b"<s>", b"</s>"];
    let (mut types, mut scores) = (vec![2, 3, 3], vec![0.0; 3]);
    tokens.extend(bytes.iter().map(String::as_bytes));
    types.extend([6; 256]);
    scores.extend([0.0; 256]);
    for (piece, score) in pieces {
        tokens.push(piece.as_bytes());
        types.push(1);
        scores.push(*score);
    }
    tokens.push(b"\n\n");
    types.push(4);
    scores.push(0.0);
    spec_from_gguf(&GgufVocab {
        model: "llama",
        tokens: &tokens,
        types: Some(&types),
        scores: Some(&scores),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: Some(true),
        ..GgufVocab::default()
    })
    .unwrap()
}

#[test]
fn scores_are_found_again_and_become_merges() {
    let letters = ["▁", "a", "b", "c", "d"].map(|c| (c, -1e9));
    let parts = [
        ("ab", -1.0),
        ("bc", -2.0),
        ("abc", -3.0),
        ("aa", -4.0),
        ("aaa", -5.0),
        ("▁a", -6.0),
        ("▁ab", -7.0),
        ("cd", -7.0),
        ("abcd", -8.0),
        ("▁▁", -9.0),
        ("▁▁▁", -9.5),
        ("dd", -10.0),
    ];
    let spec = scored(&[&letters[..], &parts[..]].concat());
    let scratch = Scratch::new();
    let config = config_for(Family::Gemma3, spec.tokens.len());
    let first = scratch.synthetic(config, spec.clone());
    assert_eq!(scratch.export(&first, "out.gguf").unwrap().notes, Vec::<String>::new());
    let second = scratch.convert(&scratch.path("out.gguf"), Quant::Keep);
    equal_sections(&first, &second, &[section::TOKENIZER]);
    let report = scratch.export(&first, "out").unwrap();
    assert!(report.notes.iter().any(|n| n.contains("equal rank")), "{:?}", report.notes);
    let exported = Pair::new(&tokenizer_of(&scratch.path("out")));
    let ours = Tokenizer::open(SharedBytes::from(spec.to_bytes().unwrap())).unwrap();
    let mut random = Random(3);
    for _ in 0..3000 {
        let n = random.next() % 24;
        let text: String = (0..n)
            .map(|_| [' ', 'a', 'b', 'c', 'd', 'é', '\n'][random.next() as usize % 7])
            .collect();
        same(&exported, &text).unwrap_or_else(|e| panic!("{e}"));
        let ids = ours.encode(&text, Special::Parse);
        assert_eq!(exported.ours.encode(&text, Special::Parse), ids, "{text:?}");
    }
}

#[test]
fn odd_vocabularies_are_exported_or_refused_by_token() {
    let unused = |piece: &str| Token {
        piece: piece.into(),
        kind: TokenKind::Unused,
        matched: Matched::Never,
    };
    let export_with = |edit: &dyn Fn(&mut Spec)| {
        let scratch = Scratch::new();
        let mut spec = byte_tokenizer(VOCAB - 4);
        edit(&mut spec);
        let file = scratch.synthetic(config_for(Family::Qwen3, VOCAB), spec);
        let gguf = scratch.export(&file, "out.gguf").map(|report| {
            (report.notes, spec_of(&scratch.convert(&scratch.path("out.gguf"), Quant::Keep)))
        });
        let folder = scratch.export(&file, "out").map(|report| {
            (report.notes, spec_of(&scratch.convert(&scratch.path("out"), Quant::Keep)))
        });
        (gguf, folder)
    };
    // Rows without a token or without a spelling get one that nobody else has.
    let (gguf, folder) = export_with(&|spec| {
        spec.tokens[259] = unused("a");
        spec.tokens[260] = unused("<|im_end|>");
        spec.tokens[261] = unused("ℕ");
        spec.tokens[262].piece = b"</end>".to_vec();
        (spec.tokens[262].kind, spec.tokens[262].matched) = (TokenKind::UserDefined, Matched::Raw);
    });
    let (notes, spec) = gguf.unwrap();
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(spec.tokens.len(), VOCAB);
    assert_eq!(spec.tokens[258].piece, b"[PAD258]");
    assert_eq!(spec.tokens[260].piece, b"[PAD260]");
    assert_eq!(spec.tokens[261].piece, "ℕ".as_bytes());
    assert_eq!(spec.tokens[262].kind, TokenKind::UserDefined);
    assert_eq!(spec.tokens[VOCAB - 1].kind, TokenKind::Unused);
    assert_eq!(folder.unwrap().1.tokens.len(), 263, "what follows the last token has no name");

    // More ends than GGUF has keys for.
    let (gguf, folder) = export_with(&|spec| spec.ends = vec![1, 2, 3, 257]);
    assert!(gguf.unwrap().0[0].contains("[1, 2, 3, 257]"));
    let (notes, spec) = folder.unwrap();
    assert_eq!((notes, spec.ends), (Vec::new(), vec![1, 2, 3, 257]));

    let (gguf, folder) = export_with(&|spec| (spec.bos, spec.add_bos) = (Some(256), true));
    assert!(gguf.unwrap().1.add_bos && folder.unwrap().1.add_bos);

    // Two spellings that are one in the printable alphabet.
    let (gguf, folder) = export_with(&|spec| {
        spec.tokens[258] =
            Token { piece: "Ġ".into(), kind: TokenKind::Control, matched: Matched::Raw };
    });
    for e in [gguf.err().unwrap(), folder.err().unwrap()] {
        assert!(e.to_string().contains("token 258"), "{e}");
    }
    let (gguf, _) = export_with(&|spec| spec.ignore_merges = true);
    assert!(gguf.err().unwrap().to_string().contains("ignore_merges"));
}

// ---- Files ------------------------------------------------------------------------------------

#[test]
fn folders_are_replaced_only_when_asked_and_only_exports() {
    let scratch = Scratch::new();
    let file = folder_model(&scratch, Family::Qwen3, |_| {});
    std::fs::create_dir(scratch.path("out")).unwrap();
    scratch.export(&file, "out").unwrap();
    scratch.refused(&file, "out", "--force");
    let force = |out: &str| {
        let options = ExportOptions { force: true, ..ExportOptions::default() };
        export(&file, &scratch.path(out), &options, &mut on)
    };
    std::fs::remove_file(scratch.path("out").join("config.json")).unwrap();
    force("out").unwrap();
    assert!(scratch.path("out").join("config.json").exists());
    std::fs::write(scratch.path("out").join("diary.txt"), "dear").unwrap();
    let e = force("out").unwrap_err().to_string();
    assert!(e.contains("diary.txt"), "{e}");
    assert!(scratch.path("out").join("diary.txt").exists());
    std::fs::write(scratch.path("file"), "x").unwrap();
    scratch.refused(&file, "file", ".gguf");
    let names = scratch.names();
    assert_eq!(names, ["file", "out", "tiny", "tiny.koudai"]);
    // A GGUF file is replaced as every command replaces files.
    scratch.export(&file, "out.gguf").unwrap();
    scratch.export(&file, "out.gguf").unwrap();
}

#[test]
fn what_is_no_model_is_refused_and_a_stopped_export_leaves_nothing() {
    let scratch = Scratch::new();
    let file = folder_model(&scratch, Family::Llama, |_| {});
    let copy = scratch.path("copy.gguf");
    std::fs::copy(&file, &copy).unwrap();
    scratch.refused(&copy, "copy.gguf", "input and output at once");
    std::fs::write(scratch.path("empty"), "").unwrap();
    scratch.refused(&scratch.path("empty"), "out.gguf", "empty");
    scratch.refused(&scratch.path("tiny/config.json"), "out", "not a .koudai file");
    scratch.refused(&scratch.path("no-such"), "out", "no-such");
    let before = scratch.names();
    for out in ["out", "out.gguf"] {
        let mut stop = |_| Flow::Break(());
        let result = export(&file, &scratch.path(out), &ExportOptions::default(), &mut stop);
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(scratch.names(), before);
    }
}
