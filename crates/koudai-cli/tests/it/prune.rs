//! `koudai prune`: a smaller vocabulary for a model and for a tokenizer alone.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    command, failed, failure, finish, has_keys, json, koudai, listing, stdout, text, usage, write,
};
use crate::tiny::{self, VOCAB};

/// The tiny model's `tokenizer.json` with merges to `the` and `an`.
fn tokenizer(folder: &Path) -> String {
    tiny::write_folder(&folder.join("hf"), true);
    let bytes = std::fs::read(folder.join("hf/tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    for (id, piece) in (256..).zip(["th", "the", "an"]) {
        json["model"]["vocab"][piece] = json!(id);
    }
    json["model"]["merges"] = json!(["t h", "th e", "a n"]);
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["id"] = json!(token["id"].as_u64().unwrap() + 3);
    }
    let path = write(folder, "tokenizer.json", json.to_string());
    text(&path).to_owned()
}

#[test]
fn a_pruned_model_says_what_it_said() {
    let folder = tiny::fresh("prune-model");
    let corpus = write(&folder, "en.txt", "the thing\n".repeat(20_000));
    let out = folder.join("small.koudai");
    let corpus = format!("en={}", text(&corpus));
    let args = ["--corpus", &corpus, "--vocab", "259", "--drop", "<|pad|>", "-o", text(&out)];
    let d = json(&[&["prune", tiny::model()], &args[..]].concat());
    has_keys(&d, &["before", "after", "fertility.en.before", "fertility.en.after", "map"]);
    assert_eq!((&d["before"]["tokens"], &d["after"]["tokens"]), (&json!(VOCAB), &json!(259)));
    assert_eq!(d["after"]["bytes"], out.metadata().unwrap().len());
    let read = |when: &str| d[when]["bytes_per_token"].as_u64().unwrap();
    assert!(read("after") <= read("before"));
    assert_eq!(d["fertility"]["en"]["before"], 1.0);
    let map: Value =
        serde_json::from_slice(&std::fs::read(folder.join("small.map.json")).unwrap()).unwrap();
    assert_eq!(map["old_ids"].as_array().unwrap().len(), 259);
    let run = |model: &str| {
        json(&["run", "-m", model, "--chat", "-p", "once", "-n", "20", "--temperature", "0"])
    };
    assert_eq!(run(text(&out))["text"], run(tiny::model())["text"]);
    stdout(&["inspect", text(&out), "--verify"]);
    assert!(koudai(&["tokens", "-m", text(&out), "--decode", "259"]).stderr.contains("259"));
}

#[test]
fn a_pruned_tokenizer_keeps_what_the_texts_need() {
    let folder = tiny::fresh("prune-tokenizer");
    let (file, out) = (tokenizer(&folder), folder.join("small.json"));
    let corpus = write(&folder, "en.jsonl", "{\"body\": \"the the th\"}\n".repeat(20));
    let args = ["--field", "body", "--vocab", "262", "-o", text(&out)];
    let said = stdout(&[&["prune", &file, "--corpus", text(&corpus)], &args[..]].concat());
    assert!(said.contains("vocabulary 263 → 262"), "{said}");
    let d = json(&["tokens", "-m", text(&out), "--special", "an the<|im_end|>"]);
    assert_eq!(d["pieces"], json!(["a", "n", " ", "the", "<|im_end|>"]));
    assert_eq!(d["ids"], json!([97, 110, 32, 257, 259]));
    let names = ["en.jsonl", "hf", "small.json", "small.map.json", "tokenizer.json"];
    assert_eq!(listing(&folder), names);
}

#[test]
fn counts_of_many_machines_choose_as_one_would() {
    let folder = tiny::fresh("prune-counts");
    let file = tokenizer(&folder);
    let path = |name: &str| text(&folder.join(name)).to_owned();
    let texts = [("a", "the the an "), ("b", "an an an the ")];
    for (name, content) in texts {
        write(&folder, &format!("{name}.txt"), content.repeat(50));
        let (corpus, saved) = (format!("en={}", path(&format!("{name}.txt"))), path(name));
        let args = ["prune", &file, "--corpus", &corpus, "--count-only", "--save-counts", &saved];
        let d = json(&args);
        assert!(d["domains"]["en"]["tokens"].as_u64().unwrap() > 100, "{d}");
    }
    let held_out = format!("en={}", path("a.txt"));
    let prune = |args: &[&str], out: &str| {
        let rest = ["--held-out", &held_out, "--vocab", "261", "-o", out];
        json(&[&["prune", &file], args, &rest].concat());
        std::fs::read(out).unwrap()
    };
    let merged = prune(&["--counts", &path("a"), &path("b")], &path("merged.json"));
    let (a, b) = (format!("en={}", path("a.txt")), format!("en={}", path("b.txt")));
    let at_once = prune(&["--corpus", &a, "--corpus", &b], &path("once.json"));
    assert!(merged == at_once);
}

