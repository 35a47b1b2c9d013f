//! What is written once it is known which tokens stay: a description of the tokenizer, its
//! `tokenizer.json`, the model's rows.
//!
//! Nothing is computed anew: ids change, rows move, everything else is copied. Start with [`spec`].

use std::path::Path;

use koudai::file::{FileWriter, ModelFile, TensorHeader, section};
use koudai::kernels::{Matrix, PANEL_ROWS, PanelWriter};
use koudai::tokenizer::{Kind, Merge, Spec};
use koudai::{Role, Shape};
use serde_json::{Map, Value};

use super::NewIds;
use crate::convert::{Stage, Watch, tell};
use crate::error::Error;

/// Sections that are copied as they are; those of configuration, tokenizer, tensors and meta change.
const COPIED: [&str; 4] = [section::TEMPLATE, section::DEFAULTS, section::CARD, section::LINEAGE];

/// The description with only the tokens that stay. Ranks are numbered anew from 0, in their order.
pub(super) fn spec(spec: &Spec, ids: &NewIds) -> Spec {
    let stays = |m: &&Merge| [m.left, m.right, m.result].iter().all(|&id| ids.of(id).is_some());
    let mut merges: Vec<Merge> = spec.merges.iter().filter(stays).copied().collect();
    merges.sort_by_key(|m| m.rank);
    let (mut rank, mut last) = (0, None);
    for merge in &mut merges {
        rank += u32::from(last.is_some_and(|last| last != merge.rank));
        last = Some(merge.rank);
        let new = |id| ids.of(id).expect("it stays");
        *merge = Merge {
            left: new(merge.left),
            right: new(merge.right),
            result: new(merge.result),
            rank,
        };
    }
    let role = |id: Option<u32>| id.and_then(|id| ids.of(id));
    Spec {
        tokens: ids.kept().iter().map(|&id| spec.tokens[id as usize].clone()).collect(),
        merges,
        bos: role(spec.bos),
        eos: role(spec.eos),
        pad: role(spec.pad),
        unk: role(spec.unk),
        ends: spec.ends.iter().filter_map(|&id| ids.of(id)).collect(),
        ..*spec
    }
}

/// The same for a `tokenizer.json` that `spec` was made from. What concerns no id stays as it is.
pub(super) fn tokenizer_json(root: &Value, spec: &Spec, ids: &NewIds) -> Value {
    let mut root = root.clone();
    if let Some(Value::Object(vocab)) = root.pointer_mut("/model/vocab") {
        let stays = |(piece, id): (String, Value)| Some((piece, new_id(&id, ids)?));
        *vocab = std::mem::take(vocab).into_iter().filter_map(stays).collect::<Map<_, _>>();
    }
    if let Some(Value::Array(merges)) = root.pointer_mut("/model/merges") {
        // The description has them in the same order.
        let mut of_spec = spec.merges.iter();
        merges.retain(|_| {
            of_spec
                .next()
                .is_some_and(|m| [m.left, m.right, m.result].iter().all(|&id| ids.of(id).is_some()))
        });
    }
    if let Some(Value::Array(added)) = root.get_mut("added_tokens") {
        added.retain(|token| new_id(&token["id"], ids).is_some());
        added.iter_mut().for_each(|token| renumber(&mut token["id"], ids));
    }
    if let Some(pad) = root.pointer_mut("/padding/pad_id") {
        renumber(pad, ids);
    }
    if let Some(post) = root.get_mut("post_processor") {
        renumber_templates(post, ids);
    }
    root
}

fn new_id(id: &Value, ids: &NewIds) -> Option<Value> {
    ids.of(u32::try_from(id.as_u64()?).ok()?).map(Value::from)
}

fn renumber(id: &mut Value, ids: &NewIds) {
    if let Some(new) = new_id(id, ids) {
        *id = new;
    }
}

