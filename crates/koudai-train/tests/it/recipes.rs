//! Recipes: every key checked, one line that says which and where.

use koudai_train::Recipe;

const GOOD: &str = "\
stage = 'pretrain'
output = 'out'
[model]
from = 'm.koudai'
[data]
sources = [{ path = 'a.txt' }]
[train]
steps = 10
length = 32
rows = 2
";

fn error(text: &str, changes: &[&str]) -> String {
    let changes: Vec<String> = changes.iter().map(|c| c.to_string()).collect();
    let error = Recipe::parse(text, &changes).expect_err(text);
    let line = format!("{error:#}");
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn wrong_values_are_named() {
    Recipe::parse(GOOD, &[]).unwrap();
    for (change, named) in [
        ("train.steps = 0", "train.steps is 0"),
        ("train.rows = 0", "train.rows is 0"),
        ("train.length = 99999999", "train.length"),
        ("optimizer.lr = -1.0", "optimizer.lr"),
        ("optimizer.lr = nan", "optimizer.lr"),
        ("optimizer.betas = [0.9, 1.0]", "optimizer.betas[1]"),
        ("optimizer.kind = 'sgd'", "sgd"),
        ("optimizer.momentun = 0.9", "momentun"),
        ("schedule.warmup = 1.5", "schedule.warmup"),
        ("stage = 'rlhf'", "rlhf"),
        ("model.from = 'a'\nmodel.new = {}", "dim"),
        ("evaluate.every = 5", "held_out"),
        ("data.sources = []", "data.sources"),
        ("data.sources = [{ path = 'a', repeat = 0.0 }]", "repeat"),
        ("nonsense", "nonsense"),
        ("model.tokenizer = 't.json'", "model.tokenizer"),
        ("train.precision = 'f16'", "f16"),
    ] {
        let message = error(GOOD, &[change]);
        assert!(message.contains(named), "{change}: {message}");
    }
}

#[test]
fn a_wrong_line_is_named() {
    let message = error(&GOOD.replace("steps = 10", "step = 10"), &[]);
    assert!(message.contains("`step`") && message.contains("line 8"), "{message}");
    let message = error("stage = [", &[]);
    assert!(message.contains("line 1"), "{message}");
    let message = error(&GOOD.replace("from = 'm.koudai'", ""), &[]);
    assert!(message.contains("`from`"), "{message}");
}

#[test]
fn changes_reach_tables_that_are_there_and_that_are_not() {
    let changes = ["train.steps = 7".to_owned(), "optimizer.lr = 0.5".to_owned()];
    let recipe = Recipe::parse(GOOD, &changes).unwrap();
    assert_eq!((recipe.train.steps, recipe.train.rows, recipe.optimizer.lr), (7, 2, 0.5));
}

#[test]
fn committed_recipes_are_valid() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let grid = path.file_name().unwrap().to_string_lossy().starts_with("search");
        if path.extension().is_some_and(|e| e == "toml") && !grid {
            Recipe::read(&path, &[]).unwrap();
            n += 1;
        }
    }
    assert!(n >= 2, "there are recipes");
}
