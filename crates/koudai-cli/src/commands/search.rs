//! `koudai search`: which architecture to train for this machine.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Context;
use koudai::PartialFile;
use koudai_eval::plot;
use koudai_eval::search::{
    Configuration, DEFAULT, Grid, Options, Study, csv, document, quality, search,
};

use crate::args::above_zero;
use crate::{interrupt, output};

/// Architecture selection: measure or predict a grid of configurations, and choose one under limits
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai search --measure 20 --out results\n  \
    koudai search --default > grid.toml\n  \
    koudai search grid.toml --out results --decode-tps 150\n  \
    koudai search large.toml --out results --measure 0 --json\n\n\
    Grids, files and predictions are explained in docs/search.md.")]
pub(crate) struct Args {
    /// What to look at; --default shows all keys [default: that grid]
    #[arg(value_name = "GRID.toml")]
    grid: Option<PathBuf>,
    /// Print the default grid
    #[arg(long, exclusive = true)]
    default: bool,
    /// Configurations to measure now at most, spread over the grid; the others are predicted, and 0
    /// only predicts [default: all]
    #[arg(long, value_name = "N")]
    measure: Option<usize>,
    /// Keep measurements in this folder and go on from what is there; write search.json, search.csv
    /// and search.svg to it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Choose by these losses of small twins, lines of JSON with name, seed and loss
    #[arg(long, value_name = "FILE")]
    quality: Option<PathBuf>,
    /// Peak memory that a configuration must stay below, instead of the grid's
    #[arg(long, value_name = "MB", value_parser = above_zero)]
    peak_mb: Option<usize>,
    /// Speed that a configuration must exceed in decoding, instead of the grid's
    #[arg(long, value_name = "TOKENS/S", value_parser = above_zero)]
    decode_tps: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.default {
        return output::print(DEFAULT);
    }
    let mut grid = match &args.grid {
        Some(path) => Grid::read(path)?,
        None => Grid::standard(),
    };
    if let Some(mb) = args.peak_mb {
        grid.limits.peak_mb = mb as f64;
    }
    if let Some(tps) = args.decode_tps {
        grid.limits.decode_tps = tps as f64;
    }
    let options = Options {
        launcher: std::env::current_exe().context("finding this program")?,
        out: args.out.clone(),
        count: args.measure,
        quality: args.quality.as_deref().map(quality::read).transpose()?,
        cancel: interrupt::token(),
    };
    let mut bar = output::Progress::items();
    let study = search(&grid, &options, |p| {
        if p.done == 0 && std::io::stderr().is_terminal() {
            let disk = output::megabytes(p.disk_bytes);
            eprintln!(
                "{} configurations to measure, one at a time, with {disk} of disk at most",
                p.total
            );
        }
        bar.update("measuring", p.done as u64, p.total as u64);
    });
    drop(bar);
    let study = study?;
    if let Some(out) = &args.out {
        keep(&study, out).with_context(|| out.display().to_string())?;
    }
    match args.json {
        true => output::print_json(&document(&study)),
        false => output::print_line(&text(&study)),
    }
}

/// Writes the three files of results.
fn keep(study: &Study, out: &Path) -> anyhow::Result<()> {
    let json = format!("{}\n", document(study));
    PartialFile::write(&out.join("search.json"), json.as_bytes())?;
    PartialFile::write(&out.join("search.csv"), &csv(study)?)?;
    plot::configurations(&out.join("search.svg"), study)?;
    Ok(())
}

/// A table, what predictions are worth, and what to build.
fn text(study: &Study) -> String {
    let mut text = format!(
        "{}, {}, {} threads; p50 at contexts {}\n",
        study.machine.cpu,
        study.isa,
        study.plan.threads,
        study.plan.contexts.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    );
    let contexts: String =
        study.plan.contexts.iter().map(|c| format!("{:>9}", format!("tps@{c}"))).collect();
    text += &format!(
        "{:<14}{:>9}{:>10}{:>10}{:>10}{contexts}  limits\n",
        "name", "params M", "file MB", "peak MB", "prefill"
    );
    for c in &study.configurations {
        text += &row(study, c);
    }
    text += "limits: m memory, s speed; * front; ~ predicted\n";
    for law in study.predictor.iter().flat_map(|p| &p.laws) {
        let errors = &law.leave_one_out;
        text += &format!(
            "{:<26}left out and predicted: {:.1}% off on average, {:.1}% at most, of {}\n",
            law.quantity,
            errors.mean * 100.0,
            errors.max * 100.0,
            errors.n
        );
    }
    let choice = &study.choice;
    text += &format!(
        "{}: {}",
        if choice.name.is_some() { "chosen" } else { "no choice" },
        choice.reason
    );
    text
}

fn row(study: &Study, c: &Configuration) -> String {
    let mark = |yes: bool, mark: char| if yes { mark } else { '-' };
    let p = &c.performance;
    let speeds: String = p.contexts.iter().map(|at| format!("{:>9.1}", at.tps())).collect();
    let marks = [
        mark(c.meets_memory, 'm'),
        mark(c.meets_speed, 's'),
        mark(c.pareto, '*'),
        mark(!c.measured, '~'),
    ];
    let chosen = if study.choice.name.as_ref() == Some(&c.name) { "  chosen" } else { "" };
    format!(
        "{:<14}{:>9.1}{:>10.1}{:>10.1}{:>10.1}{speeds}  {}{chosen}\n",
        c.name,
        c.parameters as f64 / 1e6,
        p.file_bytes as f64 / 1e6,
        c.peak_bytes as f64 / 1e6,
        p.prefill_tps,
        marks.iter().collect::<String>(),
    )
}
