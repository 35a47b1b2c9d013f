//! A model as a GGUF file: the inverse of what [`crate::convert`] makes of one.
//!
//! Codes and scales are moved, never chosen anew. Start with [`write`].

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use koudai::file::TensorInfo;
use koudai::kernels::num::{f16_to_f32, f32_to_bf16, f32_to_f16};
use koudai::kernels::{Kind, Matrix};
use koudai::{PartialFile, Shape};

use super::{ExportReport, ExportedTensor, Model, encode_rows};
use crate::arch::gguf::{ROPE_FACTORS, tensor_name, transform};
use crate::arch::{Transform, describe};
use crate::convert::{Stage, Watch, tell};
use crate::dequant::{self, TensorType};
use crate::error::Error;
use crate::gguf::write::{Entry, Metadata, header, padding};
use crate::tokenizer::to_gguf::GgufTokens;

/// What GGUF calls the revision of its block formats.
const QUANTIZATION_VERSION: u32 = 2;

pub(super) fn write(
    model: &Model,
    output: &Path,
    progress: &mut Watch<'_>,
) -> Result<ExportReport, Error> {
    let config = model.file.config();
    let mut description = model.describe()?;
    let mut metadata = Metadata::default();
    let plans: Vec<Plan<'_>> = model.file.tensors().iter().map(|t| Plan::of(model, t)).collect();
    general_keys(model, &plans, &mut metadata)?;
    let rope_factors = describe::gguf::keys(&mut description, &mut metadata)?;
    let mut notes = description.notes;
    notes.extend(tokenizer_keys(model, config.vocab_size, &mut metadata)?);

    let mut entries: Vec<Entry> = plans.iter().map(Plan::entry).collect();
    let rope_factors: Vec<u8> =
        rope_factors.iter().flatten().flat_map(|f| f.to_le_bytes()).collect();
    if !rope_factors.is_empty() {
        let (dims, len) = (vec![rope_factors.len() / 4], rope_factors.len() as u64);
        let (name, kind) = (ROPE_FACTORS.to_owned(), TensorType::F32);
        entries.insert(0, Entry { name, dims, kind, len });
    }
    let start = header(&metadata, &entries);
    let total = entries.iter().map(|e| e.len + padding(e.len).len() as u64).sum::<u64>();
    let bytes = start.len() as u64 + total;

    let io = |e| Error::Io(output.to_owned(), e);
    let mut file = PartialFile::create(output).map_err(io)?;
    file.write_all(&start).map_err(io)?;
    let (mut done, mut tensors) = (0, Vec::with_capacity(plans.len()));
    let mut put = |bytes: &[u8]| {
        file.write_all(bytes).map_err(io)?;
        done += bytes.len() as u64;
        tell(progress, Stage::Export, done, total)
    };
    put(&rope_factors)?;
    put(padding(rope_factors.len() as u64))?;
    for plan in &plans {
        let (rows, cols) = plan.rows_cols();
        let exact = encode_rows(rows, cols, |rows| plan.encode(rows), &mut put)?;
        put(padding(plan.len()))?;
        let (id, from, to, bytes) = (plan.info.id, plan.info.kind, plan.to, plan.len());
        tensors.push(ExportedTensor { id, name: tensor_name(id), from, to, bytes, exact });
    }
    file.finish().map_err(io)?;
    let architecture = model.family.name();
    Ok(ExportReport { format: "gguf", architecture, bytes, tensors, notes })
}

