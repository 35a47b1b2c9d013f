//! A model's vocabulary, from where its format keeps it to the tokenizer's [`Spec`].
//!
//! Finds keys and files; what they mean is [`crate::tokenizer`]'s.

use koudai::tokenizer::Spec;

use crate::error::Error;
use crate::gguf::Gguf;
use crate::tokenizer::{self, GgufVocab};

/// The tokenizer of a GGUF file with `vocab_size` embedding rows. `pre` stands in for the file's
/// `tokenizer.ggml.pre`.
pub(crate) fn from_gguf(
    file: &Gguf<'_>,
    vocab_size: usize,
    pre: Option<&str>,
) -> Result<Spec, Error> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let strings = |name: &str| -> Result<Option<Vec<&[u8]>>, Error> {
        let Some(array) = file.array(&key(name))? else { return Ok(None) };
        let items = array.strings().ok_or_else(|| Error::key(key(name), "is not all strings"))?;
        Ok(Some(items.collect()))
    };
    let id = |name: &str| -> Result<Option<u32>, Error> {
        let Some(id) = file.uint(&key(name))? else { return Ok(None) };
        // Writers without such a token use -1, as u32.
        if id == u64::from(u32::MAX) {
            return Ok(None);
        }
        match u32::try_from(id) {
            Ok(id) if (id as usize) < vocab_size => Ok(Some(id)),
            _ => Err(Error::key(key(name), format!("is {id}, there are {vocab_size} tokens"))),
        }
    };
    let flag = |name: &str| file.bool(&key(name));
    let model = file.str(&key("model"))?.ok_or_else(|| Error::key(key("model"), "is missing"))?;
    let tokens = strings("tokens")?.ok_or_else(|| Error::key(key("tokens"), "is missing"))?;
    if tokens.len() > vocab_size {
        let why = format!("has {} tokens for {vocab_size} embedding rows", tokens.len());
        return Err(Error::key(key("tokens"), why));
    }
    let scores: Option<Vec<f32>> = match file.array(&key("scores"))? {
        None => None,
        Some(array) => {
            let items = array.floats().ok_or_else(|| Error::key(key("scores"), "is not floats"))?;
            Some(items.map(|s| s as f32).collect())
        }
    };
    let types: Option<Vec<i32>> = match file.array(&key("token_type"))? {
        None => None,
        Some(array) => {
            let error = || Error::key(key("token_type"), "is not small integers");
            let items = array.integers().ok_or_else(error)?;
            Some(items.map(|t| i32::try_from(t).map_err(|_| error())).collect::<Result<_, _>>()?)
        }
    };
    let merges = strings("merges")?;
    let mut other_ends = Vec::new();
    for name in ["eot_token_id", "eom_token_id"] {
        other_ends.extend(id(name)?);
    }
    let vocab = GgufVocab {
        model,
        pre: match pre {
            Some(pre) => Some(pre),
            None => file.str(&key("pre"))?,
        },
        tokens: &tokens,
        scores: scores.as_deref(),
        types: types.as_deref(),
        merges: merges.as_deref(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        other_ends: &other_ends,
        pad: id("padding_token_id")?,
        unk: id("unknown_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
    };
    Ok(tokenizer::spec_from_gguf(&vocab)?)
}
