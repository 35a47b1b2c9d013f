//! The `koudai` command: parses, calls, prints. It has no logic of its own.
//!
//! Exit status: 0 done, 1 failed with one line on standard error, 2 wrong usage, 130 interrupted.
//! Start with [`Command`]; each command is a file in `commands/`.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod interrupt;
mod output;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "koudai", version, about = "Makes, ships and runs small language models, offline")]
#[command(after_help = "Examples:\n  koudai chat\n  koudai run -p 'The capital of France is'\n  \
                        koudai convert model.gguf -o model.koudai")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Pull(commands::pull::Args),
    Models(commands::models::Args),
    Chat(commands::chat::Args),
    Run(commands::run::Args),
    Tokens(commands::tokens::Args),
    Score(commands::score::Args),
    Perplexity(commands::perplexity::Args),
    Inspect(commands::inspect::Args),
    #[command(visible_alias = "quantize")]
    Convert(commands::convert::Args),
    Export(commands::export::Args),
    Pack(commands::pack::Args),
    Sign(commands::sign::Args),
    Diff(commands::diff::Args),
    Patch(commands::patch::Args),
    Prune(commands::prune::Args),
    Bench(commands::bench::Args),
    Eval(commands::eval::Args),
    Train(commands::train::Args),
    Search(commands::search::Args),
    Report(commands::report::Args),
}

fn main() -> ExitCode {
    // Not commands for people: `eval` calls itself so to run a program contained, `search` to measure
    // in a fresh process.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == koudai_eval::sandbox::ENTRY => {
            eprintln!("{}", koudai_eval::sandbox::contain_and_run(arguments));
            return ExitCode::FAILURE;
        }
        Some(first) if first == koudai_eval::search::ENTRY => {
            return match koudai_eval::search::run(arguments) {
                Ok(measured) => {
                    println!("{measured}");
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                }
            };
        }
        _ => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // One line: the value, the option and what is wrong.
        Err(error) if error.kind() == ErrorKind::ValueValidation => {
            eprintln!("{}", error.to_string().lines().next().unwrap_or_default());
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    interrupt::install();
    let result = match cli.command {
        Command::Pull(args) => commands::pull::run(&args),
        Command::Models(args) => commands::models::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Tokens(args) => commands::tokens::run(&args),
        Command::Score(args) => commands::score::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Convert(args) => commands::convert::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Pack(args) => commands::pack::run(&args),
        Command::Sign(args) => commands::sign::run(&args),
        Command::Diff(args) => commands::diff::run(&args),
        Command::Patch(args) => commands::patch::run(&args),
        Command::Prune(args) => commands::prune::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Train(args) => commands::train::run(&args),
        Command::Search(args) => commands::search::run(&args),
        Command::Report(args) => commands::report::run(&args),
    };
    let wrong_value = |e: &anyhow::Error| {
        matches!(e.root_cause().downcast_ref(), Some(koudai::Error::Parameter(_)))
    };
    match result {
        _ if interrupt::requested() => {
            output::end_line();
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::end_line();
            // One line, whatever an underlying message holds.
            eprintln!("error: {}", output::one_line(&format!("{error:#}")));
            ExitCode::from(if wrong_value(&error) { 2 } else { 1 })
        }
    }
}
