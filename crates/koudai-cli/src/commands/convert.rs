//! `koudai convert`, also called `quantize`: a GGUF file, a Hugging Face folder or a `.koudai` file
//! becomes a `.koudai` file.

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;
use koudai::file::{FileError, ModelFile};
use koudai::{Engine, OpenOptions, SessionOptions, Trust};
use koudai_convert::{Calibration, Mode, Options, Override, PullOptions, Quant, Report};
use koudai_eval::perplexity::{self, Distance, Perplexity};
use serde_json::{Value, json};

use crate::args::{ModelArgs, TrustArgs, above_zero, read_text, threads};
use crate::{interrupt, output};

/// Convert a model to a .koudai file, quantized or as it is
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai convert model.gguf -o model.koudai\n  \
    koudai convert Qwen3-0.6B/ -o qwen3.koudai --quant q4g64\n  \
    koudai quantize model.koudai -o small.koudai --quant q4g64 --override 'embed=q8' \\\n    \
    --calibration english.txt --calibration chinese.txt --report-text news.txt")]
pub(crate) struct Args {
    /// A .gguf file, a Hugging Face folder or a .koudai file
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// How to store matrices
    #[arg(long, value_enum, default_value = "keep")]
    quant: QuantArg,
    /// Store matrices with this name in another way; * stands for any characters; may be repeated
    #[arg(long = "override", value_name = "NAME=QUANT", value_parser = override_)]
    overrides: Vec<Override>,
    /// How to choose 4- and 8-bit codes [default: calibrate with --calibration, otherwise search]
    #[arg(long, value_enum, requires_if("calibrate", "calibration"))]
    mode: Option<ModeArg>,
    /// Text like that which the model will read, to calibrate with; may be repeated
    #[arg(long, value_name = "FILE")]
    calibration: Vec<String>,
    /// Tokens to calibrate with, taken from all over the texts
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = above_zero)]
    calibration_tokens: usize,
    /// Report what quantization costs on this text, which calibration shouldn't have seen
    #[arg(long, value_name = "FILE")]
    report_text: Option<String>,
    /// Use at most this many tokens of it
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = above_zero)]
    report_tokens: usize,
    /// Pre-tokenizer of a GGUF that doesn't name its own; a wrong one makes a worse model
    #[arg(long, value_name = "NAME", value_parser = ["gpt-2", "qwen2", "llama-bpe", "smollm"])]
    pre: Option<String>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Threads [default: one for each physical core]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    threads: Option<usize>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum QuantArg {
    /// The nearest to the source, exact where that is possible
    Keep,
    /// 4 bits, groups of 64
    Q4g64,
    /// 4 bits, groups of 32
    Q4g32,
    /// 8 bits
    Q8,
    /// Half floats
    F16,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    /// Plain rounding to nearest
    Minmax,
    /// The least squared error in each group
    Search,
    /// The same, with errors weighed by the inputs that the calibration text gives
    Calibrate,
}

fn override_(text: &str) -> Result<Override, String> {
    Override::parse(text)
        .ok_or_else(|| "it must be NAME=keep, q4g64, q4g32, q8 or f16, such as head=q8".into())
}

impl Args {
    /// Fails if a signature is asked for that the input doesn't have.
    fn check_trust(&self) -> anyhow::Result<()> {
        let trust = self.trust.trust()?;
        if let Trust::Any = trust {
            return Ok(());
        }
        match ModelFile::open(&self.input).and_then(|file| file.check_trust(&trust)) {
            Err(FileError::NotKoudai | FileError::Io(..)) => {
                bail!("{}: no .koudai file, so nobody signed it", self.input.display())
            }
            result => Ok(result.map_err(|e| koudai::Error::File(self.input.clone(), e))?),
        }
    }

    /// Whom to trust was settled when the command started.
    fn open_options(&self) -> OpenOptions {
        OpenOptions { threads: self.threads, ..OpenOptions::default() }
    }

    /// The input as it is, open to be run.
    fn original(&self) -> anyhow::Result<Engine> {
        let convert = Options { pre: self.pre.clone(), ..Options::default() };
        let Some(model) = self.input.to_str().map(str::to_owned) else {
            bail!("{}: not a name in UTF-8", self.input.display());
        };
        let path = ModelArgs { model }.path_with(&PullOptions { convert, ..Default::default() })?;
        Ok(Engine::open(&path, &self.open_options())?)
    }

    fn options(&self) -> anyhow::Result<Options> {
        let quant = match self.quant {
            QuantArg::Keep => Quant::Keep,
            QuantArg::Q4g64 => Quant::Q4G64,
            QuantArg::Q4g32 => Quant::Q4G32,
            QuantArg::Q8 => Quant::Q8,
            QuantArg::F16 => Quant::F16,
        };
        let mut options = Options {
            quant,
            overrides: self.overrides.clone(),
            mode: self.mode()?,
            pre: self.pre.clone(),
            ..Options::default()
        };
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        Ok(options)
    }

