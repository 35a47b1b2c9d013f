//! `koudai eval`: benchmarks with the field's protocols.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use koudai_eval::evaluate::{Endpoint, Local, Model, Records, Report, Settings, evaluate};
use koudai_eval::sandbox::Sandbox;
use koudai_eval::tasks::{Item, POCKET11, Source, Task};
use serde_json::{Value, json};

use crate::args::{EngineArgs, ModelArgs, SessionArgs, above_zero};
use crate::{interrupt, output};

/// Benchmarks: how good a model is, with 95% intervals
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai eval --tasks hellaswag,arc_easy --limit 200\n  \
    koudai eval -m model.koudai --suite pocket11 --out results --json\n  \
    koudai eval --tasks ifeval --chat --endpoint http://localhost:8080/v1 --endpoint-model small\n\n\
    Data: docs/eval.md says which files each benchmark needs and where they come from.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Benchmarks, separated by commas; --list shows them
    #[arg(long, value_name = "A,B", value_delimiter = ',', required_unless_present_any = ["suite", "list"])]
    tasks: Vec<String>,
    /// A set of benchmarks and their average: pocket11
    #[arg(long, value_name = "NAME", value_parser = ["pocket11"], conflicts_with = "tasks")]
    suite: Option<String>,
    /// List the benchmarks
    #[arg(long)]
    list: bool,
    /// The folder that holds eval/, with a folder for each benchmark [default: KOUDAI_DATA, else
    /// ../shared/data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Questions of each benchmark at most, taken evenly from its subjects
    #[arg(long, value_name = "N", value_parser = above_zero, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Worked examples before each question [default: what is customary]
    #[arg(long, value_name = "N")]
    shots: Option<usize>,
    /// Draw questions and examples at random instead of taking the first
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Put questions as a user's message in the model's chat template
    #[arg(long)]
    chat: bool,
    /// Tokens of a generated answer at most [default: what is customary]
    #[arg(long, value_name = "N", value_parser = above_zero, allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// Answers generated at once
    #[arg(long, value_name = "N", default_value = "8", value_parser = above_zero, allow_negative_numbers = true)]
    batch: usize,
    /// Keep prompts, answers and verdicts in this folder, and go on from what is there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Ask this OpenAI-compatible server (up to /v1) instead of running a model here; its key, if it
    /// wants one, is read from OPENAI_API_KEY
    #[arg(long, value_name = "URL", requires = "endpoint_model")]
    endpoint: Option<String>,
    /// The server's name for the model
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    endpoint_model: Option<String>,
    /// Run programs that the model writes without containing them, where that isn't possible
    #[arg(long)]
    allow_unsandboxed: bool,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        return list(args);
    }
    let tasks = match &args.suite {
        Some(_) => POCKET11.iter().map(|name| Task::named(name)).collect(),
        None => {
            args.tasks.iter().map(|name| Task::named(name.trim())).collect::<Result<Vec<_>, _>>()
        }
    }?;
    // Everything that can be missing is looked for before a model works for hours.
    let mut ready = Vec::new();
    let mut missing = Vec::new();
    let sandbox = if tasks.iter().any(|t| t.runs_code) { Some(sandbox(args)) } else { None };
    let (sandbox, refused) = match sandbox {
        Some(Ok(sandbox)) => (Some(Arc::new(sandbox)), None),
        Some(Err(e)) => (None, Some(e)),
        None => (None, None),
    };
    for task in tasks {
        let items = match &refused {
            Some(why) if task.runs_code => Err(anyhow::anyhow!("{why:#}")),
            _ => load(args, &task, sandbox.clone()).map_err(Into::into),
        };
        match items {
            Ok(items) => ready.push((task, items)),
            Err(why) if args.suite.is_some() => missing.push((task, format!("{why:#}"))),
            Err(why) => return Err(why.context(task.name)),
        }
    }
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    }
    let (mut model, about) = open(args)?;
    let mut reports = Vec::new();
    for (task, items) in &ready {
        let mut records = match &args.out {
            Some(out) => {
                let path = out.join(format!("{}.jsonl", task.name));
                Records::open(&path, task, &settings(args, task, &about))?
            }
            None => Records::in_memory(),
        };
        let mut progress = output::Progress::items();
        let report = evaluate(task, items, &mut *model, &mut records, |done| {
            progress.update(task.name, done as u64, items.len() as u64);
        });
        drop(progress);
        let report = report.with_context(|| task.name)?;
        if !args.json {
            show(task, &report)?;
        }
        reports.push((*task, report));
    }
    finish(args, &about, &reports, &missing)
}

fn list(args: &Args) -> anyhow::Result<()> {
    if args.json {
        let tasks: Vec<Value> = Task::all()
            .map(|t| {
                json!({ "task": t.name, "about": t.about, "metrics": t.metrics, "shots": t.shots })
            })
            .collect();
        return output::print_json(&json!(tasks));
    }
    for task in Task::all() {
        let in_suite = if POCKET11.contains(&task.name) { "pocket11" } else { "" };
        output::print_line(&format!("{:<16}{:<10}{}", task.name, in_suite, task.about))?;
    }
    Ok(())
}

fn sandbox(args: &Args) -> anyhow::Result<Sandbox> {
    let launcher = std::env::current_exe().context("finding this program")?;
    match Sandbox::new(launcher) {
        Err(_) if args.allow_unsandboxed => Ok(Sandbox::uncontained()?),
        result => result.context("see --allow-unsandboxed"),
    }
}

