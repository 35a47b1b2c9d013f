//! Deltas: the result is exactly the new file, or there is none and the reason is given.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use koudai::delta::{DeltaWriter, MAX_PIECE, Op, apply};
use koudai::file::{FileError, ModelFile};
use koudai::kernels::Kind;
use koudai::{Error, Trust};

use crate::file::small;
use crate::models;
use crate::packed::{private_key, signed};

/// Two versions of a model and a delta between them with every operation.
struct Versions {
    dir: tempfile::TempDir,
    old: PathBuf,
    new: PathBuf,
    delta: PathBuf,
}

/// What changes in the second half of the weights.
fn versions() -> Versions {
    let dir = tempfile::tempdir().unwrap();
    let old = models::write(dir.path(), "old", &small(), Kind::F32);
    let new = models::write(dir.path(), "new", &small(), Kind::F32);
    let (base, result) = (ModelFile::open(&old).unwrap(), ModelFile::open(&new).unwrap());
    assert_eq!(base.len_bytes(), result.len_bytes());
    let delta = dir.path().join("update.kdelta");
    let mut writer = DeltaWriter::create(&delta, &base, "old.koudai", &result).unwrap();
    let (a, b) = (base.bytes(), result.bytes());
    for at in (0..b.len()).step_by(4096) {
        let range = at..(at + 4096).min(b.len());
        let op = match (a[range.clone()] == b[range.clone()], at % 8192 == 0) {
            (true, _) => Op::Copy { len: range.len() as u32, at: at as u64 },
            (false, true) => Op::data(&b[range]),
            (false, false) => Op::change(at as u64, &a[range.clone()], &b[range]),
        };
        writer.push(&op).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), delta.metadata().unwrap().len());
    Versions { dir, old, new, delta }
}

