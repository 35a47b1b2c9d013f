//! A model that runs here: choices share their context's keys and values, and several answers are
//! generated in the same passes.
//!
//! The engine gives a row the same bits whatever else is in its pass, so neither the batch nor what
//! is reused changes a result.

use koudai::sampler::Sampler;
use koudai::template::{ChatTemplate, Message};
use koudai::tokenizer::{DecodeStream, Special};
use koudai::{CancelToken, Engine, SamplingParams, Session, SessionOptions, TokenScore};

use super::Model;
use crate::Error;
use crate::tasks::{Choice, Likelihood, Prompt};

/// A common beginning shorter than this isn't worth copying.
const WORTH_COPYING: usize = 16;

/// An open model and its sessions.
pub struct Local {
    engine: Engine,
    options: SessionOptions,
    template: Option<ChatTemplate>,
    cancel: CancelToken,
    batch: usize,
    sessions: Vec<Session>,
    /// The first session's tokens when `logits` are what follows them.
    scored: Vec<u32>,
    logits: Vec<f32>,
    truncated: usize,
}

impl Local {
    /// A model that generates up to `batch` answers at once. With `chat`, prompts become a user's
    /// message in the model's template. Fails if it has no template then, or the sessions can't be.
    pub fn new(
        engine: &Engine,
        options: SessionOptions,
        chat: bool,
        batch: usize,
        cancel: CancelToken,
    ) -> Result<Local, Error> {
        let template = chat.then(|| engine.chat_template()).transpose()?;
        let mut local = Local {
            engine: engine.clone(),
            options,
            template,
            cancel,
            batch: batch.max(1),
            sessions: Vec::new(),
            scored: Vec::new(),
            logits: Vec::new(),
            truncated: 0,
        };
        local.reserve(1)?;
        Ok(local)
    }

    /// Makes sure that there are `n` sessions.
    fn reserve(&mut self, n: usize) -> Result<(), Error> {
        while self.sessions.len() < n {
            let mut session = Session::new(&self.engine, &self.options)?;
            session.set_cancel_token(self.cancel.clone());
            self.sessions.push(session);
        }
        Ok(())
    }

    /// The tokens of a prompt.
    fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match &self.template {
            Some(template) => {
                Ok(self.engine.chat_prompt(template, &[Message::new("user", text)])?)
            }
            None => Ok(self.engine.tokenizer().encode_prompt(text, Special::Text)),
        }
    }

    /// The tokens of a context and of its continuation, as the harness splits them: spaces at the
    /// context's end belong to the continuation, and both are tokenized together.
    fn encode_choice(&self, choice: &Choice) -> Result<(Vec<u32>, Vec<u32>), Error> {
        let tokenizer = self.engine.tokenizer();
        if self.template.is_some() {
            let continuation = tokenizer.encode(&choice.continuation, Special::Text);
            return Ok((self.encode(&choice.context)?, continuation));
        }
        let context = choice.context.trim_end();
        let whole = format!("{}{}", choice.context, choice.continuation);
        let mut before = tokenizer.encode_prompt(context, Special::Text);
        let mut whole = tokenizer.encode_prompt(&whole, Special::Text);
        let after = whole.split_off(before.len().min(whole.len()));
        if before.is_empty() {
            before.extend(tokenizer.bos().or(tokenizer.eos()));
        }
        Ok((before, after))
    }

    /// Drops the beginning of tokens that leave no room for `room` more.
    fn fit(&mut self, tokens: &mut Vec<u32>, room: usize) {
        let most = self.sessions[0].context().saturating_sub(room).max(1);
        if tokens.len() > most {
            tokens.drain(..tokens.len() - most);
            self.truncated += 1;
        }
    }

    fn score_one(&mut self, choice: &Choice) -> Result<Likelihood, Error> {
        let (mut before, after) = self.encode_choice(choice)?;
        self.fit(&mut before, after.len());
        let session = &mut self.sessions[0];
        if self.scored != before {
            self.logits = session.set_prompt(&before)?.0.to_vec();
            self.scored = before;
        }
        let Some((first, rest)) = after.split_first() else {
            return Ok(Likelihood { logprob: 0.0, greedy: true });
        };
        let mut scores = vec![TokenScore::of(&self.logits, *first)];
        let ahead = &after[..rest.len()];
        session.append_each(ahead, |i, logits| scores.push(TokenScore::of(logits, rest[i])))?;
        session.rewind(self.scored.len());
        Ok(Likelihood {
            logprob: scores.iter().map(|s| s.logprob).sum(),
            greedy: scores.iter().all(|s| s.greedy),
        })
    }

    /// Gives session `i` a prompt, copying the longest beginning that any session has of it.
    fn set_prompt(&mut self, i: usize, prompt: &[u32]) -> Result<(), Error> {
        let common =
            |s: &Session| s.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let lengths: Vec<usize> = self.sessions.iter().map(common).collect();
        let longest = (0..lengths.len()).max_by_key(|j| lengths[*j]).unwrap_or(i);
        if lengths[longest] > lengths[i] + WORTH_COPYING
            && let Ok([session, other]) = self.sessions.get_disjoint_mut([i, longest])
        {
            session.copy_prefix(other, lengths[longest])?;
        }
        self.sessions[i].set_prompt(prompt)?;
        Ok(())
    }
}