fn data(args: &Args) -> PathBuf {
    let set = || std::env::var_os("KOUDAI_DATA").map(PathBuf::from);
    args.data.clone().or_else(set).unwrap_or_else(|| "../shared/data".into()).join("eval")
}

fn load(
    args: &Args,
    task: &Task,
    sandbox: Option<Arc<Sandbox>>,
) -> Result<Vec<Item>, koudai_eval::Error> {
    let source = Source {
        data: &data(args),
        shots: args.shots.unwrap_or(task.shots),
        chat: args.chat,
        seed: args.seed,
        max_tokens: args.max_tokens,
        sandbox,
    };
    task.load(&source, args.limit)
}

/// What answers, and what identifies it in records.
fn open(args: &Args) -> anyhow::Result<(Box<dyn Model>, Settings)> {
    let mut about = Settings::new();
    if let (Some(url), Some(model)) = (&args.endpoint, &args.endpoint_model) {
        about.insert("endpoint".into(), json!(url));
        about.insert("model".into(), json!(model));
        let key = std::env::var("OPENAI_API_KEY").ok().filter(|k| !k.is_empty());
        let cancel = interrupt::token();
        let endpoint = Endpoint::new(url, model, key, args.chat, args.batch, cancel);
        return Ok((Box::new(endpoint), about));
    }
    let engine = args.engine.open(&args.model)?;
    let hash: String = engine.file().fingerprint().iter().map(|b| format!("{b:02x}")).collect();
    about.insert("model".into(), json!(hash));
    let options = args.session.options();
    about.insert("context".into(), json!(options.context));
    about.insert("kv".into(), json!(options.kv.name()));
    about.insert("activation".into(), json!(format!("{:?}", options.precision).to_lowercase()));
    let local = Local::new(&engine, options, args.chat, args.batch, interrupt::token())?;
    Ok((Box::new(local), about))
}

/// What a task's results depend on. The number of questions isn't among it.
fn settings(args: &Args, task: &Task, about: &Settings) -> Settings {
    let mut settings = about.clone();
    settings.insert("task".into(), json!(task.name));
    settings.insert("shots".into(), json!(args.shots.unwrap_or(task.shots)));
    settings.insert("chat".into(), json!(args.chat));
    settings.insert("seed".into(), json!(args.seed));
    settings.insert("max_tokens".into(), json!(args.max_tokens));
    settings
}

fn percent(x: f64) -> String {
    format!("{:.2}%", x * 100.0)
}

fn show(task: &Task, report: &Report) -> anyhow::Result<()> {
    for (i, m) in report.metrics.iter().enumerate() {
        let name = if i == 0 { task.name } else { "" };
        let (value, ci95) = (percent(m.value), percent(m.ci95));
        output::print_line(&format!("{name:<16}{:<14}{value:>8} ±{ci95:>6}  of {}", m.name, m.n))?;
    }
    if report.truncated > 0 {
        eprintln!("{}: {} prompts lost their beginning; see --ctx", task.name, report.truncated);
    }
    Ok(())
}

/// The average over the suite, and everything as one document.
fn finish(
    args: &Args,
    about: &Settings,
    reports: &[(Task, Report)],
    missing: &[(Task, String)],
) -> anyhow::Result<()> {
    let first: Vec<f64> = reports.iter().map(|(_, r)| r.metrics[0].value).collect();
    let average = first.iter().sum::<f64>() / first.len() as f64;
    if args.json {
        let results: Vec<Value> = reports.iter().map(|(t, r)| document(args, t, r)).collect();
        let mut all = json!({ "model": about, "tasks": results });
        if args.endpoint.is_none() {
            all["file"] = json!(args.model.model);
        }
        if let Some(suite) = &args.suite {
            let missing: Vec<Value> =
                missing.iter().map(|(t, why)| json!({ "task": t.name, "why": why })).collect();
            all["suite"] = json!({
                "name": suite, "average": average, "n": first.len(), "missing": missing,
            });
        }
        output::print_json(&all)?;
    } else if let Some(suite) = &args.suite {
        for (task, why) in missing {
            output::print_line(&format!("{:<16}missing: {}", task.name, output::one_line(why)))?;
        }
        let of = format!("of {} of {} tasks", first.len(), first.len() + missing.len());
        output::print_line(&format!("{suite:<16}{:<14}{:>8}  {of}", "average", percent(average)))?;
    }
    if reports.is_empty() {
        bail!("no benchmark of the suite could be run");
    }
    if !args.json && std::io::stderr().is_terminal() && args.out.is_none() {
        eprintln!("answers weren't kept; see --out");
    }
    Ok(())
}

fn document(args: &Args, task: &Task, report: &Report) -> Value {
    let metric = |m: &koudai_eval::evaluate::Metric| json!({ "metric": m.name, "value": m.value, "n": m.n, "ci95": m.ci95 });
    let mut document = metric(&report.metrics[0]);
    document["task"] = json!(task.name);
    document["shots"] = json!(args.shots.unwrap_or(task.shots));
    document["chat"] = json!(args.chat);
    document["seconds"] = json!(report.elapsed.as_secs_f64());
    document["answered"] = json!(report.answered);
    document["truncated"] = json!(report.truncated);
    document["metrics"] = report.metrics.iter().map(metric).collect();
    if !report.groups.is_empty() {
        let groups = report.groups.iter().map(|(name, m)| (name.clone(), metric(m)));
        document["groups"] = Value::Object(groups.collect());
    }
    document
}
