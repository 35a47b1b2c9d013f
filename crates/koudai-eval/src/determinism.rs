//! Shows that a model's answers don't depend on how the work was cut.
//!
//! The same prompt is run with different numbers of threads, in pieces, in a batch with others, from
//! a cold, a warm and a restored cache; each way must give the bits of the first.

use std::path::Path;

use koudai::{Engine, Error, GenerateParams, OpenOptions, Session, SessionOptions};

/// One way of running the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// What was done.
    pub name: String,
    /// The bits of logits and the generated tokens are those of the first trial.
    pub equal: bool,
}

/// Runs every trial on the model at `path`; `saved` is a file that may be written and is removed.
pub fn prove(
    path: &Path,
    prompt: &[u32],
    params: &GenerateParams,
    options: &SessionOptions,
    saved: &Path,
) -> Result<Vec<Trial>, Error> {
    let open =
        |threads| Engine::open(path, &OpenOptions { threads: Some(threads), ..Default::default() });
    let run = |session: &mut Session| -> Result<Outcome, Error> {
        let logits = session.set_prompt(prompt)?.0.iter().map(|x| x.to_bits()).collect();
        let generation =
            session.generate(prompt, params, |_, _| std::ops::ControlFlow::Continue(()))?;
        Ok((logits, generation.tokens))
    };
    let engine = open(1)?;
    let fresh = |engine: &Engine| Session::new(engine, options);
    let first = run(&mut fresh(&engine)?)?;
    let mut trials = Vec::new();
    let mut add = |name: String, outcome: Outcome| {
        trials.push(Trial { name, equal: outcome == first });
    };
    for threads in [2, 4] {
        add(format!("{threads} threads"), run(&mut fresh(&open(threads)?)?)?);
    }
    let engine = open(2)?;
    for size in [1, 7, 64] {
        let mut session = fresh(&engine)?;
        for piece in prompt.chunks(size) {
            session.append(piece)?;
        }
        let logits = session.logits().iter().map(|x| x.to_bits()).collect();
        let outcome = (logits, run(&mut session)?.1);
        add(format!("prompt in pieces of {size}"), outcome);
    }
    let mut session = fresh(&engine)?;
    let mut others = [fresh(&engine)?, fresh(&engine)?];
    let [a, b] = &mut others;
    let backwards: Vec<u32> = prompt.iter().rev().copied().collect();
    Session::append_batch(&mut [(a, &backwards), (&mut session, prompt), (b, &prompt[..1])])?;
    let logits = session.logits().iter().map(|x| x.to_bits()).collect();
    add("in a batch of 3".into(), (logits, run(&mut session)?.1));
    add("warm cache".into(), run(&mut session)?);
    session.set_prompt(&backwards)?;
    add("after another prompt".into(), run(&mut session)?);
    session.save(saved)?;
    let mut restored = fresh(&engine)?;
    let outcome = restored.restore(saved).and_then(|()| run(&mut restored));
    // The file was only for this; that it stays behind harms nothing.
    let _ = std::fs::remove_file(saved);
    add("restored cache".into(), outcome?);
    Ok(trials)
}

/// Bits of the logits after the prompt, and generated tokens.
type Outcome = (Vec<u32>, Vec<u32>);
