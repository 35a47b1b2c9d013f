//! The engine an app embeds: runs a language model from one `.koudai` file, offline.
//!
//! It knows the file, the tokenizer, chat templates, the forward pass, sampling and sessions. It
//! doesn't know Hugging Face, GGUF, HTTP or async, and no model by name: a model is data
//! ([`Config`]).

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod bytes;
mod codec;
pub mod config;
pub mod file;
pub mod tokenizer;

pub use config::{Activation, Config, LayerConfig, Role, Shape, TensorId};
pub use koudai_kernels as kernels;
