//! Verdicts of IFEval on texts from elsewhere: for each line of `FILE` (a prompt as IFEval publishes
//! it, with a `response`), a line with the lists `strict` and `loose`.
//!
//! `cargo run -p koudai-eval --example ifeval_verdicts -- FILE [DATA]`; DATA is the folder that may
//! hold `ifeval/punkt_tab/english`. tools/compare_ifeval.py compares the verdicts.

use std::path::PathBuf;

use koudai_eval::tasks::ifeval::{Checker, Instructed, loose, strict};

fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let file = arguments.next().expect("a file");
    let checker = Checker::english(&arguments.next().unwrap_or_default()).expect("a model");
    for line in std::fs::read_to_string(file).expect("readable text").lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let response = value["response"].as_str().expect("a response").to_owned();
        let doc: Instructed = serde_json::from_value(value).expect("a prompt");
        let checks = checker.checks(&doc).expect("known instructions");
        let (strict, loose) = (strict(&checks, &response), loose(&checks, &response));
        println!("{}", serde_json::json!({ "strict": strict, "loose": loose }));
    }
}
