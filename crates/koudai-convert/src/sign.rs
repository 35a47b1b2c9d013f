//! Signing `.koudai` files with Ed25519 keys.
//!
//! Keys are PEM files as other programs have them (PKCS #8 and SubjectPublicKeyInfo, RFC 8410); the
//! private one is for its owner only. Checking signatures is the engine's: [`koudai::trust`]. Start
//! with [`sign`].

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use koudai::file::{FileWriter, ModelFile, section};
use koudai::trust::{Signature, signed_message};
use koudai::{PartialFile, PublicKey};

use crate::convert::Watch;
use crate::error::Error;
use crate::pack::copy_tensors;

/// A private key.
pub struct PrivateKey(SigningKey);

impl PrivateKey {
    /// A new key from the system's random numbers.
    pub fn generate() -> Result<PrivateKey, Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)
            .map_err(|e| Error::Input(format!("the system has no random numbers: {e}")))?;
        Ok(PrivateKey(SigningKey::from_bytes(&seed)))
    }

    /// Reads a PEM file.
    pub fn read(path: &Path) -> Result<PrivateKey, Error> {
        SigningKey::from_pkcs8_pem(&read_small(path)?)
            .map(PrivateKey)
            .map_err(|_| refuse(path, "isn't an Ed25519 private key in PEM (PKCS #8)"))
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey::from_bytes(self.0.verifying_key().to_bytes()).expect("it is a key's half")
    }

    /// Writes the key to `path`, which must not exist, for its owner only, and the public half beside
    /// it. Returns the path of that.
    pub fn write(&self, path: &Path) -> Result<PathBuf, Error> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".pub");
        let public = path.with_file_name(name);
        let encoded = "a key can be encoded";
        let private_pem = self.0.to_pkcs8_pem(LineEnding::LF).expect(encoded);
        let public_pem = self.0.verifying_key().to_public_key_pem(LineEnding::LF).expect(encoded);
        // Not beside and renamed: that would replace a key that is there.
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let io = |e| Error::Io(path.to_owned(), e);
        let mut file = options.open(path).map_err(io)?;
        let written = file.write_all(private_pem.as_bytes()).and_then(|()| file.sync_all());
        if let Err(e) = written {
            let _ = std::fs::remove_file(path);
            return Err(io(e));
        }
        PartialFile::write(&public, public_pem.as_bytes())
            .map_err(|e| Error::Io(public.clone(), e))?;
        Ok(public)
    }
}

/// Reads a public key's PEM file.
pub fn read_public(path: &Path) -> Result<PublicKey, Error> {
    VerifyingKey::from_public_key_pem(&read_small(path)?)
        .ok()
        .and_then(|key| PublicKey::from_bytes(key.to_bytes()))
        .ok_or_else(|| refuse(path, "isn't an Ed25519 public key in PEM"))
}

/// Writes `input` with a signature to `output`, which may be the same; another signature is replaced.
/// Weights are compared with their hash on the way: nothing damaged is signed.
pub fn sign(
    input: &Path,
    output: &Path,
    key: &PrivateKey,
    progress: &mut Watch<'_>,
) -> Result<Signature, Error> {
    let at = |e| Error::in_file(input, e);
    let file = ModelFile::open(input).map_err(at)?;
    file.attachments().map_err(at)?;
    let mut writer = FileWriter::create(output)?;
    for s in file.sections() {
        match s.name.as_str() {
            section::TENSORS => copy_tensors(&mut writer, &file, input, progress)?,
            section::WEIGHTS | section::BLOCKS | section::SIGNED => {}
            name => writer.copy(&file, name)?,
        }
    }
    let message = signed_message(&writer.fingerprint());
    let signature = Signature { key: key.public(), bytes: key.0.sign(&message).to_bytes() };
    writer.sign(&signature)?;
    writer.finish()?;
    Ok(signature)
}

fn refuse(path: &Path, why: &str) -> Error {
    Error::At(path.to_owned(), Box::new(Error::Input(why.into())))
}

/// The text of a file that can't be a key if it is long.
fn read_small(path: &Path) -> Result<String, Error> {
    let mut text = Vec::new();
    let file = File::open(path).and_then(|file| file.take(1 << 14).read_to_end(&mut text));
    file.map_err(|e| Error::Io(path.to_owned(), e))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
