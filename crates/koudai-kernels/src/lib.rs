//! Numbers on slices: quantized blocks, matmul, norm, rope, attention.
//!
//! No model, no file, no threads, no allocation, no dependencies: the caller splits rows. Start with
//! [`matrix`] for how weights lie in memory, then [`Kernels`] for what can be done with them, then
//! `scalar.rs`, the definition of correct against which every other table is tested.

#![warn(missing_docs)]

pub mod matrix;
pub mod num;

mod rows;
mod scalar;
mod table;
mod vector;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "aarch64")]
mod dotprod;
#[cfg(target_arch = "aarch64")]
mod i8mm;
#[cfg(target_arch = "aarch64")]
mod neon;

pub use matrix::{Kind, Matrix, PANEL_ROWS, PanelWriter};
pub use rows::{ACTIVATION_GROUP, Columns, Keys, QuantizedRows, Rows, Values};
pub use table::Kernels;
