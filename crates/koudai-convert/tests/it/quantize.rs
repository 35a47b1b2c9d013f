//! Quantizing: `.koudai` files as input, overrides, calibration, and weights that can't be quantized.

use std::path::{Path, PathBuf};

use koudai::file::{ModelFile, section};
use koudai::{Engine, Flow, OpenOptions, Role, TensorId};
use koudai_convert::arch::Family;
use koudai_convert::{Calibration, Error, Mode, Options, Override, Quant, convert};
use koudai_kernels::Kind;

use crate::support::*;

/// A tiny model as a `.koudai` file in `folder`.
fn original(folder: &Path, family: Family, tied: bool) -> PathBuf {
    let (gguf, path) = (folder.join("in.gguf"), folder.join("original.koudai"));
    std::fs::write(&gguf, TinyModel::new(family, tied).gguf(BF16).build()).unwrap();
    convert(&gguf, &path, &Options::default(), &mut on).unwrap();
    path
}

fn calibration(path: &Path) -> Calibration {
    let engine = Engine::open(path, &OpenOptions::default()).unwrap();
    let text = "What is measured once is known; what is guessed twice is still a guess. ".repeat(9);
    Calibration::new(&engine, &[text], 600, &mut on).unwrap()
}

fn id(layer: usize, role: Role) -> TensorId {
    TensorId { layer: Some(layer), role }
}

#[test]
fn a_koudai_file_comes_out_as_it_went_in() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::Llama, Family::Qwen2, Family::Gemma3] {
        let path = original(folder.path(), family, true);
        let was = ModelFile::open(&path).unwrap();
        let (file, report) = convert_path(&path, &Options::default()).unwrap();
        assert_eq!(file.config(), was.config());
        for (a, b) in file.tensors().iter().zip(was.tensors()) {
            assert_eq!(a.kind, b.kind);
            assert!(file.tensor_data(a) == was.tensor_data(b), "{}", a.id);
        }
        for name in [section::TOKENIZER, section::TEMPLATE] {
            assert_eq!(file.section(name).as_deref(), was.section(name).as_deref(), "{name}");
        }
        assert_eq!(report.architecture, family.name());
        let meta = file.meta().unwrap();
        let get = |key: &str| meta.iter().filter(|m| m.0 == key).map(|m| m.1.as_str()).collect();
        let (names, sources): (Vec<&str>, Vec<&str>) = (get("name"), get("source"));
        assert_eq!((names, sources), (vec!["tiny"], vec!["original.koudai"]));
    }
}

#[test]
fn groups_of_64_split_and_merge_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let path = original(folder.path(), Family::Qwen3, true);
    let to = |from: &Path, name: &str, quant| {
        let path = folder.path().join(name);
        let report =
            convert(from, &path, &Options { quant, ..Options::default() }, &mut on).unwrap();
        (path, report)
    };
    let (wide, _) = to(&path, "g64", Quant::Q4G64);
    let (narrow, report) = to(&wide, "g32", Quant::Q4G32);
    assert!(report.tensors.iter().all(|t| t.exact));
    let (again, report) = to(&narrow, "again", Quant::Q4G64);
    assert!(report.tensors.iter().all(|t| t.exact));
    let (wide, again) = (ModelFile::open(&wide).unwrap(), ModelFile::open(&again).unwrap());
    let embed = TensorId { layer: None, role: Role::Embed };
    assert_eq!(again.matrix(embed).kind(), Kind::Q4G64);
    assert!(again.matrix(embed).data() == wide.matrix(embed).data());
}

