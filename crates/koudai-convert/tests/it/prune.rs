//! Pruned vocabularies: what stays is closed, what was cut in kept tokens is cut the same, nothing
//! is lost, and the files that come out are what the reference implementation makes of them.
//!
//! Start with [`Case`], a vocabulary before and after.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use koudai::file::{Defaults, ModelFile, section};
use koudai::tokenizer::{Kind, Special, Tokenizer};
use koudai::{Role, Shape};
use koudai_convert::arch::Family;
use koudai_convert::prune::{
    Corpus, Counts, Options, Part, Pattern, Reading, Vocabulary, fertility,
};
use koudai_convert::synthetic::{SyntheticSpec, write};
use koudai_convert::{Error, convert};
use koudai_kernels::Kind as Stored;
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;
use unicode_normalization::UnicodeNormalization;

use crate::support::{TinyModel, data, model, on};
use crate::tokenizer::{Pair, TRAINING_TEXT, any_text, same, small_files, varied_texts};

/// A vocabulary before and after, and the pruned file.
struct Case {
    before: Vocabulary,
    after: Tokenizer,
    kept: Vec<u32>,
    output: PathBuf,
    _folder: TempDir,
}

fn reading(part: Part) -> Reading {
    Reading { field: "text".into(), part, threads: 2 }
}

fn options(size: usize) -> Options {
    Options { size, weights: BTreeMap::new(), unwanted: Vec::new() }
}

fn counted(
    vocabulary: &Vocabulary,
    corpora: &[(&str, &Path)],
    part: Part,
) -> Result<Counts, Error> {
    let find = |(name, path): &(&str, &Path)| Corpus::find(name, path.to_str().unwrap());
    let corpora: Vec<Corpus> = corpora.iter().map(find).collect::<Result<_, _>>()?;
    let mut counts = Counts::new(vocabulary.tokenizer());
    counts.count(vocabulary.tokenizer(), &corpora, &reading(part), &mut on)?;
    Ok(counts)
}

impl Case {
    fn new(before: Vocabulary, corpora: &[(&str, &Path)], options: &Options) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out");
        let counts = counted(&before, corpora, Part::Whole).unwrap();
        let pruned = before.prune(&counts, options).unwrap();
        let (kept, after) = (pruned.kept().to_vec(), pruned.tokenizer().clone());
        assert_eq!(pruned.write(&output, &mut on).unwrap(), Vec::<String>::new());
        drop(pruned);
        Case { before, after, kept, output, _folder: folder }
    }

    /// A `tokenizer.json` pruned to `size` by the text it was trained with.
    fn small(json: &[u8], size: usize) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let (file, text) = (folder.path().join("tokenizer.json"), folder.path().join("text.txt"));
        std::fs::write(&file, json).unwrap();
        std::fs::write(&text, TRAINING_TEXT).unwrap();
        Case::new(Vocabulary::open_json(&file).unwrap(), &[("all", &text)], &options(size))
    }

    fn json(&self) -> Vec<u8> {
        std::fs::read(&self.output).unwrap()
    }

    /// The theorem: whether all tokens of `text` stay; panics if they do and it is cut otherwise.
    fn cut_as_before(&self, text: &str, special: Special) -> bool {
        let new = |id: u32| self.kept.binary_search(&id).ok().map(|new| new as u32);
        let ids = self.before.tokenizer().encode(text, special);
        let Some(expected) = ids.into_iter().map(new).collect::<Option<Vec<u32>>>() else {
            return false;
        };
        assert_eq!(self.after.encode(text, special), expected, "{text:?}");
        true
    }

    /// Every kept token has its parts and is made of its own text as before.
    fn is_closed(&self) {
        let before = self.before.tokenizer();
        let kept: HashSet<u32> = self.kept.iter().copied().collect();
        for (new, &old) in self.kept.iter().enumerate() {
            let new = new as u32;
            assert_eq!(before.piece(old), self.after.piece(new));
            assert_eq!(before.kind(old), self.after.kind(new));
            let parts = before.parts(old);
            assert!(parts.iter().all(|part| kept.contains(part)), "{old}: {parts:?}");
            let pieces = |t: &Tokenizer, ids: Vec<u32>| -> Vec<Vec<u8>> {
                ids.iter().map(|&id| t.piece(id).unwrap().to_vec()).collect()
            };
            let parts_after = pieces(&self.after, self.after.parts(new));
            assert_eq!(parts_after, pieces(before, parts), "{old}");
        }
        // Bytes, and added tokens with all that they do.
        for old in (0..before.vocab_size() as u32).filter(|id| !kept.contains(id)) {
            assert_eq!(before.kind(old), Some(Kind::Normal), "{old}");
            assert!(before.piece(old).unwrap().len() > 1, "{old}");
            assert!(!before.parts(old).is_empty(), "{old}");
        }
        for role in [Tokenizer::bos, Tokenizer::eos, Tokenizer::pad] {
            let spelled = |t: &Tokenizer| role(t).map(|id| t.piece(id).unwrap().to_vec());
            assert_eq!(spelled(before), spelled(&self.after));
        }
    }

    fn text_comes_back(&self, text: &str) {
        let before = self.before.tokenizer();
        let decoded = before.decode(&before.encode(text, Special::Text), false);
        let ids = self.after.encode(text, Special::Text);
        assert_eq!(self.after.decode(&ids, false), decoded, "{text:?}");
    }
}

