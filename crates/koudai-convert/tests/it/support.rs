//! Tiny files made by hand: a GGUF writer, a model in both formats, a folder that vanishes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use koudai::file::ModelFile;
use koudai::{Config, Role, Shape, TensorId};
use koudai_convert::arch::{self, Family};
use koudai_convert::{Error, Options, Report, convert};
use koudai_kernels::num::{f32_to_bf16, f32_to_f16};
use serde_json::{Value, json};

// GGUF's numbers of value types and of tensor types.
pub(crate) const U32: u32 = 4;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 1;
pub(crate) const Q4_0: u32 = 2;
pub(crate) const Q4_1: u32 = 3;
pub(crate) const BF16: u32 = 30;

/// Builds GGUF files, right or wrong.
#[derive(Clone)]
pub(crate) struct GgufBuilder {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) values: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) align: usize,
}

#[derive(Clone)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
    /// Written instead of the right offset.
    pub(crate) offset: Option<u64>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self { magic: *b"GGUF", version: 3, values: vec![], tensors: vec![], align: 32 }
    }
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

pub(crate) fn strings(items: &[String]) -> Vec<u8> {
    let mut bytes = [&STRING.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    items.iter().for_each(|s| bytes.extend(string(s)));
    bytes
}

impl GgufBuilder {
    pub(crate) fn value(&mut self, key: &str, kind: u32, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.values.retain(|v| v.0 != key.as_bytes());
        self.values.push((key.into(), kind, bytes.into()));
        self
    }
    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.value(key, U32, value.to_le_bytes())
    }
    pub(crate) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.value(key, 6, value.to_le_bytes())
    }
    pub(crate) fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.value(key, 7, [value as u8])
    }
    pub(crate) fn str(&mut self, key: &str, value: &str) -> &mut Self {
        self.value(key, STRING, string(value))
    }
    pub(crate) fn remove(&mut self, key: &str) -> &mut Self {
        self.values.retain(|v| v.0 != key.as_bytes());
        self
    }
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        kind: u32,
        data: Vec<u8>,
    ) -> &mut Self {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.tensors.push(TensorEntry { name, dims, kind, data, offset: None });
        self
    }
    pub(crate) fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|t| t.name != name);
        self
    }
    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut TensorEntry {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.values {
            out.extend((key.len() as u64).to_le_bytes());
            out.extend(key);
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        let mut offset = 0;
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend(t.offset.unwrap_or(offset as u64).to_le_bytes());
            offset += t.data.len().next_multiple_of(self.align);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(self.align), 0);
            out.extend(&t.data);
        }
        out
    }
}

/// A small model as values, to be written in either format.
pub(crate) struct TinyModel {
    pub(crate) family: Family,
    pub(crate) config: Config,
    /// What the engine is to compute with.
    pub(crate) values: BTreeMap<TensorId, Vec<f32>>,
}

pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    /// A number that bf16 holds exactly.
    pub(crate) fn weight(&mut self) -> f32 {
        let value = (self.next() % 20_001) as f32 / 10_000.0 - 1.0;
        f32::from_bits((f32_to_bf16(value * 0.1) as u32) << 16)
    }
}

pub(crate) const DIM: usize = 64;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 16;
pub(crate) const FFN: usize = 96;
pub(crate) const VOCAB: usize = 272;
pub(crate) const LAYERS: usize = 7;

impl TinyModel {
    pub(crate) fn new(family: Family, tied: bool) -> TinyModel {
        let gemma = family == Family::Gemma3;
        let rope = |theta: f64| -> Vec<f64> {
            (0..HEAD_DIM / 2).map(|i| theta.powf(-2.0 * i as f64 / HEAD_DIM as f64)).collect()
        };
        let layer = |i: usize| koudai::LayerConfig {
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            ffn_dim: FFN,
            window: (gemma && i != 5).then_some(32),
            rope: (gemma && i != 5) as usize,
            attn_scale: 0.25,
            activation: match gemma {
                true => koudai::Activation::GeluTanh,
                false => koudai::Activation::Silu,
            },
            qkv_bias: family == Family::Qwen2,
            qk_norm: matches!(family, Family::Qwen3 | Family::Gemma3),
            post_norms: gemma,
        };
        let config = Config {
            dim: DIM,
            vocab_size: VOCAB,
            context_length: 2048,
            norm_eps: 1e-6,
            embed_scale: if gemma { 8.0 } else { 1.0 },
            tied_head: tied,
            ropes: if gemma { vec![rope(1e6), rope(1e4)] } else { vec![rope(1e4)] },
            layers: (0..LAYERS).map(layer).collect(),
        };
        let mut random = Random(5);
        let mut values = BTreeMap::new();
        for (id, shape) in config.tensors() {
            let n = match shape {
                Shape::Vector(n) => n,
                Shape::Matrix { rows, cols } => rows * cols,
            };
            // Gemma's norms are stored less 1, which must be a bf16 number.
            let one = if gemma && is_norm(id.role) { 1.0 } else { 0.0 };
            values.insert(id, (0..n).map(|_| one + random.weight()).collect());
        }
        TinyModel { family, config, values }
    }

