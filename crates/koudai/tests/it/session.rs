//! Sessions: stopping, cancelling, sharing an engine, reusing, saving, and refusing what can't be.

use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;
use std::sync::mpsc;

use koudai::kernels::Kind;
use koudai::tokenizer::Special;
use koudai::{
    CancelToken, Engine, Error, Flow, GenerateParams, Generation, KvKind, OpenOptions, Precision,
    SamplingParams, Session, SessionOptions, StopReason,
};

use crate::models;

fn open(path: &Path) -> Engine {
    Engine::open(path, &OpenOptions { threads: Some(2), ..Default::default() }).unwrap()
}

/// A random model of the first family.
fn random(dir: &Path) -> Engine {
    let (name, config) = models::configs().remove(0);
    open(&models::write(dir, name, &config, Kind::Q4G32))
}

fn session(engine: &Engine) -> Session {
    with_context(engine, 300)
}

fn with_context(engine: &Engine, context: usize) -> Session {
    Session::new(engine, &SessionOptions { context: Some(context), ..Default::default() }).unwrap()
}

fn go(_: u32, _: &str) -> Flow {
    Continue(())
}

fn params(max_tokens: usize) -> GenerateParams {
    GenerateParams { max_tokens, ignore_end: true, ..Default::default() }
}

fn sampled(max_tokens: usize, seed: u64) -> GenerateParams {
    let sampling = SamplingParams { temperature: 1.0, seed, ..Default::default() };
    GenerateParams { sampling, ..params(max_tokens) }
}

/// 天地玄黄 and an astronaut, cut inside characters, with a stop text over four tokens.
const PIECES: [&[u8]; 11] = [
    b"\xe5\xa4",
    b"\xa9\xe5\x9c",
    b"\xb0\xe7\x8e\x84",
    b"\xe9\xbb\x84 ",
    b"\xf0\x9f\xa7",
    b"\x91\xe2\x80",
    b"\x8d\xf0\x9f\x9a\x80",
    b"a##",
    b"EN",
    b"D#",
    b"#b\xc3\xa9",
];
const TEXT: &str = "天地玄黄 🧑\u{200d}🚀a##END##bé";

fn tell(engine: &Engine, stop: &[&str]) -> (Generation, Vec<String>) {
    let stop = stop.iter().map(|s| s.to_string()).collect();
    let mut chunks = Vec::new();
    let generation = session(engine)
        .generate(&[97], &GenerateParams { stop, ..Default::default() }, |_, text| {
            chunks.push(text.to_owned());
            Continue(())
        })
        .unwrap();
    (generation, chunks)
}

#[test]
fn chunks_are_whole_characters_and_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&models::script(dir.path(), &PIECES));
    let (generation, chunks) = tell(&engine, &[]);
    assert_eq!(generation.text, TEXT);
    assert_eq!(chunks.concat(), TEXT);
    assert_eq!(generation.stop_reason, StopReason::End);
    assert_eq!(generation.tokens, (256..=256 + PIECES.len() as u32).collect::<Vec<_>>());
    assert_eq!(engine.tokenizer().decode(&generation.tokens, true), TEXT);
    assert_eq!(chunks[..3], ["", "天", "地玄"]);
}

#[test]
fn stop_texts_may_span_tokens_and_characters() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&models::script(dir.path(), &PIECES));
    let hundred: Vec<String> = (0..100).map(|i| format!("never{i}")).chain(["玄".into()]).collect();
    let hundred: Vec<&str> = hundred.iter().map(String::as_str).collect();
    for stops in [
        &["天"][..],
        &["地玄黄"],
        &["天地玄黄 🧑\u{200d}🚀a"],
        &["##END##"],
        &["END"],
        &["ND##b"],
        &["é"],
        &["🚀"],
        &["\u{200d}"],
        &["##END##b", "##E"],
        &["", "黄"],
        &hundred,
    ] {
        let (generation, chunks) = tell(&engine, stops);
        let at = stops.iter().filter(|s| !s.is_empty()).filter_map(|s| TEXT.find(s)).min();
        let want = &TEXT[..at.unwrap()];
        assert_eq!(generation.text, want, "{stops:?}");
        assert_eq!(chunks.concat(), want, "{stops:?}");
        assert_eq!(generation.stop_reason, StopReason::StopText, "{stops:?}");
    }
    // What only looks like a stop text is held back and shown in the end.
    for stops in [&["##bé!"][..], &[""], &[], &["é\u{301}"]] {
        let (generation, chunks) = tell(&engine, stops);
        assert_eq!((generation.text.as_str(), chunks.concat()), (TEXT, TEXT.to_owned()));
        assert_eq!(generation.stop_reason, StopReason::End);
    }
}

