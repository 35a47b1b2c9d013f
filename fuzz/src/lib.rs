//! What the fuzz targets share: a tiny model, right hashes for wrong files, a place on disk.

use std::path::{Path, PathBuf};

use koudai::file::{FileError, FileWriter, TensorHeader, section};
use koudai::kernels::Kind;
use koudai::tokenizer::{self, Matched, Merge, Pretokenizer, Spec, Token};
use koudai::{Activation, Config, LayerConfig, Shape};

/// Makes the hashes of a `.koudai` file right, wherever they lie: otherwise nothing behind them is
/// ever reached.
pub fn rehash(bytes: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
    };
    let count = (word(bytes, 8) >> 32).min(63) as usize;
    let Some(table) = bytes.get(64..64 + count * 64) else { return };
    for (i, entry) in table.to_vec().chunks_exact(64).enumerate() {
        let (offset, len) = (word(entry, 8) as usize, word(entry, 16) as usize);
        let content = offset.checked_add(len).and_then(|end| bytes.get(offset..end));
        let Some(hash) = content.map(|c| *blake3::hash(c).as_bytes()) else { continue };
        bytes[64 + i * 64 + 32..][..32].copy_from_slice(&hash);
    }
    let hash = *blake3::hash(&bytes[64..64 + count * 64]).as_bytes();
    bytes[24..56].copy_from_slice(&hash);
}

/// A file of this process with a fixed name, in a folder that `TMPDIR` names.
pub fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{}-{name}", std::process::id()))
}

/// Bytes, one merge and two control tokens.
pub fn spec() -> Spec {
    let token = |piece: &[u8], kind, matched| Token { piece: piece.to_vec(), kind, matched };
    let bytes = (0..=255u8).map(|b| token(&[b], tokenizer::Kind::Normal, Matched::Never));
    let more = [
        token(b"ab", tokenizer::Kind::Normal, Matched::Never),
        token(b"<|im_start|>", tokenizer::Kind::Control, Matched::Raw),
        token(b"<|im_end|>", tokenizer::Kind::Control, Matched::Raw),
    ];
    Spec {
        tokens: bytes.chain(more).collect(),
        merges: vec![Merge { left: 97, right: 98, result: 256, rank: 0 }],
        pretokenizer: Pretokenizer::Gpt2,
        eos: Some(258),
        ends: vec![258],
        ..Default::default()
    }
}

/// The template of most models.
pub const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content | trim }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes a model of a few hundred weights with every optional part.
pub fn write_model(path: &Path) -> Result<(), FileError> {
    let config = Config {
        dim: 4,
        vocab_size: 259,
        context_length: 64,
        norm_eps: 1e-5,
        embed_scale: 2.0,
        tied_head: true,
        ropes: vec![vec![1.0]],
        layers: vec![LayerConfig {
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 2,
            ffn_dim: 4,
            window: Some(8),
            rope: 0,
            attn_scale: 0.5,
            activation: Activation::GeluTanh,
            qkv_bias: true,
            qk_norm: true,
            post_norms: true,
        }],
    };
    let mut file = FileWriter::create(path)?;
    file.config(&config)?;
    let spec = spec().to_bytes().unwrap_or_default();
    file.section(section::TOKENIZER, true, &spec)?;
    file.section(section::TEMPLATE, false, TEMPLATE.as_bytes())?;
    file.defaults(&Default::default())?;
    file.meta(&[("name".into(), "tiny".into())])?;
    let tensors = config.tensors();
    let kind = |shape: &Shape| match shape {
        Shape::Vector(_) => Kind::F32,
        Shape::Matrix { .. } => Kind::F16,
    };
    let headers: Vec<TensorHeader> =
        tensors.iter().map(|(id, shape)| TensorHeader { id: *id, kind: kind(shape) }).collect();
    file.tensors::<FileError>(&config, &headers, |header, shape, sink| match shape {
        Shape::Vector(n) => sink.write(&1f32.to_le_bytes().repeat(n)),
        Shape::Matrix { rows, cols } => {
            let n = header.kind.matrix_bytes(rows, cols).unwrap_or(0);
            // Halves between 0.25 and 0.5, and their like.
            sink.write(&(0..n).map(|i| if i % 2 == 0 { i as u8 } else { 0x34 }).collect::<Vec<_>>())
        }
    })?;
    file.finish()
}
