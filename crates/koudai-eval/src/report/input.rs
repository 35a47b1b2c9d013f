//! What `bench`, `eval` and `search` print with `--json`, read back. Fields that older versions lack are
//! optional; numbers are finite and of a size that something measured can have.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// Our documents have some kilobytes.
const LONGEST: u64 = 16 << 20;

/// One file.
pub(super) enum Document {
    Bench(Box<Bench>),
    Eval(Eval),
    Search(Search),
}

/// A number from 0 to 10^15.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Number(pub(super) f64);

impl TryFrom<f64> for Number {
    type Error = String;
    fn try_from(value: f64) -> Result<Number, String> {
        let range = 0.0..1e15;
        range.contains(&value).then_some(Number(value)).ok_or(format!("{value} is out of range"))
    }
}

#[derive(Deserialize)]
pub(super) struct Bench {
    pub(super) model: Option<String>,
    pub(super) fingerprint: Option<String>,
    pub(super) prompt: Option<u64>,
    pub(super) generate: Option<u64>,
    pub(super) prefill_tps: Number,
    pub(super) decode_tps: Number,
    #[serde(default)]
    pub(super) depths: Vec<Depth>,
    pub(super) load_ms: Option<Number>,
    pub(super) first_token_ms: Option<Number>,
    pub(super) peak_increment_bytes: Option<Number>,
    pub(super) file_bytes: Option<Number>,
    #[serde(default)]
    pub(super) machine: Machine,
    pub(super) kv: Option<String>,
    pub(super) activation: Option<String>,
    pub(super) energy: Option<Energy>,
    pub(super) energy_unavailable: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Depth {
    pub(super) depth: Number,
    pub(super) prefill_tps: Number,
    pub(super) decode_tps: Number,
}

#[derive(Default, Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: Option<String>,
    pub(super) isa: Option<String>,
    pub(super) threads: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct Energy {
    pub(super) source: String,
    pub(super) measures: String,
    pub(super) prompt: u64,
    pub(super) generate: u64,
    pub(super) joules_per_run: Number,
    pub(super) joules_per_run_least: Number,
    pub(super) joules_per_run_most: Number,
    pub(super) joules_per_prompt_token: Number,
    pub(super) joules_per_token: Number,
    pub(super) idle_watts: Number,
    pub(super) battery: Option<Battery>,
}

#[derive(Deserialize)]
pub(super) struct Battery {
    pub(super) watt_hours: Number,
    pub(super) share_per_100_runs: Number,
    pub(super) limit_per_100_runs: Number,
}

#[derive(Deserialize)]
pub(super) struct Eval {
    /// Settings that identify what answered: `model` is a fingerprint, or a server's name for it.
    #[serde(default)]
    pub(super) model: BTreeMap<String, Value>,
    /// Where the model's file was.
    pub(super) file: Option<String>,
    pub(super) tasks: Vec<Task>,
    pub(super) suite: Option<Suite>,
}

#[derive(Deserialize)]
pub(super) struct Task {
    pub(super) task: String,
    pub(super) metric: String,
    /// `null` where nothing was answered.
    pub(super) value: Option<Number>,
    pub(super) ci95: Option<Number>,
    pub(super) n: u64,
    pub(super) shots: Option<u64>,
    pub(super) chat: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct Suite {
    pub(super) name: String,
    pub(super) average: Option<Number>,
    pub(super) n: u64,
}

#[derive(Deserialize)]
pub(super) struct Search {
    pub(super) configurations: Vec<Configuration>,
    pub(super) chosen: Option<Chosen>,
}

#[derive(Deserialize)]
pub(super) struct Configuration {
    pub(super) name: String,
    pub(super) layers: Option<u64>,
    pub(super) dim: Option<u64>,
    pub(super) parameters: Option<Number>,
    pub(super) file_bytes: Option<Number>,
    pub(super) peak_bytes: Option<Number>,
    pub(super) prefill_tps: Option<Number>,
    /// By tokens in the context.
    #[serde(default)]
    pub(super) decode: BTreeMap<String, Percentiles>,
    pub(super) meets_memory: Option<bool>,
    pub(super) meets_speed: Option<bool>,
    #[serde(default)]
    pub(super) pareto: bool,
}

#[derive(Deserialize)]
pub(super) struct Percentiles {
    pub(super) p50: Option<Number>,
    pub(super) p90: Option<Number>,
}

#[derive(Deserialize)]
pub(super) struct Chosen {
    pub(super) name: Option<String>,
    pub(super) reason: Option<String>,
}

impl Document {
    /// Reads a file and finds out which command printed it.
    pub(super) fn read(path: &Path) -> Result<Document, Error> {
        let wrong = |why: String| Error::Document(path.into(), why);
        let mut text = String::new();
        let file = File::open(path).map_err(Error::io(path))?;
        file.take(LONGEST + 1).read_to_string(&mut text).map_err(Error::io(path))?;
        if text.len() as u64 > LONGEST {
            return Err(wrong(format!(
                "longer than {} MB, so it isn't a document of ours",
                LONGEST >> 20
            )));
        }
        let value: Value =
            serde_json::from_str(&text).map_err(|e| wrong(format!("no JSON document: {e}")))?;
        let has = |key: &str| value.get(key).is_some();
        let parsed = if has("configurations") {
            parse(&text, "search").map(Document::Search)
        } else if has("tasks") {
            parse(&text, "eval").map(Document::Eval)
        } else if has("prefill_tps") && has("decode_tps") {
            parse(&text, "bench").map(|bench| Document::Bench(Box::new(bench)))
        } else {
            let keys = value.as_object().map(|o| o.keys().take(8).cloned().collect::<Vec<_>>());
            let what = keys.map_or("no object".into(), |keys| format!("keys {}", keys.join(", ")));
            Err(format!("not the --json of bench, eval or search ({what})"))
        };
        parsed.map_err(wrong)
    }
}

fn parse<T: DeserializeOwned>(text: &str, command: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| format!("like the --json of {command}, but {e}"))
}
