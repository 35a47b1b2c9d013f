//! Tasks on data written here, and evaluations of tiny models: what is asked, what is kept, and what
//! is done again.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use koudai::{CancelToken, SessionOptions};
use koudai_eval::Error;
use koudai_eval::evaluate::{Endpoint, Local, Model, Records, Settings, evaluate};
use koudai_eval::tasks::{Choice, Item, POCKET11, Prompt, Request, Source, Task};
use serde_json::{Value, json};

use crate::model;

fn source(data: &Path) -> Source<'_> {
    Source { data, shots: 0, chat: false, seed: None, max_tokens: None, sandbox: None }
}

fn put(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn load(name: &str, source: &Source<'_>, limit: Option<usize>) -> Result<Vec<Item>, Error> {
    Task::named(name)?.load(source, limit)
}

fn choices(item: &Item) -> Vec<(String, String)> {
    match &item.request {
        Request::Choices(list) => {
            list.iter().map(|c| (c.context.to_string(), c.continuation.clone())).collect()
        }
        Request::Generate(_) => panic!("choices"),
    }
}

fn text(item: &Item) -> &str {
    match &item.request {
        Request::Generate(prompt) => &prompt.text,
        Request::Choices(_) => panic!("a text"),
    }
}

#[test]
fn the_suite_is_made_of_tasks() {
    for name in POCKET11 {
        assert_eq!(Task::named(name).unwrap().name, name);
    }
    let names: Vec<&str> = Task::all().map(|t| t.name).collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    assert!(Task::named("helaswag").err().unwrap().to_string().contains("hellaswag"));
}

#[test]
fn prompts_are_the_harnesss() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    put(data, "piqa/valid.jsonl", "{\"goal\":\"To rest\",\"sol1\":\"sit\",\"sol2\":\"run\"}\n");
    put(data, "piqa/valid-labels.lst", "0\n");
    let items = load("piqa", &source(data), None).unwrap();
    let context = "Question: To rest\nAnswer:".to_owned();
    assert_eq!(choices(&items[0]), [(context.clone(), " sit".into()), (context, " run".into())]);
    put(data, "winogrande/test.json", &json!([{
        "instruction": "Please choose the correct answer to fill in the blank to complete the given \
            sentence: The cup fit the box because _ was small.\n\nOption1: the cup Option2: the box \
            Answer format: option1/option2",
        "answer": "option1",
    }]).to_string());
    let items = load("winogrande", &source(data), None).unwrap();
    let start = "The cup fit the box because ".to_owned();
    assert_eq!(
        choices(&items[0]),
        [
            (start.clone() + "the cup", " was small.".into()),
            (start + "the box", " was small.".into()),
        ]
    );
    put(
        data,
        "mmlu/dev/art_dev.csv",
        "question,choice0,choice1,choice2,choice3,answer\nQ1?,a,b,c,d,3\n",
    );
    put(
        data,
        "mmlu/test/art_test.csv",
        "question,choice0,choice1,choice2,choice3,answer\n\"Q, 2? \",w,x,y,z,1\n",
    );
    let items = load("mmlu", &Source { shots: 1, ..source(data) }, None).unwrap();
    assert_eq!(choices(&items[0])[1], (
        "The following are multiple choice questions (with answers) about art.\n\nQ1?\nA. a\nB. b\n\
         C. c\nD. d\nAnswer: D\n\nQ, 2?\nA. w\nB. x\nC. y\nD. z\nAnswer:".into(), " B".into()));
    put(data, "gsm8k/train.jsonl", "{\"question\":\"1+1?\",\"answer\":\"It is 2.\\n#### 2\"}\n");
    put(data, "gsm8k/test.jsonl", "{\"question\":\"2+2?\",\"answer\":\"#### 4\"}\n");
    let items = load("gsm8k", &Source { shots: 1, ..source(data) }, None).unwrap();
    assert_eq!(
        text(&items[0]),
        "Question: 1+1?\nAnswer: It is 2.\n#### 2\n\nQuestion: 2+2?\nAnswer:"
    );
    let error = load("gsm8k", &Source { shots: 2, ..source(data) }, None).err().unwrap();
    assert!(error.to_string().contains("only 1 examples"), "{error}");
}

