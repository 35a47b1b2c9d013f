//! The KV cache of one sequence: keys and values of every layer, in the layout kernels read.
//!
//! Keys lie in blocks of 16 positions, so that one vector holds the same value of 16 keys; values lie
//! position after position. Memory is reserved for the whole context and touched only as it fills.
//! Rewinding is forgetting: positions beyond the length are overwritten, never read.

use koudai_kernels::num::f32_to_f16;
use koudai_kernels::{Keys, Values};

use crate::codec::{Decoder, Encoder};
use crate::config::Config;

/// Positions in a block of keys.
pub(crate) const BLOCK: usize = 16;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvKind {
    /// Half floats.
    #[default]
    F16,
    /// 8-bit codes with one scale per head and position: about half the memory. On SmolLM2-135M and
    /// WikiText-2 it raised perplexity by 0.13 to 0.15% (LOG.md, 2026-11-30).
    Q8,
}

impl KvKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            KvKind::F16 => "f16",
            KvKind::Q8 => "q8",
        }
    }
}

/// Keys and values of one layer, head after head.
enum Layer {
    F16 { keys: Vec<u16>, values: Vec<u16> },
    Q8 { keys: Vec<i8>, key_scales: Vec<f32>, values: Vec<i8>, value_scales: Vec<f32> },
}

/// Keys and values of all layers for up to `capacity` positions.
pub(crate) struct KvCache {
    kind: KvKind,
    capacity: usize,
    layers: Vec<Layer>,
    shapes: Vec<(usize, usize)>, // (n_kv_heads, head_dim) of each layer
}

impl KvCache {
    /// A cache for `context` positions; `None` if it is too large to address.
    pub(crate) fn new(config: &Config, kind: KvKind, context: usize) -> Option<KvCache> {
        KvCache::bytes(config, kind, context)?;
        let capacity = context.checked_next_multiple_of(BLOCK)?;
        let shapes: Vec<_> = config.layers.iter().map(|l| (l.n_kv_heads, l.head_dim)).collect();
        let layers = shapes
            .iter()
            .map(|&(heads, dim)| {
                let size = heads * dim * capacity;
                match kind {
                    KvKind::F16 => Layer::F16 { keys: vec![0; size], values: vec![0; size] },
                    KvKind::Q8 => Layer::Q8 {
                        keys: vec![0; size],
                        key_scales: vec![0.0; heads * capacity],
                        values: vec![0; size],
                        value_scales: vec![0.0; heads * capacity],
                    },
                }
            })
            .collect();
        Some(KvCache { kind, capacity, layers, shapes })
    }

    /// Bytes of a cache for `context` positions, or `None` if that overflows.
    pub(crate) fn bytes(config: &Config, kind: KvKind, context: usize) -> Option<usize> {
        let capacity = context.checked_next_multiple_of(BLOCK)?;
        let mut total = 0usize;
        for l in &config.layers {
            let values = capacity.checked_mul(l.n_kv_heads * l.head_dim * 2)?;
            let bytes = match kind {
                KvKind::F16 => values.checked_mul(2)?,
                KvKind::Q8 => values.checked_add(capacity.checked_mul(l.n_kv_heads * 8)?)?,
            };
            total = total.checked_add(bytes)?;
        }
        (total <= isize::MAX as usize).then_some(total)
    }

    pub(crate) fn kind(&self) -> KvKind {
        self.kind
    }

    /// Stores keys and values, `(n_kv_heads, head_dim)` each, at `position` of a layer.
    pub(crate) fn store(&mut self, layer: usize, position: usize, k: &[f32], v: &[f32]) {
        let (heads, dim) = self.shapes[layer];
        assert!(position < self.capacity && k.len() == heads * dim && v.len() == k.len());
        let (block, lane) = (position / BLOCK, position % BLOCK);
        let size = self.capacity * dim;
        for head in 0..heads {
            let (k, v) = (&k[head * dim..][..dim], &v[head * dim..][..dim]);
            let key_start = head * size + block * dim * BLOCK + lane;
            let value_start = head * size + position * dim;
            match &mut self.layers[layer] {
                Layer::F16 { keys, values } => {
                    for (d, k) in k.iter().enumerate() {
                        keys[key_start + d * BLOCK] = finite_half(*k);
                    }
                    for (out, v) in values[value_start..][..dim].iter_mut().zip(v) {
                        *out = finite_half(*v);
                    }
                }
                Layer::Q8 { keys, key_scales, values, value_scales } => {
                    let (scale, inverse) = scale_of(k);
                    key_scales[head * self.capacity + position] = scale;
                    for (d, k) in k.iter().enumerate() {
                        keys[key_start + d * BLOCK] = (k * inverse).round_ties_even() as i8;
                    }
                    let (scale, inverse) = scale_of(v);
                    value_scales[head * self.capacity + position] = scale;
                    for (out, v) in values[value_start..][..dim].iter_mut().zip(v) {
                        *out = (v * inverse).round_ties_even() as i8;
                    }
                }
            }
        }
    }

