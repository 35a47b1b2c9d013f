//! A tokenizer's section: it opens and encodes any text, or it is refused.
#![no_main]

use koudai::tokenizer::{Special, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(tokenizer) = Tokenizer::open(data.to_vec().into()) else { return };
    let tail = String::from_utf8_lossy(&data[data.len() - data.len().min(64)..]);
    for text in ["ab <|im_end|> 天1\u{301}\n", &tail] {
        for special in [Special::Text, Special::Parse] {
            let ids = tokenizer.encode_prompt(text, special);
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            let _ = (tokenizer.decode(&ids, true), tokenizer.decode(&ids, false));
        }
    }
    // What was read can be written, and means the same.
    let again =
        tokenizer.spec().to_bytes().expect("a tokenizer that opened has a valid description");
    let again = Tokenizer::open(again.into()).expect("what was written opens");
    assert_eq!(again.encode(&tail, Special::Text), tokenizer.encode(&tail, Special::Text));
});
