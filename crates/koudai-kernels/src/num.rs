//! Half-precision numbers as bits: f16 (IEEE binary16) and bf16, to and from f32.
//!
//! Scalar and branch-light; bulk conversion lives in the instruction-set tables.

/// The value of IEEE binary16 bits. Exact.
#[inline]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let rest = (bits & 0x7fff) as u32;
    if rest >= 0x7c00 {
        // Infinity or NaN: keep the payload.
        f32::from_bits(sign | 0x7f80_0000 | ((rest & 0x3ff) << 13))
    } else if rest >= 0x0400 {
        f32::from_bits(sign | ((rest << 13) + (112 << 23)))
    } else {
        // Subnormal: rest · 2^-24 is exact in f32.
        let magnitude = rest as f32 * f32::from_bits(0x3380_0000);
        f32::from_bits(magnitude.to_bits() | sign)
    }
}

/// The nearest IEEE binary16, ties to even; overflow becomes infinity, NaN stays NaN.
#[inline]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let abs = bits & 0x7fff_ffff;
    if abs > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if abs >= 0x4780_0000 {
        return sign | 0x7c00; // 65536 and above
    }
    if abs < 0x3880_0000 {
        // Below 2^-14, so subnormal: adding 0.5 puts the unit at 2^-24 and rounds to even.
        let shifted = f32::from_bits(abs) + 0.5;
        return sign | (shifted.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = abs + 0x0fff + ((abs >> 13) & 1);
    sign | ((rounded - (112 << 23)) >> 13) as u16
}

/// The value of bfloat16 bits. Exact.
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The nearest bfloat16, ties to even; NaN stays NaN.
#[inline]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "f16 {bits:#06x}");
            }
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(value), bits, "bf16 {bits:#06x}");
            }
        }
    }

    #[test]
    fn rounding_picks_the_nearest_half_and_ties_go_to_even() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(f32_to_f16(middle), even, "tie above {bits:#06x}");
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), bits);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), bits + 1);
        }
        assert_eq!(f32_to_f16(65519.0), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::INFINITY), 0x7c00);
        assert_eq!(f32_to_f16(f32::from_bits(1)), 0);
    }
}
