//! Ctrl-C in the middle of a conversion: status 130 and no file. Needs a real model, which takes long
//! enough.

use std::path::PathBuf;
use std::process::{Command, Stdio};

#[test]
fn an_interrupted_conversion_leaves_nothing() {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let models = std::env::var_os("KOUDAI_MODELS")
        .map_or(home.join(".cache/koudai-test-models"), PathBuf::from);
    let input = models.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !input.exists() {
        println!("skipped: {} isn't there (set KOUDAI_MODELS)", input.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let mut child = Command::new(env!("CARGO_BIN_EXE_koudai"))
        .args(["convert", "--quant", "q4g64", "-o"])
        .args([folder.path().join("out.koudai"), input])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It writes once its file is there.
    while files() == 0 {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "interrupted\n");
    assert_eq!(files(), 0);
}
