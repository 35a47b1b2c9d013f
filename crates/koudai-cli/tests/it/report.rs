//! `koudai report`: from what the commands really print to a page, and the page in a browser where there
//! is one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{failure, json, koudai, stdout, text, usage, write};
use crate::tiny;

/// What `bench` and `eval` print about the tiny model.
fn documents(folder: &Path) -> [PathBuf; 2] {
    let bench = ["bench", "-m", tiny::model(), "-p", "8", "-n", "4", "-r", "1", "-d", "0,64"];
    let speed = write(folder, "speed.json", json(&bench).to_string());
    let piqa = folder.join("eval/piqa");
    std::fs::create_dir_all(&piqa).unwrap();
    write(
        &piqa,
        "valid.jsonl",
        "{\"goal\":\"goal\",\"sol1\":\"one\",\"sol2\":\"two\"}\n".repeat(4),
    );
    write(&piqa, "valid-labels.lst", "0\n1\n0\n1\n");
    let eval = ["eval", "-m", tiny::model(), "--tasks", "piqa", "--data", text(folder)];
    let scores = write(folder, "scores.json", json(&eval).to_string());
    [speed, scores]
}

#[test]
fn what_the_commands_print_becomes_one_page() {
    let folder = tiny::fresh("report");
    let [speed, scores] = documents(&folder);
    let output = folder.join("report.html");
    let args = ["report", text(&speed), text(&scores), "-o", text(&output), "--title", "Tiny"];
    let d = json(&args);
    assert_eq!(d["models"], serde_json::json!(["tiny"]), "{d}");
    let page = std::fs::read_to_string(&output).unwrap();
    assert_eq!(d["bytes"], page.len());
    for part in ["<title>Tiny</title>", "Decode speed over context", "PIQA (0-shot)", "Peak memory"]
    {
        assert!(page.contains(part), "{part} is missing");
    }
    assert_eq!(stdout(&args), format!("{}: {} bytes\n", text(&output), page.len()));
    fits_a_phone(&folder, &output);
}

#[test]
fn other_files_are_refused_by_name_and_inputs_kept() {
    let folder = tiny::fresh("report-refused");
    let other = write(&folder, "other.json", "{\"perplexity\": 3.5}");
    let output = folder.join("report.html");
    let message = failure(&["report", text(&other), "-o", text(&output)]);
    assert!(message.contains("other.json: not the --json of bench, eval or search"), "{message}");
    let message = failure(&["report", text(&other), "-o", text(&other)]);
    assert!(message.contains("other.json"), "{message}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "{\"perplexity\": 3.5}");
    assert!(!output.exists());
    assert!(usage(&["report", "-o", "x.html"]).contains("<FILE>"));
    assert_eq!(koudai(&["report", text(&other)]).code, Some(2));
}

/// Shows the page in a frame as wide as a phone: nothing of it may stick out.
fn fits_a_phone(folder: &Path, page: &Path) {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&&str| std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    let Some(browser) = browsers.iter().find(is_there) else {
        println!("skipped: no browser");
        return;
    };
    let frame = format!(
        "<iframe id=f src='file://{}' width=390 height=800></iframe><script>f.onload = () => {{ \
         document.title = 'width ' + f.contentDocument.documentElement.scrollWidth; }};</script>",
        text(page)
    );
    let frame = write(folder, "frame.html", frame);
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--allow-file-access-from-files", "--dump-dom", "--virtual-time-budget=2000"])
        .arg(format!("--user-data-dir={}", text(profile.path())))
        .arg(format!("file://{}", text(&frame)))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let width = dom.split("<title>width ").nth(1).and_then(|rest| rest.split('<').next());
    let width: f64 = width.unwrap_or_else(|| panic!("{output:?}")).parse().unwrap();
    assert!(width <= 390.0, "the page is {width} wide");
}
