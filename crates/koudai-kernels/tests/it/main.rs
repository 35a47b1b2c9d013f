//! Every table of this processor against the scalar reference: shapes, tails, misalignment, extremes.

use koudai_kernels::matrix::PanelWriter;
use koudai_kernels::num::{f16_to_f32, f32_to_f16};
use koudai_kernels::{Columns, Kernels, Keys, Kind, Matrix, QuantizedRows, Rows, Values};

/// A small deterministic generator (SplitMix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }
    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

struct Quantized {
    planes: usize,
    cols: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    mins: Vec<f32>,
}

impl Quantized {
    fn new(kernels: &Kernels, x: &[f32], cols: usize, planes: usize) -> Quantized {
        let (codes, scales, sums, mins) = (vec![], vec![], vec![], vec![]);
        let mut q = Quantized { planes, cols, codes, scales, sums, mins };
        for row in x.chunks_exact(cols) {
            let groups = cols / 32;
            let mut codes = vec![0; planes * cols];
            let (mut scales, mut sums) = (vec![0.0; planes * groups], vec![0; planes * groups]);
            let mut mins = vec![0.0; groups];
            kernels.quantize(row, &mut codes, &mut scales, &mut sums, &mut mins);
            q.codes.extend(codes);
            q.scales.extend(scales);
            q.sums.extend(sums);
            q.mins.extend(mins);
        }
        q
    }
    fn rows(&self) -> Rows<'_> {
        let n_rows = self.codes.len() / self.cols / self.planes;
        let parts = (&self.codes[..], &self.scales[..], &self.sums[..], &self.mins[..]);
        Rows::Quantized(QuantizedRows::new(n_rows, self.planes, self.cols, parts))
    }
}

fn random_matrix(
    random: &mut Random,
    kind: Kind,
    rows: usize,
    cols: usize,
    extreme: bool,
) -> Vec<u8> {
    let panel_bytes = kind.panel_bytes(cols).unwrap();
    let mut data = vec![0; kind.matrix_bytes(rows, cols).unwrap()];
    for (p, panel) in data.chunks_exact_mut(panel_bytes).enumerate() {
        let mut panel = PanelWriter::new(kind, cols, panel);
        for lane in 0..(rows - p * 16).min(16) {
            if !kind.is_quantized() {
                panel.put_row(lane, &random.floats(cols));
                continue;
            }
            let top = if kind == Kind::Q8 { 255 } else { 15 };
            for g in 0..cols / kind.group() {
                let q: Vec<u8> = (0..kind.group())
                    .map(|_| match extreme {
                        true => {
                            if random.below(2) == 0 {
                                0
                            } else {
                                top
                            }
                        }
                        false => random.below(top as u64 + 1) as u8,
                    })
                    .collect();
                let d = f32_to_f16(random.unit() * 0.01);
                let m = if kind.zero() == 0 { f32_to_f16(random.unit() * 0.1) } else { 0 };
                panel.put_group(lane, g, d, m, &q);
            }
        }
    }
    data
}

fn multiply(kernels: &Kernels, w: &Matrix<'_>, x: Rows<'_>, n_rows: usize) -> Vec<f32> {
    let stride = w.n_panels() * 16;
    let mut out = vec![f32::NAN; n_rows * stride];
    kernels.matmul(w, x, &mut Columns::new(&mut out, n_rows, stride));
    out
}

#[test]
fn every_table_has_a_name() {
    let names: Vec<_> = Kernels::available().iter().map(|k| k.name()).collect();
    println!("tables: {}", names.join(" "));
    assert_eq!(names[0], "scalar");
    for kernels in Kernels::available() {
        assert!(std::ptr::eq(*kernels, Kernels::named(kernels.name()).unwrap()));
    }
}