    /// How codes are chosen, after the calibration text was read.
    fn mode(&self) -> anyhow::Result<Mode> {
        let unused = |name: &str| {
            koudai::Error::Parameter(format!("--calibration has no use with --mode {name}"))
        };
        match self.mode {
            Some(ModeArg::Minmax) if !self.calibration.is_empty() => Err(unused("minmax").into()),
            Some(ModeArg::Search) if !self.calibration.is_empty() => Err(unused("search").into()),
            Some(ModeArg::Minmax) => Ok(Mode::MinMax),
            _ if self.calibration.is_empty() => Ok(Mode::Search),
            _ => {
                let texts: anyhow::Result<Vec<String>> =
                    self.calibration.iter().map(|path| read_text(path)).collect();
                let (engine, texts, tokens) = (self.original()?, texts?, self.calibration_tokens);
                let mut progress = output::Progress::tokens();
                let calibration = Calibration::new(&engine, &texts, tokens, &mut |p| {
                    super::pull::show(&mut progress, p)
                })?;
                Ok(Mode::Calibrate(calibration))
            }
        }
    }
}

/// What the report measures: how far the output is from the input on a text.
struct Measure {
    original: Engine,
    windows: Vec<Vec<u32>>,
    options: perplexity::Options,
}

impl Measure {
    fn new(args: &Args, file: &str) -> anyhow::Result<Measure> {
        let text = read_text(file)?;
        let original = args.original()?;
        let options = perplexity::Options {
            context: 512.min(original.config().context_length),
            limit_tokens: Some(args.report_tokens),
            session: SessionOptions::default(),
        };
        let windows = perplexity::windows(&original, &text, &options);
        if windows.is_empty() {
            bail!("{file}: too short to predict anything");
        }
        Ok(Measure { original, windows, options })
    }

    fn run(&self, args: &Args) -> anyhow::Result<Perplexity> {
        let engine = Engine::open(&args.output, &args.open_options())?;
        let total: usize = self.windows.iter().map(|w| w.len() - 1).sum();
        let mut progress = output::Progress::tokens();
        perplexity::measure(
            &engine,
            Some(&self.original),
            &self.windows,
            &self.options,
            |_| match interrupt::requested() {
                true => bail!("interrupted"),
                false => Ok(()),
            },
            |done| progress.update("scoring", done as u64, total as u64),
        )
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // What can't work is said before the long work.
    output::check_no_input(&args.output, args.calibration.iter().chain(&args.report_text))?;
    args.check_trust()?;
    let measure = args.report_text.as_ref().map(|file| Measure::new(args, file)).transpose()?;
    let options = args.options()?;
    let mut progress = output::Progress::bytes();
    let report = koudai_convert::convert(&args.input, &args.output, &options, &mut |p| {
        super::pull::show(&mut progress, p)
    })?;
    drop(progress);
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    let measured = measure.map(|measure| measure.run(args)).transpose()?;
    match args.json {
        true => output::print_json(&document(args, &report, measured)),
        false => output::print_line(&page(args, &report, measured)),
    }
}

fn document(args: &Args, report: &Report, measured: Option<Perplexity>) -> Value {
    let error: Vec<Value> = report
        .by_role()
        .iter()
        .map(|r| {
            json!({
                "role": r.role.name(), "from": r.from, "to": r.to, "tensors": r.count,
                "bytes": r.bytes, "exact": r.exact, "max_error": r.max_error,
                "rms_error": r.rms_error,
            })
        })
        .collect();
    let mut document = json!({
        "output": output::path(&args.output),
        "architecture": report.architecture,
        "tensors": report.tensors.len(),
        "bytes": report.bytes,
        "bits_per_weight": report.bits_per_weight,
        "source_sha256": report.source_sha256,
        "notes": report.notes,
        "error": error,
    });
    if args.tensors {
        document["tensor_errors"] = report
            .tensors
            .iter()
            .map(|t| {
                json!({
                    "name": t.id.to_string(), "from": t.from, "to": t.to.name(), "bytes": t.bytes,
                    "exact": t.exact, "max_error": t.max_error, "rms_error": t.rms_error,
                    "relative_mse": t.rms_error.powi(2),
                })
            })
            .collect();
    }
    if let Some((p, Distance { kl, same_top, reference_perplexity })) =
        measured.and_then(|p| Some((p, p.distance?)))
    {
        document["report_tokens"] = json!(p.tokens);
        document["perplexity"] = json!(p.perplexity);
        document["reference_perplexity"] = json!(reference_perplexity);
        document["kl"] = json!(kl);
        document["same_top"] = json!(same_top);
    }
    document
}

fn page(args: &Args, report: &Report, measured: Option<Perplexity>) -> String {
    let error = |exact: bool, rms: f64, max: f64| match exact {
        true => "exact".into(),
        false => format!("rms {rms:.2e}, max {max:.2e}"),
    };
    let mut text = format!("{:<16}{:>6}  {:<16}{:<10}error\n", "tensor", "count", "from", "to");
    for r in report.by_role() {
        let error = error(r.exact, r.rms_error, r.max_error);
        text +=
            &format!("{:<16}{:>6}  {:<16}{:<10}{error}\n", r.role.name(), r.count, r.from, r.to);
    }
    for t in report.tensors.iter().filter(|_| args.tensors) {
        let error = error(t.exact, t.rms_error, t.max_error);
        text += &format!("{:<24}{:<16}{:<10}{error}\n", t.id.to_string(), t.from, t.to.name());
    }
    text += &format!(
        "{}: {}, {:.2} bits per weight",
        args.output.display(),
        output::megabytes(report.bytes),
        report.bits_per_weight
    );
    if let Some((p, d)) = measured.and_then(|p| Some((p, p.distance?))) {
        text += &format!(
            "\nover {} tokens: KL to the original {:.6} nats, same top token {:.2}%, perplexity \
             {:.4}, the original's {:.4}",
            p.tokens,
            d.kl,
            d.same_top * 100.0,
            p.perplexity,
            d.reference_perplexity
        );
    }
    text
}
