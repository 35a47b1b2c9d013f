//! The page of `koudai report`: what is on it, and that strangers' texts stay texts.

use std::path::{Path, PathBuf};

use koudai_eval::report::{Page, page};
use serde_json::{Value, json};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn json(&self, name: &str, content: &Value) -> PathBuf {
        self.file(name, content.to_string())
    }
}

fn bench(model: &str, fingerprint: &str) -> Value {
    json!({
        "model": format!("models/{model}.koudai"), "fingerprint": fingerprint,
        "prompt": 512, "generate": 128, "prefill_tps": 1130.4, "decode_tps": 254.4,
        "depths": [{"depth": 0, "prefill_tps": 1130.4, "decode_tps": 254.4, "runs": []},
                   {"depth": 2048, "prefill_tps": 700.0, "decode_tps": 190.5, "runs": []}],
        "load_ms": 2.9, "first_token_ms": 22.2, "peak_increment_bytes": 112.9e6, "file_bytes": 98300000,
        "machine": {"cpu": "Some <CPU>", "isa": "avx512", "threads": 2, "processors": 2},
        "kv": "f16", "activation": "auto", "energy": null, "joules_per_token": null,
    })
}

fn eval(model: Value, tasks: Value) -> Value {
    json!({ "model": model, "tasks": tasks })
}

fn made(files: &[PathBuf]) -> Page {
    page("Title", files).unwrap()
}

fn refused(path: &Path) -> String {
    let message = page("Title", &[path.to_owned()]).unwrap_err().to_string();
    assert!(message.starts_with(path.to_str().unwrap()), "{message}");
    message
}

#[test]
fn documents_about_one_model_meet_whatever_their_order() {
    let folder = Folder::new();
    let scores =
        json!([{"task": "piqa", "metric": "acc_norm", "value": 0.643, "ci95": 0.0219, "n": 1838}]);
    let speed = folder.json("speed.json", &bench("small", "803d9bcd"));
    let scored = folder.json("scores.json", &eval(json!({"model": "803d9bcd"}), scores.clone()));
    let other = eval(json!({"endpoint": "http://x/v1", "model": "remote"}), scores);
    let other = folder.json("other.json", &other);
    for files in [[&speed, &scored], [&scored, &speed]] {
        let page = made(&[files[0].clone(), files[1].clone(), other.clone()]);
        assert_eq!(page.models, ["small", "remote"]);
        for part in
            ["254.4 tokens", "112.9\u{a0}MB", "64.3%", "✓ meets the limit", "± 2.19", "<svg"]
        {
            assert!(page.html.contains(part), "{part} is missing in {}", page.html);
        }
    }
}

#[test]
fn limits_are_judged() {
    let folder = Folder::new();
    let mut slow = bench("slow", "1");
    slow["decode_tps"] = json!(199.9);
    slow["peak_increment_bytes"] = json!(300e6);
    let page = made(&[folder.json("slow.json", &slow)]);
    assert_eq!(page.html.matches("✗ misses the limit").count(), 2);
    slow["energy"] = json!({
        "source": "rapl", "measures": "packages", "prompt": 1024, "generate": 128, "joules_per_run": 6.0,
        "joules_per_run_least": 5.5, "joules_per_run_most": 6.5, "joules_per_prompt_token": 0.002,
        "joules_per_token": 0.03, "idle_watts": 3.0, "battery": {"watt_hours": 15.0,
        "share_per_run": 0.00011, "share_per_100_runs": 0.011, "limit_per_100_runs": 0.01},
    });
    let page = made(&[folder.json("slow.json", &slow)]);
    assert_eq!(page.html.matches("✗ misses the limit").count(), 3);
    assert!(page.html.contains("6.00 J (5.50 to 6.50)"));
}

#[test]
fn a_search_shows_what_was_chosen_and_why() {
    let folder = Folder::new();
    let search = json!({
        "configurations": [
            {"name": "16x896", "layers": 16, "dim": 896, "parameters": 198.2e6, "file_bytes": 111.5e6,
             "peak_bytes": 140e6, "prefill_tps": 900, "decode": {"128": {"p50": 320.5, "p90": 300},
             "4096": {"p50": 210, "p90": 200}}, "meets_memory": true, "meets_speed": true, "pareto": true},
            {"name": "bare"},
        ],
        "chosen": {"name": "16x896", "reason": "the largest within both limits"},
    });
    let page = made(&[folder.json("search.json", &search)]);
    for part in ["16x896: the largest within both limits", "320.5 (300.0)", "198.2 M", "bare"] {
        assert!(page.html.contains(part), "{part} is missing");
    }
    assert!(page.models.is_empty());
}

