//! Damage is found and named: at once, on first use, in any byte of a file.

use std::path::Path;

use koudai::file::{BLOCK_BYTES, FileError, FileWriter, ModelFile, section};
use koudai::kernels::Kind;
use koudai::{Engine, Error, OpenOptions, Session, SessionOptions, Verify};

use crate::file::{entry, open, place, rehash, set, small};
use crate::models;
use crate::packed::{attachment, private_key, signed};

/// A model of some dozens of blocks.
fn large(dir: &Path) -> Vec<u8> {
    let config = models::configs().remove(0).1;
    std::fs::read(models::write(dir, "blocks", &config, Kind::F16)).unwrap()
}

/// What a damaged block is called, if it is one.
fn block(error: FileError) -> (usize, u64, String) {
    match error {
        FileError::Block { index, range, tensors } => (index, range.start, tensors),
        other => panic!("{other}"),
    }
}

#[test]
fn any_changed_byte_of_a_packed_and_signed_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let plain = models::write(dir.path(), "small", &small(), Kind::F32);
    let file = ModelFile::open(&plain).unwrap();
    let path = dir.path().join("packed.koudai");
    let adapter = attachment(&file, "adapter", b"some bytes");
    let key = private_key(1);
    signed(&file, &path, &key, |writer| writer.attachment(0, &adapter).unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    open(&bytes).unwrap().verify().unwrap();
    assert!(open(&bytes).unwrap().sections().iter().any(|s| s.name == section::SIGNED));
    for at in 0..bytes.len() {
        bytes[at] ^= 1 << (at % 8);
        let opened = open(&bytes).and_then(|file| file.verify());
        assert!(opened.is_err(), "byte {at} of {}", bytes.len());
        bytes[at] ^= 1 << (at % 8);
    }
    open(&bytes).unwrap().verify().unwrap();
}

#[test]
fn the_damaged_block_is_named_with_its_place_and_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = large(dir.path());
    let weights = place(&bytes, section::WEIGHTS);
    let n_blocks = weights.len().div_ceil(BLOCK_BYTES);
    assert!(n_blocks > 20);
    for index in 0..n_blocks {
        let start = weights.start + index * BLOCK_BYTES;
        let at = (start + 4321).min(weights.end - 1);
        bytes[at] ^= 4;
        let file = open(&bytes).unwrap();
        let (found, offset, tensors) = block(file.verify().unwrap_err());
        assert_eq!((found, offset), (index, start as u64));
        let hit = file.tensors().iter().find(|t| t.offset + t.len > at - weights.start).unwrap();
        assert!(tensors.contains(&hit.id.to_string()), "{tensors}");
        bytes[at] ^= 4;
    }
    let message = {
        bytes[weights.start] ^= 1;
        open(&bytes).unwrap().verify().unwrap_err().to_string()
    };
    assert!(message.contains("block 0, bytes ") && message.contains("embed"), "{message}");
}

#[test]
fn blocks_that_changed_places_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let original = large(dir.path());
    let weights = place(&original, section::WEIGHTS);
    for (a, b) in [(0, 1), (2, 9), (5, 7)] {
        let mut bytes = original.clone();
        let at = |index: usize| {
            weights.start + index * BLOCK_BYTES..weights.start + (index + 1) * BLOCK_BYTES
        };
        bytes[at(a)].copy_from_slice(&original[at(b)]);
        bytes[at(b)].copy_from_slice(&original[at(a)]);
        assert_eq!(block(open(&bytes).unwrap().verify().unwrap_err()).0, a);
    }
}

