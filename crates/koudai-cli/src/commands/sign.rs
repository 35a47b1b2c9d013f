//! `koudai sign`: who made this file.

use std::path::PathBuf;

use koudai::file::ModelFile;
use koudai_convert::sign::{PrivateKey, sign};
use serde_json::json;

use crate::output;

/// Sign a model's file, or make a key
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  koudai sign --generate maker.key\n  \
    koudai sign model.koudai --key maker.key\n  koudai run -m model.koudai --trust maker.key.pub \
    -p 'Once upon a time'\n\nKeys are Ed25519 in PEM: openssl genpkey -algorithm ed25519 makes \
    them too. Whoever has the private key can sign in your name; the public key, KEY.pub, is for \
    everyone.")]
pub(crate) struct Args {
    /// The .koudai file
    #[arg(value_name = "FILE", required_unless_present = "generate")]
    file: Option<PathBuf>,
    /// The private key
    #[arg(long, value_name = "KEY", required_unless_present = "generate")]
    key: Option<PathBuf>,
    /// Write the signed file here instead of replacing FILE
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Make a new key: KEY for you alone and KEY.pub for everyone
    #[arg(long, value_name = "KEY", conflicts_with_all = ["file", "key", "output"])]
    generate: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = &args.generate {
        let key = PrivateKey::generate()?;
        let public = key.write(path)?;
        let name = key.public().to_string();
        return match args.json {
            true => output::print_json(&json!({
                "private": output::path(path), "public": output::path(&public), "key": name,
            })),
            false => output::print_line(&format!(
                "{}: private, keep it to yourself\n{}: public, {name}",
                path.display(),
                public.display()
            )),
        };
    }
    let (Some(file), Some(key)) = (&args.file, &args.key) else {
        anyhow::bail!("a FILE and a --key are needed");
    };
    let out = args.output.as_ref().unwrap_or(file);
    output::check_no_input(out, [key])?;
    let key = PrivateKey::read(key)?;
    let mut progress = output::Progress::bytes();
    let signature = sign(file, out, &key, &mut |p| super::pull::show(&mut progress, p))?;
    drop(progress);
    let signed = ModelFile::open(out).map_err(|e| koudai::Error::File(out.clone(), e))?;
    if args.json {
        return output::print_json(&json!({
            "output": output::path(out), "bytes": signed.len_bytes(),
            "fingerprint": output::hex(&signed.fingerprint()), "key": signature.key.to_string(),
        }));
    }
    output::print_line(&format!("{}: signed by {}", out.display(), signature.key))
}
