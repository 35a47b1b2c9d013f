//! One configuration on the real engine, in a process of its own.
//!
//! Speed doesn't depend on what weights say, so the model is random; it is written, measured and
//! removed. Memory that other measurements left would count, so the launcher (the `koudai` command,
//! called with [`ENTRY`]) opens it in a fresh process. Start with [`Lab`].

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use koudai::kernels::Kind;
use koudai::{CancelToken, Engine, KvKind, OpenOptions, Session, SessionOptions};
use koudai_convert::synthetic::{SyntheticSpec, byte_tokenizer, write_until};
use serde::{Deserialize, Serialize};

use super::grid::{Candidate, ModelShape};
use crate::machine::{available_memory, free_disk, reset_peak, resident_bytes};
use crate::{Error, bench};

/// The argument with which the launcher is called; what follows goes to [`run`].
pub const ENTRY: &str = "search-measure";

/// Name of the model that is measured, and the beginning of its name while it is written.
const MODEL: &str = "model.koudai";

/// How often a measurement is looked at, to end it if it is cancelled.
const POLL: Duration = Duration::from_millis(50);

/// How a configuration is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Tokens in the context when decoding is measured, ascending.
    pub contexts: Vec<usize>,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens decoded in a row.
    pub generate: usize,
    /// Times that a prompt is run, and that tokens are decoded in each context.
    pub repeats: usize,
    /// Threads of the engine.
    pub threads: usize,
}

impl Plan {
    /// Tokens that a session must hold.
    pub(super) fn longest(&self) -> usize {
        let deepest = self.contexts.iter().max().copied().unwrap_or(0);
        self.prompt.max(deepest + self.generate)
    }
}

/// What a configuration was measured to do, or is predicted to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Size of the file.
    pub file_bytes: u64,
    /// Prompt tokens per second, the median.
    pub prefill_tps: f64,
    /// Decoding, for each context of the plan.
    pub contexts: Vec<AtContext>,
}

/// Decoding with so many tokens in the context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtContext {
    /// Tokens in the context before.
    pub context: usize,
    /// Milliseconds of a token, the median.
    pub p50_ms: f64,
    /// Milliseconds that nine of ten tokens don't exceed.
    pub p90_ms: f64,
    /// The most memory so far over that before opening; where the system doesn't tell, the most that
    /// the engine planned for.
    pub peak_bytes: u64,
}

impl AtContext {
    /// Tokens per second, the median.
    pub fn tps(&self) -> f64 {
        1e3 / self.p50_ms
    }
}

/// Where models are written and measured.
pub struct Lab {
    launcher: PathBuf,
    folder: PathBuf,
    plan: Plan,
    cancel: CancelToken,
}

impl Lab {
    /// A lab in `folder`, which is made now and removed at the end. `launcher` calls [`run`] when its
    /// first argument is [`ENTRY`].
    pub fn new(
        launcher: PathBuf,
        folder: PathBuf,
        plan: Plan,
        cancel: CancelToken,
    ) -> Result<Lab, Error> {
        std::fs::create_dir_all(&folder).map_err(|e| Error::Io(folder.clone(), e))?;
        let lab = Lab { launcher, folder, plan, cancel };
        // A search that was killed left its model.
        lab.remove_models();
        Ok(lab)
    }

