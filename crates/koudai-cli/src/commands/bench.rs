//! `koudai bench`: speed, memory and energy on this machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use koudai::{KvKind, Precision};
use koudai_eval::bench::{ENERGY_GENERATE, ENERGY_PROMPT, Options, Report, bench};
use koudai_eval::energy::{self, Energy, LIMIT_100_RUNS, Meter, Round, Unavailable};
use koudai_eval::plot;
use serde_json::{Value, json};

use crate::args::{ActivationArg, EngineArgs, KvArg, ModelArgs, above_zero, positive, read_text};
use crate::{interrupt, output};

/// Measure speed, memory and energy: a warm-up, then medians of several runs
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai bench -m model.koudai -p 512 -n 128 -r 5\n  \
    koudai bench -d 0,512,2048 --plot speed.svg\n  \
    koudai bench --verify 2,4,8\n  \
    koudai bench --energy --battery-wh 15 --json")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = above_zero)]
    prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = above_zero)]
    generate: usize,
    /// Tokens already in the context; several as 0,512,2048
    #[arg(short, long, value_name = "N,…", default_value = "0", value_delimiter = ',')]
    depth: Vec<usize>,
    /// Rows of a pass that verifies a draft, several as 4,8: its time over that of one row
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = above_zero)]
    verify: Vec<usize>,
    /// Measured runs
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = above_zero)]
    runs: usize,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value = "f16")]
    kv: KvArg,
    /// Arithmetic with quantized weights
    #[arg(long, value_enum, default_value = "auto")]
    activation: ActivationArg,
    /// Measure joules too, of 1,024 tokens of prompt and 128 of answer, three times (docs/energy.md)
    #[arg(
        long,
        value_name = "SOURCE",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto"
    )]
    energy: Option<EnergyArg>,
    /// Compare those joules with a battery of so many watt-hours [default: this device's]
    #[arg(long, value_name = "WH", value_parser = positive, requires = "energy", allow_negative_numbers = true)]
    battery_wh: Option<f32>,
    /// Length of each stretch of work and of rest [default: what the source needs]
    #[arg(long, value_name = "SECONDS", value_parser = positive, requires = "energy", allow_negative_numbers = true)]
    energy_window: Option<f32>,
    /// Where /sys and /usr/bin are
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    power_root: PathBuf,
    /// Compare with an earlier run's --json
    #[arg(long, value_name = "FILE")]
    compare: Option<String>,
    /// Draw speed over depth to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Where joules are read.
#[derive(Clone, Copy, ValueEnum)]
enum EnergyArg {
    /// The first of the others that works
    Auto,
    /// Counters of x86 processors (Linux)
    Rapl,
    /// Apple's tool of that name
    Powermetrics,
    /// The battery's gauge (Linux, Android)
    Battery,
}

