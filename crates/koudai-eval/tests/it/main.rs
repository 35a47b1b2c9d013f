//! What is measured, against what a page of arithmetic says.

mod energy;
mod ifeval;
mod report;
mod search;
mod tasks;

use std::io::Cursor;
use std::path::Path;

use koudai::kernels::Kind;
use koudai::tokenizer::Special;
use koudai::{
    Activation, Config, Engine, Error, GenerateParams, KvKind, LayerConfig, OpenOptions, Precision,
    Session, SessionOptions,
};
use koudai_convert::synthetic::{self, SyntheticSpec, byte_tokenizer};
use koudai_eval::perplexity::{Options, Perplexity, measure, windows};
use koudai_eval::{bench, determinism, machine, npy, plot};

const VOCAB: usize = 300;
const BOS: u32 = 256;

/// A tiny random model of byte tokens; `add_bos` makes prompts start with token 256.
fn model(dir: &Path, seed: u64, add_bos: bool) -> Engine {
    let layer = LayerConfig {
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        ffn_dim: 96,
        window: None,
        rope: 0,
        attn_scale: 0.25,
        activation: Activation::Silu,
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
    };
    let config = Config {
        dim: 64,
        vocab_size: VOCAB,
        context_length: 256,
        norm_eps: 1e-5,
        embed_scale: 50.0,
        tied_head: true,
        ropes: vec![(0..8).map(|i| 1e4f64.powf(-i as f64 / 8.0)).collect()],
        layers: vec![layer; 2],
    };
    let mut tokenizer = byte_tokenizer(VOCAB);
    (tokenizer.bos, tokenizer.add_bos) = (Some(BOS), add_bos);
    let path = dir.join(format!("{seed}-{add_bos}.koudai"));
    let spec = SyntheticSpec { config, kind: Kind::Q8, seed, tokenizer, template: None };
    synthetic::write(&path, &spec).unwrap();
    Engine::open(&path, &OpenOptions { threads: Some(1), ..Default::default() }).unwrap()
}

fn options(context: usize, limit_tokens: Option<usize>) -> Options {
    Options { context, limit_tokens, session: SessionOptions::default() }
}

fn run(engine: &Engine, reference: Option<&Engine>, text: &str, o: &Options) -> Perplexity {
    let cut = windows(engine, text, o);
    measure::<Error>(engine, reference, &cut, o, |_| Ok(()), |_| ()).unwrap()
}

const TEXT: &str = "the heron waited while the river went on, as rivers do. 天地玄黄\n";

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|l| (*l as f64).exp()).sum();
    logits.iter().map(|l| *l as f64 - sum.ln()).collect()
}

/// Log-probabilities after every token but the last of each window.
fn by_hand(engine: &Engine, windows: &[Vec<u32>], precision: Precision) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    for window in windows {
        let options = SessionOptions { context: Some(200), precision, ..Default::default() };
        let mut session = Session::new(engine, &options).unwrap();
        let inputs = &window[..window.len() - 1];
        session.append_each(inputs, |_, logits| rows.push(log_softmax(logits))).unwrap();
    }
    rows
}

fn targets(windows: &[Vec<u32>]) -> Vec<u32> {
    windows.iter().flat_map(|w| w[1..].iter().copied()).collect()
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
}

#[test]
fn windows_cover_the_text_once_and_start_as_the_model_wants() {
    let dir = tempfile::tempdir().unwrap();
    let plain = model(dir.path(), 1, false);
    let ids = plain.tokenizer().encode(TEXT, Special::Text);
    for context in [2, 7, 32, ids.len(), 1000] {
        let cut = windows(&plain, TEXT, &options(context, None));
        // A last window of one token predicts nothing.
        let left = if ids.len() % context == 1 { ids.len() - 1 } else { ids.len() };
        assert_eq!(cut.concat(), ids[..left]);
        assert!(cut.iter().all(|w| (2..=context).contains(&w.len())));
    }
    let with_bos = model(dir.path(), 1, true);
    let cut = windows(&with_bos, TEXT, &options(16, None));
    assert!(cut.iter().all(|w| w[0] == BOS && w.len() <= 16));
    assert_eq!(cut.iter().flat_map(|w| &w[1..]).copied().collect::<Vec<_>>(), ids);
    // Spelled out, it stays text.
    let spelled = windows(&with_bos, "<|im_start|>", &options(64, None));
    assert_eq!(spelled[0].len(), 1 + 12);
}

