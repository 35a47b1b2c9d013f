//! Reads GGUF files, versions 2 and 3, little-endian; the module `write` writes them.
//!
//! [`Gguf::parse`] checks everything once: every length and count against the bytes that remain
//! before anything is allocated, every sum and product for overflow, every tensor's range against
//! the file and against its neighbours. After that, views borrow from the input and can't fail. It
//! knows nothing of architectures, and decodes no weights: see [`crate::arch`] and
//! [`crate::dequant`].

pub mod write;

use std::collections::HashMap;
use std::fmt;

use crate::dequant::TensorType;

/// Why bytes are not a usable GGUF file. Messages name the offset, key or tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufError {
    /// The first bytes are not `GGUF`.
    NotGguf,
    /// A big-endian file.
    BigEndian,
    /// A version other than 2 and 3.
    Version(u32),
    /// The file ends inside something.
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: usize,
    },
    /// A length or count that the rest of the file couldn't hold.
    Count {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// Where the count stands.
        offset: usize,
    },
    /// A key or tensor name that isn't acceptable.
    Name {
        /// What it names.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// What is wrong.
        why: String,
    },
    /// A value of metadata that isn't acceptable.
    Value {
        /// Its key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A tensor that isn't acceptable.
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufError::NotGguf => f.write_str("not a GGUF file (wrong first bytes)"),
            GgufError::BigEndian => {
                f.write_str("a big-endian GGUF file; only little-endian is read")
            }
            GgufError::Version(v) => write!(f, "GGUF version {v}; versions 2 and 3 are read"),
            GgufError::Truncated { what, offset } => {
                write!(f, "the GGUF file ends inside {what} at byte {offset}: it is damaged or cut")
            }
            GgufError::Count { what, count, offset } => {
                write!(f, "byte {offset}: {count} {what} can't fit in the rest of the file")
            }
            GgufError::Name { what, offset, why } => write!(f, "byte {offset}: {what} {why}"),
            GgufError::Value { key, why } => write!(f, "metadata `{key}`: {why}"),
            GgufError::Tensor { name, why } => write!(f, "tensor `{name}`: {why}"),
        }
    }
}

impl std::error::Error for GgufError {}

/// One metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // The names say it all.
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes that should be, but needn't be, UTF-8.
    Str(&'a [u8]),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// The type's name, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::Str(_) => "string",
            Value::Array(_) => "array",
        }
    }

    /// Any integer type.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Either float type, as f64.
    pub fn float(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub fn str(&self) -> Option<&'a str> {
        match self {
            Value::Str(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An array.
    pub fn array(&self) -> Option<Array<'a>> {
        match self {
            Value::Array(array) => Some(*array),
            _ => None,
        }
    }
}

/// An array of metadata, left as it lies in the file: its items were checked and are decoded as
/// they are read.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    item: u32,
    len: usize,
    bytes: &'a [u8],
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} × type {})", self.len, self.item)
    }
}

impl<'a> Array<'a> {
    /// Items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The items in turn.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'a>> + use<'a> {
        let (item, bytes) = (self.item, self.bytes);
        let mut cursor = Cursor { bytes, at: 0 };
        (0..self.len).map(move |_| {
            // Checked when the file was parsed; an empty string could stand in, but can't be needed.
            cursor.value(item, "", 0).unwrap_or(Value::Str(&[]))
        })
    }

    /// The items, if all are strings.
    pub fn strings(&self) -> Option<impl ExactSizeIterator<Item = &'a [u8]> + use<'a>> {
        (self.item == STRING).then(|| {
            self.iter().map(|value| match value {
                Value::Str(bytes) => bytes,
                _ => &[],
            })
        })
    }

    /// The items, if all are integers of one type.
    pub fn integers(&self) -> Option<impl ExactSizeIterator<Item = i128> + use<'a>> {
        matches!(self.item, 0..=5 | 10 | 11)
            .then(|| self.iter().map(|value| value.integer().unwrap_or(0)))
    }

    /// The items, if all are floats.
    pub fn floats(&self) -> Option<impl ExactSizeIterator<Item = f64> + use<'a>> {
        matches!(self.item, FLOAT32 | FLOAT64)
            .then(|| self.iter().map(|value| value.float().unwrap_or(0.0)))
    }
}

