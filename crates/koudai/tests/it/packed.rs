//! What lies beside a model in its file: attachments that fit it and no other, signatures, and who
//! is trusted.

use std::path::Path;

use ed25519_dalek::{Signer, SigningKey};
use koudai::bytes::SharedBytes;
use koudai::file::{Attachment, AttachmentKind, FileError, FileWriter, ModelFile, section};
use koudai::kernels::Kind;
use koudai::trust::{Signature, signed_message};
use koudai::{Engine, Error, OpenOptions, PublicKey, Trust};

use crate::file::{open, place, rehash, small};
use crate::models;

pub(crate) fn private_key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn public(key: &SigningKey) -> PublicKey {
    PublicKey::from_bytes(key.verifying_key().to_bytes()).unwrap()
}

pub(crate) fn attachment(file: &ModelFile, name: &str, payload: &[u8]) -> Attachment {
    Attachment {
        kind: AttachmentKind::Adapter,
        name: name.into(),
        target: file.model_hash(),
        payload: SharedBytes::from(payload.to_vec()),
    }
}

/// Writes `file` with what `add` adds.
fn copied(file: &ModelFile, path: &Path, add: impl FnOnce(&mut FileWriter)) -> FileWriter {
    let mut writer = FileWriter::create(path).unwrap();
    for s in file.sections() {
        match s.name.as_str() {
            section::TENSORS => writer.copy_tensors::<FileError>(file, |_| Ok(())).unwrap(),
            section::WEIGHTS | section::BLOCKS | section::SIGNED => {}
            name => writer.copy(file, name).unwrap(),
        }
    }
    add(&mut writer);
    writer
}

/// Writes `file` with what `add` adds, signed.
pub(crate) fn signed(
    file: &ModelFile,
    path: &Path,
    key: &SigningKey,
    add: impl FnOnce(&mut FileWriter),
) {
    let mut writer = copied(file, path, add);
    let bytes = key.sign(&signed_message(&writer.fingerprint())).to_bytes();
    writer.sign(&Signature { key: public(key), bytes }).unwrap();
    writer.finish().unwrap();
}

fn model(dir: &Path, name: &str) -> ModelFile {
    ModelFile::open(&models::write(dir, name, &small(), Kind::F16)).unwrap()
}

fn refused(bytes: &[u8], trust: &Trust) -> String {
    match open(bytes).unwrap().check_trust(trust).unwrap_err() {
        FileError::Untrusted(why) => why,
        other => panic!("{other}"),
    }
}

#[test]
fn only_files_signed_by_a_trusted_key_open_and_others_hear_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = model(dir.path(), "one");
    let (mine, other) = (private_key(1), private_key(2));
    let path = dir.path().join("signed.koudai");
    signed(&file, &path, &mine, |_| {});
    let bytes = std::fs::read(&path).unwrap();
    let opened = open(&bytes).unwrap();
    opened.verify().unwrap();
    assert_eq!(opened.fingerprint(), file.fingerprint(), "a signature is no change");
    assert_eq!(opened.signature().unwrap().unwrap().key, public(&mine));

    let trusted = Trust::Signed(vec![public(&other), public(&mine)]);
    opened.check_trust(&trusted).unwrap();
    opened.check_trust(&Trust::Any).unwrap();
    let engine = |path: &Path, trust| {
        Engine::open(path, &OpenOptions { threads: Some(1), trust, ..Default::default() })
    };
    engine(&path, trusted.clone()).unwrap();

    assert!(refused(file.bytes(), &trusted).contains("isn't signed"));
    let stranger = Trust::Signed(vec![public(&other)]);
    let why = refused(&bytes, &stranger);
    assert!(why.contains("another key") && why.contains(&public(&mine).to_string()), "{why}");
    assert!(why.contains(&public(&other).to_string()), "{why}");
    assert!(refused(&bytes, &Trust::Signed(vec![])).contains("trusted: none"));
    let error = engine(&path, stranger).unwrap_err();
    assert!(matches!(error, Error::File(_, FileError::Untrusted(_))), "{error}");
    assert!(error.to_string().contains("signed.koudai"), "{error}");
}

