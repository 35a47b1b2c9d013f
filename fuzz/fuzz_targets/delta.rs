//! A delta with a right hash and base: it makes the file that it promises, or none.
#![no_main]

use std::ops::ControlFlow;
use std::sync::OnceLock;

use koudai::file::ModelFile;
use koudai::{Trust, delta};
use libfuzzer_sys::fuzz_target;

/// The magic bytes, then the base's fingerprint.
const BASE: std::ops::Range<usize> = 8..40;

fuzz_target!(|data: &[u8]| {
    static FINGERPRINT: OnceLock<[u8; 32]> = OnceLock::new();
    let base = koudai_fuzz::scratch("base.koudai");
    let fingerprint = FINGERPRINT.get_or_init(|| {
        koudai_fuzz::write_model(&base).expect("the scratch folder can be written to");
        ModelFile::open(&base).expect("it is valid").fingerprint()
    });
    let mut bytes = data.to_vec();
    if let Some(place) = bytes.get_mut(BASE) {
        place.copy_from_slice(fingerprint);
    }
    bytes.extend(*blake3::hash(&bytes).as_bytes());
    let (update, made) =
        (koudai_fuzz::scratch("fuzzed.kdelta"), koudai_fuzz::scratch("made.koudai"));
    for bytes in [data, &bytes] {
        std::fs::write(&update, bytes).expect("the scratch folder can be written to");
        let applied =
            delta::apply(&base, &update, &made, &Trust::Any, &mut |_, _| ControlFlow::Continue(()));
        assert_eq!(applied.is_ok(), made.exists());
        if applied.is_ok() {
            ModelFile::open(&made).and_then(|file| file.verify()).expect("it was verified");
            std::fs::remove_file(&made).expect("it was there");
        }
    }
});
