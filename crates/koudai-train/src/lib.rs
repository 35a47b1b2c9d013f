//! Training for Koudai: models from scratch or from existing ones, for the engine's own `Config`.
//!
//! A recipe ([`recipe`]) names a stage; a [`Stage`] knows which gradient a step adds; the
//! [`trainer`] does what all stages share: schedule, optimizer, guards, evaluation, checkpoints. The
//! framework is behind [`backend`]; files, formats and quantization are `koudai-convert`'s. Start with
//! [`trainer::train`].

#![warn(missing_docs)]

pub mod backend;
pub mod checkpoint;
pub mod data;
pub mod loss;
pub mod metrics;
pub mod model;
pub mod optimizer;
pub mod recipe;
pub mod schedule;
pub mod stage;
pub mod start;
pub mod trainer;

pub use recipe::Recipe;
pub use stage::Stage;
