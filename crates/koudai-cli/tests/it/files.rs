//! `koudai convert`, `inspect`, `models`, `pull` and `bench`: files in, files out, numbers.

use serde_json::Value;

use crate::support::{
    command, document, failure, finish, has_keys, json, koudai, listing, stdout, text,
};
use crate::tiny::{self, VOCAB};

#[test]
fn a_folder_converts_in_every_quantization_and_is_used() {
    let folder = tiny::fresh("convert");
    tiny::write_folder(&folder.join("hf"), true);
    for (quant, most_bits) in [("keep", 33.0), ("f16", 17.0), ("q8", 9.5), ("q4g32", 6.0)] {
        let out = folder.join(format!("{quant}.koudai"));
        let d = json(&["convert", text(&folder.join("hf")), "-o", text(&out), "--quant", quant]);
        has_keys(&d, &["tensors", "bytes", "bits_per_weight", "error", "source_sha256"]);
        let bits = d["bits_per_weight"].as_f64().unwrap();
        assert!(bits <= most_bits, "{quant}: {bits}");
        assert_eq!(d["bytes"], out.metadata().unwrap().len());
        assert_eq!(d["tensors"], 3 + 2 * 9);
        let exact = d["error"].as_array().unwrap().iter().all(|e| e["exact"] == true);
        assert_eq!(exact, quant == "keep", "{d}");
        let ran = json(&["run", "-m", text(&out), "-p", "once", "-n", "3", "--ctx", "64"]);
        assert_eq!(ran["prompt_tokens"], 4);
    }
    let names = ["f16.koudai", "hf", "keep.koudai", "q4g32.koudai", "q8.koudai"];
    assert_eq!(listing(&folder), names);
    let again = folder.join("again.koudai");
    stdout(&["convert", text(&folder.join("hf")), "-o", text(&again), "--quant", "q8"]);
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    assert!(read("again.koudai") == read("q8.koudai"), "the same input gives the same bytes");
}

#[test]
fn a_gguf_file_converts_and_runs_without_being_converted() {
    let folder = tiny::fresh("gguf");
    let gguf = folder.join("tiny.gguf");
    tiny::write_gguf(&gguf);
    let out = folder.join("tiny.koudai");
    let table = stdout(&["convert", text(&gguf), "-o", text(&out)]);
    assert!(table.contains("attn_q") && table.contains("exact"), "{table}");
    let args = ["-p", "once", "-n", "20", "--ctx", "64"];
    let said = |model: &str, cache: &str| -> Value {
        let args = [&["run", "-m", model, "--json"], &args[..]].concat();
        document(&finish(command(&args).env("KOUDAI_CACHE", cache), ""), &args)["text"].clone()
    };
    let cache = folder.join("cache");
    let want = said(text(&out), text(&cache));
    assert_eq!(said(text(&gguf), text(&cache)), want);
    let converted = listing(&cache.join("converted"));
    assert_eq!(converted.len(), 1);
    assert_eq!(said(text(&gguf), text(&cache)), want);
    assert_eq!(listing(&cache.join("converted")), converted, "the second time it is there");
    let listed = finish(command(&["models", "--json"]).env("KOUDAI_CACHE", &cache), "");
    let models: Value = serde_json::from_str(&listed.stdout).unwrap();
    let local = models.as_array().unwrap().last().unwrap();
    assert_eq!(local["architecture"], "llama");
    assert!(local["path"].as_str().unwrap().ends_with(&converted[0]));
}

#[test]
fn conversions_that_fail_leave_nothing_and_name_the_file() {
    let folder = tiny::fresh("bad-conversions");
    let out = folder.join("out.koudai");
    let fails = |input: &str, words: &[&str]| {
        let message = failure(&["convert", input, "-o", text(&out)]);
        words.iter().for_each(|w| assert!(message.contains(w), "{w}: {message}"));
    };
    fails("no/such.gguf", &["no/such.gguf"]);
    let gguf = folder.join("cut.gguf");
    tiny::write_gguf(&gguf);
    let whole = std::fs::read(&gguf).unwrap();
    for len in [0, 3, 10, 100, 1000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&gguf, &whole[..len]).unwrap();
        fails(text(&gguf), &["cut.gguf"]);
    }
    std::fs::write(&gguf, &whole).unwrap();
    let message = failure(&["convert", text(&gguf), "-o", text(&gguf)]);
    assert!(message.contains("cut.gguf"), "{message}");
    assert!(std::fs::read(&gguf).unwrap() == whole, "the input is as it was");
    let nowhere = gguf.join("out.koudai");
    let message = failure(&["convert", text(&gguf), "-o", text(&nowhere)]);
    assert!(message.contains("cut.gguf"), "{message}");
    assert_eq!(listing(&folder), ["cut.gguf"]);
}

