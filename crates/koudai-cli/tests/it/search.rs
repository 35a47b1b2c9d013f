//! `koudai search`: tiny grids from end to end, going on after the end of a process, and choices.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{command, failure, has_keys, json, listing, stdout, text, usage, write};
use crate::tiny;

/// A folder with a grid of tiny configurations; `more` is added to its keys.
fn grid(name: &str, dims: &str, layers: &str, more: &str) -> (PathBuf, PathBuf) {
    let folder = tiny::fresh(name);
    let keys = "head_dim = 16\nvocab = 300\nmin_parameters = 0\ncontexts = [8, 24]\nprompt = 16\n\
                generate = 4\nrepeats = 2\nthreads = 1\n";
    let limits = "[limits]\ncontext = 8\npeak_mb = 100000\ndecode_tps = 0.01\n";
    let text = format!("dims = {dims}\nlayers = {layers}\n{keys}{more}\n{limits}");
    let path = write(&folder, "grid.toml", text);
    (path, folder.join("out"))
}

fn names(document: &Value, keep: impl Fn(&Value) -> bool) -> Vec<&str> {
    let all = document["configurations"].as_array().unwrap();
    all.iter().filter(|c| keep(c)).map(|c| c["name"].as_str().unwrap()).collect()
}

fn measurements(out: &Path) -> String {
    std::fs::read_to_string(out.join("measurements.jsonl")).unwrap()
}