#[test]
fn windows_stop_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    for add_bos in [false, true] {
        let engine = model(dir.path(), 1, add_bos);
        for limit in 0..70 {
            let cut = windows(&engine, TEXT, &options(16, Some(limit)));
            let total: usize = cut.iter().map(Vec::len).sum();
            assert!(total <= limit && limit - total <= 1, "{total} of {limit}");
            assert!(cut.iter().all(|w| w.len() >= 2));
        }
        for nothing in ["", if add_bos { "" } else { "a" }] {
            assert!(windows(&engine, nothing, &options(16, None)).is_empty());
        }
    }
}

#[test]
fn perplexity_is_what_the_logits_say() {
    let dir = tempfile::tempdir().unwrap();
    for add_bos in [false, true] {
        let engine = model(dir.path(), 1, add_bos);
        let o = options(20, None);
        let cut = windows(&engine, TEXT, &o);
        let (rows, targets) = (by_hand(&engine, &cut, Precision::Auto), targets(&cut));
        let nll: f64 = rows.iter().zip(&targets).map(|(row, t)| -row[*t as usize]).sum();
        let p = run(&engine, None, TEXT, &o);
        assert_eq!((p.tokens, p.bytes), (targets.len(), targets.len()), "a token is a byte");
        close(p.perplexity, (nll / targets.len() as f64).exp());
        close(p.bits_per_byte, nll / targets.len() as f64 / 2f64.ln());
        assert_eq!(p.distance, None);
        assert!((p.perplexity / VOCAB as f64 - 1.0).abs() > 1e-3, "no guess at random: {p:?}");
    }
}

#[test]
fn distances_are_what_the_logits_say() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, reference) = (model(dir.path(), 1, false), model(dir.path(), 2, false));
    let o = options(20, None);
    let cut = windows(&engine, TEXT, &o);
    let mine = by_hand(&engine, &cut, Precision::Auto);
    // The reference always works in f32.
    let exact = by_hand(&reference, &cut, Precision::F32);
    let n = mine.len() as f64;
    let kl = |p: &[f64], q: &[f64]| p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    let best = |row: &[f64]| (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let d = run(&engine, Some(&reference), TEXT, &o).distance.unwrap();
    close(d.kl, exact.iter().zip(&mine).map(|(p, q)| kl(p, q)).sum::<f64>() / n);
    assert!(d.kl > 0.01, "other weights say other things: {d:?}");
    let same = exact.iter().zip(&mine).filter(|(p, q)| best(p) == best(q)).count();
    close(d.same_top, same as f64 / n);
    let nll: f64 = exact.iter().zip(targets(&cut)).map(|(row, t)| -row[t as usize]).sum();
    close(d.reference_perplexity, (nll / n).exp());
}

#[test]
fn a_model_in_f32_is_no_distance_from_itself() {
    let dir = tempfile::tempdir().unwrap();
    let engine = model(dir.path(), 1, true);
    let mut o = options(20, None);
    o.session.precision = Precision::F32;
    let p = run(&engine, Some(&engine), TEXT, &o);
    let d = p.distance.unwrap();
    assert_eq!((d.kl, d.same_top, d.reference_perplexity), (0.0, 1.0, p.perplexity));
}

#[test]
fn every_position_is_handed_out_in_order_and_may_fail() {
    let dir = tempfile::tempdir().unwrap();
    let engine = model(dir.path(), 1, false);
    let o = options(20, None);
    let cut = windows(&engine, TEXT, &o);
    let want = by_hand(&engine, &cut, Precision::Auto);
    let (mut rows, mut told) = (Vec::new(), Vec::new());
    let each = |logits: &[f32]| {
        rows.push(log_softmax(logits));
        Ok(())
    };
    measure::<Error>(&engine, None, &cut, &o, each, |done| told.push(done)).unwrap();
    assert_eq!(rows, want);
    assert_eq!(told.last(), Some(&want.len()));
    assert!(told.is_sorted());

    let mut count = 0;
    let each = |_: &[f32]| {
        count += 1;
        if count == 30 { Err(Error::Cancelled) } else { Ok(()) }
    };
    let failed = measure::<Error>(&engine, None, &cut, &o, each, |_| ());
    assert!(matches!(failed, Err(Error::Cancelled)));
    assert_eq!(count, 30, "nothing is handed out after a failure");
}