// ---- Every sort of tokenizer, small ------------------------------------------------------------

/// Each small tokenizer, pruned a little and as far as it goes.
fn small() -> &'static [(Case, Pair)] {
    static CASES: OnceLock<Vec<(Case, Pair)>> = OnceLock::new();
    CASES.get_or_init(|| {
        let mut cases = Vec::new();
        for json in small_files() {
            let whole = Case::small(&json, 1_000.min(size(&json)));
            let least = least(&whole.before);
            for size in [size(&json) - 7, (size(&json) + least) / 2, least] {
                let case = Case::small(&json, size);
                assert_eq!(case.kept.len(), size);
                let pair = Pair::new(&case.json());
                cases.push((case, pair));
            }
        }
        cases
    })
}

fn size(json: &[u8]) -> usize {
    Pair::new(json).ours.vocab_size()
}

/// The number of tokens that must stay, from the message that says so.
fn least(vocabulary: &Vocabulary) -> usize {
    let error = prune_error(vocabulary, &options(1));
    let words: Vec<&str> = error.split(' ').collect();
    let at = words.iter().position(|w| *w == "must").unwrap();
    words[at - 1].parse().unwrap()
}

fn prune_error(vocabulary: &Vocabulary, options: &Options) -> String {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, TRAINING_TEXT).unwrap();
    let counts = counted(vocabulary, &[("all", &text)], Part::Whole).unwrap();
    vocabulary.prune(&counts, options).err().expect("it must be refused").to_string()
}

#[test]
fn what_stays_is_closed_and_is_the_file_that_is_written() {
    for (case, pair) in small() {
        case.is_closed();
        let ours = case.after.spec();
        assert_eq!(pair.ours.spec(), ours, "the written file says the same");
    }
}

#[test]
fn exported_files_equal_the_reference() {
    for (case, pair) in small() {
        for text in varied_texts(300) {
            same(pair, &text).unwrap_or_else(|e| panic!("{e}"));
            case.cut_as_before(&text, Special::Parse);
            case.cut_as_before(&text, Special::Text);
            case.text_comes_back(&text);
        }
    }
}

#[test]
fn everything_else_in_the_json_stays() {
    let mut checked = 0;
    for json in small_files() {
        let case = Case::small(&json, size(&json) - 7);
        let (mut old, mut new): (Value, Value) =
            (serde_json::from_slice(&json).unwrap(), serde_json::from_slice(&case.json()).unwrap());
        let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&old), keys(&new));
        assert_eq!(keys(&old["model"]), keys(&new["model"]));
        for v in [&mut old, &mut new] {
            v["model"]["vocab"] = Value::Null;
            v["model"]["merges"] = Value::Null;
            v["added_tokens"].as_array_mut().unwrap().iter_mut().for_each(|t| t["id"] = 0.into());
        }
        assert_eq!(old, new);
        checked += 1;
    }
    assert!(checked > 10);
}

