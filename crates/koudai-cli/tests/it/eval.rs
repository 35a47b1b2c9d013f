//! `koudai eval`: documents, records, suites with missing parts, and Ctrl-C.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{failure, has_keys, json, stdout, text, usage, write};
use crate::tiny;

/// A folder of data with six questions of PIQA and two of GSM8K.
fn data(name: &str) -> PathBuf {
    let folder = tiny::fresh(name);
    let piqa = folder.join("eval/piqa");
    std::fs::create_dir_all(&piqa).unwrap();
    let line = |i: usize| format!("{{\"goal\":\"goal {i}\",\"sol1\":\"one\",\"sol2\":\"two\"}}\n");
    write(&piqa, "valid.jsonl", (0..6).map(line).collect::<String>());
    write(&piqa, "valid-labels.lst", "0\n1\n0\n1\n0\n1\n");
    let gsm8k = folder.join("eval/gsm8k");
    std::fs::create_dir_all(&gsm8k).unwrap();
    write(&gsm8k, "test.jsonl", "{\"question\":\"1+1?\",\"answer\":\"#### 2\"}\n".repeat(2));
    folder
}

fn args<'a>(data: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["eval", "-m", tiny::model(), "--ctx", "200", "--data", text(data)], more].concat()
}

#[test]
fn a_task_is_measured_and_kept() {
    let data = data("eval-kept");
    let out = data.join("out");
    let some = ["--tasks", "piqa,gsm8k", "--shots", "0", "--max-tokens", "4", "--out", text(&out)];
    let first = json(&args(&data, &[&some[..], &["--limit", "2"]].concat()));
    let piqa = &first["tasks"][0];
    has_keys(piqa, &["task", "metric", "value", "n", "ci95", "seconds", "metrics"]);
    assert_eq!(
        (&piqa["task"], &piqa["n"], &piqa["answered"]),
        (&"piqa".into(), &2.into(), &2.into())
    );
    assert_eq!(first["tasks"][1]["metrics"][1]["metric"], "flexible");
    let all = json(&args(&data, &some));
    assert_eq!((&all["tasks"][0]["n"], &all["tasks"][0]["answered"]), (&6.into(), &4.into()));
    let again = json(&args(&data, &some));
    assert_eq!(again["tasks"][0]["answered"], 0);
    assert_eq!(again["tasks"][0]["metrics"], all["tasks"][0]["metrics"]);
    let other = failure(&args(&data, &[&some[..], &["--chat"]].concat()));
    assert!(other.contains("piqa.jsonl: it was made with chat false, not true"), "{other}");
    let table = stdout(&args(&data, &some));
    assert!(table.starts_with("piqa            acc_norm") && table.contains("of 6"), "{table}");
}

#[test]
fn a_suite_names_what_is_missing() {
    let data = data("eval-suite");
    let d = json(&args(&data, &["--suite", "pocket11", "--shots", "0", "--max-tokens", "2"]));
    let missing = d["suite"]["missing"].as_array().unwrap();
    assert_eq!((d["suite"]["n"].as_u64(), missing.len()), (Some(1), 10), "{d}");
    let why = |name: &str| {
        let entry = missing.iter().find(|m| m["task"] == name).unwrap();
        entry["why"].as_str().unwrap().to_owned()
    };
    assert!(why("ceval").contains("eval/ceval/val"), "{}", why("ceval"));
    assert!(why("hellaswag").contains("no such file"));
    let gone = failure(&args(&data, &["--tasks", "piqa,hellaswag"]));
    assert!(gone.starts_with("hellaswag: ") && gone.contains("hellaswag_val_2000.jsonl"), "{gone}");
}

#[test]
fn what_cannot_be_is_refused() {
    let data = data("eval-refused");
    assert!(failure(&args(&data, &["--tasks", "nope"])).contains("there is no task `nope`"));
    assert!(usage(&args(&data, &[])).contains("--tasks"));
    assert!(usage(&args(&data, &["--suite", "huge"])).contains("pocket11"));
    assert!(
        usage(&args(&data, &["--tasks", "piqa", "--endpoint", "x"])).contains("--endpoint-model")
    );
    let many = failure(&args(&data, &["--tasks", "piqa", "--shots", "7"]));
    assert!(many.contains("--shots 7"), "{many}");
    let server = ["--tasks", "gsm8k", "--shots", "0", "--endpoint", "http://127.0.0.1:9/v1"];
    let server = [&server[..], &["--endpoint-model", "m"]].concat();
    assert!(failure(&args(&data, &server)).contains("http://127.0.0.1:9/v1/completions"));
}

#[test]
fn the_list_is_of_tasks() {
    let list = json(&["eval", "--list"]);
    let names: Vec<&Value> = list.as_array().unwrap().iter().map(|t| &t["task"]).collect();
    assert!(names.len() == 20 && names.contains(&&"ifeval_zh".into()), "{names:?}");
    assert!(stdout(&["eval", "--list"]).contains("mgsm_zh"));
}
