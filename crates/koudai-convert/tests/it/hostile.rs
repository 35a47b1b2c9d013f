//! Malformed and malicious GGUF files: an error value, soon, without memory.

use std::time::{Duration, Instant};

use koudai_convert::arch::Family;
use koudai_convert::gguf::{Gguf, GgufError};
use koudai_convert::{Options, arch};
use proptest::prelude::*;

use crate::support::*;

/// Counts what each thread allocates, so that tests can hold parsers to a limit.
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    pub(crate) struct Counting;

    thread_local! {
        static ALLOCATED: Cell<usize> = const { Cell::new(0) };
    }

    // SAFETY: every call goes to the system's allocator unchanged.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // While a thread ends its counter is gone already.
            let _ = ALLOCATED.try_with(|a| a.set(a.get() + layout.size()));
            // SAFETY: the caller's promises are passed on.
            unsafe { System.alloc(layout) }
        }
        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            // SAFETY: the caller's promises are passed on.
            unsafe { System.dealloc(at, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// What `f` returns and the bytes it allocated in all.
    pub(crate) fn count<T>(f: impl FnOnce() -> T) -> (T, usize) {
        let before = ALLOCATED.get();
        let result = f();
        (result, ALLOCATED.get() - before)
    }
}

/// Parses within the limits that every small file must keep.
fn parse_small(bytes: &[u8]) -> Result<(), GgufError> {
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        let (result, allocated) = counting::count(|| Gguf::parse(bytes).map(|_| ()));
        times.push(start.elapsed());
        assert!(allocated < 1 << 20, "{allocated} bytes allocated");
        // On a busy machine we may lose the CPU in between.
        if start.elapsed() < Duration::from_millis(10) {
            return result;
        }
        assert!(times.len() < 5, "{times:?}");
    }
}

#[track_caller]
fn refused(bytes: &[u8], part: &str) {
    let e = parse_small(bytes).unwrap_err().to_string();
    assert!(e.contains(part), "`{e}` doesn't say `{part}`");
}

fn tiny() -> GgufBuilder {
    let mut b = GgufBuilder::default();
    b.str("general.architecture", "qwen3").u32("qwen3.block_count", 2);
    b.value("list", ARRAY, strings(&["a".into(), "bc".into()]));
    b.tensor("one", &[32, 2], F32, vec![1; 256]);
    b.tensor("two", &[32], Q4_1, vec![2; 20]);
    b
}

