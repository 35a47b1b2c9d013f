//! AVX-512 with AMX-INT8: 16 rows of activations times the 16 rows of a panel, in tile registers.
//!
//! Start with [`Tiles`]. The 8 lines that 32 inputs unpack to are a tile of weights as it stands, and
//! 32 codes of 16 rows are a tile of activations; their product replaces the products that
//! `avx512.rs` makes a row at a time. Rows that fill no tile, and all else, are the `avx512` table's.
//! Sums are the same integers and go the same way from there, so the two tables give the same bits
//! and a row's result doesn't depend on whether it sat in a tile.
//!
//! Rust's intrinsics for tiles aren't stable yet. Encodings and rules are in Intel's Software
//! Developer's Manual, volume 1, chapter 18. No time was measured; see docs/performance.md.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::avx512::{self, Dot, Tile, Vnni, load, q4_tile, q8_tile, unpack};
use crate::rows::{ACTIVATION_GROUP, QuantizedRows, by_planes, in_tiles};
use crate::table::Kernels;

/// Rows in a tile, of weights and of activations.
const TILE_ROWS: usize = 16;
/// Lines of 64 bytes in a tile of weights.
const LINES: usize = ACTIVATION_GROUP / 4;

/// Whether the processor has tiles, the system lets this process use them, and they multiply right.
pub(crate) fn supported() -> bool {
    const TILE_AND_INT8: u32 = 0b11 << 24;
    const TILE_STATE: u64 = 0b11 << 17;
    avx512::supported()
        && __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
        // SAFETY: a system that saves the registers of AVX-512 has turned `xgetbv` on.
        && unsafe { _xgetbv(0) } & TILE_STATE == TILE_STATE
        && permitted()
        // SAFETY: the processor has tiles, and the process may use them.
        && unsafe { multiplies_right::<Amx>() }
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "amx",
    matmul_q8: matmul_q8::<Amx>,
    matmul_q4g32: matmul_q4::<Amx, 32, 32>,
    matmul_q4g64: matmul_q4::<Amx, 64, 64>,
    matmul_q4s32: matmul_q4::<Amx, 64, 32>,
    ..avx512::KERNELS
};

/// Asks Linux for the 8 KB that tiles need in each thread's saved state, for the whole process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: the call takes two numbers and touches no memory of ours; `syscall` overwrites rcx and
    // r11. A kernel that doesn't know the request answers an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// What multiplies tiles: the processor, or in tests a model of it.
trait Unit {
    /// Gets ready to multiply, until the value is dropped.
    ///
    /// # Safety
    /// The processor must have what it takes, and the process the permission to use it.
    unsafe fn ready() -> Self;

    /// `out[r, j] = Σ_i a[r, i] · w[j, i]` over 32 inputs, for 16 rows `r` and 16 rows `j`, all signed.
    /// Row `r` of `a` is 32 bytes at `r · a_stride`, row `r` of `out` is 16 × i32 at byte
    /// `r · out_stride`; `w` has 4 inputs of its 16 rows in each of 8 lines of 64 bytes.
    ///
    /// # Safety
    /// A value must be [`ready`](Unit::ready) in this thread, and the memory must be there.
    unsafe fn multiply(
        w: *const u8,
        a: *const i8,
        a_stride: usize,
        out: *mut i32,
        out_stride: usize,
    );
}

/// Tile registers. The value stands for their shapes; dropping it gives them back, so that the system
/// needn't save them.
struct Amx;

