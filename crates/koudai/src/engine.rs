//! An open model: weights, tokenizer and threads, shared by any number of sessions.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use koudai_kernels::Kernels;

use crate::Error;
use crate::config::Config;
use crate::file::{Defaults, FileError, ModelFile, section};
use crate::forward::{MAX_ROWS, Workspace};
use crate::kv::{KvCache, KvKind};
use crate::pool::default_threads;
use crate::session::LOGIT_ROWS;
use crate::tokenizer::Tokenizer;
use crate::trust::Trust;
use crate::weights::Weights;

/// How to open a model.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Threads, the caller's included; `None` takes one for each physical core.
    pub threads: Option<usize>,
    /// Bytes that the process may need for this model and one session; sessions that would need more
    /// are refused.
    pub memory_limit: Option<u64>,
    /// Who must have signed the file.
    pub trust: Trust,
    /// When the weights' hashes are compared.
    pub verify: Verify,
}

/// When weights are compared with their hashes. Everything else is compared when a file is opened.
///
/// What was verified had its hash at that moment: the file stays mapped, and a change on the disk
/// afterwards isn't noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verify {
    /// Not by the engine: opening takes milliseconds, and damage makes the model say other things.
    /// [`ModelFile::verify`] does it on request, on any thread.
    #[default]
    OnRequest,
    /// Each layer's before it is used for the first time, so that the first tokens come later and
    /// opening doesn't. Where something is damaged, the call fails that would have used it. A file
    /// without hashes of blocks is verified when it is opened.
    FirstUse,
    /// All before the model is open.
    Open,
}

/// An open model. Cloning is cheap and shares everything.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    file: ModelFile,
    weights: Weights,
    tokenizer: Tokenizer,
    template: Option<String>,
    defaults: Defaults,
    kernels: &'static Kernels,
    n_threads: usize,
    memory_limit: Option<u64>,
    workspace: Mutex<Workspace>,
    /// Which layers were verified, if they are on first use.
    verified: Option<Vec<AtomicBool>>,
}

/// Memory that a session will need, in bytes, worked out before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, tokenizer and other sections, mapped from the file.
    pub file: u64,
    /// Keys and values of the whole context.
    pub kv_cache: u64,
    /// Activations, attention scores and logits.
    pub buffers: u64,
    /// Token index, norms, tables and thread stacks.
    pub fixed: u64,
}

impl MemoryPlan {
    /// The sum: the peak, reached when the context is full.
    pub fn total(&self) -> u64 {
        self.file + self.kv_cache + self.buffers + self.fixed
    }
}

