//! A tiny random Llama as a Hugging Face folder, as GGUF, and converted by the command itself.
//!
//! Bytes are tokens, so every text has ids. Rows of the head that aren't lower-case letters or the
//! space are zero, which makes the model write letters.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::support::{stdout, text};

pub(crate) const VOCAB: usize = 260;
pub(crate) const IM_START: u32 = 256;
pub(crate) const IM_END: u32 = 257;
/// Long, so that a run can be long enough to be interrupted.
pub(crate) const CONTEXT: usize = 1 << 20;

const DIM: usize = 64;
const FFN: usize = 96;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// SplitMix64, uniform in -1..1.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

struct Tensor {
    hf: String,
    gguf: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn tensors() -> Vec<Tensor> {
    let mut random = Random(11);
    let mut all = Vec::new();
    let mut add = |hf: String, gguf: String, shape: &[usize]| {
        let n = shape.iter().product();
        let norm = shape.len() == 1;
        let value = |_| if norm { 1.0 + 0.1 * random.unit() } else { 0.25 * random.unit() };
        let mut values: Vec<f32> = (0..n).map(value).collect();
        if gguf == "output.weight" {
            for (id, row) in values.chunks_exact_mut(DIM).enumerate() {
                let letter = id == 32 || (97..123).contains(&id);
                row.iter_mut().for_each(|w| *w *= if letter { 2.0 } else { 0.0 });
            }
        }
        all.push(Tensor { hf, gguf, shape: shape.to_vec(), values });
    };
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    add("model.embed_tokens.weight".into(), "token_embd.weight".into(), &[VOCAB, DIM]);
    for i in 0..LAYERS {
        for (hf, gguf, shape) in [
            ("input_layernorm", "attn_norm", vec![DIM]),
            ("self_attn.q_proj", "attn_q", vec![q, DIM]),
            ("self_attn.k_proj", "attn_k", vec![kv, DIM]),
            ("self_attn.v_proj", "attn_v", vec![kv, DIM]),
            ("self_attn.o_proj", "attn_output", vec![DIM, q]),
            ("post_attention_layernorm", "ffn_norm", vec![DIM]),
            ("mlp.gate_proj", "ffn_gate", vec![FFN, DIM]),
            ("mlp.up_proj", "ffn_up", vec![FFN, DIM]),
            ("mlp.down_proj", "ffn_down", vec![DIM, FFN]),
        ] {
            add(format!("model.layers.{i}.{hf}.weight"), format!("blk.{i}.{gguf}.weight"), &shape);
        }
    }
    add("model.norm.weight".into(), "output_norm.weight".into(), &[DIM]);
    add("lm_head.weight".into(), "output.weight".into(), &[VOCAB, DIM]);
    all
}

/// The character that stands for a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    match printable(byte) {
        true => byte as char,
        false => char::from_u32(256 + (0..byte).filter(|b| !printable(*b)).count() as u32).unwrap(),
    }
}

const CONTROL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>"];

fn pieces() -> Vec<String> {
    let bytes = (0..=255u8).map(|b| byte_char(b).to_string());
    bytes.chain(CONTROL.map(str::to_owned)).collect()
}