    fn remove_models(&self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(MODEL.as_bytes()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Bytes of disk that measuring this configuration takes at most.
    pub fn disk_bytes(shape: &ModelShape) -> u64 {
        // Hashes of blocks are 0.2% of the weights; the rest is the tokenizer, and what is fixed.
        shape.weight_bytes() / 100 * 101 + shape.vocab as u64 * 32 + (1 << 20)
    }

    /// Bytes of memory that it takes at most, roughly: the file, the cache, a pass of many rows and
    /// what is fixed.
    fn memory_bytes(&self, shape: &ModelShape) -> u64 {
        let row = 16 * (shape.dim + shape.ffn_dim + shape.q_dim()) as u64;
        let logits = 64 * shape.vocab as u64;
        Lab::disk_bytes(shape) + shape.kv_bytes(self.plan.longest()) + 256 * row + logits
    }

    /// Fails if one of these configurations needs more disk than is free, or more memory than is
    /// free or than `most_memory`.
    pub fn check_room(
        &self,
        candidates: &[&Candidate],
        most_memory: Option<u64>,
    ) -> Result<(), Error> {
        let memory = available_memory().into_iter().chain(most_memory).min();
        let disk = free_disk(&self.folder);
        for Candidate { name, shape } in candidates {
            let (needs_disk, needs_memory) = (Lab::disk_bytes(shape), self.memory_bytes(shape));
            for (what, needs, has) in [("disk", needs_disk, disk), ("memory", needs_memory, memory)]
            {
                if let Some(has) = has.filter(|has| *has < needs) {
                    return Err(Error::Unsupported(format!(
                        "configuration `{name}` needs {} MB of {what} to be measured, {} MB may be \
                         used: lower max_parameters, or measure fewer",
                        needs.div_ceil(1_000_000),
                        has / 1_000_000
                    )));
                }
            }
        }
        Ok(())
    }

    /// Measures a configuration.
    pub fn measure(&self, shape: &ModelShape) -> Result<Measurement, Error> {
        let path = self.folder.join(MODEL);
        let spec = SyntheticSpec {
            config: shape.config(self.plan.longest()),
            kind: Kind::Q4G64,
            seed: 1,
            tokenizer: byte_tokenizer(shape.vocab),
            template: None,
        };
        write_until(&path, &spec, &self.cancel).map_err(|e| match e {
            koudai_convert::Error::Cancelled => Error::Cancelled,
            e => Error::Unsupported(e.to_string()),
        })?;
        let measured = self.launch(&path);
        self.remove_models();
        measured
    }

    fn launch(&self, model: &Path) -> Result<Measurement, Error> {
        let io = |e| Error::Io(self.launcher.clone(), e);
        let plan = serde_json::to_string(&self.plan).expect("numbers are JSON");
        let mut command = Command::new(&self.launcher);
        command.arg(ENTRY).arg(model).arg(plan);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().map_err(io)?);
        let status = loop {
            if let Some(status) = child.0.try_wait().map_err(io)? {
                break status;
            }
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(POLL);
        };
        // Ctrl-C in a terminal reaches the child too, and may end it first.
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let (mut out, mut err) = (String::new(), String::new());
        let pipes = (child.0.stdout.take(), child.0.stderr.take());
        if let (Some(mut stdout), Some(mut stderr)) = pipes {
            stdout.read_to_string(&mut out).and(stderr.read_to_string(&mut err)).map_err(io)?;
        }
        serde_json::from_str(&out).map_err(|_| {
            let why = err.lines().last().unwrap_or("it said nothing").to_owned();
            Error::Unsupported(format!("the measuring process ended ({status}): {why}"))
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.remove_models();
        // What others put there stays.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// A process that doesn't outlive its guard.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Neither can fail unless it ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The measuring process: takes the path of a model and a [`Plan`], and gives a [`Measurement`], both
/// as JSON.
pub fn run(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<String, Error> {
    // It must not go on when nobody waits for it, and disturb the next measurement.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let wrong = || Error::Unsupported(format!("{ENTRY} is called by `koudai search`"));
    let path = arguments.next().ok_or_else(wrong)?;
    let plan = arguments.next().and_then(|plan| plan.into_string().ok()).ok_or_else(wrong)?;
    let plan: Plan = serde_json::from_str(&plan).map_err(|_| wrong())?;
    let measured = measure(Path::new(&path), &plan)?;
    Ok(serde_json::to_string(&measured).expect("numbers are JSON"))
}

/// Measures a model in this process.
pub fn measure(path: &Path, plan: &Plan) -> Result<Measurement, Error> {
    reset_peak();
    let before = resident_bytes();
    let options = OpenOptions { threads: Some(plan.threads), ..Default::default() };
    let engine = Engine::open(path, &options)?;
    let session = SessionOptions { context: Some(plan.longest()), ..Default::default() };
    let mut session = Session::new(&engine, &session)?;
    let text = bench::tokens(plan.longest(), engine.config().vocab_size);
    let mut contexts = Vec::new();
    for &context in &plan.contexts {
        session.set_prompt(&text[..context])?;
        let mut times = Vec::new();
        for _ in 0..plan.repeats {
            session.rewind(context);
            for next in &text[context..context + plan.generate] {
                let start = Instant::now();
                session.append(std::slice::from_ref(next))?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let peak = before.zip(resident_bytes()).map(|(before, now)| now.1.saturating_sub(before.0));
        contexts.push(AtContext {
            context,
            p50_ms: quantile(&mut times, 0.5),
            p90_ms: quantile(&mut times, 0.9),
            peak_bytes: match peak {
                Some(peak) => peak,
                None => engine.plan(context, KvKind::F16)?.total(),
            },
        });
    }
    let mut rates = Vec::new();
    for _ in 0..plan.repeats {
        session.rewind(0);
        let start = Instant::now();
        session.append(&text[..plan.prompt])?;
        rates.push(plan.prompt as f64 / start.elapsed().as_secs_f64());
    }
    Ok(Measurement {
        file_bytes: engine.file().len_bytes(),
        prefill_tps: bench::median(rates),
        contexts,
    })
}

/// The smallest of the values that at least this share of them don't exceed.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1]
}