fn general_keys(model: &Model, plans: &[Plan<'_>], metadata: &mut Metadata) -> Result<(), Error> {
    metadata.str("general.architecture", model.family.name());
    metadata.str("general.type", "model");
    for (key, name) in [("name", "general.name"), ("license", "general.license")] {
        if let Some(value) = model.meta(key) {
            metadata.str(name, value);
        }
    }
    metadata.u32("general.quantization_version", QUANTIZATION_VERSION);
    metadata.u32("general.file_type", file_type(plans));
    let advice = model.file.defaults()?;
    for (name, value) in [
        ("temp", advice.temperature),
        ("top_p", advice.top_p),
        ("min_p", advice.min_p),
        ("penalty_repeat", advice.repetition_penalty),
    ] {
        if let Some(value) = value {
            metadata.f32(&format!("general.sampling.{name}"), value);
        }
    }
    if let Some(k) = advice.top_k {
        metadata.u32("general.sampling.top_k", k);
    }
    Ok(())
}

/// GGUF's number for how most weights are stored, which programs show.
fn file_type(plans: &[Plan<'_>]) -> u32 {
    const NUMBERS: [(TensorType, u32); 6] = [
        (TensorType::F32, 0),
        (TensorType::F16, 1),
        (TensorType::Q4_0, 2),
        (TensorType::Q4_1, 3),
        (TensorType::Q8_0, 7),
        (TensorType::BF16, 32),
    ];
    let bytes = |kind| plans.iter().filter(|p| p.to == kind).map(Plan::len).sum::<u64>();
    NUMBERS.into_iter().max_by_key(|(kind, _)| bytes(*kind)).map_or(0, |(_, number)| number)
}

/// Adds the tokenizer's keys; returns what readers will do otherwise.
fn tokenizer_keys(
    model: &Model,
    rows: usize,
    metadata: &mut Metadata,
) -> Result<Vec<String>, Error> {
    let spec = &model.tokenizer;
    let all = GgufTokens::of(spec, rows)?;
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    metadata.str(&key("model"), all.model);
    metadata.str(&key("pre"), all.pre);
    metadata.strings(&key("tokens"), &all.tokens);
    if let Some(scores) = &all.scores {
        metadata.f32s(&key("scores"), scores);
    }
    metadata.i32s(&key("token_type"), &all.types);
    if let Some(merges) = &all.merges {
        metadata.strings(&key("merges"), merges);
    }
    for (name, id) in [
        ("bos_token_id", spec.bos),
        ("eos_token_id", spec.eos),
        ("eot_token_id", all.other_ends.first().copied()),
        ("eom_token_id", all.other_ends.get(1).copied()),
        ("padding_token_id", spec.pad),
        ("unknown_token_id", spec.unk),
    ] {
        if let Some(id) = id {
            metadata.u32(&key(name), id);
        }
    }
    metadata.bool(&key("add_bos_token"), spec.add_bos);
    metadata.bool(&key("add_eos_token"), spec.add_eos);
    if let Some(prefix) = all.add_space_prefix {
        metadata.bool(&key("add_space_prefix"), prefix);
    }
    if let Some(template) = &model.template {
        metadata.str("tokenizer.chat_template", template);
    }
    Ok(all.notes)
}

/// How one tensor is written.
struct Plan<'a> {
    info: &'a TensorInfo,
    values: Values<'a>,
    to: TensorType,
    transform: Transform,
}

enum Values<'a> {
    Vector(Vec<f32>),
    Matrix(Matrix<'a>),
}

impl<'a> Plan<'a> {
    fn of(model: &'a Model, info: &'a TensorInfo) -> Plan<'a> {
        let transform = transform(model.family, model.file.config(), info.id);
        let values = match info.shape {
            Shape::Vector(_) => Values::Vector(model.file.vector(info.id)),
            Shape::Matrix { .. } => Values::Matrix(model.file.matrix(info.id)),
        };
        let to = match &values {
            Values::Vector(_) => TensorType::F32,
            Values::Matrix(matrix) => match matrix.kind() {
                Kind::F32 => TensorType::F32,
                Kind::F16 => TensorType::F16,
                Kind::Bf16 => TensorType::BF16,
                Kind::Q8 => TensorType::Q8_0,
                Kind::Q4S32 => TensorType::Q4_0,
                Kind::Q4G32 | Kind::Q4G64 if is_symmetric(matrix) => TensorType::Q4_0,
                Kind::Q4G32 | Kind::Q4G64 => TensorType::Q4_1,
            },
        };
        Plan { info, values, to, transform }
    }

    fn rows_cols(&self) -> (usize, usize) {
        match &self.values {
            Values::Vector(values) => (1, values.len()),
            Values::Matrix(matrix) => (matrix.rows(), matrix.cols()),
        }
    }

    /// Bytes, padding aside.
    fn len(&self) -> u64 {
        let (rows, cols) = self.rows_cols();
        // Groups of both formats divide the columns.
        (self.to.row_bytes(cols).unwrap_or(0) * rows) as u64
    }

    fn entry(&self) -> Entry {
        let dims = match &self.values {
            Values::Vector(values) => vec![values.len()],
            Values::Matrix(matrix) => vec![matrix.cols(), matrix.rows()],
        };
        Entry { name: tensor_name(self.info.id), dims, kind: self.to, len: self.len() }
    }

    /// The bytes of some rows, and whether their values, read again, are those of the file.
    fn encode(&self, rows: Range<usize>) -> (Vec<u8>, bool) {
        let mut out = Vec::new();
        let matrix = match &self.values {
            Values::Matrix(matrix) => matrix,
            Values::Vector(values) => {
                let value = |i| values[self.transform.result_row(i)];
                out.extend((0..values.len()).flat_map(|i| value(i).to_le_bytes()));
                return (out, true);
            }
        };
        let (mut before, mut after) = (vec![0.0; matrix.cols()], vec![0.0; matrix.cols()]);
        let mut exact = true;
        for row in rows.map(|row| self.transform.result_row(row)) {
            let start = out.len();
            matrix.read_row(row, &mut before);
            self.put_row(matrix, row, &before, &mut out);
            exact &= dequant::read_row(self.to, &out[start..], &mut after).is_some();
            exact &= before == after;
        }
        (out, exact)
    }

    /// Appends one row, given as it is stored and as values.
    fn put_row(&self, matrix: &Matrix<'_>, row: usize, values: &[f32], out: &mut Vec<u8>) {
        match self.to {
            TensorType::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            TensorType::F16 => out.extend(values.iter().flat_map(|v| f32_to_f16(*v).to_le_bytes())),
            TensorType::BF16 => {
                out.extend(values.iter().flat_map(|v| f32_to_bf16(*v).to_le_bytes()));
            }
            _ => {
                for index in 0..matrix.cols() / matrix.kind().group() {
                    let group = matrix.group(row, index);
                    group.q.chunks_exact(32).for_each(|q| self.put_block(group.d, group.m, q, out));
                }
            }
        }
    }

    /// Appends a block of 32 codes.
    fn put_block(&self, d: u16, m: u16, codes: &[u8], out: &mut Vec<u8>) {
        out.extend(d.to_le_bytes());
        if self.to == TensorType::Q8_0 {
            // Signed there, shifted by 128 here.
            return out.extend(codes.iter().map(|q| q ^ 0x80));
        }
        if self.to == TensorType::Q4_1 {
            out.extend(m.to_le_bytes());
        }
        let (low, high) = codes.split_at(16);
        out.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
    }
}

/// Every group's minimum is −8 scales, which Q4_0 takes for granted.
fn is_symmetric(matrix: &Matrix<'_>) -> bool {
    let groups = matrix.cols() / matrix.kind().group();
    (0..matrix.rows()).all(|row| {
        (0..groups).all(|index| {
            let group = matrix.group(row, index);
            let m = f32_to_f16(-8.0 * f16_to_f32(group.d));
            group.m == m && f16_to_f32(m).is_finite()
        })
    })
}
