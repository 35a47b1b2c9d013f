//! One conversation or document: its tokens, its KV cache, and what can be done with them.
//!
//! Start with [`Session::generate`]. A session holds the tokens whose keys and values are cached;
//! setting a prompt keeps the longest common prefix and computes only the rest. When the context is
//! full, generation stops with [`StopReason::ContextFull`] and a longer prompt is an error: nothing
//! is dropped silently. Sessions of one engine share weights and threads and never each other's
//! tokens.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::codec::{Decoder, Encoder};
use crate::engine::Engine;
use crate::forward::{MAX_ROWS, Observer, Pass, Segment};
use crate::kv::{KvCache, KvKind};
use crate::partial::PartialFile;
use crate::sampler::{Sampler, SamplingParams, log_sum_exp};
use crate::stop::StopMatcher;
use crate::tokenizer::DecodeStream;
use crate::{Error, Precision};

/// How a session stores and computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionOptions {
    /// Tokens it can hold; `None` takes the model's context length, at most 4096.
    pub context: Option<usize>,
    /// How keys and values are stored.
    pub kv: KvKind,
    /// Arithmetic with quantized weights.
    pub precision: Precision,
}

/// Context of a session that doesn't ask for another.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Stops work in another thread, between two layers. It stays cancelled: give the session a fresh one
/// with [`Session::set_cancel_token`] before its next work.
///
/// ```no_run
/// # use koudai::{Engine, OpenOptions, Session, SessionOptions, StopReason};
/// # let engine = Engine::open("model.koudai".as_ref(), &OpenOptions::default())?;
/// let mut session = Session::new(&engine, &SessionOptions::default())?;
/// let cancel = session.cancel_token();
/// std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_secs(2));
///     cancel.cancel();
/// });
/// let generation = session.generate(&[1, 2, 3], &Default::default(), |_, _| {
///     std::ops::ControlFlow::Continue(())
/// })?;
/// assert_eq!(generation.stop_reason, StopReason::Cancelled);
/// # Ok::<(), koudai::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks for a stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True once a stop was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What to generate and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateParams {
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Texts at which to stop; they are not part of the result.
    pub stop: Vec<String>,
    /// Goes on past end-of-generation tokens.
    pub ignore_end: bool,
}

impl Default for GenerateParams {
    fn default() -> GenerateParams {
        GenerateParams {
            max_tokens: usize::MAX,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            ignore_end: false,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model generated an end-of-generation token.
    End,
    /// `max_tokens` were generated.
    MaxTokens,
    /// A stop text appeared.
    StopText,
    /// The context is full.
    ContextFull,
    /// It was cancelled, or the callback asked to stop.
    Cancelled,
}

impl StopReason {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::End => "end",
            StopReason::MaxTokens => "max_tokens",
            StopReason::StopText => "stop",
            StopReason::ContextFull => "context_full",
            StopReason::Cancelled => "cancelled",
        }
    }
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The text, without control tokens and stop texts.
    pub text: String,
    /// All generated tokens, an end token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose keys and values were reused.
    pub cached_tokens: usize,
    /// Time for the prompt.
    pub prefill: Duration,
    /// Time from the call to the first token.
    pub first_token: Duration,
    /// Time for the tokens after the first.
    pub decode: Duration,
}

/// Whether a callback wants more.
pub type Flow = std::ops::ControlFlow<()>;

/// What a pass asks before each layer: whether to go on, and with weights that are what they should be.
fn before_layer<'a>(
    engine: &'a Engine,
    cancels: &'a [CancelToken],
) -> impl Fn(usize) -> Result<(), Error> + 'a {
    |index| match cancels.iter().any(CancelToken::is_cancelled) {
        true => Err(Error::Cancelled),
        false => engine.before_layer(index),
    }
}

/// One sequence of tokens with its cache.
pub struct Session {
    engine: Engine,
    cache: KvCache,
    tokens: Vec<u32>,
    context: usize,
    precision: Precision,
    cancel: CancelToken,
    logits: Vec<f32>,
}

impl Session {
    /// An empty session. Fails if the engine's memory limit doesn't allow it.
    pub fn new(engine: &Engine, options: &SessionOptions) -> Result<Session, Error> {
        let config = engine.config();
        let context = options.context.unwrap_or(config.context_length.min(DEFAULT_CONTEXT));
        if context == 0 || context > config.context_length {
            return Err(Error::Parameter(format!(
                "context must be 1 to {}, the length the model was trained for; it is {context}",
                config.context_length
            )));
        }
        engine.check_memory(context, options.kv)?;
        let cache = KvCache::new(config, options.kv, context)
            .ok_or_else(|| Error::Memory(format!("a context of {context} can't be addressed")))?;
        Ok(Session {
            engine: engine.clone(),
            cache,
            tokens: Vec::new(),
            context,
            precision: options.precision,
            cancel: CancelToken::default(),
            logits: Vec::new(),
        })
    }

