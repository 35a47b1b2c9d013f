//! From a model on disk to a `.koudai` file.
//!
//! [`convert`] recognizes the input by its content, has it mapped by [`crate::arch`] (a `.koudai` file
//! needs no mapping), and streams its weights through [`crate::weights`] into the file. Nothing appears under the output's name unless
//! all of it is right.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use koudai::bytes::SharedBytes;
use koudai::file::{Defaults, FileWriter, ModelFile, TensorHeader, section};
use koudai::{Config, Flow, Role, Shape, TensorId};
use sha2::{Digest, Sha256};

use crate::arch::{self, Mapped, Transform};
use crate::dequant::TensorType;
use crate::error::Error;
use crate::folder::Folder;
use crate::gguf::Gguf;
use crate::source::{Source, Stored};
use crate::weights::{self, Loss, Mode, Plan, Quant, TensorReport};

/// Written into every file. The number after the version counts changes of what is written: files
/// in a cache that have another one are made anew.
pub const CONVERTER: &str = concat!("koudai-convert ", env!("CARGO_PKG_VERSION"), " (5)");

/// What [`convert`] can be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// How matrices are stored.
    pub quant: Quant,
    /// Matrices that are stored otherwise; of several that match one, the last counts.
    pub overrides: Vec<Override>,
    /// How the codes of quantized matrices are chosen.
    pub mode: Mode,
    /// The model's name; by default the source's own name for it.
    pub name: Option<String>,
    /// Pre-tokenizer of a byte-level GGUF that names none, or one that isn't known: `gpt-2`, `qwen2`,
    /// `llama-bpe` or `smollm`. A wrong one makes a worse model without any other sign.
    pub pre: Option<String>,
    /// Threads that quantize; by default all there are.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Options {
            quant: Quant::Keep,
            overrides: Vec::new(),
            mode: Mode::default(),
            name: None,
            pre: None,
            threads,
        }
    }
}

impl Options {
    /// How a matrix is to be stored.
    pub(crate) fn quant_of(&self, id: TensorId) -> Quant {
        let matching = self.overrides.iter().rfind(|o| o.matches(id));
        matching.map_or(self.quant, |o| o.quant)
    }
}

/// Stores some matrices in another way than the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Their name, such as `layers.0.ffn_down`; `*` stands for any characters.
    pub pattern: String,
    /// How they are stored.
    pub quant: Quant,
}

impl Override {
    /// Reads `PATTERN=QUANT`, such as `layers.*.ffn_down=q8`.
    pub fn parse(text: &str) -> Option<Override> {
        let (pattern, quant) = text.rsplit_once('=')?;
        let quant = Quant::from_name(quant)?;
        (!pattern.is_empty()).then(|| Override { pattern: pattern.into(), quant })
    }

    fn matches(&self, id: TensorId) -> bool {
        let name = id.to_string();
        let mut parts = self.pattern.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // The first place that a part fits leaves most room for the others.
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl std::fmt::Display for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.quant.name())
    }
}

/// How far a long operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is happening.
    pub stage: Stage,
    /// Bytes done; tokens when calibrating.
    pub done: u64,
    /// Bytes or tokens in all; 0 if unknown.
    pub total: u64,
}

/// Parts of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stage {
    Download,
    Unpack,
    Hash,
    Calibrate,
    Count,
    Measure,
    Convert,
    Export,
    Compare,
    Write,
}

/// Is told how far the work is, and ends it with [`Flow::Break`]: the work returns
/// [`Error::Cancelled`] and leaves nothing half done.
pub type Watch<'a> = dyn FnMut(Progress) -> Flow + 'a;

/// Tells the caller where the work is.
pub(crate) fn tell(
    progress: &mut Watch<'_>,
    stage: Stage,
    done: u64,
    total: u64,
) -> Result<(), Error> {
    match progress(Progress { stage, done, total }) {
        Flow::Continue(()) => Ok(()),
        Flow::Break(()) => Err(Error::Cancelled),
    }
}

/// What a conversion did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Family of the model.
    pub architecture: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Weights of the model, norms and biases included.
    pub n_weights: u64,
    /// Bits of stored tensors per weight.
    pub bits_per_weight: f64,
    /// SHA-256 of the source, in hexadecimal.
    pub source_sha256: String,
    /// Every tensor, in file order.
    pub tensors: Vec<TensorReport>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// [`TensorReport`]s of one role taken together.
