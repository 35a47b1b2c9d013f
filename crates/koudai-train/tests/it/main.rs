//! Tests of the trainer: tiny models, one thread, seconds.

mod data;
mod gradients;
#[allow(dead_code)]
#[path = "../../../koudai/tests/it/models.rs"]
mod models;
mod parity;
mod recipes;
#[path = "../../../koudai/tests/it/reference.rs"]
mod reference;
mod runs;
mod support;
