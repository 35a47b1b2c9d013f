//! The tokenizer on small vocabularies made here.
