//! Who signed a file, and whose signatures are good enough to open one.
//!
//! A signature is Ed25519 over a file's fingerprint, which holds the hash of every section. This
//! module checks signatures; it has no private keys and reads no key files (`koudai-convert` does).
//! Start with [`Trust`].

use std::fmt;

use ed25519_dalek::VerifyingKey;

use crate::codec::{Decoder, Encoder};

/// The public half of an Ed25519 key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The key with these bytes, as RFC 8032 has them; `None` if there is none.
    pub fn from_bytes(bytes: [u8; 32]) -> Option<PublicKey> {
        let key = VerifyingKey::from_bytes(&bytes).ok()?;
        // With a weak key, one signature fits many messages.
        (!key.is_weak()).then_some(PublicKey(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Which files may be opened.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// All, signed or not.
    #[default]
    Any,
    /// Those with a right signature by one of these keys. Weights are then verified at least when
    /// they are first used: see [`crate::Verify`].
    Signed(Vec<PublicKey>),
}

/// A signature as a file carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Who claims to have signed.
    pub key: PublicKey,
    /// Ed25519 of [`signed_message`].
    pub bytes: [u8; 64],
}

/// What is signed for a file with this fingerprint. The words keep a signature from meaning
/// something elsewhere.
pub fn signed_message(fingerprint: &[u8; 32]) -> Vec<u8> {
    [b"koudai signature 1\n", &fingerprint[..]].concat()
}

impl Signature {
    /// True if the key's owner signed a file with this fingerprint.
    pub fn is_of(&self, fingerprint: &[u8; 32]) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&self.bytes);
        VerifyingKey::from_bytes(&self.key.0)
            .and_then(|key| key.verify_strict(&signed_message(fingerprint), &signature))
            .is_ok()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u32(1);
        e.0.extend(self.key.0);
        e.0.extend(self.bytes);
        e.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Signature> {
        let mut d = Decoder(bytes);
        if d.u32()? != 1 {
            return None;
        }
        let signature = Signature { key: PublicKey::from_bytes(d.array()?)?, bytes: d.array()? };
        d.end()?;
        Some(signature)
    }
}

impl Trust {
    /// Says why a file with this fingerprint and signature isn't trusted, if it isn't.
    pub(crate) fn check(
        &self,
        fingerprint: &[u8; 32],
        signature: Option<&Signature>,
    ) -> Result<(), String> {
        let Trust::Signed(keys) = self else { return Ok(()) };
        let trusted = || {
            let keys: Vec<String> = keys.iter().map(PublicKey::to_string).collect();
            format!("trusted: {}", if keys.is_empty() { "none".into() } else { keys.join(", ") })
        };
        match signature {
            None => Err(format!("the file isn't signed ({})", trusted())),
            Some(s) if !keys.contains(&s.key) => {
                Err(format!("the file is signed by another key, {} ({})", s.key, trusted()))
            }
            Some(s) if !s.is_of(fingerprint) => Err(MISMATCH.into()),
            Some(_) => Ok(()),
        }
    }
}

/// A signature that is of something else.
pub(crate) const MISMATCH: &str =
    "the signature isn't of this content: the file was changed, or the signature is another file's";
