//! Runs the real binary and judges what comes back by the contract that all commands share.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The binary with nothing of the caller's environment that could change its answers. A hub that
/// can't be reached stands in for the real one: nothing here may depend on the network.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_koudai"));
    for name in ["KOUDAI_ISA", "HF_TOKEN", "COLUMNS", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.env("KOUDAI_CACHE", scratch().join("cache")).env("HF_ENDPOINT", "http://127.0.0.1:9");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A folder of this test binary, kept between runs.
pub(crate) fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs to the end with `input` on standard input.
pub(crate) fn finish(command: &mut Command, input: impl Into<Vec<u8>>) -> Done {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.into();
    // A child that doesn't read to the end closes the pipe, which is its right.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Done { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn koudai(args: &[&str]) -> Done {
    finish(&mut command(args), "")
}

/// Standard output of a run that must succeed.
pub(crate) fn stdout(args: &[&str]) -> String {
    let done = koudai(args);
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    done.stdout
}

/// The one JSON document that a run with `--json` must print, and nothing else.
pub(crate) fn json(args: &[&str]) -> Value {
    let args = [args, &["--json"]].concat();
    document(&koudai(&args), &args)
}

pub(crate) fn document(done: &Done, what: &[&str]) -> Value {
    assert_eq!(done.code, Some(0), "{what:?}: {done:?}");
    let line = done.stdout.strip_suffix('\n').expect("the document ends with a newline");
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{what:?}: {e}: {line}"))
}

/// The message of a run that must fail: status 1, one line on standard error, nothing on standard
/// output.
pub(crate) fn failure(args: &[&str]) -> String {
    failed(&koudai(args), args)
}

pub(crate) fn failed(done: &Done, what: &[&str]) -> String {
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{what:?}: {done:?}");
    let line = done.stderr.strip_prefix("error: ").unwrap_or_else(|| panic!("{what:?}: {done:?}"));
    assert_eq!(line.matches('\n').count(), 1, "{what:?}: {line}");
    assert!(line.ends_with('\n') && line.trim().len() > 5, "{what:?}: {line}");
    let parts: Vec<&str> = line.trim_end().split(": ").collect();
    assert!(parts.windows(2).all(|p| p[0] != p[1]), "{what:?} says it twice: {line}");
    line.trim_end().to_owned()
}

/// The message of a run that must be refused as wrong usage: status 2, nothing on standard output.
pub(crate) fn usage(args: &[&str]) -> String {
    let done = koudai(args);
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{args:?}: {done:?}");
    assert!(done.stderr.starts_with("error: "), "{args:?}: {done:?}");
    done.stderr
}

/// Asserts that a document has keys, given as `a` or `a.b`.
pub(crate) fn has_keys(document: &Value, keys: &[&str]) {
    for key in keys {
        let pointer = format!("/{}", key.replace('.', "/"));
        assert!(document.pointer(&pointer).is_some(), "{key} is missing in {document}");
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

/// Names of the files in a folder, sorted.
pub(crate) fn listing(folder: &Path) -> Vec<String> {
    let name =
        |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// A file in `folder` with this content.
pub(crate) fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}
