//! Deltas: what makes a new version of a file out of the one that is there.
//!
//! [`apply`] is for apps: it writes the new version beside, verifies it and only then gives it its
//! name, so that whatever happens, a whole file has it. It doesn't find out what changed
//! (`koudai-convert` does) and fetches nothing. The bytes are specified in FORMAT.md.

use std::io::Write;
use std::path::Path;

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_slice_iter_to_slice;

use crate::Error;
use crate::codec::{Decoder, Encoder};
use crate::file::{ModelFile, map_file};
use crate::partial::PartialFile;
use crate::session::Flow;
use crate::trust::Trust;

const MAGIC: [u8; 8] = *b"KOUDELT1";
/// Bytes that one [`Op::Data`] or [`Op::Change`] makes at most.
pub const MAX_PIECE: usize = 1 << 20;
/// How hard to look for repetitions, 0 to 10.
const COMPRESSION: u8 = 6;

/// Makes the next bytes of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// `len` bytes of the base at `at`.
    Copy {
        /// Bytes.
        len: u32,
        /// First byte in the base.
        at: u64,
    },
    /// `len` bytes that are stored, compressed if that makes them fewer.
    Data {
        /// Bytes.
        len: u32,
        /// As they are, or deflated.
        stored: Vec<u8>,
    },
    /// `len` bytes of the base at `at` with some bits changed: what is stored is the exclusive or.
    Change {
        /// Bytes.
        len: u32,
        /// First byte in the base.
        at: u64,
        /// As they are, or deflated.
        stored: Vec<u8>,
    },
}

impl Op {
    /// Makes these bytes out of nothing. Panics on more than [`MAX_PIECE`].
    pub fn data(bytes: &[u8]) -> Op {
        Op::Data { len: piece_len(bytes), stored: pack(bytes) }
    }

    /// Makes `new` out of `old`, which lies at `at` in the base and is as long. Panics on more than
    /// [`MAX_PIECE`].
    pub fn change(at: u64, old: &[u8], new: &[u8]) -> Op {
        assert_eq!(old.len(), new.len());
        let bits: Vec<u8> = old.iter().zip(new).map(|(a, b)| a ^ b).collect();
        Op::Change { len: piece_len(new), at, stored: pack(&bits) }
    }

    /// Bytes of the result that it makes.
    pub fn makes(&self) -> u32 {
        match self {
            Op::Copy { len, .. } | Op::Data { len, .. } | Op::Change { len, .. } => *len,
        }
    }

    /// Bytes that it has stored.
    pub fn stores(&self) -> usize {
        match self {
            Op::Copy { .. } => 0,
            Op::Data { stored, .. } | Op::Change { stored, .. } => stored.len(),
        }
    }

    fn encode(&self, e: &mut Encoder) {
        let (code, at, stored) = match self {
            Op::Copy { at, .. } => (1, Some(at), None),
            Op::Data { stored, .. } => (2, None, Some(stored)),
            Op::Change { at, stored, .. } => (3, Some(at), Some(stored)),
        };
        e.u8(code);
        e.u32(self.makes());
        at.into_iter().for_each(|at| e.u64(*at));
        if let Some(stored) = stored {
            e.u32(stored.len() as u32);
            e.0.extend(stored);
        }
    }
}

fn piece_len(bytes: &[u8]) -> u32 {
    assert!(bytes.len() <= MAX_PIECE, "a piece of {} bytes", bytes.len());
    bytes.len() as u32
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    let deflated = compress_to_vec(bytes, COMPRESSION);
    if deflated.len() < bytes.len() { deflated } else { bytes.to_vec() }
}

/// Fills `out` with what [`pack`] made of it; `false` if these bytes aren't that.
fn unpack(stored: &[u8], out: &mut [u8]) -> bool {
    if stored.len() == out.len() {
        out.copy_from_slice(stored);
        return true;
    }
    let n = out.len();
    matches!(decompress_slice_iter_to_slice(out, [stored].into_iter(), false, true), Ok(m) if m == n)
}