    /// The keys of one head.
    pub(crate) fn keys(&self, layer: usize, head: usize) -> Keys<'_> {
        let size = self.capacity * self.shapes[layer].1;
        match &self.layers[layer] {
            Layer::F16 { keys, .. } => Keys::F16(&keys[head * size..][..size]),
            Layer::Q8 { keys, key_scales, .. } => Keys::Q8(
                &keys[head * size..][..size],
                &key_scales[head * self.capacity..][..self.capacity],
            ),
        }
    }

    /// The values of one head.
    pub(crate) fn values(&self, layer: usize, head: usize) -> Values<'_> {
        let size = self.capacity * self.shapes[layer].1;
        match &self.layers[layer] {
            Layer::F16 { values, .. } => Values::F16(&values[head * size..][..size]),
            Layer::Q8 { values, value_scales, .. } => Values::Q8(
                &values[head * size..][..size],
                &value_scales[head * self.capacity..][..self.capacity],
            ),
        }
    }

    /// Appends the first `len` positions (whole blocks of keys) to `out`.
    pub(crate) fn save(&self, len: usize, out: &mut Encoder) {
        for (layer, &(heads, dim)) in self.layers.iter().zip(&self.shapes) {
            for head in 0..heads {
                let (keys, values) = self.used(head, dim, len);
                let scales = self.used_scales(head, len);
                match layer {
                    Layer::F16 { keys: k, values: v } => {
                        k[keys].iter().for_each(|x| out.0.extend(x.to_le_bytes()));
                        v[values].iter().for_each(|x| out.0.extend(x.to_le_bytes()));
                    }
                    Layer::Q8 { keys: k, key_scales, values: v, value_scales } => {
                        out.0.extend(k[keys].iter().map(|x| *x as u8));
                        out.0.extend(v[values].iter().map(|x| *x as u8));
                        key_scales[scales.clone()].iter().for_each(|x| out.f32(*x));
                        value_scales[scales].iter().for_each(|x| out.f32(*x));
                    }
                }
            }
        }
    }

    /// Reads back what [`KvCache::save`] wrote; `None` if it is too short.
    pub(crate) fn restore(&mut self, len: usize, from: &mut Decoder<'_>) -> Option<()> {
        for index in 0..self.layers.len() {
            let (heads, dim) = self.shapes[index];
            for head in 0..heads {
                let (keys, values) = self.used(head, dim, len);
                let scales = self.used_scales(head, len);
                let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
                match &mut self.layers[index] {
                    Layer::F16 { keys: k, values: v } => {
                        for target in [&mut k[keys], &mut v[values]] {
                            let bytes = from.bytes(target.len() * 2)?;
                            for (x, b) in target.iter_mut().zip(bytes.chunks_exact(2)) {
                                *x = half(b);
                            }
                        }
                    }
                    Layer::Q8 { keys: k, key_scales, values: v, value_scales } => {
                        for target in [&mut k[keys], &mut v[values]] {
                            let bytes = from.bytes(target.len())?;
                            target.iter_mut().zip(bytes).for_each(|(x, b)| *x = *b as i8);
                        }
                        for target in [&mut key_scales[scales.clone()], &mut value_scales[scales]] {
                            for x in target {
                                *x = from.f32()?;
                            }
                        }
                    }
                }
            }
        }
        Some(())
    }

    /// Takes over the first `len` positions of another cache of the same model and kind.
    pub(crate) fn copy_from(&mut self, from: &KvCache, len: usize) {
        assert!(self.kind == from.kind && self.shapes == from.shapes);
        for (index, &(heads, dim)) in from.shapes.iter().enumerate() {
            for head in 0..heads {
                let (keys, values) = self.used(head, dim, len);
                let (from_keys, from_values) = from.used(head, dim, len);
                let (scales, from_scales) =
                    (self.used_scales(head, len), from.used_scales(head, len));
                match (&mut self.layers[index], &from.layers[index]) {
                    (Layer::F16 { keys: k, values: v }, Layer::F16 { keys: fk, values: fv }) => {
                        k[keys].copy_from_slice(&fk[from_keys]);
                        v[values].copy_from_slice(&fv[from_values]);
                    }
                    (
                        Layer::Q8 { keys: k, key_scales: ks, values: v, value_scales: vs },
                        Layer::Q8 { keys: fk, key_scales: fks, values: fv, value_scales: fvs },
                    ) => {
                        k[keys].copy_from_slice(&fk[from_keys]);
                        v[values].copy_from_slice(&fv[from_values]);
                        ks[scales.clone()].copy_from_slice(&fks[from_scales.clone()]);
                        vs[scales].copy_from_slice(&fvs[from_scales]);
                    }
                    _ => unreachable!("both caches are of one kind"),
                }
            }
        }
    }

    fn used(
        &self,
        head: usize,
        dim: usize,
        len: usize,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let start = head * self.capacity * dim;
        (start..start + len.next_multiple_of(BLOCK) * dim, start..start + len * dim)
    }

    fn used_scales(&self, head: usize, len: usize) -> std::ops::Range<usize> {
        head * self.capacity..head * self.capacity + len.next_multiple_of(BLOCK)
    }
}

fn scale_of(x: &[f32]) -> (f32, f32) {
    let max = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    if max > 1e-30 { (max / 127.0, 127.0 / max) } else { (0.0, 0.0) }
}

/// The nearest finite half float: an infinity would poison rows that give it no weight.
fn finite_half(x: f32) -> u16 {
    f32_to_f16(x.clamp(-65504.0, 65504.0))
}