impl EnergyArg {
    fn kind(self) -> Option<energy::Kind> {
        match self {
            EnergyArg::Auto => None,
            EnergyArg::Rapl => Some(energy::Kind::Rapl),
            EnergyArg::Powermetrics => Some(energy::Kind::Powermetrics),
            EnergyArg::Battery => Some(energy::Kind::Battery),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = Options {
        prompt: args.prompt,
        generate: args.generate,
        depths: args.depth.clone(),
        verify: args.verify.clone(),
        runs: args.runs,
        kv: args.kv.into(),
        precision: args.activation.into(),
        open: args.engine.options()?,
    };
    let earlier = args.compare.as_deref().map(earlier).transpose()?;
    let path = args.model.path()?;
    interrupt::may_exit(true);
    let report = bench(&path, &options)?;
    let energy = args.energy.map(|source| measure_energy(args, source, &path, &options));
    let energy = energy.transpose()?;
    interrupt::may_exit(false);
    let battery_wh = args.battery_wh.map(f64::from).or_else(|| energy::capacity(&args.power_root));
    let mut document = document(args, &report);
    document["model"] = json!(output::path(&path));
    match &energy {
        Some(Ok(energy)) => {
            document["energy"] = energy_document(energy, battery_wh);
            document["joules_per_token"] = document["energy"]["joules_per_token"].clone();
        }
        Some(Err(why)) => document["energy_unavailable"] = json!(why.to_string()),
        None => {}
    }
    if let Some(file) = &args.plot {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let title =
            format!("{name}: {}, {}, {} threads", report.machine.cpu, report.isa, report.threads);
        plot::speed_over_depth(file, &title, &report.depths)
            .with_context(|| file.display().to_string())?;
    }
    let ratios = earlier.map(|earlier| ratios(&earlier, &document));
    if args.json {
        if let Some(ratios) = ratios {
            document["compared"] = ratios.into_iter().collect();
        }
        return output::print_json(&document);
    }
    output::print_line(&text(args, &report))?;
    if let Some(energy) = &energy {
        output::print_line(&energy_text(energy, battery_wh))?;
    }
    for (name, ratio) in ratios.into_iter().flatten() {
        output::print_line(&format!("{name:<24} {ratio:>8.3} × the earlier run"))?;
    }
    Ok(())
}

fn measure_energy(
    args: &Args,
    source: EnergyArg,
    path: &Path,
    options: &Options,
) -> anyhow::Result<Result<Energy, Unavailable>> {
    let mut meter = match Meter::open(&args.power_root, source.kind()) {
        Ok(meter) => meter,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(seconds) = args.energy_window {
        meter.set_window(Duration::try_from_secs_f32(seconds).context("--energy-window")?);
    }
    Ok(koudai_eval::bench::energy(path, options, &mut meter)?)
}

fn document(args: &Args, r: &Report) -> Value {
    let (measured, used) = (r.bandwidth / 1e9, r.used_bandwidth() / 1e9);
    let runs = |runs: &[(f64, f64)]| -> Vec<Value> {
        let run = |(p, d): &(f64, f64)| json!({ "prefill_tps": p, "decode_tps": d });
        runs.iter().map(run).collect()
    };
    let depths: Vec<Value> = r
        .depths
        .iter()
        .map(|d| {
            json!({ "depth": d.depth, "prefill_tps": d.prefill_tps, "decode_tps": d.decode_tps,
                    "runs": runs(&d.runs) })
        })
        .collect();
    let verify: Vec<Value> = r
        .verify
        .iter()
        .map(|v| json!({ "rows": v.rows, "pass_ms": v.pass_ms, "ratio": v.ratio }))
        .collect();
    let first = &r.depths[0];
    json!({
        "prompt": args.prompt,
        "generate": args.generate,
        "prefill_tps": first.prefill_tps,
        "decode_tps": first.decode_tps,
        "depths": depths,
        "verify": verify,
        "kv": KvKind::from(args.kv).name(),
        "activation": format!("{:?}", Precision::from(args.activation)).to_lowercase(),
        "fingerprint": output::hex(&r.fingerprint),
        "energy": null,
        "joules_per_token": null,
        "load_ms": r.load_ms,
        "first_token_ms": r.first_token_ms,
        "peak_increment_bytes": r.peak_increment_bytes,
        "planned_bytes": r.planned_bytes,
        "file_bytes": r.file_bytes,
        "runs": runs(&first.runs),
        "machine": { "cpu": r.machine.cpu, "isa": r.isa, "threads": r.threads,
                     "processors": r.machine.processors },
        "bandwidth": { "measured_gbps": measured, "used_gbps": used, "fraction": used / measured },
    })
}

fn energy_document(energy: &Energy, battery_wh: Option<f64>) -> Value {
    let rounds: Vec<Value> = energy
        .rounds
        .iter()
        .map(|r| {
            json!({ "idle_watts": r.idle_watts, "prefill_joules": r.prefill_joules,
                    "decode_joules": r.decode_joules, "joules": r.joules() })
        })
        .collect();
    let (joules, (least, most)) = (energy.median(Round::joules), energy.spread());
    let battery = battery_wh.map(|watt_hours| {
        let share = energy::share(joules, watt_hours);
        json!({ "watt_hours": watt_hours, "share_per_run": share,
                "share_per_100_runs": share * 100.0, "limit_per_100_runs": LIMIT_100_RUNS,
                "within_limit": share * 100.0 < LIMIT_100_RUNS })
    });
    json!({
        "source": energy.kind.name(),
        "measures": energy.kind.measures(),
        "prompt": ENERGY_PROMPT,
        "generate": ENERGY_GENERATE,
        "joules_per_run": joules,
        "joules_per_run_least": least,
        "joules_per_run_most": most,
        "prefill_joules": energy.median(|r| r.prefill_joules),
        "decode_joules": energy.median(|r| r.decode_joules),
        "joules_per_prompt_token": energy.median(|r| r.prefill_joules) / ENERGY_PROMPT as f64,
        "joules_per_token": energy.median(|r| r.decode_joules) / ENERGY_GENERATE as f64,
        "idle_watts": energy.median(|r| r.idle_watts),
        "rounds": rounds,
        "battery": battery,
    })
}

fn energy_text(energy: &Result<Energy, Unavailable>, battery_wh: Option<f64>) -> String {
    let energy = match energy {
        Ok(energy) => energy,
        Err(why) => return format!("energy        not measured: {why}"),
    };
    let (joules, (least, most)) = (energy.median(Round::joules), energy.spread());
    let mut text = format!(
        "energy        {joules:>10.2} J for {ENERGY_PROMPT} + {ENERGY_GENERATE} tokens, {least:.2} to \
         {most:.2} in {} rounds, over {:.2} W at rest\n\
         per token     {:>10.4} J of the prompt, {:.4} J generated\n\
         measured      {}: {}",
        energy.rounds.len(),
        energy.median(|r| r.idle_watts),
        energy.median(|r| r.prefill_joules) / ENERGY_PROMPT as f64,
        energy.median(|r| r.decode_joules) / ENERGY_GENERATE as f64,
        energy.kind.name(),
        energy.kind.measures(),
    );
    text += &match battery_wh {
        Some(wh) => {
            let percent = energy::share(joules, wh) * 100.0;
            format!(
                "\nbattery       {percent:>10.4}% of {wh:.1} Wh a run, {:.2}% for 100 runs; a phone's \
                 should be less than {:.0}%",
                percent * 100.0,
                LIMIT_100_RUNS * 100.0
            )
        }
        None => "\nbattery       of unknown size; see --battery-wh".into(),
    };
    text
}

fn text(args: &Args, r: &Report) -> String {
    let (measured, used) = (r.bandwidth / 1e9, r.used_bandwidth() / 1e9);
    let mut text = format!("{}, {}, {} threads\n", r.machine.cpu, r.isa, r.threads);
    for d in &r.depths {
        let at = if d.depth > 0 { format!(" after {}", d.depth) } else { String::new() };
        text += &format!("prefill {:>5} {:>10.1} tokens/s{at}\n", args.prompt, d.prefill_tps);
        text += &format!("decode {:>6} {:>10.1} tokens/s{at}\n", args.generate, d.decode_tps);
    }
    for v in &r.verify {
        let (rows, ms, ratio) = (v.rows, v.pass_ms, v.ratio);
        text += &format!("verify {rows:>6} {ms:>10.2} ms, {ratio:.2} × a pass of one row\n");
    }
    let peak = r.peak_increment_bytes.map_or("not measurable here".into(), output::megabytes);
    text += &format!(
        "open          {:>10.1} ms\n\
         first token   {:>10.1} ms (open, 16 prompt tokens)\n\
         bandwidth     {used:>10.1} GB/s of weights, {:.0}% of the {measured:.1} measured\n\
         peak memory   {peak:>13} over the start; file {}, planned at most {}",
        r.load_ms,
        r.first_token_ms,
        used / measured * 100.0,
        output::megabytes(r.file_bytes),
        output::megabytes(r.planned_bytes),
    );
    text
}

fn earlier(path: &str) -> anyhow::Result<Value> {
    let text = read_text(path)?;
    serde_json::from_str(&text).with_context(|| format!("{path}: not the --json of a bench run"))
}

/// Each number that both runs have, this one over the earlier.
fn ratios(earlier: &Value, now: &Value) -> Vec<(String, f64)> {
    let names = [
        "prefill_tps",
        "decode_tps",
        "load_ms",
        "first_token_ms",
        "peak_increment_bytes",
        "file_bytes",
        "joules_per_token",
    ];
    let ratio = |name: &str| Some(now[name].as_f64()? / earlier[name].as_f64()?);
    names.iter().filter_map(|name| Some((name.to_string(), ratio(name)?))).collect()
}