#[test]
fn wrong_wishes_and_inputs_are_one_line_that_names_them() {
    let folder = tiny::fresh("prune-wrong");
    let file = tokenizer(&folder);
    let corpus = text(&write(&folder, "en.txt", "the thing")).to_owned();
    let out = text(&folder.join("out.json")).to_owned();
    let before = listing(&folder);
    let with = |args: &[&str]| {
        let message = failure(&[&["prune", &file, "-o", &out], args].concat());
        assert_eq!(listing(&folder), before, "{message}");
        message
    };
    for (args, named) in [
        (&["--corpus", &corpus, "--vocab", "999"][..], "999"),
        (&["--corpus", &corpus, "--vocab", "17"], "17"),
        (&["--corpus", "no/such/file", "--vocab", "260"], "no/such/file"),
        (&["--corpus", &corpus, "--vocab", "260", "--weight", "zh=2"], "zh"),
        (&["--counts", &corpus, "--vocab", "260"], "en.txt"),
    ] {
        let message = with(args);
        assert!(message.contains(named), "{message}");
    }
    let broken = write(&folder, "broken.jsonl", "{\"text\": \"a\"}\n{\"text\": ");
    let args = ["prune", &file, "-o", &out, "--vocab", "260", "--corpus", text(&broken)];
    let message = failure(&args);
    assert!(message.contains("broken.jsonl") && message.contains("line 2"), "{message}");
    let message = failure(&["prune", &file, "-o", &file, "--vocab", "260", "--corpus", &corpus]);
    assert!(message.contains("input and output"), "{message}");
    let unigram = json!({"version": "1.0", "model": {"type": "Unigram"}}).to_string();
    let unigram = write(&folder, "unigram.json", unigram);
    let args = ["prune", text(&unigram), "-o", &out, "--vocab", "260", "--corpus", &corpus];
    let message = failure(&args);
    assert!(message.contains("unigram.json"), "{message}");
    for (args, named) in [
        (&["prune", "m"][..], "--corpus"),
        (&["prune", "m", "--corpus", "a", "-o", "b"], "--vocab"),
        (&["prune", "m", "--corpus", "a", "--vocab", "0", "-o", "b"], "--vocab"),
        (&["prune", "m", "--corpus", "a", "--count-only"], "--save-counts"),
        (&["prune", "m", "--corpus", "=a", "--vocab", "9", "-o", "b"], "--corpus"),
        (
            &["prune", "m", "--corpus", "a", "--vocab", "9", "-o", "b", "--weight", "x=-1"],
            "--weight",
        ),
        (&["prune", "m", "--corpus", "a", "--vocab", "9", "-o", "b", "--drop", "[a"], "--drop"),
    ] {
        let message = usage(args);
        assert!(message.contains(named), "{args:?}: {message}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_while_counting_leaves_nothing() {
    let folder = tiny::fresh("prune-interrupt");
    let file = tokenizer(&folder);
    // Long enough, counted that often, to be interrupted on any machine.
    let long = write(&folder, "long.txt", "the thing and another ".repeat(200_000));
    let out = folder.join("out.json");
    let mut args = vec!["prune", &file, "--vocab", "260", "-o", text(&out)];
    (0..500).for_each(|_| args.extend(["--corpus", text(&long)]));
    let before = listing(&folder);
    let child = command(&args).spawn().unwrap();
    // Main thread, that of Ctrl-C, and one that counts.
    let threads = format!("/proc/{}/task", child.id());
    while std::fs::read_dir(&threads).unwrap().count() < 3 {
        std::thread::yield_now();
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(listing(&folder), before);
}

#[test]
fn text_that_is_not_utf8_is_counted_without_it_and_said() {
    let folder = tiny::fresh("prune-latin");
    let file = tokenizer(&folder);
    let corpus = write(&folder, "fr.txt", b"le caf\xe9 noir et le th\xe9 vert\n");
    let counts = folder.join("counts");
    let args = ["prune", &file, "--corpus", text(&corpus), "--count-only", "--save-counts"];
    let done = finish(&mut command(&[&args[..], &[text(&counts)]].concat()), "");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stderr, "note: 2 bytes of fr aren't UTF-8 and were left out\n");
    let broken = write(&folder, "a.txt", [0xff; 100]);
    let args = ["prune", &file, "--corpus", text(&broken), "--vocab", "260", "-o"];
    let out = folder.join("out.json");
    let args = [&args[..], &[text(&out)]].concat();
    assert!(failed(&koudai(&args), &args).contains("a.txt"));
}
