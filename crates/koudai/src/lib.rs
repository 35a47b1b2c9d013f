//! Placeholder until the next commit.

pub mod bytes;
pub mod template;
pub mod tokenizer;
