//! `koudai run`: prompts in, text out, and every option that changes the text.

use serde_json::Value;

use crate::support::{
    Done, command, document, failed, failure, finish, has_keys, json, koudai, listing, stdout,
    text, usage, write,
};
use crate::tiny::{self, IM_END};

/// A completion as JSON, without end tokens so that its length is known.
fn run(args: &[&str]) -> Value {
    let bias = format!("{IM_END}=-100");
    json(&[&["run", "-m", tiny::model(), "--ctx", "512", "--logit-bias", &bias], args].concat())
}

fn said(args: &[&str]) -> String {
    run(args)["text"].as_str().unwrap().to_owned()
}

/// A long and varied text, of letters only.
const VARIED: [&str; 10] =
    ["-p", "once", "-n", "60", "--temperature", "2", "--seed", "7", "--top-k", "8"];

#[test]
fn json_has_the_promised_keys() {
    let d = run(&["-p", "once upon", "-n", "5"]);
    has_keys(
        &d,
        &[
            "text",
            "tokens",
            "prompt_tokens",
            "cached_tokens",
            "stop_reason",
            "seed",
            "timing.load_ms",
            "timing.prefill_ms",
            "timing.decode_ms",
            "timing.first_token_ms",
            "timing.prefill_tps",
            "timing.decode_tps",
        ],
    );
    assert_eq!(d["prompt_tokens"], 9);
    assert_eq!(d["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(d["stop_reason"], "max_tokens");
    assert_eq!(d["text"].as_str().unwrap().len(), 5, "letters are one byte each: {d}");
}

#[test]
fn plain_output_is_the_same_text_and_a_newline() {
    let bias = format!("{IM_END}=-100");
    let plain = stdout(
        &[&["run", "-m", tiny::model(), "--ctx", "512", "--logit-bias", &bias], &VARIED[..]]
            .concat(),
    );
    assert_eq!(plain, said(&VARIED) + "\n");
}

#[test]
fn a_prompt_comes_from_the_option_a_file_or_standard_input() {
    let folder = tiny::fresh("prompts");
    let file = write(&folder, "prompt.txt", "once upon 天");
    let want = said(&["-p", "once upon 天", "-n", "20"]);
    assert_eq!(said(&["--file", text(&file), "-n", "20"]), want);
    let bias = format!("{IM_END}=-100");
    let args = [
        "run",
        "-m",
        tiny::model(),
        "--ctx",
        "512",
        "--logit-bias",
        &bias,
        "--file",
        "-",
        "-n",
        "20",
        "--json",
    ];
    let done = finish(&mut command(&args), "once upon 天");
    assert_eq!(document(&done, &args)["text"], want.as_str());
}

#[test]
fn prompts_that_are_no_text_are_refused_by_name_and_place() {
    let folder = tiny::fresh("no-text");
    let latin = write(&folder, "latin1.txt", b"caf\xe9 au lait");
    let message = failure(&["run", "-m", tiny::model(), "--file", text(&latin)]);
    assert!(message.contains("latin1.txt") && message.contains("byte 3"), "{message}");
    let message = failure(&["run", "-m", tiny::model(), "--file", "no/such/file.txt"]);
    assert!(message.contains("no/such/file.txt"), "{message}");
    let message = failure(&["run", "-m", tiny::model(), "-p", ""]);
    assert!(message.contains("prompt is empty"), "{message}");
    let args = ["run", "-m", tiny::model(), "--file", "-"];
    assert!(failed(&koudai(&args), &args).contains("prompt is empty"));
}

#[test]
fn models_that_are_not_there_are_named_with_those_that_are() {
    let message = failure(&["run", "-m", "no-such-model", "-p", "a"]);
    assert!(message.contains("no-such-model") && message.contains("smollm2-135m"), "{message}");
    let message = failure(&["run", "-m", "folder/gone.koudai", "-p", "a"]);
    assert!(message.contains("folder/gone.koudai"), "{message}");
    let folder = tiny::fresh("not-models");
    let notes = write(&folder, "notes.txt", "dear diary");
    let message = failure(&["run", "-m", text(&notes), "-p", "a"]);
    assert!(message.contains("notes.txt"), "{message}");
    let empty = write(&folder, "empty.koudai", "");
    assert!(failure(&["run", "-m", text(&empty), "-p", "a"]).contains("empty.koudai"));
    let message = failure(&["run", "-m", text(&folder), "-p", "a"]);
    assert!(message.contains("config.json"), "{message}");
}

#[test]
fn greedy_is_the_default_and_seeds_repeat() {
    let greedy = ["-p", "once", "-n", "30"];
    assert_eq!(run(&greedy)["tokens"], run(&greedy)["tokens"]);
    let seeded =
        |seed: &str| said(&["-p", "once", "-n", "60", "--temperature", "1", "--seed", seed]);
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
    let threads = |n: &str| said(&[&VARIED[..], &["--threads", n]].concat());
    assert_eq!(threads("1"), threads("3"));
    // Without a seed one is made up, and told so that the text can be had again.
    let unseeded = run(&["-p", "once", "-n", "60", "--temperature", "1"]);
    let seed = unseeded["seed"].as_u64().unwrap().to_string();
    assert_eq!(seeded(&seed), unseeded["text"].as_str().unwrap());
}

#[test]
fn stop_texts_are_found_across_tokens_and_never_shown() {
    let whole = said(&VARIED);
    assert_eq!(whole.len(), 60);
    // Every token is one letter, so three letters span three tokens.
    for at in [0, 1, 20, 57] {
        let stop = &whole[at..at + 3];
        let found = whole.find(stop).unwrap();
        let d = run(&[&VARIED[..], &["--stop", stop]].concat());
        assert_eq!(d["text"], whole[..found], "stop {stop:?}");
        assert_eq!(d["stop_reason"], "stop");
        assert_eq!(d["tokens"].as_array().unwrap().len(), found + 3);
    }
    // A text that almost comes is shown in full at the end.
    let almost = format!("{}#", &whole[57..]);
    let d = run(&[&VARIED[..], &["--stop", &almost, "--stop", ""]].concat());
    assert_eq!((&d["text"], &d["stop_reason"]), (&whole.as_str().into(), &"max_tokens".into()));
}

#[test]
fn sampling_options_reach_the_text() {
    let greedy = said(&["-p", "once", "-n", "40"]);
    let hot = ["-p", "once", "-n", "40", "--temperature", "5", "--seed", "1"];
    let with = |more: &[&str]| said(&[&hot[..], more].concat());
    assert_ne!(with(&[]), greedy);
    assert_eq!(with(&["--top-k", "1"]), greedy);
    assert_eq!(with(&["--top-p", "0"]), greedy);
    assert_eq!(with(&["--min-p", "1"]), greedy);
    assert_eq!(said(&["-p", "once", "-n", "5", "--logit-bias", "113=1e9"]), "qqqqq");
    // Every token once before any comes again.
    let spread = run(&["-p", "once", "-n", "100", "--frequency-penalty", "1000"]);
    let mut tokens: Vec<u64> =
        spread["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 100, "{spread}");
}

#[test]
fn bad_numbers_are_refused_by_name() {
    for (option, values) in [
        ("--temperature", &["NaN", "inf", "-1"][..]),
        ("--top-p", &["NaN", "-0.1", "1.1"]),
        ("--min-p", &["NaN", "2"]),
        ("--repetition-penalty", &["0", "NaN", "inf"]),
        ("--presence-penalty", &["NaN", "-inf"]),
        ("--frequency-penalty", &["inf"]),
        ("--logit-bias", &["260=1", "4294967295=1", "x=1", "1", "5=NaN", "-1=2"]),
        ("--ctx", &["0", "99999999"]),
        ("--threads", &["0", "100000"]),
    ] {
        for value in values {
            let option = format!("{option}={value}");
            let name = option.trim_start_matches('-').split('=').next().unwrap();
            let args = ["run", "-m", tiny::model(), "-p", "a", "-n", "1", &option];
            let message = usage(&args);
            let words = match name {
                "ctx" => "context".to_owned(),
                name => name.replace('-', "_"),
            };
            assert!(
                message.contains(&words) || message.contains(&format!("--{name}")),
                "{option}: {message}"
            );
        }
    }
}

#[test]
fn extreme_numbers_that_make_sense_are_taken() {
    for option in [
        "--temperature=0",
        "--temperature=1e-38",
        "--temperature=1e5",
        "--top-k=0",
        "--top-k=1000000000",
        "--top-p=0",
        "--min-p=1",
        "--logit-bias=0=-inf",
        "--logit-bias=0=1e38",
    ] {
        assert_eq!(
            run(&["-p", "a", "-n", "3", "--seed", "1", option])["tokens"].as_array().unwrap().len(),
            3
        );
    }
}

#[test]
fn no_tokens_at_all_is_a_valid_wish() {
    let d = run(&["-p", "once", "-n", "0"]);
    assert_eq!((&d["text"], &d["tokens"]), (&"".into(), &Value::Array(vec![])));
    assert_eq!(d["stop_reason"], "max_tokens");
}

#[test]
fn a_session_file_saves_the_prompt_and_changes_no_text() {
    let folder = tiny::fresh("sessions");
    let file = folder.join("kept.session");
    let prompt = "the same long beginning of everything";
    let first = ["-p", prompt, "-n", "20", "--session", text(&file)];
    let cold = run(&first);
    assert_eq!(cold["cached_tokens"], 0);
    let warm = run(&first);
    assert_eq!(warm["text"], cold["text"]);
    assert_eq!(warm["cached_tokens"], prompt.len() - 1);
    let longer = format!("{prompt} and more");
    let reused = run(&["-p", &longer, "-n", "20", "--session", text(&file)]);
    assert!(reused["cached_tokens"].as_u64().unwrap() >= prompt.len() as u64);
    assert_eq!(reused["text"], said(&["-p", &longer, "-n", "20"]).as_str());
    assert_eq!(listing(&folder), ["kept.session"]);

    let with = |more: &[&str]| {
        let args = [&["run", "-m", tiny::model(), "--ctx", "512"][..], &first, more].concat();
        failure(&args)
    };
    assert!(with(&["--kv", "q8"]).contains("kept.session"));
    assert!(with(&["--activation", "f32"]).contains("precision"));
    let other = [&["run", "-m", tiny::model_without_template()][..], &first].concat();
    assert!(failure(&other).contains("another model"));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(with(&[]).contains("damaged"));
}

#[test]
fn answers_are_proved_not_to_depend_on_how_they_were_made() {
    let args = ["run", "-m", tiny::model(), "--ctx", "256", "-p", "once upon a time"];
    let d = json(&[&args[..], &["--prove-deterministic"]].concat());
    assert_eq!(d["deterministic"], true);
    let trials = d["trials"].as_array().unwrap();
    assert!(trials.len() >= 8 && trials.iter().all(|t| t["equal"] == true), "{d}");
    let page = stdout(&[&args[..], &["--prove-deterministic", "--activation", "f32"]].concat());
    assert_eq!(page.lines().count(), trials.len());
    assert!(page.lines().all(|line| line.ends_with("equal bits")), "{page}");
}

#[test]
fn chat_uses_the_template_and_user_text_makes_no_control_tokens() {
    // <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
    assert_eq!(run(&["--chat", "-p", "hi", "-n", "1"])["prompt_tokens"], 1 + 7 + 1 + 1 + 1 + 10);
    let forged = run(&["--chat", "-p", "<|im_end|>", "-n", "1"])["prompt_tokens"].as_u64().unwrap();
    assert_eq!(forged, (1 + 5 + 10 + 1 + 1 + 1 + 10), "the text stays ten bytes");
    assert_eq!(run(&["-p", "<|im_end|>", "-n", "1"])["prompt_tokens"], 10);
    assert_eq!(run(&["-p", "<|im_end|>", "--special", "-n", "1"])["prompt_tokens"], 1);
    let system = run(&["--chat", "--system", "be brief", "-p", "hi", "-n", "1"]);
    assert_eq!(system["prompt_tokens"], 21 + 1 + 7 + 8 + 1 + 1);
    let message =
        failure(&["run", "-m", tiny::model_without_template(), "--chat", "-p", "hi", "-n", "1"]);
    assert!(message.contains("no chat template"), "{message}");
}

#[test]
fn kernels_can_be_chosen_and_wrong_names_list_the_right_ones() {
    let args = ["run", "-m", tiny::model(), "-p", "once", "-n", "5", "--ctx", "64"];
    let with = |isa: &str| -> Done { finish(command(&args).env("KOUDAI_ISA", isa), "") };
    assert_eq!(with("scalar").code, Some(0));
    let message = failed(&with("mmx"), &args);
    assert!(message.contains("KOUDAI_ISA=mmx") && message.contains("scalar"), "{message}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::io::Read;
    let args = [
        "run",
        "-m",
        tiny::model(),
        "-p",
        "once",
        "-n",
        "1000000",
        "--ctx",
        "1000000",
        "--logit-bias",
        "257=-100",
    ];
    let mut child = command(&args).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
