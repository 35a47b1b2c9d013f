//! A model as a Hugging Face folder: the inverse of what [`crate::convert`] makes of one.
//!
//! Written beside its name and renamed. Weights are dequantized some rows at a time. Start with
//! [`write`].

use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use koudai::kernels::Kind;
use koudai::kernels::num::{f32_to_bf16, f32_to_f16};
use koudai::{PartialFile, Shape};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value};

use super::{ExportOptions, ExportReport, ExportedTensor, Model, encode_rows};
use crate::arch::Transform;
use crate::arch::describe;
use crate::arch::folder::{tensor_name, transform};
use crate::convert::{Stage, Watch, tell};
use crate::dequant::{self, TensorType};
use crate::error::Error;
use crate::tokenizer::to_json::{spelling, tokenizer_json};

const WEIGHTS: &str = "model.safetensors";

/// Everything that an export writes, and so may replace.
const FILES: [&str; 7] = [
    "README.md",
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Refuses a place where something is that an export would not replace.
pub(super) fn check(output: &Path, force: bool) -> Result<(), Error> {
    let io = |e| Error::Io(output.to_owned(), e);
    if !output.exists() {
        return Ok(());
    }
    if !output.is_dir() {
        let why = "is a file; give the name of a folder, or one that ends in .gguf";
        return Err(Error::Input(why.into()));
    }
    for entry in std::fs::read_dir(output).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if !force {
            return Err(Error::Input("is a folder that isn't empty (--force replaces it)".into()));
        }
        if !FILES.iter().any(|file| name == *file) {
            let why = format!("holds {}, which is no part of an export", name.display());
            return Err(Error::Input(why));
        }
    }
    Ok(())
}

pub(super) fn write(
    model: &Model,
    output: &Path,
    options: &ExportOptions,
    progress: &mut Watch<'_>,
) -> Result<ExportReport, Error> {
    let dtype = options.dtype.unwrap_or_else(|| narrowest(model));
    let mut description = model.describe()?;
    let mut config = describe::folder::config_json(&mut description, dtype)?;
    let mut notes = description.notes;
    let tokenizer_config = tokenizer_config(model);
    let (tokenizer, more) = tokenizer_json(&model.tokenizer, &tokenizer_config)?;
    notes.extend(more);
    let generation = generation_config(model)?;
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        config.insert(key.into(), generation.get(key).cloned().unwrap_or(Value::Null));
    }

    let folder = PartialFolder::create(output)?;
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.file(name);
        PartialFile::write(&path, bytes).map_err(|e| Error::Io(path, e))
    };
    put("tokenizer.json", &tokenizer)?;
    put("config.json", &pretty(&config)?)?;
    put("generation_config.json", &pretty(&generation)?)?;
    put("special_tokens_map.json", &pretty(&special_tokens(model))?)?;
    put("tokenizer_config.json", &pretty(&tokenizer_config)?)?;
    put("README.md", card(model).as_bytes())?;
    let tensors = write_weights(model, &folder.file(WEIGHTS), dtype, progress)?;
    let bytes = folder.finish(options.force)?;
    let architecture = model.family.name();
    Ok(ExportReport { format: "safetensors", architecture, bytes, tensors, notes })
}

// ---- Small files ------------------------------------------------------------------------------

fn special_tokens(model: &Model) -> Map<String, Value> {
    let spec = &model.tokenizer;
    let roles = [
        ("bos_token", spec.bos),
        ("eos_token", spec.eos),
        ("pad_token", spec.pad),
        ("unk_token", spec.unk),
    ];
    let named = roles.into_iter().filter_map(|(role, id)| {
        Some((role.to_owned(), spelling(spec, &spec.tokens[id? as usize]).into()))
    });
    named.collect()
}

fn tokenizer_config(model: &Model) -> Map<String, Value> {
    let mut config = special_tokens(model);
    // By its architecture a reader would take a class that splits text in its own way.
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    config.insert("add_bos_token".into(), model.tokenizer.add_bos.into());
    config.insert("add_eos_token".into(), model.tokenizer.add_eos.into());
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    config.insert("model_max_length".into(), model.file.config().context_length.into());
    if let Some(template) = &model.template {
        config.insert("chat_template".into(), template.as_str().into());
    }
    config
}

