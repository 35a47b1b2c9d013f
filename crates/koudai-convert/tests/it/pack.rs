//! Packing, signing and deltas of real files: what goes in comes out, what doesn't fit is refused.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use koudai::file::{Attachment, AttachmentKind, BLOCK_BYTES, ModelFile};
use koudai::golden::Golden;
use koudai::{CancelToken, Flow, Trust, delta};
use koudai_convert::arch::Family;
use koudai_convert::diff::{DiffReport, diff};
use koudai_convert::pack::{Additions, Packed, pack};
use koudai_convert::sign::{PrivateKey, read_public, sign};
use koudai_convert::synthetic::{SyntheticSpec, byte_tokenizer, write};
use koudai_convert::{Error, Progress};
use koudai_kernels::Kind;

use crate::support::*;

fn go_on(_: Progress) -> Flow {
    ControlFlow::Continue(())
}

/// A model of some blocks in a folder of its own.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        bench.model("model.koudai", 1, Kind::Q8);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn model(&self, name: &str, seed: u64, kind: Kind) -> PathBuf {
        let spec = SyntheticSpec {
            config: TinyModel::new(Family::Qwen3, false).config,
            kind,
            seed,
            tokenizer: byte_tokenizer(VOCAB),
            template: Some("{{ 1 }}".into()),
        };
        write(&self.path(name), &spec).unwrap();
        self.path(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn pack(&self, from: &str, to: &str, additions: &Additions) -> Result<Packed, Error> {
        let cancel = CancelToken::default();
        pack(&self.path(from), &self.path(to), additions, &cancel, &mut go_on)
    }

    fn open(&self, name: &str) -> ModelFile {
        let file = ModelFile::open(&self.path(name)).unwrap();
        file.verify().unwrap();
        file
    }

    /// The delta between two files, applied: must give the second.
    fn round_trip(&self, old: &str, new: &str) -> DiffReport {
        let (delta, made) = (self.path("d.kdelta"), self.path("made.koudai"));
        let report = diff(&self.path(old), &self.path(new), &delta, &mut go_on).unwrap();
        assert_eq!(report.bytes, delta.metadata().unwrap().len());
        delta::apply(&self.path(old), &delta, &made, &Trust::Any, &mut |_, _| {
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(std::fs::read(&made).unwrap() == std::fs::read(self.path(new)).unwrap());
        report
    }
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

#[test]
fn everything_packed_comes_out_and_the_model_is_the_same() {
    let bench = Bench::new();
    let before = bench.open("model.koudai");
    let additions = Additions {
        draft: Some(bench.write("draft.bin", b"a draft")),
        decision: Some(bench.write("decision.bin", b"")),
        adapters: vec![
            ("support".into(), bench.write("a.bin", b"adapter a")),
            ("tone".into(), bench.write("b.bin", b"adapter b")),
        ],
        golden: vec!["Once".into(), "upon a time".into()],
        card: Some("# Card\n天地".into()),
        meta: pairs(&[("license", "MIT"), ("name", "packed")]),
        lineage: pairs(&[("seed", "1"), ("source", "b"), ("source", "a")]),
    };
    let packed = bench.pack("model.koudai", "packed.koudai", &additions).unwrap();
    let file = bench.open("packed.koudai");
    assert_eq!((packed.bytes, packed.fingerprint), (file.len_bytes(), file.fingerprint()));
    assert_eq!(file.model_hash(), before.model_hash());
    let weights = |f: &ModelFile| f.section("weights").unwrap().to_vec();
    assert!(weights(&file) == weights(&before));
    assert_eq!(file.card().unwrap(), additions.card);
    assert_eq!(file.lineage().unwrap(), additions.lineage, "in the order they were given");
    let meta = pairs(&[("architecture", "synthetic"), ("license", "MIT"), ("name", "packed")]);
    assert_eq!(file.meta().unwrap(), meta);
    assert_eq!(file.template().unwrap(), before.template().unwrap());
    assert_eq!(Golden::of(&file).unwrap().unwrap().prompts.len(), 2);
    let names = |file: &ModelFile| -> Vec<String> {
        let all = file.attachments().unwrap();
        all.iter().map(|a| format!("{} {}", a.kind.name(), a.name)).collect()
    };
    assert_eq!(names(&file), ["draft ", "decision ", "adapter support", "adapter tone"]);

    // Again, in place: the same name replaces, the rest stays.
    let more = Additions {
        adapters: vec![("support".into(), bench.write("c.bin", b"adapter c"))],
        lineage: pairs(&[("seed", "2")]),
        ..Default::default()
    };
    bench.pack("packed.koudai", "packed.koudai", &more).unwrap();
    let file = bench.open("packed.koudai");
    assert_eq!(names(&file), ["draft ", "decision ", "adapter tone", "adapter support"]);
    assert_eq!(*file.attachments().unwrap()[3].payload, *b"adapter c");
    assert_eq!(file.lineage().unwrap().last(), pairs(&[("seed", "2")]).last());
    assert_eq!(file.card().unwrap(), additions.card);
    assert_eq!(Golden::of(&file).unwrap().unwrap().prompts.len(), 2);
}

#[test]
fn attachments_for_another_model_kind_or_file_are_refused_by_name() {
    let bench = Bench::new();
    let other = ModelFile::open(&bench.model("other.koudai", 2, Kind::Q8)).unwrap();
    let made_for = |file: &ModelFile, kind| {
        let payload = b"payload".to_vec().into();
        let attachment =
            Attachment { kind, name: String::new(), target: file.model_hash(), payload };
        let envelope = attachment.envelope();
        bench.write("attachment.bin", &[&envelope[..], b"payload"].concat())
    };
    let refused = |draft: PathBuf| {
        let additions = Additions { draft: Some(draft), ..Default::default() };
        let error = bench.pack("model.koudai", "out.koudai", &additions).unwrap_err();
        assert!(!bench.path("out.koudai").exists());
        error.to_string()
    };
    let message = refused(made_for(&other, AttachmentKind::Draft));
    assert!(message.contains("attachment.bin") && message.contains("another model"), "{message}");
    let model = bench.open("model.koudai");
    let message = refused(made_for(&model, AttachmentKind::Decision));
    assert!(message.contains("for --decision, not for --draft"), "{message}");
    assert!(refused(bench.path("no-such.bin")).contains("no-such.bin"));
    assert!(refused(bench.write("attachment.bin", b"KOUDATT1")).contains("malformed"));
    let draft = made_for(&model, AttachmentKind::Draft);
    let additions = Additions { draft: Some(draft), ..Default::default() };
    bench.pack("model.koudai", "out.koudai", &additions).unwrap();
    assert_eq!(*bench.open("out.koudai").attachments().unwrap()[0].payload, *b"payload");

    let many = (0..33).map(|i| (format!("a{i}"), bench.path("attachment.bin"))).collect();
    bench.write("attachment.bin", b"raw");
    let additions = Additions { adapters: many, ..Default::default() };
    let error = bench.pack("model.koudai", "out.koudai", &additions).unwrap_err().to_string();
    assert!(error.contains("33 adapters; 32 are allowed"), "{error}");
}

#[test]
fn keys_are_files_that_others_read_and_signing_is_repeatable() {
    let bench = Bench::new();
    let key = PrivateKey::generate().unwrap();
    let (private, public) = (bench.path("k.key"), bench.path("k.key.pub"));
    assert_eq!(key.write(&private).unwrap(), public);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(private.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(matches!(key.write(&private), Err(Error::Io(..))), "a key is never overwritten");
    assert_eq!(read_public(&public).unwrap(), key.public());
    assert_eq!(PrivateKey::read(&private).unwrap().public(), key.public());
    for (path, what) in [(&private, "public"), (&bench.path("model.koudai"), "public")] {
        let error = read_public(path).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(path.to_str().unwrap()), "{error}");
    }
    assert!(PrivateKey::read(&public).err().unwrap().to_string().contains("private key"));

    let model = bench.path("model.koudai");
    let trust = Trust::Signed(vec![key.public()]);
    let unsigned = bench.open("model.koudai");
    sign(&model, &model, &key, &mut go_on).unwrap();
    let once = std::fs::read(&model).unwrap();
    let file = bench.open("model.koudai");
    file.check_trust(&trust).unwrap();
    assert_eq!(file.fingerprint(), unsigned.fingerprint());
    sign(&model, &model, &key, &mut go_on).unwrap();
    assert!(std::fs::read(&model).unwrap() == once);
    // Another key replaces the signature; packing removes it.
    sign(&model, &model, &PrivateKey::generate().unwrap(), &mut go_on).unwrap();
    assert!(bench.open("model.koudai").check_trust(&trust).is_err());
    let packed = bench.pack("model.koudai", "model.koudai", &Additions::default()).unwrap();
    assert!(packed.dropped_signature);
    assert!(bench.open("model.koudai").signature().unwrap().is_none());
}

#[test]
fn damaged_files_are_neither_signed_nor_packed_nor_compared() {
    let bench = Bench::new();
    let mut bytes = std::fs::read(bench.path("model.koudai")).unwrap();
    let at =
        bench.open("model.koudai").sections().iter().find(|s| s.name == "weights").unwrap().offset;
    bytes[at as usize + BLOCK_BYTES] ^= 1;
    let damaged = bench.write("damaged.koudai", &bytes);
    let (model, out) = (bench.path("model.koudai"), bench.path("out"));
    let key = PrivateKey::generate().unwrap();
    for error in [
        sign(&damaged, &out, &key, &mut go_on).unwrap_err(),
        bench.pack("damaged.koudai", "out", &Additions::default()).unwrap_err(),
        diff(&damaged, &model, &out, &mut go_on).unwrap_err(),
        diff(&model, &damaged, &out, &mut go_on).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("damaged.koudai") && error.contains("block 1,"), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn deltas_hold_what_changed_and_little_more() {
    let bench = Bench::new();
    let mut random = Random(7);
    let payload: Vec<u8> = (0..50_000).map(|_| (random.next() >> 20) as u8).collect();
    let with = |bytes: &[u8], name: &str| {
        let adapters = vec![("a".to_owned(), bench.write("a.bin", bytes))];
        bench.pack("model.koudai", name, &Additions { adapters, ..Default::default() }).unwrap();
    };
    with(&payload, "v1.koudai");
    with(&payload[..40_000], "v2.koudai");
    let len = bench.open("v1.koudai").len_bytes();

    let same = bench.round_trip("v1.koudai", "v1.koudai");
    assert!(same.bytes < 2_000 && same.copied + 4096 >= len, "{same:?}");
    let shorter = bench.round_trip("v1.koudai", "v2.koudai");
    assert!(shorter.bytes < 20_000, "{shorter:?}");
    let longer = bench.round_trip("v2.koudai", "v1.koudai");
    assert!(longer.bytes < 30_000, "{longer:?}");
    let added = bench.round_trip("model.koudai", "v1.koudai");
    assert!((50_000..54_000).contains(&added.bytes), "{added:?}");
    let removed = bench.round_trip("v1.koudai", "model.koudai");
    assert!(removed.bytes < 2_000, "{removed:?}");

    // A section in front shifts the weights; another kind of matrix makes others of them.
    let card = Additions { meta: pairs(&[("long", &"x".repeat(20_000))]), ..Default::default() };
    bench.pack("v1.koudai", "shifted.koudai", &card).unwrap();
    let shifted = bench.round_trip("v1.koudai", "shifted.koudai");
    assert!(shifted.bytes < 5_000, "{shifted:?}");
    bench.model("f16.koudai", 1, Kind::F16);
    bench.round_trip("v1.koudai", "f16.koudai");
    bench.model("another.koudai", 9, Kind::Q8);
    bench.round_trip("v1.koudai", "another.koudai");

    // A few codes here and there, as a fine-tune moves them.
    let tuned = tuned(&bench.path("model.koudai"), &bench.path("tuned.koudai"));
    let report = bench.round_trip("model.koudai", "tuned.koudai");
    assert!(report.changed > 0 && report.bytes < tuned * 4 + 20_000, "{report:?}");
}

/// The same model with every 100th byte of its weights one off; returns how many.
fn tuned(model: &Path, to: &Path) -> u64 {
    use koudai::file::{FileError, FileWriter, TensorHeader, section};
    let file = ModelFile::open(model).unwrap();
    let mut writer = FileWriter::create(to).unwrap();
    for name in [section::CONFIG, section::TOKENIZER, section::TEMPLATE, section::META] {
        writer.copy(&file, name).unwrap();
    }
    let headers: Vec<TensorHeader> =
        file.tensors().iter().map(|t| TensorHeader { id: t.id, kind: t.kind }).collect();
    let mut changed = 0;
    let write = |header: &TensorHeader, _, sink: &mut koudai::file::TensorSink<'_>| {
        let mut bytes = file.tensor_bytes(file.tensor(header.id)).to_vec();
        if header.kind == Kind::Q8 {
            bytes.iter_mut().skip(4000).step_by(100).for_each(|b| {
                *b ^= 1;
                changed += 1;
            });
        }
        sink.write(&bytes)
    };
    writer.tensors::<FileError>(file.config(), &headers, write).unwrap();
    writer.finish().unwrap();
    changed
}

#[test]
fn stopped_work_leaves_nothing() {
    let bench = Bench::new();
    let stop = |_: Progress| ControlFlow::Break(());
    let (model, out) = (bench.path("model.koudai"), bench.path("out"));
    let key = PrivateKey::generate().unwrap();
    let cancel = CancelToken::default();
    let before = std::fs::read(&model).unwrap();
    for error in [
        pack(&model, &model, &Additions::default(), &cancel, &mut { stop }).err(),
        sign(&model, &model, &key, &mut { stop }).err(),
        diff(&model, &model, &out, &mut { stop }).err(),
    ] {
        assert!(matches!(error, Some(Error::Cancelled)));
    }
    assert!(std::fs::read(&model).unwrap() == before);
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 1);
}
