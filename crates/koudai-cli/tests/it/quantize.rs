//! `koudai convert --quant …`, also called `quantize`: modes, overrides, calibration, the report.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{failure, has_keys, json, listing, stdout, text, usage, write};
use crate::tiny;

/// A text to calibrate with, and one on other things.
fn texts(folder: &Path) -> (PathBuf, PathBuf) {
    let one = "the ship sailed slowly past the harbour and nobody on board said a word about it ";
    let other = "a kitchen should have one good knife a board and a pan that fits its only lid ";
    (write(folder, "one.txt", one.repeat(30)), write(folder, "other.txt", other.repeat(12)))
}

/// How the tensors of a file are stored, by name.
fn kind(file: &Path, name: &str) -> Value {
    let d = json(&["inspect", text(file)]);
    let tensors = d["tensors"].as_array().unwrap();
    tensors.iter().find(|t| t["name"] == name).unwrap()["kind"].clone()
}

#[test]
fn calibrating_chooses_other_codes_and_the_report_says_what_they_lose() {
    let folder = tiny::fresh("calibrating");
    let (one, other) = texts(&folder);
    let out = folder.join("out.koudai");
    let kl = |more: &[&str]| {
        let args = ["convert", tiny::model(), "-o", text(&out), "--quant", "q4g64", "--tensors"];
        let report = ["--report-text", text(&other), "--report-tokens", "600"];
        let d = json(&[&args[..], &report, more].concat());
        has_keys(&d, &["tensors", "bytes", "bits_per_weight", "error", "perplexity", "same_top"]);
        assert_eq!(d["tensor_errors"].as_array().unwrap().len(), 3 + 2 * 9);
        let up = d["tensor_errors"].as_array().unwrap().iter();
        let up = up.clone().find(|t| t["name"] == "layers.1.ffn_up").unwrap();
        assert!(up["relative_mse"].as_f64().unwrap() > 1e-4, "{up}");
        d["kl"].as_f64().unwrap()
    };
    let plain = kl(&["--mode", "minmax"]);
    let calibrated = kl(&["--calibration", text(&other), "--calibration", text(&one)]);
    assert!(calibrated != plain && calibrated > 0.0, "{calibrated} {plain}");
    let args = ["perplexity", "-m", text(&out), "--reference", tiny::model()];
    let d = json(&[&args[..], &["--file", text(&other), "--limit-tokens", "600"]].concat());
    assert_eq!(d["kl"].as_f64(), Some(calibrated), "the report is what `perplexity` measures");
    assert_eq!(kl(&[]), kl(&["--mode", "search"]), "the default without a text");
}

#[test]
fn overrides_store_some_matrices_otherwise_and_the_last_one_counts() {
    let folder = tiny::fresh("overrides");
    let out = folder.join("out.koudai");
    let args = ["quantize", tiny::model(), "-o", text(&out), "--quant", "q4g64"];
    let overrides = ["--override", "layers.*.ffn_*=q8", "--override", "layers.0.ffn_up=f16"];
    stdout(&[&args[..], &overrides, &["--override", "head=keep"]].concat());
    for (name, stored) in [
        ("embed", "q4g64"),
        ("layers.0.attn_q", "q4g64"),
        ("layers.0.ffn_up", "f16"),
        ("layers.1.ffn_up", "q8"),
        ("layers.1.ffn_norm", "f32"),
    ] {
        assert_eq!(kind(&out, name), stored, "{name}");
    }
    assert_eq!(kind(&out, "head"), kind(Path::new(tiny::model()), "head"));
}

#[test]
fn quantizing_again_is_said() {
    let folder = tiny::fresh("again");
    let (first, second) = (folder.join("first.koudai"), folder.join("second.koudai"));
    let quantize = |from: &str, to: &Path, quant: &str| {
        json(&["quantize", from, "-o", text(to), "--quant", quant])
    };
    let said = |d: &Value| d["notes"].to_string().contains("quantized again");
    let exact = |d: &Value| d["error"].as_array().unwrap().iter().all(|e| e["exact"] == true);
    assert!(!said(&quantize(tiny::model(), &first, "q8")));
    assert!(said(&quantize(text(&first), &second, "q4g32")));
    let d = quantize(text(&first), &second, "q8");
    assert!(!said(&d) && exact(&d), "codes of the same kind are kept: {d}");
}

#[test]
fn what_makes_no_sense_is_refused_and_leaves_nothing() {
    let folder = tiny::fresh("refused");
    let short = write(&folder, "short.txt", "too short");
    let out = folder.join("out.koudai");
    let args = ["quantize", tiny::model(), "-o", text(&out), "--quant", "q4g64"];
    let with = |more: &[&'static str]| [&args[..], more].concat();
    assert!(usage(&with(&["--mode", "calibrate"])).contains("--calibration"));
    assert!(usage(&with(&["--override", "head"])).contains("head"));
    assert!(usage(&with(&["--override", "head=q3"])).contains("q3"));
    let short = text(&short);
    let unused = [&args[..], &["--mode", "search", "--calibration", short]].concat();
    assert!(usage(&unused).contains("--mode search"));
    let message = failure(&with(&["--override", "layers.9.*=q8"]));
    assert!(message.contains("layers.9.*") && message.contains("head"), "{message}");
    let message = failure(&[&args[..], &["--calibration", short]].concat());
    assert!(message.contains("9 tokens"), "{message}");
    assert!(failure(&with(&["--calibration", "no/such.txt"])).contains("no/such.txt"));
    assert!(failure(&with(&["--report-text", "no/such.txt"])).contains("no/such.txt"));
    let empty = write(&folder, "empty.txt", "");
    let message = failure(&[&args[..], &["--report-text", text(&empty)]].concat());
    assert!(message.contains("empty.txt"), "{message}");
    assert_eq!(listing(&folder), ["empty.txt", "short.txt"]);
}