#[test]
fn ids_in_templates_and_padding_follow() {
    let mut json: Value = serde_json::from_slice(&small_files()[0]).unwrap();
    let n = size(&small_files()[0]);
    let end = n - 5; // <|im_end|>
    json["post_processor"] = serde_json::json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        {"type": "TemplateProcessing",
         "single": [{"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [end],
                                           "tokens": ["<|im_end|>"]}}}]});
    json["padding"] = serde_json::json!({"strategy": "BatchLongest", "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": end, "pad_type_id": 0, "pad_token": "<|im_end|>"});
    let case = Case::small(&serde_json::to_vec(&json).unwrap(), n - 20);
    let new: Value = serde_json::from_slice(&case.json()).unwrap();
    let template = &new["post_processor"]["processors"][1]["special_tokens"]["<|im_end|>"];
    assert_eq!(template["ids"], serde_json::json!([end - 20]));
    assert_eq!(new["padding"]["pad_id"], end - 20);
    assert_eq!(case.after.eos(), Some(end as u32 - 20));
    let reference = tokenizers::Tokenizer::from_bytes(case.json()).unwrap();
    let ids = reference.encode("the theory", true).unwrap().get_ids().to_vec();
    assert_eq!(ids.last(), Some(&(end as u32 - 20)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_is_cut_as_the_theorem_says_and_comes_back(text in any_text()) {
        for (case, pair) in small() {
            same(pair, &text).map_err(TestCaseError::fail)?;
            case.cut_as_before(&text, Special::Parse);
            case.cut_as_before(&text, Special::Text);
            case.text_comes_back(&text);
        }
    }
}

#[test]
fn cheapest_leaves_go_first_and_unwanted_tokens_before_them() {
    let json = &small_files()[0];
    let case = Case::small(json, size(json) - 30);
    let before = case.before.tokenizer();
    // No leaf that went occurs more often than one that stays.
    let mut counts = vec![0u32; before.vocab_size()];
    before.encode(TRAINING_TEXT, Special::Text).iter().for_each(|&id| counts[id as usize] += 1);
    let used: HashSet<u32> = case.kept.iter().flat_map(|&id| before.parts(id)).collect();
    let left = case.kept.iter().filter(|id| before.kind(**id) == Some(Kind::Normal));
    let least = left
        .filter(|id| !used.contains(id) && !before.parts(**id).is_empty())
        .map(|&id| counts[id as usize])
        .min();
    let gone = (0..before.vocab_size() as u32).filter(|id| case.kept.binary_search(id).is_err());
    assert!(gone.map(|id| counts[id as usize]).max() <= least);

    let (folder, vocabulary) = (tempfile::tempdir().unwrap(), case.before);
    let text = folder.path().join("t");
    std::fs::write(&text, TRAINING_TEXT).unwrap();
    let counts = counted(&vocabulary, &[("t", &text)], Part::Whole).unwrap();
    let unwanted = vec![Pattern::new("*think>").unwrap()];
    let options = Options { unwanted, ..options(size(json) - 2) };
    let pruned = vocabulary.prune(&counts, &options).unwrap();
    assert_eq!(pruned.tokenizer().token_to_id(b"<think>"), None);
    assert_eq!(pruned.tokenizer().token_to_id(b"</think>"), None);
    assert!(pruned.tokenizer().token_to_id(b"<|im_end|>").is_some());
}

#[test]
fn weights_decide_whose_tokens_stay() {
    let json = &small_files()[0];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    std::fs::write(&file, json).unwrap();
    let (en, zh) = (folder.path().join("en.txt"), folder.path().join("zh.txt"));
    std::fs::write(&en, "the theory of the thing ".repeat(9)).unwrap();
    std::fs::write(&zh, "天地玄黄，宇宙洪荒。").unwrap();
    let vocabulary = Vocabulary::open_json(&file).unwrap();
    let counts = counted(&vocabulary, &[("en", &en), ("zh", &zh)], Part::Whole).unwrap();
    let lengths = |weight: f64, size: usize| {
        let weights = [("zh".to_owned(), weight), ("en".to_owned(), 1.0)].into();
        let pruned = vocabulary.prune(&counts, &Options { weights, ..options(size) }).unwrap();
        ["the theory of the thing ", "天地玄黄，宇宙洪荒。"]
            .map(|text| pruned.tokenizer().encode(text, Special::Text).len())
    };
    let least = least(&vocabulary);
    let mut differ = 0;
    for size in least..least + 60 {
        let (less, more) = (lengths(0.001, size), lengths(1000.0, size));
        assert!(less[0] <= more[0] && less[1] >= more[1], "{size}: {less:?} {more:?}");
        differ += usize::from(less[0] < more[0] && less[1] > more[1]);
    }
    assert!(differ > 5, "{differ}");
}

// ---- Real tokenizers, where they are -----------------------------------------------------------

const TEXTS: [(&str, &str); 5] = [
    ("en", "corpus/counts-only/wikitext2_valid.txt"),
    ("en", "corpus/en/wordnet_glosses.txt"),
    ("code", "corpus/en/python311_doc_en.txt"),
    ("zh", "corpus/zh/libreoffice_help_zh-CN.txt"),
    ("zh", "corpus/counts-only/manpages_zh_CN.txt"),
];

fn corpora() -> Option<Vec<(&'static str, PathBuf)>> {
    TEXTS.iter().map(|(name, path)| Some((*name, data(path)?))).collect()
}

fn real(vocabulary: Vocabulary, options: &Options) -> Option<Case> {
    let corpora = corpora()?;
    let corpora: Vec<(&str, &Path)> = corpora.iter().map(|(n, p)| (*n, p.as_path())).collect();
    Some(Case::new(vocabulary, &corpora, options))
}

fn qwen3() -> Option<&'static Case> {
    static CASE: OnceLock<Option<Case>> = OnceLock::new();
    let prune = || {
        let file = data("tokenizer/qwen3_tokenizer.json")?;
        real(Vocabulary::open_json(&file).unwrap(), &options(65_536))
    };
    CASE.get_or_init(prune).as_ref()
}

