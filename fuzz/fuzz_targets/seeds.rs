//! Not a target: writes the inputs that fuzzing starts from into the folder `KOUDAI_SEEDS`, one folder
//! for each target, and ends. It is built as a target because what is built with coverage must be
//! linked with the fuzzer.
#![no_main]

use std::error::Error;
use std::path::Path;

use koudai::delta::{DeltaWriter, Op};
use koudai::file::{Attachment, AttachmentKind, ModelFile};
use koudai::golden::Golden;
use koudai::{CancelToken, Engine, OpenOptions, Session, SessionOptions};
use koudai_fuzz::{TEMPLATE, scratch, spec, write_model};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(
    init: end_after_writing(),
    |_data: &[u8]| {}
);

fn end_after_writing() {
    write_seeds().expect("seeds can be written");
    std::process::exit(0)
}

fn write_seeds() -> Result<(), Box<dyn Error>> {
    let folder = std::env::var("KOUDAI_SEEDS")?;
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), bytes)
    };
    let model = scratch("seed.koudai");
    write_model(&model)?;
    put("koudai_file", "tiny", &std::fs::read(&model)?)?;
    put("tokenizer_section", "tiny", &spec().to_bytes()?)?;

    let engine = Engine::open(&model, &OpenOptions { threads: Some(1), ..Default::default() })?;
    let saved = scratch("seed.session");
    for n in [1, 20] {
        let options = SessionOptions { context: Some(32), ..Default::default() };
        let mut session = Session::new(&engine, &options)?;
        session.append(&vec![97; n])?;
        session.save(&saved)?;
        put("session_file", &n.to_string(), &std::fs::read(&saved)?)?;
    }
    std::fs::remove_file(&saved)?;

    let golden = Golden::record(&engine, &["ab".into()], &CancelToken::default())?;
    put("packed_sections", "golden", &[&[0], &golden.encode()[..]].concat())?;
    let target = engine.file().model_hash();
    let (kind, name) = (AttachmentKind::Draft, String::new());
    let draft = Attachment { kind, name, target, payload: b"draft".to_vec().into() };
    put("packed_sections", "draft", &[&[1], &draft.envelope()[..], b"draft"].concat())?;
    put("packed_sections", "signed", &[&[2, 1, 0, 0, 0][..], &[3; 96]].concat())?;
    put("delta", "tiny", &delta(engine.file())?)?;
    std::fs::remove_file(&model)?;

    put("template", "chatml", TEMPLATE.as_bytes())?;
    for (i, source) in [
        "{%- set ns = namespace(a=1) -%}{{ bos_token }}{{ messages[0]['content'][1:] }}",
        "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f(messages[-1].role) }}",
        "{% if loop is defined %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y') }}",
        "{% for i in range(3) %}{{ loop.first }}{{ i * 2 }}{{ 'a' ~ i }}{% endfor %}",
        "{{ messages | tojson }}{{ messages | map(attribute='role') | join(', ') }}",
        "{%- for m in messages if m.role == 'user' %}{{ m.content.split('a')[0].strip() }}{% endfor %}",
    ]
    .iter()
    .enumerate()
    {
        put("template", &i.to_string(), source.as_bytes())?;
    }
    for (name, tokenizer) in tokenizers() {
        put("tokenizer_json", name, &serde_json::to_vec(&tokenizer)?)?;
    }
    put("gguf", "tiny", &gguf())?;
    put("safetensors_folder", "tiny", &hf_folder()?)?;
    Ok(())
}

/// A delta from a file to itself with every operation, without its hash.
fn delta(file: &ModelFile) -> Result<Vec<u8>, Box<dyn Error>> {
    let path = scratch("seed.kdelta");
    let mut writer = DeltaWriter::create(&path, file, "seed.koudai", file)?;
    for (i, piece) in file.bytes().chunks(4096).enumerate() {
        let at = i as u64 * 4096;
        writer.push(&match i % 3 {
            0 => Op::data(piece),
            1 => Op::change(at, piece, piece),
            _ => Op::Copy { len: piece.len() as u32, at },
        })?;
    }
    writer.finish()?;
    let mut bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    bytes.truncate(bytes.len() - 32);
    Ok(bytes)
}

fn tokenizers() -> Vec<(&'static str, Value)> {
    let added = json!([{ "id": 3, "content": "<|im_end|>", "special": true, "single_word": false,
                         "lstrip": false, "rstrip": false, "normalized": false }]);
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": true });
    let bpe = json!({ "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
                      "continuing_subword_prefix": null, "end_of_word_suffix": null,
                      "byte_fallback": false, "ignore_merges": false,
                      "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": ["a b"] });
    let whole = |pre: Value, normalizer: Value, model: &Value| {
        json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
                "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": null,
                "decoder": bytes, "model": model })
    };
    let split = json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Digits", "individual_digits": true }, bytes ] });
    let mut pairs = bpe.clone();
    pairs["merges"] = json!([["a", "b"]]);
    vec![
        ("bytes", whole(bytes.clone(), Value::Null, &bpe)),
        ("digits", whole(split, json!({ "type": "NFC" }), &pairs)),
    ]
}

