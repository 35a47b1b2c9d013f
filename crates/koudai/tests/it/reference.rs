//! A forward pass to compare with: textbook formulas in f64 over dequantized weights, no cache.

use koudai::file::ModelFile;
use koudai::{Activation, Role, TensorId};

type Rows = Vec<Vec<f64>>;

/// Logits after every token.
pub(crate) fn logits(file: &ModelFile, tokens: &[u32]) -> Rows {
    let config = file.config();
    let vector = |layer, role| -> Vec<f64> {
        file.vector(TensorId { layer, role }).iter().map(|x| *x as f64).collect()
    };
    let matrix = |layer, role| -> Rows {
        let m = file.matrix(TensorId { layer, role });
        let mut row = vec![0.0; m.cols()];
        (0..m.rows())
            .map(|r| {
                m.read_row(r, &mut row);
                row.iter().map(|x| *x as f64).collect()
            })
            .collect()
    };
    let times = |m: &Rows, x: &Rows| -> Rows {
        let dot = |w: &Vec<f64>, x: &Vec<f64>| w.iter().zip(x).map(|(w, x)| w * x).sum();
        x.iter().map(|x| m.iter().map(|w| dot(w, x)).collect()).collect()
    };
    let norm = |x: &[f64], w: &[f64]| -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + config.norm_eps as f64).sqrt();
        x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
    };
    let norms = |x: &Rows, w: &[f64]| -> Rows { x.iter().map(|x| norm(x, w)).collect() };
    let add = |x: &mut Rows, y: &Rows| {
        x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
    };

    let embed = matrix(None, Role::Embed);
    let scale = config.embed_scale as f64;
    let mut x: Rows =
        tokens.iter().map(|t| embed[*t as usize].iter().map(|v| v * scale).collect()).collect();
    for (i, l) in config.layers.iter().enumerate() {
        let at = Some(i);
        let h = norms(&x, &vector(at, Role::AttnNorm));
        let project = |weights, bias, norm_role, rotate: bool| -> Rows {
            let mut y = times(&matrix(at, weights), &h);
            for (position, y) in y.iter_mut().enumerate() {
                if l.qkv_bias {
                    y.iter_mut().zip(vector(at, bias)).for_each(|(y, b)| *y += b);
                }
                if !rotate {
                    continue;
                }
                for head in y.chunks_exact_mut(l.head_dim) {
                    if l.qk_norm {
                        let normed = norm(head, &vector(at, norm_role));
                        head.copy_from_slice(&normed);
                    }
                    let half = l.head_dim / 2;
                    for d in 0..half {
                        let (sin, cos) = (position as f64 * config.ropes[l.rope][d]).sin_cos();
                        let (a, b) = (head[d], head[d + half]);
                        (head[d], head[d + half]) = (a * cos - b * sin, a * sin + b * cos);
                    }
                }
            }
            y
        };
        let q = project(Role::AttnQ, Role::AttnQBias, Role::QNorm, true);
        let k = project(Role::AttnK, Role::AttnKBias, Role::KNorm, true);
        let v = project(Role::AttnV, Role::AttnVBias, Role::KNorm, false);
        let attended: Rows = (0..tokens.len())
            .map(|p| {
                let first = l.window.map_or(0, |w| (p + 1).saturating_sub(w));
                let head = |h: usize| -> Vec<f64> {
                    let (a, b) = (h * l.head_dim, h / (l.n_heads / l.n_kv_heads) * l.head_dim);
                    let score = |t: usize| -> f64 {
                        let pairs = (0..l.head_dim).map(|d| q[p][a + d] * k[t][b + d]);
                        pairs.sum::<f64>() * l.attn_scale as f64
                    };
                    let scores: Vec<f64> = (first..=p).map(score).collect();
                    let max = scores.iter().cloned().fold(f64::MIN, f64::max);
                    let e: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                    let sum: f64 = e.iter().sum();
                    let value = |d| (first..=p).map(|t| e[t - first] / sum * v[t][b + d]).sum();
                    (0..l.head_dim).map(value).collect()
                };
                (0..l.n_heads).flat_map(head).collect()
            })
            .collect();
        let mut out = times(&matrix(at, Role::AttnOut), &attended);
        if l.post_norms {
            out = norms(&out, &vector(at, Role::AttnPostNorm));
        }
        add(&mut x, &out);
        let h = norms(&x, &vector(at, Role::FfnNorm));
        let mut gate = times(&matrix(at, Role::FfnGate), &h);
        let up = times(&matrix(at, Role::FfnUp), &h);
        for (g, u) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            let y = match l.activation {
                Activation::Silu => *g / (1.0 + (-*g).exp()),
                Activation::GeluTanh => {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (*g + 0.044715 * g.powi(3));
                    0.5 * *g * (1.0 + inner.tanh())
                }
            };
            *g = y * u;
        }
        let mut out = times(&matrix(at, Role::FfnDown), &gate);
        if l.post_norms {
            out = norms(&out, &vector(at, Role::FfnPostNorm));
        }
        add(&mut x, &out);
    }
    let h = norms(&x, &vector(None, Role::FinalNorm));
    let head = if config.tied_head { embed } else { matrix(None, Role::Head) };
    times(&head, &h)
}
