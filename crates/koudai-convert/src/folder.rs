//! Reads Hugging Face folders: `config.json`, safetensors (one file or shards), tokenizer and chat
//! template.
//!
//! Finds and checks files; what `config.json` means is [`crate::arch::folder`]'s. Only safetensors
//! are read: pickled weights are programs. Start with [`Folder::open`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use koudai::bytes::SharedBytes;
use koudai::file::Defaults;
use koudai::tokenizer::Spec;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use crate::dequant::TensorType;
use crate::error::Error;
use crate::tokenizer::{TokenizerFiles, spec_from_tokenizer_json};
use crate::weights::Source;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";

/// Larger JSON files are refused before they are read; the largest tokenizers have 35 MB.
const MAX_JSON_BYTES: u64 = 48 << 20;

/// An opened folder: its configuration, and its weights' files mapped.
pub(crate) struct Folder {
    path: PathBuf,
    /// `config.json`.
    pub(crate) config: Map<String, Value>,
    /// Name and bytes of the files of weights, by name.
    pub(crate) shards: Vec<(String, SharedBytes)>,
    /// Which shard must have which tensor, if there is an index.
    index: Option<BTreeMap<String, String>>,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Folder, Error> {
        let Some(config) = read_object(path, CONFIG)? else {
            let why = "is a folder without a config.json";
            return Err(Error::Input(why.into()));
        };
        let (names, index) = if path.join(SINGLE).exists() {
            (BTreeSet::from([SINGLE.to_owned()]), None)
        } else if let Some(index) = read_object(path, INDEX)? {
            let index = weight_map(&index)?;
            (index.values().cloned().collect(), Some(index))
        } else {
            let why =
                format!("is a folder without {SINGLE} or {INDEX} (only safetensors are read)");
            return Err(Error::Input(why));
        };
        let mut shards = Vec::new();
        for name in names {
            let bytes = koudai::file::map_file(&path.join(&name))?;
            shards.push((name, bytes));
        }
        Ok(Folder { path: path.to_owned(), config, shards, index })
    }

