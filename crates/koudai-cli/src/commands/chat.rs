//! `koudai chat`: a conversation in the terminal.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use koudai::template::Message;
use koudai::{Chat, Error, GenerateParams, PartialFile, SamplingParams, StopReason};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::args::{EngineArgs, GenerateArgs, ModelArgs, SessionArgs};
use crate::{interrupt, output};

const HELP: &str = "/help          this list
/reset         forget the conversation
/save FILE     write the conversation to FILE (and its keys and values to FILE.kv)
/load FILE     go on with a saved conversation
/quit          leave; so does Ctrl-D. Ctrl-C stops a reply";

/// Talk with a model
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  koudai chat\n  koudai chat -m model.koudai --system 'Answer in Chinese.'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The system's message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let engine = args.engine.open(&args.model)?;
    // The model's own advice, or the likeliest tokens: small models answer best so.
    let params = args.generate.params(engine.defaults(), &SamplingParams::default(), 1024);
    let session = args.session.open(&engine)?;
    let mut chat = Chat::new(session, args.system.as_deref())?;
    let name = engine.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let threads = match engine.n_threads() {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    };
    eprintln!("{name}, {threads}, {}. /help lists commands, Ctrl-D leaves.", engine.isa());
    let mut input = Input::new()?;
    let mut failures = 0;
    while let Some(line) = input.read()? {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let Some(command) = line.strip_prefix('/') else {
            if !reply(&mut chat, line, &params)? {
                failures += 1;
            }
            continue;
        };
        let (command, rest) = command.split_once(' ').unwrap_or((command, ""));
        let result = match command {
            "quit" | "exit" => return Ok(()),
            "help" => {
                eprintln!("{HELP}");
                Ok(())
            }
            "reset" => {
                chat.reset();
                Ok(())
            }
            "save" => save(&chat, rest.trim()),
            "load" => load(&mut chat, rest.trim()),
            _ => Err(anyhow!("/{command} is not a command; /help lists them")),
        };
        if let Err(error) = result {
            eprintln!("error: {}", output::one_line(&format!("{error:#}")));
            failures += 1;
        }
    }
    // At a terminal somebody saw them; a script sees the exit status.
    if failures > 0 && matches!(input, Input::Pipe(_)) {
        bail!("{failures} of the lines above failed");
    }
    Ok(())
}

/// Sends a message and streams the reply; false if that failed, which doesn't end the chat.
fn reply(chat: &mut Chat, text: &str, params: &GenerateParams) -> anyhow::Result<bool> {
    chat.session_mut().set_cancel_token(interrupt::token());
    let mut failed = None;
    let result = chat.send(text, params, |_, text| match output::print(text) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            failed = Some(e);
            ControlFlow::Break(())
        }
    });
    interrupt::take();
    if let Some(error) = failed {
        return Err(error);
    }
    output::print("\n")?;
    match result {
        Ok(reply) => {
            if reply.dropped > 0 {
                eprintln!("note: the {} oldest messages no longer fit the context", reply.dropped);
            }
            match reply.generation.stop_reason {
                StopReason::ContextFull => eprintln!("note: the context is full"),
                StopReason::MaxTokens => eprintln!("note: stopped at {} tokens", params.max_tokens),
                _ => {}
            }
        }
        Err(error) => {
            eprintln!("error: {}", output::one_line(&error.to_string()));
            return Ok(false);
        }
    }
    Ok(true)
}

fn save(chat: &Chat, path: &str) -> anyhow::Result<()> {
    anyhow::ensure!(!path.is_empty(), "/save needs the name of a file");
    let messages: Vec<Value> =
        chat.messages().iter().map(|m| json!({ "role": m.role, "content": m.content })).collect();
    let text = serde_json::to_string_pretty(&messages)?;
    PartialFile::write(path.as_ref(), text.as_bytes()).with_context(|| path.to_owned())?;
    chat.session().save(&kv_path(path))?;
    eprintln!("saved {} messages to {path}", messages.len());
    Ok(())
}

fn load(chat: &mut Chat, path: &str) -> anyhow::Result<()> {
    anyhow::ensure!(!path.is_empty(), "/load needs the name of a file");
    let text = crate::args::read_text(path)?;
    let values: Vec<Value> =
        serde_json::from_str(&text).with_context(|| format!("{path}: not a saved conversation"))?;
    let message = |v: &Value| {
        let role = v["role"].as_str().filter(|r| ["user", "assistant"].contains(r))?;
        Some(Message::new(role, v["content"].as_str()?))
    };
    let messages: Option<Vec<Message>> = values.iter().map(message).collect();
    chat.set_messages(messages.with_context(|| format!("{path}: not a saved conversation"))?);
    // Keys and values only save time: without them the conversation is read again.
    match chat.session_mut().restore(&kv_path(path)) {
        Ok(()) | Err(Error::Io(..)) => {}
        Err(error) => eprintln!("note: {error}; the conversation will be read again"),
    }
    let n = chat.messages().len();
    eprintln!("loaded {n} message{} from {path}", if n == 1 { "" } else { "s" });
    Ok(())
}

fn kv_path(path: &str) -> PathBuf {
    Path::new(path).with_file_name(format!(
        "{}.kv",
        Path::new(path).file_name().unwrap_or_default().to_string_lossy()
    ))
}

/// Lines from a terminal with editing and history, or plainly from a pipe.
enum Input {
    Terminal(Box<rustyline::DefaultEditor>),
    Pipe(std::io::Stdin),
}

impl Input {
    fn new() -> anyhow::Result<Input> {
        match std::io::stdin().is_terminal() {
            true => Ok(Input::Terminal(Box::new(rustyline::DefaultEditor::new()?))),
            false => Ok(Input::Pipe(std::io::stdin())),
        }
    }

    /// The next line; `None` at the end.
    fn read(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Input::Pipe(stdin) => loop {
                let mut line = Vec::new();
                if stdin.lock().read_until(b'\n', &mut line)? == 0 {
                    return Ok(None);
                }
                match String::from_utf8(line) {
                    Ok(line) => return Ok(Some(line)),
                    Err(_) => eprintln!("error: a line that isn't UTF-8 was left out"),
                }
            },
            Input::Terminal(editor) => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        editor.add_history_entry(&line)?;
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Interrupted) => eprintln!("(/quit or Ctrl-D leaves)"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }
}