/// Words of corpora, and words made of pieces of tokens, until `n` are cut as before.
fn the_theorem_holds_for(case: &Case, n: usize) {
    let Some(corpora) = corpora() else { return };
    let (mut words, mut same) = (HashSet::new(), 0);
    let mut check = |word: String| {
        if words.insert(word.clone()) {
            same += usize::from(case.cut_as_before(&word, Special::Text));
        }
        same
    };
    for (_, path) in corpora {
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        for line in text.lines() {
            for word in line.split_whitespace() {
                check(word.to_owned());
                if check(format!(" {word}")) >= n / 2 {
                    break;
                }
            }
        }
    }
    let from_texts = same_count(&mut check);
    let mut random = 7u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % n as u64) as usize
    };
    let before = case.before.tokenizer();
    while same_count(&mut check) < n {
        let pieces = (0..1 + below(4)).flat_map(|_| {
            let id = case.kept[below(case.kept.len())];
            before.piece(id).unwrap().to_vec()
        });
        check(String::from_utf8_lossy(&pieces.collect::<Vec<u8>>()).into_owned());
    }
    let made = same_count(&mut check) - from_texts;
    println!("{from_texts} words of texts and {made} made ones");
}

/// How many words were cut as before so far.
fn same_count(check: &mut impl FnMut(String) -> usize) -> usize {
    check(String::new())
}

#[test]
fn qwen3_at_65536_has_the_released_layout() {
    let Some(case) = qwen3() else { return };
    assert_eq!(case.kept.len(), 65_536);
    assert_eq!(case.after.token_to_id(b"<|im_end|>"), Some(65_512));
    assert_eq!(case.after.token_to_id(b"<|endoftext|>"), Some(65_510));
    case.is_closed();
    for byte in 0..=255u8 {
        assert!(case.after.token_to_id(&[byte]).is_some(), "{byte}");
    }
}

#[test]
fn qwen3_cuts_a_million_words_as_before() {
    let Some(case) = qwen3() else { return };
    the_theorem_holds_for(case, 1_000_000);
}

