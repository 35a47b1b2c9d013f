//! `koudai export`: what comes out runs as what went in.

use std::path::Path;

use crate::support::{failure, has_keys, json, listing, stdout, text, usage};
use crate::tiny;

fn said(model: &Path) -> serde_json::Value {
    let args = ["run", "-m", text(model), "-p", "once", "-n", "20", "--ctx", "64"];
    json(&args)["text"].clone()
}

#[test]
fn an_exported_model_says_the_same() {
    let folder = tiny::fresh("export");
    let model = Path::new(tiny::model());
    let want = said(model);
    for (out, format) in [("out.gguf", "gguf"), ("hf", "safetensors")] {
        let out = folder.join(out);
        let d = json(&["export", text(model), "-o", text(&out)]);
        let keys = ["path", "format", "architecture", "bytes", "exact", "tensors", "inexact"];
        has_keys(&d, &keys);
        assert_eq!((d["format"].as_str(), d["exact"].as_bool()), (Some(format), Some(true)), "{d}");
        assert_eq!(d["inexact"].as_array().map(Vec::len), Some(0));
        let back = folder.join(format!("{format}.koudai"));
        stdout(&["convert", text(&out), "-o", text(&back)]);
        if format == "gguf" {
            assert_eq!(said(&back), want);
        }
    }
    // Both hold the same weights.
    let f32_said = |name: &str| {
        let path = folder.join(name);
        let args = ["score", "-m", text(&path), "-p", "once", "--top", "5", "--activation", "f32"];
        json(&args)["top"].clone()
    };
    assert_eq!(f32_said("gguf.koudai"), f32_said("safetensors.koudai"));
    assert_eq!(listing(&folder), ["gguf.koudai", "hf", "out.gguf", "safetensors.koudai"]);
}

#[test]
fn the_table_says_what_became_of_each_tensor() {
    let folder = tiny::fresh("export-table");
    let out = folder.join("out.gguf");
    let table = stdout(&["export", tiny::model(), "-o", text(&out)]);
    assert!(table.contains("attn_q               2  q8        Q8_0      exact\n"), "{table}");
    assert!(table.ends_with(" MB\n") && table.contains("out.gguf: "), "{table}");
    let hf = folder.join("hf");
    let d = json(&["export", tiny::model(), "-o", text(&hf), "--dtype", "bf16"]);
    assert_eq!(d["exact"], false);
    let first = &d["inexact"][0];
    assert!(first["reason"].as_str().unwrap().contains("BF16"), "{d}");
    assert!(first["tensor"].as_str().unwrap().starts_with("model."), "{d}");
}

#[test]
fn exports_that_fail_leave_nothing_and_name_what_is_wrong() {
    let folder = tiny::fresh("bad-exports");
    let out = folder.join("out.gguf");
    let message = failure(&["export", "no/such.koudai", "-o", text(&out)]);
    assert!(message.contains("no/such.koudai"), "{message}");
    let hf = folder.join("hf");
    let message = failure(&["export", tiny::model(), "-o", text(&out), "--dtype", "f16"]);
    assert!(message.contains("--dtype"), "{message}");
    assert_eq!(listing(&folder), [""; 0]);
    stdout(&["export", tiny::model(), "-o", text(&hf)]);
    let message = failure(&["export", tiny::model(), "-o", text(&hf)]);
    assert!(message.contains("--force"), "{message}");
    stdout(&["export", tiny::model(), "-o", text(&hf), "--force"]);
    std::fs::write(hf.join("notes.txt"), "mine").unwrap();
    let message = failure(&["export", tiny::model(), "-o", text(&hf), "--force"]);
    assert!(message.contains("notes.txt"), "{message}");
    assert_eq!(listing(&folder), ["hf"]);
    assert!(usage(&["export", tiny::model()]).contains("--output"));
    assert!(usage(&["export", tiny::model(), "-o", "x", "--dtype", "q4"]).contains("q4"));
}

/// Needs a real model, which takes long enough.
#[cfg(unix)]
#[test]
fn an_interrupted_export_leaves_nothing() {
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let models = std::env::var_os("KOUDAI_MODELS")
        .map_or(home.join(".cache/koudai-test-models"), PathBuf::from);
    let gguf = models.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !gguf.exists() {
        println!("skipped: {} isn't there (set KOUDAI_MODELS)", gguf.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("smol.koudai");
    stdout(&["convert", text(&gguf), "-o", text(&model)]);
    for out in ["out.gguf", "out"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_koudai"))
            .args(["export", text(&model), "-o"])
            .arg(folder.path().join(out))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while listing(folder.path()).len() == 1 {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::yield_now();
        }
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{out}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "interrupted\n");
        assert_eq!(listing(folder.path()), ["smol.koudai"]);
    }
}