fn generation_config(model: &Model) -> Result<Map<String, Value>, Error> {
    let (spec, advice) = (&model.tokenizer, model.file.defaults()?);
    // The model's own end first, as readers take the first where they want only one.
    let mut ends: Vec<u32> = spec.eos.into_iter().collect();
    ends.extend(spec.ends.iter().filter(|id| Some(**id) != spec.eos));
    let all: [(&str, Option<Value>); 8] = [
        ("bos_token_id", spec.bos.map(Value::from)),
        ("eos_token_id", (!ends.is_empty()).then(|| ends.into())),
        ("pad_token_id", spec.pad.map(Value::from)),
        ("temperature", advice.temperature.map(number)),
        ("top_k", advice.top_k.map(Value::from)),
        ("top_p", advice.top_p.map(number)),
        ("min_p", advice.min_p.map(number)),
        ("repetition_penalty", advice.repetition_penalty.map(number)),
    ];
    let mut config: Map<String, Value> =
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    if let Some(temperature) = advice.temperature {
        config.insert("do_sample".into(), (temperature > 0.0).into());
    }
    Ok(config)
}

fn number(x: f32) -> Value {
    describe::shortest(x).into()
}

/// A model card with what the file knows about itself.
fn card(model: &Model) -> String {
    let license = model.meta("license").map(|l| format!("---\nlicense: {}\n---\n", Value::from(l)));
    let name = model.meta("name").unwrap_or(model.family.name());
    let name = name.replace(['\n', '\r'], " ");
    format!("{}# {name}\n\nExported by `koudai export`.\n", license.unwrap_or_default())
}

fn pretty(map: &Map<String, Value>) -> Result<Vec<u8>, Error> {
    let json = serde_json::to_vec_pretty(map).map_err(crate::tokenizer::Error::from)?;
    Ok([json, b"\n".to_vec()].concat())
}

// ---- Weights ----------------------------------------------------------------------------------

/// The narrowest type that holds every value of the model.
fn narrowest(model: &Model) -> TensorType {
    let file = &model.file;
    let holds = |kind: Kind, dtype: TensorType| {
        file.tensors().iter().all(|info| match info.shape {
            Shape::Matrix { .. } => info.kind == kind,
            Shape::Vector(_) => Plan::of(model, info, dtype).encode(0..1).1,
        })
    };
    if holds(Kind::Bf16, TensorType::BF16) {
        return TensorType::BF16;
    }
    if holds(Kind::F16, TensorType::F16) { TensorType::F16 } else { TensorType::F32 }
}

fn write_weights(
    model: &Model,
    path: &Path,
    dtype: TensorType,
    progress: &mut Watch<'_>,
) -> Result<Vec<ExportedTensor>, Error> {
    let io = |e| Error::Io(path.to_owned(), e);
    let plans: Vec<Plan<'_>> =
        model.file.tensors().iter().map(|info| Plan::of(model, info, dtype)).collect();
    let (start, total) = header(&plans)?;
    let mut file = PartialFile::create(path).map_err(io)?;
    file.write_all(&start).map_err(io)?;
    let (mut done, mut tensors) = (0, Vec::with_capacity(plans.len()));
    for plan in plans {
        let encode = |rows| plan.encode(rows);
        let exact = encode_rows(plan.rows, plan.cols, encode, |part| {
            file.write_all(part).map_err(io)?;
            done += part.len() as u64;
            tell(progress, Stage::Export, done, total)
        })?;
        let (id, from, bytes) = (plan.info.id, plan.info.kind, plan.len());
        tensors.push(ExportedTensor { id, name: plan.name, from, to: dtype, bytes, exact });
    }
    file.finish().map_err(io)?;
    Ok(tensors)
}