#[test]
fn qwen3_exported_equals_the_reference() {
    let Some(case) = qwen3() else { return };
    let pair = Pair::new(&case.json());
    assert_eq!(pair.ours.spec(), case.after.spec());
    let mut bytes = 0;
    for text in varied_texts(3000) {
        same(&pair, &text).unwrap_or_else(|e| panic!("{e}"));
    }
    for (_, path) in corpora().into_iter().flatten() {
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        for start in (0..text.len()).step_by(text.len() / 200) {
            let (start, end) =
                (text.floor_char_boundary(start), text.floor_char_boundary(start + 2000));
            bytes += end - start;
            same(&pair, &text[start..end]).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    println!("{bytes} bytes of corpora");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn qwen3_gives_any_text_back_composed(text in "\\PC{0,60}") {
        if let Some(case) = qwen3() {
            let ids = case.after.encode(&text, Special::Text);
            prop_assert!(ids.iter().all(|&id| !case.after.is_control(id)));
            prop_assert_eq!(case.after.decode(&ids, false), text.nfc().collect::<String>());
        }
    }
}

/// A GGUF model, converted and pruned.
fn gguf(file: &str, options: &Options) -> Option<Case> {
    let (file, _) = (model(file)?, corpora()?);
    let folder = tempfile::tempdir().unwrap();
    let converted = folder.path().join("m.koudai");
    convert(&file, &converted, &Default::default(), &mut on).unwrap();
    real(Vocabulary::open_model(&converted).unwrap(), options)
}

#[test]
fn smollm2_keeps_its_promises() {
    let Some(case) = gguf("SmolLM2-135M-Instruct.Q4_1.gguf", &options(32_768)) else { return };
    case.is_closed();
    the_theorem_holds_for(&case, 200_000);
    varied_texts(2000).iter().for_each(|text| case.text_comes_back(text));
    the_rows_are_those_of_the_kept(&case);
}

#[test]
fn gemma3_keeps_its_promises() {
    let unwanted = vec![Pattern::new("<unused*>").unwrap()];
    let options = Options { unwanted, ..options(65_536) };
    let Some(case) = gguf("gemma-3-270m-q4_k_m.gguf", &options) else { return };
    let before = case.before.tokenizer();
    let bytes = |t: &Tokenizer| {
        (0..t.vocab_size() as u32).filter(|&id| t.kind(id) == Some(Kind::Byte)).count()
    };
    assert_eq!((bytes(before), bytes(&case.after)), (256, 256));
    assert_eq!(case.after.token_to_id(b"<unused7>"), None);
    // Digits, which no merge has, and what else is a byte of its own.
    for byte in 0..128u8 {
        let there = |t: &Tokenizer| t.token_to_id(&[byte]).is_some();
        assert_eq!(there(before), there(&case.after), "{byte}");
    }
    the_theorem_holds_for(&case, 200_000);
    for text in
        varied_texts(2000).iter().map(String::as_str).chain(["天地玄黄🧑‍🚀é", "龘䶮𠮷\u{10ffff}"])
    {
        let ids = case.after.encode(text, Special::Text);
        assert_eq!(case.after.decode(&ids, false), text);
    }
    the_rows_are_those_of_the_kept(&case);
}

// ---- Models ------------------------------------------------------------------------------------

fn the_rows_are_those_of_the_kept(case: &Case) {
    let (old, new) = (case.before.model().unwrap(), ModelFile::open(&case.output).unwrap());
    new.verify().unwrap();
    assert_eq!(new.config().vocab_size, case.kept.len());
    let tokenizer = Tokenizer::open(new.section(section::TOKENIZER).unwrap()).unwrap();
    assert_eq!(tokenizer.spec(), case.after.spec());
    assert_eq!(new.template().unwrap(), old.template().unwrap());
    assert_eq!(new.defaults().unwrap(), old.defaults().unwrap());
    for t in new.tensors() {
        let source = old.tensor(t.id);
        assert_eq!(t.kind, source.kind);
        if !matches!(t.id.role, Role::Embed | Role::Head) {
            assert_eq!(*new.tensor_bytes(t), *old.tensor_bytes(source), "{}", t.id);
            continue;
        }
        let Shape::Matrix { rows, cols } = t.shape else { panic!("{} is a vector", t.id) };
        assert_eq!(rows, case.kept.len());
        let (old, new) = (old.matrix(t.id), new.matrix(t.id));
        let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
        for (new_row, &old_row) in case.kept.iter().enumerate() {
            old.read_row(old_row as usize, &mut a);
            new.read_row(new_row, &mut b);
            assert_eq!(a, b, "{} row {new_row}", t.id);
            if t.kind.is_quantized() {
                let group = |m: &koudai_kernels::Matrix<'_>, row| m.group(row, 0);
                assert_eq!(group(&old, old_row as usize), group(&new, new_row));
            }
        }
    }
}

#[test]
fn models_of_every_kind_keep_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (folder.path().join("m.koudai"), folder.path().join("text.txt"));
    std::fs::write(&text, TRAINING_TEXT).unwrap();
    let tokenizer = Pair::new(&small_files()[0]).ours.spec();
    let n = tokenizer.tokens.len();
    for tied in [false, true] {
        for kind in Stored::ALL {
            let mut config = TinyModel::new(Family::Qwen3, tied).config;
            config.vocab_size = n + 9; // rows that no token has
            let tokenizer = tokenizer.clone();
            let template = Some("{{ 1 }}".to_owned());
            let spec = SyntheticSpec { config, kind, seed: 3, tokenizer, template };
            write(&file, &spec).unwrap();
            let vocabulary = Vocabulary::open_model(&file).unwrap();
            let case = Case::new(vocabulary, &[("all", &text)], &options(n - 37));
            the_rows_are_those_of_the_kept(&case);
            let meta = ModelFile::open(&case.output).unwrap().meta().unwrap();
            let value = |key: &str| &meta.iter().find(|(k, _)| k == key).unwrap().1;
            assert_eq!(value("name"), "synthetic");
            assert_eq!(*value("pruned_vocab"), format!("{n} to {}", n - 37));
            assert_eq!(value("pruned_from").len(), 64);
            assert!(value("pruned_for").starts_with("all 1 ("));
        }
    }
}

#[test]
fn sections_of_the_old_vocabulary_are_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (folder.path().join("m.koudai"), folder.path().join("text.txt"));
    std::fs::write(&text, TRAINING_TEXT).unwrap();
    let tokenizer = Pair::new(&small_files()[0]).ours.spec();
    let mut config = TinyModel::new(Family::Llama, true).config;
    config.vocab_size = tokenizer.tokens.len();
    let n = config.vocab_size;
    let kind = Stored::Q8;
    write(&file, &SyntheticSpec { config, kind, seed: 3, tokenizer, template: None }).unwrap();
    let old = ModelFile::open(&file).unwrap();
    let with_extra = folder.path().join("extra.koudai");
    let mut writer = koudai::file::FileWriter::create(&with_extra).unwrap();
    writer.config(old.config()).unwrap();
    writer.section(section::TOKENIZER, true, &old.section(section::TOKENIZER).unwrap()).unwrap();
    let defaults = Defaults { top_k: Some(7), ..Default::default() };
    writer.defaults(&defaults).unwrap();
    writer.section("extra", false, b"of the vocabulary").unwrap();
    let headers: Vec<_> = (old.tensors().iter())
        .map(|t| koudai::file::TensorHeader { id: t.id, kind: t.kind })
        .collect();
    let copy = |h: &koudai::file::TensorHeader, _, sink: &mut koudai::file::TensorSink<'_>| {
        sink.write(&old.tensor_bytes(old.tensor(h.id)))
    };
    writer.tensors::<koudai::file::FileError>(old.config(), &headers, copy).unwrap();
    writer.finish().unwrap();

    let vocabulary = Vocabulary::open_model(&with_extra).unwrap();
    let counts = counted(&vocabulary, &[("all", &text)], Part::Whole).unwrap();
    let output = folder.path().join("out.koudai");
    let pruned = vocabulary.prune(&counts, &options(n - 5)).unwrap();
    let notes = pruned.write(&output, &mut on).unwrap();
    assert_eq!(notes, ["section `extra` belongs to the old vocabulary: left out"]);
    assert_eq!(ModelFile::open(&output).unwrap().defaults().unwrap(), defaults);
}

