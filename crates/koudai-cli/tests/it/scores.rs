//! `koudai tokens`, `score` and `perplexity`: they agree with each other and with arithmetic.

use serde_json::Value;

use crate::support::{
    command, document, failure, finish, has_keys, json, listing, stdout, text, write,
};
use crate::tiny::{self, IM_END, IM_START, VOCAB};

const TEXTS: [&str; 6] =
    ["", "Hello, world!", "天地玄黄🧑‍🚀é", "<|im_end|>", "a\u{1}b\u{fffd}", "  \n\t "];

fn ids(value: &Value) -> String {
    let ids: Vec<String> = value.as_array().unwrap().iter().map(|id| id.to_string()).collect();
    ids.join(",")
}

#[test]
fn tokens_go_there_and_back() {
    for text in TEXTS {
        for special in [&[][..], &["--special"]] {
            let d = json(&[&["tokens", "-m", tiny::model(), text], special].concat());
            has_keys(&d, &["ids", "pieces"]);
            let list = ids(&d["ids"]);
            let back = json(&["tokens", "-m", tiny::model(), "--decode", &list]);
            assert_eq!(back["text"], text, "{special:?}");
        }
    }
    let control = json(&["tokens", "-m", tiny::model(), "--special", "<|im_start|>a<|im_end|>"]);
    assert_eq!(control["ids"], serde_json::json!([IM_START, 97, IM_END]));
    assert_eq!(control["pieces"], serde_json::json!(["<|im_start|>", "a", "<|im_end|>"]));
    let plain = stdout(&["tokens", "-m", tiny::model(), "hi"]);
    assert_eq!(plain, "104:\"h\" 105:\"i\"\n2 tokens\n");
}

#[test]
fn tokens_of_a_file_are_one_line_each() {
    let folder = tiny::fresh("token-lines");
    let lines: Vec<String> = TEXTS.iter().map(|t| serde_json::to_string(t).unwrap()).collect();
    let file = write(&folder, "texts.jsonl", lines.join("\n"));
    let out = stdout(&["tokens", "-m", tiny::model(), "--file", text(&file), "--json"]);
    let documents: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(documents.len(), TEXTS.len());
    for (d, text) in documents.iter().zip(TEXTS) {
        assert_eq!(d["ids"], json(&["tokens", "-m", tiny::model(), text])["ids"]);
    }
    let bad = write(&folder, "bad.jsonl", "\"fine\"\nnot a string\n");
    let done = finish(&mut command(&["tokens", "-m", tiny::model(), "--file", text(&bad)]), "");
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("bad.jsonl line 2"), "{done:?}");
}

