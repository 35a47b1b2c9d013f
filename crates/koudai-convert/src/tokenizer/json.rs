//! Hugging Face `tokenizer.json` as a [`Spec`].
//!
//! Each component is compared whole with the few forms we reproduce exactly. What only concerns
//! offsets, truncation or padding is ignored: ids don't depend on it. Start at
//! [`spec_from_tokenizer_json`].

use std::collections::HashMap;

use koudai::tokenizer::{Kind, Matched, Merge, Normalizer, Pretokenizer, Spec, Token};
use serde_json::{Map, Value, json};

use super::{Error, byte_level_piece, byte_token, set_ends, unsupported};

/// The files that together describe a tokenizer.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`, or `special_tokens_map.json` if there is no other: roles of tokens.
    pub config: Option<&'a [u8]>,
    /// `eos_token_id` of `generation_config.json` (or `config.json`), as a list.
    pub end_ids: &'a [u32],
}

/// Makes the description of a tokenizer, or says which component can't be had exactly.
pub fn spec_from_tokenizer_json(files: &TokenizerFiles<'_>) -> Result<Spec, Error> {
    let root: Map<String, Value> = serde_json::from_slice(files.tokenizer)?;
    let config: Map<String, Value> = match files.config {
        Some(json) => serde_json::from_slice(json)?,
        None => Map::new(),
    };
    let known = [
        "version",
        "truncation",
        "padding",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "model",
    ];
    only_keys(&root, &known, "file")?;
    let part = |key: &str| root.get(key).unwrap_or(&Value::Null);

    let normalizer = normalizer(part("normalizer"))?;
    let pretokenizer = pretokenizer(part("pre_tokenizer"), normalizer)?;
    let characters = pretokenizer == Pretokenizer::None;
    let Value::Object(model) = part("model") else {
        return Err(Error::Missing("model".to_owned()));
    };
    let model = Model::read(model, characters)?;
    let added = added_tokens(part("added_tokens"), &model)?;
    check_added_in_config(&config, &added)?;

    let roles = Roles::read(&config, &added, &model)?;
    let post = post_processor(part("post_processor"))?;
    for (role, configured, added) in
        [("bos", roles.bos, post.before), ("eos", roles.eos, post.after)]
    {
        if let (Some(a), Some(b)) = (configured, added)
            && a != b
        {
            return Err(Error::Conflict(format!("{role} is {a} but the post-processor adds {b}")));
        }
        let asked = config.get(format!("add_{role}_token").as_str());
        if let Some(&Value::Bool(asked)) = asked
            && asked != added.is_some()
        {
            return Err(Error::Conflict(format!(
                "add_{role}_token is {asked}, the post-processor says {}",
                added.is_some()
            )));
        }
    }

    let mut spec = Spec {
        normalizer,
        pretokenizer,
        byte_fallback: model.byte_fallback,
        ignore_merges: model.ignore_merges,
        fuse_unk: model.fuse_unk,
        strip_leading_space: strips_leading_space(part("decoder"), characters)?,
        bos: roles.bos.or(post.before),
        eos: roles.eos.or(post.after),
        pad: roles.pad,
        unk: model.unk,
        add_bos: post.before.is_some(),
        add_eos: post.after.is_some(),
        ..Spec::default()
    };
    spec.tokens = tokens(&model, &added, &spec, characters)?;
    spec.merges = model.merges()?;
    set_ends(&mut spec, files.end_ids.iter().copied());
    spec.to_bytes()?; // all the rules a section has
    Ok(spec)
}

/// The BPE model, borrowed from the JSON.
struct Model<'a> {
    vocab: HashMap<&'a str, u32>,
    merges: &'a [Value],
    unk: Option<u32>,
    byte_fallback: bool,
    ignore_merges: bool,
    fuse_unk: bool,
}

