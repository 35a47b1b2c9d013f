//! The engine an app embeds: runs a language model from one `.koudai` file, offline.
//!
//! It knows the file, the tokenizer, chat templates, the forward pass, sampling and sessions. It
//! doesn't know Hugging Face, GGUF, HTTP or async, and no model by name: a model is data
//! ([`Config`]). Start with [`Engine::open`] and [`Session::generate`].
//!
//! ```no_run
//! use koudai::{Engine, GenerateParams, OpenOptions, Session, SessionOptions};
//! use koudai::tokenizer::Special;
//!
//! let engine = Engine::open("model.koudai".as_ref(), &OpenOptions::default())?;
//! let mut session = Session::new(&engine, &SessionOptions::default())?;
//! let prompt = engine.tokenizer().encode_prompt("The capital of France is", Special::Text);
//! let params = GenerateParams { max_tokens: 16, ..Default::default() };
//! let generation = session.generate(&prompt, &params, |_, text| {
//!     print!("{text}");
//!     std::ops::ControlFlow::Continue(())
//! })?;
//! println!("\n{} tokens", generation.tokens.len());
//! # Ok::<(), koudai::Error>(())
//! ```
//!
//! Calls block until their work is done, so make them off the thread that draws. Sessions of one
//! engine may be on different threads: they share its weights and threads and take turns, a chunk of
//! a prompt or a token at a time. A [`CancelToken`] stops a call from elsewhere.
//!
//! [`Chat`] keeps a conversation:
//!
//! ```no_run
//! use koudai::{Chat, Engine, GenerateParams, OpenOptions, Session, SessionOptions};
//!
//! let engine = Engine::open("model.koudai".as_ref(), &OpenOptions::default())?;
//! let session = Session::new(&engine, &SessionOptions::default())?;
//! let mut chat = Chat::new(session, Some("You are a helpful assistant."))?;
//! for question in ["Name three fruits.", "And three vegetables?"] {
//!     let reply = chat.send(question, &GenerateParams::default(), |_, text| {
//!         print!("{text}");
//!         std::ops::ControlFlow::Continue(())
//!     })?;
//!     println!("\n({} tokens)", reply.generation.tokens.len());
//! }
//! # Ok::<(), koudai::Error>(())
//! ```

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod bytes;
pub mod chat;
mod codec;
pub mod config;
pub mod delta;
mod engine;
mod error;
pub mod file;
mod forward;
pub mod golden;
mod kv;
mod partial;
mod pool;
pub mod sampler;
pub mod session;
mod stop;
pub mod template;
pub mod tokenizer;
pub mod trust;
mod weights;

pub use chat::{Chat, Reply};
pub use config::{Activation, Config, LayerConfig, Role, Shape, TensorId};
pub use engine::{Engine, MemoryPlan, OpenOptions, Verify};
pub use error::Error;
pub use forward::Observer;
pub use koudai_kernels as kernels;
pub use kv::KvKind;
pub use partial::PartialFile;
pub use pool::default_threads;
pub use sampler::SamplingParams;
pub use session::{
    CancelToken, Flow, GenerateParams, Generation, Session, SessionOptions, StopReason, TokenScore,
};
pub use trust::{PublicKey, Trust};

/// Arithmetic where weights are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Precision {
    /// Activations in two planes of 8 bits in groups of 32, integer products: practically as exact as
    /// [`Precision::F32`], and as fast as [`Precision::Int8`] where memory is what limits.
    #[default]
    Auto = 0,
    /// Activations in f32, weights used exactly: the reference for measuring.
    F32 = 1,
    /// Activations in one plane of 8 bits, as most engines do: the fastest for long prompts.
    Int8 = 2,
}
