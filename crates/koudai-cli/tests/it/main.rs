//! The `koudai` command as a user meets it: the real binary on tiny models, then on real ones.
//!
//! [`support`] runs the binary and judges what comes back; [`tiny`] makes the models.

mod chat;
mod contexts;
#[cfg(unix)]
mod convert_interrupted;
mod energy;
mod eval;
mod export;
mod files;
mod golden;
mod help;
mod interrupt;
mod packed;
mod prune;
mod quantize;
mod report;
mod run;
mod sandbox;
mod scores;
mod search;
mod stories;
mod support;
mod tiny;
mod train;
