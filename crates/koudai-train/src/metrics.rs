//! What a run tells while it runs: lines of JSON in `metrics.jsonl`, events for TensorBoard, and a line
//! on a terminal.
//!
//! After a resumption lines of steps that are done again are dropped first, so that `metrics.jsonl`
//! reads as if the run had never stopped. TensorBoard does that by itself: each start has its own file
//! of events, and later ones count where steps repeat.

mod tensorboard;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use koudai::PartialFile;
use serde_json::{Value, json};

use crate::stage::{Evaluation, Step};

/// One step as it is logged.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Steps done, this one included.
    pub step: u64,
    /// What its gradient was made of.
    pub of: Step,
    /// Norm of the gradient before clipping.
    pub norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Its update was left out.
    pub skipped: bool,
    /// Tokens seen in all.
    pub tokens: u64,
}

/// Where metrics go.
pub struct Metrics {
    path: PathBuf,
    file: File,
    events: tensorboard::Events,
    bar: ProgressBar,
    /// Steps of the run.
    steps: u64,
    started: Instant,
    /// Tokens before this process.
    tokens_before: Option<u64>,
}

impl Metrics {
    /// Goes on with the file in `folder` after `step` steps.
    pub fn open(folder: &Path, step: u64, steps: u64) -> Result<Metrics> {
        let path = folder.join("metrics.jsonl");
        let open = || -> std::io::Result<File> {
            let old = if step > 0 && path.exists() {
                std::fs::read_to_string(&path)?
            } else {
                String::new()
            };
            let of_past = |line: &&str| {
                let value: Result<Value, _> = serde_json::from_str(line);
                value.is_ok_and(|v| v["step"].as_u64().is_some_and(|s| s <= step))
            };
            let kept: String = old.lines().filter(of_past).flat_map(|line| [line, "\n"]).collect();
            PartialFile::write(&path, kept.as_bytes())?;
            File::options().append(true).open(&path)
        };
        let file = open().with_context(|| path.display().to_string())?;
        let style = ProgressStyle::with_template("{wide_bar} {msg}")?;
        let bar = ProgressBar::new(steps).with_style(style).with_position(step);
        let events = tensorboard::Events::create(&folder.join("events"))?;
        Ok(Metrics { path, file, events, bar, steps, started: Instant::now(), tokens_before: None })
    }

    /// Shows a step, and logs it if `log`.
    pub fn step(&mut self, m: &Measured, log: bool) -> Result<()> {
        let before = *self.tokens_before.get_or_insert(m.tokens - m.of.tokens);
        let rate = (m.tokens - before) as f64 / self.started.elapsed().as_secs_f64();
        let left = (self.steps - m.step) as f64 * m.of.tokens as f64 / rate.max(1e-9);
        self.bar.set_position(m.step);
        self.bar.set_message(format!(
            "{}/{}  loss {:.4}  {:.0} tokens/s  {} left",
            m.step,
            self.steps,
            m.of.loss,
            rate,
            HumanDuration(Duration::from_secs_f64(left.min(1e9)))
        ));
        if !log {
            return Ok(());
        }
        self.events.scalars(
            m.step,
            &[
                ("train/loss", m.of.loss),
                ("train/lr", m.lr),
                ("train/norm", m.norm),
                ("train/tokens_per_s", rate),
            ],
        )?;
        self.line(json!({
            "step": m.step, "loss": m.of.loss, "lr": m.lr, "norm": m.norm, "skipped": m.skipped,
            "targets": m.of.targets, "tokens": m.tokens, "tokens_per_s": rate.round(),
        }))
    }

    /// Logs what held-out data says.
    pub fn evaluation(&mut self, step: u64, evaluation: &Evaluation) -> Result<()> {
        let bits = evaluation.bits_per_byte;
        let text = bits.map_or(String::new(), |bits| format!(", {bits:.4} bits per byte"));
        self.say(&format!("step {step}: held-out loss {:.4}{text}", evaluation.loss));
        self.events.scalars(step, &[("held_out/loss", evaluation.loss)])?;
        if let Some(bits) = bits {
            self.events.scalars(step, &[("held_out/bits_per_byte", bits)])?;
        }
        self.line(json!({
            "step": step, "held_out_loss": evaluation.loss, "bits_per_byte": bits,
        }))
    }

    /// Prints a line on standard error, above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    fn line(&mut self, value: Value) -> Result<()> {
        writeln!(self.file, "{value}").with_context(|| self.path.display().to_string())
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