#[test]
fn patterns_match_whole_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = original(folder.path(), Family::Llama, false);
    let up = |patterns: &[&str]| {
        let overrides = patterns.iter().map(|p| Override::parse(p).unwrap()).collect();
        let options = Options { quant: Quant::F16, overrides, ..Options::default() };
        let file = convert_path(&path, &options)?.0;
        Ok::<_, koudai_convert::Error>(file.matrix(id(1, Role::FfnUp)).kind())
    };
    for pattern in ["*", "*up", "layers.*", "l*.1.*f*p", "layers.1.ffn_up", "*1*"] {
        assert_eq!(up(&[&format!("{pattern}=q8")]).unwrap(), Kind::Q8, "{pattern}");
    }
    for pattern in ["layers.0.*", "*down", "head"] {
        assert_eq!(up(&[&format!("{pattern}=q8")]).unwrap(), Kind::F16, "{pattern}");
    }
    for pattern in ["layers", "up", "ffn*", "layers.1.ffn_up*up", "final_norm"] {
        let message = up(&[&format!("{pattern}=q8")]).unwrap_err().to_string();
        assert!(message.contains(pattern), "{message}");
    }
    assert_eq!(up(&["*=q8", "layers.1.*=q4g32"]).unwrap(), Kind::Q4G32);
    assert_eq!(up(&["layers.1.*=q4g32", "*=q8"]).unwrap(), Kind::Q8);
    for text in ["", "x", "=q8", "x=", "x=q9"] {
        assert_eq!(Override::parse(text), None, "{text}");
    }
}

#[test]
fn calibrated_bytes_do_not_depend_on_threads() {
    for (family, tied) in [(Family::Qwen3, true), (Family::Gemma3, false)] {
        let folder = tempfile::tempdir().unwrap();
        let path = original(folder.path(), family, tied);
        let calibrated = Mode::Calibrate(calibration(&path));
        let fingerprint = |mode: &Mode, threads| {
            let (quant, mode) = (Quant::Q4G64, mode.clone());
            let options = Options { quant, mode, threads, ..Options::default() };
            let (file, report) = convert_path(&path, &options).unwrap();
            assert!(report.tensors.iter().any(|t| t.to == Kind::Q4G64 && !t.exact));
            file.fingerprint()
        };
        let one = fingerprint(&calibrated, 1);
        for threads in [2, 5] {
            assert_eq!(fingerprint(&calibrated, threads), one, "{threads} threads");
        }
        let others = [Mode::MinMax, Mode::Search].map(|mode| fingerprint(&mode, 2));
        assert!(others[0] != others[1] && !others.contains(&one));
    }
}

#[test]
fn calibration_is_of_the_same_model_and_of_enough_text() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = original(folder.path(), Family::Llama, true);
    let other = original(elsewhere.path(), Family::Qwen3, true);
    let mode = Mode::Calibrate(calibration(&other));
    let options = Options { quant: Quant::Q4G32, mode, ..Options::default() };
    let message = convert_path(&path, &options).map(drop).unwrap_err().to_string();
    assert!(message.contains("isn't the model that was calibrated"), "{message}");
    let engine = Engine::open(&path, &OpenOptions::default()).unwrap();
    let refused = |texts: &[String]| Calibration::new(&engine, texts, 600, &mut on).unwrap_err();
    assert!(refused(&["x".repeat(100)]).to_string().contains("100 tokens"));
    assert!(refused(&[]).to_string().contains("0 tokens"));
    let stopped = Calibration::new(&engine, &["x".repeat(600)], 600, &mut |_| Flow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));
    // Of a text with room for more, windows are taken here and there; bytes are tokens.
    let long = Calibration::new(&engine, &["好".repeat(9000), "é".repeat(70)], 2000, &mut on);
    assert_eq!(long.unwrap().tokens(), 2 * 512 + 140);
}

#[test]
fn weights_that_are_not_numbers_are_refused_by_name_and_large_ones_kept_in_every_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = original(folder.path(), Family::Qwen3, true);
    for mode in [Mode::MinMax, Mode::Search, Mode::Calibrate(calibration(&path))] {
        for value in [f32::NAN, f32::NEG_INFINITY, 1e9] {
            let mut model = TinyModel::new(Family::Qwen3, true);
            model.values.get_mut(&id(2, Role::FfnUp)).unwrap()[77] = value;
            let options = Options { quant: Quant::Q4G64, mode: mode.clone(), ..Options::default() };
            let result = convert_bytes(&model.gguf(F32).build(), &options);
            if !value.is_finite() {
                let message = result.map(drop).unwrap_err().to_string();
                assert!(message.contains("blk.2.ffn_up.weight"), "{}: {message}", mode.name());
                continue;
            }
            let (file, report) = result.unwrap();
            assert_eq!(file.matrix(id(2, Role::FfnUp)).kind(), Kind::F32, "{}", mode.name());
            assert!(report.notes.iter().any(|n| n.contains("beyond f16")), "{}", mode.name());
        }
    }
}
