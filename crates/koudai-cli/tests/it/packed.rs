//! `koudai pack`, `sign`, `diff` and `patch`, `--trust` and `--check-weights`: made by one, refused or run
//! by the others, and a process killed in the middle.

use std::path::{Path, PathBuf};

use crate::support::{
    command, document, failed, failure, finish, has_keys, json, koudai, listing, stdout, text,
    usage, write,
};
use crate::tiny;

/// A folder with a key, and a packed and signed model.
struct Shop {
    folder: PathBuf,
}

impl Shop {
    fn new(name: &str) -> Shop {
        let shop = Shop { folder: tiny::fresh(name) };
        let prompts = write(&shop.folder, "prompts.txt", "once\n\nupon a time\n");
        let card = write(&shop.folder, "card.md", "# Tiny\n\nMade for tests.\n");
        shop.adapter(
            "v1.koudai",
            tiny::model(),
            "one",
            &["--golden", text(&prompts), "--card", text(&card)],
        );
        json(&["sign", "--generate", &shop.path("maker.key")]);
        json(&["sign", &shop.path("v1.koudai"), "--key", &shop.path("maker.key")]);
        shop
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.join(name)).to_owned()
    }

    /// Packs an adapter that repeats `what`.
    fn adapter(&self, to: &str, model: &str, what: &str, more: &[&str]) {
        let file = write(&self.folder, "adapter.bin", what.repeat(3000));
        let adapter = format!("style={}", text(&file));
        let out = self.path(to);
        let args = ["pack", model, "-o", &out, "--adapter", &adapter, "--lineage", "seed=17"];
        let d = json(&[&args[..], more].concat());
        has_keys(&d, &["output", "bytes", "fingerprint", "model_hash", "sections"]);
    }

    /// A second version, signed, and the delta to it.
    fn update(&self) {
        self.adapter("v2.koudai", &self.path("v1.koudai"), "two", &[]);
        json(&["sign", &self.path("v2.koudai"), "--key", &self.path("maker.key")]);
        let d = json(&[
            "diff",
            &self.path("v1.koudai"),
            &self.path("v2.koudai"),
            "-o",
            &self.path("up.kdelta"),
        ]);
        has_keys(&d, &["output", "bytes", "new_bytes", "copied_bytes", "changed_bytes"]);
        assert!(d["bytes"].as_u64().unwrap() < 5_000, "{d}");
    }
}

