//! A `.koudai` file with right hashes: it opens and runs, or it is refused.
#![no_main]

use koudai::file::ModelFile;
use koudai::golden::Golden;
use koudai::{Engine, OpenOptions, Session, SessionOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = ModelFile::from_bytes(data.to_vec().into());
    let mut bytes = data.to_vec();
    koudai_fuzz::rehash(&mut bytes);
    let Ok(file) = ModelFile::from_bytes(bytes.clone().into()) else { return };
    let _ = (file.meta(), file.defaults(), file.template(), file.verify());
    let _ = (file.lineage(), file.card(), file.attachments(), file.signature());
    let _ = Golden::of(&file);
    let path = koudai_fuzz::scratch("fuzzed.koudai");
    std::fs::write(&path, &bytes).expect("the scratch folder can be written to");
    let options =
        OpenOptions { threads: Some(1), memory_limit: Some(1 << 30), ..Default::default() };
    let Ok(engine) = Engine::open(&path, &options) else { return };
    let options = SessionOptions { context: Some(3), ..Default::default() };
    let Ok(mut session) = Session::new(&engine, &options) else { return };
    let _ = session.append(&[0, 97]).map(drop);
    let _ = session.append(&[1]).map(drop);
});