impl Unit for Amx {
    #[inline]
    unsafe fn ready() -> Amx {
        /// Palette 1; then, per tile, bytes in a row from byte 16 on and rows from byte 48 on.
        #[repr(C, align(64))]
        struct Shapes {
            palette: u8,
            reserved: [u8; 15],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        const fn three<T: Copy>(tiles: [T; 3], none: T) -> [T; 16] {
            let mut all = [none; 16];
            (all[0], all[1], all[2]) = (tiles[0], tiles[1], tiles[2]);
            all
        }
        static SHAPES: Shapes = Shapes {
            palette: 1,
            reserved: [0; 15],
            row_bytes: three([ACTIVATION_GROUP as u16, 64, 64], 0),
            rows: three([TILE_ROWS as u8, LINES as u8, TILE_ROWS as u8], 0),
        };
        let shapes = &raw const SHAPES;
        // SAFETY: the caller's promise; the instruction reads the 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, preserves_flags)) };
        Amx
    }

    #[inline]
    unsafe fn multiply(
        w: *const u8,
        a: *const i8,
        a_stride: usize,
        out: *mut i32,
        out_stride: usize,
    ) {
        // SAFETY: the caller's promises. No tile is expected to hold anything before or after.
        unsafe {
            asm!(
                "tileloadd tmm0, [{a} + {a_stride}*1]",
                "tileloadd tmm1, [{w} + {w_stride}*1]",
                "tilezero tmm2",
                "tdpbssd tmm2, tmm0, tmm1",
                "tilestored [{out} + {out_stride}*1], tmm2",
                a = in(reg) a,
                a_stride = in(reg) a_stride,
                w = in(reg) w,
                w_stride = in(reg) 64usize,
                out = in(reg) out,
                out_stride = in(reg) out_stride,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                options(nostack, preserves_flags)
            );
        }
    }
}

impl Drop for Amx {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: there are tiles, or there would be no `Amx`.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// One product against plain arithmetic, with every sign: an emulator or a hypervisor may offer tiles
/// and get them wrong.
///
/// # Safety
/// As for [`Unit::ready`].
unsafe fn multiplies_right<U: Unit>() -> bool {
    let code = |i: usize| (i * 37) as u8 as i8;
    let w: [[i8; 64]; LINES] =
        std::array::from_fn(|line| std::array::from_fn(|i| code(line * 64 + i)));
    let a: [[i8; ACTIVATION_GROUP]; TILE_ROWS] =
        std::array::from_fn(|row| std::array::from_fn(|i| code(row * 101 + i * 3)));
    let mut out = [[0i32; TILE_ROWS]; TILE_ROWS];
    // SAFETY: the caller's promise, and the arrays have the sizes that `multiply` wants.
    unsafe {
        let _unit = U::ready();
        U::multiply(
            w.as_ptr().cast(),
            a.as_ptr().cast(),
            ACTIVATION_GROUP,
            out.as_mut_ptr().cast(),
            TILE_ROWS * 4,
        );
    }
    let dot = |a: &[i8; ACTIVATION_GROUP], row: usize| -> i32 {
        a.iter().enumerate().map(|(i, a)| w[i / 4][row * 4 + i % 4] as i32 * *a as i32).sum()
    };
    out.iter().zip(&a).all(|(out, a)| (0..TILE_ROWS).all(|row| out[row] == dot(a, row)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn matmul_q4<U: Unit, const BLOCK: usize, const GROUP: usize>(
    panel: &[u8],
    x: &QuantizedRows<'_>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        if x.n_rows < TILE_ROWS {
            return avx512::matmul_q4::<BLOCK, GROUP>(panel, x, out, stride);
        }
        let _unit = U::ready();
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [16, 8, 4, 2, 1], |row, R| q4_tile::<
            Tiles<U>,
            BLOCK,
            GROUP,
            P,
            R,
        >(
            panel, x, out, stride, row
        )))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn matmul_q8<U: Unit>(panel: &[u8], x: &QuantizedRows<'_>, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        if x.n_rows < TILE_ROWS {
            return avx512::matmul_q8(panel, x, out, stride);
        }
        let _unit = U::ready();
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [16, 8, 4, 2, 1], |row, R| q8_tile::<
            Tiles<U>,
            P,
            R,
        >(
            panel, x, out, stride, row
        )))
    }
}

/// Products of 16 rows in tiles, of fewer as in the `avx512` table. A `U` must be ready.
struct Tiles<U>(PhantomData<U>);

impl<U: Unit> Dot for Tiles<U> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
    unsafe fn q4<const PLANES: usize, const R: usize>(
        lines: *const u8,
        rows: &Tile<PLANES>,
        group: usize,
    ) -> [[__m512i; PLANES]; R] {
        // SAFETY: the caller has 4 lines there and the group in every row.
        unsafe {
            if R < TILE_ROWS {
                return Vnni::q4(lines, rows, group);
            }
            let [a, b, c, d] = [0, 1, 2, 3].map(|line| unpack(lines.add(line * 64)));
            products::<U, PLANES, R>([a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]], rows, group)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
    unsafe fn q8<const PLANES: usize, const R: usize>(
        lines: *const u8,
        rows: &Tile<PLANES>,
        group: usize,
    ) -> [[__m512i; PLANES]; R] {
        // SAFETY: the caller has 8 lines there and the group in every row.
        unsafe {
            if R < TILE_ROWS {
                return Vnni::q8(lines, rows, group);
            }
            // Unsigned with zero at 128 turns signed by flipping a bit.
            let flip = _mm512_set1_epi8(-128);
            let codes =
                std::array::from_fn(|line| _mm512_xor_si512(load(lines.add(line * 64)), flip));
            products::<U, PLANES, R>(codes, rows, group)
        }
    }
}