// ---- Corpora and counts ------------------------------------------------------------------------

fn vocabulary(folder: &Path) -> Vocabulary {
    let file = folder.join("tokenizer.json");
    std::fs::write(&file, &small_files()[0]).unwrap();
    Vocabulary::open_json(&file).unwrap()
}

fn parquet_file(texts: &[Option<&str>], rows_per_group: usize) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message m { optional binary text (UTF8); required int32 n; }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let properties =
        WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY).build();
    let mut bytes = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut bytes, schema.into(), properties.into()).unwrap();
    for texts in texts.chunks(rows_per_group) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = texts.iter().flatten().map(|t| ByteArray::from(*t)).collect();
        let levels: Vec<i16> = texts.iter().map(|t| t.is_some() as i16).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let numbers: Vec<i32> = (0..texts.len() as i32).collect();
        column.typed::<parquet::data_type::Int32Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

#[test]
fn every_format_threads_and_merges_count_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let texts: Vec<String> = (0..500).map(|i| format!("the theory {i} 天地\n")).collect();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        folder.path().join(name)
    };
    let lines: String =
        texts.iter().map(|t| serde_json::json!({"n": 1, "text": t}).to_string() + "\n\n").collect();
    let some: Vec<Option<&str>> = texts.iter().flat_map(|t| [Some(t.as_str()), None]).collect();
    let paths = [
        file("a.jsonl", lines.as_bytes()),
        file("a.parquet", &parquet_file(&some, 137)),
        file("a.txt", texts.concat().as_bytes()),
    ];
    let counts = paths.map(|path| counted(&vocabulary, &[("d", &path)], Part::Whole).unwrap());
    assert_eq!(counts[0], counts[1]);
    // The line end of one text and the start of the next are no token together here.
    assert_eq!(counts[0], counts[2]);
    assert_eq!(counts[0].domains()["d"].bytes, texts.concat().len() as u64);

    // The two parts make up the whole.
    for path in ["a.jsonl", "a.parquet"].map(|name| folder.path().join(name)) {
        let mut sum = Counts::new(vocabulary.tokenizer());
        for part in [Part::Counted, Part::HeldOut] {
            let counts = counted(&vocabulary, &[("d", &path)], part).unwrap();
            let share = counts.domains()["d"].bytes as f64 / texts.concat().len() as f64;
            let expected = if part == Part::Counted { 0.9 } else { 0.1 };
            assert!((share - expected).abs() < 0.01, "{share} of {}", path.display());
            // As if counted on another machine.
            let saved = folder.path().join("counts.json");
            counts.save(&saved).unwrap();
            assert_eq!(Counts::load(&saved).unwrap(), counts);
            sum.merge(&Counts::load(&saved).unwrap()).unwrap();
        }
        assert_eq!(sum, counts[0]);
    }

    let sum = |threads| {
        let mut counts = Counts::new(vocabulary.tokenizer());
        let corpora = [Corpus::find("d", folder.path().join("a.*").to_str().unwrap()).unwrap()];
        let reading = Reading { field: "text".into(), part: Part::Whole, threads };
        counts.count(vocabulary.tokenizer(), &corpora, &reading, &mut on).unwrap();
        counts
    };
    assert_eq!(sum(1), sum(5));
    assert_eq!(sum(1).domains()["d"].tokens(), 3 * counts[0].domains()["d"].tokens());
}

