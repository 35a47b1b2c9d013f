//! Data: packing loses nothing, order is the seed's, damaged and hostile files are told.

use koudai_train::data::packing::pack;
use koudai_train::data::{Document, open, shuffle, texts::Texts};
use koudai_train::{Recipe, backend::Device};

use crate::support::Tiny;

fn documents(n: u32) -> Vec<Document> {
    (0..n).map(|number| Document { file: 0, number }).collect()
}

#[test]
fn packing_keeps_every_input_once() {
    let lengths = [5usize, 1, 17, 8, 3, 30, 2, 9, 9, 16, 4];
    for split in [true, false] {
        let all = documents(lengths.len() as u32);
        let packed = pack(&all, |d| lengths[d.number as usize], 16, split);
        let mut seen = vec![Vec::new(); lengths.len()];
        for row in &packed.rows {
            assert!(row.iter().map(|piece| piece.len).sum::<usize>() <= 16);
            for piece in row {
                seen[piece.document.number as usize].extend(piece.start..piece.start + piece.len);
            }
        }
        let fits = |n: usize| split || n <= 16;
        for (seen, length) in seen.iter().zip(lengths) {
            let expected: Vec<usize> =
                if fits(length) { (0..length).collect() } else { Vec::new() };
            assert_eq!(*seen, expected);
        }
        assert_eq!(packed.too_long, lengths.iter().filter(|n| !fits(**n)).count());
        if split {
            let full =
                packed.rows.iter().filter(|row| row.iter().map(|p| p.len).sum::<usize>() == 16);
            assert_eq!(full.count(), lengths.iter().sum::<usize>() / 16);
        }
    }
}

#[test]
fn an_order_is_its_seeds_and_epochs() {
    let order = |seed, epoch| {
        let mut items: Vec<u32> = (0..50).collect();
        shuffle(&mut items, seed, epoch);
        items
    };
    assert_eq!(order(1, 2), order(1, 2));
    assert_ne!(order(1, 2), order(1, 3));
    assert_ne!(order(1, 2), order(2, 2));
    let mut sorted = order(1, 2);
    sorted.sort();
    assert_eq!(sorted, (0..50).collect::<Vec<u32>>());
}

fn recipe(folder: &std::path::Path, file: &str, text: &[u8]) -> Recipe {
    std::fs::write(folder.join(file), text).unwrap();
    let text = format!(
        "stage = 'pretrain'\noutput = '{0}'\n[model]\nfrom = 'm'\n[data]\n\
         sources = [{{ path = '{0}/{file}' }}]\n[train]\nsteps = 1\nlength = 16\nrows = 2\n",
        folder.display()
    );
    Recipe::parse(&text, &[]).unwrap()
}

#[test]
fn an_epoch_reads_every_text_and_a_cache_reads_the_same() {
    let tiny = Tiny::named("llama");
    let reader = Texts::of(&tiny.model).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..40).map(|i| format!("{{\"text\": \"text {i} of them\"}}\n")).collect();
    let recipe = recipe(folder.path(), "a.jsonl", lines.as_bytes());
    let read = || {
        let (mut rows, _) = open(&recipe, &reader, true).unwrap();
        let n = rows.n_rows() as u64;
        let batch = rows.batch(0..n, Device::Cpu);
        let mut tokens = vec![0i64; batch.n_targets];
        batch.targets.tokens.copy_data(&mut tokens, batch.n_targets);
        (n, tokens)
    };
    let (n, mut first) = read();
    assert_eq!((n, first.clone()), read(), "the second time from the cache");
    first.sort();
    // Bytes are tokens here, and nothing predicts the first; an end follows each text.
    let mut expected: Vec<i64> = (0..40)
        .flat_map(|i| format!("ext {i} of them").into_bytes().into_iter().map(i64::from))
        .chain([crate::models::VOCAB as i64 - 1; 40])
        .collect();
    expected.sort();
    assert_eq!(first, expected);
}

#[test]
fn hostile_data_is_an_error_in_one_line() {
    let tiny = Tiny::named("llama");
    let reader = Texts::of(&tiny.model).unwrap();
    for (file, text, named) in [
        ("a.jsonl", &b"{\"text\": 3}\n"[..], "line 1"),
        ("a.jsonl", b"{\"text\": \"a\"}\n{\"tex\": \"b\"}\n", "line 2"),
        ("a.jsonl", b"[1]\n", "line 1"),
        ("a.parquet", b"PAR1 and then nothing", "a.parquet"),
        ("a.txt", b"", "no documents"),
        ("a.bin", &[0xff; 100], "UTF-8"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let recipe = recipe(folder.path(), file, text);
        let Err(error) = open(&recipe, &reader, true) else { panic!("{file} was read") };
        let line = format!("{error:#}");
        assert!(line.contains(named) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn a_damaged_cache_is_told() {
    let tiny = Tiny::named("llama");
    let reader = Texts::of(&tiny.model).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path(), "a.txt", b"some text that is long enough for rows");
    open(&recipe, &reader, true).unwrap();
    let cache = std::fs::read_dir(folder.path().join("tokens")).unwrap().next().unwrap();
    let cache = cache.unwrap().path();
    let whole = std::fs::read(&cache).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&cache, &whole[..len]).unwrap();
        assert!(open(&recipe, &reader, true).is_err(), "cut at {len}");
    }
    for at in (0..24).chain(whole.len() - 32..whole.len()) {
        let mut changed = whole.clone();
        changed[at] ^= 0x80;
        std::fs::write(&cache, &changed).unwrap();
        // It may be read as something else, but without a panic.
        let _ = open(&recipe, &reader, true);
    }
}