#[derive(Clone, Debug)]
pub struct RoleReport {
    /// What the tensors are for.
    pub role: Role,
    /// How the source stored them, such as `Q4_K, Q6_K`.
    pub from: String,
    /// How they are stored now.
    pub to: String,
    /// Tensors.
    pub count: usize,
    /// Bytes now.
    pub bytes: u64,
    /// Every value is what it was.
    pub exact: bool,
    /// Largest error over largest magnitude.
    pub max_error: f64,
    /// Root mean square error over root mean square value.
    pub rms_error: f64,
}

impl Report {
    /// The tensors by role, in file order.
    pub fn by_role(&self) -> Vec<RoleReport> {
        let mut roles: Vec<Role> = Vec::new();
        for t in &self.tensors {
            if !roles.contains(&t.id.role) {
                roles.push(t.id.role);
            }
        }
        roles.into_iter().map(|role| self.role(role)).collect()
    }

    fn role(&self, role: Role) -> RoleReport {
        let tensors: Vec<&TensorReport> =
            self.tensors.iter().filter(|t| t.id.role == role).collect();
        let mut loss = Loss::default();
        tensors.iter().for_each(|t| loss.merge(&t.loss));
        let names = |name: &dyn Fn(&TensorReport) -> &'static str| {
            let mut names: Vec<&str> = tensors.iter().map(|t| name(t)).collect();
            names.sort_unstable();
            names.dedup();
            names.join(", ")
        };
        RoleReport {
            role,
            from: names(&|t| t.from),
            to: names(&|t| t.to.name()),
            count: tensors.len(),
            bytes: tensors.iter().map(|t| t.bytes).sum(),
            exact: loss.exact(),
            max_error: loss.max_error(),
            rms_error: loss.rms_error(),
        }
    }
}

/// A model ready to be written.
pub(crate) struct Prepared<'a> {
    pub(crate) architecture: String,
    pub(crate) config: Config,
    pub(crate) plans: Vec<Plan<'a>>,
    pub(crate) tokenizer: Vec<u8>,
    pub(crate) template: Option<String>,
    pub(crate) defaults: Defaults,
    pub(crate) meta: Vec<(String, String)>,
    /// Empty if there is no source.
    pub(crate) source_sha256: String,
    pub(crate) notes: Vec<String>,
}

/// Converts a GGUF file, a Hugging Face folder or another `.koudai` file to a `.koudai` file.
///
/// `progress` is called now and then from this thread and can end the work. Unless all of it succeeds,
/// nothing is left behind.
///
/// ```no_run
/// # use std::path::Path;
/// use koudai_convert::{Options, convert};
/// let (input, output) = (Path::new("m.gguf"), Path::new("m.koudai"));
/// let report = convert(input, output, &Options::default(), &mut |p| {
///     println!("{} of {} bytes", p.done, p.total);
///     std::ops::ControlFlow::Continue(())
/// })?;
/// println!("{} bytes, {:.2} bits per weight", report.bytes, report.bits_per_weight);
/// # Ok::<(), koudai_convert::Error>(())
/// ```
pub fn convert(
    input: &Path,
    output: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
) -> Result<Report, Error> {
    check_output(input, output)?;
    prepare(input, options, progress, |prepared, progress| {
        write(prepared, output, options, progress)
    })
}

/// Opens a model of any format and hands it to `then`, which it outlives.
pub(crate) fn prepare<R>(
    input: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
    then: impl FnOnce(Prepared<'_>, &mut Watch<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let at = |e: Error| match e {
        Error::Io(..) | Error::At(..) | Error::Output(_) | Error::Cancelled => e,
        other => Error::At(input.to_owned(), Box::new(other)),
    };
    match input.is_dir() {
        true => with_folder(input, options, progress, then).map_err(at),
        false => with_file(input, options, progress, then).map_err(at),
    }
}

