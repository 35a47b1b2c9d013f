//! Writes GGUF files, version 3, little-endian.
//!
//! [`Metadata`] collects keys, [`header`] makes everything that stands before the tensors' bytes;
//! those the caller writes itself, each followed by its [`padding`], so that no model has to fit in
//! memory. It knows nothing of architectures and encodes no weights.

use super::{ARRAY, FLOAT32, STRING};
use crate::dequant::TensorType;

const VERSION: u32 = 3;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const BOOL: u32 = 7;

/// Tensors start at multiples of this many bytes, the format's default.
pub const ALIGN: usize = 32;

/// Keys with their values, encoded as they come.
#[derive(Default)]
pub struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn start(&mut self, key: &str, kind: u32) {
        self.count += 1;
        put_string(&mut self.bytes, key.as_bytes());
        self.bytes.extend(kind.to_le_bytes());
    }

    fn start_array(&mut self, key: &str, item: u32, len: usize) {
        self.start(key, ARRAY);
        self.bytes.extend(item.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    /// A string.
    pub fn str(&mut self, key: &str, value: &str) {
        self.start(key, STRING);
        put_string(&mut self.bytes, value.as_bytes());
    }

    /// A number without sign.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.start(key, UINT32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// A float.
    pub fn f32(&mut self, key: &str, value: f32) {
        self.start(key, FLOAT32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// A boolean.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.start(key, BOOL);
        self.bytes.push(value.into());
    }

    /// Strings; bytes that aren't UTF-8 are kept as they are.
    pub fn strings<T: AsRef<[u8]>>(&mut self, key: &str, values: &[T]) {
        self.start_array(key, STRING, values.len());
        values.iter().for_each(|v| put_string(&mut self.bytes, v.as_ref()));
    }

    /// Numbers without sign.
    pub fn u32s(&mut self, key: &str, values: &[u32]) {
        self.start_array(key, UINT32, values.len());
        values.iter().for_each(|v| self.bytes.extend(v.to_le_bytes()));
    }

    /// Integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.start_array(key, INT32, values.len());
        values.iter().for_each(|v| self.bytes.extend(v.to_le_bytes()));
    }

    /// Floats.
    pub fn f32s(&mut self, key: &str, values: &[f32]) {
        self.start_array(key, FLOAT32, values.len());
        values.iter().for_each(|v| self.bytes.extend(v.to_le_bytes()));
    }

    /// Booleans.
    pub fn bools(&mut self, key: &str, values: &[bool]) {
        self.start_array(key, BOOL, values.len());
        values.iter().for_each(|v| self.bytes.push((*v).into()));
    }
}

/// A tensor of the directory.
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<usize>,
    /// How its values are stored.
    pub kind: TensorType,
    /// Its bytes, padding aside.
    pub len: u64,
}

/// Everything before the bytes of the first tensor, padding included. Tensors follow in the order
/// of `tensors`, each followed by its [`padding`].
pub fn header(metadata: &Metadata, tensors: &[Entry]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(metadata.count.to_le_bytes());
    out.extend(&metadata.bytes);
    let mut offset = 0u64;
    for tensor in tensors {
        put_string(&mut out, tensor.name.as_bytes());
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|n| out.extend((*n as u64).to_le_bytes()));
        out.extend(tensor.kind.code().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += tensor.len + padding(tensor.len).len() as u64;
    }
    out.extend(padding(out.len() as u64));
    out
}

/// The zeros that fill `len` bytes up to a multiple of [`ALIGN`].
pub fn padding(len: u64) -> &'static [u8] {
    const ZEROS: [u8; ALIGN] = [0; ALIGN];
    &ZEROS[..(len.next_multiple_of(ALIGN as u64) - len) as usize]
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}
