//! Numbers on slices: quantized blocks, matmul, norm, rope, attention.
//!
//! No model, no file, no threads, no allocation, no dependencies: the caller splits rows. Start with
//! [`matrix`] for how weights lie in memory, then [`Kernels`] for what can be done with them, then
//! `scalar.rs`, the definition of correct against which every other table is tested.

#![warn(missing_docs)]

pub mod matrix;
pub mod num;

pub use matrix::{Kind, Matrix, PANEL_ROWS, PanelWriter};
