//! Speed, memory and energy of the engine on this machine: one warm-up, then medians.

use std::path::Path;
use std::time::Instant;

use koudai::file::ModelFile;
use koudai::{
    Engine, Error, GenerateParams, KvKind, OpenOptions, Precision, SamplingParams, Session,
    SessionOptions,
};

use crate::energy::{self, Energy, Meter, Phase, Unavailable};
use crate::machine::{Machine, read_bandwidth, reset_peak, resident_bytes};

/// Tokens of the prompt that [`energy()`] measures.
pub const ENERGY_PROMPT: usize = 1024;
/// Tokens of the answer that [`energy()`] measures.
pub const ENERGY_GENERATE: usize = 128;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens to generate.
    pub generate: usize,
    /// Tokens already in the context when measuring starts: one measurement for each.
    pub depths: Vec<usize>,
    /// Rows of a pass that verifies a draft: one measurement for each.
    pub verify: Vec<usize>,
    /// Measured runs, after one that isn't.
    pub runs: usize,
    /// How keys and values are stored.
    pub kv: KvKind,
    /// Arithmetic with quantized weights.
    pub precision: Precision,
    /// How to open the model.
    pub open: OpenOptions,
}

/// Speeds with a number of tokens already in the context.
#[derive(Clone, Debug)]
pub struct Depth {
    /// Tokens in the context before.
    pub depth: usize,
    /// Prompt tokens per second, the median.
    pub prefill_tps: f64,
    /// Generated tokens per second, the median.
    pub decode_tps: f64,
    /// Every run's prefill and decode speeds, in order.
    pub runs: Vec<(f64, f64)>,
}

/// The cost of a pass over several rows with logits for all of them, as verifying a draft needs.
#[derive(Clone, Debug)]
pub struct Verify {
    /// Rows of the pass.
    pub rows: usize,
    /// Milliseconds of the pass, the median.
    pub pass_ms: f64,
    /// The same over that of a pass of one row, measured in turns with it: the median.
    pub ratio: f64,
}

/// What was measured; medians over the runs.
#[derive(Clone, Debug)]
pub struct Report {
    /// Speeds at each depth, in the order asked for.
    pub depths: Vec<Depth>,
    /// Passes of several rows at the first depth, in the order asked for.
    pub verify: Vec<Verify>,
    /// Milliseconds to open the file, mapped and warm.
    pub load_ms: f64,
    /// Milliseconds to open the file and find the first token after 16 prompt tokens.
    pub first_token_ms: f64,
    /// Resident memory at its peak over that before opening, for a prompt and a generation; `None`
    /// where the system doesn't tell.
    pub peak_increment_bytes: Option<u64>,
    /// The same as worked out beforehand, at most.
    pub planned_bytes: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes of weights read for one decoded token.
    pub bytes_per_token: u64,
    /// Bytes per second that this machine reads from memory.
    pub bandwidth: f64,
    /// Of the file that was measured.
    pub fingerprint: [u8; 32],
    /// The machine.
    pub machine: Machine,
    /// Kernels used.
    pub isa: &'static str,
    /// Threads used.
    pub threads: usize,
}

impl Report {
    /// Bytes of weights read per second while decoding at the first depth.
    pub fn used_bandwidth(&self) -> f64 {
        self.bytes_per_token as f64 * self.depths.first().map_or(0.0, |d| d.decode_tps)
    }
}

/// Measures the model at `path`.
pub fn bench(path: &Path, options: &Options) -> Result<Report, Error> {
    let deepest = options.depths.iter().copied().max().unwrap_or(0);
    let most_rows = options.verify.iter().copied().max().unwrap_or(0);
    let wanted = options.generate.checked_add(1).map(|n| n.max(options.prompt).max(most_rows));
    let context = wanted.and_then(|n| n.checked_add(deepest)).unwrap_or(usize::MAX);
    let session_options =
        SessionOptions { context: Some(context), kv: options.kv, precision: options.precision };
    reset_peak();
    let before = resident_bytes();
    let engine = Engine::open(path, &options.open)?;
    let mut session = Session::new(&engine, &session_options)?;
    let prompt = tokens(deepest + options.prompt.max(most_rows), engine.config().vocab_size);
    let mut depths = Vec::new();
    for &depth in &options.depths {
        fill(&mut session, &prompt[..depth])?;
        let mut runs = Vec::new();
        for run in 0..=options.runs {
            let speeds = speeds(&mut session, options, depth, &prompt)?;
            if run > 0 {
                runs.push(speeds);
            }
        }
        depths.push(Depth {
            depth,
            prefill_tps: median(runs.iter().map(|r| r.0).collect()),
            decode_tps: median(runs.iter().map(|r| r.1).collect()),
            runs,
        });
    }
    let first = options.depths.first().copied().unwrap_or(0);
    fill(&mut session, &prompt[..first])?;
    let verify = options
        .verify
        .iter()
        .map(|rows| verify(&mut session, &prompt[first..first + rows], options.runs));
    let verify = verify.collect::<Result<_, _>>()?;
    let peak = resident_bytes();
    let planned_bytes = engine.plan(context, options.kv)?.total();
    let bytes_per_token = bytes_per_token(engine.file());
    let (isa, threads) = (engine.isa(), engine.n_threads());
    let (file_bytes, fingerprint) = (engine.file().len_bytes(), engine.file().fingerprint());
    drop(session);
    drop(engine);
    let (load_ms, first_token_ms) = first_token(path, options)?;
    Ok(Report {
        depths,
        verify,
        load_ms,
        first_token_ms,
        peak_increment_bytes: before.zip(peak).map(|(b, p)| p.1.saturating_sub(b.0)),
        planned_bytes,
        file_bytes,
        bytes_per_token,
        bandwidth: read_bandwidth(bytes_per_token as usize, threads),
        fingerprint,
        machine: Machine::here(),
        isa,
        threads,
    })
}

