//! Random models of any configuration.

use koudai::Shape;
use koudai::file::{ModelFile, section};
use koudai::tokenizer::{Special, Tokenizer};
use koudai_convert::arch::Family;
use koudai_convert::synthetic::{SyntheticSpec, byte_tokenizer, write};
use koudai_kernels::Kind;

use crate::support::*;

#[test]
fn every_kind_and_family_opens_and_is_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.koudai");
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gemma3] {
        for kind in Kind::ALL {
            let spec = SyntheticSpec {
                config: TinyModel::new(family, false).config,
                kind,
                seed: 4,
                tokenizer: byte_tokenizer(VOCAB),
                template: Some("{{ 1 }}".into()),
            };
            write(&path, &spec).unwrap();
            let file = ModelFile::open(&path).unwrap();
            file.verify().unwrap();
            assert_eq!(file.config(), &spec.config);
            for t in file.tensors() {
                let values = read(&file, t.id);
                let n = values.len() as f32;
                let mean = values.iter().sum::<f32>() / n;
                let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n).sqrt();
                match t.shape {
                    Shape::Vector(_) if is_norm(t.id.role) => assert!((mean - 1.0).abs() < 0.06),
                    Shape::Vector(_) => assert!(mean.abs() < 0.02),
                    Shape::Matrix { .. } => {
                        assert!(mean.abs() < 0.003, "{} {mean}", t.id);
                        assert!((std - 0.02).abs() < 0.002, "{} {std}", t.id);
                    }
                }
            }
            let tokenizer = Tokenizer::open(file.section(section::TOKENIZER).unwrap()).unwrap();
            let ids = tokenizer.encode("é<|im_end|>", Special::Parse);
            assert_eq!(ids, [0xc3, 0xa9, 257]);
            let fingerprint = file.fingerprint();
            write(&path, &spec).unwrap();
            assert_eq!(ModelFile::open(&path).unwrap().fingerprint(), fingerprint);
            write(&path, &SyntheticSpec { seed: 5, ..spec }).unwrap();
            assert_ne!(ModelFile::open(&path).unwrap().fingerprint(), fingerprint);
        }
    }
}
