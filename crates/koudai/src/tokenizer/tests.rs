//! The tokenizer on small vocabularies made here: rules, hostile sections, hostile texts.
//!
//! Equality with the reference implementation is tested where its files are read, in the converter.

#![expect(clippy::single_range_in_vec_init)] // ranges of bytes are what is meant

use proptest::prelude::*;

use super::*;

/// A byte-level vocabulary: 256 bytes, then `words` with the merges that make them left to right,
/// then `controls`, then `user_defined`.
pub(crate) fn byte_level(words: &[&str], controls: &[&str], user_defined: &[&str]) -> Spec {
    let token = |piece: &[u8], kind, matched| Token { piece: piece.to_vec(), kind, matched };
    let mut spec = Spec { pretokenizer: Pretokenizer::Qwen2, ..Spec::default() };
    spec.tokens = (0..=255).map(|b| token(&[b], Kind::Normal, Matched::Never)).collect();
    for word in words {
        let mut left = u32::from(word.as_bytes()[0]);
        for end in 2..=word.len() {
            let piece = &word.as_bytes()[..end];
            let known = spec.tokens.iter().position(|t| t.piece == piece);
            let result = known.unwrap_or(spec.tokens.len()) as u32;
            if known.is_none() {
                spec.tokens.push(token(piece, Kind::Normal, Matched::Never));
                let rank = spec.merges.len() as u32;
                let right = u32::from(word.as_bytes()[end - 1]);
                spec.merges.push(Merge { left, right, result, rank });
            }
            left = result;
        }
    }
    for (list, kind) in [(controls, Kind::Control), (user_defined, Kind::UserDefined)] {
        spec.tokens.extend(list.iter().map(|s| token(s.as_bytes(), kind, Matched::Raw)));
    }
    spec
}

/// A SentencePiece-style vocabulary with byte fallback: `▁`, then `words` as above by characters.
fn metaspace(words: &[&str]) -> Spec {
    let token = |piece: &[u8], kind| Token { piece: piece.into(), kind, matched: Matched::Never };
    let mut spec = Spec {
        normalizer: Normalizer::MetaspacePrepend,
        byte_fallback: true,
        strip_leading_space: true,
        ..Spec::default()
    };
    spec.tokens = (0..=255).map(|b| token(&[b], Kind::Byte)).collect();
    spec.tokens.push(token("▁".as_bytes(), Kind::Normal));
    for word in words {
        let position = |spec: &Spec, piece: &str| {
            spec.tokens.iter().skip(256).position(|t| t.piece == piece.as_bytes()).map(|p| p + 256)
        };
        for c in word.chars() {
            if position(&spec, &c.to_string()).is_none() {
                spec.tokens.push(token(c.to_string().as_bytes(), Kind::Normal));
            }
        }
        let ends: Vec<usize> = word.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        for pair in ends.windows(2) {
            let [left, right] = [&word[..pair[0]], &word[pair[0]..pair[1]]];
            if position(&spec, &word[..pair[1]]).is_none() {
                spec.tokens.push(token(&word.as_bytes()[..pair[1]], Kind::Normal));
                let [left, right, result] = [left, right, &word[..pair[1]]]
                    .map(|piece| position(&spec, piece).unwrap() as u32);
                spec.merges.push(Merge { left, right, result, rank: spec.merges.len() as u32 });
            }
        }
    }
    spec
}

pub(crate) fn open(spec: &Spec) -> Tokenizer {
    Tokenizer::open(SharedBytes::from(spec.to_bytes().unwrap())).unwrap()
}

fn pieces(tokenizer: &Tokenizer, text: &str, special: Special) -> Vec<String> {
    let ids = tokenizer.encode(text, special);
    ids.iter()
        .map(|&id| String::from_utf8_lossy(tokenizer.piece(id).unwrap()).into_owned())
        .collect()
}

// ---- Rules ------------------------------------------------------------------------------------

