//! The memory plan is a promise: a process that fills its context stays within it.

use std::path::{Path, PathBuf};
use std::process::Command;

use koudai::kernels::Kind;
use koudai::{Config, Engine, Error, KvKind, OpenOptions, Precision, Session, SessionOptions};

use crate::models;

const CONTEXT: usize = 700;

/// About 35 million weights: much more than a process's own few megabytes. Most are the vocabulary's,
/// so that logits count too.
fn config() -> Config {
    let mut config = models::configs().remove(0).1;
    (config.dim, config.vocab_size, config.tied_head) = (256, 100_000, true);
    config.context_length = 4096;
    config.ropes = vec![(0..32).map(|i| 1e4f64.powf(-(i as f64) / 32.0)).collect()];
    let l = &mut config.layers[0];
    (l.n_heads, l.n_kv_heads, l.head_dim, l.ffn_dim, l.attn_scale) = (8, 4, 64, 1024, 0.125);
    let layer = l.clone();
    config.layers = vec![layer; 8];
    config
}

fn options(kv: KvKind, precision: Precision) -> SessionOptions {
    SessionOptions { context: Some(CONTEXT), kv, precision }
}

/// Caches and arithmetic, and whether the logits of every token are wanted.
const CASES: [(KvKind, Precision, bool); 4] = [
    (KvKind::F16, Precision::Auto, false),
    (KvKind::Q8, Precision::Auto, false),
    (KvKind::F16, Precision::F32, false),
    (KvKind::F16, Precision::Auto, true),
];

/// Resident bytes of this process: now and at the peak.
fn resident() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}

const MODEL: &str = "KOUDAI_TEST_MEMORY_MODEL";
const CASE: &str = "KOUDAI_TEST_MEMORY_CASE";

/// Runs in a process of its own, started by the test below: other tests' memory would count.
#[test]
fn child() {
    let Some(path) = std::env::var_os(MODEL).map(PathBuf::from) else { return };
    let case: usize = std::env::var(CASE).unwrap().parse().unwrap();
    let (kv, precision, all) = CASES[case];
    let before = resident().unwrap().0;
    let engine =
        Engine::open(&path, &OpenOptions { threads: Some(2), ..Default::default() }).unwrap();
    let mut session = Session::new(&engine, &options(kv, precision)).unwrap();
    let tokens = models::tokens(CONTEXT - 20, 3);
    match all {
        true => session.append_each(&tokens, |_, _| ()).unwrap(),
        false => drop(session.append(&tokens).unwrap()),
    }
    for token in models::tokens(20, 4) {
        session.append(&[token]).unwrap();
    }
    let peak = resident().unwrap().1;
    println!("\nmeasured={} planned={}", peak - before, engine.plan(CONTEXT, kv).unwrap().total());
}

fn number(text: &str, name: &str) -> u64 {
    let rest = text.split(name).nth(1).unwrap_or_else(|| panic!("no {name} in {text}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[test]
fn a_full_context_stays_within_the_plan() {
    if resident().is_none() {
        return; // Only Linux tells.
    }
    let dir = tempfile::tempdir().unwrap();
    let path = models::write(dir.path(), "big", &config(), Kind::Q8);
    let file_bytes = path.metadata().unwrap().len();
    assert!((30_000_000..60_000_000).contains(&file_bytes), "{file_bytes}");
    for (case, (kv, precision, all)) in CASES.into_iter().enumerate() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["memory::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(MODEL, &path)
            .env(CASE, case.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (measured, planned) = (number(&text, "measured="), number(&text, "planned="));
        let what = format!("{kv:?} {precision:?}, all logits {all}");
        let label = format!("{what}: {measured} bytes measured, {planned} planned");
        println!("{label}");
        assert!(measured <= planned, "{label}");
        assert!(measured > file_bytes, "{label}: the weights alone are more");
        // A plan that is too careful turns away what would run.
        assert!(planned < measured + measured / 4 + (4 << 20), "{label}");
    }
}

fn with_limit(path: &Path, limit: u64) -> Engine {
    let options = OpenOptions { threads: Some(1), memory_limit: Some(limit), ..Default::default() };
    Engine::open(path, &options).unwrap()
}

#[test]
fn a_refusal_says_what_fits_and_that_opens_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (name, mut config) = models::configs().remove(0);
    config.context_length = 100_000;
    let path = models::write(dir.path(), name, &config, Kind::Q8);
    let free = with_limit(&path, u64::MAX);
    let limit = free.plan(20_000, KvKind::F16).unwrap().total();
    let engine = with_limit(&path, limit);
    let open = |context, kv| {
        let options = SessionOptions { context: Some(context), kv, ..Default::default() };
        Session::new(&engine, &options).map(drop)
    };
    open(20_000, KvKind::F16).unwrap();
    let error = open(100_000, KvKind::F16).unwrap_err();
    let Error::Memory(message) = &error else { panic!("{error}") };
    let f16 = number(message, "a context of 100000 tokens with f16 keys and values needs ");
    assert!(f16 * 1_000_000 > limit, "{message}");
    let f16 = number(message, ": a context of ") as usize;
    let q8 = number(message, "would fit, or ") as usize;
    assert!((20_000..20_016).contains(&f16) && q8 > f16, "{message}");
    open(f16, KvKind::F16).unwrap();
    open(q8, KvKind::Q8).unwrap();
    assert!(open(f16 + 1, KvKind::F16).is_err() && open(q8 + 1, KvKind::Q8).is_err());

    let engine = with_limit(&path, 1000);
    let error = Session::new(&engine, &SessionOptions::default()).err().unwrap().to_string();
    let least = number(&error, "needs at least ");
    let least = with_limit(&path, least * 1_000_000);
    let one = SessionOptions { context: Some(1), kv: KvKind::Q8, ..Default::default() };
    Session::new(&least, &one).unwrap();
}
