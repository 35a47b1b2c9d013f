//! A model behind an OpenAI-compatible server, so that other engines can be measured alike.
//!
//! Texts come from `/chat/completions` or `/completions`. Likelihoods need a server that returns the
//! log-probabilities of a prompt (`echo` with `logprobs`); one that doesn't is refused by name.
//! Failures that may pass are tried again a few times.

use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use koudai::CancelToken;
use serde_json::{Value, json};
use ureq::Agent;

use super::Model;
use crate::Error;
use crate::tasks::{Choice, Likelihood, Prompt};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A long answer from a slow machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1800);
const ATTEMPTS: u32 = 4;
/// Longest reply that is read.
const MAX_REPLY: u64 = 64 << 20;

/// A server's model.
pub struct Endpoint {
    base: String,
    model: String,
    key: Option<String>,
    chat: bool,
    parallel: usize,
    cancel: CancelToken,
    agent: Agent,
}

impl Endpoint {
    /// `base` is the address up to `/v1`, `key` its access key if it wants one. With `chat`, prompts
    /// are a user's message; `parallel` requests run at once.
    pub fn new(
        base: &str,
        model: &str,
        key: Option<String>,
        chat: bool,
        parallel: usize,
        cancel: CancelToken,
    ) -> Endpoint {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_recv_body(Some(ANSWER_TIMEOUT))
            .user_agent(concat!("koudai/", env!("CARGO_PKG_VERSION")))
            .build();
        Endpoint {
            base: base.trim_end_matches('/').into(),
            model: model.into(),
            key,
            chat,
            parallel: parallel.max(1),
            cancel,
            agent: config.into(),
        }
    }

    /// The reply to a request; retried while the failure may pass.
    fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        let url = format!("{}{path}", self.base);
        let mut pause = Duration::from_millis(250);
        for attempt in 1.. {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            match self.try_post(&url, body) {
                Ok(reply) => return Ok(reply),
                Err((why, passing)) if !passing || attempt == ATTEMPTS => {
                    return Err(Error::Endpoint(url, why));
                }
                Err(_) => thread::sleep(pause),
            }
            pause *= 2;
        }
        unreachable!("the last attempt returns")
    }

    /// One attempt; a failure says whether it may pass.
    fn try_post(&self, url: &str, body: &Value) -> Result<Value, (String, bool)> {
        let mut request = self.agent.post(url).header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response = request.send(body.to_string()).map_err(|e| (e.to_string(), true))?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(MAX_REPLY).read_to_string();
        let text = text.map_err(|e| (e.to_string(), true))?;
        if status != 200 {
            let message = serde_json::from_str::<Value>(&text).ok();
            let message = message.as_ref().and_then(|m| m.pointer("/error/message")?.as_str());
            let why = format!("status {status}: {}", message.unwrap_or(text.trim()));
            return Err((why, status == 429 || status >= 500));
        }
        serde_json::from_str(&text).map_err(|e| (format!("its reply isn't JSON: {e}"), false))
    }

    fn complete(&self, prompt: &Prompt) -> Result<String, Error> {
        let mut body = json!({
            "model": self.model, "max_tokens": prompt.max_tokens, "temperature": 0,
        });
        if !prompt.stop.is_empty() {
            body["stop"] = json!(prompt.stop);
        }
        let (path, text) = if self.chat {
            body["messages"] = json!([{ "role": "user", "content": prompt.text }]);
            ("/chat/completions", "/choices/0/message/content")
        } else {
            body["prompt"] = json!(prompt.text);
            ("/completions", "/choices/0/text")
        };
        let reply = self.post(path, &body)?;
        let text = reply.pointer(text).and_then(Value::as_str).ok_or_else(|| {
            Error::Endpoint(format!("{}{path}", self.base), "its reply has no text".into())
        })?;
        // A server may know fewer stop texts than were asked for.
        let stop = prompt.stop.iter().filter_map(|s| text.find(s.as_str())).min();
        Ok(text[..stop.unwrap_or(text.len())].to_owned())
    }

    fn likelihood(&self, choice: &Choice) -> Result<Likelihood, Error> {
        let whole = format!("{}{}", choice.context, choice.continuation);
        // Some servers take 0 new tokens for "as many as you like".
        let body = json!({
            "model": self.model, "prompt": whole, "max_tokens": 1, "temperature": 0,
            "logprobs": 1, "echo": true,
        });
        let reply = self.post("/completions", &body)?;
        let start = choice.context.trim_end().chars().count();
        likelihood(&reply, start, whole.chars().count()).ok_or_else(|| {
            let why = "it doesn't return log-probabilities of the prompt (echo with logprobs), which \
                       tasks with given choices need";
            Error::Endpoint(format!("{}/completions", self.base), why.into())
        })
    }
}

/// Adds up the tokens that start between two characters of the echoed text.
fn likelihood(reply: &Value, start: usize, end: usize) -> Option<Likelihood> {
    let logprobs = reply.pointer("/choices/0/logprobs")?;
    let offsets = logprobs["text_offset"].as_array()?;
    let given = logprobs["token_logprobs"].as_array()?;
    let top = logprobs["top_logprobs"].as_array()?;
    let mut sum = Likelihood { logprob: 0.0, greedy: true };
    let mut n = 0;
    for ((offset, logprob), top) in offsets.iter().zip(given).zip(top) {
        let offset = offset.as_u64()? as usize;
        if !(start..end).contains(&offset) {
            continue;
        }
        let logprob = logprob.as_f64()?;
        let best = top.as_object()?.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        sum.logprob += logprob;
        sum.greedy &= logprob >= best;
        n += 1;
    }
    (n > 0).then_some(sum)
}

impl Model for Endpoint {
    fn score(&mut self, choices: &[Choice]) -> Result<Vec<Likelihood>, Error> {
        if self.chat {
            let why = "--chat: a server gives log-probabilities of plain prompts only";
            return Err(Error::Unsupported(why.into()));
        }
        choices.iter().map(|choice| self.likelihood(choice)).collect()
    }

    fn generate(
        &mut self,
        prompts: &[&Prompt],
        done: &mut dyn FnMut(usize, String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let waiting = Mutex::new(prompts.iter().enumerate());
        let (send, receive) = mpsc::sync_channel(self.parallel);
        let endpoint = &*self;
        thread::scope(|scope| {
            for _ in 0..self.parallel.min(prompts.len()) {
                let (send, waiting) = (send.clone(), &waiting);
                scope.spawn(move || {
                    let next = || waiting.lock().unwrap_or_else(|e| e.into_inner()).next();
                    while let Some((i, prompt)) = next() {
                        // Nobody listens any more once something failed.
                        if send.send((i, endpoint.complete(prompt))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            // Dropped at the first failure, which ends the other threads.
            let receive = receive;
            for (i, text) in receive.iter() {
                done(i, text?)?;
            }
            Ok(())
        })
    }

    fn truncated(&self) -> usize {
        0
    }
}