#[test]
fn inspect_tells_everything_and_verifies() {
    let d = json(&["inspect", tiny::model(), "--verify"]);
    has_keys(
        &d,
        &[
            "path",
            "bytes",
            "fingerprint",
            "verified",
            "meta.architecture",
            "parameters",
            "bits_per_weight",
            "config.layers",
            "tokenizer.tokens",
            "chat_template",
            "defaults",
            "sections",
            "tensors",
            "memory",
        ],
    );
    assert_eq!(d["verified"], true);
    assert_eq!(d["config"]["vocab_size"], VOCAB);
    assert_eq!(d["tensors"].as_array().unwrap().len(), 3 + 2 * 9);
    let plans = d["memory"].as_array().unwrap();
    assert!(plans.iter().all(|p| p["total_bytes"].as_u64() > p["file_bytes"].as_u64()));
    let page = stdout(&["inspect", tiny::model(), "--tensors", "--verify"]);
    for words in ["every hash is right", "layers.1.ffn_down", "section", "memory"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn inspect_names_what_is_damaged() {
    let folder = tiny::fresh("damaged");
    let file = folder.join("damaged.koudai");
    let whole = std::fs::read(tiny::model()).unwrap();
    // In the middle lie weights, which only --verify reads.
    let mut bytes = whole.clone();
    let last = bytes.len() - 5000;
    bytes[last] ^= 0x10;
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(koudai(&["inspect", text(&file)]).code, Some(0));
    let message = failure(&["inspect", text(&file), "--verify"]);
    assert!(message.contains("damaged.koudai") && message.contains("`weights`"), "{message}");
    // A broken download: refused at once by every command.
    std::fs::write(&file, &whole[..whole.len() * 37 / 100]).unwrap();
    for args in [&["inspect", text(&file)][..], &["run", "-m", text(&file), "-p", "a"]] {
        let message = failure(args);
        assert!(message.contains("damaged.koudai") && message.contains("should have"), "{message}");
    }
}

#[test]
fn models_lists_known_names_whether_here_or_not() {
    let d = json(&["models"]);
    let models = d.as_array().unwrap();
    for m in models {
        has_keys(m, &["name", "path", "bytes", "architecture", "license"]);
    }
    for name in ["smollm2-135m", "gemma3-270m"] {
        assert!(models.iter().any(|m| m["name"] == name), "{d}");
    }
    assert!(stdout(&["models"]).contains("koudai pull smollm2-135m"));
}

#[test]
fn pull_refuses_unknown_names_without_asking_anyone() {
    let message = failure(&["pull", "no-such-model"]);
    assert!(message.contains("no-such-model") && message.contains("smollm2-135m"), "{message}");
    // Known, carried by no package, and the hub isn't there.
    let message = failure(&["pull", "qwen3-0.6b"]);
    assert!(message.contains("127.0.0.1"), "{message}");
}

#[test]
fn bench_measures() {
    let args = ["bench", "-m", tiny::model(), "-p", "32", "-n", "16", "-r", "2", "-t", "1"];
    let d = json(&args);
    has_keys(
        &d,
        &[
            "prefill_tps",
            "decode_tps",
            "load_ms",
            "first_token_ms",
            "peak_increment_bytes",
            "planned_bytes",
            "file_bytes",
            "runs",
            "machine.cpu",
            "machine.isa",
            "machine.threads",
            "bandwidth.measured_gbps",
            "bandwidth.used_gbps",
            "bandwidth.fraction",
        ],
    );
    assert_eq!(d["runs"].as_array().unwrap().len(), 2);
    assert!(d["prefill_tps"].as_f64().unwrap() > 0.0 && d["decode_tps"].as_f64().unwrap() > 0.0);
    assert_eq!(d["file_bytes"], std::fs::metadata(tiny::model()).unwrap().len());
    let folder = tiny::fresh("bench");
    let (file, picture) = (folder.join("earlier.json"), folder.join("speed.svg"));
    std::fs::write(&file, d.to_string()).unwrap();
    let more =
        ["-d", "0,50", "--verify", "2,40", "--compare", text(&file), "--plot", text(&picture)];
    let deep = json(&[&args[..], &more].concat());
    has_keys(&deep, &["compared", "depths"]);
    assert_eq!(deep["depths"][1]["depth"], 50);
    assert_eq!(deep["verify"][1]["rows"], 40);
    assert!(deep["verify"][0]["ratio"].as_f64().unwrap() > 0.0);
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
    assert_eq!(listing(&folder), ["earlier.json", "speed.svg"]);
    let page = stdout(&[&args[..], &more].concat());
    assert!(page.contains("tokens/s after 50") && page.contains("earlier run"), "{page}");
    assert!(page.contains("a pass of one row"), "{page}");
    std::fs::write(&file, "{").unwrap();
    assert!(failure(&[&args[..], &more].concat()).contains("earlier.json"));
}
