//! A GGUF file: it converts to a file that opens, or it is refused and nothing is left.
#![no_main]

use koudai::file::ModelFile;
use koudai_convert::gguf::Gguf;
use koudai_convert::{Options, convert};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(gguf) = Gguf::parse(data) else { return };
    for (_, value) in gguf.metadata() {
        let _ = (value.integer(), value.float(), value.str());
        let Some(array) = value.array() else { continue };
        array.iter().take(100).for_each(drop);
        let _ = (array.strings().map(|s| s.count()), array.floats().map(|f| f.count()));
    }
    let (input, output) =
        (koudai_fuzz::scratch("fuzzed.gguf"), koudai_fuzz::scratch("converted.koudai"));
    std::fs::write(&input, data).expect("the scratch folder can be written to");
    let _ = std::fs::remove_file(&output);
    let options = Options { threads: 1, ..Default::default() };
    match convert(&input, &output, &options, &mut |_| std::ops::ControlFlow::Continue(())) {
        Ok(_) => drop(ModelFile::open(&output).expect("what was converted opens")),
        Err(_) => assert!(!output.exists()),
    }
});
