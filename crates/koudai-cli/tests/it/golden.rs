//! Real models against golden outputs: what the f32 reference and the reference tokenizers say.
//!
//! `tools/golden.py` made the files in `tests/golden`. Each test says in its name which model it
//! fetches; a model that can't be had skips its tests with a printed reason, or fails them where
//! `KOUDAI_GOLDEN=required` is set, as it is in CI. What was measured is printed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use koudai::sampler::log_sum_exp;
use koudai::tokenizer::{Special, Tokenizer};
use koudai::{Engine, GenerateParams, OpenOptions, Precision, Session, SessionOptions};
use koudai_convert::tokenizer::{TokenizerFiles, spec_from_tokenizer_json};
use koudai_convert::{Cache, Calibration, Mode, Options, PullOptions, Quant, convert, pull};
use koudai_eval::perplexity;
use serde_json::Value;

use crate::support::scratch;

/// A line for whoever reads the log, even of tests that pass.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A golden file.
pub(crate) fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(crate) fn numbers(array: &Value) -> Vec<u32> {
    array.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

/// A file under `KOUDAI_DATA`, or `None` with a printed reason.
pub(crate) fn data(test: &str, name: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let root = std::env::var_os("KOUDAI_DATA").map_or(PathBuf::from(beside), PathBuf::from);
    let path = root.join(name);
    if !path.is_file() {
        note(&format!("skipped {test}: no {name} under KOUDAI_DATA"));
        return None;
    }
    Some(path)
}

fn cache() -> Cache {
    match std::env::var_os("KOUDAI_CACHE") {
        Some(folder) => Cache::at(folder),
        None => Cache::at(scratch().join("models")),
    }
}

fn open(path: &Path) -> Engine {
    // One thread: the tests run beside each other already.
    Engine::open(path, &OpenOptions { threads: Some(1), ..Default::default() }).unwrap()
}

/// The model, fetched if need be.
fn fetch(name: &str) -> Option<Engine> {
    // One at a time: tests of the same model would fetch it twice.
    static FETCHING: Mutex<()> = Mutex::new(());
    let _one = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    match pull(
        &cache(),
        name,
        &PullOptions::default(),
        &mut |_| std::ops::ControlFlow::Continue(()),
    ) {
        Ok(pulled) => Some(open(&pulled.path)),
        Err(error) => {
            let required = std::env::var_os("KOUDAI_GOLDEN").is_some_and(|v| v == "required");
            assert!(!required, "{name} can't be fetched: {error}");
            note(&format!("skipped tests of {name}: {error}"));
            None
        }
    }
}

/// Ids of every string of a golden file.
pub(crate) fn check_strings(name: &str, tokenizer: &Tokenizer, golden: &Value) {
    let all_special = golden["special"] == true;
    let strings = golden["strings"].as_array().unwrap();
    let mut wrong = Vec::new();
    for record in strings {
        let special = match all_special || record["special"] == true {
            true => Special::Parse,
            false => Special::Text,
        };
        let text = record["text"].as_str().unwrap();
        let want = numbers(&record["ids"]);
        let got = tokenizer.encode(text, special);
        if got != want {
            wrong.push(format!("{text:?} {special:?}\n  is  {got:?}\n  not {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), strings.len(), wrong.join("\n"));
    assert!(strings.len() >= 300);
    note(&format!("{name}: all {} strings have the reference's token ids", strings.len()));
}

/// Distances from the reference, over the 20 likeliest first tokens of every prompt.
#[derive(Debug, Default)]
struct Measured {
    mean: f64,
    max: f64,
    prompts: usize,
    steps: usize,
    other_tokens: usize,
}

/// Greedy steps whose margin is below this may fall the other way.
const CLOSE: f64 = 0.05;

fn measure(how: &str, engine: &Engine, golden: &Value, precision: Precision) -> Measured {
    let options = SessionOptions { context: Some(1024), precision, ..Default::default() };
    let mut session = Session::new(engine, &options).unwrap();
    let mut m = Measured::default();
    let mut deltas = Vec::new();
    for prompt in golden["prompts"].as_array().unwrap() {
        let name = prompt["name"].as_str().unwrap();
        let special = match prompt["kind"] == "chat" {
            true => Special::Parse,
            false => Special::Text,
        };
        let ids = numbers(&prompt["ids"]);
        let text = prompt["text"].as_str().unwrap();
        assert_eq!(engine.tokenizer().encode_prompt(text, special), ids, "{name}");

        let logits = session.set_prompt(&ids).unwrap().0;
        let lse = log_sum_exp(logits);
        for pair in prompt["top"].as_array().unwrap() {
            let (id, want) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
            deltas.push((logits[id] as f64 - lse - want).abs());
        }
        // Every step of the reference's continuation, whatever happened at those before it.
        let greedy = numbers(&prompt["greedy"]);
        let mut check = |step: usize, logits: &[f32]| {
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            m.steps += 1;
            if best as u32 != greedy[step] {
                m.other_tokens += 1;
                let margin = prompt["margins"][step].as_f64().unwrap();
                assert!(
                    precision == Precision::Int8 || margin < CLOSE,
                    "{name}: step {step} is {best}, not {}, at margin {margin}",
                    greedy[step]
                );
            }
        };
        check(0, logits);
        let forced = &greedy[..greedy.len() - 1];
        session.append_each(forced, |i, logits| check(i + 1, logits)).unwrap();
        m.prompts += 1;
    }
    m.mean = deltas.iter().sum::<f64>() / deltas.len() as f64;
    m.max = deltas.iter().copied().fold(0.0, f64::max);
    let name = golden["model"].as_str().unwrap();
    note(&format!("{name}{how}, {precision:?}: {m:.5?}"));
    assert!(m.prompts >= 20);
    m
}

/// The same through generation, as apps do it: the reference's ids up to the first close step.
fn check_generation(engine: &Engine, golden: &Value) {
    let options =
        SessionOptions { context: Some(1024), precision: Precision::F32, ..Default::default() };
    let mut session = Session::new(engine, &options).unwrap();
    for prompt in golden["prompts"].as_array().unwrap().iter().take(5) {
        let greedy = numbers(&prompt["greedy"]);
        let margins = prompt["margins"].as_array().unwrap();
        let sure = margins.iter().take_while(|m| m.as_f64().unwrap() >= CLOSE).count();
        let params = GenerateParams { max_tokens: sure, ..Default::default() };
        let go = |_, _: &str| std::ops::ControlFlow::Continue(());
        let generation = session.generate(&numbers(&prompt["ids"]), &params, go).unwrap();
        assert_eq!(generation.tokens, greedy[..sure], "{}", prompt["name"]);
    }
}

#[test]
fn f32_arithmetic_is_the_references_with_fetched_smollm2_135m() {
    let Some(engine) = fetch("smollm2-135m") else { return };
    let golden = golden("smollm2-135m-q4_1.json");
    let m = measure("", &engine, &golden, Precision::F32);
    assert!(m.max < 0.02, "{m:?}");
    check_generation(&engine, &golden);
}

#[test]
fn f32_arithmetic_is_the_references_with_fetched_gemma3_270m() {
    let Some(engine) = fetch("gemma3-270m") else { return };
    let golden = golden("gemma3-270m-q4_k_m.json");
    // Its 6-bit weights become others on conversion, which makes most of this.
    let m = measure("", &engine, &golden, Precision::F32);
    assert!(m.max < 0.1 && m.mean <= 0.02, "{m:?}");
    check_generation(&engine, &golden);
    // In half floats they are what they were, and only the arithmetic can differ.
    let folder = scratch().join("half-floats");
    std::fs::create_dir_all(&folder).unwrap();
    let half = folder.join("gemma3-270m.koudai");
    let options = Options { quant: Quant::F16, ..Default::default() };
    let source = cache().root().join("downloads").join("gemma-3-270m-q4_k_m.gguf");
    convert(&source, &half, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let m = measure(" in half floats", &open(&half), &golden, Precision::F32);
    assert!(m.max < 0.02 && m.mean <= 0.004, "{m:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// llama.cpp's own mean distance from the same reference over the same prompts. It rounds activations
/// to 8 bits, so [`Precision::Int8`] is what compares with it; the default does twice the products.
const LLAMA_CPP_SMOLLM2: f64 = 0.091;
const LLAMA_CPP_GEMMA3: f64 = 0.083;

/// Guards against getting worse. It is no claim to be nearer than llama.cpp: with SmolLM2 it was 0.0927
/// when this was written, which is not.
const INT8: f64 = 0.1;

fn compare_int8(engine: &Engine, golden: &Value, llama_cpp: f64) {
    let m = measure("", engine, golden, Precision::Int8);
    note(&format!("  mean {:.4} in 8 bits; llama.cpp's is {llama_cpp}", m.mean));
    assert!(m.mean <= INT8, "{m:?}");
}

#[test]
fn default_and_int8_precision_are_near_the_reference_with_fetched_smollm2_135m() {
    let Some(engine) = fetch("smollm2-135m") else { return };
    let golden = golden("smollm2-135m-q4_1.json");
    let m = measure("", &engine, &golden, Precision::Auto);
    assert!(m.mean <= 0.003 && m.max < 0.02, "{m:?}");
    assert!(m.mean < LLAMA_CPP_SMOLLM2);
    compare_int8(&engine, &golden, LLAMA_CPP_SMOLLM2);
}

#[test]
fn default_and_int8_precision_are_near_the_reference_with_fetched_gemma3_270m() {
    let Some(engine) = fetch("gemma3-270m") else { return };
    let golden = golden("gemma3-270m-q4_k_m.json");
    // Nearly all of this is the conversion's, as in f32.
    let m = measure("", &engine, &golden, Precision::Auto);
    assert!(m.mean <= 0.02 && m.max < 0.12, "{m:?}");
    assert!(m.mean < LLAMA_CPP_GEMMA3);
    compare_int8(&engine, &golden, LLAMA_CPP_GEMMA3);
}

#[test]
fn token_ids_are_the_references_with_fetched_smollm2_135m() {
    let Some(engine) = fetch("smollm2-135m") else { return };
    check_strings("smollm2-135m", engine.tokenizer(), &golden("tokens-smollm2-135m.json"));
}

#[test]
fn token_ids_are_the_references_with_fetched_gemma3_270m() {
    let Some(engine) = fetch("gemma3-270m") else { return };
    // `</s>` is a control token, by its spelling: see `END_SPELLINGS` in koudai-convert.
    check_strings("gemma3-270m", engine.tokenizer(), &golden("tokens-gemma3-270m.json"));
}

#[test]
fn token_ids_are_the_references_with_qwen3_tokenizer_from_koudai_data() {
    let Some(path) = data("Qwen3's token ids", "tokenizer/qwen3_tokenizer.json") else { return };
    let json = std::fs::read(path).unwrap();
    let files = TokenizerFiles { tokenizer: &json, config: None, end_ids: &[] };
    let section = spec_from_tokenizer_json(&files).unwrap().to_bytes().unwrap();
    let tokenizer = Tokenizer::open(section.into()).unwrap();
    check_strings("qwen3", &tokenizer, &golden("tokens-qwen3.json"));
}

/// What the documents of this repository say, as texts that calibrating and measuring don't share.
fn documents(names: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    names.iter().map(|name| std::fs::read_to_string(root.join(name)).unwrap()).collect()
}

#[test]
fn calibrated_groups_of_64_lose_less_than_half_of_plain_rounding_with_fetched_smollm2_135m() {
    let Some(engine) = fetch("smollm2-135m") else { return };
    let folder = scratch().join("calibrated");
    std::fs::create_dir_all(&folder).unwrap();
    let mut on = |_| std::ops::ControlFlow::Continue(());
    let texts = documents(&["README.md", "ARCHITECTURE.md", "docs/performance.md"]);
    let calibration = Calibration::new(&engine, &texts, 2048, &mut on).unwrap();
    let measuring = perplexity::Options {
        context: 512,
        limit_tokens: Some(512),
        session: SessionOptions::default(),
    };
    let windows = perplexity::windows(&engine, &documents(&["LICENSE"])[0], &measuring);
    let mut kl = |name: &str, mode| {
        let out = folder.join(name);
        let options = Options { quant: Quant::Q4G64, mode, ..Default::default() };
        convert(engine.path(), &out, &options, &mut on).unwrap();
        let (small, each) = (open(&out), |_: &[f32]| Ok::<(), koudai::Error>(()));
        let measured =
            perplexity::measure(&small, Some(&engine), &windows, &measuring, each, |_| ());
        measured.unwrap().distance.unwrap().kl
    };
    let (plain, calibrated) =
        (kl("plain.koudai", Mode::MinMax), kl("calibrated.koudai", Mode::Calibrate(calibration)));
    note(&format!("  KL {plain:.4} of plain rounding, {calibrated:.4} calibrated"));
    assert!(calibrated < plain / 2.0, "{calibrated} {plain}");
    std::fs::remove_dir_all(&folder).unwrap();
}