#[test]
fn bytes_that_are_no_text_still_come_out() {
    let dir = tempfile::tempdir().unwrap();
    let engine =
        open(&models::script(dir.path(), &[b"ok\xf0\x9f", b"\xff\xfe", b"fine", b"\xe5\xa4"]));
    let (generation, chunks) = tell(&engine, &[]);
    assert_eq!(chunks.concat(), generation.text);
    assert!(generation.text.starts_with("ok\u{fffd}") && generation.text.contains("fine"));
    assert!(generation.text.ends_with('\u{fffd}'), "{:?}", generation.text);
    let whole = engine.tokenizer().decode(&generation.tokens, true);
    assert_eq!(generation.text, whole);
}

#[test]
fn a_callback_ends_a_generation() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let mut count = 0;
    let generation = session(&engine)
        .generate(&[1, 2, 3], &params(50), |_, _| {
            count += 1;
            if count == 5 { Break(()) } else { Continue(()) }
        })
        .unwrap();
    assert_eq!((generation.tokens.len(), generation.stop_reason), (5, StopReason::Cancelled));
}

/// Another thread that cancels when it is told to, and says when it has.
struct Canceller {
    start: mpsc::Sender<()>,
    done: mpsc::Receiver<()>,
}

impl Canceller {
    fn of(token: CancelToken) -> Canceller {
        let (start, started) = mpsc::channel();
        let (ended, done) = mpsc::channel();
        std::thread::spawn(move || {
            started.recv().unwrap();
            token.cancel();
            ended.send(()).unwrap();
        });
        Canceller { start, done }
    }
    fn now(&self) {
        self.start.send(()).unwrap();
        self.done.recv().unwrap();
    }
}

#[test]
fn a_prefill_cancelled_in_its_middle_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let tokens = models::tokens(290, 1);
    let fresh = session(&engine).append(&tokens).unwrap().to_vec();

    let mut s = session(&engine);
    s.append(&tokens[..10]).unwrap();
    let canceller = Canceller::of(s.cancel_token());
    let mut seen = 0;
    // The first logits come when a part of the rows is done and more are to do.
    let result = s.append_each(&tokens[10..], |i, _| {
        if i == 0 {
            canceller.now();
        }
        seen += 1;
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert!((1..280).contains(&seen), "{seen} rows of 280");
    assert_eq!(s.tokens(), &tokens[..10]);
    assert!(matches!(s.append(&tokens[10..]), Err(Error::Cancelled)), "until there is a new token");
    let none = s.generate(&tokens, &params(5), go).unwrap();
    assert_eq!((none.stop_reason, none.tokens.len()), (StopReason::Cancelled, 0));

    s.set_cancel_token(CancelToken::default());
    assert_eq!(s.set_prompt(&tokens).unwrap(), (&fresh[..], 10));
}

#[test]
fn a_generation_cancelled_in_its_middle_goes_on_as_if_never_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let prompt = models::tokens(20, 2);
    let whole = session(&engine).generate(&prompt, &params(40), go).unwrap();
    let mut s = session(&engine);
    let canceller = Canceller::of(s.cancel_token());
    let mut count = 0;
    let first = s
        .generate(&prompt, &params(40), |_, _| {
            count += 1;
            if count == 15 {
                canceller.now();
            }
            Continue(())
        })
        .unwrap();
    assert_eq!((first.tokens.len(), first.stop_reason), (15, StopReason::Cancelled));
    assert_eq!(first.tokens, whole.tokens[..15]);
    s.set_cancel_token(CancelToken::default());
    let rest = s.generate(&[prompt, first.tokens].concat(), &params(25), go).unwrap();
    assert_eq!(rest.tokens, whole.tokens[15..]);
    assert_eq!(rest.cached_tokens, 20 + 14);
}

