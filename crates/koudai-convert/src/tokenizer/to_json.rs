//! A [`Spec`] as a Hugging Face `tokenizer.json`, the inverse of [`super::json`].
//!
//! Start with [`tokenizer_json`].

use koudai::tokenizer::{Kind, Matched, Normalizer, Pretokenizer, Spec, Token};
use serde_json::{Map, Value, json};

use super::json::{DIGIT, DIGITS, TokenizerFiles, cl100k, decoder_start, prepend, space, strip};
use super::{Error, byte_level_text, faithful, spec_from_tokenizer_json, unsupported};

/// The file, and what its readers will do otherwise. Refuses what would give other ids.
pub(crate) fn tokenizer_json(
    spec: &Spec,
    config: &Map<String, Value>,
) -> Result<(Vec<u8>, Vec<String>), Error> {
    let unk = spec.unk.filter(|id| spec.tokens[*id as usize].kind != Kind::Control);
    let added = spec.tokens.iter().enumerate().filter(|(_, t)| is_added(t)).map(|(id, token)| {
        json!({
            "id": id, "content": spelling(spec, token), "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": token.matched == Matched::Normalized,
            "special": matches!(token.kind, Kind::Control | Kind::Unknown),
        })
    });
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normalizer(spec),
        "pre_tokenizer": pretokenizer(spec),
        "post_processor": post_processor(spec),
        "decoder": decoder(spec),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unk.map(|id| spelling(spec, &spec.tokens[id as usize])),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": spec.fuse_unk,
            "byte_fallback": spec.byte_fallback,
            "ignore_merges": spec.ignore_merges,
            "vocab": vocab(spec)?,
            "merges": merges(spec),
        },
    });
    let bytes = serde_json::to_vec(&file)?;
    let back = spec_from_tokenizer_json(&TokenizerFiles {
        tokenizer: &bytes,
        config: Some(&serde_json::to_vec(config)?),
        end_ids: &spec.ends,
    })?;
    let notes = faithful::compare(spec, &back, "tokenizer.json")?;
    Ok((bytes, notes))
}

/// Found whole in a text, before it is split.
fn is_added(token: &Token) -> bool {
    token.matched != Matched::Never
        || matches!(token.kind, Kind::Control | Kind::UserDefined | Kind::Unknown)
}

/// A token as the file spells it.
pub(crate) fn spelling(spec: &Spec, token: &Token) -> String {
    match token.kind {
        Kind::Byte => token.piece.iter().map(|b| format!("<0x{b:02X}>")).collect(),
        _ if is_added(token) || spec.pretokenizer == Pretokenizer::None => {
            String::from_utf8_lossy(&token.piece).into_owned()
        }
        _ => byte_level_text(&token.piece),
    }
}

/// All tokens that mean something. Added ones are among them, as readers number those that aren't
/// by themselves.
fn vocab(spec: &Spec) -> Result<Map<String, Value>, Error> {
    let mut vocab = Map::new();
    for (id, token) in spec.tokens.iter().enumerate().filter(|(_, t)| t.kind != Kind::Unused) {
        if vocab.insert(spelling(spec, token), id.into()).is_some() {
            let found = format!("token {id} is spelled as another one is");
            return Err(unsupported("vocabulary", found));
        }
    }
    Ok(vocab)
}

/// Merges in their order. Where it leaves open which of several goes first, the longest left part
/// does: in a run of equal characters that is the leftmost pair, and what conversions of
/// SentencePiece models do.
fn merges(spec: &Spec) -> Value {
    let text = |id: u32| spelling(spec, &spec.tokens[id as usize]);
    let left_bytes = |id: u32| std::cmp::Reverse(spec.tokens[id as usize].piece.len());
    let mut merges: Vec<_> = spec.merges.iter().collect();
    merges.sort_by_key(|m| (m.rank, m.result, left_bytes(m.left)));
    merges.iter().map(|m| json!([text(m.left), text(m.right)])).collect()
}

fn normalizer(spec: &Spec) -> Value {
    match spec.normalizer {
        Normalizer::None => Value::Null,
        Normalizer::Nfc => json!({"type": "NFC"}),
        Normalizer::Metaspace => space(),
        Normalizer::MetaspacePrepend => {
            json!({"type": "Sequence", "normalizers": [prepend(), space()]})
        }
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
           "use_regex": use_regex})
}

fn pretokenizer(spec: &Spec) -> Value {
    let sequence = |steps: [Value; 2]| json!({"type": "Sequence", "pretokenizers": steps});
    match spec.pretokenizer {
        Pretokenizer::None => Value::Null,
        Pretokenizer::Gpt2 => byte_level(true),
        Pretokenizer::SmolLm => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            sequence([digits, byte_level(true)])
        }
        Pretokenizer::Qwen2 => sequence([cl100k(DIGIT), byte_level(false)]),
        Pretokenizer::Llama3 => sequence([cl100k(DIGITS), byte_level(false)]),
    }
}

fn post_processor(spec: &Spec) -> Value {
    let text = |id: u32| spelling(spec, &spec.tokens[id as usize]);
    let before = spec.bos.filter(|_| spec.add_bos);
    let after = spec.eos.filter(|_| spec.add_eos);
    if before.or(after).is_none() {
        return Value::Null;
    }
    let around = |sequence: &str, kind: u32| -> Vec<Value> {
        let special = |id: u32| json!({"SpecialToken": {"id": text(id), "type_id": kind}});
        let part = json!({"Sequence": {"id": sequence, "type_id": kind}});
        before.map(special).into_iter().chain([part]).chain(after.map(special)).collect()
    };
    let pair = [around("A", 0), around("B", 1)].concat();
    let mut special_tokens = Map::new();
    for id in before.into_iter().chain(after) {
        let token = json!({"id": text(id), "ids": [id], "tokens": [text(id)]});
        special_tokens.insert(text(id), token);
    }
    json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": special_tokens,
    })
}

fn decoder(spec: &Spec) -> Value {
    if spec.pretokenizer != Pretokenizer::None {
        return byte_level(true);
    }
    let strip = spec.strip_leading_space.then(strip);
    let steps: Vec<Value> = decoder_start().into_iter().chain(strip).collect();
    json!({"type": "Sequence", "decoders": steps})
}