#[test]
fn words_are_split_as_the_patterns_say() {
    use Pretokenizer::*;
    let split = |kind, text: &str| {
        let mut words = Vec::new();
        pretokenize::words(kind, text, &mut |word| words.push(word.to_owned()));
        words.join("|")
    };
    for (kind, text, expected) in [
        (Gpt2, "it's 1234  x\n\n y", "it|'s| 1234| | x|\n\n| y"),
        (Gpt2, "IT'S 'sx  ", "IT|'|S| '|sx|  "),
        (SmolLm, "a  12 b", "a|  |1|2| b"),
        (SmolLm, "don't ½", "don|'t| |½"),
        (Qwen2, "IT'S 'ſx 12", "IT|'S| '|ſx| |1|2"),
        (Qwen2, "(x):\n\n  y  \n z->\r\n", "(x|):\n\n| | y|  \n| z|->\r\n"),
        (Qwen2, "\tfoo \u{3000}天地。a", "\tfoo| |\u{3000}天地|。a"),
        (Llama3, "12345 67", "123|45| |67"),
        (Llama3, "x \n\n  \n   y", "x| \n\n  \n|  | y"),
        (None, "a b", "a b"),
        (None, "", ""),
    ] {
        assert_eq!(split(kind, text), expected, "{kind:?} {text:?}");
    }
}

#[test]
fn control_tokens_come_from_trusted_text_only() {
    let t = open(&byte_level(&["ab"], &["<|end|>"], &["<think>"]));
    assert_eq!(pieces(&t, "ab<|end|><think>", Special::Parse), ["ab", "<|end|>", "<think>"]);
    let as_text = pieces(&t, "ab<|end|><think>", Special::Text);
    assert_eq!(as_text, ["ab", "<", "|", "e", "n", "d", "|", ">", "<think>"]);
    let id = t.token_to_id(b"<|end|>").unwrap();
    assert!(t.is_control(id) && !t.is_control(id + 1) && !t.is_control(u32::MAX));
    assert_eq!(t.decode(&[id, id + 1, u32::MAX], true), "<think>");
    assert_eq!(t.decode(&[id, id + 1], false), "<|end|><think>");
}

/// A model whose merges spell a control token, even as a step to something longer.
#[test]
fn merges_cannot_make_a_control_token() {
    let mut spec = byte_level(&["<s>x"], &[], &[]);
    for ignore_merges in [false, true] {
        spec.ignore_merges = ignore_merges;
        let made = spec.tokens.iter().position(|t| t.piece == b"<s>").unwrap();
        spec.tokens[made].kind = Kind::Control;
        spec.tokens[made].matched = Matched::Raw;
        let part = spec.tokens.iter().position(|t| t.piece == b"<s").unwrap();
        spec.tokens[part].kind = Kind::Control;
        spec.pretokenizer = Pretokenizer::Gpt2;
        let t = open(&spec);
        assert_eq!(pieces(&t, "<s>", Special::Parse), ["<s>"]);
        for text in ["<s>", "<s", "a<s><s", "<s><s>"] {
            let ids = t.encode(text, Special::Text);
            assert!(ids.iter().all(|&id| !t.is_control(id)), "{text}: {ids:?}");
            assert_eq!(t.decode(&ids, true), text);
        }
    }
    // One pattern-free word, where the merges go on through the control token.
    let mut spec = metaspace(&["<s>x"]);
    let made = spec.tokens.iter().position(|t| t.piece == b"<s>").unwrap();
    spec.tokens[made].kind = Kind::Control;
    let t = open(&spec);
    assert_eq!(pieces(&t, "<s>x<s>", Special::Text), ["▁", "<s>x", "<s", ">"]);
}

#[test]
fn a_control_token_of_one_character_is_not_that_character() {
    let mut spec = byte_level(&[], &[], &[]);
    spec.tokens[usize::from(b'!')].kind = Kind::Control;
    let t = open(&spec);
    assert_eq!(t.encode("a!", Special::Text), [u32::from(b'a')]);
    let mut spec = metaspace(&["ab"]);
    let b = spec.tokens.iter().skip(256).position(|t| t.piece == b"b").unwrap() + 256;
    spec.tokens[b].kind = Kind::Control;
    assert_eq!(*open(&spec).encode("b", Special::Text).last().unwrap(), u32::from(b'b'));
}