/// Products of a group of signed codes with 16 rows of each plane.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn products<U: Unit, const PLANES: usize, const R: usize>(
    codes: [__m512i; LINES],
    rows: &Tile<PLANES>,
    group: usize,
) -> [[__m512i; PLANES]; R] {
    const { assert!(R <= TILE_ROWS) };
    let mut dots = MaybeUninit::<[[__m512i; PLANES]; R]>::uninit();
    // SAFETY: the caller's 16 rows are `PLANES · cols` codes apart, their products `PLANES` vectors,
    // and each plane writes its vector of every row.
    unsafe {
        for plane in 0..PLANES {
            let a = rows.quads(0, plane, group * ACTIVATION_GROUP).cast();
            let out = dots.as_mut_ptr().cast::<__m512i>().add(plane);
            U::multiply(codes.as_ptr().cast(), a, PLANES * rows.cols, out.cast(), PLANES * 64);
        }
        dots.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Kind, Matrix};
    use crate::rows::{Columns, Rows};

    /// The products of [`Unit::multiply`] in plain arithmetic. Unsigned, it is what Bochs 3.0 and 3.1
    /// take `tdpbssd` for.
    struct Model<const SIGNED: bool>;

    impl<const SIGNED: bool> Unit for Model<SIGNED> {
        unsafe fn ready() -> Self {
            Model
        }

        unsafe fn multiply(
            w: *const u8,
            a: *const i8,
            a_stride: usize,
            out: *mut i32,
            out_stride: usize,
        ) {
            let number = |byte: i8| if SIGNED { byte as i32 } else { byte as u8 as i32 };
            for (r, j) in (0..TILE_ROWS).flat_map(|r| (0..TILE_ROWS).map(move |j| (r, j))) {
                // SAFETY: the caller's promise.
                let term = |i: usize| unsafe {
                    let w = w.add(i / 4 * 64 + j * 4 + i % 4).cast::<i8>().read();
                    number(w) * number(a.add(r * a_stride + i).read())
                };
                let dot = (0..ACTIVATION_GROUP).map(term).sum();
                // SAFETY: the caller's promise.
                unsafe { out.byte_add(r * out_stride).add(j).write(dot) };
            }
        }
    }

    static MODEL: Kernels = Kernels {
        name: "amx model",
        matmul_q8: matmul_q8::<Model<true>>,
        matmul_q4g32: matmul_q4::<Model<true>, 32, 32>,
        matmul_q4g64: matmul_q4::<Model<true>, 64, 64>,
        matmul_q4s32: matmul_q4::<Model<true>, 64, 32>,
        ..avx512::KERNELS
    };

    #[test]
    fn a_unit_that_ignores_signs_is_refused() {
        // SAFETY: a model needs nothing of the processor.
        unsafe {
            assert!(multiplies_right::<Model<true>>());
            assert!(!multiplies_right::<Model<false>>());
        }
    }

    /// Everything around the tile instructions: which rows go through tiles, places and strides.
    #[test]
    fn rows_in_tiles_get_the_bits_of_rows_alone() {
        if !avx512::supported() {
            return println!("skipped: no AVX-512");
        }
        let (rows, cols) = (48, 192);
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for kind in Kind::ALL.into_iter().filter(|k| k.is_quantized()) {
            let mut data: Vec<u8> =
                (0..kind.matrix_bytes(rows, cols).unwrap()).map(|_| byte()).collect();
            // Scales are halves all over the place: keep their exponents below infinity.
            data.iter_mut().for_each(|b| *b &= 0xbf);
            let w = Matrix::new(kind, rows, cols, &data).unwrap();
            for n_rows in [1, 15, 16, 17, 31, 33, 48] {
                let x: Vec<f32> = (0..n_rows * cols).map(|_| byte() as i8 as f32).collect();
                for planes in 1..=2 {
                    let groups = n_rows * cols / ACTIVATION_GROUP;
                    let mut codes = vec![0; planes * x.len()];
                    let (mut scales, mut sums) =
                        (vec![0.0; planes * groups], vec![0; planes * groups]);
                    let mut mins = vec![0.0; groups];
                    for (r, x) in x.chunks_exact(cols).enumerate() {
                        let groups = cols / ACTIVATION_GROUP;
                        let part = r * planes * groups..(r + 1) * planes * groups;
                        avx512::KERNELS.quantize(
                            x,
                            &mut codes[r * planes * cols..][..planes * cols],
                            &mut scales[part.clone()],
                            &mut sums[part],
                            &mut mins[r * groups..][..groups],
                        );
                    }
                    let x =
                        QuantizedRows::new(n_rows, planes, cols, (&codes, &scales, &sums, &mins));
                    let bits = |kernels: &Kernels| {
                        let mut out = vec![f32::NAN; n_rows * rows];
                        kernels.matmul(
                            &w,
                            Rows::Quantized(x),
                            &mut Columns::new(&mut out, n_rows, rows),
                        );
                        out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                    };
                    assert!(
                        bits(&MODEL) == bits(&avx512::KERNELS),
                        "{}, {n_rows} rows, {planes} planes",
                        kind.name()
                    );
                }
            }
        }
    }
}