/// A tensor's directory entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its values are stored.
    pub kind: TensorType,
    /// Its dimensions, the contiguous one first; 1 to 4 of them, none 0.
    pub dims: Vec<usize>,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A checked GGUF file.
#[derive(Debug)]
pub struct Gguf<'a> {
    version: u32,
    metadata: Vec<(&'a str, Value<'a>)>,
    by_key: HashMap<&'a str, usize>,
    tensors: Vec<Tensor<'a>>,
    by_name: HashMap<&'a str, usize>,
}

const MAX_NAME: usize = 65535;
const MAX_ARRAY_DEPTH: usize = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const FLOAT32: u32 = 6;
const FLOAT64: u32 = 12;

impl<'a> Gguf<'a> {
    /// True if `start` are the first bytes of a GGUF file of any version or byte order.
    pub fn recognizes(start: &[u8]) -> bool {
        start.starts_with(b"GGUF") || start.starts_with(b"FUGG")
    }

    /// Checks and indexes a file.
    pub fn parse(bytes: &'a [u8]) -> Result<Gguf<'a>, GgufError> {
        let mut c = Cursor { bytes, at: 0 };
        match bytes.get(..4) {
            Some(b"GGUF") => c.at = 4,
            Some(b"FUGG") => return Err(GgufError::BigEndian),
            _ => return Err(GgufError::NotGguf),
        }
        let version = c.u32("the version")?;
        if version != 0 && version & 0xffff == 0 {
            return Err(GgufError::BigEndian);
        }
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version(version));
        }
        // Name length, dimensions count, one dimension, type and offset; key length, type, value.
        let tensor_count = c.count("tensors", 8 + 4 + 8 + 4 + 8, 8)?;
        let value_count = c.count("metadata values", 8 + 1 + 4 + 1, 0)?;
        let (mut metadata, mut by_key) = (Vec::new(), HashMap::new());
        for i in 0..value_count {
            let key = c.name("metadata key")?;
            if by_key.insert(key, i).is_some() {
                return Err(value_error(key, "it is there twice"));
            }
            let kind = c.u32("a metadata type")?;
            metadata.push((key, c.value(kind, key, 0)?));
        }
        let mut file = Gguf { version, metadata, by_key, tensors: vec![], by_name: HashMap::new() };
        let align = file.alignment()?;
        let entries = read_tensor_entries(&mut c, tensor_count)?;
        let start = c.at.checked_next_multiple_of(align).filter(|s| *s <= bytes.len());
        let data = match start.and_then(|s| bytes.get(s..)) {
            Some(data) => data,
            None if entries.is_empty() => &[],
            None => return Err(GgufError::Truncated { what: "the padding", offset: c.at }),
        };
        file.place_tensors(entries, data, align)?;
        Ok(file)
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, in file order.
    pub fn metadata(&self) -> &[(&'a str, Value<'a>)] {
        &self.metadata
    }