    /// The engine it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Tokens whose keys and values are cached.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens it can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// A handle that cancels this session's work from another thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Replaces the handle, so that a cancelled session can work again.
    pub fn set_cancel_token(&mut self, cancel: CancelToken) {
        self.cancel = cancel;
    }

    /// Forgets all tokens after the first `len`, and the logits for what followed them.
    pub fn rewind(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.logits.clear();
        }
    }

    /// Logits for what follows the session's tokens, as the last call left them; empty if none did.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Appends tokens and returns the logits for what follows them, one for each entry of the
    /// vocabulary. On an error the session holds the tokens that it held before.
    pub fn append(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        Session::append_batch(&mut [(self, tokens)])?;
        Ok(&self.logits)
    }

    /// Appends tokens to several sessions of one engine in the same passes, so that weights are read
    /// once for all; each session's [`Session::logits`] then say what follows. Every session gets the
    /// bits that it would get alone.
    ///
    /// Panics if the sessions aren't of one engine and one precision. On an error every session holds
    /// the tokens that it held before.
    pub fn append_batch(batch: &mut [(&mut Session, &[u32])]) -> Result<(), Error> {
        let Some((first, _)) = batch.first() else { return Ok(()) };
        let (engine, precision) = (first.engine.clone(), first.precision);
        for (session, tokens) in &mut *batch {
            assert!(session.engine.is(&engine) && session.precision == precision);
            session.check_append(tokens)?;
            session.logits.clear();
        }
        let cancels: Vec<CancelToken> = batch.iter().map(|(s, _)| s.cancel.clone()).collect();
        let before_layer = before_layer(&engine, &cancels);
        let mut done = vec![0; batch.len()];
        while done.iter().zip(&*batch).any(|(done, (_, tokens))| *done < tokens.len()) {
            let mut n_rows = 0;
            let (mut segments, mut last_rows, mut finished) = (Vec::new(), Vec::new(), Vec::new());
            for (i, (session, tokens)) in batch.iter_mut().enumerate() {
                let n = (tokens.len() - done[i]).min(MAX_ROWS - n_rows);
                if n == 0 {
                    continue;
                }
                segments.push(Segment {
                    start: session.tokens.len() + done[i],
                    cache: &mut session.cache,
                    tokens: &tokens[done[i]..done[i] + n],
                });
                (done[i], n_rows) = (done[i] + n, n_rows + n);
                if done[i] == tokens.len() {
                    last_rows.push(n_rows - 1);
                    finished.push(i);
                }
            }
            let mut work = engine.workspace();
            let mut pass = Pass { precision, before_layer: &before_layer, observer: None };
            work.forward(engine.weights(), &mut segments, &mut pass)?;
            for (finished, rows) in finished.chunks(LOGIT_ROWS).zip(last_rows.chunks(LOGIT_ROWS)) {
                let rows = work.logits(engine.weights(), rows, precision);
                for (i, row) in finished.iter().zip(rows) {
                    batch[*i].0.logits.extend_from_slice(row);
                }
            }
        }
        for (session, tokens) in batch {
            session.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Appends tokens and calls `each(i, logits)` for every one of them in order: the logits for what
    /// follows `tokens[i]`. On an error the session holds the tokens that it held before.
    pub fn append_each(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.check_append(tokens)?;
        self.logits.clear();
        let (engine, precision) = (&self.engine, self.precision);
        let before_layer = before_layer(engine, std::slice::from_ref(&self.cancel));
        let mut done = 0;
        for chunk in tokens.chunks(MAX_ROWS) {
            let mut work = engine.workspace();
            let start = self.tokens.len() + done;
            let mut batch = [Segment { cache: &mut self.cache, start, tokens: chunk }];
            let mut pass = Pass { precision, before_layer: &before_layer, observer: None };
            work.forward(engine.weights(), &mut batch, &mut pass)?;
            // A few rows at a time: a large vocabulary makes logits large.
            let rows: Vec<usize> = (0..chunk.len()).collect();
            for rows in rows.chunks(LOGIT_ROWS) {
                for logits in work.logits(engine.weights(), rows, precision) {
                    each(done, logits);
                    done += 1;
                }
            }
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends tokens, works out no logits, and shows `observer` the inputs of all matrices of the
    /// layers and of the head: for calibrating. On an error the session holds the tokens that it held
    /// before.
    pub fn append_observed(
        &mut self,
        tokens: &[u32],
        observer: &mut Observer<'_>,
    ) -> Result<(), Error> {
        self.check_append(tokens)?;
        self.logits.clear();
        let (engine, precision) = (&self.engine, self.precision);
        let before_layer = before_layer(engine, std::slice::from_ref(&self.cancel));
        let mut start = self.tokens.len();
        let mut pass = Pass { precision, before_layer: &before_layer, observer: Some(observer) };
        for tokens in tokens.chunks(MAX_ROWS) {
            let mut work = engine.workspace();
            let mut batch = [Segment { cache: &mut self.cache, start, tokens }];
            work.forward(engine.weights(), &mut batch, &mut pass)?;
            work.observe_head(engine.weights(), &mut pass);
            start += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Makes the session hold exactly `prompt`, reusing the longest common prefix, and returns the
    /// logits for what follows and the number of tokens reused. On an error the session holds what
    /// could be reused.
    pub fn set_prompt(&mut self, prompt: &[u32]) -> Result<(&[f32], usize), Error> {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last token runs again, for its logits.
        let cached = common.min(prompt.len().saturating_sub(1));
        self.rewind(cached);
        Ok((self.append(&prompt[cached..])?, cached))
    }

    /// Makes the session hold the first `len` tokens of another one of the same engine, kind and
    /// precision, copying keys and values instead of computing them. For many prompts that begin alike.
    ///
    /// Panics if the sessions don't match or `other` holds fewer tokens; fails if they don't fit.
    pub fn copy_prefix(&mut self, other: &Session, len: usize) -> Result<(), Error> {
        assert!(self.engine.is(&other.engine) && self.precision == other.precision);
        assert!(len <= other.tokens.len());
        if len > self.context {
            return Err(Error::ContextFull { needed: len, context: self.context });
        }
        self.rewind(0);
        self.cache.copy_from(&other.cache, len);
        self.tokens.extend_from_slice(&other.tokens[..len]);
        Ok(())
    }

    /// Sets the prompt, then generates. `each(token, text)` is called for every token with the text
    /// that it completes (maybe none yet) and may end the generation. An end token isn't passed to it;
    /// text held back for a stop text comes with a last call, for the last token again.
    ///
    /// Fails on an empty or too long prompt and on bad parameters; being cancelled is a stop reason.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        params: &GenerateParams,
        mut each: impl FnMut(u32, &str) -> Flow,
    ) -> Result<Generation, Error> {
        let start = Instant::now();
        params.sampling.validate(self.engine.config().vocab_size)?;
        let engine = self.engine.clone();
        let tokenizer = engine.tokenizer();
        let mut generation = Generation {
            text: String::new(),
            tokens: Vec::new(),
            stop_reason: StopReason::MaxTokens,
            prompt_tokens: prompt.len(),
            cached_tokens: 0,
            prefill: Duration::ZERO,
            first_token: Duration::ZERO,
            decode: Duration::ZERO,
        };
        match self.set_prompt(prompt) {
            Ok((_, cached)) => generation.cached_tokens = cached,
            Err(Error::Cancelled) => {
                generation.stop_reason = StopReason::Cancelled;
                return Ok(generation);
            }
            Err(e) => return Err(e),
        }
        generation.prefill = start.elapsed();
        let mut sampler = Sampler::new(params.sampling.clone(), prompt);
        let mut stream = DecodeStream::new(true);
        let mut stops = StopMatcher::new(&params.stop);
        while generation.tokens.len() < params.max_tokens {
            let token = sampler.sample(&self.logits)?;
            if generation.tokens.is_empty() {
                generation.first_token = start.elapsed();
            }
            generation.tokens.push(token);
            if tokenizer.is_end(token) && !params.ignore_end {
                generation.stop_reason = StopReason::End;
                break;
            }
            let text = stops.push(&stream.push(tokenizer, token));
            generation.text.push_str(&text);
            let flow = each(token, &text);
            if stops.found() {
                generation.stop_reason = StopReason::StopText;
                break;
            }
            if flow.is_break() || self.cancel.is_cancelled() {
                generation.stop_reason = StopReason::Cancelled;
                break;
            }
            if generation.tokens.len() == params.max_tokens {
                break;
            }
            match self.append(&[token]) {
                Ok(_) => {}
                Err(Error::ContextFull { .. }) => {
                    generation.stop_reason = StopReason::ContextFull;
                    break;
                }
                Err(Error::Cancelled) => {
                    generation.stop_reason = StopReason::Cancelled;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        if !stops.found() {
            // A reply that was cut may end inside a character, which then isn't shown at all.
            let cut = generation.stop_reason != StopReason::End;
            let mut rest = if cut { String::new() } else { stops.push(&stream.finish()) };
            rest.push_str(&stops.finish());
            generation.text.push_str(&rest);
            if let (false, Some(last)) = (rest.is_empty(), generation.tokens.last()) {
                // Text was held back; the generation is over, so what it answers doesn't matter.
                let _ = each(*last, &rest);
            }
            if stops.found() {
                generation.stop_reason = StopReason::StopText;
            }
        }
        generation.decode = start.elapsed().saturating_sub(generation.first_token);
        if generation.tokens.is_empty() {
            generation.decode = Duration::ZERO;
        }
        Ok(generation)
    }

    /// Log-probability of each token of `continuation` after `prompt`, and whether each was the
    /// likeliest. The session holds `prompt` afterwards.
    pub fn score(
        &mut self,
        prompt: &[u32],
        continuation: &[u32],
    ) -> Result<Vec<TokenScore>, Error> {
        self.check_tokens(continuation)?;
        let (logits, _) = self.set_prompt(prompt)?;
        let mut scores = Vec::with_capacity(continuation.len());
        let Some((first, rest)) = continuation.split_first() else { return Ok(scores) };
        scores.push(TokenScore::of(logits, *first));
        let ahead = &continuation[..rest.len()];
        self.append_each(ahead, |i, logits| scores.push(TokenScore::of(logits, rest[i])))?;
        self.rewind(prompt.len());
        Ok(scores)
    }

    /// Writes tokens, keys and values to `path`, beside it first. The file is tied to the model's
    /// fingerprint.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut e = Encoder::default();
        e.0.extend(SESSION_MAGIC);
        e.0.extend(self.engine.file().fingerprint());
        e.u8(self.cache.kind() as u8);
        e.u8(self.precision as u8);
        e.u32(self.tokens.len() as u32);
        self.tokens.iter().for_each(|t| e.u32(*t));
        self.cache.save(self.tokens.len(), &mut e);
        let hash = blake3::hash(&e.0);
        e.0.extend(hash.as_bytes());
        PartialFile::write(path, &e.0).map_err(|e| Error::Io(path.display().to_string(), e))
    }

    /// Replaces the session's tokens by those saved at `path`. Fails if the file is damaged, belongs
    /// to another model or kind of cache, or doesn't fit; then the session is empty or unchanged.
    pub fn restore(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = std::fs::read(path).map_err(|e| Error::Io(path.display().to_string(), e))?;
        let refuse = |why: &str| Error::Session(path.into(), why.into());
        let (body, hash) = bytes
            .split_last_chunk::<32>()
            .filter(|(body, _)| body.starts_with(&SESSION_MAGIC))
            .ok_or_else(|| refuse("not a saved session"))?;
        if blake3::hash(body).as_bytes() != hash {
            return Err(refuse("the saved session is damaged"));
        }
        let mut d = Decoder(&body[SESSION_MAGIC.len()..]);
        let short = || refuse("the saved session is cut short");
        if d.bytes(32).ok_or_else(short)? != self.engine.file().fingerprint() {
            return Err(refuse("it was saved with another model file"));
        }
        if d.u8().ok_or_else(short)? != self.cache.kind() as u8 {
            return Err(refuse("it was saved with another kind of keys and values (f16 or q8)"));
        }
        if d.u8().ok_or_else(short)? != self.precision as u8 {
            return Err(refuse("it was saved with another precision of activations"));
        }
        let n = d.count(4).ok_or_else(short)?;
        if n > self.context {
            return Err(Error::ContextFull { needed: n, context: self.context });
        }
        let tokens: Option<Vec<u32>> = (0..n).map(|_| d.u32()).collect();
        let tokens = tokens.ok_or_else(short)?;
        self.check_tokens(&tokens)?;
        self.rewind(0);
        self.cache.restore(n, &mut d).ok_or_else(short)?;
        d.end().ok_or_else(|| refuse("bytes follow the saved session"))?;
        self.tokens = tokens;
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab_size = self.engine.config().vocab_size;
        match tokens.iter().find(|t| **t as usize >= vocab_size) {
            Some(id) => Err(Error::Token { id: *id, vocab_size }),
            None => Ok(()),
        }
    }

    /// Whether these tokens can be appended.
    fn check_append(&self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.check_tokens(tokens)?;
        let needed = self.tokens.len() + tokens.len();
        if needed > self.context {
            return Err(Error::ContextFull { needed, context: self.context });
        }
        Ok(())
    }
}

const SESSION_MAGIC: [u8; 8] = *b"KOUDSES1";
/// Rows whose logits are worked out together.
pub(crate) const LOGIT_ROWS: usize = 8;

/// How likely a token was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// No token was likelier.
    pub greedy: bool,
}

impl TokenScore {
    /// The score of `token` under `logits`. Panics if it is outside the vocabulary.
    pub fn of(logits: &[f32], token: u32) -> TokenScore {
        let logit = logits[token as usize];
        let best = crate::sampler::argmax(logits).map(|(id, _)| id);
        TokenScore { logprob: logit as f64 - log_sum_exp(logits), greedy: best == Some(token) }
    }
}