#[test]
fn keys_must_be_names() {
    let with_key = |key: &[u8]| {
        let mut b = tiny();
        b.values.push((key.to_vec(), U32, vec![0; 4]));
        b.build()
    };
    refused(&with_key(b""), "metadata key is empty");
    refused(&with_key(&[b'k'; 65536]), "longer than 65535");
    refused(&with_key(b"a\0b"), "NUL");
    refused(&with_key(b"\xff\xfe"), "UTF-8");
    refused(&with_key(b"list"), "`list`: it is there twice");
    parse_small(&with_key(&[b'k'; 65535])).unwrap();
    // 37 bytes with one empty key.
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([0u64, 1, 0].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([8, 0, 0, 0, 0]);
    assert_eq!(file.len(), 37);
    assert!(parse_small(&file).is_err());
}

#[test]
fn counts_are_checked_before_anything_is_allocated() {
    let huge = [1u64 << 31, 1 << 32, 1 << 63, u64::MAX, 1000];
    for n in huge {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(n.to_le_bytes());
        file.extend(0u64.to_le_bytes());
        file.resize(64, 0);
        refused(&file, &format!("{n} tensors"));
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(0u64.to_le_bytes());
        file.extend(n.to_le_bytes());
        file.resize(64, 0);
        refused(&file, &format!("{n} metadata values"));
        // One key `k` whose value is a string, or an array of each type, of n items.
        for kind in [STRING, ARRAY] {
            for item in 0..13u32 {
                let mut file = b"GGUF\x03\0\0\0".to_vec();
                file.extend([0u64, 1, 1].iter().flat_map(|n| n.to_le_bytes()));
                file.push(b'k');
                file.extend(kind.to_le_bytes());
                if kind == ARRAY {
                    file.extend(item.to_le_bytes());
                }
                file.extend(n.to_le_bytes());
                file.resize(64, 0);
                refused(&file, &n.to_string());
            }
        }
    }
}

#[test]
fn arrays_nest_only_so_deep() {
    for (depth, fine) in [(3, true), (5, false), (1000, false)] {
        let mut bytes = Vec::new();
        for _ in 0..depth {
            bytes.extend(ARRAY.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        bytes.extend(U32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        let file = tiny().value("deep", ARRAY, bytes).build();
        match fine {
            true => parse_small(&file).unwrap(),
            false => refused(&file, "`deep`: arrays are nested too deeply"),
        }
    }
}

#[test]
fn sizes_that_wrap_are_refused() {
    let dims = |dims: &[u64], kind: u32| {
        let mut b = tiny();
        let t = b.tensor_mut("one");
        (t.dims, t.kind) = (dims.to_vec(), kind);
        b.build()
    };
    // Products, and products times type size, that come out small modulo 2^64.
    refused(&dims(&[1 << 32, 1 << 32], F32), "`one`: its dimensions' product overflows");
    refused(&dims(&[(1 << 62) + 1], F32), "`one`");
    refused(&dims(&[(1 << 62) + 16, 1], F32), "`one`: its size in bytes overflows");
    refused(&dims(&[1 << 16, 1 << 16, 1 << 16, 1 << 16], F16), "overflows");
    refused(&dims(&[u64::MAX - 31], Q4_1), "`one`: dimension");
    refused(&dims(&[1 << 63], F32), "`one`: dimension");
    refused(&dims(&[0], F32), "`one`: dimension 0");
    refused(&dims(&[32, 0], F32), "`one`: dimension 0");
    refused(&dims(&[], F32), "0 dimensions");
    refused(&dims(&[1; 5], F32), "5 dimensions");
    refused(&dims(&[33], Q4_1), "33 columns");
    refused(&dims(&[32], 4), "unknown type number 4");
    refused(&dims(&[32], 1 << 31), "unknown type number");
    // Each fits, all together don't.
    let mut b = tiny();
    for i in 0..40 {
        b.tensor(&format!("big{i}"), &[1 << 60], F16, vec![]);
    }
    refused(&b.build(), "reach past the end");
}

#[test]
fn tensors_lie_inside_the_file_and_apart() {
    let offset = |offset: u64| {
        let mut b = tiny();
        b.tensor_mut("two").offset = Some(offset);
        b.build()
    };
    refused(&offset(32), "`two`: it overlaps tensor `one`");
    refused(&offset(0), "overlaps");
    refused(&offset(260), "`two`: offset 260 is not a multiple of 32");
    refused(&offset(1 << 20), "`two`: 20 bytes at offset 1048576 reach past the end");
    refused(&offset(u64::MAX - 31), "`two`");
    let mut b = tiny();
    b.tensor_mut("two").dims = vec![64];
    refused(&b.build(), "`two`: 40 bytes at offset 256 reach past the end");
    let mut b = tiny();
    b.tensor_mut("two").name = "one".into();
    refused(&b.build(), "`one`: it is there twice");
    let mut b = tiny();
    b.tensor_mut("two").name = String::new();
    refused(&b.build(), "tensor name is empty");
}

#[test]
fn alignment_is_a_sane_power_of_two_of_the_right_type() {
    for bad in [0, 1, 3, 4, 24, 1 << 21, 1 << 31, u32::MAX] {
        refused(tiny().u32("general.alignment", bad).build().as_slice(), "`general.alignment`");
    }
    refused(&tiny().str("general.alignment", "32").build(), "string, not u32");
    refused(&tiny().value("general.alignment", 10, 32u64.to_le_bytes()).build(), "u64, not u32");
    let mut b = tiny();
    b.align = 64;
    parse_small(&b.u32("general.alignment", 64).build()).unwrap();
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = tiny().build();
    parse_small(&whole).unwrap();
    for len in 0..whole.len() {
        assert!(parse_small(&whole[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn a_model_cut_anywhere_or_with_flipped_bits_never_panics() {
    let whole = TinyModel::new(Family::Gemma3, true).gguf(F16).build();
    let try_all = |bytes: &[u8]| {
        let Ok(file) = Gguf::parse(bytes) else { return false };
        for (_, value) in file.metadata() {
            if let Some(array) = value.array() {
                assert_eq!(array.iter().count(), array.len());
            }
        }
        arch::gguf::model(&file).is_ok()
    };
    assert!(try_all(&whole));
    for percent in 0..100 {
        assert!(!try_all(&whole[..whole.len() * percent / 100]), "cut at {percent}%");
    }
    let header = whole.len().min(12_000);
    for at in 0..header {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        try_all(&bytes);
        bytes[at] = 0xff;
        try_all(&bytes);
    }
}

#[test]
fn flipped_bits_convert_or_fail_and_leave_nothing() {
    let whole = TinyModel::new(Family::Qwen3, true).gguf(F16).build();
    let mut random = Random(77);
    for _ in 0..150 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.next() % 3 {
            let at = random.next() as usize % bytes.len();
            bytes[at] ^= 1 << (random.next() % 8);
        }
        // `convert_bytes` checks the file, or that there is none.
        let _ = convert_bytes(&bytes, &Options::default());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        let _ = parse_small(&bytes);
    }

    #[test]
    fn small_counts_before_arbitrary_bytes_never_panic(
        tensors in 0u64..3, values in 0u64..4, tail in prop::collection::vec(any::<u8>(), 0..200)
    ) {
        let mut bytes = b"GGUF\x02\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(values.to_le_bytes());
        bytes.extend(tail);
        let _ = parse_small(&bytes);
    }
}