#[test]
fn data_that_is_missing_or_broken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let why = |name: &str| load(name, &source(dir.path()), None).err().unwrap().to_string();
    for task in Task::all().filter(|t| !t.runs_code && t.name != "ifeval_zh") {
        assert!(why(task.name).contains("no such file"), "{}: {}", task.name, why(task.name));
    }
    assert!(why("mbpp").contains("no such file") || why("mbpp").contains("sandbox"));
    put(
        dir.path(),
        "hellaswag/hellaswag_val_2000.jsonl",
        "{\"query\":\"a\",\"label\":0,\"choices\":[\"b\"]}\n{\"query\":\"a\",\"label\":1,\"choices\":[\"b\"]}\n",
    );
    assert!(why("hellaswag").contains("hellaswag_val_2000.jsonl line 2: answer 1 of 1"));
    put(dir.path(), "hellaswag/hellaswag_val_2000.jsonl", "{\"query\":\"a\"\n");
    assert!(why("hellaswag").contains("line 1"), "{}", why("hellaswag"));
}

/// Twelve questions in three subjects.
fn exam(data: &Path) {
    for subject in ["art", "law", "sea"] {
        let header = "question,choice0,choice1,choice2,choice3,answer\n";
        put(data, &format!("mmlu/dev/{subject}_dev.csv"), &format!("{header}q,a,b,c,d,0\n"));
        let rows: String = (0..4).map(|i| format!("question {i},a,b,c,d,{i}\n")).collect();
        put(data, &format!("mmlu/test/{subject}_test.csv"), &format!("{header}{rows}"));
    }
}

#[test]
fn limits_take_evenly_and_seeds_shuffle() {
    let dir = tempfile::tempdir().unwrap();
    exam(dir.path());
    let ids = |source: &Source<'_>, limit| -> Vec<String> {
        load("mmlu", source, limit).unwrap().into_iter().map(|i| i.id).collect()
    };
    let plain = source(dir.path());
    assert_eq!(ids(&plain, None).len(), 12);
    assert_eq!(ids(&plain, Some(4)), ["art/0", "art/1", "law/0", "sea/0"]);
    let seeded = Source { seed: Some(7), ..source(dir.path()) };
    let drawn = ids(&seeded, Some(4));
    assert_eq!(drawn, ids(&seeded, Some(4)));
    assert_ne!(drawn, ids(&plain, Some(4)));
}

fn local(engine: &koudai::Engine, batch: usize) -> Local {
    let options = SessionOptions { context: Some(250), ..Default::default() };
    Local::new(engine, options, false, batch, CancelToken::default()).unwrap()
}

#[test]
fn likelihoods_are_the_sessions() {
    let dir = tempfile::tempdir().unwrap();
    for add_bos in [false, true] {
        let engine = model(dir.path(), 1, add_bos);
        let mut model = local(&engine, 1);
        let choice = |context: &str, continuation: &str| Choice {
            context: context.into(),
            continuation: continuation.into(),
        };
        let list =
            [choice("the heron", " flew"), choice("the heron", " sat down"), choice("a ", "b")];
        let got = model.score(&list).unwrap();
        // A space at the context's end is the continuation's.
        for (got, (before, after)) in
            got.iter().zip([("the heron", " flew"), ("the heron", " sat down"), ("a", " b")])
        {
            let tokenizer = engine.tokenizer();
            let prompt = tokenizer.encode_prompt(before, koudai::tokenizer::Special::Text);
            let rest = tokenizer.encode(after, koudai::tokenizer::Special::Text);
            let options = SessionOptions { context: Some(250), ..Default::default() };
            let mut session = koudai::Session::new(&engine, &options).unwrap();
            let scores = session.score(&prompt, &rest).unwrap();
            let sum: f64 = scores.iter().map(|s| s.logprob).sum();
            assert_eq!(got.logprob, sum);
            assert_eq!(got.greedy, scores.iter().all(|s| s.greedy));
        }
        let long = choice(&"x".repeat(400), " y");
        assert!(model.score(&[long]).unwrap()[0].logprob < 0.0);
        assert_eq!(model.truncated(), 1);
    }
}

