//! The `koudai-train` program, which `koudai train` calls: parses, trains, prints.
//!
//! Exit status: 0 done, 1 failed with one line on standard error, 2 wrong usage, 130 interrupted.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use koudai_train::Recipe;
use koudai_train::backend::{Device, set_threads};
use koudai_train::trainer::{Outcome, train};
use serde_json::json;

/// Train a model as a recipe says; the same command goes on where a run was stopped
#[derive(Parser)]
#[command(name = "koudai train", version)]
#[command(after_help = "Examples:\n  koudai train recipes/tiny.toml\n  \
    koudai train sft.toml --set train.steps=500 --set optimizer.lr=1e-4\n\n\
    docs/train.md has all keys of recipes.")]
struct Args {
    /// The recipe, a TOML file
    #[arg(value_name = "RECIPE.toml")]
    recipe: PathBuf,
    /// Change a key of the recipe, such as train.steps=100; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Threads [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Where to train: cpu, cuda or mps
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device)]
    device: Device,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn device(name: &str) -> Result<Device, String> {
    match name {
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        "mps" => Ok(Device::Mps),
        _ => Err("it must be cpu, cuda or mps".into()),
    }
}

static INTERRUPT: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let args = Args::parse();
    let interrupted = ctrlc::set_handler(|| {
        if INTERRUPT.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("stopping after this step; once more stops at once");
    });
    match interrupted.map_err(anyhow::Error::from).and_then(|()| run(&args)) {
        Ok(outcome) if outcome.interrupted => ExitCode::from(130),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<Outcome> {
    let recipe = Recipe::read(&args.recipe, &args.set)?;
    let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
    set_threads(args.threads.map_or_else(processors, usize::from));
    let outcome = train(&recipe, args.device, &INTERRUPT)?;
    let progress = &outcome.progress;
    if args.json {
        println!(
            "{}",
            json!({
                "output": recipe.output, "steps": progress.step, "skipped": progress.skipped,
                "tokens": progress.tokens, "seconds": progress.seconds, "loss": progress.loss,
                "held_out_loss": outcome.evaluation.map(|e| e.loss),
                "bits_per_byte": outcome.evaluation.and_then(|e| e.bits_per_byte),
                "best_held_out_loss": progress.best, "interrupted": outcome.interrupted,
                "exported": outcome.exported,
            })
        );
    } else {
        let (steps, tokens, seconds) = (progress.step, progress.tokens, progress.seconds);
        let loss = progress.loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
        println!("{steps} steps, {tokens} tokens in {seconds:.1} s{loss}");
        outcome.exported.iter().for_each(|path| println!("{}", path.display()));
    }
    Ok(outcome)
}