/// Writes a delta.
pub struct DeltaWriter {
    file: PartialFile,
    hasher: blake3::Hasher,
    bytes: u64,
    left: u64,
    /// Copies in a row become one.
    copy: Option<(u64, u32)>,
}

impl DeltaWriter {
    /// Starts a delta at `path` that makes `result` out of `base`. `name` says to people which file
    /// the base is.
    pub fn create(
        path: &Path,
        base: &ModelFile,
        name: &str,
        result: &ModelFile,
    ) -> std::io::Result<DeltaWriter> {
        let mut e = Encoder(MAGIC.to_vec());
        e.0.extend(base.fingerprint());
        e.0.extend(result.table_hash());
        e.u64(result.len_bytes());
        e.str(name);
        let mut writer = DeltaWriter {
            file: PartialFile::create(path)?,
            hasher: blake3::Hasher::new(),
            bytes: 0,
            left: result.len_bytes(),
            copy: None,
        };
        writer.write(&e.0)?;
        Ok(writer)
    }

    /// Appends an operation. Panics if it makes more than is left to be made.
    pub fn push(&mut self, op: &Op) -> std::io::Result<()> {
        self.left = self.left.checked_sub(op.makes().into()).expect("it makes the result");
        if let (Op::Copy { len, at }, Some((start, so_far))) = (op, &mut self.copy)
            && *at == *start + u64::from(*so_far)
            && let Some(sum) = so_far.checked_add(*len)
        {
            *so_far = sum;
            return Ok(());
        }
        self.end_copy()?;
        match op {
            Op::Copy { len, at } => self.copy = Some((*at, *len)),
            other => self.encode(other)?,
        }
        Ok(())
    }

    /// Flushes to disk and gives the delta its name. Returns its bytes. Panics if the result isn't
    /// all made.
    pub fn finish(mut self) -> std::io::Result<u64> {
        assert_eq!(self.left, 0, "bytes of the result are missing");
        self.end_copy()?;
        let hash = self.hasher.finalize();
        self.write(hash.as_bytes())?;
        self.file.finish()?;
        Ok(self.bytes)
    }

    fn end_copy(&mut self) -> std::io::Result<()> {
        match self.copy.take() {
            Some((at, len)) => self.encode(&Op::Copy { len, at }),
            None => Ok(()),
        }
    }

    fn encode(&mut self, op: &Op) -> std::io::Result<()> {
        let mut e = Encoder::default();
        op.encode(&mut e);
        self.write(&e.0)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }
}

/// What a delta says of itself.
struct Header<'a> {
    base: [u8; 32],
    result: [u8; 32],
    len: u64,
    name: &'a str,
}

/// Takes the header off a delta's bytes.
fn read_header<'a>(d: &mut Decoder<'a>) -> Option<Header<'a>> {
    Some(Header { base: d.array()?, result: d.array()?, len: d.u64()?, name: d.str()? })
}

