//! Bytes that many parts of a loaded model share without copying them.
//!
//! A section of a mapped file, or a plain vector in a test, seen as one cheap-to-clone slice. It
//! deliberately doesn't know about files, mapping or alignment. Start at [`SharedBytes`].

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A reference-counted byte slice: clone and sub-slice it freely, the bytes are never copied.
///
/// Every dereference asks the owner for its bytes, so hot loops take a `&[u8]` once.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Shares everything `owner` holds. The owner must give the same bytes every time it is asked.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// The part of these bytes at `range`, or `None` if it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let range = self.range.start + range.start..self.range.start + range.end;
        Some(Self { owner: Arc::clone(&self.owner), range })
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_slices_stay_inside() {
        let all = SharedBytes::from((0..10).collect::<Vec<u8>>());
        let part = all.slice(2..8).unwrap();
        assert_eq!(&*part.slice(1..3).unwrap(), &[3, 4]);
        assert_eq!(part.slice(6..6).unwrap().len(), 0);
        assert!(part.slice(0..7).is_none());
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        assert!(part.slice(reversed).is_none());
    }
}