#[test]
fn spaces_and_unknown_characters_go_through_sentencepiece_and_back() {
    let t = open(&metaspace(&["▁the", "▁▁", "天地"]));
    let text = "the  天地玄 the";
    let expected = ["▁the", "▁▁", "天地"];
    assert_eq!(pieces(&t, text, Special::Text)[..3], expected);
    assert_eq!(t.encode("玄", Special::Text)[1..], [0xE7, 0x8E, 0x84]);
    for text in [text, "", " ", "  x", "▁ is a space"] {
        let back = t.decode(&t.encode(text, Special::Text), false);
        assert_eq!(back, text.replace('▁', " "));
    }
}

#[test]
fn a_prompt_has_one_beginning() {
    let mut spec = byte_level(&[], &["<s>"], &[]);
    spec.bos = Some(256);
    spec.add_bos = true;
    let t = open(&spec);
    assert_eq!(t.encode_prompt("a", Special::Parse), [256, 97]);
    assert_eq!(t.encode_prompt("<s>a", Special::Parse), [256, 97]);
    assert_eq!(t.encode_prompt("<s>", Special::Text).len(), 4);
    assert_eq!(t.encode_prompt("", Special::Text), [256]);
}

#[test]
fn only_trusted_bytes_spell_control_tokens() {
    let t = open(&byte_level(&[], &["<s>", "<s>x", "</s>", "\n\n"], &["s></"]));
    let control = |text: &str, untrusted: &[Range<usize>]| {
        let ids = t.encode_mixed(text, untrusted);
        assert_eq!(t.decode(&ids, false), text);
        ids.into_iter().filter(|&id| t.is_control(id)).count()
    };
    let text = "<s>x</s>";
    assert_eq!(control(text, &[]), 2);
    assert_eq!(control(text, &[3..4]), 2); // the shorter one is still trusted
    assert_eq!(control(text, &[2..3]), 1);
    assert_eq!(control(text, &[0..1, 7..8]), 0);
    assert_eq!(control(text, &[0..8]), 0);
    assert_eq!(control("<<s>", &[0..1]), 1); // what comes before doesn't swallow it
    assert_eq!(control("\n\n", &[]), 0); // a space is never trusted, nor marked
    assert_eq!(t.encode_mixed("a<s>b", &[]), t.encode("a<s>b", Special::Parse));
}

// ---- Decoding in pieces -----------------------------------------------------------------------

fn stream(t: &Tokenizer, ids: &[u32], skip: bool) -> String {
    let mut stream = DecodeStream::new(skip);
    let mut text = String::new();
    for &id in ids {
        text.push_str(&stream.push(t, id));
    }
    text + &stream.finish()
}

#[test]
fn a_stream_never_cuts_a_character() {
    let text = "天地玄黄🧑‍🚀é";
    let t = open(&byte_level(&[], &[], &[]));
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    let mut decoder = DecodeStream::new(false);
    let chunks: Vec<String> = ids.iter().map(|&id| decoder.push(&t, id)).collect();
    assert!(chunks.iter().all(|chunk| chunk.chars().count() <= 1));
    assert_eq!(chunks.concat() + &decoder.finish(), text);
    assert_eq!(t.decode(&ids, false), text);
}

#[test]
fn invalid_bytes_are_flushed_within_four() {
    let t = open(&byte_level(&[], &[], &[]));
    for ids in [&[0xF0, 0x9F, 0x9A, 0xFF][..], &[0xE5, 0xA4, 0x61], &[0xC3, 0xC3, 0xA9], &[0x80]] {
        let mut decoder = DecodeStream::new(false);
        let text: String = ids.iter().map(|&id| decoder.push(&t, id)).collect();
        assert!(text.starts_with('\u{FFFD}'), "{ids:x?}: {text:?}");
        assert_eq!(stream(&t, ids, false), t.decode(ids, false));
    }
    let mut decoder = DecodeStream::new(false);
    assert_eq!(decoder.push(&t, 0xE5) + &decoder.push(&t, 0xA4), "");
    assert_eq!(decoder.finish(), "\u{FFFD}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn streams_equal_decoding_at_once(ids in prop::collection::vec(0u32..300, 0..40), skip: bool) {
        for spec in [byte_level(&["天地"], &["<s>"], &["é"]), metaspace(&["▁the", "▁▁", "天地"])] {
            let t = open(&spec);
            prop_assert_eq!(stream(&t, &ids, skip), t.decode(&ids, skip));
            let bytes = t.decode_bytes(&ids, skip);
            prop_assert_eq!(String::from_utf8_lossy(&bytes), t.decode(&ids, skip));
        }
    }

    #[test]
    fn text_survives_encoding(text in "\\PC*|[ab<s>\\n ]*") {
        let t = open(&byte_level(&["ab", "s>"], &["<s>"], &["\n\n"]));
        for special in [Special::Parse, Special::Text] {
            prop_assert_eq!(t.decode(&t.encode(&text, special), false), text.clone());
        }
        let ids = t.encode(&text, Special::Text);
        prop_assert!(ids.iter().all(|&id| !t.is_control(id)));
    }

    #[test]
    fn any_bytes_open_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Tokenizer::open(SharedBytes::from(bytes));
    }
}

