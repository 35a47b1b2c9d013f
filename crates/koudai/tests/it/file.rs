//! The file: what is written is read back, and whatever else the bytes say is refused by name.

use std::path::Path;

use koudai::bytes::SharedBytes;
use koudai::file::{Defaults, FileError, FileWriter, ModelFile, TensorHeader, section};
use koudai::kernels::Kind;
use koudai::{Config, Engine, Error, OpenOptions, Shape};

use crate::models;

const HEADER: usize = 64;
const ENTRY: usize = 64;
const FIRST_SECTION: usize = 4096;

/// The smallest model: one layer of the first family.
pub(crate) fn small() -> Config {
    let mut config = models::configs().remove(0).1;
    config.dim = 16;
    config.tied_head = true;
    config.layers.truncate(1);
    let l = &mut config.layers[0];
    (l.n_heads, l.n_kv_heads, l.head_dim, l.ffn_dim) = (2, 1, 4, 8);
    config.ropes = vec![vec![1.0, 0.1]];
    config
}

/// Its file's bytes.
fn bytes() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::read(models::write(dir.path(), "small", &small(), Kind::F16)).unwrap()
}

pub(crate) fn open(bytes: &[u8]) -> Result<ModelFile, FileError> {
    ModelFile::from_bytes(SharedBytes::from(bytes.to_vec()))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

pub(crate) fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Where a section's table entry is.
pub(crate) fn entry(bytes: &[u8], name: &str) -> usize {
    let entries = (0..u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize)
        .map(|i| HEADER + i * ENTRY);
    let named = |at: &usize| bytes[*at..*at + 8].split(|b| *b == 0).next() == Some(name.as_bytes());
    entries.into_iter().find(named).unwrap()
}

/// Where a section's bytes are.
pub(crate) fn place(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let at = entry(bytes, name);
    let offset = word(bytes, at + 8);
    offset..offset + word(bytes, at + 16)
}

/// Makes all hashes right again where offsets allow it: an attacker can.
pub(crate) fn rehash(bytes: &mut [u8]) {
    let count = (word(bytes, 8) >> 32).min(63);
    for at in (0..count).map(|i| HEADER + i * ENTRY) {
        let (offset, len) = (word(bytes, at + 8), word(bytes, at + 16));
        let Some(content) = offset.checked_add(len).and_then(|end| bytes.get(offset..end)) else {
            continue;
        };
        let hash = *blake3::hash(content).as_bytes();
        set(bytes, at + 32, &hash);
    }
    let hash = *blake3::hash(&bytes[HEADER..HEADER + count * ENTRY]).as_bytes();
    set(bytes, 24, &hash);
}

#[test]
fn every_kind_and_family_is_read_as_written() {
    let dir = tempfile::tempdir().unwrap();
    for (name, config) in models::configs() {
        for kind in Kind::ALL {
            let path = models::write(dir.path(), name, &config, kind);
            let file = ModelFile::open(&path).unwrap();
            assert_eq!(*file.config(), config);
            assert_eq!(file.len_bytes(), path.metadata().unwrap().len());
            file.verify().unwrap();
            assert_eq!(file.meta().unwrap(), [("name".to_owned(), name.to_owned())]);
            let defaults = Defaults { temperature: Some(0.7), ..Default::default() };
            assert_eq!(file.defaults().unwrap(), defaults);
            assert_eq!(file.template().unwrap(), None);
            assert_eq!(
                *file.section(section::TOKENIZER).unwrap(),
                models::spec().to_bytes().unwrap()
            );
            let ids: Vec<_> = file.tensors().iter().map(|t| (t.id, t.shape)).collect();
            assert_eq!(ids, config.tensors());
            for t in file.tensors() {
                match t.shape {
                    Shape::Vector(n) => {
                        assert_eq!(t.kind, Kind::F32);
                        let values = file.vector(t.id);
                        assert_eq!(values.len(), n);
                        assert!(values.iter().all(|v| (0.8..=1.2).contains(v)));
                    }
                    Shape::Matrix { rows, cols } => {
                        let m = file.matrix(t.id);
                        assert_eq!((m.rows(), m.cols(), t.kind), (rows, cols, kind));
                    }
                }
            }
        }
    }
}

#[test]
fn float_weights_are_the_bits_that_were_written() {
    let config = small();
    let dir = tempfile::tempdir().unwrap();
    let path = models::write(dir.path(), "small", &config, Kind::F32);
    let file = ModelFile::open(&path).unwrap();
    // The writer's random numbers once more, tensor after tensor.
    let mut random = models::Random("small".len() as u64);
    for (id, shape) in config.tensors() {
        match shape {
            Shape::Vector(n) => {
                let want: Vec<f32> = (0..n).map(|_| 1.0 + 0.2 * random.unit()).collect();
                assert_eq!(file.vector(id), want);
            }
            Shape::Matrix { rows, cols } => {
                let mut row = vec![0.0; cols];
                for r in 0..rows {
                    file.matrix(id).read_row(r, &mut row);
                    let want: Vec<f32> = (0..cols).map(|_| 0.2 * random.unit()).collect();
                    assert_eq!(row, want, "{id} row {r}");
                }
            }
        }
    }
}

#[test]
fn all_sections_come_back_and_the_fingerprint_is_of_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, template: &str| {
        let path = dir.path().join(name);
        let config = small();
        let mut file = FileWriter::create(&path).unwrap();
        file.config(&config).unwrap();
        file.section(section::TOKENIZER, true, &models::spec().to_bytes().unwrap()).unwrap();
        file.section(section::TEMPLATE, false, template.as_bytes()).unwrap();
        let defaults = Defaults {
            temperature: Some(0.0),
            top_k: Some(40),
            top_p: Some(0.95),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
        };
        file.defaults(&defaults).unwrap();
        file.meta(&[("b".into(), "二".into()), ("a".into(), String::new())]).unwrap();
        zero_tensors(&mut file, &config);
        file.finish().unwrap();
        let file = ModelFile::open(&path).unwrap();
        assert_eq!(file.template().unwrap().as_deref(), Some(template));
        assert_eq!(file.defaults().unwrap(), defaults);
        let meta: Vec<(String, String)> = file.meta().unwrap();
        assert_eq!(meta, [("a".into(), "".into()), ("b".into(), "二".into())]);
        file.fingerprint()
    };
    assert_eq!(write("one", "{{ messages }}"), write("two", "{{ messages }}"));
    assert_ne!(write("one", "{{ messages }}"), write("two", "{{ message }}"));
}

