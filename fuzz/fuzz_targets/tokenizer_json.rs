//! A `tokenizer.json`: what is taken makes a section that opens.
#![no_main]

use koudai::tokenizer::{Special, Tokenizer};
use koudai_convert::tokenizer::{TokenizerFiles, spec_from_tokenizer_json};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let files = TokenizerFiles { tokenizer: data, config: None, end_ids: &[0] };
    let Ok(spec) = spec_from_tokenizer_json(&files) else { return };
    let Ok(bytes) = spec.to_bytes() else { return };
    let tokenizer = Tokenizer::open(bytes.into()).expect("what was written opens");
    let ids = tokenizer.encode("ab aab <|im_end|> 天 12\n", Special::Parse);
    let _ = tokenizer.decode(&ids, false);
});
