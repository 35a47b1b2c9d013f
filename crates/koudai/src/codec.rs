//! Little-endian fields in a row: what small sections of a `.koudai` file are made of.
//!
//! Reading never panics and never allocates more than the input could hold.

/// Appends fields to a buffer.
#[derive(Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    pub(crate) fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }
    pub(crate) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }
    /// A `u32` length, then the bytes. Panics at 4 GiB.
    pub(crate) fn str(&mut self, value: &str) {
        self.u32(value.len().try_into().expect("strings in small sections are short"));
        self.0.extend(value.as_bytes());
    }
}

/// Takes fields off the front of a slice; `None` when it is too short or malformed.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn f32(&mut self) -> Option<f32> {
        self.u32().map(f32::from_bits)
    }
    pub(crate) fn f64(&mut self) -> Option<f64> {
        self.u64().map(f64::from_bits)
    }
    pub(crate) fn str(&mut self) -> Option<&'a str> {
        let n = self.u32()? as usize;
        std::str::from_utf8(self.bytes(n)?).ok()
    }
    /// A count of items that take at least `item_bytes` each, so that it can't exceed the input.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Option<usize> {
        let n = self.u32()? as usize;
        (n.checked_mul(item_bytes)? <= self.0.len()).then_some(n)
    }
    /// A count, then that many items of at least `item_bytes` each.
    pub(crate) fn list<T>(
        &mut self,
        item_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let n = self.count(item_bytes)?;
        (0..n).map(|_| item(self)).collect()
    }
    /// `Some` only if everything was read.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