    /// Every tensor of every shard by name.
    pub(crate) fn tensors(&self) -> Result<BTreeMap<String, Source<'_>>, Error> {
        let mut tensors = BTreeMap::new();
        for (file, bytes) in &self.shards {
            let error = |why: String| Error::Folder { file: file.clone(), why };
            let shard = SafeTensors::deserialize(bytes).map_err(|e| error(e.to_string()))?;
            for (name, view) in shard.iter() {
                let place = self.index.as_ref().map(|index| index.get(name));
                if !matches!(place, None | Some(Some(_))) {
                    return Err(error(format!("tensor `{name}` isn't in {INDEX}")));
                }
                if place.flatten().is_some_and(|f| f != file) {
                    return Err(error(format!("tensor `{name}` is due in another file")));
                }
                let kind = match view.dtype() {
                    Dtype::F32 => TensorType::F32,
                    Dtype::F16 => TensorType::F16,
                    Dtype::BF16 => TensorType::BF16,
                    other => {
                        let why = format!("is stored as {other:?}; F32, F16 and BF16 are read");
                        return Err(Error::tensor(name, why));
                    }
                };
                let (rows, cols) = match *view.shape() {
                    [n] => (1, n),
                    [rows, cols] => (rows, cols),
                    ref shape => return Err(Error::tensor(name, format!("has shape {shape:?}"))),
                };
                let data = view.data();
                tensors.insert(name.to_owned(), Source { kind, rows, cols, data });
            }
        }
        if let Some(index) = &self.index
            && let Some(name) = index.keys().find(|name| !tensors.contains_key(*name))
        {
            return Err(Error::tensor(name, format!("is in {INDEX} but in no file")));
        }
        Ok(tensors)
    }

    /// The tokenizer of a model with `vocab_size` embedding rows.
    pub(crate) fn tokenizer(&self, vocab_size: usize) -> Result<Spec, Error> {
        let tokenizer = read(&self.path, TOKENIZER)?
            .ok_or_else(|| Error::Folder { file: TOKENIZER.into(), why: "is missing".into() })?;
        let config = match read(&self.path, "tokenizer_config.json")? {
            Some(config) => Some(config),
            None => read(&self.path, "special_tokens_map.json")?,
        };
        let files = TokenizerFiles {
            tokenizer: &tokenizer,
            config: config.as_deref(),
            end_ids: &self.end_ids(vocab_size)?,
        };
        let spec = spec_from_tokenizer_json(&files)?;
        if spec.tokens.len() > vocab_size {
            let why = format!("has {} tokens for {vocab_size} embedding rows", spec.tokens.len());
            return Err(Error::Folder { file: TOKENIZER.into(), why });
        }
        Ok(spec)
    }

    /// Ids that end generation: `eos_token_id` of `generation_config.json`, else of `config.json`.
    fn end_ids(&self, vocab_size: usize) -> Result<Vec<u32>, Error> {
        const KEY: &str = "eos_token_id";
        let generation = read_object(&self.path, "generation_config.json")?;
        let present =
            |config: &Map<String, Value>| config.get(KEY).filter(|v| !v.is_null()).cloned();
        let ids = match generation.as_ref().and_then(present).or_else(|| present(&self.config)) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(one) => vec![one],
        };
        let id = |v: &Value| match v.as_u64().map(u32::try_from) {
            Some(Ok(id)) if (id as usize) < vocab_size => Ok(id),
            _ => Err(Error::key(KEY, format!("has {v}, there are {vocab_size} tokens"))),
        };
        ids.iter().map(id).collect()
    }

    /// The chat template, from whichever file has it.
    pub(crate) fn template(&self) -> Result<Option<String>, Error> {
        const JINJA: &str = "chat_template.jinja";
        if let Some(bytes) = read(&self.path, JINJA)? {
            let text = String::from_utf8(bytes)
                .map_err(|_| Error::Folder { file: JINJA.into(), why: "is not UTF-8".into() })?;
            return Ok(Some(text));
        }
        for file in ["chat_template.json", "tokenizer_config.json"] {
            let value = read_object(&self.path, file)?.and_then(|mut o| o.remove("chat_template"));
            match value {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => return Ok(Some(text)),
                // Several by name.
                Some(Value::Array(list)) => {
                    let default = list.iter().find(|t| t["name"] == "default");
                    return Ok(default.and_then(|t| t["template"].as_str()).map(str::to_owned));
                }
                Some(_) => {
                    let why = "`chat_template` is neither a string nor a list".into();
                    return Err(Error::Folder { file: file.into(), why });
                }
            }
        }
        Ok(None)
    }

    /// Sampling advice.
    pub(crate) fn defaults(&self) -> Result<Defaults, Error> {
        const FILE: &str = "generation_config.json";
        let Some(config) = read_object(&self.path, FILE)? else { return Ok(Defaults::default()) };
        let number = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => match v.as_f64() {
                Some(n) if n.is_finite() && n >= 0.0 => Ok(Some(n)),
                _ => Err(Error::Folder { file: FILE.into(), why: format!("`{key}` is {v}") }),
            },
        };
        let float = |key: &str| number(key).map(|n| n.map(|n| n as f32));
        Ok(Defaults {
            temperature: float("temperature")?,
            top_k: number("top_k")?.map(|k| k as u32),
            top_p: float("top_p")?,
            min_p: float("min_p")?,
            repetition_penalty: float("repetition_penalty")?,
        })
    }

    /// The license that the folder's README declares.
    pub(crate) fn license(&self) -> Result<Option<String>, Error> {
        let readme = read(&self.path, "README.md")?.unwrap_or_default();
        let readme = String::from_utf8_lossy(&readme);
        let mut lines = readme.lines();
        if lines.next() != Some("---") {
            return Ok(None);
        }
        let front = lines.take_while(|line| *line != "---");
        let license = front.filter_map(|line| line.strip_prefix("license:")).next();
        Ok(license.map(|l| l.trim().trim_matches(['"', '\'']).to_owned()).filter(|l| !l.is_empty()))
    }

    /// What the conversion depends on: name and bytes of every file that is read.
    pub(crate) fn contents(&self) -> Result<Vec<(String, SharedBytes)>, Error> {
        let mut all = Vec::new();
        for name in [
            CONFIG,
            TOKENIZER,
            "tokenizer_config.json",
            "special_tokens_map.json",
            "generation_config.json",
            "chat_template.jinja",
            "chat_template.json",
        ] {
            if let Some(bytes) = read(&self.path, name)? {
                all.push((name.to_owned(), bytes.into()));
            }
        }
        all.extend(self.shards.iter().cloned());
        Ok(all)
    }
}

fn weight_map(index: &Map<String, Value>) -> Result<BTreeMap<String, String>, Error> {
    let error = |why: String| Error::Folder { file: INDEX.into(), why };
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| error("has no `weight_map`".into()))?;
    let entry = |(tensor, file): (&String, &Value)| {
        // A shard is a file of this folder: a path could point anywhere.
        let plain = |f: &&str| f.ends_with(".safetensors") && !f.contains(['/', '\\', ':', '\0']);
        match file.as_str().filter(plain) {
            Some(file) => Ok((tensor.clone(), file.to_owned())),
            None => Err(error(format!("tensor `{tensor}` is said to be in {file}"))),
        }
    };
    map.iter().map(entry).collect()
}

/// A file's bytes, or `None` if there is no such file.
fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let path = folder.join(name);
    match read_json(&path) {
        Err(Error::Io(_, e)) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        bytes => bytes.map(Some),
    }
}

/// The bytes of a JSON file, refused if it is larger than any real model's: parsed, it takes many
/// times its size.
pub fn read_json(path: &Path) -> Result<Vec<u8>, Error> {
    let io = |e| Error::Io(path.to_owned(), e);
    let len = std::fs::metadata(path).map_err(io)?.len();
    if len > MAX_JSON_BYTES {
        let file = path.display().to_string();
        let why = format!("has {len} bytes, more than the {MAX_JSON_BYTES} accepted");
        return Err(Error::Folder { file, why });
    }
    std::fs::read(path).map_err(io)
}

fn read_object(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>, Error> {
    let Some(bytes) = read(folder, name)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(Error::Folder { file: name.into(), why: "is no JSON object".into() }),
        Err(e) => Err(Error::Folder { file: name.into(), why: e.to_string() }),
    }
}