#[test]
fn ids_that_are_none_are_refused() {
    let decode =
        |list: &str| failure(&["tokens", "-m", tiny::model(), &format!("--decode={list}")]);
    assert!(decode("97,260").contains("token id 260 is outside the vocabulary of 260"));
    assert!(decode("97,x").contains("`x` is not a token id"));
    assert!(decode("-1").contains("`-1`"));
    assert!(decode("4294967296").contains("4294967296"));
    let score = |list: &str| failure(&["score", "-m", tiny::model(), "--ctx", "64", "--ids", list]);
    assert!(score("97,260").contains("260"));
    assert!(score("").contains("empty"));
    for continuation in ["97,260", "260", "4294967295", "x"] {
        let message = failure(&[
            "score",
            "-m",
            tiny::model(),
            "--ctx",
            "64",
            "--ids",
            "97",
            "-c",
            continuation,
        ]);
        let named = continuation.split(',').next_back().unwrap();
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn a_tokenizer_alone_does_for_tokens() {
    let folder = tiny::fresh("tokenizer-alone");
    tiny::write_folder(&folder, true);
    let file = folder.join("tokenizer.json");
    let d = json(&["tokens", "-m", text(&file), "é"]);
    assert_eq!(d["ids"], serde_json::json!([0xc3, 0xa9]));
}

fn score(args: &[&str]) -> Value {
    let base = ["score", "-m", tiny::model(), "--ctx", "64", "-p", "once upon"];
    json(&[&base[..], args].concat())
}

#[test]
fn the_likeliest_next_token_is_the_greedy_one_and_all_add_up_to_one() {
    let n = VOCAB.to_string();
    let d = score(&["--top", &n]);
    let top = d["top"].as_array().unwrap();
    assert_eq!(top.len(), VOCAB);
    let logprob = |t: &Value| t["logprob"].as_f64().unwrap();
    let sum: f64 = top.iter().map(|t| logprob(t).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    assert!(top.is_sorted_by(|a, b| logprob(a) >= logprob(b)));
    assert_eq!(score(&[])["top"].as_array().unwrap().len(), 5);
    let greedy = json(&["run", "-m", tiny::model(), "--ctx", "64", "-p", "once upon", "-n", "1"]);
    assert_eq!(greedy["tokens"][0], top[0]["id"]);
}

#[test]
fn a_continuations_score_is_the_sum_of_its_steps() {
    let d = score(&["--continuation", "ab", "--continuation", "z", "--top", "260"]);
    has_keys(&d, &["continuations", "top", "prompt_tokens"]);
    let both = d["continuations"].as_array().unwrap();
    for (c, text) in both.iter().zip(["ab", "z"]) {
        has_keys(c, &["text", "tokens", "logprob", "greedy"]);
        assert_eq!(c["text"], text);
    }
    let logprob = |d: &Value, id: u32| {
        let top = d["top"].as_array().unwrap();
        top.iter().find(|t| t["id"] == id).unwrap()["logprob"].as_f64().unwrap()
    };
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
    close(both[1]["logprob"].as_f64().unwrap(), logprob(&d, 122));
    let next =
        json(&["score", "-m", tiny::model(), "--ctx", "64", "-p", "once upona", "--top", "260"]);
    close(both[0]["logprob"].as_f64().unwrap(), logprob(&d, 97) + logprob(&next, 98));
    let best = d["top"][0]["piece"].as_str().unwrap();
    assert_eq!(score(&["--continuation", best])["continuations"][0]["greedy"], true);
    let by_ids = json(&[
        "score",
        "-m",
        tiny::model(),
        "--ctx",
        "64",
        "--ids",
        "111,110,99,101,32,117,112,111,110",
        "--continuation",
        "97,98",
    ]);
    assert_eq!(by_ids["continuations"][0]["logprob"], both[0]["logprob"]);
    let nothing = ["score", "-m", tiny::model(), "--ctx", "64", "-p", "a", "--continuation", ""];
    assert!(failure(&nothing).contains("adds no token"));
}

const PROSE: &str = "the heron waited while the river went on and on, as rivers do. 天地玄黄。\n";

#[test]
fn perplexity_agrees_with_score() {
    let folder = tiny::fresh("perplexity");
    let file = write(&folder, "text.txt", "once uponab");
    let d = json(&["perplexity", "-m", tiny::model(), "--file", text(&file)]);
    has_keys(&d, &["tokens", "bytes", "perplexity", "bits_per_byte"]);
    assert_eq!((&d["tokens"], &d["bytes"]), (&10.into(), &10.into()));
    let s = json(&[
        "score",
        "-m",
        tiny::model(),
        "--ctx",
        "64",
        "-p",
        "o",
        "--continuation",
        "nce uponab",
    ]);
    let nll = -s["continuations"][0]["logprob"].as_f64().unwrap();
    let close =
        |a: &Value, b: f64| assert!((a.as_f64().unwrap() / b - 1.0).abs() < 1e-6, "{a} {b}");
    close(&d["perplexity"], (nll / 10.0).exp());
    close(&d["bits_per_byte"], nll / 10.0 / std::f64::consts::LN_2);
    // A byte is a token here, so both measures say the same.
    close(&d["perplexity"], d["bits_per_byte"].as_f64().unwrap().exp2());
}

#[test]
fn a_model_is_no_distance_from_itself() {
    let folder = tiny::fresh("distance");
    let file = write(&folder, "text.txt", PROSE.repeat(4));
    let args = [
        "perplexity",
        "-m",
        tiny::model(),
        "--file",
        text(&file),
        "--ctx",
        "100",
        "--reference",
        tiny::model(),
    ];
    let exact = json(&[&args[..], &["--activation", "f32"]].concat());
    has_keys(&exact, &["kl", "same_top", "reference_perplexity"]);
    assert!(exact["kl"].as_f64().unwrap().abs() < 1e-9, "{exact}");
    assert_eq!(exact["same_top"], 1.0);
    assert_eq!(exact["reference_perplexity"], exact["perplexity"]);
    let auto = json(&args);
    let kl = auto["kl"].as_f64().unwrap();
    assert!(kl > 0.0 && kl < 0.01, "8-bit activations are near and not the same: {kl}");
}

#[test]
fn saved_logits_are_a_matrix_of_the_promised_shape() {
    let folder = tiny::fresh("logits");
    let file = write(&folder, "text.txt", PROSE);
    let npy = folder.join("logits.npy");
    let args = ["perplexity", "-m", tiny::model(), "--file", text(&file), "--ctx", "32"];
    let d = json(&[&args[..], &["--limit-tokens", "50", "--save-logits", text(&npy)]].concat());
    assert_eq!(listing(&folder), ["logits.npy", "text.txt"]);
    let windows = d["token_windows"].as_array().unwrap();
    let lengths: Vec<usize> = windows.iter().map(|w| w.as_array().unwrap().len()).collect();
    assert_eq!(lengths, [32, 18]);
    let rows = 31 + 17;
    assert_eq!(d["tokens"], rows);
    let bytes = std::fs::read(&npy).unwrap();
    let header = String::from_utf8_lossy(&bytes[10..128]);
    assert!(header.contains(&format!("({rows}, {VOCAB})")), "{header}");
    assert_eq!(bytes.len(), 128 + rows * VOCAB * 4);
    // The logits are those that the perplexity was worked out from.
    let logits: Vec<f64> = bytes[128..]
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64)
        .collect();
    let targets = windows.iter().flat_map(|w| w.as_array().unwrap()[1..].iter());
    let nll: f64 = logits
        .chunks_exact(VOCAB)
        .zip(targets)
        .map(|(row, target)| {
            let sum: f64 = row.iter().map(|l| l.exp()).sum();
            sum.ln() - row[target.as_u64().unwrap() as usize]
        })
        .sum();
    let perplexity = d["perplexity"].as_f64().unwrap();
    assert!(((nll / rows as f64).exp() / perplexity - 1.0).abs() < 1e-5);
}

#[test]
fn perplexity_needs_a_text_that_says_something() {
    let folder = tiny::fresh("short-texts");
    for (name, content) in [("empty.txt", ""), ("one.txt", "a")] {
        let file = write(&folder, name, content);
        let message = failure(&["perplexity", "-m", tiny::model(), "--file", text(&file)]);
        assert!(message.contains(name) && message.contains("too short"), "{message}");
    }
    let message = failure(&["perplexity", "-m", tiny::model(), "--file", "gone.txt"]);
    assert!(message.contains("gone.txt"), "{message}");
    let args = ["perplexity", "-m", tiny::model(), "--file", "-", "--json"];
    assert_eq!(document(&finish(&mut command(&args), "abc"), &args)["tokens"], 2);
    let file = write(&folder, "text.txt", PROSE);
    let at = folder.join("no/such/folder/x.npy");
    let message = failure(&[
        "perplexity",
        "-m",
        tiny::model(),
        "--file",
        text(&file),
        "--save-logits",
        text(&at),
    ]);
    assert!(message.contains("x.npy"), "{message}");
}
