//! `koudai run`: one completion.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::bail;
use koudai::template::Message;
use koudai::tokenizer::Special;
use koudai::{Engine, Generation, SamplingParams};
use koudai_eval::determinism::prove as prove_all;
use serde_json::json;

use crate::args::{EngineArgs, GenerateArgs, ModelArgs, SessionArgs, read_text};
use crate::output;

/// Complete a prompt
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai run -p 'The capital of France is' -n 16\n  \
    koudai run --chat -p '用一句话介绍月亮。'\n  cat notes.txt | koudai run --file - --chat --json")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", required_unless_present = "file")]
    prompt: Option<String>,
    /// Read the prompt from a file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<String>,
    /// Treat the prompt as a user's message, in the model's chat template
    #[arg(long)]
    chat: bool,
    /// The system's message, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Let the prompt's text spell control tokens
    #[arg(long, conflicts_with = "chat")]
    special: bool,
    /// Keep keys and values in this file, so that the next run with the same beginning is quick
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    /// Run the prompt in many ways (threads, pieces, batch, caches) and show that all agree to the bit
    #[arg(long, conflicts_with_all = ["stream", "session"])]
    prove_deterministic: bool,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    session_args: SessionArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Before the document, print a line of JSON for each token as it comes
    #[arg(long, requires = "json")]
    stream: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let text = match (&args.prompt, &args.file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => bail!("there is no prompt; use -p or --file"),
    };
    let start = std::time::Instant::now();
    let engine = args.engine.open(&args.model)?;
    let load = start.elapsed();
    let prompt = prompt(&engine, args, &text)?;
    if args.prove_deterministic {
        return prove(args, &engine, &prompt);
    }
    let mut session = args.session_args.open(&engine)?;
    if let Some(path) = &args.session {
        output::check_writable(path)?;
        if path.exists() {
            session.restore(path)?;
        }
    }
    // Greedy unless asked otherwise: a command should answer the same twice.
    let params = args.generate.params(&Default::default(), &SamplingParams::default(), usize::MAX);
    let mut failed = None;
    let generation = session.generate(&prompt, &params, |token, text| {
        let printed = match (args.json, args.stream) {
            (false, _) => output::print(text),
            (true, true) => output::print_json(&json!({ "token": token, "text": text })),
            (true, false) => Ok(()),
        };
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                failed = Some(e);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(path) = &args.session {
        session.save(path)?;
    }
    if args.json {
        return output::print_json(&document(
            &generation,
            load.as_secs_f64() * 1e3,
            params.sampling.seed,
        ));
    }
    if !generation.text.ends_with('\n') {
        output::print("\n")?;
    }
    Ok(())
}

fn prove(args: &Args, engine: &Engine, prompt: &[u32]) -> anyhow::Result<()> {
    let params = args.generate.params(&Default::default(), &SamplingParams::default(), 32);
    let saved = std::env::temp_dir().join(format!("koudai-{}.session", std::process::id()));
    let options = args.session_args.options();
    let trials = prove_all(engine.path(), prompt, &params, &options, &saved)?;
    let equal = trials.iter().all(|t| t.equal);
    if args.json {
        let list: Vec<_> =
            trials.iter().map(|t| json!({ "trial": t.name, "equal": t.equal })).collect();
        output::print_json(&json!({ "deterministic": equal, "trials": list }))?;
    } else {
        for t in &trials {
            let verdict = if t.equal { "equal bits" } else { "DIFFERENT" };
            output::print_line(&format!("{:<24}{verdict}", t.name))?;
        }
    }
    anyhow::ensure!(equal, "the results differ; please report this machine and model");
    Ok(())
}

fn prompt(engine: &Engine, args: &Args, text: &str) -> anyhow::Result<Vec<u32>> {
    if !args.chat {
        let special = if args.special { Special::Parse } else { Special::Text };
        return Ok(engine.tokenizer().encode_prompt(text, special));
    }
    let system = args.system.iter().map(|s| Message::new("system", s.as_str()));
    let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
    Ok(engine.chat_prompt(&engine.chat_template()?, &messages)?)
}

fn document(g: &Generation, load_ms: f64, seed: u64) -> serde_json::Value {
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let rate = |n: usize, d: std::time::Duration| match n {
        0 => 0.0,
        n => n as f64 / d.as_secs_f64().max(1e-9),
    };
    json!({
        "text": g.text,
        "tokens": g.tokens,
        "prompt_tokens": g.prompt_tokens,
        "cached_tokens": g.cached_tokens,
        "stop_reason": g.stop_reason.name(),
        "seed": seed,
        "timing": {
            "load_ms": load_ms,
            "prefill_ms": ms(g.prefill),
            "decode_ms": ms(g.decode),
            "first_token_ms": ms(g.first_token),
            "prefill_tps": rate(g.prompt_tokens - g.cached_tokens, g.prefill),
            "decode_tps": rate(g.tokens.len().saturating_sub(1), g.decode),
        },
    })
}
