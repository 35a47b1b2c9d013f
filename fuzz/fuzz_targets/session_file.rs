//! A saved session with a right hash: it goes on, or it is refused and the session still works.
#![no_main]

use std::sync::OnceLock;

use koudai::{Engine, OpenOptions, Session, SessionOptions};
use libfuzzer_sys::fuzz_target;

/// The magic bytes, then the model's fingerprint.
const FINGERPRINT: std::ops::Range<usize> = 8..40;

fuzz_target!(|data: &[u8]| {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        let path = koudai_fuzz::scratch("session.koudai");
        koudai_fuzz::write_model(&path).expect("the scratch folder can be written to");
        Engine::open(&path, &OpenOptions { threads: Some(1), ..Default::default() })
            .expect("it is valid")
    });
    let mut bytes = data.to_vec();
    if let Some(place) = bytes.get_mut(FINGERPRINT) {
        place.copy_from_slice(&engine.file().fingerprint());
    }
    bytes.extend(*blake3::hash(&bytes).as_bytes());
    let path = koudai_fuzz::scratch("fuzzed.session");
    let options = SessionOptions { context: Some(32), ..Default::default() };
    let mut session = Session::new(engine, &options).expect("it fits");
    for bytes in [data, &bytes, &bytes[..bytes.len() - 32]] {
        std::fs::write(&path, bytes).expect("the scratch folder can be written to");
        let _ = session.restore(&path);
        assert!(session.tokens().len() <= session.context());
        session.rewind(31);
        session.append(&[97]).expect("there is room for a token");
    }
});