#[test]
fn matrices_read_back() {
    for (rows, cols) in [(0, 3), (1, 1), (5, 7), (1000, 12)] {
        let values: Vec<f32> = (0..rows * cols).map(|i| i as f32 * -0.37 + 1e-30).collect();
        let mut writer = npy::Writer::new(Cursor::new(Vec::new()), cols).unwrap();
        values.chunks(cols).for_each(|row| writer.row(row).unwrap());
        let bytes = writer.finish().unwrap().into_inner();
        // As NumPy reads it: magic, version, length, a Python dictionary, rows.
        assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
        let len = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
        let (header, data) = bytes[10..].split_at(len);
        let header = std::str::from_utf8(header).unwrap();
        assert_eq!((len + 10) % 64, 0);
        assert!(header.ends_with('\n'));
        let dictionary =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
        assert_eq!(header.trim_end(), dictionary);
        let read: Vec<f32> =
            data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(read, values);
    }
}

#[test]
#[should_panic]
fn a_row_of_another_length_is_a_mistake() {
    let mut writer = npy::Writer::new(Cursor::new(Vec::new()), 3).unwrap();
    let _ = writer.row(&[1.0, 2.0]);
}

#[test]
fn the_bench_reports_every_run_and_their_medians() {
    let dir = tempfile::tempdir().unwrap();
    let engine = model(dir.path(), 1, false);
    let path = engine.path().to_owned();
    drop(engine);
    let options = bench::Options {
        prompt: 24,
        generate: 8,
        depths: vec![0, 10],
        verify: Vec::new(),
        runs: 3,
        kv: KvKind::Q8,
        precision: Precision::Auto,
        open: OpenOptions { threads: Some(1), ..Default::default() },
    };
    let r = bench::bench(&path, &options).unwrap();
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[1]
    };
    assert_eq!(r.depths.iter().map(|d| d.depth).collect::<Vec<_>>(), [0, 10]);
    for d in &r.depths {
        assert_eq!(d.runs.len(), 3);
        assert_eq!(d.prefill_tps, median(d.runs.iter().map(|r| r.0).collect()));
        assert_eq!(d.decode_tps, median(d.runs.iter().map(|r| r.1).collect()));
    }
    assert_eq!(r.file_bytes, path.metadata().unwrap().len());
    let used = r.bytes_per_token as f64 * r.depths[0].decode_tps;
    assert_eq!((r.threads, r.used_bandwidth()), (1, used));
    assert!(r.planned_bytes > r.file_bytes);
    // The head is the embedding, so every tensor is read for a token.
    let engine = Engine::open(&path, &options.open).unwrap();
    let all: usize = engine.file().tensors().iter().map(|t| t.len).sum();
    assert_eq!(r.bytes_per_token, all as u64);
    if let Some(increment) = r.peak_increment_bytes {
        assert!(increment < 1 << 30, "{increment}");
    }
    assert!(bench::bench(Path::new("no/such.koudai"), &options).is_err());
}

#[test]
fn a_picture_shows_every_depth() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("speed.svg");
    let depth =
        |depth, tps| bench::Depth { depth, prefill_tps: tps, decode_tps: tps, runs: vec![] };
    for depths in [&[depth(0, 9.0), depth(64, 8.0)][..], &[depth(0, 9.0)], &[depth(5, 0.0)]] {
        plot::speed_over_depth(&path, "model <a> & b", depths).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("tokens/s") && !svg.contains("<a>"), "{svg}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(
        plot::speed_over_depth(&dir.path().join("no/such/x.svg"), "t", &[depth(0, 1.0)]).is_err()
    );
}

#[test]
fn all_ways_of_running_a_prompt_agree() {
    let dir = tempfile::tempdir().unwrap();
    let engine = model(dir.path(), 1, false);
    let params = GenerateParams { max_tokens: 10, ..Default::default() };
    let prompt: Vec<u32> = (0..90).map(|i| i * 7 % 256).collect();
    let saved = dir.path().join("saved");
    let options = SessionOptions { context: Some(128), ..Default::default() };
    let trials = determinism::prove(engine.path(), &prompt, &params, &options, &saved).unwrap();
    assert!(trials.len() >= 8 && trials.iter().all(|t| t.equal), "{trials:?}");
    assert!(!saved.exists());
}

#[test]
fn the_machine_has_a_name_and_processors() {
    let machine = machine::Machine::here();
    assert!(!machine.cpu.is_empty() && machine.processors >= 1);
    if let Some((now, peak)) = machine::resident_bytes() {
        assert!(0 < now && now <= peak);
    }
    assert!(machine::read_bandwidth(1 << 20, 2) > 0.0);
}