    /// A metadata value.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.by_key.get(key).and_then(|i| self.metadata.get(*i)).map(|pair| pair.1)
    }

    /// A string, or an error that names the key if it is something else or not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a UTF-8 string", |v| v.str())
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A float.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a float", |v| v.float())
    }

    /// An integer that is not negative, of any integer type.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "an integer ≥ 0", |v| v.integer().and_then(|i| u64::try_from(i).ok()))
    }

    /// An array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        self.typed(key, "an array", |v| v.array())
    }

    /// All tensors, in directory order.
    pub fn tensors(&self) -> &[Tensor<'a>] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.by_name.get(name).and_then(|i| self.tensors.get(*i))
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        get: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match get(&value) {
            Some(v) => Ok(Some(v)),
            None => {
                let found = match value.integer() {
                    Some(i) => format!("{} {i}", value.type_name()),
                    None => value.type_name().to_owned(),
                };
                Err(value_error(key, format!("it is {found}, not {expected}")))
            }
        }
    }

    fn alignment(&self) -> Result<usize, GgufError> {
        const KEY: &str = "general.alignment";
        match self.get(KEY) {
            None => Ok(32),
            Some(Value::U32(a)) if a.is_power_of_two() && (8..=1 << 20).contains(&a) => {
                Ok(a as usize)
            }
            Some(Value::U32(a)) => {
                Err(value_error(KEY, format!("{a} is not a power of two in 8..=1048576")))
            }
            Some(other) => Err(value_error(KEY, format!("it is {}, not u32", other.type_name()))),
        }
    }

    fn place_tensors(
        &mut self,
        entries: Vec<Entry<'a>>,
        data: &'a [u8],
        align: usize,
    ) -> Result<(), GgufError> {
        for (i, e) in entries.iter().enumerate() {
            if self.by_name.insert(e.name, i).is_some() {
                return Err(tensor_error(e.name, "it is there twice"));
            }
            if !e.offset.is_multiple_of(align as u64) {
                let why = format!("offset {} is not a multiple of {align}", e.offset);
                return Err(tensor_error(e.name, why));
            }
            let range =
                usize::try_from(e.offset).ok().and_then(|o| Some((o, o.checked_add(e.len)?)));
            let bytes = range.and_then(|(from, to)| data.get(from..to)).ok_or_else(|| {
                tensor_error(
                    e.name,
                    format!(
                        "{} bytes at offset {} reach past the end of the file ({} bytes of data)",
                        e.len,
                        e.offset,
                        data.len()
                    ),
                )
            })?;
            self.tensors.push(Tensor {
                name: e.name,
                kind: e.kind,
                dims: e.dims.clone(),
                data: bytes,
            });
        }
        let mut order: Vec<&Entry<'_>> = entries.iter().collect();
        order.sort_by_key(|e| e.offset);
        for pair in order.windows(2) {
            if let [a, b] = pair
                && a.offset + a.len as u64 > b.offset
            {
                return Err(tensor_error(b.name, format!("it overlaps tensor `{}`", a.name)));
            }
        }
        Ok(())
    }
}

struct Entry<'a> {
    name: &'a str,
    kind: TensorType,
    dims: Vec<usize>,
    offset: u64,
    len: usize,
}

fn read_tensor_entries<'a>(c: &mut Cursor<'a>, count: usize) -> Result<Vec<Entry<'a>>, GgufError> {
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = c.name("tensor name")?;
        let n_dims = c.u32("a tensor's dimensions")?;
        if !(1..=4).contains(&n_dims) {
            return Err(tensor_error(name, format!("{n_dims} dimensions, not 1 to 4")));
        }
        let mut dims = Vec::with_capacity(n_dims as usize);
        let mut product = 1usize;
        for _ in 0..n_dims {
            let dim = c.u64("a tensor's dimensions")?;
            // GGUF stores them unsigned, GGML holds them signed: half the range is negative there.
            let checked = usize::try_from(dim).ok().filter(|d| *d > 0 && *d <= isize::MAX as usize);
            let dim = checked
                .ok_or_else(|| tensor_error(name, format!("dimension {dim} is impossible")))?;
            product = product
                .checked_mul(dim)
                .ok_or_else(|| tensor_error(name, "its dimensions' product overflows"))?;
            dims.push(dim);
        }
        let code = c.u32("a tensor's type")?;
        let kind = TensorType::from_code(code)
            .ok_or_else(|| tensor_error(name, format!("unknown type number {code}")))?;
        let offset = c.u64("a tensor's offset")?;
        let row = dims.first().copied().unwrap_or(0);
        if !row.is_multiple_of(kind.block_len()) {
            let why = format!("{row} columns are not a multiple of {}'s block", kind.name());
            return Err(tensor_error(name, why));
        }
        let len = (product / kind.block_len())
            .checked_mul(kind.block_bytes())
            .ok_or_else(|| tensor_error(name, "its size in bytes overflows"))?;
        entries.push(Entry { name, kind, dims, offset, len });
    }
    Ok(entries)
}

