//! Hashes of the weights' blocks: which 16 KiB of a large section are damaged, found without
//! reading the rest.
//!
//! The tree is BLAKE3's own. A block is a complete subtree of it (or the last one's rest), its hash
//! the chaining value of that subtree, and so the section's hash in the table is the root of these
//! leaves: there is no second root to trust, position and size are part of every leaf, and writing
//! both takes one pass. It knows no file; start with [`BlockHasher`].

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

/// Bytes of a block, but for the last of a section. A power of two of BLAKE3's chunks.
pub const BLOCK_BYTES: usize = 16 << 10;

pub(crate) type Hash = [u8; 32];

/// Hashes a section that comes in pieces: its blocks and, from them, the whole.
#[derive(Default)]
pub(crate) struct BlockHasher {
    leaves: Vec<Hash>,
    /// The block that isn't full yet, or the last full one: whether it is the only one isn't known
    /// before the next byte comes.
    block: Hasher,
    filled: usize,
}

impl BlockHasher {
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == BLOCK_BYTES {
                self.leaves.push(self.block.finalize_non_root());
                self.block = hasher_at(self.leaves.len());
                self.filled = 0;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
            self.block.update(now);
            self.filled += now.len();
            bytes = rest;
        }
    }

    /// The hash of each block, and BLAKE3 of the whole.
    pub(crate) fn finish(mut self) -> (Vec<Hash>, Hash) {
        if self.leaves.is_empty() {
            // A single block is the whole, and so has its hash.
            let hash = *self.block.finalize().as_bytes();
            return (vec![hash], hash);
        }
        self.leaves.push(self.block.finalize_non_root());
        let root = root(&self.leaves);
        (self.leaves, root)
    }
}

/// The hash of block `index` of `n_blocks`.
pub(crate) fn leaf(index: usize, n_blocks: usize, block: &[u8]) -> Hash {
    match n_blocks {
        1 => *blake3::hash(block).as_bytes(),
        _ => hasher_at(index).update(block).finalize_non_root(),
    }
}

/// BLAKE3 of the section that has these block hashes. Panics if there are none.
pub(crate) fn root(leaves: &[Hash]) -> Hash {
    match leaves {
        [only] => *only,
        _ => {
            let (left, right) = halves(leaves);
            *merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    }
}

fn subtree(leaves: &[Hash]) -> Hash {
    match leaves {
        [only] => *only,
        _ => {
            let (left, right) = halves(leaves);
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Left children are complete trees, as large as they can be.
fn halves(leaves: &[Hash]) -> (&[Hash], &[Hash]) {
    leaves.split_at(leaves.len().next_power_of_two() / 2)
}

fn hasher_at(index: usize) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(index as u64 * BLOCK_BYTES as u64);
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_subtrees_of_the_hash() {
        let bytes: Vec<u8> = (0..9 * BLOCK_BYTES as u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let sizes = [0, 1, 1024, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1];
        let more = (2..9).flat_map(|n| [n * BLOCK_BYTES - 77, n * BLOCK_BYTES]);
        for len in sizes.into_iter().chain(more) {
            let bytes = &bytes[..len];
            for piece in [100, 5000, BLOCK_BYTES, 1 << 20] {
                let mut hasher = BlockHasher::default();
                bytes.chunks(piece).for_each(|piece| hasher.update(piece));
                let (leaves, hash) = hasher.finish();
                assert_eq!(hash, *blake3::hash(bytes).as_bytes(), "{len} in pieces of {piece}");
                assert_eq!(root(&leaves), hash);
                assert_eq!(leaves.len(), len.div_ceil(BLOCK_BYTES).max(1));
                for (i, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
                    assert_eq!(leaf(i, leaves.len(), block), leaves[i]);
                }
            }
        }
    }
}