#[test]
fn matmul_equals_the_scalar_reference() {
    let scalar = Kernels::named("scalar").unwrap();
    let mut random = Random(1);
    for kind in Kind::ALL {
        let shapes: &[(usize, usize)] = match kind.block() {
            1 => &[(1, 1), (17, 3), (16, 172), (40, 65)],
            32 => &[(16, 32), (33, 96), (48, 576), (5, 2048)],
            _ => &[(16, 64), (33, 192), (48, 576), (5, 2048)],
        };
        for &(rows, cols) in shapes {
            for n_rows in [1, 2, 3, 4, 5, 7, 8, 9, 16, 19] {
                let extreme = n_rows % 2 == 0;
                let data = random_matrix(&mut random, kind, rows, cols, extreme);
                let w = Matrix::new(kind, rows, cols, &data).unwrap();
                let mut x = random.floats(n_rows * cols);
                if extreme {
                    x.iter_mut().for_each(|v| *v = if *v < 0.0 { -3.0 } else { 3.0 });
                }
                let exact = multiply(scalar, &w, Rows::F32(&x), n_rows);
                let planes = if kind.is_quantized() { 2 } else { 0 };
                let quantized: Vec<Quantized> =
                    (1..=planes).map(|p| Quantized::new(scalar, &x, cols, p)).collect();
                let inputs = quantized.iter().map(|q| q.rows());
                for (planes, input) in [Rows::F32(&x)].into_iter().chain(inputs).enumerate() {
                    let want = multiply(scalar, &w, input, n_rows);
                    let size = want.iter().fold(0.0f32, |a, b| a.max(b.abs())).max(1e-3);
                    // One plane has 8 bits, two have 15.
                    let tolerance = [1e-5, 0.03, 3e-4][planes] * size;
                    for (want, exact) in want.iter().zip(&exact) {
                        assert!((want - exact).abs() < tolerance, "{planes}: {want}, not {exact}");
                    }
                    for kernels in Kernels::available() {
                        let got = multiply(kernels, &w, input, n_rows);
                        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                            assert!(
                                (got - want).abs() <= 2e-5 * size,
                                "{} {} {rows}x{cols}, {n_rows} rows, output {i}: {got}, not {want}",
                                kernels.name(),
                                kind.name(),
                            );
                        }
                    }
                }
            }
        }
    }
}

/// q4s32 leaves out minima that are -8·d: written out in q4g32, they give the same bits.
#[test]
fn symmetric_codes_equal_their_minima_written_out() {
    let (rows, cols, n_rows) = (32, 192, 7);
    let mut random = Random(8);
    let mut data = [Kind::Q4S32, Kind::Q4G32].map(|k| vec![0; k.matrix_bytes(rows, cols).unwrap()]);
    let [short, long] = &mut data;
    for panel in 0..rows / 16 {
        let at = |kind: Kind| {
            let bytes = kind.panel_bytes(cols).unwrap();
            panel * bytes..(panel + 1) * bytes
        };
        let mut short = PanelWriter::new(Kind::Q4S32, cols, &mut short[at(Kind::Q4S32)]);
        let mut long = PanelWriter::new(Kind::Q4G32, cols, &mut long[at(Kind::Q4G32)]);
        for (lane, group) in (0..16).flat_map(|lane| (0..cols / 32).map(move |g| (lane, g))) {
            let d = random.unit() * 0.01;
            let q: Vec<u8> = (0..32).map(|_| random.below(16) as u8).collect();
            let d = f32_to_f16(d);
            let m = f32_to_f16(-8.0 * f16_to_f32(d));
            short.put_group(lane, group, d, 0, &q);
            long.put_group(lane, group, d, m, &q);
        }
    }
    let x = random.floats(n_rows * cols);
    let short = Matrix::new(Kind::Q4S32, rows, cols, &data[0]).unwrap();
    let long = Matrix::new(Kind::Q4G32, rows, cols, &data[1]).unwrap();
    for kernels in Kernels::available() {
        let quantized = [1, 2].map(|planes| Quantized::new(kernels, &x, cols, planes));
        for x in [Rows::F32(&x), quantized[0].rows(), quantized[1].rows()] {
            let bits = |w| {
                let out = multiply(kernels, w, x, n_rows);
                out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(&short), bits(&long), "{}", kernels.name());
        }
    }
}