fn value_error(key: &str, why: impl Into<String>) -> GgufError {
    GgufError::Value { key: key.into(), why: why.into() }
}

fn tensor_error(name: &str, why: impl Into<String>) -> GgufError {
    GgufError::Tensor { name: name.into(), why: why.into() }
}

/// Reads forward through the file; every failure names what was being read and where.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = self.at.checked_add(n);
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(bytes) => {
                self.at += n;
                Ok(bytes)
            }
            None => Err(GgufError::Truncated { what, offset: self.at }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let offset = self.at;
        let bytes = self.take(N, what)?;
        bytes.try_into().map_err(|_| GgufError::Truncated { what, offset })
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things that take at least `item_bytes` each, of which `reserved` follow first.
    fn count(
        &mut self,
        what: &'static str,
        item_bytes: usize,
        reserved: usize,
    ) -> Result<usize, GgufError> {
        let offset = self.at;
        let count = self.u64(what)?;
        let room = self.remaining().saturating_sub(reserved) / item_bytes;
        match usize::try_from(count) {
            Ok(n) if n <= room => Ok(n),
            _ => Err(GgufError::Count { what, count, offset }),
        }
    }

    fn name(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let offset = self.at;
        let error = |why: &str| GgufError::Name { what, offset, why: why.into() };
        let len = self.count("bytes of a name", 1, 0)?;
        if len == 0 {
            return Err(error("is empty"));
        }
        if len > MAX_NAME {
            return Err(error("is longer than 65535 bytes"));
        }
        let bytes = self.take(len, what)?;
        let name = std::str::from_utf8(bytes).map_err(|_| error("is not UTF-8"))?;
        if name.contains('\0') {
            return Err(error("contains a NUL byte"));
        }
        Ok(name)
    }

    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value<'a>, GgufError> {
        const WHAT: &str = "a metadata value";
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array(WHAT)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(WHAT)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(WHAT)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(WHAT)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(WHAT)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(WHAT)?)),
            FLOAT32 => Value::F32(f32::from_le_bytes(self.array(WHAT)?)),
            7 => match self.array::<1>(WHAT)? {
                [b @ (0 | 1)] => Value::Bool(b == 1),
                [b] => return Err(value_error(key, format!("{b} is no bool"))),
            },
            STRING => {
                let len = self.count("bytes of a string", 1, 0)?;
                Value::Str(self.take(len, WHAT)?)
            }
            ARRAY => Value::Array(self.array_value(key, depth)?),
            10 => Value::U64(u64::from_le_bytes(self.array(WHAT)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(WHAT)?)),
            FLOAT64 => Value::F64(f64::from_le_bytes(self.array(WHAT)?)),
            other => return Err(value_error(key, format!("unknown value type {other}"))),
        })
    }

    fn array_value(&mut self, key: &str, depth: usize) -> Result<Array<'a>, GgufError> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(value_error(key, "arrays are nested too deeply"));
        }
        let item = self.u32("an array's type")?;
        let item_bytes = match item {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4 | 5 | FLOAT32 => 4,
            10 | 11 | FLOAT64 | STRING => 8,
            ARRAY => 12,
            other => return Err(value_error(key, format!("unknown item type {other}"))),
        };
        let len = self.count("items of an array", item_bytes, 0)?;
        let start = self.at;
        if matches!(item, STRING | ARRAY | 7) {
            for _ in 0..len {
                self.value(item, key, depth + 1)?;
            }
        } else {
            self.take(len * item_bytes, "an array")?;
        }
        let bytes = self.bytes.get(start..self.at).unwrap_or(&[]);
        Ok(Array { item, len, bytes })
    }
}