#[test]
fn answers_dont_depend_on_the_batch() {
    let dir = tempfile::tempdir().unwrap();
    let engine = model(dir.path(), 3, false);
    let prompts: Vec<Prompt> = (0..9)
        .map(|i| Prompt {
            text: format!("a common beginning that is long enough to be copied, then {i}"),
            stop: vec!["q".into(), "\n\n".into()],
            max_tokens: 5 + 3 * i,
        })
        .collect();
    let prompts: Vec<&Prompt> = prompts.iter().collect();
    let answers = |batch: usize| {
        let mut texts = vec![None; prompts.len()];
        let mut keep = |i: usize, text| {
            assert_eq!(texts[i].replace(text), None, "answered once");
            Ok(())
        };
        local(&engine, batch).generate(&prompts, &mut keep).unwrap();
        texts
    };
    let alone = answers(1);
    assert!(alone.iter().all(Option::is_some));
    assert!(alone.iter().flatten().all(|t: &String| !t.contains('q')));
    for batch in [2, 4, 16] {
        assert_eq!(answers(batch), alone, "batch {batch}");
    }
}

#[test]
fn records_continue_and_refuse_other_settings() {
    let dir = tempfile::tempdir().unwrap();
    exam(dir.path());
    let (task, engine) = (Task::named("mmlu").unwrap(), model(dir.path(), 1, false));
    let items = task.load(&source(dir.path()), None).unwrap();
    let path = dir.path().join("mmlu.jsonl");
    let settings = |shots: usize| -> Settings {
        [("task".to_owned(), json!("mmlu")), ("shots".to_owned(), json!(shots))]
            .into_iter()
            .collect()
    };
    let run = |items: &[Item]| {
        let mut records = Records::open(&path, &task, &settings(0)).unwrap();
        evaluate(&task, items, &mut local(&engine, 1), &mut records, |_| ()).unwrap()
    };
    let first = run(&items[..5]);
    assert_eq!((first.answered, first.metrics[0].n), (5, 5));
    // An interrupted write leaves half a line.
    std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"{\"id\":\"law")
        .unwrap();
    let all = run(&items);
    assert_eq!((all.answered, all.metrics[0].n, all.groups.len()), (7, 12, 3));
    let again = run(&items);
    assert_eq!((again.answered, &again.metrics), (0, &all.metrics));
    let mut records = Records::in_memory();
    let at_once = evaluate(&task, &items, &mut local(&engine, 1), &mut records, |_| ()).unwrap();
    assert_eq!(at_once.metrics, all.metrics);
    let kept = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = kept.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 13);
    for key in ["id", "prompt", "output", "target", "scores"] {
        assert!(lines[1].get(key).is_some(), "{key}");
    }
    let refused = Records::open(&path, &task, &settings(5)).err().unwrap().to_string();
    assert!(refused.contains("mmlu.jsonl: it was made with shots 0, not 5"), "{refused}");
    std::fs::write(&path, "not ours\n").unwrap();
    let refused = Records::open(&path, &task, &settings(0)).err().unwrap().to_string();
    assert!(refused.contains("mmlu.jsonl line 1"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "not ours\n", "left as it was");
}

/// A server that gives each request, as JSON, to `answer` and returns its status and body.
fn server(n: usize, answer: impl Fn(&str, Value) -> (u16, Value) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(n) {
            let mut stream = stream.unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let head = String::from_utf8(request).unwrap().to_lowercase();
            let length = head.split("content-length: ").nth(1).unwrap();
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let (status, reply) = answer(&path, serde_json::from_slice(&body).unwrap());
            let reply = reply.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                reply.len()
            );
            stream.write_all((head + &reply).as_bytes()).unwrap();
        }
    });
    format!("http://{address}/v1/")
}