/// Measures the joules of a prompt of [`ENERGY_PROMPT`] tokens and an answer of [`ENERGY_GENERATE`]. The
/// inner error says why they can't be measured.
pub fn energy(
    path: &Path,
    options: &Options,
    meter: &mut Meter,
) -> Result<Result<Energy, Unavailable>, Error> {
    let engine = Engine::open(path, &options.open)?;
    let context = Some(ENERGY_PROMPT + ENERGY_GENERATE);
    let session_options = SessionOptions { context, kv: options.kv, precision: options.precision };
    let mut session = Session::new(&engine, &session_options)?;
    let prompt = tokens(ENERGY_PROMPT, engine.config().vocab_size);
    energy::measure(meter, |phase| match phase {
        Phase::Prefill => fill(&mut session, &prompt),
        Phase::Decode => {
            session.rewind(ENERGY_PROMPT);
            decode(&mut session, ENERGY_GENERATE, &prompt)
        }
    })
}

/// Makes the session hold these tokens.
fn fill(session: &mut Session, tokens: &[u32]) -> Result<(), Error> {
    session.rewind(0);
    if !tokens.is_empty() {
        session.append(tokens)?;
    }
    Ok(())
}

/// Passes over `tokens`, with logits for each, in turns with passes over the first of them.
fn verify(session: &mut Session, tokens: &[u32], runs: usize) -> Result<Verify, Error> {
    // Single passes are short: several for each run.
    const PASSES: usize = 8;
    let depth = session.tokens().len();
    let mut pass = |tokens: &[u32]| -> Result<f64, Error> {
        let start = Instant::now();
        for _ in 0..PASSES {
            session.append_each(tokens, |_, _| ())?;
            session.rewind(depth);
        }
        Ok(start.elapsed().as_secs_f64() * 1e3 / PASSES as f64)
    };
    let (mut passes, mut ratios) = (Vec::new(), Vec::new());
    for run in 0..=runs {
        let (one, all) = (pass(&tokens[..1])?, pass(tokens)?);
        if run > 0 {
            passes.push(all);
            ratios.push(all / one);
        }
    }
    Ok(Verify { rows: tokens.len(), pass_ms: median(passes), ratio: median(ratios) })
}

/// Prefill and decode speed of one run over a session that holds `depth` tokens.
fn speeds(
    session: &mut Session,
    options: &Options,
    depth: usize,
    prompt: &[u32],
) -> Result<(f64, f64), Error> {
    session.rewind(depth);
    let start = Instant::now();
    session.append(&prompt[depth..depth + options.prompt])?;
    let prefill = options.prompt as f64 / start.elapsed().as_secs_f64();

    session.rewind(depth);
    session.append(&prompt[..1])?;
    let start = Instant::now();
    decode(session, options.generate, prompt)?;
    Ok((prefill, options.generate as f64 / start.elapsed().as_secs_f64()))
}

/// Generates `n` tokens, one pass for each.
fn decode(session: &mut Session, n: usize, prompt: &[u32]) -> Result<(), Error> {
    let mut next = prompt[0];
    for i in 0..n {
        let logits = session.append(&[next])?;
        // Any token will do; this one depends on the result, as in real decoding.
        next = prompt[logits[i % logits.len().min(16)].to_bits() as usize % prompt.len()];
    }
    Ok(())
}

/// Milliseconds to open, and to open and find the first token after 16.
fn first_token(path: &Path, options: &Options) -> Result<(f64, f64), Error> {
    let (mut loads, mut firsts) = (Vec::new(), Vec::new());
    let ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    for run in 0..=options.runs {
        let start = Instant::now();
        let engine = Engine::open(path, &options.open)?;
        let load = ms(start);
        let session_options =
            SessionOptions { context: Some(32), kv: options.kv, precision: options.precision };
        let mut session = Session::new(&engine, &session_options)?;
        let prompt = tokens(16, engine.config().vocab_size);
        let params = GenerateParams {
            max_tokens: 1,
            sampling: SamplingParams::default(),
            ignore_end: true,
            ..Default::default()
        };
        session.generate(&prompt, &params, |_, _| std::ops::ControlFlow::Continue(()))?;
        if run > 0 {
            loads.push(load);
            firsts.push(ms(start));
        }
    }
    Ok((median(loads), median(firsts)))
}

/// Bytes of the weights that one decoded token reads in full; an untied embedding gives one row.
pub fn bytes_per_token(file: &ModelFile) -> u64 {
    let untied = !file.config().tied_head;
    let tensors = file.tensors().iter();
    tensors.filter(|t| !(untied && t.id.role == koudai::Role::Embed)).map(|t| t.len as u64).sum()
}

/// Deterministic token ids all over the vocabulary.
pub(crate) fn tokens(n: usize, vocab_size: usize) -> Vec<u32> {
    let step = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    (0..n).map(|i| (step(i) % vocab_size as u64) as u32).collect()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