/// Makes a new version at `output`, which may be `base` itself, out of `base` and a delta. The
/// result is verified whole and must be signed as `trust` wants it before it gets the name; what was
/// there stays until then. `each` is told the bytes done and in all, and can end the work.
///
/// Needs the room of the new version beside the old one, and a few megabytes of memory. A process that
/// is killed leaves `NAME.partial-…` beside it, which may be deleted.
///
/// ```no_run
/// # use std::path::Path;
/// use koudai::{Trust, delta};
/// # let key = koudai::PublicKey::from_bytes([0; 32]).unwrap();
/// let (model, update) = (Path::new("model.koudai"), Path::new("update.kdelta"));
/// delta::apply(model, update, model, &Trust::Signed(vec![key]), &mut |done, total| {
///     println!("{done} of {total} bytes");
///     std::ops::ControlFlow::Continue(())
/// })?;
/// # Ok::<(), koudai::Error>(())
/// ```
pub fn apply(
    base: &Path,
    delta: &Path,
    output: &Path,
    trust: &Trust,
    each: &mut dyn FnMut(u64, u64) -> Flow,
) -> Result<(), Error> {
    let refuse = |why: String| Error::Delta(delta.into(), why);
    let old = ModelFile::open(base).map_err(|e| Error::File(base.into(), e))?;
    let bytes = map_file(delta).map_err(|e| Error::File(delta.into(), e))?;
    let body = bytes.strip_prefix(&MAGIC).ok_or_else(|| refuse("it isn't a delta".into()))?;
    let hash = bytes.split_last_chunk::<32>();
    if hash.is_none_or(|(body, hash)| blake3::hash(body).as_bytes() != hash) {
        return Err(refuse("its hash is wrong: it is damaged or cut short".into()));
    }
    let mut d = Decoder(&body[..body.len().saturating_sub(32)]);
    let malformed =
        |at: u64| refuse(format!("it is malformed where byte {at} of the result is due"));
    let header = read_header(&mut d).ok_or_else(|| malformed(0))?;
    if header.base != old.fingerprint() {
        return Err(refuse(format!(
            "it is for {} with fingerprint {}…, and {} has {}…",
            if header.name.is_empty() { "a file" } else { header.name },
            short(&header.base),
            base.display(),
            short(&old.fingerprint()),
        )));
    }
    // A small delta can name a file that no disk holds.
    let most = old.len_bytes().saturating_mul(4).saturating_add(bytes.len() as u64 * 1024);
    if header.len > most {
        return Err(refuse(format!("it makes {} bytes, {most} are allowed", header.len)));
    }
    let io = |e| Error::Io(output.display().to_string(), e);
    let mut file = PartialFile::create(output).map_err(io)?;
    let mut piece = vec![0; MAX_PIECE];
    let mut done = 0;
    while done < header.len {
        let made = step(&mut d, old.bytes(), &mut piece, header.len - done);
        let made = made.ok_or_else(|| malformed(done))?;
        for part in made.chunks(MAX_PIECE) {
            file.write_all(part).map_err(io)?;
            done += part.len() as u64;
            if each(done, header.len).is_break() {
                return Err(Error::Cancelled);
            }
        }
    }
    d.end().ok_or_else(|| malformed(done))?;

    let written = file.sync().map_err(io)?;
    let result = ModelFile::open(written).and_then(|new| {
        new.verify()?;
        Ok(new)
    });
    let wrong = |why: String| match old.verify() {
        Err(e) => Error::File(base.into(), e),
        Ok(()) => refuse(format!("what it makes isn't what it should make: {why}")),
    };
    let new = result.map_err(|e| wrong(e.to_string()))?;
    if new.table_hash() != header.result {
        return Err(wrong("its section table is another".into()));
    }
    new.check_trust(trust).map_err(|e| refuse(format!("what it makes isn't trusted: {e}")))?;
    // Some systems don't rename what is mapped.
    drop((new, old));
    file.finish().map_err(io)
}

/// The bytes that the next operation makes: some of the base, or in `piece`. `None` if it is
/// malformed or makes more than `left`.
fn step<'a>(
    d: &mut Decoder<'_>,
    base: &'a [u8],
    piece: &'a mut [u8],
    left: u64,
) -> Option<&'a [u8]> {
    let code = d.u8()?;
    let len = d.u32().filter(|len| *len > 0 && u64::from(*len) <= left)? as usize;
    let part = |d: &mut Decoder<'_>| {
        let at = usize::try_from(d.u64()?).ok()?;
        base.get(at..at.checked_add(len)?)
    };
    let old = match code {
        1 => return part(d),
        2 => None,
        3 => Some(part(d)?),
        _ => return None,
    };
    let piece = piece.get_mut(..len)?;
    let n_stored = d.u32()? as usize;
    let stored = d.bytes(n_stored).filter(|stored| stored.len() <= len)?;
    if !unpack(stored, piece) {
        return None;
    }
    if let Some(old) = old {
        piece.iter_mut().zip(old).for_each(|(new, old)| *new ^= old);
    }
    Some(piece)
}

fn short(hash: &[u8; 32]) -> String {
    hash[..8].iter().map(|b| format!("{b:02x}")).collect()
}