impl<'a> Model<'a> {
    fn read(model: &'a Map<String, Value>, characters: bool) -> Result<Self, Error> {
        let kind = model.get("type").unwrap_or(&Value::Null);
        if kind != "BPE" {
            return Err(unsupported("model", kind));
        }
        let known = [
            "type",
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "fuse_unk",
            "byte_fallback",
            "ignore_merges",
            "vocab",
            "merges",
        ];
        only_keys(model, &known, "model")?;
        let off = |key: &str, allowed: &[Value]| match model.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if allowed.contains(value) => Ok(()),
            Some(value) => Err(unsupported(&format!("model {key}"), value)),
        };
        off("dropout", &[json!(0.0), json!(0)])?;
        off("continuing_subword_prefix", &[json!("")])?;
        off("end_of_word_suffix", &[json!("")])?;
        let flag = |key: &str| match model.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(&Value::Bool(on)) => Ok(on),
            Some(other) => Err(unsupported(&format!("model {key}"), other)),
        };
        let (Some(Value::Object(vocab)), Some(Value::Array(merges))) =
            (model.get("vocab"), model.get("merges"))
        else {
            return Err(Error::Missing("model vocab or merges".to_owned()));
        };
        let mut ids = HashMap::with_capacity(vocab.len());
        for (piece, id) in vocab {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let Some(id) = id else {
                return Err(Error::Conflict(format!("token {piece:?} has no proper id")));
            };
            ids.insert(piece.as_str(), id);
        }
        let unk = match model.get("unk_token") {
            None | Some(Value::Null) => None,
            Some(Value::String(unk)) => match ids.get(unk.as_str()) {
                Some(&id) => Some(id),
                None => return Err(Error::Missing(format!("unknown token {unk:?} in vocab"))),
            },
            Some(other) => return Err(unsupported("model unk_token", other)),
        };
        let byte_fallback = flag("byte_fallback")?;
        if byte_fallback && !characters {
            return Err(unsupported("model", "byte_fallback in a byte-level vocabulary"));
        }
        Ok(Self {
            vocab: ids,
            merges,
            unk,
            byte_fallback,
            ignore_merges: flag("ignore_merges")?,
            fuse_unk: flag("fuse_unk")?,
        })
    }

    fn merges(&self) -> Result<Vec<Merge>, Error> {
        let mut merges = Vec::with_capacity(self.merges.len());
        for (rank, merge) in self.merges.iter().enumerate() {
            let pair = match merge {
                Value::String(pair) => pair.split_once(' ').filter(|(_, r)| !r.contains(' ')),
                Value::Array(pair) => match pair.as_slice() {
                    [Value::String(left), Value::String(right)] => Some((&**left, &**right)),
                    _ => None,
                },
                _ => None,
            };
            let ids = pair.and_then(|(left, right)| {
                let result = self.vocab.get(format!("{left}{right}").as_str())?;
                Some((*self.vocab.get(left)?, *self.vocab.get(right)?, *result))
            });
            let Some((left, right, result)) = ids else {
                return Err(Error::Conflict(format!(
                    "merge {rank} {merge} isn't in the vocabulary"
                )));
            };
            merges.push(Merge { left, right, result, rank: rank as u32 });
        }
        Ok(merges)
    }
}

/// An entry of `added_tokens`.
struct Added<'a> {
    id: u32,
    content: &'a str,
    special: bool,
    normalized: bool,
}