    fn shape(&self, id: TensorId) -> (usize, usize) {
        let shape = self.config.tensors().into_iter().find(|t| t.0 == id).unwrap().1;
        match shape {
            Shape::Vector(n) => (1, n),
            Shape::Matrix { rows, cols } => (rows, cols),
        }
    }

    /// As a GGUF file, matrices as `kind` (F32, F16, BF16), vectors as F32.
    pub(crate) fn gguf(&self, kind: u32) -> GgufBuilder {
        let mut b = GgufBuilder::default();
        let name = self.family.name();
        let key = |k: &str| format!("{name}.{k}");
        b.str("general.architecture", name).str("general.name", "tiny");
        b.u32(&key("block_count"), LAYERS as u32).u32(&key("context_length"), 2048);
        b.u32(&key("embedding_length"), DIM as u32).u32(&key("feed_forward_length"), FFN as u32);
        b.u32(&key("attention.head_count"), HEADS as u32);
        b.u32(&key("attention.head_count_kv"), KV_HEADS as u32);
        b.u32(&key("attention.key_length"), HEAD_DIM as u32);
        b.u32(&key("attention.value_length"), HEAD_DIM as u32);
        b.f32(&key("attention.layer_norm_rms_epsilon"), 1e-6);
        if self.family == Family::Gemma3 {
            b.u32(&key("attention.sliding_window"), 32).f32(&key("rope.freq_base"), 1e6);
        } else {
            b.f32(&key("rope.freq_base"), 1e4);
        }
        let (tokens, types) = tokens();
        b.str("tokenizer.ggml.model", "gpt2").str("tokenizer.ggml.pre", "gpt-2");
        b.value("tokenizer.ggml.tokens", ARRAY, strings(&tokens));
        let mut array = [&5u32.to_le_bytes()[..], &(types.len() as u64).to_le_bytes()].concat();
        types.iter().for_each(|t| array.extend(t.to_le_bytes()));
        b.value("tokenizer.ggml.token_type", ARRAY, array);
        b.value("tokenizer.ggml.merges", ARRAY, strings(&[]));
        b.u32("tokenizer.ggml.eos_token_id", 256);
        b.str("tokenizer.chat_template", "{{ messages[0].content }}");
        for (id, values) in &self.values {
            let (rows, cols) = self.shape(*id);
            let permuted = self.family == Family::Llama
                && matches!(id.role, Role::AttnQ | Role::AttnK | Role::AttnQBias | Role::AttnKBias);
            let values = if permuted { pair_rows(values, rows, cols) } else { values.clone() };
            let name = arch::gguf::tensor_name(*id);
            match rows {
                1 => b.tensor(&name, &[cols as u64], F32, encode(&values, F32)),
                _ => b.tensor(&name, &[cols as u64, rows as u64], kind, encode(&values, kind)),
            };
        }
        b
    }

    /// As a Hugging Face folder with BF16 weights in `shards` files.
    pub(crate) fn folder(&self, path: &Path, shards: usize) {
        self.folder_with(path, shards, |_| {}, |_| {});
    }