fn with_file<R>(
    input: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
    then: impl FnOnce(Prepared<'_>, &mut Watch<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let io = |e| Error::Io(input.to_owned(), e);
    if !input.metadata().map_err(io)?.is_file() {
        return Err(Error::Input("is neither a file nor a folder".into()));
    }
    let mut start = Vec::new();
    File::open(input).map_err(io)?.take(8).read_to_end(&mut start).map_err(io)?;
    if start.starts_with(b"KOUDAI") {
        return with_koudai(input, options, progress, then);
    }
    if !Gguf::recognizes(&start) {
        let empty = if start.is_empty() { "empty, " } else { "" };
        let why = format!("is {empty}neither a GGUF file nor a folder with a config.json");
        return Err(Error::Input(why));
    }
    let bytes = koudai::file::map_file(input)?;
    let file = Gguf::parse(&bytes)?;
    let mut prepared = prepare_gguf(&file, options)?;
    prepared.source_sha256 = hash_all(&[(String::new(), bytes.clone())], progress)?;
    prepared.meta.push(("source".into(), file_name(input)));
    then(prepared, progress)
}

fn with_koudai<R>(
    input: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
    then: impl FnOnce(Prepared<'_>, &mut Watch<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    if options.pre.is_some() {
        return Err(Error::Input("has its pre-tokenizer in it; --pre is for GGUF files".into()));
    }
    let file = ModelFile::open(input).map_err(|e| Error::Input(e.to_string()))?;
    // Its weights get new hashes: damage would become what they vouch for.
    file.verify()?;
    let mut prepared = prepare_koudai(&file, options)?;
    prepared.source_sha256 =
        hash_all(&[(String::new(), koudai::file::map_file(input)?)], progress)?;
    prepared.meta.push(("source".into(), file_name(input)));
    then(prepared, progress)
}

fn prepare_koudai<'a>(file: &'a ModelFile, options: &Options) -> Result<Prepared<'a>, Error> {
    let mut plans = Vec::with_capacity(file.tensors().len());
    for info in file.tensors() {
        let (id, shape) = (info.id, info.shape);
        let mapped = Mapped { id, shape, source: id.to_string(), transform: Transform::None };
        let source = match shape {
            Shape::Matrix { .. } => Stored::Panels(file.matrix(id)),
            Shape::Vector(cols) => {
                let data = file.tensor_data(info);
                Stored::Rows(Source { kind: TensorType::F32, rows: 1, cols, data })
            }
        };
        plans.push(weights::plan(&mapped, source, options.quant_of(id))?);
    }
    let bytes = |name| file.section(name).map(|bytes| bytes.to_vec());
    let mut notes = Vec::new();
    for section in file.sections().iter().filter(|s| !WRITTEN.contains(&s.name.as_str())) {
        notes.push(format!("section `{}` isn't carried over", section.name));
    }
    let mut meta = file.meta()?;
    let was = |key: &str| meta.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
    let architecture = was("architecture").unwrap_or_default();
    meta.retain(|(key, _)| !MADE.contains(&key.as_str()));
    Ok(Prepared {
        architecture,
        config: file.config().clone(),
        plans,
        tokenizer: bytes(section::TOKENIZER).unwrap_or_default(),
        template: file.template()?,
        defaults: file.defaults()?,
        meta,
        source_sha256: String::new(),
        notes,
    })
}

/// Sections that [`write`] writes.
const WRITTEN: [&str; 8] = [
    section::CONFIG,
    section::TOKENIZER,
    section::TEMPLATE,
    section::DEFAULTS,
    section::META,
    section::TENSORS,
    section::WEIGHTS,
    section::BLOCKS,
];

/// Keys of `meta` that say how a file was made.
const MADE: [&str; 7] = [
    "architecture",
    "converter",
    "quant",
    "quant_mode",
    "quant_overrides",
    "source",
    "source_sha256",
];

fn prepare_gguf<'a>(file: &Gguf<'a>, options: &Options) -> Result<Prepared<'a>, Error> {
    let model = arch::gguf::model(file)?;
    let mut plans = Vec::with_capacity(model.tensors.len());
    for mapped in &model.tensors {
        let missing = || Error::tensor(&mapped.source, "is missing");
        let tensor = file.tensor(&mapped.source).ok_or_else(missing)?;
        let (rows, cols) = match tensor.dims[..] {
            [n] => (1, n),
            [cols, rows] => (rows, cols),
            _ => return Err(Error::tensor(tensor.name, format!("has shape {:?}", tensor.dims))),
        };
        let source = Source { kind: tensor.kind, rows, cols, data: tensor.data };
        plans.push(weights::plan(mapped, source, options.quant_of(mapped.id))?);
    }
    let mut notes = Vec::new();
    if model.config.tied_head && file.tensor("output.weight").is_some() {
        notes.push("output.weight repeats token_embd.weight and is stored once".into());
    }
    if let Some(pre) = &options.pre {
        let of_file = file.str("tokenizer.ggml.pre")?.unwrap_or("missing");
        notes.push(format!("tokenizer.ggml.pre is {of_file}, {pre} is used instead"));
    }
    let spec = crate::vocab::from_gguf(file, model.config.vocab_size, options.pre.as_deref())?;
    let mut meta = Vec::new();
    for (key, name) in [("name", "general.name"), ("license", "general.license")] {
        if let Some(value) = file.str(name)? {
            meta.push((key.to_owned(), value.to_owned()));
        }
    }
    Ok(Prepared {
        architecture: model.family.name().into(),
        config: model.config,
        plans,
        tokenizer: spec.to_bytes().map_err(|e| Error::Tokenizer(e.into()))?,
        template: file.str("tokenizer.chat_template")?.map(str::to_owned),
        defaults: gguf_defaults(file)?,
        meta,
        source_sha256: String::new(),
        notes,
    })
}

