//! Grids as strangers write them, and losses of twins.

use std::path::Path;

use koudai_eval::search::{DEFAULT, Grid, Lab, Plan, Quality, measure, quality, run};

use crate::model;

fn grid(dir: &Path, text: &str) -> Result<Grid, String> {
    let path = dir.join("grid.toml");
    std::fs::write(&path, text).unwrap();
    Grid::read(&path).map_err(|e| e.to_string())
}

#[test]
fn the_default_grid_covers_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let candidates = grid(dir.path(), DEFAULT).unwrap().candidates().unwrap();
    let parameters = |name: &str| {
        let candidate = candidates.iter().find(|c| c.name == name).unwrap();
        candidate.shape.parameters() as f64 / 1e6
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.05, "{a} {b}");
    near(parameters("d896-l16"), 198.2);
    near(parameters("d896-l28"), 302.8);
    near(parameters("d896-l36"), 372.6);
    let deep = &candidates.iter().find(|c| c.name == "d896-l28").unwrap().shape;
    assert_eq!((deep.heads, deep.kv_heads, deep.ffn_dim), (14, 2, 2560));
    // 4.5 bits each, and norms; half floats for 2 × 2 × 64 values of each layer and token.
    assert!((deep.weight_bytes() as f64 / 170.3e6 - 1.0).abs() < 0.002);
    assert_eq!(deep.kv_bytes(1), 14_336);
    let all: Vec<f64> = candidates.iter().map(|c| c.shape.parameters() as f64 / 1e6).collect();
    let (least, most) =
        (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
    assert!((50.0..100.0).contains(&least) && (1000.0..1300.0).contains(&most), "{least} {most}");
}

#[test]
fn what_cannot_be_built_or_measured_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (text, named) in [
        ("", "no configuration"),
        ("dims = [512]\nlayer = [12]", "line 2: unknown field `layer`"),
        ("dims = [512]\nlayers = [12]\n[limits]\npeak = 3", "line 4: unknown field `peak`"),
        ("dims = [-512]\nlayers = [12]", "line 1"),
        ("dims = [0]\nlayers = [12]", "`d0-l12`: every width"),
        ("dims = [512]\nlayers = [0]", "layers is 0"),
        ("dims = [512]\nlayers = [1000000000000]", "layers is 1000000000000"),
        ("dims = [1000000000000000000]\nlayers = [1]", "every width"),
        ("dims = [99999999999999999999]\nlayers = [1]", "line 1"),
        ("dims = [500]\nlayers = [1]", "dim is 500, not a multiple of 64"),
        ("dims = [512]\nlayers = [12]\nkv_heads = 3", "n_heads is 8, not a multiple"),
        ("dims = [512]\nlayers = [12]\nkv_heads = 0", "every width"),
        ("dims = [512]\nlayers = [12]\nkv_heads = 2\nqueries_per_kv = 4", "not both"),
        ("dims = [512]\nlayers = [12]\nqueries_per_kv = 0", "queries_per_kv is 0"),
        ("dims = [512]\nlayers = [12]\nhead_dim = 0", "every width"),
        ("dims = [512]\nlayers = [12]\nffn_ratio = nan", "ffn_ratio is NaN"),
        ("dims = [512]\nlayers = [12]\nffn_ratio = 1e300", "every width"),
        ("dims = [512]\nlayers = [12]\nffn_ratio = -2.0", "ffn_ratio is -2"),
        ("dims = [512]\nlayers = [12]\nvocab = 10", "vocab is 10"),
        ("dims = [512]\nlayers = [12]\nvocab = 100000000000", "vocab_size is 100000000000"),
        ("dims = [512]\nlayers = [12]\ncontexts = []", "contexts is 0"),
        ("dims = [512]\nlayers = [12]\ncontexts = [128, 0]", "contexts is 0"),
        ("dims = [512]\nlayers = [12]\ncontexts = [128, 128]", "twice"),
        ("dims = [512]\nlayers = [12]\ncontexts = [64]", "limits.context is 128"),
        ("dims = [512]\nlayers = [12]\nprompt = 0", "prompt is 0"),
        ("dims = [512]\nlayers = [12]\ngenerate = 0", "generate is 0"),
        ("dims = [512]\nlayers = [12]\nrepeats = 0", "repeats is 0"),
        ("dims = [512]\nlayers = [12]\nrepeats = 1000000", "repeats is 1000000"),
        ("dims = [512]\nlayers = [12]\nthreads = 0", "threads is 0"),
        ("dims = [512]\nlayers = [12]\n[limits]\npeak_mb = nan", "limits.peak_mb is NaN"),
        ("dims = [512]\nlayers = [12]\n[limits]\ndecode_tps = inf", "limits.decode_tps is inf"),
        ("dims = [512]\nlayers = [12]\n[limits]\ndecode_tps = 0", "limits.decode_tps is 0"),
        ("dims = [512]\nlayers = [12]\nmin_parameters = 900_000_000", "no configuration"),
        ("[[shapes]]\nname = \"a\\u001b[2J\"\ndim = 512\nlayers = 2", "a shape's name"),
        (
            "[[shapes]]\nname = \"a\"\ndim = 512\nlayers = 2\n[[shapes]]\nname = \"a\"\ndim = 640\nlayers = 2",
            "two configurations `a`",
        ),
        ("[[shapes]]\nname = \"a\"\ndim = 512\nlayers = 2\nffn_dim = 100", "ffn_dim is 100"),
        ("\u{0}", "line 1"),
    ] {
        let refused = grid(dir.path(), text).map(|g| g.candidates().map(|c| c.len())).unwrap_err();
        assert!(refused.contains(named), "{text:?}: {refused}");
        assert!(refused.contains("grid.toml") && !refused.contains('\n'), "{text:?}: {refused}");
    }
    let many = format!("dims = {:?}\nlayers = {:?}", vec![512; 200], vec![12; 200]);
    assert!(grid(dir.path(), &many).unwrap_err().contains("40000 configurations"));
    assert!(
        Grid::read(&dir.path().join("none.toml")).unwrap_err().to_string().contains("no such file")
    );
}