/// An answer on its way.
struct Job {
    /// Which prompt.
    index: usize,
    sampler: Sampler,
    stream: DecodeStream,
    text: String,
    tokens: usize,
    next: u32,
}

impl Model for Local {
    fn score(&mut self, choices: &[Choice]) -> Result<Vec<Likelihood>, Error> {
        choices.iter().map(|choice| self.score_one(choice)).collect()
    }

    fn generate(
        &mut self,
        prompts: &[&Prompt],
        done: &mut dyn FnMut(usize, String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.reserve(self.batch.min(prompts.len()))?;
        self.scored.clear();
        let mut jobs: Vec<Option<Job>> = (0..self.batch.min(prompts.len())).map(|_| None).collect();
        let mut waiting = prompts.iter().enumerate();
        loop {
            for (i, job) in jobs.iter_mut().enumerate().filter(|(_, job)| job.is_none()) {
                let Some((index, prompt)) = waiting.next() else { break };
                let mut tokens = self.encode(&prompt.text)?;
                let room = prompt.max_tokens.min(self.sessions[0].context() / 2);
                self.fit(&mut tokens, room);
                self.set_prompt(i, &tokens)?;
                *job = Some(Job {
                    index,
                    sampler: Sampler::new(SamplingParams::default(), &[]),
                    stream: DecodeStream::new(true),
                    text: String::new(),
                    tokens: 0,
                    next: 0,
                });
            }
            for (slot, session) in jobs.iter_mut().zip(&self.sessions) {
                if let Some(job) = slot
                    && let Some(text) = job.step(session, prompts[job.index])?
                {
                    done(job.index, text)?;
                    *slot = None;
                }
            }
            let busy = jobs.iter().zip(&mut self.sessions);
            let mut batch: Vec<(&mut Session, &[u32])> = busy
                .filter_map(|(job, session)| {
                    Some((session, std::slice::from_ref(&job.as_ref()?.next)))
                })
                .collect();
            if batch.is_empty() && waiting.len() == 0 {
                return Ok(());
            }
            Session::append_batch(&mut batch)?;
        }
    }

    fn truncated(&self) -> usize {
        self.truncated
    }
}

impl Job {
    /// Takes the next token from the session's logits; returns the whole text if that ends it.
    fn step(&mut self, session: &Session, prompt: &Prompt) -> Result<Option<String>, Error> {
        let tokenizer = session.engine().tokenizer();
        self.next = self.sampler.sample(session.logits())?;
        self.tokens += 1;
        let end = tokenizer.is_end(self.next);
        if !end {
            self.text.push_str(&self.stream.push(tokenizer, self.next));
        }
        let stops = prompt.stop.iter().filter_map(|s| self.text.find(s.as_str()));
        let stop = stops.min();
        if let Some(at) = stop {
            self.text.truncate(at);
        }
        let full = session.tokens().len() == session.context();
        let over = end || stop.is_some() || full || self.tokens >= prompt.max_tokens;
        Ok(over.then(|| std::mem::take(&mut self.text)))
    }
}
