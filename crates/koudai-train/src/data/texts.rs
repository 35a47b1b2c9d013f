//! Texts as documents: every token is to be predicted.

use koudai::bytes::SharedBytes;
use koudai::tokenizer::{Special, Tokenizer};
use koudai_convert::{Error, FloatModel, corpus};

use super::Reader;
use super::tokens::{Writer, target};
use crate::recipe::Source;

/// Tokenizes texts: beginning-of-sequence where the model wants one, the text, end-of-sequence.
pub struct Texts {
    tokenizer: Tokenizer,
    identity: Vec<u8>,
}

impl Texts {
    /// For a model's tokenizer.
    pub fn of(model: &FloatModel) -> anyhow::Result<Texts> {
        let section = SharedBytes::from(model.tokenizer.clone());
        let tokenizer = Tokenizer::open(section).map_err(anyhow::Error::msg)?;
        Ok(Texts { tokenizer, identity: model.tokenizer.clone() })
    }
}

impl Reader for Texts {
    fn identity(&self) -> Vec<&[u8]> {
        vec![b"texts 1", &self.identity]
    }

    fn read(&self, source: &Source, writer: &mut Writer) -> Result<(), Error> {
        let field = source.field.as_deref().unwrap_or("text");
        let mut document = Document { of: self, ids: Vec::new(), bytes: 0 };
        for file in corpus::find(&source.path)? {
            corpus::read(&file, field, &mut |text| {
                if !text.continues {
                    document.end(writer)?;
                }
                document.add(&text.text);
                Ok(())
            })?;
            document.end(writer)?;
        }
        Ok(())
    }
}

/// A document as far as it has been read.
struct Document<'a> {
    of: &'a Texts,
    ids: Vec<u32>,
    bytes: usize,
}

impl Document<'_> {
    fn add(&mut self, text: &str) {
        self.of.tokenizer.encode_into(text, Special::Text, &mut self.ids);
        self.bytes += text.len();
    }

    fn end(&mut self, writer: &mut Writer) -> Result<(), Error> {
        let tokenizer = &self.of.tokenizer;
        let ids = std::mem::take(&mut self.ids);
        let bytes = std::mem::take(&mut self.bytes);
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        // Without a beginning-of-sequence nothing predicts the first token.
        let unpredicted = match (bos, ids.first()) {
            (None, Some(first)) => tokenizer.piece(*first).map_or(0, <[u8]>::len),
            _ => 0,
        };
        let tokens: Vec<u32> =
            bos.into_iter().chain(ids).chain(tokenizer.eos()).map(target).collect();
        match bytes {
            0 => Ok(()),
            _ => writer.document(&tokens, bytes.saturating_sub(unpredicted) as u64),
        }
    }
}