/// What stands before the tensors' bytes, which follow without gaps; and how many those are.
fn header(plans: &[Plan<'_>]) -> Result<(Vec<u8>, u64), Error> {
    let mut at = 0;
    let tensor = |plan: &Plan<'_>| {
        let dtype = match plan.dtype {
            TensorType::F16 => Dtype::F16,
            TensorType::BF16 => Dtype::BF16,
            _ => Dtype::F32,
        };
        let data_offsets = (at, at + plan.len() as usize);
        at = data_offsets.1;
        (plan.name.clone(), TensorInfo { dtype, shape: plan.shape.clone(), data_offsets })
    };
    let tensors = plans.iter().map(tensor).collect();
    // Readers ask for this; it says that values lie as PyTorch has them.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let error = |why: String| Error::Folder { file: WEIGHTS.into(), why };
    let metadata = Metadata::new(Some(about), tensors).map_err(|e| error(e.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| error(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok(([&(json.len() as u64).to_le_bytes(), &json[..]].concat(), at as u64))
}

/// How one tensor is written.
struct Plan<'a> {
    model: &'a Model,
    info: &'a koudai::file::TensorInfo,
    name: String,
    shape: Vec<usize>,
    /// 1 for a vector.
    rows: usize,
    cols: usize,
    dtype: TensorType,
    transform: Transform,
}

impl<'a> Plan<'a> {
    fn of(model: &'a Model, info: &'a koudai::file::TensorInfo, dtype: TensorType) -> Plan<'a> {
        let (rows, cols, shape) = match info.shape {
            Shape::Vector(n) => (1, n, vec![n]),
            Shape::Matrix { rows, cols } => (rows, cols, vec![rows, cols]),
        };
        let name = tensor_name(model.family, info.id);
        let transform = transform(model.family, info.id);
        Plan { model, info, name, shape, rows, cols, dtype, transform }
    }

    fn len(&self) -> u64 {
        (self.rows * self.cols * self.dtype.block_bytes()) as u64
    }

    /// The bytes of some rows, and whether a reader finds the file's values in them.
    fn encode(&self, rows: Range<usize>) -> (Vec<u8>, bool) {
        let file = &self.model.file;
        let offset = if self.transform == Transform::AddOne { 1.0 } else { 0.0 };
        let mut out = Vec::with_capacity(rows.len() * self.cols * self.dtype.block_bytes());
        let (mut values, mut read) = (vec![0.0; self.cols], vec![0.0; self.cols]);
        let mut exact = true;
        for row in rows {
            match self.info.shape {
                Shape::Vector(_) => values = file.vector(self.info.id),
                Shape::Matrix { .. } => file.matrix(self.info.id).read_row(row, &mut values),
            }
            let start = out.len();
            let stored = values.iter().map(|v| v - offset);
            match self.dtype {
                TensorType::F16 => out.extend(stored.flat_map(|v| f32_to_f16(v).to_le_bytes())),
                TensorType::BF16 => out.extend(stored.flat_map(|v| f32_to_bf16(v).to_le_bytes())),
                _ => out.extend(stored.flat_map(f32::to_le_bytes)),
            }
            exact &= dequant::read_row(self.dtype, &out[start..], &mut read).is_some();
            exact &= read.iter().zip(&values).all(|(r, v)| r + offset == *v);
        }
        (out, exact)
    }
}

// ---- The folder -------------------------------------------------------------------------------

/// A folder on its way to a name: what [`PartialFile`] is for a file.
struct PartialFolder {
    path: PathBuf,
    partial: PathBuf,
}

impl PartialFolder {
    fn create(path: &Path) -> Result<PartialFolder, Error> {
        let partial = beside(path, "partial")?;
        std::fs::create_dir_all(&partial).map_err(|e| Error::Io(path.to_owned(), e))?;
        Ok(PartialFolder { path: path.to_owned(), partial })
    }

    /// Where to write the file of this name.
    fn file(&self, name: &str) -> PathBuf {
        self.partial.join(name)
    }

    /// Gives the folder its name, in place of what [`check`] lets be replaced; returns the bytes in
    /// it.
    fn finish(self, force: bool) -> Result<u64, Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        let mut bytes = 0;
        for entry in std::fs::read_dir(&self.partial).map_err(io)? {
            bytes += entry.and_then(|e| e.metadata()).map_err(io)?.len();
        }
        check(&self.path, force)?;
        let old = beside(&self.path, "replaced")?;
        let replaces = self.path.exists();
        if replaces {
            std::fs::rename(&self.path, &old).map_err(io)?;
        }
        if let Err(e) = std::fs::rename(&self.partial, &self.path) {
            if replaces {
                let _ = std::fs::rename(&old, &self.path);
            }
            return Err(io(e));
        }
        if replaces {
            std::fs::remove_dir_all(&old).map_err(io)?;
        }
        Ok(bytes)
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove.
        let _ = std::fs::remove_dir_all(&self.partial);
    }
}

fn beside(path: &Path, what: &str) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| Error::Input("is no name for a folder".into()))?;
    let mut name = name.to_owned();
    name.push(format!(".{what}-{}", std::process::id()));
    Ok(path.with_file_name(name))
}