/// Every product of a group at its largest, all of one sign: no partial sum may overflow.
#[test]
fn sums_hold_the_largest_products() {
    let scalar = Kernels::named("scalar").unwrap();
    for kind in Kind::ALL.into_iter().filter(|k| k.is_quantized()) {
        let codes = if kind == Kind::Q8 { [0, 255] } else { [0, 15] };
        for code in codes {
            let (cols, n_rows) = (128, 19);
            let mut data = vec![0; kind.matrix_bytes(16, cols).unwrap()];
            let mut panel = PanelWriter::new(kind, cols, &mut data);
            for (lane, group) in (0..16).flat_map(|l| (0..cols / kind.group()).map(move |g| (l, g)))
            {
                panel.put_group(lane, group, f32_to_f16(1.0), 0, &vec![code; kind.group()]);
            }
            let w = Matrix::new(kind, 16, cols, &data).unwrap();
            for sign in [1.0, -1.0] {
                // Different rows, so that a mixed-up pair would show.
                let x: Vec<f32> =
                    (0..n_rows * cols).map(|i| sign * (1 + i / cols) as f32).collect();
                for planes in 1..=2 {
                    let x = Quantized::new(scalar, &x, cols, planes);
                    let want = multiply(scalar, &w, x.rows(), n_rows);
                    for kernels in Kernels::available() {
                        let got = multiply(kernels, &w, x.rows(), n_rows);
                        for (got, want) in got.iter().zip(&want) {
                            let name = kernels.name();
                            let close = (got - want).abs() <= 1e-5 * want.abs();
                            assert!(close, "{name} {}: {got}, not {want}", kind.name());
                        }
                    }
                }
            }
        }
    }
}

/// Tables that differ in instructions, not in what they add up in which order.
const SAME_BITS: [&[&str]; 3] =
    [&["avx2", "avxvnni"], &["avx512", "amx"], &["neon", "dotprod", "i8mm"]];

