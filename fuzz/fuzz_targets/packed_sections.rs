//! What `pack` and `sign` add, as a section each: it is read or refused, and what is read is written
//! as it was.
#![no_main]

use std::sync::OnceLock;

use koudai::file::{Attachment, FileWriter, ModelFile, section};
use koudai::golden::Golden;
use koudai::{CancelToken, Engine, OpenOptions};
use libfuzzer_sys::fuzz_target;

/// The sections; the first byte of the input chooses.
const NAMES: [&str; 5] =
    [section::GOLDEN, section::DRAFT, section::SIGNED, section::LINEAGE, section::CARD];

fuzz_target!(|data: &[u8]| {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        let path = koudai_fuzz::scratch("packed.koudai");
        koudai_fuzz::write_model(&path).expect("the scratch folder can be written to");
        Engine::open(&path, &OpenOptions { threads: Some(1), ..Default::default() })
            .expect("it is valid")
    });
    let Some((choice, bytes)) = data.split_first() else { return };
    if let Some(golden) = Golden::decode(bytes) {
        assert_eq!(golden.encode(), bytes);
        let _ = golden.check(engine, &CancelToken::default());
    }
    let shared = bytes.to_vec().into();
    if let Some(attachment) = Attachment::decode(&shared) {
        assert_eq!([&attachment.envelope()[..], &attachment.payload].concat(), bytes);
    }
    let path = koudai_fuzz::scratch("sections.koudai");
    let file = engine.file();
    let name = NAMES[*choice as usize % NAMES.len()];
    let mut writer = FileWriter::create(&path).expect("the scratch folder can be written to");
    for s in file.sections() {
        match s.name.as_str() {
            section::TENSORS => writer.copy_tensors(file, |_| Ok::<_, koudai::file::FileError>(())),
            section::WEIGHTS | section::BLOCKS => Ok(()),
            name => writer.copy(file, name),
        }
        .expect("it is copied");
    }
    writer.section(name, false, bytes).expect("there is room");
    writer.finish().expect("it is written");
    let packed = ModelFile::open(&path).expect("what is packed isn't needed to open");
    let _ = (packed.signature(), packed.attachments(), packed.lineage(), packed.card());
    let _ = (Golden::of(&packed), packed.verify());
});