#[test]
fn inspect_shows_and_verifies_all_that_was_packed() {
    let shop = Shop::new("packed");
    let (model, key) = (shop.path("v1.koudai"), shop.path("maker.key.pub"));
    let d = json(&["inspect", &model, "--verify", "--trust", &key]);
    assert_eq!(d["verified"], true);
    assert_eq!(d["signature"]["valid"], true);
    assert_eq!(d["card"], "# Tiny\n\nMade for tests.\n");
    assert_eq!(d["lineage"], serde_json::json!([["seed", "17"]]));
    assert_eq!(d["attachments"][0]["name"], "style");
    assert_eq!(d["golden"]["prompts"], 2);
    assert_eq!(d["golden"]["checked"]["same_bits"], true);
    let page = stdout(&["inspect", &model, "--verify"]);
    for words in ["signed by", "seed = 17", "style (9000 bytes)", "the same bits on", "# Tiny"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(stdout(&["inspect", &model]).contains("2, not run"));
    // On other kernels: the same within the tolerance.
    let args = ["inspect", &model, "--verify", "--json"];
    let d = document(&finish(command(&args).env("KOUDAI_ISA", "scalar"), ""), &args);
    let checked = &d["golden"]["checked"];
    assert!(checked["largest_difference"].as_f64().unwrap() < 0.01, "{checked}");
    assert!(checked["isa"] == "scalar" && checked["same_bits"] != false, "{checked}");
}

#[test]
fn trust_is_asked_for_by_option_and_by_environment() {
    let shop = Shop::new("trust");
    let (model, key) = (shop.path("v1.koudai"), shop.path("maker.key.pub"));
    json(&["sign", "--generate", &shop.path("other.key")]);
    let other = shop.path("other.key.pub");
    let run = |model: &str, key: &str| -> Vec<String> {
        let args = ["run", "-m", model, "-p", "once", "-n", "2", "--ctx", "32", "--trust", key];
        args.map(str::to_owned).to_vec()
    };
    let fails = |args: Vec<String>| failure(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let runs = |args: Vec<String>| {
        assert_eq!(koudai(&args.iter().map(String::as_str).collect::<Vec<_>>()).code, Some(0));
    };
    runs(run(&model, &key));
    runs([run(&model, &other), vec!["--trust".into(), key.clone()]].concat());
    let message = fails(run(&model, &other));
    assert!(
        message.contains("signed by another key") && message.contains("v1.koudai"),
        "{message}"
    );
    assert!(fails(run(tiny::model(), &key)).contains("isn't signed"));
    assert!(fails(run(&model, &model)).contains("isn't an Ed25519 public key"));
    for args in [
        vec!["inspect", &model, "--trust", &other],
        vec!["tokens", "-m", &model, "a", "--trust", &other],
        vec!["score", "-m", &model, "-p", "a", "--trust", &other],
    ] {
        assert!(failure(&args).contains("another key"), "{args:?}");
    }
    let args = ["score", "-m", tiny::model(), "-p", "a"];
    let done = finish(command(&args).env("KOUDAI_TRUST", &key), "");
    assert!(failed(&done, &args).contains("isn't signed"));
}

#[test]
fn damaged_weights_are_found_when_asked_for() {
    let shop = Shop::new("damaged-weights");
    let model = shop.path("v1.koudai");
    let mut bytes = std::fs::read(&model).unwrap();
    let sections = json(&["inspect", &model])["sections"].clone();
    let weights = sections.as_array().unwrap().iter().find(|s| s["name"] == "weights").unwrap();
    let at = weights["offset"].as_u64().unwrap() as usize + 20_000;
    bytes[at] ^= 1;
    let model = text(&write(&shop.folder, "damaged.koudai", &bytes)).to_owned();
    let run = ["run", "-m", &model, "-p", "a", "-n", "1", "--ctx", "32"];
    assert_eq!(koudai(&run).code, Some(0));
    for when in ["first-use", "open"] {
        let message = failure(&[&run[..], &["--check-weights", when]].concat());
        assert!(message.contains("block 1,") && message.contains("damaged.koudai"), "{message}");
    }
    assert!(failure(&["inspect", &model, "--verify"]).contains("block 1,"));
    // A signature means the weights too.
    let key = shop.path("maker.key.pub");
    assert!(failure(&[&run[..], &["--trust", &key]].concat()).contains("block 1,"));
    let out = shop.path("out.koudai");
    for args in [
        vec!["sign", &model, "--key", &shop.path("maker.key"), "-o", &out],
        vec!["pack", &model, "-o", &out, "--meta", "a=b"],
        vec!["diff", &model, tiny::model(), "-o", &out],
    ] {
        assert!(failure(&args).contains("damaged.koudai"), "{args:?}");
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn updates_are_applied_beside_or_in_place_and_to_their_base_only() {
    let shop = Shop::new("updates");
    shop.update();
    let read = |name: &str| std::fs::read(shop.folder.join(name)).unwrap();
    let (delta, key) = (shop.path("up.kdelta"), shop.path("maker.key.pub"));
    let args = ["patch", &shop.path("v1.koudai"), &delta, "-o", &shop.path("made.koudai")];
    let d = json(&[&args[..], &["--trust", &key]].concat());
    has_keys(&d, &["output", "bytes", "fingerprint"]);
    assert!(read("made.koudai") == read("v2.koudai"));
    let before = listing(&shop.folder);
    let message = failure(&["patch", tiny::model(), &delta, "--in-place"]);
    assert!(message.contains("up.kdelta: it is for v1.koudai"), "{message}");
    assert!(message.contains("tiny.koudai has"), "{message}");
    let message = failure(&["patch", &shop.path("v1.koudai"), tiny::model(), "--in-place"]);
    assert!(message.contains("isn't a delta"), "{message}");
    json(&["sign", "--generate", &shop.path("other.key")]);
    let other = shop.path("other.key.pub");
    let args = ["patch", &shop.path("v1.koudai"), &delta, "--in-place", "--trust", &other];
    assert!(failure(&args).contains("another key"));
    assert_eq!(listing(&shop.folder).len(), before.len() + 2, "nothing is left but the key");
    stdout(&["patch", &shop.path("v1.koudai"), &delta, "--in-place"]);
    assert!(read("v1.koudai") == read("v2.koudai"));
    let message = failure(&["patch", &shop.path("v1.koudai"), &delta, "--in-place"]);
    assert!(message.contains("it is for v1.koudai"), "{message}");
}

#[test]
fn keys_and_options_that_make_no_sense_are_refused() {
    let shop = Shop::new("bad-keys");
    let (model, key) = (shop.path("v1.koudai"), shop.path("maker.key"));
    let message = failure(&["sign", "--generate", &key]);
    assert!(message.contains("maker.key"), "a key is never overwritten: {message}");
    let message = failure(&["sign", &model, "--key", &shop.path("maker.key.pub")]);
    assert!(message.contains("isn't an Ed25519 private key"), "{message}");
    for (args, named) in [
        (&["sign", &model][..], "--key"),
        (&["sign", "--generate", &key, "--key", &key], "--key"),
        (&["pack", &model], "--output"),
        (&["pack", &model, "-o", "x", "--meta", "novalue"], "--meta"),
        (&["diff", &model, &model], "--output"),
        (&["patch", &model, &model], "--output"),
        (&["patch", &model, &model, "-o", "x", "--in-place"], "--in-place"),
        (&["run", "-m", &model, "-p", "a", "--check-weights", "never"], "--check-weights"),
    ] {
        assert!(usage(args).contains(named), "{args:?}");
    }
    let empty = write(&shop.folder, "empty.txt", "\n\n");
    let message = failure(&["pack", &model, "-o", &shop.path("x"), "--golden", text(&empty)]);
    assert!(message.contains("empty.txt: there is no prompt"), "{message}");
}

/// Kills a patch, again and again, at other moments; whatever it did, the file is one of the two.
#[cfg(unix)]
#[test]
fn a_killed_patch_leaves_a_whole_file() {
    let folder = tiny::fresh("killed");
    // Some megabytes, so that writing takes long enough to be caught.
    let noise = |seed: u64| -> Vec<u8> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 56) as u8
        };
        (0..12 << 20).map(|_| next()).collect()
    };
    let path = |name: &str| text(&folder.join(name)).to_owned();
    for (name, seed) in [("old", 1), ("new", 2)] {
        let draft = write(&folder, "draft.bin", noise(seed));
        json(&["pack", tiny::model(), "-o", &path(name), "--draft", text(&draft)]);
    }
    json(&["diff", &path("old"), &path("new"), "-o", &path("d")]);
    let (old, new) = (std::fs::read(path("old")).unwrap(), std::fs::read(path("new")).unwrap());
    let (mut killed, mut finished) = (0, 0);
    for round in 0..40u64 {
        std::fs::write(path("model.koudai"), &old).unwrap();
        let mut child =
            command(&["patch", &path("model.koudai"), &path("d"), "--in-place"]).spawn().unwrap();
        // Once its file is there, wait a little longer each time, so that all of its work is hit.
        let started = || listing(&folder).iter().any(|name| name.contains(".partial-"));
        while !started() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(round * 500));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        let now = std::fs::read(path("model.koudai")).unwrap();
        assert!(now == old || now == new, "round {round}: neither the old nor the new file");
        if status.success() {
            finished += 1;
        } else {
            killed += 1;
        }
        for name in listing(&folder).iter().filter(|name| name.contains(".partial-")) {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    }
    assert!(killed > 0, "none of {} was caught", killed + finished);
}

#[test]
fn nothing_that_is_read_is_written_over() {
    let shop = Shop::new("outputs-and-inputs");
    shop.update();
    let names = ["v1.koudai", "v2.koudai", "up.kdelta", "maker.key", "card.md", "adapter.bin"];
    let [v1, v2, delta, key, card, adapter] = names.map(|name| shop.path(name));
    let before = names.map(|name| std::fs::read(shop.path(name)).unwrap());
    let named = format!("style={adapter}");
    for args in [
        &["sign", &v1, "--key", &key, "-o", &key][..],
        &["diff", &v1, &v2, "-o", &v1],
        &["diff", &v1, &v2, "-o", &v2],
        &["patch", &v1, &delta, "-o", &delta],
        &["pack", &v1, "-o", &card, "--card", &card],
        &["pack", &v1, "-o", &adapter, "--adapter", &named],
        &["convert", &v1, "-o", &card, "--quant", "q4g64", "--report-text", &card],
        &["prune", &v1, "-o", &card, "--vocab", "300", "--corpus", &card],
    ] {
        let message = failure(args);
        assert!(message.contains("input and output at once"), "{message}");
    }
    let twice = ["pack", &v1, "-o", &v2, "--adapter", &named, "--adapter", &named];
    assert!(failure(&twice).contains("`style` is given twice"));
    for (name, before) in names.iter().zip(before) {
        assert!(std::fs::read(shop.path(name)).unwrap() == before, "{name} changed");
    }
}

#[test]
fn converting_asks_for_trust_and_for_whole_weights() {
    let shop = Shop::new("converted-trust");
    let (v1, out) = (shop.path("v1.koudai"), shop.path("out.koudai"));
    json(&["sign", "--generate", &shop.path("other.key")]);
    let (own, other) = (shop.path("maker.key.pub"), shop.path("other.key.pub"));
    stdout(&["convert", &v1, "-o", &out, "--trust", &own]);
    let message = failure(&["convert", &v1, "-o", &out, "--trust", &other]);
    assert!(message.contains("signed by another key"), "{message}");
    // Of what isn't a .koudai file nobody can say who made it.
    let card = shop.path("card.md");
    let message = failure(&["convert", &card, "-o", &out, "--trust", &own]);
    assert!(message.contains("card.md") && message.contains("nobody signed it"), "{message}");
    // Weights come after everything else: damage them, and no new file may vouch for the damage.
    let mut bytes = std::fs::read(&v1).unwrap();
    let weights = bytes.len() / 2;
    bytes[weights] ^= 1;
    std::fs::write(&v1, bytes).unwrap();
    let gguf = shop.path("out.gguf");
    for args in [
        &["convert", &v1, "-o", &out][..],
        &["export", &v1, "-o", &gguf],
        &["prune", &v1, "-o", &out, "--vocab", "300", "--corpus", &card],
    ] {
        let message = failure(args);
        assert!(message.contains("damaged") || message.contains("hash"), "{message}");
    }
}
