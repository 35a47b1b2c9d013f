//! A conversation: messages, the template that turns them into a prompt, and a session.
//!
//! Start with [`Chat::send`]. When a conversation outgrows the context, the oldest exchanges are left
//! out of the prompt, the system message never; [`Reply::dropped`] says how many messages are.

use crate::session::{Flow, GenerateParams, Generation, Session};
use crate::template::{ChatTemplate, Message, RenderOptions};
use crate::{Engine, Error};

/// A conversation with a model.
pub struct Chat {
    session: Session,
    template: ChatTemplate,
    system: Option<String>,
    messages: Vec<Message>,
}

/// What came back for a message.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The reply and how it was made.
    pub generation: Generation,
    /// Oldest messages that no longer fit the context.
    pub dropped: usize,
}

impl Chat {
    /// An empty conversation. Fails if the model has no chat template, or one that can't be used.
    pub fn new(session: Session, system: Option<&str>) -> Result<Chat, Error> {
        let template = session.engine().chat_template()?;
        let system = system.map(str::to_owned);
        Ok(Chat { session, template, system, messages: Vec::new() })
    }

    /// The messages so far, without the system's.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The session underneath.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session underneath, to save or restore it; its tokens are only a cache here.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Forgets all messages.
    pub fn reset(&mut self) {
        self.messages.clear();
    }

    /// Replaces the messages: users' and assistant's in turn, without the system's.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// Adds a user's message, generates the reply and adds that. `each` sees tokens as in
    /// [`Session::generate`]. On an error the conversation is as before.
    pub fn send(
        &mut self,
        text: &str,
        params: &GenerateParams,
        each: impl FnMut(u32, &str) -> Flow,
    ) -> Result<Reply, Error> {
        self.messages.push(Message::new("user", text));
        let result = self.reply(params, each);
        match &result {
            Ok(reply) => {
                self.messages.push(Message::new("assistant", reply.generation.text.clone()));
            }
            Err(_) => {
                self.messages.pop();
            }
        }
        result
    }

    fn reply(
        &mut self,
        params: &GenerateParams,
        each: impl FnMut(u32, &str) -> Flow,
    ) -> Result<Reply, Error> {
        let context = self.session.context();
        let reserve = params.max_tokens.min(context / 4);
        let mut dropped = 0;
        let prompt = loop {
            let prompt = self.prompt(dropped)?;
            if prompt.len() + reserve <= context {
                break prompt;
            }
            // An exchange at a time; the new message itself stays.
            if dropped + 2 >= self.messages.len() {
                if prompt.len() < context {
                    break prompt;
                }
                return Err(Error::ContextFull { needed: prompt.len(), context });
            }
            dropped += 2;
        };
        let generation = self.session.generate(&prompt, params, each)?;
        Ok(Reply { generation, dropped })
    }

    /// The prompt's tokens without the `dropped` oldest messages.
    fn prompt(&self, dropped: usize) -> Result<Vec<u32>, Error> {
        let system = self.system.iter().map(|s| Message::new("system", s.as_str()));
        let messages: Vec<Message> =
            system.chain(self.messages[dropped..].iter().cloned()).collect();
        self.session.engine().chat_prompt(&self.template, &messages)
    }
}

impl Engine {
    /// The model's chat template. Fails if it has none, or one that can't be used.
    pub fn chat_template(&self) -> Result<ChatTemplate, Error> {
        let source = self.template().ok_or_else(|| Error::NoTemplate(self.path().into()))?;
        ChatTemplate::parse(source).map_err(Error::Template)
    }

    /// The tokens of a conversation, up to where the model's reply begins. Control tokens come from
    /// the template only, never from a message.
    pub fn chat_prompt(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer();
        let spelling = |id: Option<u32>| {
            let piece = id.and_then(|id| tokenizer.piece(id)).unwrap_or_default();
            String::from_utf8_lossy(piece).into_owned()
        };
        let options = RenderOptions {
            add_generation_prompt: true,
            bos_token: &spelling(tokenizer.bos()),
            eos_token: &spelling(tokenizer.eos()),
            tools: None,
            variables: &[],
            time: None,
        };
        let rendered = template.render(tokenizer, messages, &options).map_err(Error::Template)?;
        Ok(rendered.encode(tokenizer))
    }
}