/// Name of a tensor in GGUF and in folders, rows (0 for a vector) and columns.
const TENSORS: [(&str, &str, usize, usize); 11] = [
    ("token_embd", "embed_tokens", 259, 32),
    ("blk.0.attn_norm", "layers.0.input_layernorm", 0, 32),
    ("blk.0.attn_q", "layers.0.self_attn.q_proj", 4, 32),
    ("blk.0.attn_k", "layers.0.self_attn.k_proj", 2, 32),
    ("blk.0.attn_v", "layers.0.self_attn.v_proj", 2, 32),
    ("blk.0.attn_output", "layers.0.self_attn.o_proj", 32, 4),
    ("blk.0.ffn_norm", "layers.0.post_attention_layernorm", 0, 32),
    ("blk.0.ffn_gate", "layers.0.mlp.gate_proj", 4, 32),
    ("blk.0.ffn_up", "layers.0.mlp.up_proj", 4, 32),
    ("blk.0.ffn_down", "layers.0.mlp.down_proj", 32, 4),
    ("output_norm", "norm", 0, 32),
];

fn gguf() -> Vec<u8> {
    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }
    let int = |n: u32| (4u32, n.to_le_bytes().to_vec());
    let float = |x: f32| (6u32, x.to_le_bytes().to_vec());
    let text = |s: &str| (8u32, string(s));
    let strings = |all: &[String]| {
        let items: Vec<u8> = all.iter().flat_map(|s| string(s)).collect();
        (9u32, [&8u32.to_le_bytes()[..], &(all.len() as u64).to_le_bytes(), &items].concat())
    };
    let pieces: Vec<String> = (0..259u32)
        .map(|i| match i {
            258 => "<|im_end|>".into(),
            33..=126 => char::from(i as u8).to_string(),
            _ => format!("p{i}"),
        })
        .collect();
    let values = [
        ("general.architecture", text("llama")),
        ("general.alignment", int(32)),
        ("llama.context_length", int(64)),
        ("llama.embedding_length", int(32)),
        ("llama.block_count", int(1)),
        ("llama.feed_forward_length", int(4)),
        ("llama.attention.head_count", int(2)),
        ("llama.attention.head_count_kv", int(1)),
        ("llama.attention.key_length", int(2)),
        ("llama.attention.value_length", int(2)),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
        ("llama.rope.freq_base", float(1e4)),
        ("llama.rope.dimension_count", int(2)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.tokens", strings(&pieces)),
        ("tokenizer.ggml.merges", strings(&[])),
        ("tokenizer.ggml.eos_token_id", int(258)),
    ];
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend((TENSORS.len() as u64).to_le_bytes());
    file.extend((values.len() as u64).to_le_bytes());
    for (key, (kind, value)) in values {
        file.extend(string(key));
        file.extend(kind.to_le_bytes());
        file.extend(value);
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, _, rows, cols) in TENSORS {
        data.resize(data.len().next_multiple_of(32), 0);
        file.extend(string(&format!("{name}.weight")));
        let dims = if rows == 0 { vec![cols] } else { vec![cols, rows] };
        file.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|n| file.extend((*n as u64).to_le_bytes()));
        // 4-bit blocks of 32 where they fit, else f32.
        let quantized = rows > 0 && cols % 32 == 0;
        file.extend(if quantized { 3u32 } else { 0 }.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        let bytes = if quantized { rows * cols / 32 * 20 } else { rows.max(1) * cols * 4 };
        data.resize(data.len() + bytes, 0x30);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    [file, data].concat()
}

/// config.json, tokenizer.json and model.safetensors, with a zero byte after each text.
fn hf_folder() -> Result<Vec<u8>, serde_json::Error> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 32, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 259,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "eos_token_id": 3,
    });
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (_, name, rows, cols) in TENSORS {
        let shape = if rows == 0 { vec![cols] } else { vec![rows, cols] };
        let end = at + rows.max(1) * cols * 2;
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [at, end] });
        header.insert(format!("model.{name}.weight"), entry);
        at = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let tokenizer = tokenizers().remove(0).1;
    Ok([
        serde_json::to_vec(&config)?,
        vec![0],
        serde_json::to_vec(&tokenizer)?,
        vec![0],
        (header.len() as u64).to_le_bytes().to_vec(),
        header,
        vec![0x3f; at],
    ]
    .concat())
}
