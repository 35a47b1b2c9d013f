//! `koudai train` hands over to `koudai-train`: found beside itself or in PATH, and told if not.

#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Done, command, failed, finish};
use crate::tiny;

/// A program that says what it was given and ends with status 7.
fn stand_in(folder: &Path, says: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join("koudai-train");
    std::fs::write(&path, format!("#!/bin/sh\necho {says} \"$@\"\nexit 7\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a copy of the command in `folder`, where nothing is beside it but what the test puts there.
fn train(folder: &Path, path: &Path, args: &[&str]) -> Done {
    let koudai = folder.join("koudai");
    std::fs::copy(env!("CARGO_BIN_EXE_koudai"), &koudai).unwrap();
    let mut copy = std::process::Command::new(koudai);
    copy.args(args).env("PATH", path);
    copy.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    finish(&mut copy, "")
}

#[test]
fn arguments_and_status_pass_through() {
    let folder = tiny::fresh("train");
    let (beside, path) = (folder.join("beside"), folder.join("path"));
    std::fs::create_dir_all(&beside).unwrap();
    let args = ["train", "recipe.toml", "--set", "train.steps=1", "--json"];

    let done = train(&beside, &path, &args);
    let message = failed(&done, &args);
    assert!(message.contains("koudai-train") && message.contains("just train"), "{message}");

    stand_in(&path, "path");
    let done = train(&beside, &path, &args);
    assert_eq!(done.stdout, "path recipe.toml --set train.steps=1 --json\n");
    assert_eq!(done.code, Some(7));

    stand_in(&beside, "beside");
    assert!(train(&beside, &path, &args).stdout.starts_with("beside recipe.toml"));
}

#[test]
fn a_recipe_is_needed() {
    assert_eq!(finish(&mut command(&["train"]), "").code, Some(2));
}