#[test]
fn sessions_of_one_engine_never_see_each_other() {
    const SESSIONS: usize = 8;
    const ROUNDS: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let engine = &engine;
    // Each has its own prompts, of its own lengths; some are longer than a pass takes at once.
    let prompt = |i: usize, round: usize| {
        let secret = models::tokens(5 + i * 17, 100 + i as u64);
        [secret, models::tokens(1 + round * 3, round as u64)].concat()
    };
    let ask = |s: &mut Session, i: usize, round: usize| {
        s.generate(&prompt(i, round), &sampled(6, (i * ROUNDS + round) as u64), go).unwrap()
    };
    let alone: Vec<Vec<Vec<u32>>> = (0..SESSIONS)
        .map(|i| (0..ROUNDS).map(|r| ask(&mut session(engine), i, r).tokens).collect())
        .collect();
    let all = alone.concat();
    assert!(all.iter().any(|t| *t != all[0]), "different prompts say different things");
    let alone = &alone;
    let dir = dir.path();
    std::thread::scope(|scope| {
        for (i, wanted) in alone.iter().enumerate() {
            scope.spawn(move || {
                let mut s = session(engine);
                for (round, want) in wanted.iter().enumerate() {
                    let before = s.tokens().to_vec();
                    let got = ask(&mut s, i, round);
                    assert_eq!(got.tokens, *want, "session {i} round {round}");
                    let prompt = prompt(i, round);
                    let common = before.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
                    assert_eq!(got.cached_tokens, common.min(prompt.len() - 1));
                    // Evicted and brought back, emptied, or kept.
                    match round % 3 {
                        0 => {
                            let path = dir.join(format!("evicted-{i}"));
                            s.save(&path).unwrap();
                            s = session(engine);
                            s.restore(&path).unwrap();
                        }
                        1 => s.rewind(0),
                        _ => {}
                    }
                }
            });
        }
    });
}

#[test]
fn a_batch_succeeds_or_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let tokens = models::tokens(200, 11);
    let mut all = [session(&engine), session(&engine), with_context(&engine, 50)];
    for (s, n) in all.iter_mut().zip([3, 4, 5]) {
        s.append(&tokens[..n]).unwrap();
    }
    let mut refused = |lengths: [usize; 3], bad: Option<u32>| {
        let mut parts = lengths.map(|n| tokens[..n].to_vec());
        parts[1].extend(bad);
        let [a, b, c] = &mut all;
        let mut batch = [(a, &parts[0][..]), (b, &parts[1][..]), (c, &parts[2][..])];
        let error = Session::append_batch(&mut batch).unwrap_err();
        assert_eq!(all.each_ref().map(|s| s.tokens().len()), [3, 4, 5], "{error}");
        error
    };
    assert!(matches!(
        refused([200, 200, 46], None),
        Error::ContextFull { needed: 51, context: 50 }
    ));
    assert!(matches!(refused([200, 20, 1], Some(1000)), Error::Token { id: 1000, .. }));
    assert!(matches!(refused([200, 20, 0], None), Error::EmptyPrompt));
    all[2].cancel_token().cancel();
    let mut cancelled = |lengths: [usize; 3]| {
        let [a, b, c] = &mut all;
        let [x, y, z] = lengths.map(|n| &tokens[..n]);
        Session::append_batch(&mut [(a, x), (b, y), (c, z)])
    };
    assert!(matches!(cancelled([200, 200, 40]), Err(Error::Cancelled)));
    assert_eq!(all.each_ref().map(|s| s.tokens().len()), [3, 4, 5]);
    all[2].set_cancel_token(CancelToken::default());

    let [a, b, c] = &mut all;
    let mut batch = [(a, &tokens[3..]), (b, &tokens[4..]), (c, &tokens[5..50])];
    Session::append_batch(&mut batch).unwrap();
    let fresh = |n| session(&engine).append(&tokens[..n]).unwrap().to_vec();
    assert_eq!(all.each_ref().map(|s| s.logits().to_vec()), [fresh(200), fresh(200), fresh(50)]);
    Session::append_batch(&mut []).unwrap();
}

#[test]
fn reuse_counts_the_common_beginning_and_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let tokens = models::tokens(100, 3);
    let mut s = session(&engine);
    let mut other = tokens.clone();
    other[60] ^= 1;
    for (prompt, cached) in [
        (&tokens[..100], 0),
        (&tokens[..100], 99),
        (&tokens[..40], 39),
        (&tokens[..100], 40),
        (&other[..], 60),
        (&tokens[..61], 60),
        (&models::tokens(3, 4), 0),
        (&tokens[..1], 0),
        (&tokens[..1], 0),
    ] {
        let fresh = session(&engine).append(prompt).unwrap().to_vec();
        assert_eq!(s.set_prompt(prompt).unwrap(), (&fresh[..], cached));
        assert_eq!(s.tokens(), prompt);
    }
}