/// Writes the Hugging Face folder; `template` says whether it has a chat template.
pub(crate) fn write_folder(folder: &Path, template: bool) {
    std::fs::create_dir_all(folder).unwrap();
    let put = |name: &str, value: Value| {
        std::fs::write(folder.join(name), serde_json::to_vec(&value).unwrap()).unwrap();
    };
    put(
        "config.json",
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": DIM, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
            "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": false, "eos_token_id": IM_END,
        }),
    );
    let vocab: Map<String, Value> =
        pieces()[..256].iter().enumerate().map(|(id, piece)| (piece.clone(), json!(id))).collect();
    let added: Vec<Value> = CONTROL
        .iter()
        .zip(256..)
        .map(|(content, id)| {
            json!({ "id": id, "content": content, "special": true, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false })
        })
        .collect();
    put(
        "tokenizer.json",
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "post_processor": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false,
                               "trim_offsets": true, "use_regex": true },
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                         "use_regex": true },
            "model": { "type": "BPE", "dropout": null, "unk_token": null,
                       "continuing_subword_prefix": null, "end_of_word_suffix": null,
                       "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                       "vocab": vocab, "merges": [] },
        }),
    );
    let template = template.then_some(TEMPLATE);
    put("tokenizer_config.json", json!({ "eos_token": "<|im_end|>", "chat_template": template }));

    let mut header = Map::new();
    let mut data: Vec<u8> = Vec::new();
    for t in tensors() {
        let start = data.len();
        data.extend(t.values.iter().flat_map(|v| v.to_le_bytes()));
        header.insert(
            t.hf,
            json!({ "dtype": "F32", "shape": t.shape, "data_offsets": [start, data.len()] }),
        );
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let file = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// Writes the same shape as GGUF, all weights in f32. Its rows of q and k are the folder's, which
/// GGUF reads in another order, so it is another model.
pub(crate) fn write_gguf(path: &Path) {
    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }
    fn array(kind: u32, n: usize, items: Vec<u8>) -> Vec<u8> {
        [&kind.to_le_bytes()[..], &(n as u64).to_le_bytes(), &items].concat()
    }
    let u32_value = |n: usize| (4u32, (n as u32).to_le_bytes().to_vec());
    let f32_value = |x: f32| (6u32, x.to_le_bytes().to_vec());
    let text_value = |s: &str| (8u32, string(s));
    let strings =
        |all: &[String]| (9u32, array(8, all.len(), all.iter().flat_map(|s| string(s)).collect()));
    let kinds: Vec<u8> =
        (0..VOCAB).flat_map(|id| (if id < 256 { 1i32 } else { 3 }).to_le_bytes()).collect();
    let values = [
        ("general.architecture", text_value("llama")),
        ("general.name", text_value("tiny")),
        ("llama.context_length", u32_value(CONTEXT)),
        ("llama.embedding_length", u32_value(DIM)),
        ("llama.block_count", u32_value(LAYERS)),
        ("llama.feed_forward_length", u32_value(FFN)),
        ("llama.attention.head_count", u32_value(HEADS)),
        ("llama.attention.head_count_kv", u32_value(KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5)),
        ("llama.rope.freq_base", f32_value(1e4)),
        ("llama.rope.dimension_count", u32_value(HEAD_DIM)),
        ("tokenizer.ggml.model", text_value("gpt2")),
        ("tokenizer.ggml.pre", text_value("smollm")),
        ("tokenizer.ggml.tokens", strings(&pieces())),
        ("tokenizer.ggml.token_type", (9, array(5, VOCAB, kinds))),
        ("tokenizer.ggml.merges", strings(&[])),
        ("tokenizer.ggml.eos_token_id", u32_value(IM_END as usize)),
        ("tokenizer.chat_template", text_value(TEMPLATE)),
    ];
    let tensors = tensors();
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((values.len() as u64).to_le_bytes());
    for (key, (kind, value)) in values {
        file.extend(string(key));
        file.extend(kind.to_le_bytes());
        file.extend(value);
    }
    let mut data: Vec<u8> = Vec::new();
    for t in &tensors {
        data.resize(data.len().next_multiple_of(32), 0);
        file.extend(string(&t.gguf));
        file.extend((t.shape.len() as u32).to_le_bytes());
        t.shape.iter().rev().for_each(|n| file.extend((*n as u64).to_le_bytes()));
        file.extend(0u32.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(t.values.iter().flat_map(|v| v.to_le_bytes()));
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// The model in 8 bits, made once by `koudai convert`. The folder outlives the process, so that
/// nothing need clean up.
pub(crate) fn model() -> &'static str {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    text(MODEL.get_or_init(|| {
        let folder = fresh("tiny");
        write_folder(&folder.join("hf"), true);
        let path = folder.join("tiny.koudai");
        stdout(&["convert", text(&folder.join("hf")), "-o", text(&path), "--quant", "q8"]);
        path
    }))
}

/// The same without a chat template.
pub(crate) fn model_without_template() -> &'static str {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    text(MODEL.get_or_init(|| {
        let folder = fresh("plain");
        write_folder(&folder.join("hf"), false);
        let path = folder.join("plain.koudai");
        stdout(&["convert", text(&folder.join("hf")), "-o", text(&path)]);
        path
    }))
}

/// An empty folder under the scratch folder.
pub(crate) fn fresh(name: &str) -> PathBuf {
    let folder = crate::support::scratch().join(name);
    match std::fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", folder.display()),
        _ => std::fs::create_dir_all(&folder).unwrap(),
    }
    folder
}
