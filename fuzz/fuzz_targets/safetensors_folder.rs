//! A Hugging Face folder: it converts to a file that opens, or it is refused and nothing is left.
#![no_main]

use koudai::file::ModelFile;
use koudai_convert::{Options, convert};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(3, |b| *b == 0);
    let input = koudai_fuzz::scratch("fuzzed");
    std::fs::create_dir_all(&input).expect("the scratch folder can be written to");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let part = parts.next().unwrap_or_default();
        std::fs::write(input.join(name), part).expect("the scratch folder can be written to");
    }
    let output = koudai_fuzz::scratch("converted.koudai");
    let _ = std::fs::remove_file(&output);
    let options = Options { threads: 1, ..Default::default() };
    match convert(&input, &output, &options, &mut |_| std::ops::ControlFlow::Continue(())) {
        Ok(_) => drop(ModelFile::open(&output).expect("what was converted opens")),
        Err(_) => assert!(!output.exists()),
    }
});