fn with_folder<R>(
    input: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
    then: impl FnOnce(Prepared<'_>, &mut Watch<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    if options.pre.is_some() {
        let why = "is a folder, whose tokenizer.json says all; --pre is for GGUF files";
        return Err(Error::Input(why.into()));
    }
    let folder = Folder::open(input)?;
    let mut prepared = prepare_folder(&folder, options)?;
    prepared.source_sha256 = hash_all(&folder.contents()?, progress)?;
    let name = file_name(&input.canonicalize().unwrap_or_else(|_| input.to_owned()));
    prepared.meta.push(("name".into(), name.clone()));
    prepared.meta.push(("source".into(), name));
    then(prepared, progress)
}

fn prepare_folder<'a>(folder: &'a Folder, options: &Options) -> Result<Prepared<'a>, Error> {
    let tensors = folder.tensors()?;
    let model = arch::folder::model(&folder.config, |name| Some(tensors.get(name)?.kind))?;
    let mut plans = Vec::with_capacity(model.tensors.len());
    for mapped in &model.tensors {
        let missing = || Error::tensor(&mapped.source, "is missing");
        let source = *tensors.get(&mapped.source).ok_or_else(missing)?;
        plans.push(weights::plan(mapped, source, options.quant_of(mapped.id))?);
    }
    let used: HashSet<&str> = model.tensors.iter().map(|m| m.source.as_str()).collect();
    let mut notes = Vec::new();
    for (name, source) in &tensors {
        if used.contains(name.as_str()) || name.ends_with(".rotary_emb.inv_freq") {
            // Old files carry frequencies that follow from the configuration.
            continue;
        }
        let embed = tensors.get("model.embed_tokens.weight");
        match (name.as_str(), embed) {
            ("lm_head.weight", Some(embed)) if source == embed => {
                notes.push("lm_head.weight repeats the embedding and is stored once".into());
            }
            ("lm_head.weight", _) => {
                let why = "differs from the embedding, though tie_word_embeddings is set";
                return Err(Error::tensor(name, why));
            }
            _ => return Err(Error::tensor(name, "isn't known to this converter")),
        }
    }
    let spec = folder.tokenizer(model.config.vocab_size)?;
    let license = folder.license()?.map(|license| ("license".to_owned(), license));
    Ok(Prepared {
        architecture: model.family.name().into(),
        config: model.config,
        plans,
        tokenizer: spec.to_bytes().map_err(|e| Error::Tokenizer(e.into()))?,
        template: folder.template()?,
        defaults: folder.defaults()?,
        meta: license.into_iter().collect(),
        source_sha256: String::new(),
        notes,
    })
}

/// Sampling advice of newer files.
fn gguf_defaults(file: &Gguf<'_>) -> Result<Defaults, Error> {
    let float = |key: &str| -> Result<Option<f32>, Error> {
        match file.float(key)? {
            Some(v) if !(v.is_finite() && v >= 0.0) => Err(Error::key(key, format!("is {v}"))),
            other => Ok(other.map(|v| v as f32)),
        }
    };
    Ok(Defaults {
        temperature: float("general.sampling.temp")?,
        top_k: file.uint("general.sampling.top_k")?.and_then(|k| u32::try_from(k).ok()),
        top_p: float("general.sampling.top_p")?,
        min_p: float("general.sampling.min_p")?,
        repetition_penalty: float("general.sampling.penalty_repeat")?,
    })
}

