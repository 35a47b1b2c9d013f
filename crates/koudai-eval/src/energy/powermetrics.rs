//! Apple's `powermetrics`, which estimates the power of the chip's parts and needs root. It runs beside
//! the work as another process; its output is read as property lists or as text, since both are what
//! people keep.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::{Source, Unavailable};

/// Power over some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// How long it was measured.
    pub seconds: f64,
    /// The mean over that time.
    pub watts: f64,
}

/// A running `powermetrics`.
pub(super) struct Powermetrics {
    child: Child,
    samples: Receiver<Sample>,
    joules: f64,
}

impl Powermetrics {
    pub(super) fn open(root: &Path) -> Result<Powermetrics, Unavailable> {
        let program = root.join("usr/bin/powermetrics");
        let failed = |e| Unavailable::new(format_args!("{}: {e}", program.display()));
        let mut child = Command::new(&program)
            .args(["--samplers", "cpu_power", "-i", "100", "-f", "plist"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (send, samples_of) = mpsc::channel();
        let stdout = child.stdout.take();
        std::thread::spawn(move || {
            // Ends with the child's output.
            samples(BufReader::new(stdout?), |sample| {
                let _ = send.send(sample);
            });
            Some(())
        });
        let mut opened = Powermetrics { child, samples: samples_of, joules: 0.0 };
        match opened.samples.recv_timeout(Duration::from_secs(10)) {
            Ok(_) => Ok(opened),
            Err(_) => Err(opened.why_it_ended()),
        }
    }

    fn why_it_ended(&mut self) -> Unavailable {
        let _ = self.child.kill();
        let mut text = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(1024).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        match text.lines().find(|line| !line.trim().is_empty()) {
            Some(line) => Unavailable::new(line.trim()),
            None => Unavailable::new("it printed no power"),
        }
    }
}

impl Source for Powermetrics {
    fn joules(&mut self, _: Instant) -> Result<f64, Unavailable> {
        loop {
            match self.samples.try_recv() {
                Ok(sample) => self.joules += sample.watts * sample.seconds,
                Err(mpsc::TryRecvError::Empty) => return Ok(self.joules),
                Err(mpsc::TryRecvError::Disconnected) => return Err(self.why_it_ended()),
            }
        }
    }
}

impl Drop for Powermetrics {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives `found` every sample in the output of `powermetrics`, property lists or text, until it ends.
/// What holds no power is passed over.
pub fn samples(mut output: impl BufRead, mut found: impl FnMut(Sample)) {
    // A sample of many processors has some 20 KB.
    const LONGEST: usize = 1 << 20;
    let mut document = String::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = output.by_ref().take(LONGEST as u64).read_until(b'\n', &mut line).unwrap_or(0);
        let text = String::from_utf8_lossy(&line);
        // Property lists are separated by a zero byte, texts begin with a title.
        let begins = text.starts_with('\0') || text.starts_with("*** Sampled");
        if read == 0 || begins || document.len() > LONGEST {
            let sample = if document.contains("<plist") { of_plist } else { of_text };
            sample(&document).into_iter().for_each(&mut found);
            document.clear();
        }
        if read == 0 {
            return;
        }
        document.push_str(text.trim_start_matches('\0'));
    }
}

fn of_plist(document: &str) -> Option<Sample> {
    let value = plist::Value::from_reader_xml(document.trim().as_bytes()).ok()?;
    let root = value.as_dictionary()?;
    let number = |value: &plist::Value| {
        value.as_real().or_else(|| value.as_unsigned_integer().map(|n| n as f64))
    };
    let processor = root.get("processor")?.as_dictionary()?;
    let power = |key: &str| processor.get(key).and_then(number);
    let milliwatts = power("combined_power").or_else(|| power("cpu_power"));
    let watts = milliwatts.map(|mw| mw / 1000.0).or_else(|| power("package_watts"))?;
    checked(number(root.get("elapsed_ns")?)? / 1e9, watts)
}

fn of_text(document: &str) -> Option<Sample> {
    let title = document.lines().next()?;
    let elapsed = title.rsplit_once('(')?.1.split_once("ms elapsed")?.0;
    // In order of preference: the chip, an Intel package, an older system's package, cores.
    let names = [
        "Combined Power",
        "Intel energy model derived package power",
        "Package Power",
        "CPU Power",
    ];
    let watts = names.iter().find_map(|name| {
        let line = document.lines().find(|line| line.trim_start().starts_with(name))?;
        let value = line.rsplit_once(':')?.1.trim();
        let (number, per_watt) = match value.strip_suffix("mW") {
            Some(number) => (number, 1000.0),
            None => (value.strip_suffix('W')?, 1.0),
        };
        Some(number.trim().parse::<f64>().ok()? / per_watt)
    })?;
    checked(elapsed.trim().parse::<f64>().ok()? / 1000.0, watts)
}

fn checked(seconds: f64, watts: f64) -> Option<Sample> {
    let plausible = (0.0..1e4).contains(&watts) && (0.0..1e4).contains(&seconds);
    plausible.then_some(Sample { seconds, watts })
}