fn zero_tensors(file: &mut FileWriter, config: &Config) {
    let tensors = config.tensors();
    let headers: Vec<TensorHeader> =
        tensors.iter().map(|(id, _)| TensorHeader { id: *id, kind: Kind::F32 }).collect();
    file.tensors::<FileError>(config, &headers, |_, shape, sink| match shape {
        Shape::Vector(n) => sink.write(&vec![0; n * 4]),
        Shape::Matrix { rows, cols } => {
            sink.write(&vec![0; Kind::F32.matrix_bytes(rows, cols).unwrap()])
        }
    })
    .unwrap();
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let whole = SharedBytes::from(bytes());
    for len in 0..whole.len() {
        let cut = whole.slice(0..len).unwrap();
        match ModelFile::from_bytes(cut) {
            Err(FileError::NotKoudai) => assert!(len < 8),
            Err(FileError::Length { .. }) => {}
            Err(e) => panic!("{len}: {e}"),
            Ok(_) => panic!("{len} bytes of {} were taken", whole.len()),
        }
    }
    let mut longer = whole.to_vec();
    longer.push(0);
    assert!(matches!(open(&longer), Err(FileError::Length { .. })));
}

#[test]
fn short_files_on_disk_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.koudai");
    let whole = bytes();
    for len in [0, 1, 7, 8, 63, 64, 100, 4095, 4096, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Engine::open(&path, &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, Error::File(..)), "{len}: {error}");
        assert!(error.to_string().contains("cut.koudai"), "{error}");
    }
    let gone = ModelFile::open(Path::new("no/such/file.koudai")).err().unwrap();
    assert!(gone.to_string().contains("no/such/file.koudai"));
    assert!(matches!(ModelFile::open(dir.path()), Err(FileError::Io(..) | FileError::NotKoudai)));
}

#[test]
fn every_flipped_bit_outside_the_weights_is_noticed() {
    let mut bytes = bytes();
    let n_sections = word(&bytes, 8) >> 32;
    let mut places: Vec<usize> = (0..HEADER + n_sections * ENTRY).collect();
    for s in open(&bytes).unwrap().sections() {
        if s.name != section::WEIGHTS {
            places.extend(s.offset as usize..(s.offset + s.len) as usize);
        }
    }
    for at in places {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            assert!(open(&bytes).is_err(), "bit {bit} of byte {at}");
            bytes[at] ^= 1 << bit;
        }
    }
    open(&bytes).unwrap();
}

