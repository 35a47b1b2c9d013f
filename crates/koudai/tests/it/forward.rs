//! The forward pass: right, and the same bits however the work is cut.

use std::collections::BTreeMap;

use koudai::kernels::Kind;
use koudai::{
    Config, Engine, KvKind, OpenOptions, Precision, Role, Session, SessionOptions, TensorId,
};

use crate::{models, reference};

fn open(path: &std::path::Path, threads: usize) -> Engine {
    Engine::open(path, &OpenOptions { threads: Some(threads), ..Default::default() }).unwrap()
}

fn session(engine: &Engine, kv: KvKind, precision: Precision) -> Session {
    Session::new(engine, &SessionOptions { context: Some(400), kv, precision }).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Everything that must hold for any model: against the reference, and bit for bit against itself.
fn check_model(name: &str, config: &Config, kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let path = models::write(dir.path(), name, config, kind);
    let label = format!("{name} {}", kind.name());
    let engine = open(&path, 2);
    // Longer than a window, a block of keys and, with the second length, a chunk of rows.
    let tokens = models::tokens(140, 7);
    let short = &tokens[..45];

    let want = reference::logits(engine.file(), short);
    let size = want.iter().flatten().fold(0.0f64, |a, b| a.max(b.abs()));
    for (kv, precision, tolerance) in [
        (KvKind::F16, Precision::F32, 3e-3),
        (KvKind::Q8, Precision::F32, 0.05),
        (KvKind::F16, Precision::Auto, 3e-3),
        (KvKind::F16, Precision::Int8, 0.05),
    ] {
        let mut s = session(&engine, kv, precision);
        s.append_each(short, |i, logits| {
            for (got, want) in logits.iter().zip(&want[i]) {
                let error = (*got as f64 - want).abs() / size;
                assert!(error < tolerance, "{label} {kv:?} {precision:?} token {i}: {error}");
            }
        })
        .unwrap();
    }

    for kv in [KvKind::F16, KvKind::Q8] {
        for precision in [Precision::Auto, Precision::F32] {
            let label = format!("{label} {kv:?} {precision:?}");
            let whole = |threads| {
                bits(session(&open(&path, threads), kv, precision).append(&tokens).unwrap())
            };
            let want = whole(1);
            for threads in [2, 4] {
                assert_eq!(whole(threads), want, "{label}: {threads} threads");
            }
            for cut in [1, 7, 16, 128] {
                let mut s = session(&engine, kv, precision);
                let mut last = Vec::new();
                for chunk in tokens.chunks(cut) {
                    last = bits(s.append(chunk).unwrap());
                }
                assert_eq!(last, want, "{label}: cut by {cut}");
            }
            let others = [models::tokens(33, 4), models::tokens(1, 5)];
            let mut batch = [(); 3].map(|()| session(&engine, kv, precision));
            let [a, b, c] = &mut batch;
            b.append(&others[1]).unwrap();
            Session::append_batch(&mut [(b, &others[0]), (a, &tokens), (c, &others[1])]).unwrap();
            assert_eq!(bits(a.logits()), want, "{label}: in a batch");
            let mut alone = session(&engine, kv, precision);
            alone.append(&others[1]).unwrap();
            assert_eq!(alone.logits(), c.logits());
            assert_eq!(bits(alone.append(&others[0]).unwrap()), bits(b.logits()));
            let mut s = session(&engine, kv, precision);
            s.append(&tokens[..90]).unwrap();
            s.append(&models::tokens(120, 8)).unwrap();
            s.rewind(90);
            assert_eq!(bits(s.append(&tokens[90..]).unwrap()), want, "{label}: rewound");
            s.append(&[1]).unwrap();
            let (logits, cached) = s.set_prompt(&tokens).unwrap();
            assert_eq!((bits(logits), cached), (want.clone(), 139), "{label}: reused prefix");

            let saved = dir.path().join("saved");
            s.rewind(77);
            s.save(&saved).unwrap();
            let mut restored = session(&engine, kv, precision);
            restored.append(&models::tokens(200, 9)).unwrap();
            restored.restore(&saved).unwrap();
            assert_eq!(restored.tokens(), &tokens[..77]);
            assert_eq!(bits(restored.append(&tokens[77..]).unwrap()), want, "{label}: restored");
            let mut each = Vec::new();
            let mut s = session(&engine, kv, precision);
            s.append_each(&tokens, |_, logits| each = bits(logits)).unwrap();
            assert_eq!(each, want, "{label}: all logits");
        }
    }
}

#[test]
fn llama_like() {
    for (name, config) in &models::configs()[..1] {
        Kind::ALL.into_iter().for_each(|kind| check_model(name, config, kind));
    }
}

#[test]
fn qwen_like() {
    for (name, config) in &models::configs()[1..3] {
        check_model(name, config, Kind::Q4G64);
    }
}

#[test]
fn gemma_like() {
    for (name, config) in &models::configs()[3..] {
        check_model(name, config, Kind::Q8);
        check_model(name, config, Kind::Q4G32);
    }
}

#[test]
fn odd_sizes_work_with_float_weights() {
    let mut config = models::configs().remove(0).1;
    (config.dim, config.vocab_size) = (20, models::VOCAB + 1);
    config.ropes = vec![vec![1.0, 0.1, 0.01]];
    for l in &mut config.layers {
        (l.n_heads, l.n_kv_heads, l.head_dim, l.ffn_dim) = (3, 1, 6, 50);
    }
    check_model("odd", &config, Kind::F32);
    check_model("odd", &config, Kind::Bf16);
}

#[test]
fn an_observer_sees_what_matrices_are_multiplied_with_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (name, config) in models::configs() {
        let engine = open(&models::write(dir.path(), name, &config, Kind::F32), 2);
        let tokens = models::tokens(140, 3);
        let mut seen: BTreeMap<TensorId, Vec<Vec<f32>>> = BTreeMap::new();
        let mut watched = session(&engine, KvKind::F16, Precision::F32);
        let mut observe = |id, row: &[f32]| seen.entry(id).or_default().push(row.to_vec());
        watched.append_observed(&tokens, &mut observe).unwrap();
        assert_eq!(seen.len(), 4 * config.layers.len() + 1, "{name}");
        let matrix = |id: TensorId| match id.role {
            Role::Head if config.tied_head => TensorId { role: Role::Embed, ..id },
            _ => id,
        };
        for (id, rows) in &seen {
            let cols = engine.file().matrix(matrix(*id)).cols();
            assert!(rows.len() == tokens.len() && rows.iter().all(|r| r.len() == cols), "{id}");
        }
        let head = TensorId { layer: None, role: Role::Head };
        let weights = engine.file().matrix(matrix(head));
        let mut row = vec![0.0; weights.cols()];
        let mut plain = session(&engine, KvKind::F16, Precision::F32);
        plain
            .append_each(&tokens, |i, logits| {
                for (r, logit) in logits.iter().enumerate().step_by(17) {
                    weights.read_row(r, &mut row);
                    let product: f32 = row.iter().zip(&seen[&head][i]).map(|(w, x)| w * x).sum();
                    assert!((product - logit).abs() < 1e-4, "{name} token {i}: {product} {logit}");
                }
            })
            .unwrap();
        assert_eq!(
            bits(watched.append(&[5]).unwrap()),
            bits(plain.append(&[5]).unwrap()),
            "{name}"
        );
    }
}