#[test]
fn a_copied_beginning_is_as_good_as_a_computed_one() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let prompt: Vec<u32> = (0..90).map(|i| 97 + i % 26).collect();
    for kv in [KvKind::F16, KvKind::Q8] {
        // Contexts of other sizes have their keys elsewhere.
        let open = |context| {
            let options = SessionOptions { context: Some(context), kv, ..Default::default() };
            Session::new(&engine, &options).unwrap()
        };
        let mut first = open(300);
        first.set_prompt(&prompt).unwrap();
        for len in [0, 1, 16, 17, 64, 90] {
            let mut copy = open(131);
            copy.append(&[98, 99, 100]).unwrap();
            copy.copy_prefix(&first, len).unwrap();
            assert_eq!(copy.tokens(), &prompt[..len]);
            assert!(copy.logits().is_empty());
            let rest = [&prompt[len..], &[101, 102]].concat();
            let got = copy.append(&rest).unwrap().to_vec();
            let mut fresh = open(200);
            assert_eq!(fresh.append(&[&prompt[..], &[101, 102]].concat()).unwrap(), got, "{len}");
        }
        let mut small = open(50);
        small.append(&[98]).unwrap();
        let error = small.copy_prefix(&first, 51).unwrap_err();
        assert!(matches!(error, Error::ContextFull { needed: 51, context: 50 }));
        assert_eq!(small.tokens(), [98]);
    }
}

#[test]
fn a_prompt_may_fill_the_context_and_never_exceed_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    for context in [1, 2, 16, 130] {
        let tokens = models::tokens(context * 10, 5);
        for len in [context - 1, context].into_iter().filter(|l| *l > 0) {
            let generation =
                with_context(&engine, context).generate(&tokens[..len], &params(500), go).unwrap();
            assert_eq!(generation.stop_reason, StopReason::ContextFull);
            assert_eq!(generation.tokens.len(), context - len + 1);
        }
        for len in [context + 1, context * 10].into_iter().filter(|l| *l > context) {
            let mut s = with_context(&engine, context);
            s.append(&tokens[..1]).unwrap();
            let error = s.generate(&tokens[..len], &params(5), go).unwrap_err();
            assert!(
                matches!(error, Error::ContextFull { needed, context: c } if (needed, c) == (len, context)),
                "{error}"
            );
            assert_eq!(s.tokens(), &tokens[..1], "what was there is still there");
        }
        let mut s = with_context(&engine, context);
        s.append(&tokens[..context]).unwrap();
        assert!(matches!(s.append(&[1]), Err(Error::ContextFull { .. })));
        assert_eq!(s.tokens().len(), context);
    }
    for context in [0, 513, usize::MAX] {
        let options = SessionOptions { context: Some(context), ..Default::default() };
        assert!(matches!(Session::new(&engine, &options), Err(Error::Parameter(_))), "{context}");
    }
}

#[test]
fn nothing_to_continue_and_ids_that_are_none_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let mut s = session(&engine);
    assert!(matches!(s.append(&[]), Err(Error::EmptyPrompt)));
    assert!(matches!(s.generate(&[], &params(1), go), Err(Error::EmptyPrompt)));
    assert!(matches!(s.score(&[], &[1]), Err(Error::EmptyPrompt)));
    s.append_each(&[], |_, _| panic!("no tokens, no logits")).unwrap();
    assert!(s.score(&[1], &[]).unwrap().is_empty());
    s.rewind(0);
    s.append(&[1, 2]).unwrap();
    let vocab = models::VOCAB as u32;
    for bad in [vocab, u32::MAX] {
        for error in [
            s.append(&[3, bad]).map(drop).unwrap_err(),
            s.append_each(&[bad], |_, _| ()).unwrap_err(),
            s.generate(&[1, 2, bad], &params(1), go).map(drop).unwrap_err(),
            s.score(&[1, 2], &[3, bad, 4]).map(drop).unwrap_err(),
            s.score(&[1, 2], &[bad]).map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Token { id, .. } if id == bad), "{error}");
        }
    }
    assert_eq!(s.tokens(), [1, 2]);
}