#[test]
fn hashes_of_blocks_are_no_second_truth() {
    let dir = tempfile::tempdir().unwrap();
    let original = large(dir.path());
    let blocks = place(&original, section::BLOCKS);
    // A leaf that isn't the weights': everything else an attacker can make right.
    let mut bytes = original.clone();
    bytes[blocks.start + 8 + 32 * 3] ^= 1;
    rehash(&mut bytes);
    let file = open(&bytes).unwrap();
    for result in [file.verify(), file.verify_tree()] {
        assert!(matches!(result, Err(FileError::Section(section::BLOCKS, _))));
    }
    // Too few or too many, another size, another version.
    for (at, value) in [(0, 2u32), (4, 1 << 13), (4, 0)] {
        let mut bytes = original.clone();
        set(&mut bytes, blocks.start + at, &value.to_le_bytes());
        rehash(&mut bytes);
        assert!(matches!(open(&bytes), Err(FileError::Section(section::BLOCKS, _))));
    }
    let mut bytes = original.clone();
    bytes.truncate(blocks.end - 32);
    let row = entry(&bytes, section::BLOCKS);
    let len = (blocks.len() - 32) as u64;
    set(&mut bytes, row + 16, &len.to_le_bytes());
    let file_len = bytes.len() as u64;
    set(&mut bytes, 16, &file_len.to_le_bytes());
    rehash(&mut bytes);
    assert!(matches!(open(&bytes), Err(FileError::Section(section::BLOCKS, _))));
}

/// The same file as it was written before there were hashes of blocks.
fn without_blocks(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = entry(&bytes, section::BLOCKS);
    set(&mut bytes, at, b"older\0\0\0");
    rehash(&mut bytes);
    bytes
}

#[test]
fn older_files_open_and_are_verified_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = without_blocks(large(dir.path()));
    let path = dir.path().join("older.koudai");
    std::fs::write(&path, &bytes).unwrap();
    assert!(!ModelFile::open(&path).unwrap().has_blocks());
    for verify in [Verify::OnRequest, Verify::FirstUse, Verify::Open] {
        engine(&path, verify).unwrap();
    }
    let at = place(&bytes, section::WEIGHTS).start + 70_000;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    engine(&path, Verify::OnRequest).unwrap();
    for verify in [Verify::FirstUse, Verify::Open] {
        let error = engine(&path, verify).unwrap_err();
        assert!(matches!(&error, Error::File(_, FileError::Hash(s)) if s == "weights"), "{error}");
    }
}

fn engine(path: &Path, verify: Verify) -> Result<Engine, Error> {
    Engine::open(path, &OpenOptions { threads: Some(1), verify, ..Default::default() })
}

#[test]
fn first_use_fails_where_something_damaged_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let whole = large(dir.path());
    let path = dir.path().join("damaged.koudai");
    let weights = place(&whole, section::WEIGHTS);
    let file = open(&whole).unwrap();
    let session = |engine: &Engine| {
        Session::new(engine, &SessionOptions { context: Some(8), ..Default::default() }).unwrap()
    };
    std::fs::write(&path, &whole).unwrap();
    let right =
        session(&engine(&path, Verify::OnRequest).unwrap()).append(&[1, 2]).unwrap().to_vec();
    let checked = engine(&path, Verify::FirstUse).unwrap();
    assert_eq!(session(&checked).append(&[1, 2]).unwrap(), right, "verifying changes nothing");
    for t in file.tensors() {
        let mut bytes = whole.clone();
        bytes[weights.start + t.offset + t.len / 2] ^= 0x40;
        // Another file, not the same one changed: what is mapped must stay as it is.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let error = engine(&path, Verify::Open).unwrap_err();
        assert!(error.to_string().contains(&t.id.to_string()), "{}: {error}", t.id);
        let opened = engine(&path, Verify::FirstUse).unwrap();
        let mut session = session(&opened);
        let again = (session.append(&[1, 2]).map(drop), session.append_each(&[1], |_, _| {}));
        for result in [again.0, again.1] {
            let error = result.unwrap_err();
            assert!(error.to_string().contains(&t.id.to_string()), "{}: {error}", t.id);
        }
        assert!(session.tokens().is_empty());
    }
}

#[test]
fn copies_of_damaged_weights_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = large(dir.path());
    let at = place(&bytes, section::WEIGHTS).start + 3 * BLOCK_BYTES;
    bytes[at] ^= 1;
    let copy = |bytes: &[u8]| {
        let mut writer = FileWriter::create(&dir.path().join("copy.koudai")).unwrap();
        writer.copy_tensors::<FileError>(&open(bytes).unwrap(), |_| Ok(()))
    };
    assert_eq!(block(copy(&bytes).unwrap_err()).0, 3);
    let mut old = without_blocks(large(dir.path()));
    old[at] ^= 1;
    assert!(matches!(copy(&old), Err(FileError::Hash(name)) if name == "weights"));
    assert!(!dir.path().join("copy.koudai").exists());
}
