//! Conversations as documents: an assistant's replies are to be predicted, each with the token that
//! ends it.
//!
//! They are rendered by the engine's own template code, so that what is trained is what runs.

use koudai::bytes::SharedBytes;
use koudai::template::{ChatTemplate, Message, RenderOptions};
use koudai::tokenizer::Tokenizer;
use koudai_convert::corpus::{self, Record};
use koudai_convert::{Error, FloatModel};
use serde_json::Value;

use super::Reader;
use super::tokens::{Writer, target};
use crate::recipe::Source;

/// Reads JSON lines: `{"messages": [{"role": …, "content": …}, …]}`.
pub struct Conversations {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    identity: Vec<u8>,
    bos: String,
    eos: String,
}

/// A conversation as ids, and which ranges of them are replies.
struct Ids {
    ids: Vec<u32>,
    replies: Vec<std::ops::Range<usize>>,
}

impl Conversations {
    /// For a model's tokenizer and template.
    pub fn of(model: &FloatModel) -> anyhow::Result<Conversations> {
        let section = SharedBytes::from(model.tokenizer.clone());
        let tokenizer = Tokenizer::open(section).map_err(anyhow::Error::msg)?;
        let Some(template) = &model.template else {
            anyhow::bail!("the model has no chat template; give one as model.template")
        };
        let spelling = |id: Option<u32>| {
            let piece = id.and_then(|id| tokenizer.piece(id)).unwrap_or_default();
            String::from_utf8_lossy(piece).into_owned()
        };
        Ok(Conversations {
            template: ChatTemplate::parse(template)?,
            identity: model.tokenizer.clone(),
            bos: spelling(tokenizer.bos()),
            eos: spelling(tokenizer.eos()),
            tokenizer,
        })
    }

    fn encode(&self, messages: &[Message], generation: bool) -> Result<Vec<u32>, String> {
        let options = RenderOptions {
            add_generation_prompt: generation,
            bos_token: &self.bos,
            eos_token: &self.eos,
            ..RenderOptions::default()
        };
        let rendered = self.template.render(&self.tokenizer, messages, &options);
        Ok(rendered.map_err(|e| e.to_string())?.encode(&self.tokenizer))
    }

    /// Where the replies are: what the template adds to the conversation before each.
    fn ids(&self, messages: &[Message]) -> Result<Ids, String> {
        let ids = self.encode(messages, false)?;
        let mut replies = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            if message.role != "assistant" {
                continue;
            }
            let prompt = self.encode(&messages[..i], true)?;
            let whole = self.encode(&messages[..=i], false)?;
            if !whole.starts_with(&prompt) || !ids.starts_with(&whole) {
                return Err(format!("the template renders reply {i} otherwise in other places"));
            }
            // What a template writes after the end is the next turn's affair.
            let end = whole.iter().rposition(|id| self.tokenizer.is_end(*id));
            let end = end.filter(|end| *end >= prompt.len()).map_or(whole.len(), |end| end + 1);
            replies.push(prompt.len()..end);
        }
        Ok(Ids { ids, replies })
    }
}

impl Reader for Conversations {
    fn identity(&self) -> Vec<&[u8]> {
        vec![b"conversations 1", &self.identity, self.template.source().as_bytes()]
    }

    fn read(&self, source: &Source, writer: &mut Writer) -> Result<(), Error> {
        let field = source.field.as_deref().unwrap_or("messages");
        for file in corpus::find(&source.path)? {
            corpus::read_records(&file, &mut |record| {
                let messages = messages(&record, field)?;
                let Ids { ids, replies } = self.ids(&messages).map_err(|why| record.error(&why))?;
                if replies.is_empty() {
                    return Err(record.error("no message is an assistant's"));
                }
                let mut tokens = ids;
                for reply in replies {
                    tokens[reply].iter_mut().for_each(|token| *token = target(*token));
                }
                let replies = messages.iter().filter(|m| m.role == "assistant");
                writer.document(&tokens, replies.map(|m| m.content.len() as u64).sum())
            })?;
        }
        Ok(())
    }
}

/// The messages of a record.
fn messages(record: &Record, field: &str) -> Result<Vec<Message>, Error> {
    let Some(Value::Array(list)) = record.members.get(field) else {
        return Err(record.error(&format!("`{field}` isn't a list of messages")));
    };
    let text = |message: &Value, key: &str| match message.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => Err(record.error(&format!("a message has no `{key}` that is a string"))),
    };
    let message = |m| Ok(Message::new(text(m, "role")?, text(m, "content")?));
    list.iter().map(message).collect()
}