#[test]
fn runs_of_one_model_are_told_apart_by_what_differs() {
    let folder = Folder::new();
    let mut q8 = bench("small", "1");
    q8["kv"] = json!("q8");
    let files = [folder.json("a.json", &bench("small", "1")), folder.json("b.json", &q8)];
    let page = made(&files);
    assert!(
        page.models[0].contains("kv f16") && page.models[1].contains("kv q8"),
        "{:?}",
        page.models
    );
    let page = made(&[files[0].clone(), files[0].clone()]);
    assert!(page.models.iter().all(|name| name.ends_with("(a)")), "{:?}", page.models);
}

#[test]
fn texts_stay_texts() {
    let folder = Folder::new();
    let evil = "</title><script>alert(1)</script>\"'&<img src=x onerror=1>";
    let mut speed = bench("m", "1");
    speed["model"] = json!(evil);
    speed["machine"]["cpu"] = json!(evil);
    speed["energy_unavailable"] = json!(evil);
    let scores = json!([{"task": evil, "metric": evil, "value": 0.5, "ci95": 0.1, "n": 4}]);
    let search = json!({"configurations": [{"name": evil, "parameters": 1e8, "pareto": true,
        "decode": {"128": {"p50": 1}}}], "chosen": {"name": evil, "reason": evil}});
    let files = [
        folder.json("a.json", &speed),
        folder.json("b.json", &eval(json!({"model": evil, "endpoint": evil}), scores)),
        folder.json("c.json", &search),
    ];
    let html = page(evil, &files).unwrap().html;
    for part in ["<script", "<img"] {
        assert!(!html.contains(part), "{part} in {html}");
    }
    // Nothing comes from elsewhere.
    for part in ["http:", "https:", "url(", "@import", "src=\""] {
        assert!(!html.replace("http-equiv", "").contains(part), "{part}");
    }
}

#[test]
fn what_is_no_document_of_ours_is_refused_by_name() {
    let folder = Folder::new();
    for (content, part) in [
        ("", "no JSON document"),
        ("{\"depths\":", "no JSON document"),
        ("{} {}", "no JSON document"),
        ("[1]", "no object"),
        ("{\"perplexity\": 2, \"tokens\": 1}", "(keys perplexity, tokens)"),
        ("{\"tasks\": 1}", "like the --json of eval, but"),
        ("{\"configurations\": [{}]}", "missing field `name`"),
        ("{\"prefill_tps\": 1e300, \"decode_tps\": 1}", "out of range"),
        ("{\"prefill_tps\": -1, \"decode_tps\": 1}", "out of range"),
    ] {
        let message = refused(&folder.file("x.json", content));
        assert!(message.contains(part), "{content}: {message}");
    }
    let deep = refused(&folder.file("x.json", "[".repeat(100_000)));
    assert!(deep.contains("recursion limit"), "{deep}");
    refused(&folder.file("x.json", [b'"', 0xff, b'"']));
    refused(&folder.0.path().join("missing.json"));
    assert!(refused(&folder.file("x.json", vec![b' '; (16 << 20) + 1])).contains("16 MB"));
}

#[test]
fn empty_and_odd_measurements_still_make_a_page() {
    let folder = Folder::new();
    let zero = json!({"prefill_tps": 0, "decode_tps": 0});
    let huge = json!({"prefill_tps": 9e14, "decode_tps": 9e14, "depths": [
        {"depth": 0, "prefill_tps": 1e-9, "decode_tps": 0},
        {"depth": 9e14, "prefill_tps": 9e14, "decode_tps": 9e14}]});
    let none =
        eval(json!({}), json!([{"task": "t", "metric": "m", "value": null, "ci95": null, "n": 0}]));
    for document in [zero, huge, none, json!({"configurations": []})] {
        let page = made(&[folder.json("x.json", &document)]);
        assert!(page.html.ends_with("</html>\n") || page.html.ends_with("</html>"), "{document}");
        assert!(!page.html.contains("NaN") && !page.html.contains("inf "), "{document}");
    }
}