#[test]
fn shapes_follow_the_rules_or_say_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let text = "dims = [512]\nlayers = [2, 3]\nqueries_per_kv = 4\nmin_parameters = 0\n\
                [[shapes]]\nname = \"mine\"\ndim = 512\nlayers = 2\n\
                [[shapes]]\nname = \"wide\"\ndim = 512\nlayers = 2\nheads = 16\nkv_heads = 4\nffn_dim = 4096";
    let candidates = grid(dir.path(), text).unwrap().candidates().unwrap();
    let names: Vec<&str> = candidates.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["mine", "wide", "d512-l3"], "d512-l2 is `mine`");
    let (mine, wide) = (&candidates[0].shape, &candidates[1].shape);
    assert_eq!((mine.heads, mine.kv_heads, mine.ffn_dim), (8, 2, 1472));
    assert_eq!((wide.heads, wide.kv_heads, wide.ffn_dim), (16, 4, 4096));
}

#[test]
fn a_measurement_has_every_context() {
    let dir = tempfile::tempdir().unwrap();
    let engine = model(dir.path(), 1, false);
    let plan = Plan { contexts: vec![4, 20], prompt: 30, generate: 3, repeats: 2, threads: 1 };
    let measured = measure(engine.path(), &plan).unwrap();
    assert_eq!(measured.file_bytes, engine.file().len_bytes());
    assert!(measured.prefill_tps > 0.0);
    assert_eq!(measured.contexts.iter().map(|c| c.context).collect::<Vec<_>>(), [4, 20]);
    for at in &measured.contexts {
        assert!(at.p50_ms > 0.0 && at.p90_ms >= at.p50_ms, "{measured:?}");
    }
    let arguments = |list: &[&str]| list.iter().map(Into::into).collect::<Vec<_>>().into_iter();
    for wrong in [&[][..], &["x.koudai"], &["x.koudai", "{}"]] {
        assert!(run(arguments(wrong)).unwrap_err().to_string().contains("koudai search"));
    }
}

#[test]
fn disk_is_bounded_beforehand() {
    let dir = tempfile::tempdir().unwrap();
    let text = "dims = [64, 128]\nlayers = [1, 9]\nhead_dim = 16\nvocab = 300\nmin_parameters = 0";
    for candidate in grid(dir.path(), text).unwrap().candidates().unwrap() {
        let path = dir.path().join("m.koudai");
        let spec = koudai_convert::synthetic::SyntheticSpec {
            config: candidate.shape.config(64),
            kind: koudai::kernels::Kind::Q4G64,
            seed: 1,
            tokenizer: koudai_convert::synthetic::byte_tokenizer(300),
            template: None,
        };
        koudai_convert::synthetic::write(&path, &spec).unwrap();
        let bytes = path.metadata().unwrap().len();
        assert!(bytes >= candidate.shape.weight_bytes(), "{candidate:?}");
        assert!(bytes <= Lab::disk_bytes(&candidate.shape), "{candidate:?}: {bytes}");
    }
}

#[test]
fn losses_need_seeds_and_sense() {
    let dir = tempfile::tempdir().unwrap();
    let read = |text: &str| {
        let path = dir.path().join("quality.jsonl");
        std::fs::write(&path, text).unwrap();
        quality::read(&path).map_err(|e| e.to_string())
    };
    let line = |name: &str, seed: u64, loss: &str| {
        format!("{{\"name\":\"{name}\",\"seed\":{seed},\"loss\":{loss},\"steps\":9}}\n")
    };
    let three = line("a", 1, "3.0") + "\n" + &line("a", 2, "3.2") + &line("a", 3, "3.4");
    let Quality { loss, spread, seeds } = read(&three).unwrap()["a"].clone();
    assert!((loss - 3.2).abs() < 1e-12 && (spread - 0.2).abs() < 1e-12 && seeds == 3);
    for (text, named) in [
        (line("a", 1, "3.0") + &line("a", 2, "3.0"), "`a` has 2 seeds, at least 3"),
        (line("a", 1, "3.0") + &line("a", 1, "3.0"), "line 2: seed 1 of `a`"),
        (line("a", 1, "-1.0"), "line 1: loss is -1"),
        (line("a", 1, "NaN"), "line 1"),
        (line("a", 1, "null"), "line 1"),
        ("{\"name\":\"a\",\"seed\":1}\n".into(), "line 1: missing field `loss`"),
    ] {
        let refused = read(&text).unwrap_err();
        assert!(refused.contains(named) && refused.contains("quality.jsonl"), "{text}: {refused}");
    }
}
