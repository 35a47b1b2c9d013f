//! Prompts around and beyond the context, contexts of a few tokens, and memory limits: each ends,
//! with a text or with one line that says what would do.

use crate::support::{failure, json};
use crate::tiny;

fn run(ctx: &str, prompt: &str, n: &str) -> serde_json::Value {
    json(&[
        "run",
        "-m",
        tiny::model(),
        "-p",
        prompt,
        "-n",
        n,
        "--ctx",
        ctx,
        "--logit-bias",
        "257=-100",
    ])
}

fn refused(ctx: &str, prompt: &str) -> String {
    failure(&["run", "-m", tiny::model(), "-p", prompt, "--ctx", ctx])
}

#[test]
fn a_prompt_may_fill_the_context_and_not_exceed_it() {
    for context in [1, 2, 16, 100] {
        let ctx = context.to_string();
        for length in [context - 1, context] {
            if length == 0 {
                continue;
            }
            let d = run(&ctx, &"a".repeat(length), "1000");
            // The last token that fits the context still has a successor.
            let count = d["tokens"].as_array().unwrap().len();
            assert_eq!(count, context - length + 1, "{length} in {context}");
            assert_eq!(d["stop_reason"], "context_full");
        }
        for length in [context + 1, context * 10] {
            let message = refused(&ctx, &"a".repeat(length));
            assert!(message.contains(&format!("{length} tokens")), "{message}");
            assert!(message.contains(&format!("context of {context}")), "{message}");
        }
    }
}

#[test]
fn a_cut_never_falls_inside_a_character() {
    // Three bytes, three tokens: the context ends inside the second character of the prompt.
    let message = refused("16", &"天".repeat(6));
    assert!(message.contains("18 tokens"), "{message}");
    assert_eq!(run("18", &"天".repeat(6), "5")["stop_reason"], "context_full");
}

#[test]
fn zero_tokens_fit_any_context() {
    assert_eq!(run("1", "a", "0")["stop_reason"], "max_tokens");
}

#[test]
fn a_memory_limit_says_what_fits_and_that_really_opens() {
    let with = |ctx: &str, more: &[&str]| {
        let base =
            ["run", "-m", tiny::model(), "-p", "a", "-n", "1", "--threads", "1", "--memory-limit"];
        [&base[..], &["8", "--ctx", ctx], more].concat().join(" ")
    };
    let split = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let failed = |line: String| {
        let args = split(&line);
        failure(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let message = failed(with("1000000", &[]));
    for part in ["the limit is 8 MB", "context of 1000000 tokens", "would fit"] {
        assert!(message.contains(part), "{message}");
    }
    let numbers: Vec<usize> = message
        .split(": ")
        .last()
        .unwrap()
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok())
        .collect();
    let (f16, q8) = (numbers[0], numbers[1]);
    assert!(0 < f16 && f16 < q8, "{message}");
    for (fits, kv) in [(f16, "f16"), (q8, "q8")] {
        let args = split(&with(&fits.to_string(), &["--kv", kv]));
        json(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let message = failed(with(&(fits + 64).to_string(), &["--kv", kv]));
        assert!(message.contains("the limit is 8 MB"), "{message}");
    }
    let message =
        failure(&["run", "-m", tiny::model(), "-p", "a", "--ctx", "64", "--memory-limit", "1"]);
    assert!(message.contains("needs at least"), "{message}");
}
