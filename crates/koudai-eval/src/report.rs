//! One page for those who decide: what `bench`, `eval` and `search` printed with `--json`, as static
//! HTML with pictures and tables. It needs no network and no scripts, and shows nothing that isn't in the
//! documents. Texts from documents are escaped by the template engine, never pasted. Start with [`page`].

mod chart;
mod input;

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, context};
use serde::Serialize;

use crate::Error;
use crate::energy::LIMIT_100_RUNS;
use chart::{Bar, COLOURS, Figure, Interval, Limit, Series, Spot};
use input::{Bench, Document, Eval, Number, Search, Suite, Task};

/// What decoding should exceed, in tokens per second.
pub const LIMIT_DECODE_TPS: f64 = 200.0;
/// What the peak of memory should stay under.
pub const LIMIT_PEAK_BYTES: f64 = 300e6;

const TEMPLATE: &str = include_str!("report/page.html");
const SPEED_LIMIT: Limit = (LIMIT_DECODE_TPS, "more than 200 tokens/s");

/// A page and what is on it.
#[derive(Debug)]
pub struct Page {
    /// The document.
    pub html: String,
    /// Names of the models that were measured, in the order of the page.
    pub models: Vec<String>,
}

/// Makes a page of what commands printed into `files`, in that order.
pub fn page(title: &str, files: &[PathBuf]) -> Result<Page, Error> {
    let mut subjects = Subjects::default();
    let mut searches = Vec::new();
    for path in files {
        match Document::read(path)? {
            Document::Bench(bench) => subjects.add_bench(path, *bench),
            Document::Eval(eval) => subjects.add_eval(path, eval),
            Document::Search(search) => searches.push(search),
        }
    }
    let subjects = subjects.named();
    let view = View {
        title: title.to_owned(),
        lead: lead(&subjects, &searches),
        limits: format!(
            "more than {LIMIT_DECODE_TPS:.0} tokens/s of decoding, peak memory under {:.0} MB, 100 runs \
             of 1,024 + 128 tokens under {:.0}% of a phone's battery",
            LIMIT_PEAK_BYTES / 1e6,
            LIMIT_100_RUNS * 100.0
        ),
        cards: subjects.iter().enumerate().map(|(i, subject)| card(i, subject)).collect(),
        choices: searches.iter().filter_map(choice).collect(),
        figures: figures(&subjects, &searches),
        tables: tables(&subjects, &searches),
        files: files.iter().map(|path| stem(path)).collect(),
    };
    let mut environment = Environment::new();
    // The name's ending turns escaping on.
    let html = environment
        .add_template("page.html", TEMPLATE)
        .and_then(|()| environment.get_template("page.html"))
        .and_then(|template| {
            let version = env!("CARGO_PKG_VERSION");
            template
                .render(context! { page => Serde(&view), colours => COLOURS, version => version })
        })
        .map_err(|e| Error::Unsupported(format!("the page's template: {e:#}")))?;
    Ok(Page { html, models: subjects.into_iter().map(|s| s.name).collect() })
}

/// What the template shows.
#[derive(Serialize)]
struct View {
    title: String,
    lead: Vec<String>,
    limits: String,
    cards: Vec<Card>,
    choices: Vec<String>,
    figures: Vec<Figure>,
    tables: Vec<Table>,
    files: Vec<String>,
}

/// One model in short.
#[derive(Serialize)]
struct Card {
    name: String,
    colour: usize,
    facts: Vec<Fact>,
}

#[derive(Serialize)]
struct Fact {
    label: String,
    value: String,
    note: String,
    /// Whether it is within a design limit, if there is one.
    meets: Option<bool>,
}

#[derive(Serialize)]
struct Table {
    caption: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// A model as it was measured: at most one bench run, and what it scored.
#[derive(Default)]
struct Subject {
    /// What says that two documents are about the same model.
    id: String,
    name: String,
    /// What tells it apart from others of the same name.
    details: String,
    file: String,
    bench: Option<Bench>,
    tasks: Vec<Task>,
    suites: Vec<Suite>,
}

#[derive(Default)]
struct Subjects(Vec<Subject>);

impl Subjects {
    fn add_bench(&mut self, path: &Path, bench: Bench) {
        let file = stem(path);
        let name = bench.model.as_ref().map_or(file.clone(), |model| stem(Path::new(model)));
        let id = bench.fingerprint.clone().unwrap_or_else(|| name.clone());
        let kv = bench.kv.as_ref().map(|kv| format!("kv {kv}"));
        let activation = bench.activation.as_ref().map(|a| format!("activation {a}"));
        let details = [Some(machine(&bench)), kv, activation];
        let details = details.into_iter().flatten().collect::<Vec<_>>().join(", ");
        // Scores may have come first.
        let waiting = self.0.iter_mut().find(|s| s.id == id && s.bench.is_none());
        let bench = Some(bench);
        match waiting {
            Some(subject) => {
                (subject.name, subject.details, subject.bench) = (name, details, bench);
            }
            None => self.0.push(Subject { id, name, details, file, bench, ..Subject::default() }),
        }
    }

