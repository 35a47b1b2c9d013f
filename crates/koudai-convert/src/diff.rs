//! What changed between two versions of a `.koudai` file, as a delta that makes the new one out of
//! the old.
//!
//! Files are compared section by section and tensor by tensor, so that one that grew doesn't shift
//! the rest, in blocks of 16 KiB. A block that lies where it lay, or anywhere in the old file, is
//! referred to; of others the changed bits or, if that is shorter, the bytes are stored. Memory is
//! some 50 bytes for each block. Applying deltas is the engine's: [`koudai::delta`]. Start with
//! [`diff`].

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use koudai::delta::{DeltaWriter, MAX_PIECE, Op};
use koudai::file::{BLOCK_BYTES, ModelFile, section};

use crate::convert::{Stage, Watch, file_name, tell};
use crate::error::Error;
use crate::weights::in_parallel;

/// What a delta holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiffReport {
    /// Bytes of the delta.
    pub bytes: u64,
    /// Bytes of the new file.
    pub new_bytes: u64,
    /// Bytes of the new file that the old one has.
    pub copied: u64,
    /// Bytes of the new file that are changed ones of the old.
    pub changed: u64,
}

/// A part of a file that is compared with the part of the same name: a section, a tensor, or the
/// bytes before the first section. The zeros after it belong to it.
struct Part {
    name: String,
    range: Range<usize>,
}

/// What makes a run of bytes of the new file.
struct Run {
    new: Range<usize>,
    /// Where the same bytes, or those that changed, start in the old file.
    old: Option<usize>,
    same: bool,
}

/// Writes to `output` the delta that makes `new` out of `old`. Both are verified.
pub fn diff(
    old: &Path,
    new: &Path,
    output: &Path,
    progress: &mut Watch<'_>,
) -> Result<DiffReport, Error> {
    let open = |path: &Path| {
        let verified = ModelFile::open(path).and_then(|file| file.verify().map(|()| file));
        verified.map_err(|e| Error::in_file(path, e))
    };
    let (old_file, new_file) = (open(old)?, open(new)?);
    let (old_bytes, new_bytes) = (old_file.bytes(), new_file.bytes());
    let total = (old_bytes.len() + 2 * new_bytes.len()) as u64;
    let mut done = 0;
    let mut note = |bytes: usize| {
        done += bytes as u64;
        tell(progress, Stage::Compare, done, total)
    };

    // The old file may be signed by another there, or not at all: nothing of that is referred to.
    let mut old_parts = parts(&old_file);
    old_parts.retain(|p| p.name != HEADER && p.name != section::SIGNED);
    let mut places: HashMap<[u8; 32], usize> = HashMap::new();
    for part in &old_parts {
        for block in blocks(&part.range) {
            let hash = blake3::hash(&old_bytes[block.clone()]);
            places.entry(*hash.as_bytes()).or_insert(block.start);
        }
        note(part.range.len())?;
    }
    let mut runs: Vec<Run> = Vec::new();
    for part in parts(&new_file) {
        let counterpart = old_parts.iter().find(|p| p.name == part.name).map(|p| &p.range);
        for block in blocks(&part.range) {
            let bytes = &new_bytes[block.clone()];
            let beside = counterpart
                .map(|range| range.start + (block.start - part.range.start))
                .filter(|at| counterpart.is_some_and(|r| at + block.len() <= r.end));
            let same = beside.is_some_and(|at| old_bytes[at..].starts_with(bytes));
            let found = match same {
                true => beside,
                false => places.get(blake3::hash(bytes).as_bytes()).copied(),
            };
            let run = Run { new: block, old: found.or(beside), same: found.is_some() };
            push(&mut runs, run);
        }
        note(part.range.len())?;
    }

    let io = |e| Error::Io(output.to_owned(), e);
    let mut writer =
        DeltaWriter::create(output, &old_file, &file_name(old), &new_file).map_err(io)?;
    let mut report = DiffReport { new_bytes: new_bytes.len() as u64, ..Default::default() };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    for batch in runs.chunks(threads) {
        for op in in_parallel(batch, |run| encode(run, old_bytes, new_bytes)) {
            match &op {
                Op::Copy { len, .. } => report.copied += u64::from(*len),
                Op::Change { len, .. } => report.changed += u64::from(*len),
                Op::Data { .. } => {}
            }
            writer.push(&op).map_err(io)?;
            note(op.makes() as usize)?;
        }
    }
    report.bytes = writer.finish().map_err(io)?;
    Ok(report)
}

/// The part before the first section.
const HEADER: &str = "header";

/// All of a file, part after part.
fn parts(file: &ModelFile) -> Vec<Part> {
    let mut starts = vec![(HEADER.to_owned(), 0)];
    for s in file.sections() {
        let start = s.offset as usize;
        match s.name.as_str() {
            section::WEIGHTS => {
                let tensors = file.tensors().iter();
                starts.extend(tensors.map(|t| (format!("tensor {}", t.id), start + t.offset)));
            }
            name => starts.push((name.to_owned(), start)),
        }
    }
    let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([file.bytes().len()]);
    let ends: Vec<usize> = ends.collect();
    starts
        .into_iter()
        .zip(ends)
        .map(|((name, start), end)| Part { name, range: start..end })
        .collect()
}

fn blocks(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(BLOCK_BYTES).map(move |start| start..(start + BLOCK_BYTES).min(end))
}

/// Appends a run, or makes the last one longer if both go on in the same way.
fn push(runs: &mut Vec<Run>, run: Run) {
    if let Some(last) = runs.last_mut() {
        let goes_on = match (last.old, run.old) {
            (Some(a), Some(b)) => a + last.new.len() == b,
            (None, None) => true,
            _ => false,
        };
        if goes_on && last.same == run.same && last.new.len() + run.new.len() <= MAX_PIECE {
            last.new.end = run.new.end;
            return;
        }
    }
    runs.push(run);
}

fn encode(run: &Run, old: &[u8], new: &[u8]) -> Op {
    let bytes = &new[run.new.clone()];
    match run.old {
        Some(at) if run.same => Op::Copy { len: bytes.len() as u32, at: at as u64 },
        Some(at) => {
            let change = Op::change(at as u64, &old[at..at + bytes.len()], bytes);
            let data = Op::data(bytes);
            if change.stores() < data.stores() { change } else { data }
        }
        None => Op::data(bytes),
    }
}