impl Versions {
    fn apply_to(&self, output: &Path) -> Result<(), Error> {
        apply(&self.old, &self.delta, output, &Trust::Any, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Applies these bytes as a delta; nothing may be there afterwards if that fails.
    fn try_bytes(&self, bytes: &[u8]) -> Result<(), Error> {
        let delta = self.dir.path().join("changed.kdelta");
        std::fs::write(&delta, bytes).unwrap();
        let output = self.dir.path().join("output.koudai");
        let result =
            apply(&self.old, &delta, &output, &Trust::Any, &mut |_, _| ControlFlow::Continue(()));
        assert_eq!(output.exists(), result.is_ok());
        let _ = std::fs::remove_file(&output);
        std::fs::remove_file(&delta).unwrap();
        let names: Vec<_> = std::fs::read_dir(self.dir.path()).unwrap().collect();
        assert_eq!(names.len(), 3, "nothing else is left: {names:?}");
        result
    }
}

/// Makes a delta's own hash right: an attacker can.
fn rehash(delta: &mut [u8]) {
    let (body, hash) = delta.split_last_chunk_mut::<32>().unwrap();
    *hash = *blake3::hash(body).as_bytes();
}

#[test]
fn the_new_version_comes_out_beside_or_in_place() {
    let v = versions();
    let new = std::fs::read(&v.new).unwrap();
    let output = v.dir.path().join("output.koudai");
    v.apply_to(&output).unwrap();
    assert!(std::fs::read(&output).unwrap() == new);
    v.apply_to(&v.old).unwrap();
    assert!(std::fs::read(&v.old).unwrap() == new);
    let error = v.apply_to(&output).unwrap_err().to_string();
    assert!(error.contains("is for old.koudai with fingerprint"), "{error}");
    assert!(error.contains("update.kdelta") && error.contains(v.old.to_str().unwrap()), "{error}");
}

#[test]
fn a_signature_of_the_base_makes_no_difference_and_the_results_is_asked_for() {
    let v = versions();
    let base = ModelFile::open(&v.old).unwrap();
    let resigned = v.dir.path().join("resigned.koudai");
    signed(&base, &resigned, &private_key(1), |_| {});
    let output = v.dir.path().join("output.koudai");
    let go = |trust: &Trust| {
        apply(&resigned, &v.delta, &output, trust, &mut |_, _| ControlFlow::Continue(()))
    };
    go(&Trust::Any).unwrap();
    assert!(std::fs::read(&output).unwrap() == std::fs::read(&v.new).unwrap());
    std::fs::remove_file(&output).unwrap();
    let error = go(&Trust::Signed(vec![])).unwrap_err().to_string();
    assert!(error.contains("isn't trusted") && error.contains("isn't signed"), "{error}");
    assert!(!output.exists());
}

#[test]
fn a_delta_cut_or_changed_anywhere_is_refused() {
    let v = versions();
    let mut bytes = std::fs::read(&v.delta).unwrap();
    for len in (0..bytes.len()).step_by(7).chain(0..200) {
        assert!(
            matches!(v.try_bytes(&bytes[..len]), Err(Error::Delta(..) | Error::File(..))),
            "{len}"
        );
    }
    for at in (0..bytes.len()).step_by(11).chain(0..200) {
        bytes[at] ^= 1 << (at % 8);
        assert!(matches!(v.try_bytes(&bytes), Err(Error::Delta(..))), "{at}");
        bytes[at] ^= 1 << (at % 8);
    }
    v.try_bytes(&bytes).unwrap();
}

#[test]
fn hostile_deltas_with_a_right_hash_are_refused() {
    let v = versions();
    let original = std::fs::read(&v.delta).unwrap();
    // After magic, two hashes, length and name come the operations.
    let ops = 8 + 32 + 32 + 8 + 4 + "old.koudai".len();
    for len in (8..original.len()).step_by(5) {
        let mut bytes = original[..len].to_vec();
        bytes.extend([0; 32]);
        rehash(&mut bytes);
        if len + 32 != original.len() {
            assert!(matches!(v.try_bytes(&bytes), Err(Error::Delta(..))), "{len}");
        }
    }
    for at in (8..original.len() - 40).filter(|at| *at < ops + 60 || at % 97 == 0) {
        for value in [0u64, 1, 1 << 20, (1 << 32) - 1, 1 << 63, u64::MAX] {
            let mut bytes = original.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            rehash(&mut bytes);
            let made = v.try_bytes(&bytes);
            // The name is for people: any will do.
            let name = (ops - 17..ops).contains(&at);
            assert!(made.is_err() || name || bytes == original, "{at} as {value}");
        }
    }
    // A file larger than any disk.
    let mut bytes = original.clone();
    bytes[72..80].copy_from_slice(&(1u64 << 50).to_le_bytes());
    rehash(&mut bytes);
    assert!(v.try_bytes(&bytes).unwrap_err().to_string().contains("are allowed"));
    // More after the last operation.
    let mut bytes = original;
    bytes.extend([0; 5]);
    rehash(&mut bytes);
    assert!(v.try_bytes(&bytes).unwrap_err().to_string().contains("malformed"));
}

#[test]
fn a_damaged_base_is_named_and_not_the_delta() {
    let v = versions();
    let mut bytes = std::fs::read(&v.old).unwrap();
    let at = bytes.len() - 5000;
    bytes[at] ^= 1;
    std::fs::write(&v.old, &bytes).unwrap();
    let error = v.apply_to(&v.dir.path().join("output.koudai")).unwrap_err();
    assert!(
        matches!(&error, Error::File(path, FileError::Block { .. }) if *path == v.old),
        "{error}"
    );
}

#[test]
fn what_isnt_finished_leaves_the_old_version() {
    let v = versions();
    let before = std::fs::read(&v.old).unwrap();
    let mut calls = 0;
    let result = apply(&v.old, &v.delta, &v.old, &Trust::Any, &mut |_, _| {
        calls += 1;
        if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert!(std::fs::read(&v.old).unwrap() == before);
    assert_eq!(std::fs::read_dir(v.dir.path()).unwrap().count(), 3);
}

#[test]
fn unchanged_and_long_pieces_are_small() {
    let zeros = vec![0; MAX_PIECE];
    assert!(Op::data(&zeros).stores() < 2000);
    let noise: Vec<u8> = (0..MAX_PIECE)
        .map(|_| 0)
        .zip(0u32..)
        .map(|(_, i)| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    assert!(Op::data(&noise).stores() <= noise.len());
    assert!(Op::change(0, &noise, &noise).stores() < 2000);
    let dir = tempfile::tempdir().unwrap();
    let old = models::write(dir.path(), "old", &small(), Kind::F32);
    let base = ModelFile::open(&old).unwrap();
    let delta = dir.path().join("none.kdelta");
    let mut writer = DeltaWriter::create(&delta, &base, "", &base).unwrap();
    for at in (0..base.len_bytes()).step_by(1000) {
        let len = 1000.min(base.len_bytes() - at) as u32;
        writer.push(&Op::Copy { len, at }).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), 84 + 13 + 32, "copies in a row are one");
}