/// `special_tokens` of the templates among post-processors.
fn renumber_templates(post: &mut Value, ids: &NewIds) {
    if let Some(Value::Array(steps)) = post.get_mut("processors") {
        steps.iter_mut().for_each(|step| renumber_templates(step, ids));
    }
    if let Some(Value::Object(tokens)) = post.get_mut("special_tokens") {
        for token in tokens.values_mut() {
            let list = token.get_mut("ids").and_then(Value::as_array_mut);
            list.into_iter().flatten().for_each(|id| renumber(id, ids));
        }
    }
}

/// Writes the model with `spec` for its tokenizer and only the rows that stay. Weights keep their
/// codes and scales. Returns names of sections that can't be carried over.
pub(super) fn model(
    file: &ModelFile,
    spec: &Spec,
    ids: &NewIds,
    lineage: Vec<(String, String)>,
    output: &Path,
    progress: &mut Watch<'_>,
) -> Result<Vec<String>, Error> {
    let mut config = file.config().clone();
    config.vocab_size = spec.tokens.len();
    let mut meta = file.meta()?;
    meta.retain(|(key, _)| lineage.iter().all(|(new, _)| new != key));
    meta.extend(lineage);

    let mut out = FileWriter::create(output)?;
    out.config(&config)?;
    let tokenizer = spec.to_bytes().map_err(|e| Error::Tokenizer(e.into()))?;
    out.section(section::TOKENIZER, true, &tokenizer)?;
    for name in COPIED {
        if let Some(bytes) = file.section(name) {
            out.section(name, false, &bytes)?;
        }
    }
    out.meta(&meta)?;
    let headers: Vec<TensorHeader> =
        file.tensors().iter().map(|t| TensorHeader { id: t.id, kind: t.kind }).collect();
    let total: u64 = file.tensors().iter().map(|t| t.len as u64).sum();
    let mut done = 0;
    out.tensors(&config, &headers, |header, shape, sink| -> Result<(), Error> {
        let info = file.tensor(header.id);
        let of_vocabulary = matches!(header.id.role, Role::Embed | Role::Head);
        match shape {
            Shape::Matrix { .. } if of_vocabulary => {
                rows(&file.matrix(header.id), ids.kept(), &mut |panel| Ok(sink.write(panel)?))?;
            }
            _ => sink.write(&file.tensor_bytes(info))?,
        }
        done += info.len as u64;
        tell(progress, Stage::Convert, done, total)
    })?;
    out.finish()?;
    let changed = [section::CONFIG, section::TOKENIZER, section::META, section::TENSORS];
    let known = [&COPIED[..], &changed, &[section::WEIGHTS, section::BLOCKS]].concat();
    let names = file.sections().iter().map(|s| s.name.clone());
    Ok(names.filter(|name| !known.contains(&name.as_str())).collect())
}

/// The panels of a matrix of some rows of another, their stored values unchanged.
fn rows(
    matrix: &Matrix<'_>,
    kept: &[u32],
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (kind, cols) = (matrix.kind(), matrix.cols());
    let mut panel = vec![0; kind.panel_bytes(cols).expect("the matrix has panels")];
    let mut values = vec![0.0; cols];
    for lanes in kept.chunks(PANEL_ROWS) {
        let mut writer = PanelWriter::new(kind, cols, &mut panel);
        for (lane, &row) in lanes.iter().enumerate() {
            if kind.is_quantized() {
                for group in 0..cols / kind.group() {
                    let g = matrix.group(row as usize, group);
                    writer.put_group(lane, group, g.d, g.m, &g.q);
                }
            } else {
                matrix.read_row(row as usize, &mut values);
                writer.put_row(lane, &values);
            }
        }
        write(&panel)?;
    }
    Ok(())
}

/// Which tokens of `spec` added tokens' spellings match `patterns`.
pub(super) fn matching(spec: &Spec, patterns: &[glob::Pattern]) -> Vec<bool> {
    let added = |kind| matches!(kind, Kind::Control | Kind::UserDefined);
    let matches = |piece: &[u8]| {
        std::str::from_utf8(piece).is_ok_and(|piece| patterns.iter().any(|p| p.matches(piece)))
    };
    spec.tokens.iter().map(|token| added(token.kind) && matches(&token.piece)).collect()
}
