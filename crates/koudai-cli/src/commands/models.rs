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
                    "architecture": m.architecture, "license": m.license, "chat": m.chat,
                })
            })
            .collect();
        return output::print_json(&Value::from(list));
    }
    let head = ["name", "family", "size", "chat", "license", "where"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(models.iter().map(|m| {
        let size = m.bytes.map_or("-".into(), output::megabytes);
        let place = match &m.path {
            Some(path) => path.display().to_string(),
            None => format!("koudai pull {}", m.name),
        };
        let chat = if m.chat { "yes" } else { "no" };
        let license = m.license.clone().unwrap_or_else(|| "-".into());
        [m.name.clone(), m.architecture.clone(), size, chat.into(), license, place]
    }));
    output::print(&table(&rows))
}

/// Columns as wide as what is in them; the third, of sizes, to the right.
fn table(rows: &[[String; 6]]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            text += &match column {
                2 => format!("{cell:>width$}  "),
                _ => format!("{cell:<width$}  "),
            };
        }
        text += &row[5];
        text.push('\n');
    }
    text
}