impl Engine {
    /// Opens a `.koudai` file: maps and validates it, starts the threads. Copies no weights, and
    /// reads them to check their hashes only as [`OpenOptions::verify`] says.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Engine, Error> {
        let file_error = |e| Error::File(path.into(), e);
        let file = ModelFile::open(path).map_err(file_error)?;
        file.check_trust(&options.trust).map_err(file_error)?;
        let verify = match options.trust {
            Trust::Any => options.verify,
            // A signature is of hashes: without comparing them, it would say nothing of the weights.
            Trust::Signed(_) => options.verify.max(Verify::FirstUse),
        };
        match verify {
            Verify::OnRequest => {}
            Verify::FirstUse if file.has_blocks() => file.verify_tree().map_err(file_error)?,
            Verify::FirstUse | Verify::Open => file.verify().map_err(file_error)?,
        }
        let on_use = verify == Verify::FirstUse && file.has_blocks();
        Engine::from_file(path, file, options, on_use)
    }

    fn from_file(
        path: &Path,
        file: ModelFile,
        options: &OpenOptions,
        verify_on_use: bool,
    ) -> Result<Engine, Error> {
        let file_error = |e| Error::File(path.into(), e);
        let tokens = file.section(section::TOKENIZER).expect("the file was validated");
        let tokenizer = Tokenizer::open(tokens).map_err(|e| Error::Tokenizer(path.into(), e))?;
        if tokenizer.vocab_size() > file.config().vocab_size {
            return Err(file_error(FileError::Section(
                section::TOKENIZER,
                format!(
                    "{} tokens, but the model has only {} embeddings",
                    tokenizer.vocab_size(),
                    file.config().vocab_size
                ),
            )));
        }
        let kernels = Kernels::detect().map_err(Error::Isa)?;
        let n_threads = options.threads.unwrap_or_else(default_threads);
        if !(1..=256).contains(&n_threads) {
            return Err(Error::Parameter(format!("threads must be 1 to 256; it is {n_threads}")));
        }
        let workspace = Workspace::new(kernels, n_threads)
            .map_err(|e| Error::Io("starting threads".into(), e))?;
        Ok(Engine {
            inner: Arc::new(Inner {
                path: path.into(),
                weights: Weights::new(&file),
                template: file.template().map_err(file_error)?,
                defaults: file.defaults().map_err(file_error)?,
                tokenizer,
                kernels,
                n_threads,
                memory_limit: options.memory_limit,
                workspace: Mutex::new(workspace),
                verified: verify_on_use
                    .then(|| file.config().layers.iter().map(|_| AtomicBool::default()).collect()),
                file,
            }),
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        self.inner.weights.config()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// Source of the model's chat template, if it has one.
    pub fn template(&self) -> Option<&str> {
        self.inner.template.as_deref()
    }

    /// Sampling as the model's makers advise.
    pub fn defaults(&self) -> &Defaults {
        &self.inner.defaults
    }

    /// The open file.
    pub fn file(&self) -> &ModelFile {
        &self.inner.file
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Threads in use, the caller's included.
    pub fn n_threads(&self) -> usize {
        self.inner.n_threads
    }

    /// Name of the kernels in use, such as `avx512`.
    pub fn isa(&self) -> &'static str {
        self.inner.kernels.name()
    }

    /// The memory that the model and one session with this context need at most.
    pub fn plan(&self, context: usize, kv: KvKind) -> Result<MemoryPlan, Error> {
        let config = self.config();
        let kv_cache = KvCache::bytes(config, kv, context).ok_or_else(|| {
            Error::Memory(format!("a context of {context} tokens can't be addressed"))
        })?;
        let buffers = Workspace::bytes(
            config,
            context.min(MAX_ROWS),
            LOGIT_ROWS,
            context,
            self.inner.n_threads,
        );
        let vectors: usize = config.n_vector_values() * 4;
        // The token index: a few dozen bytes for each character and control token, and tables.
        let tokens = self.inner.tokenizer.vocab_size() * 24;
        let threads = self.inner.n_threads * (256 << 10);
        Ok(MemoryPlan {
            file: self.inner.file.len_bytes(),
            kv_cache: kv_cache as u64,
            buffers: buffers as u64,
            fixed: (vectors + tokens + threads + (1 << 20)) as u64,
        })
    }

    /// Refuses a session that would exceed the memory limit, naming what would fit.
    pub(crate) fn check_memory(&self, context: usize, kv: KvKind) -> Result<(), Error> {
        let Some(limit) = self.inner.memory_limit else { return Ok(()) };
        let total = self.plan(context, kv)?.total();
        if total <= limit {
            return Ok(());
        }
        let fits = |kv| {
            let fits = |context: usize| self.plan(context, kv).is_ok_and(|p| p.total() <= limit);
            let (mut low, mut high) = (0, context);
            while low < high {
                let middle = (low + high).div_ceil(2);
                if fits(middle) { low = middle } else { high = middle - 1 }
            }
            low
        };
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        let (f16, q8) = (fits(KvKind::F16), fits(KvKind::Q8));
        let advice = if f16.max(q8) == 0 {
            let least = self.plan(1, KvKind::Q8)?.total();
            format!("this model needs at least {} MB", megabytes(least))
        } else {
            format!("a context of {f16} tokens would fit, or {q8} with q8 keys and values")
        };
        Err(Error::Memory(format!(
            "a context of {context} tokens with {} keys and values needs {} MB, the limit is {} MB: \
             {advice}",
            kv.name(),
            megabytes(total),
            megabytes(limit)
        )))
    }

    /// Verifies what layer `index` uses if that is to be done now; with the first layer come the
    /// tensors outside of layers.
    pub(crate) fn before_layer(&self, index: usize) -> Result<(), Error> {
        let Some(verified) = &self.inner.verified else { return Ok(()) };
        if verified[index].load(Ordering::Relaxed) {
            return Ok(());
        }
        let file = &self.inner.file;
        let used = |layer: Option<usize>| layer == Some(index) || (index == 0 && layer.is_none());
        for tensors in file.tensors().chunk_by(|a, b| used(a.id.layer) == used(b.id.layer)) {
            let (Some(first), Some(last)) = (tensors.first(), tensors.last()) else { continue };
            if used(first.id.layer) {
                file.verify_weights(first.offset..last.offset + last.len)
                    .map_err(|e| Error::File(self.inner.path.clone(), e))?;
            }
        }
        verified[index].store(true, Ordering::Relaxed);
        Ok(())
    }

    /// True if `other` is the same open model.
    pub(crate) fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.inner.weights
    }

    /// The threads and buffers, for one forward pass.
    pub(crate) fn workspace(&self) -> MutexGuard<'_, Workspace> {
        // A panic in a pass leaves only scratch behind.
        self.inner.workspace.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({}, {} threads)", self.inner.path.display(), self.inner.n_threads)
    }
}
