//! `koudai bench --energy` on folders that stand for a machine's `/sys`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{has_keys, json, koudai, text, usage, write};
use crate::tiny;

fn bench(root: &Path, more: &[&str]) -> Vec<String> {
    let args = ["bench", "-m", tiny::model(), "-p", "8", "-n", "4", "-r", "1", "-t", "1"];
    let root = ["--power-root", text(root), "--energy-window", "0.3"];
    args.iter().chain(&root).chain(more).map(ToString::to_string).collect()
}

fn document(args: &[String]) -> Value {
    json(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn where_nothing_can_be_read_it_says_so_and_measures_the_rest() {
    let root = tiny::fresh("energy-none");
    let d = document(&bench(&root, &["--energy"]));
    assert!(d["energy"].is_null() && d["joules_per_token"].is_null(), "{d}");
    assert!(d["energy_unavailable"].as_str().unwrap().contains("rapl: no package in"), "{d}");
    assert!(d["decode_tps"].as_f64().unwrap() > 0.0);
    let args = bench(&root, &["--energy=battery"]);
    let done = koudai(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("energy        not measured: battery: no battery in"), "{done:?}");
}

#[test]
fn joules_of_a_counter_become_shares_of_a_battery() {
    let root = tiny::fresh("energy-rapl");
    let package = root.join("sys/class/powercap/intel-rapl:0");
    std::fs::create_dir_all(&package).unwrap();
    write(&package, "name", "package-0\n");
    write(&package, "max_energy_range_uj", "262143328850\n");
    let count = |microjoules: u64| {
        std::fs::write(package.join("new"), format!("{microjoules}\n")).unwrap();
        std::fs::rename(package.join("new"), package.join("energy_uj")).unwrap();
    };
    count(0);
    // A machine that takes more and more power: later stretches take more than the rest before them.
    let done = AtomicBool::new(false);
    let d = std::thread::scope(|scope| {
        scope.spawn(|| {
            // By the clock, so that a busy machine changes nothing.
            let start = Instant::now();
            while !done.load(Ordering::Relaxed) {
                count((1e6 * start.elapsed().as_secs_f64().powi(4)) as u64);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let d = document(&bench(&root, &["--energy=rapl", "--battery-wh", "10"]));
        done.store(true, Ordering::Relaxed);
        d
    });
    let energy = &d["energy"];
    has_keys(
        energy,
        &["measures", "joules_per_prompt_token", "idle_watts", "battery.within_limit"],
    );
    assert_eq!((&energy["source"], &energy["prompt"]), (&"rapl".into(), &1024.into()));
    assert_eq!(energy["rounds"].as_array().unwrap().len(), 3);
    assert_eq!(d["joules_per_token"], energy["joules_per_token"]);
    let number = |pointer: &str| energy.pointer(pointer).unwrap().as_f64().unwrap();
    let joules = number("/joules_per_run");
    assert!(joules > 0.0 && number("/joules_per_run_least") <= joules, "{energy}");
    assert!((number("/battery/share_per_run") * 36_000.0 / joules - 1.0).abs() < 1e-9, "{energy}");
}

#[test]
fn its_options_belong_to_it() {
    assert!(usage(&["bench", "--battery-wh", "15"]).contains("--energy"));
    assert!(usage(&["bench", "--energy", "--battery-wh", "-1"]).contains("above 0"));
    assert!(usage(&["bench", "--energy=sun"]).contains("--energy"));
}