#[test]
fn gaps_that_are_not_zero_are_found_by_verify() {
    let mut bytes = bytes();
    let table_end = entry(&bytes, section::BLOCKS) + ENTRY;
    let tensors_end = place(&bytes, section::TENSORS).end;
    let weights = place(&bytes, section::WEIGHTS);
    for at in [table_end, FIRST_SECTION - 1, tensors_end, weights.start - 1] {
        bytes[at] = 1;
        let file = open(&bytes).unwrap();
        assert!(matches!(file.verify(), Err(FileError::Table(_))), "{at}");
        bytes[at] = 0;
    }
    open(&bytes).unwrap().verify().unwrap();
}

#[test]
fn sections_that_changed_places_are_refused() {
    let original = bytes();
    let names = ["config", "tokens", "defaults", "meta", "tensors", "weights"];
    for (i, a) in names.iter().enumerate() {
        for b in &names[i + 1..] {
            let (at_a, at_b) = (entry(&original, a), entry(&original, b));
            // The rows of the table, and then only the names in them.
            for part in [ENTRY, 8] {
                let mut bytes = original.clone();
                bytes[at_a..at_a + part].copy_from_slice(&original[at_b..at_b + part]);
                bytes[at_b..at_b + part].copy_from_slice(&original[at_a..at_a + part]);
                rehash(&mut bytes);
                match open(&bytes) {
                    Err(_) => {}
                    // Optional sections are read when they are asked for.
                    Ok(file) if part == 8 => {
                        let refused = file.meta().is_err() || file.defaults().is_err();
                        let engine = Tokenizers::open(&file);
                        assert!(refused || engine.is_err(), "{a} and {b} changed names");
                    }
                    Ok(_) => panic!("{a} and {b} changed places"),
                }
            }
        }
    }
}

/// Opening only the tokenizer of a file.
struct Tokenizers;

impl Tokenizers {
    fn open(file: &ModelFile) -> Result<(), koudai::tokenizer::Error> {
        let section = file.section(section::TOKENIZER).unwrap();
        koudai::tokenizer::Tokenizer::open(section).map(drop)
    }
}

const HOSTILE: [u64; 16] = [
    0,
    1,
    2,
    63,
    64,
    4095,
    4096,
    1 << 20,
    1 << 31,
    1 << 32,
    (1 << 32) + 64,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX - 63,
    u64::MAX,
];

#[test]
fn hostile_numbers_in_header_and_table_are_refused() {
    let original = bytes();
    let n_sections = word(&original, 8) >> 32;
    for at in (8..24).step_by(8) {
        for value in HOSTILE.iter().filter(|v| **v != word(&original, at) as u64) {
            let mut bytes = original.clone();
            set(&mut bytes, at, &value.to_le_bytes());
            rehash(&mut bytes);
            assert!(open(&bytes).is_err(), "header byte {at} as {value}");
        }
    }
    for count in [n_sections as u32 - 1, n_sections as u32 + 1, 62, 63, 64, u32::MAX] {
        let mut bytes = original.clone();
        set(&mut bytes, 12, &count.to_le_bytes());
        rehash(&mut bytes);
        assert!(open(&bytes).is_err(), "{count} sections");
    }
    for entry in (0..n_sections).map(|i| HEADER + i * ENTRY) {
        for field in [8, 16, 24] {
            let at = entry + field;
            let was = word(&original, at) as u64;
            let near = [was ^ 64, was.wrapping_sub(64), was.wrapping_add(64), was.wrapping_neg()];
            for value in HOSTILE.iter().chain(&near).filter(|v| **v != was) {
                let mut bytes = original.clone();
                set(&mut bytes, at, &value.to_le_bytes());
                rehash(&mut bytes);
                // Flags are required or not, and not all sections must be.
                if field == 24 && *value < 2 {
                    continue;
                }
                // Optional sections are refused when they are read.
                let opened = open(&bytes).and_then(|file| {
                    file.verify()?;
                    file.meta()?;
                    file.defaults().map(drop)
                });
                assert!(opened.is_err(), "table byte {at} as {value}");
            }
        }
    }
}