    /// The same, with changes to `config.json` and to the list of tensors.
    pub(crate) fn folder_with(
        &self,
        path: &Path,
        shards: usize,
        edit: impl FnOnce(&mut serde_json::Map<String, Value>),
        edit_tensors: impl FnOnce(&mut Vec<(String, Vec<usize>, Vec<u8>)>),
    ) {
        std::fs::create_dir_all(path).unwrap();
        let (model_type, class) = match self.family {
            Family::Llama => ("llama", "LlamaForCausalLM"),
            Family::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Family::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
            Family::Gemma3 => ("gemma3_text", "Gemma3ForCausalLM"),
        };
        let mut config = json!({
            "architectures": [class], "model_type": model_type, "hidden_size": DIM,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": FFN,
            "vocab_size": VOCAB, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": self.config.tied_head, "torch_dtype": "bfloat16",
            "eos_token_id": 256, "rope_scaling": null, "use_cache": true,
        });
        let config = config.as_object_mut().unwrap();
        if self.family == Family::Gemma3 {
            config.insert("hidden_activation".into(), json!("gelu_pytorch_tanh"));
            config.insert("sliding_window".into(), json!(32));
            config.insert("query_pre_attn_scalar".into(), json!(16));
            config.insert("rope_theta".into(), json!(1e6));
            config.insert("rope_local_base_freq".into(), json!(1e4));
        } else {
            config.insert("hidden_act".into(), json!("silu"));
            config.insert("rope_theta".into(), json!(1e4));
        }
        edit(config);
        let write = |name: &str, value: &Value| {
            std::fs::write(path.join(name), value.to_string()).unwrap();
        };
        write("config.json", &Value::Object(config.clone()));
        write("tokenizer.json", &tokenizer_json());
        write(
            "generation_config.json",
            &json!({"temperature": 0.6, "top_k": 20, "eos_token_id": [256]}),
        );
        std::fs::write(path.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
        let mut tensors = Vec::new();
        for (id, values) in &self.values {
            let (rows, cols) = self.shape(*id);
            let less = if self.family == Family::Gemma3 && is_norm(id.role) { 1.0 } else { 0.0 };
            let values: Vec<f32> = values.iter().map(|v| v - less).collect();
            let shape = if rows == 1 { vec![cols] } else { vec![rows, cols] };
            let name = arch::folder::tensor_name(self.family, *id);
            tensors.push((name, shape, encode(&values, BF16)));
        }
        edit_tensors(&mut tensors);
        let mut map = serde_json::Map::new();
        for i in 0..shards {
            let file = match shards {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{shards:05}.safetensors", i + 1),
            };
            let part: Vec<_> = tensors.iter().skip(i).step_by(shards).cloned().collect();
            part.iter().for_each(|t| drop(map.insert(t.0.clone(), json!(file))));
            std::fs::write(path.join(file), safetensors(&part)).unwrap();
        }
        if shards > 1 {
            write("model.safetensors.index.json", &json!({"weight_map": map}));
        }
    }
}

fn safetensors(tensors: &[(String, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape, data) in tensors {
        let range = [at, at + data.len()];
        header
            .insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": range}));
        at += data.len();
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let data = tensors.iter().flat_map(|t| t.2.iter().copied());
    (header.len() as u64).to_le_bytes().into_iter().chain(header).chain(data).collect()
}

pub(crate) fn is_norm(role: Role) -> bool {
    role.name().ends_with("norm")
}

pub(crate) fn encode(values: &[f32], kind: u32) -> Vec<u8> {
    match kind {
        F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        F16 => values.iter().flat_map(|v| f32_to_f16(*v).to_le_bytes()).collect(),
        BF16 => values.iter().flat_map(|v| f32_to_bf16(*v).to_le_bytes()).collect(),
        _ => panic!("not a float type"),
    }
}

/// What llama.cpp's converter does to query and key rows: (half, i) becomes (i, half).
pub(crate) fn pair_rows(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let (rows, cols) = if rows == 1 { (cols, 1) } else { (rows, cols) };
    let mut out = vec![0.0; values.len()];
    for row in 0..rows {
        let (head, r) = (row / HEAD_DIM, row % HEAD_DIM);
        let (half, i) = (r / (HEAD_DIM / 2), r % (HEAD_DIM / 2));
        let to = head * HEAD_DIM + i * 2 + half;
        out[to * cols..][..cols].copy_from_slice(&values[row * cols..][..cols]);
    }
    out
}

/// GPT-2's printable alphabet of the 256 bytes, in byte order.
pub(crate) fn alphabet() -> Vec<String> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut letter = |b: u32| {
        let code = if printable(b) { b } else { next };
        next += !printable(b) as u32;
        char::from_u32(code).unwrap().to_string()
    };
    (0..256).map(&mut letter).collect()
}

fn tokens() -> (Vec<String>, Vec<i32>) {
    let mut tokens = alphabet();
    let mut types = vec![1; 256];
    tokens.push("<|im_end|>".into());
    types.push(3);
    while tokens.len() < VOCAB {
        tokens.push(format!("[PAD{}]", tokens.len()));
        types.push(5);
    }
    (tokens, types)
}

pub(crate) fn tokenizer_json() -> Value {
    let vocab: serde_json::Map<String, Value> =
        alphabet().into_iter().enumerate().map(|(i, c)| (c, json!(i))).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 256, "content": "<|im_end|>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}

/// Converts a GGUF given as bytes.
pub(crate) fn convert_bytes(bytes: &[u8], options: &Options) -> Result<(ModelFile, Report), Error> {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.gguf");
    std::fs::write(&input, bytes).unwrap();
    convert_path(&input, options)
}

/// Converts a file or folder, and checks that a failure leaves nothing behind.
pub(crate) fn convert_path(input: &Path, options: &Options) -> Result<(ModelFile, Report), Error> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.koudai");
    match convert(input, &output, options, &mut |_| {}) {
        Ok(report) => {
            let file = ModelFile::open(&output).unwrap();
            file.verify().unwrap();
            assert_eq!(file.len_bytes(), report.bytes);
            Ok((file, report))
        }
        Err(e) => {
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
            Err(e)
        }
    }
}

/// Every value of a tensor in a converted file.
pub(crate) fn read(file: &ModelFile, id: TensorId) -> Vec<f32> {
    let info = file.tensors().iter().find(|t| t.id == id).unwrap();
    let Shape::Matrix { rows, cols } = info.shape else { return file.vector(id) };
    let matrix = file.matrix(id);
    let mut values = vec![0.0; rows * cols];
    for (row, out) in values.chunks_exact_mut(cols).enumerate() {
        matrix.read_row(row, out);
    }
    values
}

/// A real model, where it is present.
pub(crate) fn model(file: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let default = home.join(".cache/koudai-test-models");
    let path = std::env::var_os("KOUDAI_MODELS").map_or(default, PathBuf::from).join(file);
    if !path.exists() {
        println!("skipped: {} isn't there (set KOUDAI_MODELS)", path.display());
        return None;
    }
    Some(path)
}
