//! `koudai score`: how likely continuations are, or what comes next.

use anyhow::{Context, bail};
use koudai::Engine;
use koudai::sampler::log_sum_exp;
use koudai::tokenizer::Special;
use serde_json::json;

use crate::args::{EngineArgs, ModelArgs, SessionArgs, ids};
use crate::output;

/// Log-probability of continuations, or the likeliest next tokens
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai score -p 'The sky is' --continuation ' blue' \
    --continuation ' green'\n  koudai score -p 'The sky is' --top 5")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", required_unless_present = "ids")]
    prompt: Option<String>,
    /// The prompt as token ids, 1,2,3, used as they are
    #[arg(long, value_name = "IDS", conflicts_with = "prompt")]
    ids: Option<String>,
    /// A text that may follow; may be repeated. With --ids, token ids
    #[arg(short, long, value_name = "TEXT")]
    continuation: Vec<String>,
    /// Show the K likeliest next tokens [default: 5 without continuations]
    #[arg(long, value_name = "K")]
    top: Option<usize>,
    /// Let texts spell control tokens
    #[arg(long)]
    special: bool,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let engine = args.engine.open(&args.model)?;
    let prompt = match (&args.ids, &args.prompt) {
        (Some(list), _) => ids(list)?,
        (None, Some(text)) => encode(&engine, text, args.special),
        (None, None) => bail!("there is no prompt; use -p or --ids"),
    };
    let mut session = args.session.open(&engine)?;
    let mut continuations = Vec::new();
    for text in &args.continuation {
        let tokens = continuation(&engine, args, &prompt, text)?;
        let scores = session.score(&prompt, &tokens)?;
        let logprob: f64 = scores.iter().map(|s| s.logprob).sum();
        let greedy = scores.iter().all(|s| s.greedy);
        continuations.push(json!({
            "text": text, "tokens": tokens, "logprob": logprob, "greedy": greedy,
        }));
    }
    let wanted = args.top.unwrap_or(if continuations.is_empty() { 5 } else { 0 });
    let top = match wanted {
        0 => Vec::new(),
        n => top(session.set_prompt(&prompt)?.0, n),
    };
    let tokenizer = engine.tokenizer();
    let piece = |id| super::tokens::piece(tokenizer, id);
    if args.json {
        let top: Vec<_> = top
            .iter()
            .map(|(id, logprob)| json!({ "id": id, "piece": piece(*id), "logprob": logprob }))
            .collect();
        return output::print_json(&json!({
            "prompt_tokens": prompt.len(), "continuations": continuations, "top": top,
        }));
    }
    for c in &continuations {
        let greedy = if c["greedy"] == true { "  (greedy)" } else { "" };
        let logprob = c["logprob"].as_f64().unwrap_or(f64::NAN);
        output::print_line(&format!("{logprob:10.4}  {}{greedy}", c["text"]))?;
    }
    for (id, logprob) in top {
        output::print_line(&format!("{logprob:10.4}  {id:>7}  {:?}", piece(id)))?;
    }
    Ok(())
}

fn encode(engine: &Engine, text: &str, special: bool) -> Vec<u32> {
    let special = if special { Special::Parse } else { Special::Text };
    engine.tokenizer().encode_prompt(text, special)
}

/// The tokens that a text adds to the prompt: both are tokenized together, as they would be read.
fn continuation(
    engine: &Engine,
    args: &Args,
    prompt: &[u32],
    text: &str,
) -> anyhow::Result<Vec<u32>> {
    let tokens = match &args.prompt {
        None => ids(text)?,
        Some(start) => {
            let whole = encode(engine, &format!("{start}{text}"), args.special);
            whole.get(prompt.len()..).map(<[u32]>::to_vec).unwrap_or_default()
        }
    };
    if tokens.is_empty() {
        return Err(anyhow::anyhow!("it adds no token to the prompt"))
            .with_context(|| format!("continuation `{text}`"));
    }
    Ok(tokens)
}

/// The `n` likeliest tokens with their log-probabilities, likeliest first.
fn top(logits: &[f32], n: usize) -> Vec<(u32, f64)> {
    let lse = log_sum_exp(logits);
    let mut all: Vec<(u32, f64)> =
        logits.iter().enumerate().map(|(i, l)| (i as u32, *l as f64 - lse)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(n);
    all
}