#[test]
fn no_tokens_wanted_gives_none() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let generation = session(&engine).generate(&[1], &params(0), go).unwrap();
    assert_eq!((generation.text.as_str(), generation.tokens.len()), ("", 0));
    assert_eq!(generation.stop_reason, StopReason::MaxTokens);
}

#[test]
fn sampling_reaches_the_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let prompt = models::tokens(10, 6);
    let tokens = |change: &dyn Fn(&mut SamplingParams)| {
        let mut p = sampled(40, 1);
        change(&mut p.sampling);
        session(&engine).generate(&prompt, &p, go).unwrap().tokens
    };
    let greedy = session(&engine).generate(&prompt, &params(40), go).unwrap().tokens;
    let drawn = tokens(&|_| ());
    assert_eq!(drawn, tokens(&|_| ()));
    assert_ne!(drawn, tokens(&|s| s.seed = 2));
    assert_ne!(drawn, greedy);
    assert_eq!(tokens(&|s| s.temperature = 0.0), greedy);
    assert_eq!(tokens(&|s| s.top_k = 1), greedy);
    assert_eq!(tokens(&|s| s.top_p = 0.0), greedy);
    assert_eq!(tokens(&|s| s.min_p = 1.0), greedy);
    // Two tokens, biased alike: each is drawn.
    let pair = tokens(&|s| s.logit_bias = vec![(7, 1e4), (9, 1e4)]);
    assert!(pair.iter().all(|t| [7, 9].contains(t)), "{pair:?}");
    let banned = tokens(&|s| {
        s.logit_bias = (0..250).map(|id| (id, f32::NEG_INFINITY)).collect();
    });
    assert!(banned.iter().all(|t| *t >= 250), "{banned:?}");
    let once = tokens(&|s| (s.temperature, s.frequency_penalty) = (0.0, 1e6));
    let mut distinct = once.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), once.len());
    let away = tokens(&|s| (s.temperature, s.repetition_penalty) = (0.0, 1e6));
    assert_ne!(away, greedy);
}

#[test]
fn bad_parameters_are_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let bad: [&dyn Fn(&mut SamplingParams); 8] = [
        &|s| s.temperature = f32::NAN,
        &|s| s.temperature = -1.0,
        &|s| s.top_p = 1.5,
        &|s| s.min_p = f32::NAN,
        &|s| s.repetition_penalty = 0.0,
        &|s| s.presence_penalty = f32::INFINITY,
        &|s| s.logit_bias = vec![(models::VOCAB as u32, 1.0)],
        &|s| s.logit_bias = vec![(u32::MAX, 1.0)],
    ];
    for change in bad {
        let mut p = params(3);
        change(&mut p.sampling);
        let mut s = session(&engine);
        assert!(matches!(s.generate(&[1], &p, go), Err(Error::Parameter(_))));
        assert!(s.tokens().is_empty());
    }
    let impossible = (0..models::VOCAB as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let mut p = params(3);
    p.sampling.logit_bias = impossible;
    assert!(matches!(session(&engine).generate(&[1], &p, go), Err(Error::NoCandidate)));
    for threads in [0, 257] {
        let options = OpenOptions { threads: Some(threads), ..Default::default() };
        assert!(matches!(Engine::open(engine.path(), &options), Err(Error::Parameter(_))));
    }
}

#[test]
fn scores_are_the_log_probabilities_of_the_steps() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let (prompt, continuation) = (models::tokens(9, 7), models::tokens(12, 8));
    let mut s = session(&engine);
    let scores = s.score(&prompt, &continuation).unwrap();
    assert_eq!(s.tokens(), prompt);
    let mut step = session(&engine);
    let mut logits = step.append(&prompt).unwrap().to_vec();
    for (score, token) in scores.iter().zip(&continuation) {
        let sum: f64 = logits.iter().map(|l| (*l as f64).exp()).sum();
        let want = logits[*token as usize] as f64 - sum.ln();
        assert!((score.logprob - want).abs() < 1e-5, "{} {want}", score.logprob);
        let best = logits.iter().all(|l| *l <= logits[*token as usize]);
        assert_eq!(score.greedy, best);
        logits = step.append(&[*token]).unwrap().to_vec();
    }
}

fn kept(dir: &Path, engine: &Engine) -> std::path::PathBuf {
    let path = dir.join("kept");
    let mut s = session(engine);
    s.append(&models::tokens(20, 9)).unwrap();
    s.save(&path).unwrap();
    path
}

