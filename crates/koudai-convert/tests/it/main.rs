//! Integration tests of the converter, one module per subject.

mod export;
mod folder;
mod gguf;
mod hostile;
mod hub;
mod pack;
mod prune;
mod quantize;
mod support;
mod synthetic;
mod tokenizer;
