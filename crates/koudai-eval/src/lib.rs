//! Measures models and machines through the engine's public interface.
//!
//! [`tasks`] are the benchmarks and [`evaluate`](mod@evaluate) puts them to a model;
//! [`perplexity`](mod@perplexity) says how well a model predicts a text and how far two models are
//! apart; [`bench`](mod@bench) how fast the engine is and how much memory it takes, [`energy`] how
//! many joules; [`search`](mod@search) which of many architectures is worth training for a machine.
//! [`report`] makes a page of what they found.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bench;
pub mod determinism;
pub mod energy;
mod error;
pub mod evaluate;
pub mod journal;
pub mod machine;
pub mod npy;
pub mod perplexity;
pub mod plot;
pub mod report;
pub mod sandbox;
pub mod search;
pub mod tasks;

pub use error::Error;
