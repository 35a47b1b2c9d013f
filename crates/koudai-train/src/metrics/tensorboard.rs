//! Files of events as TensorBoard reads them: TFRecords of protobuf `Event`s with scalars.
//!
//! Three messages with six fields; a protobuf library would be larger than what it wrote.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// A file of events that grows.
pub(super) struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// Starts a new file in a folder. Its name is what TensorBoard looks for, and sorts by time.
    pub(super) fn create(folder: &Path) -> Result<Events> {
        let (time, process) = (now(), std::process::id());
        let path = folder.join(format!("events.out.tfevents.{time:.6}.{process}"));
        let create = || std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
        let file = create().with_context(|| path.display().to_string())?;
        let mut events = Events { path, file };
        // Event { wall_time = 1, file_version = 3 }
        events.record(&[double(1, time), bytes(3, b"brain.Event:2")].concat())?;
        Ok(events)
    }

    /// Adds the values of some names at a step.
    pub(super) fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<()> {
        // Summary { value = 1: Value { tag = 1, simple_value = 2 } }
        let value = |(tag, value): &(&str, f64)| {
            bytes(1, &[bytes(1, tag.as_bytes()), float(2, *value as f32)].concat())
        };
        let summary: Vec<u8> = values.iter().flat_map(value).collect();
        // Event { wall_time = 1, step = 2, summary = 5 }
        self.record(&[double(1, now()), varint(2, step), bytes(5, &summary)].concat())
    }

    /// Length, its checksum, the event, its checksum.
    fn record(&mut self, event: &[u8]) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let record = [&length[..], &masked_crc(&length), event, &masked_crc(event)].concat();
        self.file.write_all(&record).with_context(|| self.path.display().to_string())
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// CRC-32C, rotated and shifted as TFRecords have it.
fn masked_crc(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

// ---- Protobuf's fields: number and type, then the value ----------------------------------------

fn double(field: u8, value: f64) -> Vec<u8> {
    [&[field << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn float(field: u8, value: f32) -> Vec<u8> {
    [&[field << 3 | 5][..], &value.to_le_bytes()].concat()
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [vec![field << 3 | 2], base_128(value.len() as u64), value.to_vec()].concat()
}

fn varint(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3], base_128(value)].concat()
}

fn base_128(mut value: u64) -> Vec<u8> {
    let mut digits = Vec::new();
    while value >= 0x80 {
        digits.push(value as u8 | 0x80);
        value >>= 7;
    }
    digits.push(value as u8);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_framed_and_encoded_as_the_formats_say() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(base_128(300), [0xac, 0x02]);
        let folder = std::env::temp_dir().join(format!("koudai-events-{}", std::process::id()));
        let mut events = Events::create(&folder).unwrap();
        events.scalars(300, &[("a", 0.5)]).unwrap();
        let data = std::fs::read(&events.path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let mut rest = &data[..];
        let mut records = Vec::new();
        while let [a, b, c, d, e, f, g, h, tail @ ..] = rest {
            let length = [*a, *b, *c, *d, *e, *f, *g, *h];
            let n = u64::from_le_bytes(length) as usize;
            assert_eq!(tail[..4], masked_crc(&length));
            let event = &tail[4..][..n];
            assert_eq!(tail[4 + n..][..4], masked_crc(event));
            records.push(event);
            rest = &tail[8 + n..];
        }
        let ends = |event: &[u8], end: &[u8]| event.ends_with(end);
        assert_eq!(records.len(), 2);
        assert!(ends(records[0], b"\x1a\x0dbrain.Event:2"));
        assert!(ends(records[1], b"\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\x00\x00\x00\x3f"));
    }
}