#[test]
fn saved_sessions_are_tied_to_model_cache_and_arithmetic() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let path = kept(dir.path(), &engine);
    let refused = |engine: &Engine, kv, precision| {
        let options = SessionOptions { context: Some(300), kv, precision };
        let mut s = Session::new(engine, &options).unwrap();
        s.append(&[1, 2]).unwrap();
        let error = s.restore(&path).unwrap_err();
        assert_eq!(s.tokens(), [1, 2]);
        assert!(matches!(error, Error::Session(..)), "{error}");
        error.to_string()
    };
    assert!(refused(&engine, KvKind::Q8, Precision::Auto).contains("f16 or q8"));
    assert!(refused(&engine, KvKind::F16, Precision::F32).contains("precision"));
    let (name, config) = models::configs().remove(0);
    let other = open(&models::write(dir.path(), name, &config, Kind::Q8));
    assert!(refused(&other, KvKind::F16, Precision::Auto).contains("another model"));
    let mut small = with_context(&engine, 19);
    assert!(matches!(small.restore(&path), Err(Error::ContextFull { needed: 20, context: 19 })));
    let mut exact = with_context(&engine, 20);
    exact.restore(&path).unwrap();
    assert_eq!(exact.tokens(), models::tokens(20, 9));
    let gone = session(&engine).restore(&dir.path().join("gone")).unwrap_err();
    assert!(matches!(gone, Error::Io(..)) && gone.to_string().contains("gone"));
}

#[test]
fn saved_sessions_that_are_cut_or_changed_anywhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (name, mut config) = models::configs().remove(0);
    config.layers.truncate(1);
    (config.layers[0].n_heads, config.layers[0].n_kv_heads) = (1, 1);
    let engine = open(&models::write(dir.path(), name, &config, Kind::F16));
    let path = kept(dir.path(), &engine);
    let whole = std::fs::read(&path).unwrap();
    let mut s = session(&engine);
    let mut refused = |bytes: &[u8], what: String| {
        std::fs::write(&path, bytes).unwrap();
        let error = s.restore(&path).err().unwrap_or_else(|| panic!("{what} was taken"));
        assert!(matches!(error, Error::Session(..)), "{what}: {error}");
    };
    for len in 0..whole.len() {
        refused(&whole[..len], format!("{len} of {} bytes", whole.len()));
    }
    let mut bytes = whole.clone();
    for at in 0..whole.len() {
        bytes[at] ^= 1 << (at % 8);
        refused(&bytes, format!("a change of byte {at}"));
        bytes[at] = whole[at];
    }
    // The same cuts with a right hash, as someone with bad intent would make them.
    let body = &whole[..whole.len() - 32];
    for len in 8..body.len() {
        let cut = &body[..len];
        refused(&[cut, blake3::hash(cut).as_bytes()].concat(), format!("a body of {len} bytes"));
    }
    let longer = [body, &[0]].concat();
    refused(&[&longer[..], blake3::hash(&longer).as_bytes()].concat(), "a longer body".into());
    std::fs::write(&path, &whole).unwrap();
    s.restore(&path).unwrap();
}

#[test]
fn saving_leaves_one_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let engine = random(dir.path());
    let path = kept(dir.path(), &engine);
    let before = std::fs::read(&path).unwrap();
    kept(dir.path(), &engine);
    assert!(std::fs::read(&path).unwrap() == before, "the same session gives the same bytes");
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 2, "the model and the session");
    let error = session(&engine).save(&dir.path().join("no/such/folder/x")).unwrap_err();
    assert!(error.to_string().contains("no/such/folder/x"), "{error}");
    // Even an empty one.
    session(&engine).save(&path).unwrap();
    let mut s = session(&engine);
    s.append(&[1]).unwrap();
    s.restore(&path).unwrap();
    assert!(s.tokens().is_empty());
}

#[test]
fn text_becomes_a_prompt_and_a_reply() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&models::script(dir.path(), &[b"Paris", b" it is"]));
    let prompt = engine.tokenizer().encode_prompt("Where?", Special::Text);
    let generation = session(&engine).generate(&prompt, &GenerateParams::default(), go).unwrap();
    assert_eq!(generation.text, "Paris it is");
    assert_eq!(generation.prompt_tokens, 6);
}