/// Writes a prepared model.
pub(crate) fn write(
    prepared: Prepared<'_>,
    output: &Path,
    options: &Options,
    progress: &mut Watch<'_>,
) -> Result<Report, Error> {
    let Prepared { architecture, config, plans, tokenizer, template, defaults, .. } = prepared;
    let mut meta = prepared.meta;
    if let Some(name) = &options.name {
        meta.retain(|(key, _)| key != "name");
        meta.push(("name".into(), name.clone()));
    }
    for (key, value) in [
        ("architecture", architecture.as_str()),
        ("converter", CONVERTER),
        ("quant", options.quant.name()),
        ("quant_mode", options.mode.name()),
        ("source_sha256", &prepared.source_sha256),
    ] {
        if !value.is_empty() {
            meta.push((key.into(), value.into()));
        }
    }
    let names: Vec<String> = options.overrides.iter().map(Override::to_string).collect();
    if !names.is_empty() {
        meta.push(("quant_overrides".into(), names.join(" ")));
    }
    if let Mode::Calibrate(calibration) = &options.mode
        && calibration.config() != &config
    {
        return Err(Error::Input("isn't the model that was calibrated".into()));
    }
    let matrices = || plans.iter().filter(|p| matches!(p.shape, Shape::Matrix { .. }));
    if let Some(o) = options.overrides.iter().find(|o| !matrices().any(|p| o.matches(p.id))) {
        let some =
            matrices().next_back().map_or_else(String::new, |p| format!(", such as `{}`", p.id));
        let why =
            format!("has no matrix `{}`; `inspect --tensors` lists their names{some}", o.pattern);
        return Err(Error::Input(why));
    }
    if let Some(folder) = output.parent() {
        std::fs::create_dir_all(folder).map_err(|e| Error::Io(folder.to_owned(), e))?;
    }
    let mut file = FileWriter::create(output)?;
    file.config(&config)?;
    file.section(section::TOKENIZER, true, &tokenizer)?;
    if let Some(template) = &template {
        file.section(section::TEMPLATE, false, template.as_bytes())?;
    }
    if defaults != Defaults::default() {
        file.defaults(&defaults)?;
    }
    file.meta(&meta)?;
    let headers: Vec<TensorHeader> =
        plans.iter().map(|p| TensorHeader { id: p.id, kind: p.kind }).collect();
    let total: u64 = plans.iter().map(Plan::len_bytes).sum();
    let (mut done, mut tensors) = (0, Vec::with_capacity(plans.len()));
    let mut remaining = plans.iter();
    file.tensors(&config, &headers, |_, _, sink| -> Result<(), Error> {
        let Some(plan) = remaining.next() else { return Ok(()) };
        tensors.push(weights::encode(plan, &options.mode, options.threads, |bytes| {
            done += bytes.len() as u64;
            tell(progress, Stage::Convert, done, total)?;
            Ok(sink.write(bytes)?)
        })?);
        Ok(())
    })?;
    file.finish()?;
    let io = |e| Error::Io(output.to_owned(), e);
    let bytes = std::fs::metadata(output).map_err(io)?.len();
    let n_weights = tensors.iter().map(|t: &TensorReport| t.weights).sum::<u64>();
    let mut notes = prepared.notes;
    let again: Vec<&Plan<'_>> = plans.iter().filter(|p| p.requantizes()).collect();
    if !again.is_empty() {
        let mut formats: Vec<&str> = again.iter().map(|p| p.source.format()).collect();
        formats.sort_unstable();
        formats.dedup();
        notes.push(format!(
            "{} matrices were quantized before ({}) and are quantized again: what both lose adds up",
            again.len(),
            formats.join(", ")
        ));
    }
    notes
        .extend(tensors.iter().filter_map(|t| Some(format!("{}: {}", t.source, t.note.as_ref()?))));
    Ok(Report {
        architecture,
        bytes,
        n_weights,
        bits_per_weight: total as f64 * 8.0 / n_weights.max(1) as f64,
        source_sha256: prepared.source_sha256,
        tensors,
        notes,
    })
}

/// SHA-256 of one file's bytes, or of the names, lengths and bytes of several.
pub(crate) fn hash_all(
    files: &[(String, SharedBytes)],
    progress: &mut Watch<'_>,
) -> Result<String, Error> {
    let total: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let (mut hasher, mut done) = (Sha256::new(), 0);
    for (name, bytes) in files {
        if files.len() > 1 {
            hasher.update(format!("{name}\0{}\0", bytes.len()));
        }
        for piece in bytes.chunks(4 << 20) {
            hasher.update(piece);
            done += piece.len() as u64;
            tell(progress, Stage::Hash, done, total)?;
        }
    }
    Ok(hex(&hasher.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Fails if writing `output` would destroy `input`, which is read.
pub fn check_output(input: &Path, output: &Path) -> Result<(), Error> {
    match (input.canonicalize(), output.canonicalize()) {
        (Ok(a), Ok(b)) if a == b => {
            let why = Error::Input("is input and output at once".into());
            Err(Error::At(input.to_owned(), Box::new(why)))
        }
        _ => Ok(()),
    }
}