#[test]
fn pieces_of_long_texts_end_at_lines_and_characters() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let path = folder.path().join("long.txt");
    for text in ["天".repeat(100_000), "the thing\n".repeat(40_000)] {
        std::fs::write(&path, &text).unwrap();
        let counts = counted(&vocabulary, &[("d", &path)], Part::Whole).unwrap();
        let expected = vocabulary.tokenizer().encode(&text, Special::Text).len() as u64;
        let domain = &counts.domains()["d"];
        assert_eq!((domain.bytes, domain.skipped_bytes), (text.len() as u64, 0));
        assert!(domain.tokens().abs_diff(expected) <= text.len() as u64 / 15_000 + 1);
    }
}

#[test]
fn fertility_is_what_both_tokenizers_say() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let path = folder.path().join("t.txt");
    std::fs::write(&path, TRAINING_TEXT).unwrap();
    let counts = counted(&vocabulary, &[("d", &path)], Part::Whole).unwrap();
    let pruned = vocabulary.prune(&counts, &options(least(&vocabulary))).unwrap();
    let corpora = [Corpus::find("d", path.to_str().unwrap()).unwrap()];
    let (before, after) = (vocabulary.tokenizer(), pruned.tokenizer());
    let all = fertility(before, after, &corpora, &reading(Part::Whole), &mut on).unwrap();
    let of = |t: &Tokenizer| t.encode(TRAINING_TEXT, Special::Text).len() as u64;
    assert_eq!((all["d"].before, all["d"].after), (of(before), of(after)));
    assert_eq!(all["d"].characters, TRAINING_TEXT.chars().count() as u64);
    assert!(of(after) > of(before));
}

// ---- Refusals ----------------------------------------------------------------------------------

#[test]
fn impossible_wishes_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let n = vocabulary.tokenizer().vocab_size();
    let too_many = prune_error(&vocabulary, &options(n + 1));
    assert_eq!(too_many, format!("{} tokens can't be kept: there are {n}", n + 1));
    let too_few = prune_error(&vocabulary, &options(200));
    assert!(too_few.starts_with("200 tokens are too few: "), "{too_few}");
    let weights = [("zh".to_owned(), 2.0)].into();
    let unknown = prune_error(&vocabulary, &Options { weights, ..options(n) });
    assert_eq!(unknown, "there is a weight for `zh`, the domains are all");
    let nothing = Counts::new(vocabulary.tokenizer());
    let error = vocabulary.prune(&nothing, &options(n)).err().unwrap().to_string();
    assert!(error.starts_with("there are no counts"), "{error}");

    let empty = folder.path().join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let counts = counted(&vocabulary, &[("void", &empty)], Part::Whole).unwrap();
    let error = vocabulary.prune(&counts, &options(n)).err().unwrap().to_string();
    assert_eq!(error, "the corpora of `void` have no text to count");

    for (at, name) in [(0, "Unigram"), (0, "WordPiece")] {
        let mut json: Value = serde_json::from_slice(&small_files()[at]).unwrap();
        json["model"]["type"] = name.into();
        let file = folder.path().join("other.json");
        std::fs::write(&file, json.to_string()).unwrap();
        let error = Vocabulary::open_json(&file).err().unwrap().to_string();
        assert!(error.contains("other.json") && error.contains(name), "{error}");
    }
}