#[test]
fn a_signature_is_of_one_content_only() {
    let dir = tempfile::tempdir().unwrap();
    let key = private_key(1);
    let trusted = Trust::Signed(vec![public(&key)]);
    let write = |name: &str| {
        let path = dir.path().join(format!("{name}.koudai"));
        signed(&model(dir.path(), name), &path, &key, |_| {});
        std::fs::read(path).unwrap()
    };
    let (one, another) = (write("one"), write("another"));
    // Its signature on another file.
    let mut replayed = one.clone();
    let signature = another[place(&another, section::SIGNED)].to_vec();
    let at = place(&one, section::SIGNED);
    replayed[at.clone()].copy_from_slice(&signature);
    rehash(&mut replayed);
    assert!(refused(&replayed, &trusted).contains("another file's"));
    assert!(matches!(open(&replayed).unwrap().verify(), Err(FileError::Untrusted(_))));
    // Changed content with all hashes made right.
    for name in ["weights", "tokens", "meta", "defaults"] {
        let mut changed = one.clone();
        let range = place(&changed, name);
        changed[range.end - 1] ^= 1;
        rehash(&mut changed);
        let Ok(file) = open(&changed) else { continue };
        assert!(file.check_trust(&trusted).is_err(), "{name}");
    }
    // Every bit of key and signature.
    for at in at {
        let mut changed = one.clone();
        changed[at] ^= 1 << (at % 8);
        rehash(&mut changed);
        assert!(open(&changed).unwrap().check_trust(&trusted).is_err(), "byte {at}");
    }
}

#[test]
fn weights_of_signed_files_are_verified_before_they_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let key = private_key(3);
    let path = dir.path().join("signed.koudai");
    signed(&model(dir.path(), "one"), &path, &key, |_| {});
    let mut bytes = std::fs::read(&path).unwrap();
    let at = place(&bytes, section::WEIGHTS).start;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let trust = Trust::Signed(vec![public(&key)]);
    let options = OpenOptions { threads: Some(1), trust, ..Default::default() };
    let engine = Engine::open(&path, &options).unwrap();
    let error = koudai::Session::new(&engine, &Default::default()).unwrap().append(&[1]).map(drop);
    assert!(matches!(error, Err(Error::File(_, FileError::Block { index: 0, .. }))));
}

#[test]
fn weak_keys_are_none() {
    assert!(PublicKey::from_bytes([0; 32]).is_none());
    let mut identity = [0; 32];
    identity[0] = 1;
    assert!(PublicKey::from_bytes(identity).is_none());
}

#[test]
fn attachments_fit_their_model_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (one, another) = (model(dir.path(), "one"), model(dir.path(), "another"));
    assert_ne!(one.model_hash(), another.model_hash());
    let path = dir.path().join("packed.koudai");
    let adapters = [attachment(&one, "a", b"first"), attachment(&one, "b", b"second")];
    let draft =
        Attachment { kind: AttachmentKind::Draft, name: String::new(), ..adapters[0].clone() };
    let write = |add: &dyn Fn(&mut FileWriter)| {
        copied(&one, &path, add).finish().unwrap();
        ModelFile::open(&path).unwrap()
    };
    let packed = write(&|w| {
        w.attachment(0, &draft).unwrap();
        w.attachment(0, &adapters[0]).unwrap();
        w.attachment(1, &adapters[1]).unwrap();
    });
    packed.verify().unwrap();
    assert_eq!(packed.model_hash(), one.model_hash(), "what is beside it doesn't change a model");
    assert_ne!(packed.fingerprint(), one.fingerprint());
    let all = packed.attachments().unwrap();
    let said: Vec<_> = all.iter().map(|a| (a.kind.name(), a.name.as_str(), &*a.payload)).collect();
    let expected: [(_, _, &[u8]); 3] =
        [("draft", "", b"first"), ("adapter", "a", b"first"), ("adapter", "b", b"second")];
    assert_eq!(said, expected);
    assert!(all.iter().all(|a| a.payload.as_ptr().addr().is_multiple_of(64)));

    let refused = |file: ModelFile, part: &str| {
        for error in [file.attachments().map(drop), file.verify()] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("section `"), "{error}");
        }
    };
    refused(
        write(&|w| w.attachment(0, &attachment(&another, "a", b"x")).unwrap()),
        "another model",
    );
    refused(
        write(&|w| {
            w.attachment(0, &adapters[0]).unwrap();
            w.attachment(1, &adapters[0]).unwrap();
        }),
        "second adapter `a`",
    );
    let nameless = Attachment { name: String::new(), ..adapters[0].clone() };
    refused(write(&|w| w.attachment(0, &nameless).unwrap()), "malformed");
    // A kind under another's section; nothing; rubbish.
    for bytes in [&draft.envelope()[..], b"", b"KOUDATT1", &[0; 200]] {
        refused(write(&|w| w.section("decision", false, bytes).unwrap()), "malformed");
    }
    let envelope = adapters[0].envelope();
    for len in 0..envelope.len() {
        refused(write(&|w| w.section("adapt07", false, &envelope[..len]).unwrap()), "malformed");
    }
}
