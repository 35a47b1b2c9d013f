//! Every command's help: an example in each, and each as it was agreed.
//!
//! After a wanted change of a help text, `INSTA_UPDATE=always cargo test -p koudai-cli help` writes
//! the new snapshots.

use crate::support::{koudai, stdout, usage};

const COMMANDS: [&str; 20] = [
    "pull",
    "models",
    "chat",
    "run",
    "tokens",
    "score",
    "perplexity",
    "inspect",
    "convert",
    "export",
    "pack",
    "sign",
    "diff",
    "patch",
    "prune",
    "bench",
    "eval",
    "train",
    "search",
    "report",
];

#[test]
fn every_help_has_an_example_and_is_as_agreed() {
    insta::assert_snapshot!("koudai", stdout(&["--help"]));
    for command in COMMANDS {
        let help = stdout(&[command, "--help"]);
        assert!(help.contains(&format!("  koudai {command}")), "{command} shows no example");
        insta::assert_snapshot!(command, help);
    }
}

#[test]
fn the_first_page_lists_exactly_the_commands() {
    let help = stdout(&["--help"]);
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let listed: Vec<&str> =
        list.lines().filter_map(|l| l.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert_eq!(listed, [&COMMANDS[..], &["help"]].concat());
}

#[test]
fn every_command_with_results_has_json() {
    for command in COMMANDS.iter().filter(|c| **c != "chat") {
        assert!(stdout(&[command, "--help"]).contains("--json"), "{command}");
    }
}

#[test]
fn the_version_is_the_crates() {
    assert_eq!(stdout(&["--version"]), format!("koudai {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_is_told_apart_and_names_the_option() {
    for (args, named) in [
        (&["runn"][..], "runn"),
        (&["run"], "--prompt"),
        (&["run", "-p", "a", "--frobnicate"], "--frobnicate"),
        (&["run", "-p", "a", "--file", "b"], "--file"),
        (&["run", "-p", "a", "--system", "b"], "--chat"),
        (&["run", "-p", "a", "-n", "-1"], "-1"),
        (&["run", "-p", "a", "-n", "5.5"], "5.5"),
        (&["run", "-p", "a", "--ctx", "99999999999999999999"], "--ctx"),
        (&["run", "-p", "a", "--top-k", "-1"], "-1"),
        (&["run", "-p", "a", "--temperature", "warm"], "--temperature"),
        (&["run", "-p", "a", "--kv", "q4"], "--kv"),
        (&["score"], "--prompt"),
        (&["perplexity"], "--file"),
        (&["inspect"], "<FILE>"),
        (&["convert", "a"], "--output"),
        (&["convert", "a", "-o", "b", "--quant", "q3"], "--quant"),
        (&["bench", "-r", "0"], "--runs"),
        (&["tokens"], "<TEXT>"),
    ] {
        let message = usage(args);
        assert!(message.contains(named), "{args:?} doesn't name {named}: {message}");
    }
}

#[test]
fn no_command_at_all_shows_help_and_fails() {
    let done = koudai(&[]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""));
    assert!(done.stderr.contains("Usage:"));
}