fn added_tokens<'a>(list: &'a Value, model: &Model<'_>) -> Result<Vec<Added<'a>>, Error> {
    let list = match list {
        Value::Null => &[],
        Value::Array(list) => list.as_slice(),
        other => return Err(unsupported("added_tokens", other)),
    };
    let mut added: Vec<Added<'_>> = Vec::with_capacity(list.len());
    // Tokens that aren't in the model get the ids after it, in order: the file must agree.
    let mut next = model.vocab.len() as u32;
    for entry in list {
        let Value::Object(entry) = entry else {
            return Err(unsupported("added token", entry));
        };
        let known = ["id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"];
        only_keys(entry, &known, "added token")?;
        let id = entry.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let content = entry.get("content").and_then(Value::as_str);
        let (Some(id), Some(content)) = (id, content) else {
            return Err(Error::Missing("id or content of an added token".to_owned()));
        };
        let flag = |key| entry.get(key).and_then(Value::as_bool);
        for attribute in ["single_word", "lstrip", "rstrip"] {
            if flag(attribute) == Some(true) {
                let found = format!("{attribute} of token {id} {content:?}");
                return Err(unsupported("added token attribute", found));
            }
        }
        let special = flag("special").unwrap_or(false);
        let expected = model.vocab.get(content).copied().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        if id != expected {
            return Err(Error::Conflict(format!(
                "added token {content:?} says id {id} but gets {expected}"
            )));
        }
        let normalized = flag("normalized").unwrap_or(!special);
        added.push(Added { id, content, special, normalized });
    }
    Ok(added)
}

