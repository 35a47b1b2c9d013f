//! AVX-512 with AMX-INT8: 16 rows of activations times the 16 rows of a panel, in tile registers.
//!
//! Start with [`Tiles`]. The 8 lines that 32 inputs unpack to are a tile of weights as it stands, and
//! 32 codes of 16 rows are a tile of activations; their product replaces the products that
//! `avx512.rs` makes a row at a time. Rows that fill no tile, and all else, are the `avx512` table's.
//! Sums are the same integers and go the same way from there, so the two tables give the same bits
//! and a row's result doesn't depend on whether it sat in a tile.
//!
//! Rust's intrinsics for tiles aren't stable yet. Encodings and rules are in Intel's Software
//! Developer's Manual, volume 1, chapter 18. Tested under emulation (`tools/x86-emulated.sh`); no time
//! was measured.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::avx512::{self, Dot, Tile, Vnni, load, q4_tile, q8_tile, unpack};
use crate::rows::{ACTIVATION_GROUP, QuantizedRows, by_planes, in_tiles};
use crate::table::Kernels;

/// Rows in a tile, of weights and of activations.
const TILE_ROWS: usize = 16;
/// Lines of 64 bytes in a tile of weights.
const LINES: usize = ACTIVATION_GROUP / 4;

/// Whether the processor has tiles, Linux lets this process use them, and they multiply right.
pub(crate) fn supported() -> bool {
    const TILE_AND_INT8: u32 = 0b11 << 24;
    avx512::supported()
        && __cpuid(0).eax >= 7
        && __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
        && permitted()
        // SAFETY: the processor has tiles and AVX-512, and the process may use them.
        && unsafe { multiplies_right() }
}

pub(crate) static KERNELS: Kernels = Kernels {
    name: "amx",
    matmul_q8,
    matmul_q4g32: matmul_q4::<32, 32>,
    matmul_q4g64: matmul_q4::<64, 64>,
    matmul_q4s32: matmul_q4::<64, 32>,
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
    // r11. A kernel that doesn't know the request, or whose XCR0 lacks tiles, answers an error.
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

/// One product of tiles against plain arithmetic, with every sign: an emulator or a hypervisor may
/// offer tiles and get them wrong.
#[target_feature(enable = "avx512f")]
unsafe fn multiplies_right() -> bool {
    let code = |i: usize| (i * 37 % 256) as u8 as i8;
    let w: [[i8; 64]; LINES] =
        std::array::from_fn(|line| std::array::from_fn(|i| code(line * 64 + i)));
    let a: [[i8; ACTIVATION_GROUP]; TILE_ROWS] =
        std::array::from_fn(|row| std::array::from_fn(|i| code(row * 101 + i * 3)));
    let mut product = MaybeUninit::<[[i32; TILE_ROWS]; TILE_ROWS]>::uninit();
    // SAFETY: the processor has tiles; the sizes are those of the function's contract.
    let product = unsafe {
        let _tiles = Configured::new();
        multiply(
            w.as_ptr().cast(),
            a.as_ptr().cast(),
            ACTIVATION_GROUP,
            product.as_mut_ptr().cast(),
            64,
        );
        product.assume_init()
    };
    product.iter().zip(&a).all(|(product, a)| {
        product.iter().enumerate().all(|(row, product)| {
            let terms =
                a.iter().enumerate().map(|(i, a)| w[i / 4][row * 4 + i % 4] as i32 * *a as i32);
            *product == terms.sum::<i32>()
        })
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn matmul_q4<const BLOCK: usize, const GROUP: usize>(
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
        let _tiles = Configured::new();
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [16, 8, 4, 2, 1], |row, R| q4_tile::<
            Tiles,
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
unsafe fn matmul_q8(panel: &[u8], x: &QuantizedRows<'_>, out: *mut f32, stride: usize) {
    // SAFETY: the caller sized panel, rows and output.
    unsafe {
        if x.n_rows < TILE_ROWS {
            return avx512::matmul_q8(panel, x, out, stride);
        }
        let _tiles = Configured::new();
        by_planes!(x.planes, |P| in_tiles!(x.n_rows, [16, 8, 4, 2, 1], |row, R| q8_tile::<
            Tiles,
            P,
            R,
        >(
            panel, x, out, stride, row
        )))
    }
}

/// Products of 16 rows in tiles, of fewer as in the `avx512` table. Tiles must be [`Configured`].
struct Tiles;

impl Dot for Tiles {
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
            tile_products([a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]], rows, group)
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
            let sign = _mm512_set1_epi8(-128);
            let codes =
                std::array::from_fn(|line| _mm512_xor_si512(load(lines.add(line * 64)), sign));
            tile_products(codes, rows, group)
        }
    }
}

/// Products of a group of signed codes with 16 rows of each plane.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn tile_products<const PLANES: usize, const R: usize>(
    codes: [__m512i; LINES],
    rows: &Tile<PLANES>,
    group: usize,
) -> [[__m512i; PLANES]; R] {
    const { assert!(R <= TILE_ROWS) };
    let mut dots = MaybeUninit::<[[__m512i; PLANES]; R]>::uninit();
    // SAFETY: there are 16 rows, `PLANES · cols` codes apart and so are their products, `PLANES`
    // vectors apart: each plane writes its vector of every row.
    unsafe {
        for plane in 0..PLANES {
            let a = rows.quads(0, plane, group * ACTIVATION_GROUP).cast();
            let dots = dots.as_mut_ptr().cast::<__m512i>().add(plane);
            multiply(codes.as_ptr().cast(), a, PLANES * rows.cols, dots.cast(), PLANES * 64);
        }
        dots.assume_init()
    }
}

/// `out[r, j] = Σ_i a[r, i] · w[j, i]` over 32 inputs, for 16 rows `r` and 16 rows `j`, all signed:
/// row `r` of `a` is 32 bytes at `r · a_stride`, row `r` of `out` 16 × i32 at `r · out_stride`, and `w`
/// has 4 inputs of all its rows in each of 8 lines of 64 bytes.
///
/// # Safety
/// Tiles must be [`Configured`], and the memory must be there.
#[inline]
unsafe fn multiply(w: *const u8, a: *const i8, a_stride: usize, out: *mut i32, out_stride: usize) {
    // SAFETY: the caller's promises. Nothing stays in a tile that a later call would want.
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

/// This thread's tiles have the shapes that [`multiply`] wants; dropping it gives them back, so that
/// the system needn't save them.
struct Configured;

impl Configured {
    /// # Safety
    /// The processor must have tiles and the process the permission to use them.
    #[inline]
    unsafe fn new() -> Configured {
        /// Palette 1; then, per tile, bytes in a row from byte 16 on and rows from byte 48 on.
        #[repr(C, align(64))]
        struct Shapes {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        const fn first<T: Copy, const N: usize>(first: [T; 3], rest: T) -> [T; N] {
            let mut all = [rest; N];
            all[0] = first[0];
            all[1] = first[1];
            all[2] = first[2];
            all
        }
        static SHAPES: Shapes = Shapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: first([ACTIVATION_GROUP as u16, 64, 64], 0),
            rows: first([TILE_ROWS as u8, LINES as u8, TILE_ROWS as u8], 0),
        };
        // SAFETY: the caller's promise; the instruction reads 64 bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, preserves_flags, readonly));
        }
        Configured
    }
}

impl Drop for Configured {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: there are tiles, or there would be no `Configured`.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}