#[test]
fn hostile_numbers_in_sections_end_in_errors_or_models_never_in_panics() {
    let original = bytes();
    for name in ["config", "tensors", "meta", "defaults", "tokens"] {
        let range = place(&original, name);
        // The tokenizer has a fuzzer of its own; here every place where the others have a number.
        let step = if name == "tokens" { 61 } else { 1 };
        for at in (range.start..range.end - 3).step_by(step) {
            for value in [0u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                let mut bytes = original.clone();
                set(&mut bytes, at, &value.to_le_bytes());
                rehash(&mut bytes);
                if let Ok(file) = open(&bytes) {
                    let _ = (file.meta(), file.defaults(), file.template());
                    let _ = Tokenizers::open(&file);
                }
            }
        }
    }
    // Places of tensors are refused exactly: the last eight bytes of each row are its offset.
    let range = place(&original, "tensors");
    let rows = range.start + 8..range.end;
    for at in rows.step_by(22).map(|row| row + 14) {
        for value in HOSTILE.iter().filter(|v| **v != word(&original, at) as u64) {
            let mut bytes = original.clone();
            set(&mut bytes, at, &value.to_le_bytes());
            rehash(&mut bytes);
            assert!(open(&bytes).is_err(), "tensor offset at {at} as {value}");
        }
    }
}

#[test]
fn unknown_sections_are_skipped_unless_they_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let write = |required| {
        let path = dir.path().join("new.koudai");
        let config = small();
        let mut file = FileWriter::create(&path).unwrap();
        file.config(&config).unwrap();
        file.section(section::TOKENIZER, true, &models::spec().to_bytes().unwrap()).unwrap();
        file.section("novelty", required, b"from the future").unwrap();
        zero_tensors(&mut file, &config);
        file.finish().unwrap();
        ModelFile::open(&path)
    };
    let skipped = write(false).unwrap();
    assert_eq!(*skipped.section("novelty").unwrap(), *b"from the future");
    assert!(matches!(write(true), Err(FileError::UnknownSection(name)) if name == "novelty"));
}

#[test]
fn missing_sections_are_named() {
    let original = bytes();
    for name in ["config", "tokens", "tensors", "weights"] {
        let mut bytes = original.clone();
        let at = entry(&bytes, name);
        set(&mut bytes, at, b"other\0\0\0");
        set(&mut bytes, at + 24, &0u64.to_le_bytes());
        rehash(&mut bytes);
        let error = open(&bytes).err().unwrap();
        assert!(matches!(&error, FileError::Missing(n) if *n == name), "{name}: {error}");
    }
}

#[test]
fn other_versions_and_other_files_are_told_apart() {
    let mut bytes = bytes();
    set(&mut bytes, 8, &2u32.to_le_bytes());
    assert!(matches!(open(&bytes), Err(FileError::Version(2))));
    set(&mut bytes, 6, b"\n\n"); // as a transfer in text mode would make it
    assert!(matches!(open(&bytes), Err(FileError::NotKoudai)));
    assert!(matches!(open(b""), Err(FileError::NotKoudai)));
    assert!(matches!(open(b"GGUF\x03\0\0\0"), Err(FileError::NotKoudai)));
}

#[test]
fn nothing_has_the_final_name_before_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.koudai");
    let names = || {
        let entry = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
        std::fs::read_dir(dir.path()).unwrap().map(entry).collect::<Vec<_>>()
    };
    let config = small();
    let mut file = FileWriter::create(&path).unwrap();
    file.config(&config).unwrap();
    assert!(names().len() == 1 && !path.exists());
    drop(file);
    assert!(names().is_empty());

    let mut file = FileWriter::create(&path).unwrap();
    file.config(&config).unwrap();
    let headers: Vec<TensorHeader> =
        config.tensors().iter().map(|(id, _)| TensorHeader { id: *id, kind: Kind::F32 }).collect();
    let failing = file.tensors::<FileError>(&config, &headers, |_, _, _| Err(FileError::NotKoudai));
    assert!(failing.is_err());
    drop(file);
    assert!(names().is_empty());

    std::fs::write(&path, "what was here").unwrap();
    let file = FileWriter::create(&path).unwrap();
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), b"what was here");
    assert_eq!(names(), ["m.koudai"]);
    let nowhere = dir.path().join("no/such/folder/m.koudai");
    assert!(matches!(FileWriter::create(&nowhere), Err(FileError::Io(..))));
}