// ---- Hostile sections -------------------------------------------------------------------------

/// Small, but with something in every table.
fn tiny() -> Spec {
    let token = |piece: &str, kind, matched| Token { piece: piece.into(), kind, matched };
    Spec {
        tokens: vec![
            token("a", Kind::Normal, Matched::Never),
            token("b", Kind::Normal, Matched::Never),
            token("ab", Kind::Normal, Matched::Never),
            token("aba", Kind::Normal, Matched::Never),
            token("<s>", Kind::Control, Matched::Raw),
            token("c", Kind::UserDefined, Matched::Normalized),
            token("", Kind::Unused, Matched::Never),
        ],
        merges: vec![
            Merge { left: 0, right: 1, result: 2, rank: 0 },
            Merge { left: 2, right: 0, result: 3, rank: 1 },
        ],
        pretokenizer: Pretokenizer::Gpt2,
        normalizer: Normalizer::Nfc,
        bos: Some(4),
        eos: Some(4),
        unk: Some(0),
        ends: vec![4, 5],
        add_bos: true,
        ..Spec::default()
    }
}

#[test]
fn a_section_gives_its_description_back() {
    for spec in [tiny(), byte_level(&["ab"], &["<s>"], &["x y"]), metaspace(&["▁the"])] {
        let bytes = spec.to_bytes().unwrap();
        let t = Tokenizer::open(SharedBytes::from(bytes)).unwrap();
        assert_eq!(t.spec(), spec);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = tiny().to_bytes().unwrap();
    for len in 0..bytes.len() {
        assert!(Tokenizer::open(SharedBytes::from(bytes[..len].to_vec())).is_err(), "{len}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    let found = longer.len() as u64;
    let error = Tokenizer::open(SharedBytes::from(longer)).unwrap_err();
    assert_eq!(error, Error::Length { expected: found - 1, found });
}

#[test]
fn every_changed_byte_is_an_error_or_works() {
    let bytes = tiny().to_bytes().unwrap();
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut changed = bytes.clone();
            changed[at] = value;
            if let Ok(t) = Tokenizer::open(SharedBytes::from(changed)) {
                let text = "abacab <s> \u{301}e";
                let ids = t.encode_prompt(text, Special::Parse);
                assert!(ids.iter().all(|&id| (id as usize) < t.vocab_size()));
                assert_eq!(stream(&t, &ids, true), t.decode(&ids, true));
                assert!(t.encode(text, Special::Text).iter().all(|&id| !t.is_control(id)));
            }
        }
    }
}

#[test]
fn hostile_counts_are_refused_before_allocating() {
    let bytes = tiny().to_bytes().unwrap();
    for at in [8, 12, 16, 20, 24] {
        for count in [0, 1 << 20, 1 << 24, 1 << 31, u32::MAX] {
            let mut changed = bytes.clone();
            changed[at..at + 4].copy_from_slice(&u32::to_le_bytes(count));
            let result = Tokenizer::open(SharedBytes::from(changed));
            assert!(result.is_err(), "count at {at} = {count}");
        }
    }
}

#[test]
fn descriptions_that_break_a_rule_are_refused_by_it() {
    let fails = |change: &dyn Fn(&mut Spec)| {
        let mut spec = tiny();
        change(&mut spec);
        spec.to_bytes().unwrap_err()
    };
    let duplicate = fails(&|s| s.tokens[1].piece = b"a".to_vec());
    assert_eq!(duplicate, Error::Duplicate { first: 0, second: 1 });
    assert_eq!(fails(&|s| s.bos = None), Error::SpecialId { role: "bos", id: None });
    assert_eq!(fails(&|s| s.pad = Some(7)), Error::SpecialId { role: "pad", id: Some(7) });
    assert_eq!(fails(&|s| s.ends = vec![9]), Error::SpecialId { role: "end", id: Some(9) });
    let rule = |change: &dyn Fn(&mut Spec)| fails(change).to_string();
    assert!(rule(&|s| s.merges[1] = s.merges[0]).contains("repeats"));
    assert!(rule(&|s| s.merges[0].result = 3).contains("two joined"));
    assert!(rule(&|s| s.merges[0].left = 99).contains("outside"));
    assert!(rule(&|s| s.merges[0].right = 99).contains("outside"));
    assert!(rule(&|s| s.merges[0].right = 6).contains("unused"));
    assert!(rule(&|s| s.tokens[0].piece.clear()).contains("token 0: empty"));
    assert!(rule(&|s| s.tokens[4].piece = b"\xff".to_vec()).contains("not UTF-8"));
    assert!(rule(&|s| s.tokens[4].piece = vec![b'<'; 2000]).contains("too long"));
    assert!(rule(&|s| s.tokens[6].matched = Matched::Raw).contains("matched"));
    assert!(rule(&|s| s.normalizer = Normalizer::Metaspace).contains("normalizer"));
    assert!(rule(&|s| s.tokens.clear()).contains("token count"));
}

// ---- Hostile texts ----------------------------------------------------------------------------

/// Merges double a run each time, the worst case for a heap of pairs.
#[test]
fn merging_a_long_run_takes_few_steps() {
    let mut spec = byte_level(&["aaaaaaaaaaaaaaaa"], &[], &[]);
    for (half, whole) in [("aa", "aaaa"), ("aaaa", "aaaaaaaa"), ("aaaaaaaa", "aaaaaaaaaaaaaaaa")] {
        let id = |piece: &str| {
            spec.tokens.iter().position(|t| t.piece == piece.as_bytes()).unwrap() as u32
        };
        let merge = Merge { left: id(half), right: id(half), result: id(whole), rank: 100 };
        spec.merges.push(merge);
    }
    let t = open(&spec);
    for n in [1 << 12, 1 << 16, 1 << 20] {
        let mut merger = Merger::default();
        (0..n).for_each(|_| merger.push(u32::from(b'a')));
        let mut ids = Vec::new();
        merger.merge(&t.section.view(), &mut ids);
        assert_eq!(ids.len(), n / 16);
        assert!(merger.pops < 4 * n, "{} pairs for {n} symbols", merger.pops);
    }
}

/// Quadratic work on these would take hours.
#[test]
fn long_runs_of_anything_are_encoded() {
    let n = 1 << 20;
    let runs = [
        " ",
        "a",
        "\n",
        " \n",
        "\r\n ",
        "'",
        "'s",
        "1",
        "天",
        "!",
        "e\u{301}",
        "<|end",
        "\u{1f680}",
    ];
    let words = ["aa", "aaaa", "  ", "    ", "天天"];
    for run in runs {
        let text = run.repeat(n / run.len());
        for pretokenizer in
            [Pretokenizer::Gpt2, Pretokenizer::SmolLm, Pretokenizer::Qwen2, Pretokenizer::Llama3]
        {
            let mut spec = byte_level(&words, &["<|end|>", "<|end|><|end|>"], &["\n\n"]);
            spec.pretokenizer = pretokenizer;
            spec.normalizer = Normalizer::Nfc;
            let t = open(&spec);
            let ids = t.encode(&text, Special::Parse);
            assert_eq!(
                t.decode_bytes(&ids, false).len(),
                text.nfc().map(char::len_utf8).sum::<usize>()
            );
        }
        let t = open(&metaspace(&["aa", "aaaa", "▁▁", "▁▁▁▁", "天天"]));
        assert_eq!(t.decode(&t.encode(&text, Special::Text), false), text);
    }
}
