//! `koudai models`: what can be pulled and what is here.

use koudai_convert::Cache;
use serde_json::{Value, json};

use crate::output;

/// List known and local models
#[derive(clap::Args)]
#[command(after_help = "Example:\n  koudai models --json")]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let models = Cache::from_env()?.list();
    if args.json {
        let list: Vec<Value> = models
            .iter()
            .map(|m| {
                json!({
                    "name": m.name, "path": m.path, "bytes": m.bytes,
                    "architecture": m.architecture, "license": m.license,
                })
            })
            .collect();
        return output::print_json(&Value::from(list));
    }
    let mut text =
        format!("{:<20}{:<10}{:>10}  {:<14}where\n", "name", "family", "size", "license");
    for m in &models {
        let size = m.bytes.map_or("-".into(), output::megabytes);
        let path = match &m.path {
            Some(path) => path.display().to_string(),
            None => format!("koudai pull {}", m.name),
        };
        text += &format!(
            "{:<20}{:<10}{size:>10}  {:<14}{path}\n",
            m.name,
            m.architecture,
            m.license.as_deref().unwrap_or("-")
        );
    }
    output::print(&text)
}
