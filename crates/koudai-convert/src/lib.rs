//! Placeholder until the next commit.

pub mod tokenizer;
