//! Converting GGUF files: exactness, mapping, and what is refused.

use koudai::{Flow, Role, TensorId};
use koudai_convert::arch::Family;
use koudai_convert::dequant::{self, TensorType};
use koudai_convert::{Error, Mode, Options, Progress, Quant, Stage, convert};
use koudai_kernels::Kind;
use koudai_kernels::num::{f16_to_f32, f32_to_f16};

use crate::support::*;

const FAMILIES: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gemma3];

fn options(quant: Quant) -> Options {
    Options { quant, ..Options::default() }
}

fn keep(b: &GgufBuilder) -> (koudai::file::ModelFile, koudai_convert::Report) {
    convert_bytes(&b.build(), &Options::default()).unwrap()
}

#[track_caller]
fn refused(b: &GgufBuilder, part: &str) {
    match convert_bytes(&b.build(), &Options::default()) {
        Ok(_) => panic!("accepted, though {part}"),
        Err(e) => {
            let text = e.to_string();
            assert!(text.contains(part), "`{text}` doesn't name `{part}`");
            assert!(!text.contains('\n') && text.len() < 300, "{text}");
        }
    }
}

const EMBED: TensorId = TensorId { layer: None, role: Role::Embed };
const HEAD: TensorId = TensorId { layer: None, role: Role::Head };