#[test]
fn tables_with_the_same_order_give_the_same_bits() {
    let mut random = Random(6);
    for names in SAME_BITS {
        let tables: Vec<_> = names.iter().filter_map(|name| Kernels::named(name)).collect();
        for kind in Kind::ALL.into_iter().filter(|k| k.is_quantized()) {
            for n_rows in [1, 7, 15, 16, 17, 31, 33, 48] {
                let (rows, cols) = (33, 320);
                let data = random_matrix(&mut random, kind, rows, cols, n_rows == 16);
                let w = Matrix::new(kind, rows, cols, &data).unwrap();
                let x = random.floats(n_rows * cols);
                for planes in 1..=2 {
                    let x = Quantized::new(Kernels::available()[0], &x, cols, planes);
                    let bits = |k: &Kernels| {
                        let out = multiply(k, &w, x.rows(), n_rows);
                        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                    };
                    let pairs = tables.iter().zip(tables.iter().skip(1));
                    for (a, b) in pairs {
                        let (names, kind) = ((a.name(), b.name()), kind.name());
                        assert!(bits(a) == bits(b), "{names:?} {kind}, {n_rows} rows");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    let mut random = Random(2);
    for kernels in Kernels::available() {
        for kind in Kind::ALL {
            let (rows, cols) = (50, 320);
            let data = random_matrix(&mut random, kind, rows, cols, false);
            let w = Matrix::new(kind, rows, cols, &data).unwrap();
            let x = random.floats(19 * cols);
            for planes in 0..3 {
                if planes > 0 && !kind.is_quantized() {
                    continue;
                }
                let run = |x: &[f32]| {
                    let n = x.len() / cols;
                    if planes == 0 {
                        return multiply(kernels, &w, Rows::F32(x), n);
                    }
                    multiply(kernels, &w, Quantized::new(kernels, x, cols, planes).rows(), n)
                };
                let together = run(&x);
                let alone: Vec<f32> = x.chunks(cols).flat_map(run).collect();
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&together), bits(&alone), "{} {}", kernels.name(), kind.name());
            }
        }
    }
}

#[test]
fn element_wise_work_has_the_same_bits_everywhere() {
    let scalar = Kernels::named("scalar").unwrap();
    let mut random = Random(3);
    for n in [2, 14, 32, 64, 100, 576, 896] {
        let x: Vec<f32> = random.floats(n).iter().map(|v| v * 20.0).collect();
        let y = random.floats(n);
        for kernels in Kernels::available() {
            let same = |f: &dyn Fn(&Kernels) -> Vec<f32>| {
                let bits = |v: Vec<f32>| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(f(kernels)), bits(f(scalar)), "{} n {n}", kernels.name());
            };
            let changed = |f: &dyn Fn(&mut [f32])| {
                let mut x = x.clone();
                f(&mut x);
                x
            };
            same(&|k| {
                let mut out = vec![0.0; n];
                k.rms_norm(&x, &y, 1e-5, &mut out);
                out
            });
            same(&|k| changed(&|x| k.rope(x, &y[..n / 2], &y[n / 2..])));
            same(&|k| changed(&|x| k.silu_mul(x, &y)));
            same(&|k| changed(&|x| k.gelu_mul(x, &y)));
            same(&|k| changed(&|x| k.softmax(x)));
            if n % 32 == 0 {
                let (a, b) = (Quantized::new(kernels, &x, n, 2), Quantized::new(scalar, &x, n, 2));
                assert_eq!(a.codes, b.codes);
                assert_eq!(a.sums, b.sums);
                assert_eq!((a.scales, a.mins), (b.scales, b.mins));
            }
        }
    }
}

#[test]
fn quantized_rows_are_within_half_a_step() {
    let mut random = Random(4);
    let mut x = random.floats(320);
    x[32..64].fill(0.0);
    x[64..96].iter_mut().for_each(|v| *v *= 1e-35);
    x[96..128].iter_mut().for_each(|v| *v *= 1e30);
    for kernels in Kernels::available() {
        let q = Quantized::new(kernels, &x, 320, 1);
        for (i, (x, code)) in x.iter().zip(&q.codes).enumerate() {
            let scale = q.scales[i / 32];
            assert!((x - scale * *code as f32).abs() <= scale * 0.501 + 1e-30, "value {i}");
        }
        assert_eq!(q.sums[0], q.codes[..32].iter().map(|c| *c as i32).sum::<i32>());
    }
    // Nonsense in, no crash out.
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX].repeat(8);
    for kernels in Kernels::available() {
        Quantized::new(kernels, &odd, 32, 2);
    }
}

#[test]
fn attention_equals_the_scalar_reference() {
    let scalar = Kernels::named("scalar").unwrap();
    let mut random = Random(5);
    for head_dim in [2, 8, 20, 64, 80, 256] {
        for n_heads in [1, 2, 3, 7, 8, 9] {
            let n_positions = 80;
            let size = n_positions * head_dim;
            let halves: Vec<u16> = random.floats(size).iter().map(|v| f32_to_f16(*v)).collect();
            let bytes: Vec<i8> = (0..size).map(|_| random.bits() as i8).collect();
            let scales: Vec<f32> = random.floats(n_positions).iter().map(|v| v * 0.01).collect();
            let q = random.floats(n_heads * head_dim);
            let weights = random.floats(n_heads * 40);
            for (keys, values) in [
                (Keys::F16(&halves), Values::F16(&halves)),
                (Keys::Q8(&bytes, &scales), Values::Q8(&bytes, &scales)),
            ] {
                let run = |k: &Kernels| {
                    let mut scores = vec![0.0; n_heads * 48];
                    k.scores(&q, head_dim, keys, 1..4, &mut scores);
                    let mut out = vec![0.0; n_heads * head_dim];
                    k.values(&weights, values, 3..42, head_dim, &mut out);
                    (scores, out)
                };
                let want = run(scalar);
                for kernels in Kernels::available() {
                    let got = run(kernels);
                    let pairs = got.0.iter().zip(&want.0).chain(got.1.iter().zip(&want.1));
                    for (got, want) in pairs {
                        assert!((got - want).abs() < 1e-4, "{}: {got} {want}", kernels.name());
                    }
                    // Heads together give the bits of each head alone.
                    for h in 0..n_heads {
                        let mut scores = vec![0.0; 48];
                        let head = &q[h * head_dim..][..head_dim];
                        kernels.scores(head, head_dim, keys, 1..4, &mut scores);
                        assert_eq!(scores, got.0[h * 48..][..48]);
                        let mut out = vec![0.0; head_dim];
                        kernels.values(&weights[h * 40..][..40], values, 3..42, head_dim, &mut out);
                        assert_eq!(out, got.1[h * head_dim..][..head_dim]);
                    }
                }
            }
        }
    }
}
