//! Writes a matrix of floats in NumPy's `.npy` format, version 1, row by row.

use std::io::{self, Seek, SeekFrom, Write};

/// Header bytes: enough for any shape, and a multiple of 64 as the format asks.
const HEADER: usize = 128;

/// Rows of `f32` on their way to a file.
pub struct Writer<W: Write + Seek> {
    out: W,
    rows: usize,
    cols: usize,
}

impl<W: Write + Seek> Writer<W> {
    /// Starts a matrix of `cols` columns.
    pub fn new(mut out: W, cols: usize) -> io::Result<Writer<W>> {
        out.write_all(&header(0, cols))?;
        Ok(Writer { out, rows: 0, cols })
    }

    /// Appends a row. Panics if it has another length.
    pub fn row(&mut self, values: &[f32]) -> io::Result<()> {
        assert_eq!(values.len(), self.cols);
        self.rows += 1;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.out.write_all(&bytes)
    }

    /// Writes the final shape and flushes.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(self.rows, self.cols))?;
        self.out.seek(SeekFrom::End(0))?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn header(rows: usize, cols: usize) -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((HEADER - 10) as u16).to_le_bytes());
    let shape = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    header.extend(shape.as_bytes());
    header.resize(HEADER - 1, b' ');
    header.push(b'\n');
    header
}
