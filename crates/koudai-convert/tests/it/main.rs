//! Integration tests of the converter, one module per subject.

mod tokenizer;
