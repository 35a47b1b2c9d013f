//! What this machine is, how fast it reads memory and what of it is free; how much memory this
//! process holds.

use std::path::Path;
use std::time::{Duration, Instant};

/// A machine in a few words.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The processor's name, or its architecture where it has none.
    pub cpu: String,
    /// Logical processors available to this process.
    pub processors: usize,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        Machine {
            cpu: name.map_or(std::env::consts::ARCH.into(), |(_, name)| name.trim().into()),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
        }
    }
}

/// Bytes per second at which `threads` threads together read a buffer of `bytes`: the best of several
/// passes. It bounds decoding, which reads all weights once per token.
pub fn read_bandwidth(bytes: usize, threads: usize) -> f64 {
    let words = (bytes / 8).max(threads * 1024);
    let buffer = vec![1u64; words];
    let best = (0..9)
        .map(|_| {
            let start = Instant::now();
            let sum: u64 = std::thread::scope(|scope| {
                let parts = buffer.chunks(words.div_ceil(threads));
                let readers: Vec<_> = parts.map(|part| scope.spawn(|| sum(part))).collect();
                readers.into_iter().map(|r| r.join().unwrap_or(0)).sum()
            });
            std::hint::black_box(sum);
            start.elapsed()
        })
        .min()
        .unwrap_or(Duration::MAX);
    (words * 8) as f64 / best.as_secs_f64()
}

/// Adds in 32 independent lanes, so that memory is what limits it.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in words.chunks_exact(32) {
        lanes.iter_mut().zip(chunk).for_each(|(lane, word)| *lane ^= *word);
    }
    lanes.iter().fold(0, |a, b| a ^ b)
}

/// Resident memory of this process now and at its peak, in bytes; `None` where it can't be read.
pub fn resident_bytes() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some((kilobytes(&status, "VmRSS:")?, kilobytes(&status, "VmHWM:")?))
}

/// Bytes of memory that programs can still get; `None` where it can't be read.
pub fn available_memory() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Bytes that can still be written to the disk of `path`; `None` where the system doesn't tell.
pub fn free_disk(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    let free = rustix::fs::statvfs(path).ok().map(|d| d.f_bavail.saturating_mul(d.f_frsize));
    #[cfg(not(unix))]
    let free = {
        let _ = path;
        None
    };
    free
}

/// A number of kilobytes in a file of the system, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Makes the current resident memory the peak, where the system allows it.
pub fn reset_peak() {
    // Not being able to leaves a peak that is too high, never too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