/// `added_tokens_decoder` of the configuration may repeat the list but not change it.
fn check_added_in_config(config: &Map<String, Value>, added: &[Added<'_>]) -> Result<(), Error> {
    let Some(Value::Object(entries)) = config.get("added_tokens_decoder") else {
        return Ok(());
    };
    for (id, entry) in entries {
        let same = added.iter().any(|token| {
            token.id.to_string() == *id
                && entry.get("content").and_then(Value::as_str) == Some(token.content)
                && entry.get("special").is_none_or(|special| special == token.special)
        });
        if !same {
            return Err(Error::Conflict(format!(
                "added_tokens_decoder has token {id} {} otherwise than the tokenizer",
                entry.get("content").unwrap_or(&Value::Null)
            )));
        }
    }
    Ok(())
}

/// Ids of the tokens that a configuration gives a role.
struct Roles {
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
}

impl Roles {
    fn read(
        config: &Map<String, Value>,
        added: &[Added<'_>],
        model: &Model<'_>,
    ) -> Result<Self, Error> {
        let role = |key: &str| {
            let content = match config.get(key) {
                None | Some(Value::Null) => return Ok(None),
                Some(Value::String(content)) => Some(content.as_str()),
                Some(token) => token.get("content").and_then(Value::as_str),
            };
            let Some(content) = content else {
                return Err(unsupported(key, &config[key]));
            };
            let found = added.iter().find(|token| token.content == content).map(|t| t.id);
            match found.or_else(|| model.vocab.get(content).copied()) {
                Some(id) => Ok(Some(id)),
                None => Err(Error::Missing(format!("{key} {content:?} in its vocabulary"))),
            }
        };
        Ok(Self { bos: role("bos_token")?, eos: role("eos_token")?, pad: role("pad_token")? })
    }
}

/// All tokens in id order; ids that nothing names are unused.
fn tokens(
    model: &Model<'_>,
    added: &[Added<'_>],
    spec: &Spec,
    characters: bool,
) -> Result<Vec<Token>, Error> {
    let named = model.vocab.len() + added.len();
    let ids = model.vocab.values().copied().chain(added.iter().map(|token| token.id));
    let count = ids.max().map_or(0, |id| id as usize + 1);
    if count > 2 * named + 1024 {
        return Err(Error::Conflict(format!("{named} tokens but ids up to {}", count - 1)));
    }
    let unused = Token { piece: Vec::new(), kind: Kind::Unused, matched: Matched::Never };
    let mut tokens = vec![unused; count];
    let mut set = |id: u32, token: Token, shown: &str| {
        let slot = &mut tokens[id as usize];
        if slot.kind != Kind::Unused {
            return Err(Error::Conflict(format!("token {shown:?} has the id {id} of another")));
        }
        *slot = token;
        Ok(())
    };
    for token in added {
        // An unknown token with another role stays control: text mustn't be able to make it.
        let other_role = [spec.bos, spec.eos, spec.pad].contains(&Some(token.id));
        let kind = match token.special {
            true if spec.unk == Some(token.id) && !other_role => Kind::Unknown,
            true => Kind::Control,
            false => Kind::UserDefined,
        };
        let matched = if token.normalized { Matched::Normalized } else { Matched::Raw };
        let piece = token.content.as_bytes().to_vec();
        set(token.id, Token { piece, kind, matched }, token.content)?;
    }
    let added_ids: HashMap<&str, u32> = added.iter().map(|t| (t.content, t.id)).collect();
    for (&piece, &id) in &model.vocab {
        if added_ids.contains_key(piece) {
            continue;
        }
        let (real, kind) = match (characters, byte_token(piece.as_bytes())) {
            (true, Some(byte)) if spec.byte_fallback => (vec![byte], Kind::Byte),
            (true, _) => (piece.as_bytes().to_vec(), Kind::Normal),
            (false, _) => match byte_level_piece(piece) {
                Some(real) => (real, Kind::Normal),
                None => {
                    return Err(unsupported("vocabulary", format_args!("token {id} {piece:?}")));
                }
            },
        };
        set(id, Token { piece: real, kind, matched: Matched::Never }, piece)?;
    }
    Ok(tokens)
}

/// Each space becomes `▁`.
pub(super) fn space() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

/// One `▁` is put first.
pub(super) fn prepend() -> Value {
    json!({"type": "Prepend", "prepend": "▁"})
}

fn normalizer(value: &Value) -> Result<Normalizer, Error> {
    match flat(value, "normalizers")?.as_slice() {
        [] => Ok(Normalizer::None),
        [one] if **one == json!({"type": "NFC"}) => Ok(Normalizer::Nfc),
        [one] if **one == space() => Ok(Normalizer::Metaspace),
        [first, second] if **first == prepend() && **second == space() => {
            Ok(Normalizer::MetaspacePrepend)
        }
        _ => Err(unsupported("normalizer", value)),
    }
}

const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How Qwen 2 splits numbers: into single digits.
pub(super) const DIGIT: &str = r"\p{N}";
/// How Llama 3 does: into threes.
pub(super) const DIGITS: &str = r"\p{N}{1,3}";

/// The split of Qwen 2 and Llama 3, which differ in `digits`.
pub(super) fn cl100k(digits: &str) -> Value {
    let regex = CL100K.replace("DIGITS", digits);
    let pattern = json!({ "Regex": regex });
    json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
}

fn pretokenizer(value: &Value, normalizer: Normalizer) -> Result<Pretokenizer, Error> {
    let metaspace = matches!(normalizer, Normalizer::Metaspace | Normalizer::MetaspacePrepend);
    // Splits at spaces where there are none left: nothing happens.
    let at_spaces = |step: &Value| {
        step["type"] == "Split"
            && step["pattern"] == json!({"String": " "})
            && step["invert"] == json!(false)
    };
    let steps = flat(value, "pretokenizers")?;
    let found = match steps.as_slice() {
        [] if metaspace => Pretokenizer::None,
        [one] if metaspace && at_spaces(one) => Pretokenizer::None,
        [one] if byte_level_with_regex(one) == Some(true) => Pretokenizer::Gpt2,
        [digits, last]
            if **digits == json!({"type": "Digits", "individual_digits": true})
                && byte_level_with_regex(last) == Some(true) =>
        {
            Pretokenizer::SmolLm
        }
        [first, last] if byte_level_with_regex(last) == Some(false) => match *first {
            first if *first == cl100k(DIGIT) => Pretokenizer::Qwen2,
            first if *first == cl100k(DIGITS) => Pretokenizer::Llama3,
            _ => return Err(unsupported("pre-tokenizer", shown_regex(value))),
        },
        _ => return Err(unsupported("pre-tokenizer", shown_regex(value))),
    };
    if metaspace != (found == Pretokenizer::None) {
        return Err(unsupported("combination of normalizer and pre-tokenizer", value));
    }
    Ok(found)
}

/// The regular expression inside, unescaped, if there is one, else the whole component.
fn shown_regex(value: &Value) -> String {
    let steps = flat(value, "pretokenizers").unwrap_or_default();
    let regex = steps.iter().find_map(|step| step["pattern"]["Regex"].as_str());
    regex.map_or_else(|| value.to_string(), |regex| format!("regular expression {regex}"))
}

/// Whether a `ByteLevel` step uses GPT-2's pattern; `None` if it is something else.
fn byte_level_with_regex(step: &Value) -> Option<bool> {
    let known = ["type", "add_prefix_space", "trim_offsets", "use_regex"];
    let step = step.as_object().filter(|step| only_keys(step, &known, "").is_ok())?;
    let plain = step.get("type") == Some(&json!("ByteLevel"))
        && step.get("add_prefix_space") == Some(&json!(false));
    let regex = step.get("use_regex").unwrap_or(&Value::Bool(true)).as_bool()?;
    plain.then_some(regex)
}

/// What decoders of SentencePiece-style vocabularies do first.
pub(super) fn decoder_start() -> [Value; 3] {
    [
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ]
}

/// Then some drop one leading space.
pub(super) fn strip() -> Value {
    json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})
}

/// Checks the decoder; says whether it drops a space at the start.
fn strips_leading_space(value: &Value, characters: bool) -> Result<bool, Error> {
    let steps = flat(value, "decoders")?;
    if !characters {
        return match steps.as_slice() {
            [one] if one["type"] == "ByteLevel" => Ok(false),
            _ => Err(unsupported("decoder", value)),
        };
    }
    let known = steps.len() >= 3 && steps.iter().zip(decoder_start()).all(|(a, b)| **a == b);
    match steps.get(3..) {
        Some([]) if known => Ok(false),
        Some([last]) if known && **last == strip() => Ok(true),
        _ => Err(unsupported("decoder", value)),
    }
}

/// Single tokens that a post-processor puts around a text.
#[derive(Default)]
struct PostProcessor {
    before: Option<u32>,
    after: Option<u32>,
}

fn post_processor(value: &Value) -> Result<PostProcessor, Error> {
    let mut steps = flat(value, "processors")?;
    steps.retain(|step| step["type"] != "ByteLevel"); // moves offsets only
    match steps.as_slice() {
        [] => Ok(PostProcessor::default()),
        [template] if template["type"] == "TemplateProcessing" => {
            let single = template["single"].as_array().map_or(&[][..], Vec::as_slice);
            let is_text = |piece: &Value| piece["Sequence"]["id"] == "A";
            let token = |piece: &Value| {
                let name = piece["SpecialToken"]["id"].as_str()?;
                match template["special_tokens"][name]["ids"].as_array()?.as_slice() {
                    [id] => id.as_u64().and_then(|id| u32::try_from(id).ok()),
                    _ => None,
                }
            };
            let (before, after) = match single {
                [text] if is_text(text) => (None, None),
                [bos, text] if is_text(text) => (Some(bos), None),
                [text, eos] if is_text(text) => (None, Some(eos)),
                [bos, text, eos] if is_text(text) => (Some(bos), Some(eos)),
                _ => return Err(unsupported("post-processor", value)),
            };
            let id = |piece: Option<&Value>| match piece.map(token) {
                Some(None) => Err(unsupported("post-processor", value)),
                other => Ok(other.flatten()),
            };
            Ok(PostProcessor { before: id(before)?, after: id(after)? })
        }
        _ => Err(unsupported("post-processor", value)),
    }
}

/// The steps of a component: none for null, those of a `Sequence`, or itself.
fn flat<'a>(value: &'a Value, list_key: &str) -> Result<Vec<&'a Value>, Error> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    if value["type"] != "Sequence" {
        return Ok(vec![value]);
    }
    match value[list_key].as_array() {
        Some(steps) => Ok(steps.iter().collect()),
        None => Err(Error::Missing(format!("{list_key} of a Sequence"))),
    }
}

fn only_keys(object: &Map<String, Value>, known: &[&str], component: &str) -> Result<(), Error> {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(unsupported(component, format_args!("unknown key {key:?}"))),
        None => Ok(()),
    }
}
