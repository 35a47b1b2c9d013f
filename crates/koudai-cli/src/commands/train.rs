//! `koudai train`: becomes `koudai-train`, which is a program of its own because it needs libtorch.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::bail;

/// Train a model: from scratch, on conversations, for four bits
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    koudai train recipes/tiny.toml\n  \
    koudai train sft.toml --set train.steps=500 --json\n\n\
    The work is done by koudai-train, which `just train` builds; `koudai-train --help` has the options \
    and\ndocs/train.md the keys of recipes.")]
pub(crate) struct Args {
    /// The recipe, a TOML file, and options of koudai-train
    #[arg(value_name = "RECIPE.toml", required = true)]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

const PROGRAM: &str = "koudai-train";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let file = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe()?.with_file_name(file);
    let program = if beside.is_file() { beside.as_path() } else { Path::new(PROGRAM) };
    let error = become_program(Command::new(program).args(&args.arguments));
    match error.kind() {
        ErrorKind::NotFound => bail!(
            "{PROGRAM} is neither beside this program nor in PATH; `just train` builds it from Koudai's \
             source"
        ),
        _ => bail!("{}: {error}", program.display()),
    }
}

/// Returns only if the program can't be started. Where a process can be replaced, signals then reach
/// the one that works.
fn become_program(command: &mut Command) -> std::io::Error {
    #[cfg(unix)]
    return std::os::unix::process::CommandExt::exec(command);
    #[cfg(not(unix))]
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