    fn add_eval(&mut self, path: &Path, eval: Eval) {
        let text = |key: &str| eval.model.get(key).and_then(|v| v.as_str()).map(str::to_owned);
        let file = stem(path);
        let model = text("model").unwrap_or_else(|| file.clone());
        let (id, name) = match (text("endpoint"), &eval.file) {
            (Some(endpoint), _) => (format!("{endpoint} {model}"), model),
            (None, Some(file)) => (model, stem(Path::new(file))),
            (None, None) => {
                (model.clone(), format!("model {}", model.chars().take(8).collect::<String>()))
            }
        };
        let at = self.0.iter().position(|s| s.id == id).unwrap_or_else(|| {
            self.0.push(Subject { id, name, file, ..Subject::default() });
            self.0.len() - 1
        });
        self.0[at].tasks.extend(eval.tasks);
        self.0[at].suites.extend(eval.suite);
    }

    /// With names that differ: by what differs, at last by their files.
    fn named(self) -> Vec<Subject> {
        let mut subjects = self.0;
        for more in [|s: &Subject| s.details.clone(), |s: &Subject| s.file.clone()] {
            let names: Vec<String> = subjects.iter().map(|s| s.name.clone()).collect();
            for subject in &mut subjects {
                let same = names.iter().filter(|name| **name == subject.name).count();
                if same > 1 && !more(subject).is_empty() {
                    subject.name = format!("{} ({})", subject.name, more(subject));
                }
            }
        }
        subjects
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn machine(bench: &Bench) -> String {
    let m = &bench.machine;
    let threads = m.threads.map(|n| format!("{n} thread{}", if n == 1 { "" } else { "s" }));
    let parts = [m.cpu.clone(), m.isa.clone(), threads];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What was measured, and on what.
fn lead(subjects: &[Subject], searches: &[Search]) -> Vec<String> {
    let mut machines: Vec<String> = Vec::new();
    for machine in subjects.iter().filter_map(|s| s.bench.as_ref()).map(machine) {
        if !machine.is_empty() && !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let of = |n: usize| count(n, "model");
    let mut parts = Vec::new();
    let runs = subjects.iter().filter(|s| s.bench.is_some()).count();
    if runs > 0 {
        parts.push(format!("speed and memory of {}", of(runs)));
    }
    let scores: usize = subjects.iter().map(|s| s.tasks.len()).sum();
    if scores > 0 {
        let scored = subjects.iter().filter(|s| !s.tasks.is_empty()).count();
        parts.push(format!("{} of {}", count(scores, "benchmark score"), of(scored)));
    }
    let configurations: usize = searches.iter().map(|s| s.configurations.len()).sum();
    if configurations > 0 {
        parts.push(format!("{} in a search", count(configurations, "configuration")));
    }
    let parts = if parts.is_empty() { "nothing".into() } else { parts.join(", ") };
    let mut lead = vec![format!("Measured: {parts}.")];
    if !machines.is_empty() {
        lead.push(format!("Measured on: {}.", machines.join("; ")));
    }
    lead
}

fn card(index: usize, subject: &Subject) -> Card {
    let mut facts = Vec::new();
    let mut fact = |label: &str, value: String, note: String, meets: Option<bool>| {
        facts.push(Fact { label: label.to_owned(), value, note, meets });
    };
    if let Some(bench) = &subject.bench {
        let tps = bench.decode_tps.0;
        fact("Decoding", format!("{tps:.1} tokens/s"), String::new(), Some(tps > LIMIT_DECODE_TPS));
        if let Some(Number(peak)) = bench.peak_increment_bytes {
            let meets = Some(peak < LIMIT_PEAK_BYTES);
            let note = bench.file_bytes.map(|Number(b)| format!("file {}", megabytes(b)));
            fact("Peak memory", megabytes(peak), note.unwrap_or_default(), meets);
        }
        let note = bench.first_token_ms.map(|Number(ms)| format!("first token in {ms:.0} ms"));
        fact(
            "Prefill",
            format!("{:.0} tokens/s", bench.prefill_tps.0),
            note.unwrap_or_default(),
            None,
        );
        if let Some(energy) = &bench.energy {
            let tokens = format!("for {} + {} tokens", energy.prompt, energy.generate);
            fact("Energy", format!("{:.2} J", energy.joules_per_run.0), tokens, None);
            if let Some(battery) = &energy.battery {
                let share = battery.share_per_100_runs.0;
                let note = format!("of {:.1} Wh", battery.watt_hours.0);
                let meets = share < battery.limit_per_100_runs.0;
                fact("100 runs", format!("{:.2}%", share * 100.0), note, Some(meets));
            }
        }
    }
    for suite in &subject.suites {
        if let Some(Number(average)) = suite.average {
            let note = format!("average of {} benchmarks", suite.n);
            fact(&suite.name, percent(average), note, None);
        }
    }
    if subject.suites.is_empty() {
        // As many as a card can hold; all of them are in the table.
        for (task, value) in subject.tasks.iter().filter_map(|t| Some((t, t.value?.0))).take(4) {
            let half = task.ci95.map(|Number(half)| format!("± {:.1}, ", half * 100.0));
            let note = format!("{}{} questions", half.unwrap_or_default(), task.n);
            fact(&task_name(task), percent(value), note, None);
        }
    }
    Card { name: subject.name.clone(), colour: index % COLOURS, facts }
}

fn choice(search: &Search) -> Option<String> {
    let chosen = search.chosen.as_ref()?;
    let name = chosen.name.as_deref().unwrap_or("None");
    Some(match &chosen.reason {
        Some(reason) => format!("{name}: {reason}"),
        None => name.to_owned(),
    })
}

fn figures(subjects: &[Subject], searches: &[Search]) -> Vec<Figure> {
    let measured =
        || subjects.iter().enumerate().filter_map(|(i, s)| Some((i, s, s.bench.as_ref()?)));
    let mut figures = Vec::new();
    if measured().any(|(_, _, bench)| bench.depths.len() > 1) {
        let series = |value: fn(&input::Depth) -> Number| -> Vec<Series> {
            let points = |bench: &Bench| {
                let mut points: Vec<_> =
                    bench.depths.iter().map(|d| (d.depth.0, value(d).0)).collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                points
            };
            let series = measured().filter(|(_, _, bench)| !bench.depths.is_empty());
            series
                .map(|(i, s, bench)| Series {
                    index: i,
                    name: s.name.clone(),
                    points: points(bench),
                })
                .collect()
        };
        let decode = series(|depth| depth.decode_tps);
        figures.push(chart::lines("Decode speed over context", &decode, Some(SPEED_LIMIT)));
        let prefill = series(|depth| depth.prefill_tps);
        figures.push(chart::lines("Prefill speed over context", &prefill, None));
    } else {
        let bars = |value: fn(&Bench) -> f64| -> Vec<Bar> {
            let bar = |(index, s, bench): (usize, &Subject, &Bench)| Bar {
                index,
                name: s.name.clone(),
                value: value(bench),
                text: format!("{:.1}", value(bench)),
            };
            measured().map(bar).collect()
        };
        let what = "Generated tokens per second.";
        let decode = bars(|bench| bench.decode_tps.0);
        figures.extend(chart::bars("Decode speed, tokens/s", what, &decode, Some(SPEED_LIMIT)));
        let prefill = bars(|bench| bench.prefill_tps.0);
        let what = "Prompt tokens per second.";
        figures.extend(chart::bars("Prefill speed, tokens/s", what, &prefill, None));
    }
    let memory: Vec<Bar> = measured()
        .filter_map(|(index, s, bench)| {
            let Number(value) = bench.peak_increment_bytes?;
            Some(Bar { index, name: s.name.clone(), value, text: megabytes(value) })
        })
        .collect();
    let limit = (LIMIT_PEAK_BYTES, "less than 300 MB");
    figures.extend(chart::bars("Peak memory", "Over the start.", &memory, Some(limit)));
    let energy: Vec<Bar> = measured()
        .filter_map(|(index, s, bench)| {
            let Number(value) = bench.energy.as_ref()?.joules_per_run;
            Some(Bar { index, name: s.name.clone(), value, text: format!("{value:.2} J") })
        })
        .collect();
    let what = "Of a prompt and an answer, above rest.";
    figures.extend(chart::bars("Energy of a run", what, &energy, None));
    let rows = scores(subjects);
    if !rows.is_empty() {
        let names: Vec<String> = subjects.iter().map(|s| s.name.clone()).collect();
        figures.push(chart::intervals("Accuracy with 95% intervals", &names, &rows));
    }
    for search in searches {
        let spots: Vec<Spot> =
            search.configurations.iter().filter_map(|c| spot(search, c)).collect();
        if !spots.is_empty() {
            figures.push(chart::scatter("Search: speed over size", &spots, SPEED_LIMIT));
        }
    }
    figures
}

/// A row for each benchmark, in the order of their first mention.
fn scores(subjects: &[Subject]) -> Vec<(String, Vec<Interval>)> {
    let mut rows: Vec<(String, Vec<Interval>)> = Vec::new();
    for (series, subject) in subjects.iter().enumerate() {
        for task in &subject.tasks {
            // Rates of rules obeyed or answers found; anything else has no place from 0 to 100%.
            let Some(Number(value)) = task.value.filter(|value| value.0 <= 1.0) else { continue };
            let half = task.ci95.unwrap_or_default().0.min(1.0);
            let (name, point) = (task_name(task), Interval { series, value, half });
            match rows.iter_mut().find(|(row, _)| *row == name) {
                Some((_, points)) => points.push(point),
                None => rows.push((name, vec![point])),
            }
        }
    }
    rows
}

fn spot(search: &Search, configuration: &input::Configuration) -> Option<Spot> {
    let chosen = search.chosen.as_ref().and_then(|chosen| chosen.name.as_ref());
    Some(Spot {
        at: (configuration.parameters?.0, shallow(configuration)?.p50?.0),
        name: configuration.name.clone(),
        pareto: configuration.pareto,
        chosen: chosen == Some(&configuration.name),
    })
}

/// The decode speed with the shortest context.
fn shallow(configuration: &input::Configuration) -> Option<&input::Percentiles> {
    let context = |key: &String| key.parse::<u64>().unwrap_or(u64::MAX);
    configuration.decode.iter().min_by_key(|(key, _)| context(key)).map(|(_, value)| value)
}

fn tables(subjects: &[Subject], searches: &[Search]) -> Vec<Table> {
    let benches = || subjects.iter().filter_map(|s| Some((s, s.bench.as_ref()?)));
    let speeds = benches().flat_map(|(s, bench)| {
        bench.depths.iter().map(|d| {
            let numbers = [d.depth.0.to_string(), format!("{:.1}", d.prefill_tps.0)];
            row(&s.name, numbers.into_iter().chain([format!("{:.1}", d.decode_tps.0)]))
        })
    });
    let memory = benches().map(|(s, bench)| {
        let size = |value: Option<Number>| value.map_or("–".into(), |Number(b)| megabytes(b));
        let ms =
            |value: Option<Number>| value.map_or("–".into(), |Number(ms)| format!("{ms:.1} ms"));
        let sizes = [size(bench.file_bytes), size(bench.peak_increment_bytes)];
        let tokens = |n: Option<u64>| n.map_or("–".into(), |n| n.to_string());
        let lengths = format!("{} + {}", tokens(bench.prompt), tokens(bench.generate));
        let times = [ms(bench.load_ms), ms(bench.first_token_ms), lengths, machine(bench)];
        row(&s.name, sizes.into_iter().chain(times))
    });
    let energy = benches().filter_map(|(s, bench)| Some((s, bench.energy.as_ref()?)));
    let energy = energy.map(|(s, e)| {
        let joules = format!(
            "{:.2} J ({:.2} to {:.2})",
            e.joules_per_run.0, e.joules_per_run_least.0, e.joules_per_run_most.0
        );
        let each = [e.joules_per_prompt_token, e.joules_per_token].map(|j| format!("{:.4} J", j.0));
        let source = [format!("{:.2} W", e.idle_watts.0), format!("{}: {}", e.source, e.measures)];
        row(&s.name, [joules].into_iter().chain(each).chain(source))
    });
    let no_energy =
        benches().filter_map(|(s, bench)| Some(row(&s.name, [bench.energy_unavailable.clone()?])));
    let accuracy = subjects.iter().flat_map(|s| {
        s.tasks.iter().map(|t| {
            let value = t.value.map_or("–".into(), |Number(v)| percent(v));
            let half = t.ci95.map_or("–".into(), |Number(half)| format!("± {:.2}", half * 100.0));
            row(&task_name(t), [s.name.clone(), t.metric.clone(), value, half, t.n.to_string()])
        })
    });
    let mut tables = vec![
        table(
            "Speed over context, tokens/s",
            &["model", "tokens before", "prefill", "decode"],
            speeds,
        ),
        table(
            "Memory and start",
            &["model", "file", "peak memory", "open", "first token", "prompt + answer", "machine"],
            memory,
        ),
        table(
            "Energy above rest, median of three rounds",
            &["model", "a run", "prompt token", "generated token", "at rest", "source"],
            energy,
        ),
        table("Energy that couldn't be measured", &["model", "why"], no_energy),
        table(
            "Accuracy",
            &["benchmark", "model", "metric", "score", "95% interval", "questions"],
            accuracy,
        ),
    ];
    tables.extend(searches.iter().map(|search| {
        let columns = [
            "configuration",
            "layers",
            "dim",
            "parameters",
            "file",
            "peak memory",
            "prefill",
            "decode p50 (p90)",
            "memory limit",
            "speed limit",
            "not beaten",
        ];
        table("Search: configurations", &columns, search.configurations.iter().map(configuration))
    }));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn configuration(c: &input::Configuration) -> Vec<String> {
    let dash = || "–".to_owned();
    let whole = |n: Option<u64>| n.map_or_else(dash, |n| n.to_string());
    let size = |n: Option<Number>| n.map_or_else(dash, |n| megabytes(n.0));
    let limit = |meets: Option<bool>| meets.map_or_else(dash, |m| if m { "✓" } else { "✗" }.into());
    let speed = |n: Option<Number>| n.map_or_else(dash, |n| format!("{:.1}", n.0));
    let decode = shallow(c).map_or_else(dash, |d| format!("{} ({})", speed(d.p50), speed(d.p90)));
    let parameters = c.parameters.map_or_else(dash, |n| format!("{:.1} M", n.0 / 1e6));
    let pareto = if c.pareto { "✓".into() } else { String::new() };
    let cells = [whole(c.layers), whole(c.dim), parameters, size(c.file_bytes), size(c.peak_bytes)];
    let judged =
        [speed(c.prefill_tps), decode, limit(c.meets_memory), limit(c.meets_speed), pareto];
    row(&c.name, cells.into_iter().chain(judged))
}

fn table(
    caption: &str,
    columns: &[&'static str],
    rows: impl Iterator<Item = Vec<String>>,
) -> Table {
    Table { caption: caption.to_owned(), columns: columns.to_vec(), rows: rows.collect() }
}

fn row(first: &str, others: impl IntoIterator<Item = String>) -> Vec<String> {
    [first.to_owned()].into_iter().chain(others).collect()
}

/// The same benchmark with other examples or a template is another one.
fn task_name(task: &Task) -> String {
    let shots = task.shots.map(|n| format!("{n}-shot"));
    let chat = task.chat.filter(|chat| *chat).map(|_| "chat".to_owned());
    let how: Vec<String> = shots.into_iter().chain(chat).collect();
    let name = published_name(&task.task);
    if how.is_empty() { name.to_owned() } else { format!("{name} ({})", how.join(", ")) }
}

/// A benchmark's name as papers write it; tasks of users keep theirs.
fn published_name(task: &str) -> &str {
    match task {
        "hellaswag" => "HellaSwag",
        "arc_easy" => "ARC-Easy",
        "arc_challenge" => "ARC-Challenge",
        "piqa" => "PIQA",
        "winogrande" => "WinoGrande",
        "openbookqa" => "OpenBookQA",
        "commonsense_qa" => "CommonsenseQA",
        "truthfulqa_mc1" => "TruthfulQA MC1",
        "truthfulqa_mc2" => "TruthfulQA MC2",
        "mmlu" => "MMLU",
        "cmmlu" => "CMMLU",
        "ceval" => "C-Eval",
        "gsm8k" => "GSM8K",
        "mgsm_en" => "MGSM (English)",
        "mgsm_zh" => "MGSM (Chinese)",
        "bbh" => "BBH",
        "humaneval" => "HumanEval",
        "mbpp" => "MBPP",
        "ifeval" => "IFEval",
        "ifeval_zh" => "IFEval (Chinese)",
        other => other,
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn megabytes(bytes: f64) -> String {
    // A number and its unit stay on one line.
    format!("{:.1}\u{a0}MB", bytes / 1e6)
}
