//! Standard output for results, standard error for the rest; progress bars on terminals.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use koudai::PartialFile;

/// Standard output is in the middle of a line.
static MID_LINE: AtomicBool = AtomicBool::new(false);

/// Text of strangers as one line that a terminal shows and doesn't obey: control characters become
/// spaces or `\u{…}`, and what is very long is cut.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 600;
    let mut line = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
        if line.len() > LONGEST {
            line.push('…');
            break;
        }
    }
    line
}

/// Generated text for a terminal: control characters but line ends and tabs are shown, not obeyed.
fn for_terminal(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Writes to standard output and flushes.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        out.write_all(for_terminal(text).as_bytes())?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.flush()?;
    if let Some(last) = text.bytes().last() {
        MID_LINE.store(last != b'\n', Ordering::Relaxed);
    }
    Ok(())
}

/// Ends a line that generated text left open, so that what follows starts its own.
pub(crate) fn end_line() {
    if MID_LINE.swap(false, Ordering::Relaxed) {
        let _ = print("\n");
    }
}

/// Fails if writing to `output` would destroy one of the files that a command reads.
pub(crate) fn check_no_input<P: AsRef<Path>>(
    output: &Path,
    inputs: impl IntoIterator<Item = P>,
) -> anyhow::Result<()> {
    inputs
        .into_iter()
        .try_for_each(|input| Ok(koudai_convert::check_output(input.as_ref(), output)?))
}

/// A path in JSON; what isn't UTF-8 of it is replaced.
pub(crate) fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Fails if no file can be written at `path`: better said before long work than after it.
pub(crate) fn check_writable(path: &Path) -> anyhow::Result<()> {
    PartialFile::create(path).map(drop).with_context(|| path.display().to_string())
}

/// Writes a line to standard output.
pub(crate) fn print_line(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Writes one JSON document to standard output.
pub(crate) fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print_line(&value.to_string())
}

/// True if the reader of our output went away, which ends the work without being an error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Shows how far long work is: nothing for the first second, and nothing off a terminal.
pub(crate) struct Progress {
    start: Instant,
    bar: Option<ProgressBar>,
    numbers: &'static str,
    label: String,
}

impl Progress {
    /// Counts bytes.
    pub(crate) fn bytes() -> Progress {
        Progress::new("{bytes}/{total_bytes} {bytes_per_sec}")
    }

    /// Counts tokens.
    pub(crate) fn tokens() -> Progress {
        Progress::new("{pos}/{len} tokens {per_sec}")
    }

    /// Counts questions.
    pub(crate) fn items() -> Progress {
        Progress::new("{pos}/{len} {per_sec}")
    }

    fn new(numbers: &'static str) -> Progress {
        Progress { start: Instant::now(), bar: None, numbers, label: String::new() }
    }

    /// Takes note of progress; a total of 0 is unknown.
    pub(crate) fn update(&mut self, label: &str, done: u64, total: u64) {
        if label != self.label {
            self.finish();
            (self.label, self.start) = (label.to_owned(), Instant::now());
        }
        if self.bar.is_none() {
            let long = self.start.elapsed() > Duration::from_secs(1);
            if !long || !io::stderr().is_terminal() {
                return;
            }
            let bar = ProgressBar::new(total);
            let style = format!("{{msg}} {{wide_bar}} {} {{eta}}", self.numbers);
            if let Ok(style) = ProgressStyle::with_template(&style) {
                bar.set_style(style);
            }
            bar.set_message(label.to_owned());
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Bytes in decimal megabytes, as sizes of models are given.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_text_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\nb\x1b[2Jc\u{7}"), "a b\\u{1b}[2Jc\\u{7}");
        assert_eq!(one_line(&"x".repeat(10_000)).chars().count(), 602);
        assert_eq!(for_terminal("好\n\t\x1b[2J"), "好\n\t\u{fffd}[2J");
    }
}
