//! Everything that makes a `.koudai` file out of something else.
//!
//! The only crate that knows GGUF and Hugging Face names, and the only one that knows architectures
//! by name. Start with [`convert`](convert()), or [`export`](export()) for the way back; [`arch`] says what a model's keys mean, [`weights`]
//! what becomes of its numbers, [`tokenizer`] what becomes of its vocabulary.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arch;
pub mod cache;
mod calibrate;
pub mod convert;
pub mod corpus;
pub mod dequant;
pub mod diff;
mod error;
pub mod export;
pub mod floats;
mod folder;
pub mod gguf;
pub mod hub;
pub mod models;
pub mod pack;
mod packages;
pub mod prune;
pub mod quantize;
pub mod sign;
mod source;
pub mod synthetic;
pub mod tokenizer;
mod vocab;
pub mod weights;

pub use cache::{Cache, Listed, PullOptions, Pulled, pull, resolve};
pub use calibrate::Calibration;
pub use convert::{
    CONVERTER, Options, Override, Progress, Report, RoleReport, Stage, Watch, check_output, convert,
};
pub use error::Error;
pub use export::{ExportOptions, ExportReport, export};
pub use floats::FloatModel;
pub use folder::read_json;
pub use weights::{Mode, Quant, TensorReport};
