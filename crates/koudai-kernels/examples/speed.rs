//! Times each kernel table on weights that stay in cache: `cargo run --release --example speed`.
//!
//! Prints nanoseconds per thousand weights and billions of products per second for a few batch sizes,
//! so that a kernel's compute cost can be told from memory's. Not a test: numbers depend on the machine.

use std::time::Instant;

use koudai_kernels::{Columns, Kernels, Kind, Matrix, QuantizedRows, Rows};

fn main() {
    let (rows, cols) = (256, 896);
    println!("{rows} x {cols}, in cache, one thread");
    println!(
        "{:<8}{:<7}{:>7}{:>6}{:>14}{:>12}",
        "isa", "kind", "planes", "rows", "ns/1000 w", "Gproducts/s"
    );
    for kernels in Kernels::available() {
        for kind in [Kind::Q4G64, Kind::Q4S32, Kind::Q4G32, Kind::Q8] {
            let data = vec![0x11; kind.matrix_bytes(rows, cols).expect("a possible shape")];
            let w = Matrix::new(kind, rows, cols, &data).expect("the right size");
            for planes in [1, 2] {
                for n_rows in [1, 2, 4, 8, 32] {
                    let seconds = time(kernels, &w, planes, n_rows);
                    let weights = (rows * cols) as f64;
                    println!(
                        "{:<8}{:<7}{planes:>7}{n_rows:>6}{:>14.2}{:>12.1}",
                        kernels.name(),
                        kind.name(),
                        seconds / weights * 1e12,
                        weights * (n_rows * planes) as f64 / seconds / 1e9,
                    );
                }
            }
        }
    }
}

/// Seconds of one product, the best of many.
fn time(kernels: &Kernels, w: &Matrix<'_>, planes: usize, n_rows: usize) -> f64 {
    let groups = n_rows * w.cols() / 32;
    let codes = vec![3i8; n_rows * planes * w.cols()];
    let (scales, sums) = (vec![0.01; groups * planes], vec![96; groups * planes]);
    let mins = vec![0.96; groups];
    let x = QuantizedRows::new(n_rows, planes, w.cols(), (&codes, &scales, &sums, &mins));
    let mut out = vec![0.0; n_rows * w.rows()];
    let runs = if kernels.name() == "scalar" { 1 } else { 200 };
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            kernels.matmul(w, Rows::Quantized(x), &mut Columns::new(&mut out, n_rows, w.rows()));
            std::hint::black_box(&out);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}
