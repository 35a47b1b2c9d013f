//! Ctrl-C in the middle of work: status 130, and no half-written file.

#![cfg(unix)]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::support::{command, listing, text, write};
use crate::tiny;

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

fn ended(mut child: Child) -> String {
    // Read on, so that nothing but the signal ends it.
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    rest
}

#[test]
fn a_run_stops_and_its_session_is_whole() {
    let folder = tiny::fresh("interrupted");
    let session = folder.join("kept.session");
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
        "--session",
        text(&session),
    ];
    let mut child = command(&args).spawn().unwrap();
    // Once a letter is out, it generates.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    interrupt(&child);
    assert!(ended(child).ends_with('\n'));
    assert!(listing(&folder).iter().all(|name| name == "kept.session"), "{:?}", listing(&folder));
    let args = [
        "run",
        "-m",
        tiny::model(),
        "-p",
        "once",
        "-n",
        "3",
        "--ctx",
        "1000000",
        "--session",
        text(&session),
        "--json",
    ];
    assert_eq!(command(&args).output().unwrap().status.code(), Some(0));
}

#[test]
fn a_measurement_stops_and_leaves_no_logits() {
    let folder = tiny::fresh("interrupted-logits");
    let prose = write(&folder, "long.txt", "all work and no play ".repeat(200_000));
    let logits = folder.join("logits.npy");
    let args =
        ["perplexity", "-m", tiny::model(), "--file", text(&prose), "--save-logits", text(&logits)];
    let mut child = command(&args).spawn().unwrap();
    // It works once its file is there.
    while listing(&folder).len() < 2 {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    interrupt(&child);
    ended(child);
    assert_eq!(listing(&folder), ["long.txt"]);
}

#[test]
fn a_reply_stops_and_the_chat_goes_on() {
    let args = [
        "chat",
        "-m",
        tiny::model(),
        "--ctx",
        "1000000",
        "-n",
        "900000",
        "--temperature",
        "0",
        "--logit-bias",
        "257=-100",
    ];
    let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdin.write_all(b"hello\n").unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    stdin.write_all(b"/quit\n").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "/quit is no interrupt");
}
