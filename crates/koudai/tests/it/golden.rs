//! Golden prompts: recorded, found again, and missed when the model says something else.

use koudai::file::{FileError, section};
use koudai::golden::{Golden, MAX_PROMPT_TOKENS, MAX_PROMPTS};
use koudai::kernels::Kind;
use koudai::{CancelToken, Engine, Error, OpenOptions};

use crate::models;

fn engine(kind: Kind) -> (tempfile::TempDir, Engine) {
    let dir = tempfile::tempdir().unwrap();
    let config = models::configs().remove(2).1;
    let path = models::write(dir.path(), "golden", &config, kind);
    let engine = Engine::open(&path, &OpenOptions { threads: Some(1), ..Default::default() });
    (dir, engine.unwrap())
}

fn prompts() -> Vec<String> {
    ["Once upon a time", "天地玄黄", "<|256|>a"].map(str::to_owned).to_vec()
}

#[test]
fn what_was_recorded_is_found_again_bit_for_bit() {
    let (_dir, engine) = engine(Kind::Q8);
    let golden = Golden::record(&engine, &prompts(), &CancelToken::default()).unwrap();
    assert_eq!(golden.prompts[2].ids, [256, b'a' as u32], "control tokens may be spelled");
    assert_eq!(Golden::decode(&golden.encode()).unwrap(), golden);
    let checked = golden.check(&engine, &CancelToken::default()).unwrap();
    assert_eq!((checked.prompts, checked.largest < 1e-5, checked.same_bits), (3, true, Some(true)));
    // As if recorded elsewhere: values are compared, bits can't be.
    let mut elsewhere = golden.clone();
    elsewhere.hashes[0].0 = "another".into();
    assert_eq!(elsewhere.check(&engine, &CancelToken::default()).unwrap().same_bits, None);
    let mut joined = golden.clone();
    joined.join(&elsewhere);
    assert_eq!(joined.hashes.len(), 2);
    joined.join(&golden);
    assert_eq!(joined.hashes.len(), 2);
    elsewhere.prompts.pop();
    joined.join(&Golden { hashes: vec![("third".into(), [0; 32])], ..elsewhere });
    assert_eq!(joined.hashes.len(), 2, "other prompts, other hashes");
}

#[test]
fn another_model_or_tokenizer_is_missed_and_the_place_named() {
    let (_dir, recorder) = engine(Kind::Q8);
    let golden = Golden::record(&recorder, &prompts(), &CancelToken::default()).unwrap();
    let check = |golden: &Golden, engine: &Engine| {
        let error = golden.check(engine, &CancelToken::default()).unwrap_err();
        assert!(matches!(error, Error::File(_, FileError::Section(section::GOLDEN, _))), "{error}");
        error.to_string()
    };
    let (_dir, other) = engine(Kind::Q4G32);
    let message = check(&golden, &other);
    assert!(message.contains("prompt 1: after 0 tokens, token"), "{message}");
    let mut changed = golden.clone();
    changed.prompts[1].ids[0] ^= 1;
    assert!(check(&changed, &recorder).contains("prompt 2: its tokens"));
    let mut changed = golden.clone();
    changed.prompts[2].steps[3][1].1 += 0.05;
    assert!(check(&changed, &recorder).contains("prompt 3: after 3 tokens"));
    for nan in [f32::NAN, f32::NEG_INFINITY] {
        let mut changed = golden.clone();
        changed.prompts[0].steps[0][0].1 = nan;
        check(&changed, &recorder);
    }
    let mut changed = golden.clone();
    changed.prompts[0].steps[1][0].0 = 9_999;
    assert!(check(&changed, &recorder).contains("there is no token 9999"));
    // The runner-up in place of the likeliest: its own value is right, but it doesn't lead.
    let mut changed = golden;
    changed.prompts[0].steps[7].remove(0);
    assert!(check(&changed, &recorder).contains("the likeliest token isn't"));
}

#[test]
fn prompts_beyond_the_limits_are_refused() {
    let (_dir, engine) = engine(Kind::Q8);
    let record = |prompts: &[String]| Golden::record(&engine, prompts, &CancelToken::default());
    for n in [0, MAX_PROMPTS + 1] {
        assert!(matches!(record(&vec!["a".into(); n]), Err(Error::Parameter(_))));
    }
    let long = "a".repeat(MAX_PROMPT_TOKENS + 1);
    assert!(matches!(record(&[long]), Err(Error::Parameter(_))));
    assert!(matches!(record(&[String::new()]), Err(Error::EmptyPrompt)));
    let cancel = CancelToken::default();
    cancel.cancel();
    assert!(matches!(Golden::record(&engine, &prompts(), &cancel), Err(Error::Cancelled)));
}

#[test]
fn malformed_sections_are_refused_at_every_cut_and_number() {
    let (_dir, engine) = engine(Kind::Q8);
    let golden = Golden::record(&engine, &["ab".into()], &CancelToken::default()).unwrap();
    let bytes = golden.encode();
    for len in 0..bytes.len() {
        assert!(Golden::decode(&bytes[..len]).is_none(), "{len}");
    }
    assert!(Golden::decode(&[&bytes[..], &[0]].concat()).is_none());
    for at in 0..bytes.len() - 3 {
        for value in [0u32, 1, 0x7fff_ffff, u32::MAX] {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            if let Some(golden) = Golden::decode(&bytes) {
                let _ = golden.check(&engine, &CancelToken::default());
            }
        }
    }
}