#[test]
fn a_grid_is_measured_kept_and_chosen_from() {
    let (grid, out) = grid("search-all", "[64, 128]", "[1, 2]", "");
    let args = ["search", text(&grid), "--out", text(&out)];
    let document = json(&args);
    has_keys(&document, &["machine.cpu", "machine.isa", "machine.threads", "limits", "predictor"]);
    assert_eq!(names(&document, |_| true), ["d64-l1", "d64-l2", "d128-l1", "d128-l2"]);
    for c in document["configurations"].as_array().unwrap() {
        has_keys(c, &["layers", "dim", "parameters", "file_bytes", "peak_bytes", "prefill_tps"]);
        has_keys(c, &["decode.8.p50", "decode.24.p90", "meets_memory", "meets_speed", "pareto"]);
        let decode = &c["decode"]["8"];
        assert!(decode["p50"].as_f64().unwrap() >= decode["p90"].as_f64().unwrap(), "{c}");
        assert!(c["file_bytes"].as_u64().unwrap() > c["parameters"].as_u64().unwrap() / 2, "{c}");
        assert_eq!(c["measured"], true);
    }
    assert_eq!(document["chosen"]["name"], "d128-l2");
    let reason = document["chosen"]["reason"].as_str().unwrap();
    assert!(reason.contains("the most parameters of the 4 of 4"), "{reason}");
    assert!(document["predictor"].is_null(), "four are too few");

    assert_eq!(listing(&out), ["measurements.jsonl", "search.csv", "search.json", "search.svg"]);
    let kept: Value =
        serde_json::from_slice(&std::fs::read(out.join("search.json")).unwrap()).unwrap();
    assert_eq!(kept, document);
    let csv = std::fs::read_to_string(out.join("search.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("name,layers,dim,") && lines[0].ends_with(",peak_bytes_24"));
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|l| l.split(',').count() == lines[0].split(',').count()));
    assert!(lines[4].starts_with("d128-l2,2,128,8,2,16,"), "{}", lines[4]);
    let svg = std::fs::read_to_string(out.join("search.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("d128-l2"));

    // Nothing is measured again, and the table says the same.
    let before = measurements(&out);
    let table = stdout(&args);
    assert_eq!(measurements(&out), before);
    assert!(table.contains("chosen: d128-l2 (") && table.contains("  chosen\n"), "{table}");

    let limits = |more: &[&str]| json(&[&args[..], more].concat())["chosen"].clone();
    let none = limits(&["--decode-tps", "100000000"]);
    assert!(none["name"].is_null() && none["by_speed"].is_null(), "{none}");
    assert_eq!(none["by_memory"], "d128-l2");
    assert!(none["nearest"].is_string(), "{none}");
    assert!(none["reason"].as_str().unwrap().starts_with("none of 4 configurations"), "{none}");

    let losses = |name: &str, loss: f64| -> String {
        let line = |seed| format!("{{\"name\":\"{name}\",\"seed\":{seed},\"loss\":{loss}}}\n");
        (1..=3).map(line).collect()
    };
    let folder = grid.parent().unwrap();
    let file = write(folder, "quality.jsonl", losses("d64-l2", 3.0) + &losses("d128-l2", 3.5));
    let by_loss = json(&[&args[..], &["--quality", text(&file)]].concat());
    assert_eq!(names(&by_loss, |_| true), ["d64-l2", "d128-l2"], "those with a loss");
    assert_eq!(by_loss["chosen"]["name"], "d64-l2");
    let stranger = write(folder, "stranger.jsonl", losses("d9-l9", 3.0));
    assert!(failure(&[&args[..], &["--quality", text(&stranger)]].concat()).contains("`d9-l9`"));
}

#[test]
fn what_is_not_measured_is_predicted() {
    let (grid, out) = grid("search-predict", "[64, 128, 192]", "[1, 2, 4]", "");
    let args = |more: &[&'static str]| -> Vec<String> {
        let all = ["search", text(&grid), "--out", text(&out)];
        all.iter().chain(more).map(|s| s.to_string()).collect()
    };
    let run = |more: &[&'static str]| {
        let args = args(more);
        json(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let few = args(&["--measure", "2"]);
    let refused = failure(&few.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(refused.contains("2 configurations are measured, at least 7 are needed"), "{refused}");
    let document = run(&["--measure", "5"]);
    assert_eq!(measurements(&out).lines().count(), 1 + 7, "two are kept, five more");
    assert_eq!(names(&document, |c| c["measured"] == false).len(), 2);
    let laws = document["predictor"]["laws"].as_array().unwrap();
    assert_eq!((laws.len(), &document["predictor"]["measured"]), (5, &7.into()));
    for law in laws {
        has_keys(law, &["quantity", "terms", "leave_one_out.mean", "leave_one_out.max"]);
    }
    assert_eq!(run(&["--measure", "0"])["configurations"], document["configurations"]);
    // Sizes don't depend on how busy the machine is.
    let sizes = laws.iter().find(|l| l["quantity"] == "file, bytes").unwrap();
    assert!(sizes["leave_one_out"]["max"].as_f64().unwrap() < 0.05, "{sizes}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (path, out) = grid("search-room", "[64]", "[1]", "memory_mb = 1");
    let refused = failure(&["search", text(&path)]);
    assert!(refused.contains("`d64-l1` needs") && refused.contains("of memory"), "{refused}");
    let huge = "max_parameters = 100_000_000_000_000";
    let (path, _) = grid("search-huge", "[65536]", "[512]", huge);
    let text_of =
        std::fs::read_to_string(&path).unwrap().replace("head_dim = 16", "head_dim = 128");
    std::fs::write(&path, text_of).unwrap();
    let refused = failure(&["search", text(&path)]);
    assert!(refused.contains("`d65536-l512` needs") && refused.contains("of disk"), "{refused}");
    let (path, _) = grid("search-settings", "[64]", "[1]", "");
    json(&["search", text(&path), "--out", text(&out)]);
    let other = std::fs::read_to_string(&path).unwrap().replace("repeats = 2", "repeats = 1");
    std::fs::write(&path, other).unwrap();
    let refused = failure(&["search", text(&path), "--out", text(&out)]);
    assert!(refused.contains("it was made with repeats 2, not 1"), "{refused}");
    let wrong = write(path.parent().unwrap(), "wrong.toml", "dims = [64]\nfoo = 1\n");
    assert!(failure(&["search", text(&wrong)]).contains("wrong.toml line 2: unknown field `foo`"));
    assert!(usage(&["search", "--decode-tps", "0"]).contains("--decode-tps"));
    assert!(stdout(&["search", "--default"]).contains("dims = [512"));
}

#[cfg(unix)]
#[test]
fn a_search_that_was_ended_goes_on() {
    let (grid, out) = grid("search-ended", "[64, 128, 192]", "[1, 2, 4]", "");
    let args = ["search", text(&grid), "--out", text(&out)];
    // `-KILL` leaves what it leaves; `-INT` is Ctrl-C.
    for (signal, code) in [("-KILL", None), ("-INT", Some(130))] {
        let lines = || std::fs::read_to_string(out.join("measurements.jsonl")).unwrap_or_default();
        let enough = lines().lines().count() + 2;
        let mut child = command(&args).spawn().unwrap();
        while lines().lines().count() < enough {
            assert_eq!(child.try_wait().unwrap(), None, "it ended before it was ended");
            std::thread::yield_now();
        }
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code);
        if code.is_some() {
            assert_eq!(listing(&out), ["measurements.jsonl"], "nothing half done");
        }
    }
    // As if it had been killed in the middle of a line.
    let kept = measurements(&out);
    std::fs::write(out.join("measurements.jsonl"), format!("{kept}{{\"shape\":{{\"dim\"")).unwrap();
    let document = json(&args);
    assert_eq!(names(&document, |c| c["measured"] == true).len(), 9);
    assert!(measurements(&out).starts_with(&kept));
    assert_eq!(measurements(&out).lines().count(), 10);
    assert_eq!(listing(&out), ["measurements.jsonl", "search.csv", "search.json", "search.svg"]);
}