#[test]
fn counts_of_another_tokenizer_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let other = folder.path().join("other.json");
    std::fs::write(&other, &small_files()[2]).unwrap();
    let other = Vocabulary::open_json(&other).unwrap();
    let mut counts = Counts::new(vocabulary.tokenizer());
    let error = counts.merge(&Counts::new(other.tokenizer())).unwrap_err().to_string();
    assert_eq!(error, "its counts are of another tokenizer");

    let file = folder.path().join("counts.json");
    counts.save(&file).unwrap();
    let right = std::fs::read_to_string(&file).unwrap();
    for wrong in [
        "".to_owned(),
        "[]".to_owned(),
        right.replace("counts-1", "counts-2"),
        right.replace("{}", r#"{"d":{"bytes":1,"skipped_bytes":0,"counts":{"x":1}}}"#),
        right.replace("{}", r#"{"d":{"bytes":1,"skipped_bytes":0,"counts":{"1":-1}}}"#),
    ] {
        std::fs::write(&file, wrong).unwrap();
        let error = Counts::load(&file).unwrap_err().to_string();
        assert!(error.contains("counts.json: isn't a file of counts"), "{error}");
    }
    let outside = r#"{"d":{"bytes":1,"skipped_bytes":0,"counts":{"99999":1}}}"#;
    std::fs::write(&file, right.replace("{}", outside)).unwrap();
    counts.merge(&Counts::load(&file).unwrap()).unwrap();
    let error = vocabulary.prune(&counts, &options(300)).err().unwrap().to_string();
    assert!(error.starts_with("`d` counts id 99999 of "), "{error}");
}

#[test]
fn broken_corpora_are_named_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let error = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = counted(&vocabulary, &[("d", &path)], Part::Whole).unwrap_err().to_string();
        let prefix = format!("{}: ", path.display());
        error.strip_prefix(&prefix).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let line = "{\"text\": \"a\"}\n";
    assert!(
        error("a.jsonl", format!("{line}\n{{\"text\": \"a\n").as_bytes()).starts_with("line 3: ")
    );
    assert_eq!(error("b.jsonl", format!("{line}{{}}\n").as_bytes()), "line 2: there is no `text`");
    assert_eq!(error("c.jsonl", b"{\"text\": 1}"), "line 1: `text` is no string");
    assert!(error("d.jsonl", b"{\"text\": \"\xff\"}").starts_with("line 1: "));
    assert_eq!(error("e.txt", &[0xff; 1000]), "is not text: a tenth of it isn't UTF-8");
    error("f.parquet", b"");
    error("g.parquet", b"PAR1PAR1PAR1PAR1");
    let whole = parquet_file(&[Some("the thing"), None, Some("天地")], 2);
    error("h.parquet", &whole[..whole.len() - 9]);
    let missing = Corpus::find("d", "no/such/*.txt").unwrap_err().to_string();
    assert_eq!(missing, "no/such/*.txt: there are no files");

    let path = folder.path().join("latin.txt");
    std::fs::write(&path, b"the caf\xe9 in the theory of the thing").unwrap();
    let counts = counted(&vocabulary, &[("d", &path)], Part::Whole).unwrap();
    assert_eq!(counts.domains()["d"].skipped_bytes, 1);
    assert_eq!(counts.domains()["d"].bytes, 34);
}

#[test]
fn no_change_to_a_parquet_file_makes_the_reader_panic() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(folder.path());
    let texts: Vec<String> = (0..90).map(|i| format!("the thing {i}")).collect();
    let texts: Vec<Option<&str>> = texts.iter().map(|t| Some(t.as_str())).collect();
    let whole = parquet_file(&texts, 40);
    let path = folder.path().join("a.parquet");
    for at in 0..whole.len() {
        for change in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            std::fs::write(&path, &bytes).unwrap();
            let _ = counted(&vocabulary, &[("d", &path)], Part::Whole);
        }
        std::fs::write(&path, &whole[..at]).unwrap();
        counted(&vocabulary, &[("d", &path)], Part::Whole).unwrap_err();
    }
}

#[test]
fn what_is_cancelled_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Pair::new(&small_files()[0]).ours.spec();
    let mut config = TinyModel::new(Family::Llama, true).config;
    config.vocab_size = tokenizer.tokens.len();
    let n = config.vocab_size;
    let (file, text) = (folder.path().join("m.koudai"), folder.path().join("text.txt"));
    std::fs::write(&text, TRAINING_TEXT).unwrap();
    let spec = SyntheticSpec { config, kind: Stored::Q8, seed: 3, tokenizer, template: None };
    write(&file, &spec).unwrap();
    let vocabulary = Vocabulary::open_model(&file).unwrap();
    let counts = counted(&vocabulary, &[("d", &text)], Part::Whole).unwrap();
    let pruned = vocabulary.prune(&counts, &options(n - 1)).unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let before = files();
    let stop = &mut |_| koudai::Flow::Break(());
    let error = pruned.write(&folder.path().join("out.koudai"), stop).unwrap_err();
    assert!(matches!(error, Error::Cancelled));
    assert_eq!(files(), before);
    let corpora = [Corpus::find("d", text.to_str().unwrap()).unwrap()];
    let mut counts = Counts::new(vocabulary.tokenizer());
    let error = counts.count(vocabulary.tokenizer(), &corpora, &reading(Part::Whole), stop);
    assert!(matches!(error, Err(Error::Cancelled)));
}
