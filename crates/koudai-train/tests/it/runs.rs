//! Whole runs: they learn, they resume exactly, they end with one clear line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use koudai::kernels::Kind as MatrixKind;
use koudai_train::Recipe;
use koudai_train::backend::{Device, set_threads};
use koudai_train::trainer::{Outcome, train};
use serde_json::Value;

use crate::models;

/// A folder with a tiny model, some text and a recipe.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        set_threads(1);
        let folder = tempfile::tempdir().unwrap();
        let (_, config) = models::configs().into_iter().find(|(name, _)| *name == "qwen3").unwrap();
        let path = models::write(folder.path(), "start", &config, MatrixKind::F32);
        std::fs::rename(path, folder.path().join("start.koudai")).unwrap();
        let line =
            |i: u32| format!("{{\"text\": \"line {i}: the cat sat on mat {}\"}}\n", i * 7 % 13);
        std::fs::write(folder.path().join("a.jsonl"), (0..80).map(line).collect::<String>())
            .unwrap();
        let recipe = "\
stage = 'pretrain'
seed = 3
output = 'out'
[model]
from = 'start.koudai'
[data]
sources = [{ path = 'a.jsonl' }]
held_out = 0.1
[train]
steps = 12
length = 32
rows = 2
accumulate = 2
log_every = 1
save_every = 5
[optimizer]
lr = 3e-3
[evaluate]
every = 4
rows = 8
";
        std::fs::write(folder.path().join("recipe.toml"), recipe).unwrap();
        Bench { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn recipe(&self, changes: &[&str]) -> Recipe {
        let changes: Vec<String> = changes.iter().map(|c| c.to_string()).collect();
        Recipe::read(&self.path("recipe.toml"), &changes).unwrap()
    }

    fn train(&self, changes: &[&str]) -> anyhow::Result<Outcome> {
        train(&self.recipe(changes), Device::Cpu, &AtomicBool::new(false))
    }

    /// The program with one thread.
    fn program(&self, changes: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_koudai-train"));
        command.arg(self.path("recipe.toml")).args(["--threads", "1"]);
        changes.iter().for_each(|change| {
            command.args(["--set", change]);
        });
        command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        command
    }
}

/// Everything in `metrics.jsonl` that doesn't depend on time.
fn curve(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("tokens_per_s");
        value
    };
    text.lines().map(line).collect()
}

#[test]
fn one_batch_is_learned_by_heart() {
    let bench = Bench::new();
    let line = "{\"text\": \"one two three four five six seven eight nine ten\"}\n";
    std::fs::write(bench.path("a.jsonl"), line).unwrap();
    for optimizer in ["adamw", "muon"] {
        let outcome = bench
            .train(&[
                "data.held_out=0.0",
                "evaluate.every=0",
                "train.steps=80",
                "train.length=64",
                "train.rows=1",
                "optimizer.lr=0.01",
                "optimizer.weight_decay=0.0",
                &format!("optimizer.kind='{optimizer}'"),
                &format!("output='{optimizer}'"),
            ])
            .unwrap();
        let loss = outcome.progress.loss.unwrap();
        assert!(loss < 0.05, "{optimizer}: {loss}");
    }
}

#[test]
fn accumulated_gradients_are_those_of_the_big_batch() {
    let bench = Bench::new();
    let losses = |rows: u32, accumulate: u32, output: &str| -> Vec<f64> {
        bench
            .train(&[
                &format!("train.rows={rows}"),
                &format!("train.accumulate={accumulate}"),
                &format!("output='{output}'"),
            ])
            .unwrap();
        curve(&bench.path(output)).iter().filter_map(|v| v["loss"].as_f64()).collect()
    };
    let (big, small) = (losses(4, 1, "big"), losses(1, 4, "small"));
    assert_eq!(big.len(), 12);
    for (a, b) in big.iter().zip(&small) {
        assert!((a - b).abs() < 1e-3, "{big:?} and {small:?}");
    }
}

#[test]
fn a_run_killed_at_any_step_goes_on_as_if_it_had_not_been() {
    let bench = Bench::new();
    let whole = bench.program(&["output='whole'"]).output().unwrap();
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let (expected, killed) = (curve(&bench.path("whole")), bench.path("killed"));
    let done = |folder: &Path| {
        std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default().lines().count()
    };
    // Lines of metrics after which it is killed: before, at and after checkpoints.
    for lines in [2, 6, 7, 11] {
        let mut child = bench.program(&["output='killed'"]).spawn().unwrap();
        while done(&killed) < lines && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let last = bench.program(&["output='killed'"]).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    assert_eq!(curve(&killed), expected);
    let model = |folder: &str| std::fs::read(bench.path(folder).join("model.koudai")).unwrap();
    assert!(model("killed") == model("whole"), "the weights are the same to the bit");
    let names = std::fs::read_dir(&killed).unwrap().flatten().map(|e| e.file_name());
    let mut names: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "best.safetensors",
            "events",
            "last.safetensors",
            "lock",
            "metrics.jsonl",
            "model.koudai",
            "tokens"
        ]
    );
}

#[test]
fn two_runs_do_not_share_a_folder() {
    let bench = Bench::new();
    let folder = bench.path("out");
    std::fs::create_dir(&folder).unwrap();
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let error = format!("{:#}", bench.train(&[]).unwrap_err());
    assert!(error.contains("another run"), "{error}");
}

#[test]
fn an_exploding_run_ends_with_a_line_that_says_so() {
    let bench = Bench::new();
    let done = bench
        .program(&["optimizer.lr=1e30", "optimizer.clip=0.0", "train.steps=100"])
        .output()
        .unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{error}");
    assert!(error.contains("left out") && error.contains("optimizer.lr"), "{error}");
}

#[test]
fn another_recipe_does_not_go_on_with_a_checkpoint() {
    let bench = Bench::new();
    bench.train(&[]).unwrap();
    let error = format!("{:#}", bench.train(&["optimizer.lr=0.1"]).unwrap_err());
    assert!(error.contains("last.safetensors") && error.contains("another recipe"), "{error}");
    std::fs::write(bench.path("out/last.safetensors"), b"damaged").unwrap();
    let error = format!("{:#}", bench.train(&[]).unwrap_err());
    assert!(error.contains("last.safetensors"), "{error}");
}

#[test]
fn replies_alone_are_learned_from_conversations() {
    let bench = Bench::new();
    let template = "{% for m in messages %}<|256|>{{ m.role }}\n{{ m.content }}<|299|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|256|>assistant\n{% endif %}";
    std::fs::write(bench.path("chat.jinja"), template).unwrap();
    let line = |i: u32| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"ask {i} <|299|>\"}}, \
             {{\"role\": \"assistant\", \"content\": \"yes\"}}]}}\n"
        )
    };
    std::fs::write(bench.path("a.jsonl"), (0..20).map(line).collect::<String>()).unwrap();
    let changes =
        ["stage='sft'", "model.template='chat.jinja'", "train.length=64", "train.steps=60"];
    let outcome = bench.train(&changes).unwrap();
    let loss = outcome.progress.loss.unwrap();
    assert!(loss < 0.05, "{loss}");
    // Three bytes and the end of each reply.
    let first = &curve(&bench.path("out"))[0];
    assert_eq!(first["targets"].as_u64().unwrap() % 4, 0, "{first}");
}