fn endpoint(base: &str, chat: bool) -> Endpoint {
    Endpoint::new(base, "m", None, chat, 2, CancelToken::default())
}

fn ask(model: &mut dyn Model, texts: &[&str]) -> Result<Vec<String>, Error> {
    let prompt =
        |text: &&str| Prompt { text: text.to_string(), stop: vec!["STOP".into()], max_tokens: 7 };
    let prompts: Vec<Prompt> = texts.iter().map(prompt).collect();
    let mut answers = vec![String::new(); texts.len()];
    model.generate(&prompts.iter().collect::<Vec<_>>(), &mut |i, text| {
        answers[i] = text;
        Ok(())
    })?;
    Ok(answers)
}

#[test]
fn a_server_answers_texts_and_chats() {
    let base = server(3, |path, body| {
        assert_eq!(
            (path, &body["max_tokens"], &body["temperature"]),
            ("/v1/completions", &json!(7), &json!(0))
        );
        let text = format!("{} and more STOP never", body["prompt"].as_str().unwrap());
        (200, json!({ "choices": [{ "text": text }] }))
    });
    let answers = ask(&mut endpoint(&base, false), &["a", "b", "c"]).unwrap();
    assert_eq!(answers, ["a and more ", "b and more ", "c and more "]);
    let base = server(1, |path, body| {
        assert_eq!((path, &body["messages"][0]["role"]), ("/v1/chat/completions", &json!("user")));
        (200, json!({ "choices": [{ "message": { "content": "好" } }] }))
    });
    assert_eq!(ask(&mut endpoint(&base, true), &["你好"]).unwrap(), ["好"]);
}

#[test]
fn a_server_gives_likelihoods_or_is_refused() {
    let choice = [Choice { context: "天 a".into(), continuation: " bc".into() }];
    let base = server(1, |_, body| {
        assert_eq!((&body["prompt"], &body["echo"]), (&json!("天 a bc"), &json!(true)));
        (
            200,
            json!({ "choices": [{ "text": "天 a bcd", "logprobs": {
            "tokens": ["天", " a", " b", "c", "d"],
            "text_offset": [0, 1, 3, 5, 6],
            "token_logprobs": [null, -1.0, -2.0, -0.5, -9.0],
            "top_logprobs": [null, {" a": -1.0}, {" b": -2.0}, {"x": -0.25, "c": -0.5}, {"d": -9.0}],
        } }] }),
        )
    });
    let got = endpoint(&base, false).score(&choice).unwrap();
    assert_eq!((got[0].logprob, got[0].greedy), (-2.5, false));
    let base = server(1, |_, _| (200, json!({ "choices": [{ "text": "x", "logprobs": null }] })));
    let why = endpoint(&base, false).score(&choice).unwrap_err().to_string();
    assert!(why.contains("/v1/completions") && why.contains("log-probabilities"), "{why}");
    let why = endpoint(&base, true).score(&choice).unwrap_err().to_string();
    assert!(why.contains("--chat"), "{why}");
}

#[test]
fn a_servers_failures_pass_or_are_told() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let base =
        server(2, move |_, _| match count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => (503, json!({ "error": { "message": "busy" } })),
            _ => (200, json!({ "choices": [{ "text": "ok" }] })),
        });
    assert_eq!(ask(&mut endpoint(&base, false), &["a"]).unwrap(), ["ok"]);
    let base = server(1, |_, _| (404, json!({ "error": { "message": "no model m" } })));
    let why = ask(&mut endpoint(&base, false), &["a"]).unwrap_err().to_string();
    assert!(why.contains("status 404: no model m"), "{why}");
    let cancel = CancelToken::default();
    cancel.cancel();
    let mut cancelled = Endpoint::new(&base, "m", None, false, 1, cancel);
    assert!(matches!(ask(&mut cancelled, &["a"]), Err(Error::Cancelled)));
}
