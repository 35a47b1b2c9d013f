//! What may be packed beside a model and means something only together with it: a draft model, a
//! decision head, adapters.
//!
//! An attachment is opaque here: an envelope that says what it is and for which model, and the bytes
//! of whoever reads it. Start with [`Attachment`].

use super::section;
use crate::bytes::SharedBytes;
use crate::codec::{Decoder, Encoder};

const MAGIC: [u8; 8] = *b"KOUDATT1";
/// Payloads start at multiples of this, for readers that use them in place.
const ALIGN: usize = 64;
/// Adapters that a file can have.
pub const MAX_ADAPTERS: usize = 32;

/// What an attachment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AttachmentKind {
    /// A model that proposes tokens for speculative decoding. At most one.
    Draft = 1,
    /// A head that gives probabilities to options. At most one.
    Decision = 2,
    /// A change of some weights. Up to [`MAX_ADAPTERS`], with different names.
    Adapter = 3,
}

impl AttachmentKind {
    /// Its name in messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            AttachmentKind::Draft => "draft",
            AttachmentKind::Decision => "decision",
            AttachmentKind::Adapter => "adapter",
        }
    }
}

/// Bytes tied to one model.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// What it is for.
    pub kind: AttachmentKind,
    /// Its name; empty but for adapters.
    pub name: String,
    /// [`crate::file::ModelFile::model_hash`] of the model it was made for.
    pub target: [u8; 32],
    /// Its bytes, for whoever knows the kind.
    pub payload: SharedBytes,
}

impl Attachment {
    /// True if these bytes start like an attachment.
    pub fn recognizes(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Everything before the payload.
    pub fn envelope(&self) -> Vec<u8> {
        let mut e = Encoder(MAGIC.to_vec());
        e.0.extend(self.target);
        e.u8(self.kind as u8);
        e.str(&self.name);
        e.0.resize(e.0.len().next_multiple_of(ALIGN), 0);
        e.0
    }

    /// Reads an attachment; `None` if it is malformed.
    pub fn decode(bytes: &SharedBytes) -> Option<Attachment> {
        let mut d = Decoder(bytes);
        if d.bytes(MAGIC.len())? != MAGIC {
            return None;
        }
        let target = d.array()?;
        let kind = match d.u8()? {
            1 => AttachmentKind::Draft,
            2 => AttachmentKind::Decision,
            3 => AttachmentKind::Adapter,
            _ => return None,
        };
        let name = d.str()?.to_owned();
        let end = bytes.len() - d.0.len();
        let start = end.next_multiple_of(ALIGN);
        if bytes.get(end..start)?.iter().any(|b| *b != 0) {
            return None;
        }
        // Only adapters have names, and all of them do.
        let named = !name.is_empty();
        let payload = bytes.slice(start..bytes.len())?;
        (named == (kind == AttachmentKind::Adapter)).then_some(Attachment {
            kind,
            name,
            target,
            payload,
        })
    }
}

/// The section of attachment `index` of a kind.
pub(crate) fn section_name(kind: AttachmentKind, index: usize) -> String {
    match kind {
        AttachmentKind::Draft | AttachmentKind::Decision => kind.name().into(),
        AttachmentKind::Adapter => format!("{}{index:02}", section::ADAPTERS),
    }
}

/// What kind of attachment a section of this name must be, if it must be one.
pub(crate) fn kind_of_section(name: &str) -> Option<AttachmentKind> {
    match name {
        section::DRAFT => Some(AttachmentKind::Draft),
        section::DECISION => Some(AttachmentKind::Decision),
        _ => {
            let digits = name.strip_prefix(section::ADAPTERS).filter(|d| d.len() == 2)?;
            let index: usize = digits.parse().ok().filter(|i| *i < MAX_ADAPTERS)?;
            (section_name(AttachmentKind::Adapter, index) == name)
                .then_some(AttachmentKind::Adapter)
        }
    }
}