/// Random blocks of a type, with scales that are ordinary numbers.
fn blocks(kind: TensorType, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut data: Vec<u8> =
        (0..kind.row_bytes(cols).unwrap() * rows).map(|_| random.next() as u8).collect();
    let places: &[usize] = match kind {
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q6_K => &[208],
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        _ => &[0, 2],
    };
    for block in data.chunks_exact_mut(kind.block_bytes()) {
        for at in places {
            let scale = f32_to_f16(random.weight());
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    data
}

/// A Qwen 3 whose embedding is replaced by random blocks.
fn with_embed(kind: TensorType, data: Vec<u8>) -> GgufBuilder {
    let mut b = TinyModel::new(Family::Qwen3, true).gguf(BF16);
    let embed = b.tensor_mut("token_embd.weight");
    (embed.kind, embed.data) = (kind.code(), data);
    b
}

fn dequantized(kind: TensorType, data: &[u8], cols: usize) -> Vec<f32> {
    let mut values = vec![0.0; data.len() / kind.row_bytes(cols).unwrap() * cols];
    for (row, out) in
        data.chunks_exact(kind.row_bytes(cols).unwrap()).zip(values.chunks_exact_mut(cols))
    {
        dequant::read_row(kind, row, out).unwrap();
    }
    values
}

#[test]
fn every_family_comes_out_as_it_went_in() {
    for family in FAMILIES {
        for (tied, kind) in [(true, BF16), (false, F32)] {
            let model = TinyModel::new(family, tied);
            let (file, report) = keep(&model.gguf(kind));
            assert_eq!(file.config(), &model.config, "{family:?}");
            for (id, values) in &model.values {
                assert_eq!(&read(&file, *id), values, "{family:?} {id}");
            }
            assert!(report.tensors.iter().all(|t| t.exact && t.rms_error == 0.0));
            assert_eq!(report.architecture, family.name());
            assert_eq!(file.template().unwrap().as_deref(), Some("{{ messages[0].content }}"));
            let meta = file.meta().unwrap();
            let get = |key: &str| meta.iter().find(|m| m.0 == key).map(|m| m.1.as_str());
            assert_eq!(get("name"), Some("tiny"));
            assert_eq!(get("source"), Some("in.gguf"));
            assert_eq!(get("source_sha256"), Some(report.source_sha256.as_str()));
        }
    }
}

#[test]
fn codes_are_kept_bit_for_bit() {
    for (kind, to) in [
        (TensorType::Q4_0, Kind::Q4S32),
        (TensorType::Q4_1, Kind::Q4G32),
        (TensorType::Q5_0, Kind::Q8),
        (TensorType::Q8_0, Kind::Q8),
    ] {
        let data = blocks(kind, VOCAB, DIM, 3);
        let expected = dequantized(kind, &data, DIM);
        let (file, report) = keep(&with_embed(kind, data));
        assert_eq!(file.matrix(EMBED).kind(), to, "{kind:?}");
        // Equal as numbers; only zeros may differ in sign.
        assert_eq!(read(&file, EMBED), expected, "{kind:?}");
        let tensor = report.tensors.iter().find(|t| t.id == EMBED).unwrap();
        assert!(tensor.exact && tensor.max_error == 0.0 && tensor.from == kind.name());
    }
}

#[test]
fn permuted_codes_are_kept_bit_for_bit() {
    let id = TensorId { layer: Some(2), role: Role::AttnQ };
    let mut b = TinyModel::new(Family::Llama, true).gguf(F16);
    let data = blocks(TensorType::Q4_0, HEADS * HEAD_DIM, DIM, 9);
    let stored = dequantized(TensorType::Q4_0, &data, DIM);
    let q = b.tensor_mut("blk.2.attn_q.weight");
    (q.kind, q.data) = (Q4_0, data);
    let (file, _) = keep(&b);
    assert_eq!(file.matrix(id).kind(), Kind::Q4S32);
    assert_eq!(pair_rows(&read(&file, id), HEADS * HEAD_DIM, DIM), stored);
}

#[test]
fn other_types_come_close_and_the_report_says_how_close() {
    for kind in [
        TensorType::Q5_1,
        TensorType::Q2_K,
        TensorType::Q3_K,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
    ] {
        // Blocks of 256 need columns that the tiny model doesn't have.
        let cols = if kind == TensorType::Q5_1 { DIM } else { 256 };
        let data = blocks(kind, VOCAB, cols, 4);
        let expected = dequantized(kind, &data, cols);
        let mapped = koudai_convert::arch::Mapped {
            id: EMBED,
            shape: koudai::Shape::Matrix { rows: VOCAB, cols },
            source: "t".into(),
            transform: koudai_convert::arch::Transform::None,
        };
        let source = koudai_convert::weights::Source { kind, rows: VOCAB, cols, data: &data };
        let plan = koudai_convert::weights::plan(&mapped, source, Quant::Keep).unwrap();
        let mut bytes = Vec::new();
        let report = koudai_convert::weights::encode(&plan, &Mode::Search, 2, |b| {
            bytes.extend(b);
            Ok(())
        })
        .unwrap();
        let to = if kind == TensorType::Q4_K { Kind::Q4G32 } else { Kind::Q8 };
        let matrix = koudai_kernels::Matrix::new(to, VOCAB, cols, &bytes).unwrap();
        let (mut error, mut power, mut row) = (0.0, 0.0, vec![0.0; cols]);
        for (r, expected) in expected.chunks_exact(cols).enumerate() {
            matrix.read_row(r, &mut row);
            for (a, b) in expected.iter().zip(&row) {
                error += ((a - b) as f64).powi(2);
                power += (*a as f64).powi(2);
            }
        }
        let rms = (error / power).sqrt();
        assert!(!report.exact && (report.rms_error - rms).abs() < 1e-9, "{kind:?}");
        let limit = if kind == TensorType::Q4_K { 2e-3 } else { 8e-3 };
        assert!(rms < limit, "{kind:?}: {rms}");
    }
}

#[test]
fn split_groups_of_64_become_one_again() {
    let mut data = blocks(TensorType::Q4_1, VOCAB, DIM, 8);
    for pair in data.chunks_exact_mut(40) {
        let (a, b) = pair.split_at_mut(20);
        b[..4].copy_from_slice(&a[..4]);
    }
    let expected = dequantized(TensorType::Q4_1, &data, DIM);
    for quant in [Quant::Keep, Quant::Q4G64] {
        let bytes = with_embed(TensorType::Q4_1, data.clone()).build();
        let (file, _) = convert_bytes(&bytes, &options(quant)).unwrap();
        assert_eq!(file.matrix(EMBED).kind(), Kind::Q4G64);
        assert_eq!(read(&file, EMBED), expected);
    }
    let bytes = with_embed(TensorType::Q4_1, data.clone()).build();
    let (file, _) = convert_bytes(&bytes, &options(Quant::Q4G32)).unwrap();
    assert_eq!(file.matrix(EMBED).kind(), Kind::Q4G32);
    assert_eq!(read(&file, EMBED), expected);
    // One pair that differs, in the last row, and the tensor stays as it is.
    let last = data.len() - 20;
    data[last] ^= 1;
    let (file, _) = keep(&with_embed(TensorType::Q4_1, data));
    assert_eq!(file.matrix(EMBED).kind(), Kind::Q4G32);
}

#[test]
fn policies_quantize_and_columns_that_do_not_fit_are_noted() {
    let model = TinyModel::new(Family::Qwen3, false);
    for (quant, kind, loss) in [
        (Quant::Q4G64, Kind::Q4G64, 0.1),
        (Quant::Q4G32, Kind::Q4G32, 0.1),
        (Quant::Q8, Kind::Q8, 0.01),
        (Quant::F16, Kind::F16, 1e-3),
    ] {
        let (file, report) = convert_bytes(&model.gguf(BF16).build(), &options(quant)).unwrap();
        for tensor in file.tensors() {
            let matrix = matches!(tensor.shape, koudai::Shape::Matrix { .. });
            // ffn_down has 96 columns.
            let expected = match kind {
                _ if !matrix => Kind::F32,
                Kind::Q4G64 if tensor.id.role == Role::FfnDown => Kind::Q4G32,
                kind => kind,
            };
            assert_eq!(tensor.kind, expected, "{} {:?}", tensor.id, quant);
        }
        assert!(report.tensors.iter().all(|t| t.rms_error < loss), "{quant:?}");
        let noted = report.notes.iter().filter(|n| n.contains("96 columns")).count();
        assert_eq!(noted, if quant == Quant::Q4G64 { LAYERS } else { 0 });
        let embed = report.by_role().into_iter().find(|r| r.role == Role::Embed).unwrap();
        assert_eq!((embed.count, embed.from.as_str()), (1, "BF16"));
        assert_eq!(embed.to, kind.name());
    }
}

#[test]
fn conversion_is_the_same_with_any_number_of_threads() {
    let bytes = TinyModel::new(Family::Gemma3, true).gguf(BF16).build();
    let convert = |threads| {
        let options = Options { threads, ..options(Quant::Q4G64) };
        convert_bytes(&bytes, &options).unwrap().0.fingerprint()
    };
    assert_eq!(convert(1), convert(2));
    assert_eq!(convert(1), convert(7));
}

#[test]
fn weights_beyond_f16_are_kept_as_f32_and_said_so() {
    let mut b = TinyModel::new(Family::Qwen3, true).gguf(F32);
    b.tensor_mut("token_embd.weight").data[..4].copy_from_slice(&70_000f32.to_le_bytes());
    for quant in [Quant::Q4G64, Quant::Q8, Quant::F16] {
        let (file, report) = convert_bytes(&b.build(), &options(quant)).unwrap();
        assert_eq!(file.matrix(EMBED).kind(), Kind::F32);
        assert!(report.notes.iter().any(|n| n.starts_with("token_embd.weight")), "{quant:?}");
    }
    // Q4_0 whose minimum −8d would be beyond f16, where 96 columns need one.
    let down = TensorId { layer: Some(1), role: Role::FfnDown };
    let mut data = blocks(TensorType::Q4_0, DIM, FFN, 1);
    data[..2].copy_from_slice(&f32_to_f16(9000.0).to_le_bytes());
    let expected = dequantized(TensorType::Q4_0, &data, FFN);
    let mut b = TinyModel::new(Family::Qwen3, true).gguf(F32);
    let tensor = b.tensor_mut("blk.1.ffn_down.weight");
    (tensor.kind, tensor.data) = (Q4_0, data);
    let (file, report) = keep(&b);
    assert!(!file.matrix(down).kind().is_quantized());
    assert_eq!(report.notes.len(), 1);
    let largest = expected.iter().fold(0f32, |a, v| a.max(v.abs()));
    for (a, b) in read(&file, down).iter().zip(&expected) {
        assert!((a - b).abs() <= largest / 1024.0);
    }
}

#[test]
fn values_that_are_not_finite_are_refused_by_tensor() {
    for quant in Quant::ALL {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut b = TinyModel::new(Family::Qwen3, true).gguf(F32);
            b.tensor_mut("blk.1.ffn_up.weight").data[400..404].copy_from_slice(&bad.to_le_bytes());
            let e = convert_bytes(&b.build(), &options(quant)).err().unwrap().to_string();
            assert!(e.contains("blk.1.ffn_up.weight"), "{quant:?}: {e}");
            let mut b = TinyModel::new(Family::Qwen3, true).gguf(F32);
            b.tensor_mut("output_norm.weight").data[..4].copy_from_slice(&bad.to_le_bytes());
            let e = convert_bytes(&b.build(), &options(quant)).err().unwrap().to_string();
            assert!(e.contains("output_norm.weight"), "{quant:?}: {e}");
        }
        for kind in TensorType::SUPPORTED.into_iter().filter(|k| k.block_len() == 32) {
            let mut data = blocks(kind, VOCAB, DIM, 2);
            data[..2].copy_from_slice(&0x7e00u16.to_le_bytes());
            let e = convert_bytes(&with_embed(kind, data).build(), &options(quant));
            let e = e.err().unwrap().to_string();
            assert!(e.contains("token_embd.weight"), "{kind:?} {quant:?}: {e}");
        }
    }
}

#[test]
fn a_head_that_repeats_the_embedding_is_stored_once() {
    let model = TinyModel::new(Family::Llama, true);
    let mut b = model.gguf(BF16);
    let embed = b.tensor_mut("token_embd.weight").clone();
    b.tensor("output.weight", &embed.dims, embed.kind, embed.data.clone());
    let (file, report) = keep(&b);
    assert!(file.config().tied_head);
    assert_eq!(report.notes.len(), 1);
    b.tensor_mut("output.weight").data[0] ^= 1;
    let (file, report) = keep(&b);
    assert!(!file.config().tied_head && report.notes.is_empty());
    assert_eq!(read(&file, EMBED).len(), read(&file, HEAD).len());
}

#[test]
fn rope_scaling_reaches_the_tables() {
    let model = TinyModel::new(Family::Llama, true);
    let mut b = model.gguf(BF16);
    b.str("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0);
    let (file, _) = keep(&b);
    for (a, b) in file.config().ropes[0].iter().zip(&model.config.ropes[0]) {
        assert_eq!(*a, b / 4.0);
    }
    let mut b = model.gguf(BF16);
    let factors: Vec<f32> = (0..HEAD_DIM / 2).map(|i| 1.0 + i as f32).collect();
    b.tensor("rope_freqs.weight", &[HEAD_DIM as u64 / 2], F32, encode(&factors, F32));
    let (file, _) = keep(&b);
    for (i, (a, b)) in file.config().ropes[0].iter().zip(&model.config.ropes[0]).enumerate() {
        assert_eq!(*a, b / (1.0 + i as f64));
    }
    // Gemma scales what its global layers see, and only that.
    let model = TinyModel::new(Family::Gemma3, true);
    let mut b = model.gguf(BF16);
    b.str("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8.0);
    let (file, _) = keep(&b);
    assert_eq!(file.config().ropes[0][1], model.config.ropes[0][1] / 8.0);
    assert_eq!(file.config().ropes[1], model.config.ropes[1]);
    for kind in ["yarn", "longrope", "dynamic"] {
        let mut b = TinyModel::new(Family::Llama, true).gguf(BF16);
        refused(b.str("llama.rope.scaling.type", kind), kind);
    }
}

#[test]
fn layers_may_differ_where_the_file_says_so() {
    let model = TinyModel::new(Family::Gemma3, true);
    let mut b = model.gguf(BF16);
    let mut array = [&7u32.to_le_bytes()[..], &(LAYERS as u64).to_le_bytes()].concat();
    array.extend([1, 0, 1, 0, 1, 0, 1]);
    b.value("gemma3.attention.sliding_window_pattern", ARRAY, array);
    let (file, _) = keep(&b);
    let local: Vec<bool> = file.config().layers.iter().map(|l| l.window.is_some()).collect();
    assert_eq!(local, [true, false, true, false, true, false, true]);
    let mut b = model.gguf(BF16);
    b.u32("gemma3.attention.sliding_window_pattern", 2);
    let (file, _) = keep(&b);
    assert!(file.config().layers[1].window.is_none() && file.config().layers[2].window.is_some());
    let mut b = model.gguf(BF16);
    let mut array = [&U32.to_le_bytes()[..], &(LAYERS as u64).to_le_bytes()].concat();
    (0..LAYERS).for_each(|_| array.extend((FFN as u32).to_le_bytes()));
    b.value("gemma3.feed_forward_length", ARRAY, array);
    keep(&b);
    let short = [&U32.to_le_bytes()[..], &1u64.to_le_bytes(), &96u32.to_le_bytes()].concat();
    refused(b.value("gemma3.feed_forward_length", ARRAY, short), "gemma3.feed_forward_length");
}

#[test]
fn impossible_values_are_refused_by_key() {
    let model = TinyModel::new(Family::Qwen3, true);
    let base = model.gguf(BF16);
    for (key, values) in [
        ("block_count", vec![0, 513, 1 << 31, 6, 8]),
        ("embedding_length", vec![0, 1 << 31, 63]),
        ("attention.head_count", vec![0, 3, 1 << 31]),
        ("attention.head_count_kv", vec![0, 3, 1 << 31]),
        ("attention.key_length", vec![0, 15, 17, 1 << 31]),
        ("attention.value_length", vec![8, 1 << 31]),
        ("rope.dimension_count", vec![8, 15]),
        ("feed_forward_length", vec![0, 1 << 31]),
        ("context_length", vec![0, 1 << 31]),
        ("vocab_size", vec![0, 271, 1 << 31]),
        ("expert_count", vec![8]),
        ("attention.sliding_window", vec![512]),
    ] {
        for value in values {
            let mut b = base.clone();
            let key = format!("qwen3.{key}");
            b.u32(&key, value);
            let e = convert_bytes(&b.build(), &Options::default()).err();
            let e = e.unwrap_or_else(|| panic!("{key} = {value} is accepted")).to_string();
            // A value that is possible by itself contradicts a tensor, which is named instead.
            assert!(e.contains(&key) || e.contains("tensor `"), "{key} = {value}: {e}");
        }
    }
    let denormal = f32::from_bits(1);
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-6, 0.0, denormal] {
        for key in ["qwen3.attention.layer_norm_rms_epsilon", "qwen3.rope.freq_base"] {
            refused(base.clone().f32(key, value), key);
        }
    }
    for key in ["block_count", "embedding_length", "attention.head_count", "context_length"] {
        let key = format!("qwen3.{key}");
        refused(base.clone().remove(&key), &key);
        refused(base.clone().str(&key, "4"), &key);
        refused(base.clone().f32(&key, 4.0), &key);
    }
    refused(base.clone().f32("qwen3.final_logit_softcapping", 30.0), "final_logit_softcapping");
    refused(base.clone().bool("qwen3.attention.causal", false), "attention.causal");
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let base = TinyModel::new(Family::Qwen3, true).gguf(BF16);
    refused(base.clone().str("general.architecture", "mamba9"), "mamba9");
    refused(base.clone().remove("general.architecture"), "general.architecture");
    refused(base.clone().u32("qwen3.attention.new_trick", 1), "qwen3.attention.new_trick");
    let extra = vec![0; 256];
    refused(base.clone().tensor("blk.0.extra.weight", &[64], F32, extra), "blk.0.extra.weight");
    for name in ["token_embd.weight", "blk.3.attn_v.weight", "output_norm.weight"] {
        refused(base.clone().remove_tensor(name), name);
    }
    let mut b = base.clone();
    let t = b.tensor_mut("blk.0.ffn_up.weight");
    t.dims.swap(0, 1);
    refused(&b, "blk.0.ffn_up.weight");
    let mut b = base.clone();
    let t = b.tensor_mut("token_embd.weight");
    (t.kind, t.data) = (20, vec![0; VOCAB * DIM / 32 * 18]);
    refused(&b, "IQ4_NL");
    refused(base.clone().str("tokenizer.ggml.pre", "mystery"), "mystery");
    refused(base.clone().u32("tokenizer.ggml.eos_token_id", 999), "eos_token_id");
    refused(base.clone().remove("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
}

#[test]
fn inputs_that_are_no_models_are_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    for (bytes, part) in [
        (&b"hello world"[..], "neither a GGUF file"),
        (b"", "neither a GGUF file"),
        (b"KOUDAI\r\n", "cut short"),
        (b"FUGG\0\0\0\x03", "big-endian"),
        (b"GGUF\0\0\0\x03", "big-endian"),
        (b"GGUF\x01\0\0\0", "version 1"),
        (b"GGUF\x09\0\0\0", "version 9"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let e = convert_path(&path, &Options::default()).err().unwrap().to_string();
        assert!(e.contains(part) && e.contains("/x:"), "{e}");
    }
    let e = convert_path(folder.path(), &Options::default()).err().unwrap().to_string();
    assert!(e.contains("config.json"), "{e}");
    let e = convert_path(&folder.path().join("nothing"), &Options::default()).err().unwrap();
    assert!(e.to_string().contains("nothing"), "{e}");
}

#[test]
fn values_of_golden_blocks_are_those_of_the_reference() {
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[i * 2..][..2], 16).unwrap()).collect()
    };
    let mut seen = Vec::new();
    for line in include_str!("../data/dequant.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let kind = TensorType::SUPPORTED.into_iter().find(|k| k.name() == fields[0]).unwrap();
        let expected: Vec<f32> = hex(fields[2])
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let mut values = vec![f32::NAN; expected.len()];
        dequant::read_row(kind, &hex(fields[1]), &mut values).unwrap();
        assert_eq!(values, expected, "{kind:?}");
        seen.push(kind);
    }
    assert_eq!(seen.len(), TensorType::SUPPORTED.len());
    assert!(dequant::read_row(TensorType::Q4_0, &[0; 17], &mut [0.0; 32]).is_none());
    assert!(
        dequant::read_row(TensorType::from_code(23).unwrap(), &[0; 136], &mut [0.; 256]).is_none()
    );
    assert_eq!(f16_to_f32(0x3c00), 1.0);
}

#[test]
fn real_models_convert() {
    for (name, dim) in [("SmolLM2-135M-Instruct.Q4_1.gguf", 576), ("gemma-3-270m-q4_k_m.gguf", 640)]
    {
        let Some(path) = model(name) else { continue };
        let (file, report) = convert_path(&path, &Options::default()).unwrap();
        assert_eq!(file.config().dim, dim);
        let source = std::fs::read(&path).unwrap();
        let gguf = koudai_convert::gguf::Gguf::parse(&source).unwrap();
        for t in report.tensors.iter().filter(|t| t.id.layer.is_none()) {
            let tensor = gguf.tensor(&t.source).unwrap();
            assert!(t.exact, "{name} {}", t.id);
            let [cols, _] = tensor.dims[..] else { continue };
            let (mut expected, mut values) = (vec![0.0; cols], vec![0.0; cols]);
            let row_bytes = tensor.kind.row_bytes(cols).unwrap();
            // Every row would take half a minute.
            for (row, data) in tensor.data.chunks_exact(row_bytes).enumerate().step_by(61) {
                dequant::read_row(tensor.kind, data, &mut expected).unwrap();
                file.matrix(t.id).read_row(row, &mut values);
                assert_eq!(values, expected, "{name} {} row {row}", t.id);
            }
        }
        assert!(report.tensors.iter().all(|t| t.rms_error < 0.006));
        if dim == 640 {
            assert_eq!(file.config().embed_scale, 640f32.sqrt());
            assert_eq!(file.config().layers[5].window, None);
            assert_eq!(file.config().layers[4].window, Some(512));
        }
    }
}

#[test]
fn a_stopped_conversion_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("tiny.gguf");
    std::fs::write(&input, TinyModel::new(Family::Llama, true).gguf(F32).build()).unwrap();
    let output = folder.path().join("tiny.koudai");
    for stage in [Stage::Hash, Stage::Convert] {
        let mut stop = |p: Progress| match p.stage == stage {
            true => Flow::Break(()),
            false => Flow::Continue(()),
        };
        let result = convert(&input, &output, &Options::default(), &mut stop);
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_missing_pre_tokenizer_can_be_named() {
    let mut gguf = TinyModel::new(Family::Llama, true).gguf(F32);
    gguf.remove("tokenizer.ggml.pre");
    let e = convert_bytes(&gguf.build(), &Options::default()).err().unwrap().to_string();
    assert!(e.contains("tokenizer.ggml.pre") && e.contains("`--pre`"), "{e}");
    let options = Options { pre: Some("smollm".into()), ..Options::default() };
    let (_, report) = convert_bytes(&gguf.build(), &options).unwrap();
    assert!(report.notes.iter().any(|n| n.contains("smollm")), "{:?}", report.notes);
}
