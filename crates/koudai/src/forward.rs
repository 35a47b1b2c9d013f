//! The forward pass: tokens of one or more sequences in, hidden rows and logits out.
//!
//! Start with [`Workspace::layer`], which reads in the order of computation. A row's result doesn't
//! depend on the number of threads, on the other rows, nor on how a prompt was cut into calls:
//! threads split outputs, every sum has one order, and no branch depends on the number of rows.

use std::ops::Range;

use koudai_kernels::{ACTIVATION_GROUP, Columns, Kernels, Matrix, PANEL_ROWS, QuantizedRows, Rows};

use crate::config::{Activation, Config, LayerConfig, MAX_HEAD_DIM, Role, TensorId};
use crate::kv::{BLOCK, KvCache};
use crate::pool::{MatmulJob, Pool};
use crate::weights::{LayerWeights, Weights};
use crate::{Error, Precision};

/// Rows that one pass handles at most; longer prompts come in chunks of this.
pub(crate) const MAX_ROWS: usize = 128;
/// Queries that share one read of a head's keys in attention.
const MAX_QUERIES: usize = 16;

/// New tokens of one sequence, and where its past lies.
pub(crate) struct Segment<'a> {
    pub(crate) cache: &'a mut KvCache,
    /// Positions already in the cache.
    pub(crate) start: usize,
    pub(crate) tokens: &'a [u32],
}

/// How a pass computes, and who watches.
pub(crate) struct Pass<'a> {
    pub(crate) precision: Precision,
    /// Asked before each layer, with its index; an error ends the pass.
    pub(crate) before_layer: &'a dyn Fn(usize) -> Result<(), Error>,
    pub(crate) observer: Option<&'a mut Observer<'a>>,
}

/// Is shown the inputs of matrices, a row at a time: the matrix (of several with the same input the
/// first: queries for keys and values, gate for up) and `cols` values.
pub type Observer<'a> = dyn FnMut(TensorId, &[f32]) + 'a;

impl Pass<'_> {
    fn observe(&mut self, layer: Option<usize>, role: Role, x: &Buffer, n_rows: usize) {
        if let Some(observer) = &mut self.observer {
            (0..n_rows).for_each(|r| observer(TensorId { layer, role }, x.row(r)));
        }
    }
}

/// Threads and buffers of the engine, used by one forward pass at a time.
pub(crate) struct Workspace {
    kernels: &'static Kernels,
    pool: Pool,
    rows: RowBuffers,
    attention: Vec<AttentionBuffers>,
}

/// Activations of up to [`MAX_ROWS`] rows.
#[derive(Default)]
struct RowBuffers {
    n_rows: usize,
    residual: Buffer,
    normed: Buffer,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    attended: Buffer,
    gate: Buffer,
    up: Buffer,
    out: Buffer,
    logits: Buffer,
    input: Input,
    /// Cosines and sines per row, for each rotary embedding.
    angles: Vec<Buffer>,
    positions: Vec<usize>,
    /// Results of attention, task after task.
    task_out: Vec<f32>,
}

impl RowBuffers {
    /// normed[i] = rms_norm(residual[source(i)]) · w for `n` rows, which become the input.
    fn norm_input(
        &mut self,
        pool: &mut Pool,
        kernels: &Kernels,
        form: Form,
        n: usize,
        (w, eps): (&[f32], f32),
        source: impl Fn(usize) -> usize + Sync,
    ) {
        let RowBuffers { residual, normed, input, .. } = self;
        input.fill(pool, kernels, normed, n, form, |i, row| {
            kernels.rms_norm(residual.row(source(i)), w, eps, row);
        });
    }
}

/// Floats, `(n_rows, width)`, in rows of `stride` ≥ width, a multiple of 16.
#[derive(Default)]
struct Buffer {
    data: Vec<f32>,
    width: usize,
    stride: usize,
}

impl Buffer {
    fn resize(&mut self, n_rows: usize, width: usize) {
        (self.width, self.stride) = (width, width.next_multiple_of(PANEL_ROWS));
        self.data.resize(n_rows * self.stride, 0.0);
    }
    fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.stride..][..self.width]
    }
    fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.stride..][..self.width]
    }
    fn columns(&mut self, n_rows: usize) -> Columns<'_> {
        Columns::new(&mut self.data, n_rows, self.stride)
    }
}

/// The input of a matmul in the forms that its weights need.
#[derive(Default)]
struct Input {
    form: Form,
    n_rows: usize,
    cols: usize,
    /// The rows in f32 without padding, for weights that aren't quantized.
    exact: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    mins: Vec<f32>,
}

/// In which forms an input is needed.
#[derive(Clone, Copy, Default)]
struct Form {
    exact: bool,
    /// Planes of 8-bit codes; 0 for none.
    planes: usize,
}

impl Form {
    fn of(weights: &[Matrix<'_>], precision: Precision) -> Form {
        let rounded = |w: &Matrix<'_>| precision != Precision::F32 && w.kind().is_quantized();
        let planes = match precision {
            Precision::Auto => 2,
            Precision::Int8 => 1,
            Precision::F32 => 0,
        };
        Form {
            exact: weights.iter().any(|w| !rounded(w)),
            planes: if weights.iter().any(rounded) { planes } else { 0 },
        }
    }
}

impl Input {
    /// Lets `make` write each of the first `n_rows` rows of `x`, given its index, and takes the row in
    /// the forms asked for while it is in the cache.
    fn fill(
        &mut self,
        pool: &mut Pool,
        kernels: &Kernels,
        x: &mut Buffer,
        n_rows: usize,
        form: Form,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let (cols, size) = (x.width, rows_per_task(pool, n_rows));
        (self.form, self.n_rows, self.cols) = (form, n_rows, cols);
        let rows = x.data.chunks_exact_mut(x.stride).take(n_rows).map(|row| &mut row[..cols]);
        if form.planes == 0 {
            let mut rows: Vec<_> = rows.collect();
            pool.for_each_chunk(&mut rows, size, |i, rows| {
                rows.iter_mut().enumerate().for_each(|(r, row)| make(i * size + r, row));
            });
        } else {
            let (groups, planes) = (cols / ACTIVATION_GROUP, form.planes);
            self.codes.resize(n_rows * planes * cols, 0);
            self.scales.resize(n_rows * planes * groups, 0.0);
            self.sums.resize(n_rows * planes * groups, 0);
            self.mins.resize(n_rows * groups, 0.0);
            let codes = self.codes.chunks_exact_mut(planes * cols);
            let scales = self.scales.chunks_exact_mut(planes * groups);
            let sums = self.sums.chunks_exact_mut(planes * groups);
            let mins = self.mins.chunks_exact_mut(groups);
            let mut rows: Vec<_> = rows.zip(codes).zip(scales).zip(sums).zip(mins).collect();
            pool.for_each_chunk(&mut rows, size, |i, rows| {
                for (r, ((((row, codes), scales), sums), mins)) in rows.iter_mut().enumerate() {
                    make(i * size + r, row);
                    kernels.quantize(row, codes, scales, sums, mins);
                }
            });
        }
        if form.exact {
            self.exact.resize(n_rows * cols, 0.0);
            for (r, row) in self.exact.chunks_exact_mut(cols).enumerate() {
                row.copy_from_slice(x.row(r));
            }
        }
    }

    fn rows(&self, weights: &Matrix<'_>, precision: Precision) -> Rows<'_> {
        if precision == Precision::F32 || !weights.kind().is_quantized() {
            return Rows::F32(&self.exact[..self.n_rows * self.cols]);
        }
        let (planes, n_rows) = (self.form.planes, self.n_rows);
        let groups = n_rows * (self.cols / ACTIVATION_GROUP);
        let parts = (
            &self.codes[..n_rows * planes * self.cols],
            &self.scales[..groups * planes],
            &self.sums[..groups * planes],
            &self.mins[..groups],
        );
        Rows::Quantized(QuantizedRows::new(n_rows, planes, self.cols, parts))
    }
}

/// What one thread needs for a few queries of one head.
#[derive(Default)]
struct AttentionBuffers {
    queries: Vec<f32>,
    scores: Vec<f32>,
}

impl Workspace {
    pub(crate) fn new(kernels: &'static Kernels, n_threads: usize) -> std::io::Result<Workspace> {
        let pool = Pool::new(n_threads)?;
        let attention = (0..pool.n_threads()).map(|_| AttentionBuffers::default()).collect();
        Ok(Workspace { kernels, pool, rows: RowBuffers::default(), attention })
    }

    /// Bytes of buffers that passes of up to `n_rows` rows, `n_logits` of them with logits, over up
    /// to `context` positions will hold.
    pub(crate) fn bytes(
        config: &Config,
        n_rows: usize,
        n_logits: usize,
        context: usize,
        n_threads: usize,
    ) -> usize {
        let wide = |f: &dyn Fn(&LayerConfig) -> usize| {
            config.layers.iter().map(f).max().unwrap_or(0).next_multiple_of(PANEL_ROWS)
        };
        let dim = config.dim.next_multiple_of(PANEL_ROWS);
        let q = wide(&|l| l.n_heads * l.head_dim);
        let kv = wide(&|l| l.n_kv_heads * l.head_dim);
        let ffn = wide(&|l| l.ffn_dim);
        let input = dim.max(q).max(ffn);
        let angles: usize = config.ropes.iter().map(|r| r.len() * 2 + PANEL_ROWS).sum();
        let row = 4 * (3 * dim + 3 * q + 2 * kv + 2 * ffn + angles) + input * (4 + 4);
        let head_dim = wide(&|l| l.head_dim);
        let queries = MAX_QUERIES.max(wide(&|l| l.n_heads / l.n_kv_heads));
        let attention = 4 * queries * (2 * head_dim + context.next_multiple_of(BLOCK) + BLOCK);
        n_rows.min(MAX_ROWS) * row
            + n_logits * 4 * config.vocab_size.next_multiple_of(PANEL_ROWS)
            + n_threads * attention
    }

    /// Runs all layers over the new tokens of every segment and stores their keys and values.
    /// Hidden rows stay in the workspace, in order, for [`Workspace::logits`].
    ///
    /// On `Err` the new positions hold nothing of use.
    pub(crate) fn forward(
        &mut self,
        weights: &Weights,
        batch: &mut [Segment<'_>],
        pass: &mut Pass<'_>,
    ) -> Result<(), Error> {
        let config = weights.config();
        self.embed(weights, batch);
        for (index, layer) in config.layers.iter().enumerate() {
            (pass.before_layer)(index)?;
            self.layer(config, layer, &weights.layers[index], index, batch, pass);
        }
        Ok(())
    }

    /// One transformer layer, in reading order.
    fn layer(
        &mut self,
        config: &Config,
        layer: &LayerConfig,
        w: &LayerWeights,
        index: usize,
        batch: &mut [Segment<'_>],
        pass: &mut Pass<'_>,
    ) {
        let (kernels, eps, precision) = (self.kernels, config.norm_eps, pass.precision);
        let n_rows = self.rows.n_rows;

        // Attention.
        let rows = &mut self.rows;
        rows.q.resize(n_rows, layer.n_heads * layer.head_dim);
        rows.k.resize(n_rows, layer.n_kv_heads * layer.head_dim);
        rows.v.resize(n_rows, layer.n_kv_heads * layer.head_dim);
        let (q, k, v) = (w.attn_q.view(), w.attn_k.view(), w.attn_v.view());
        let form = Form::of(&[q, k, v], precision);
        rows.norm_input(&mut self.pool, kernels, form, n_rows, (&w.attn_norm, eps), |r| r);
        pass.observe(Some(index), Role::AttnQ, &rows.normed, n_rows);
        let x = &rows.input;
        self.pool.matmul(
            kernels,
            &mut [
                MatmulJob { rows: x.rows(&q, precision), weights: q, out: rows.q.columns(n_rows) },
                MatmulJob { rows: x.rows(&k, precision), weights: k, out: rows.k.columns(n_rows) },
                MatmulJob { rows: x.rows(&v, precision), weights: v, out: rows.v.columns(n_rows) },
            ],
        );
        self.positions_and_cache(config, layer, w, index, batch);
        self.attend(layer, index, batch);
        let rows = &mut self.rows;
        rows.out.resize(n_rows, config.dim);
        let out = w.attn_out.view();
        pass.observe(Some(index), Role::AttnOut, &rows.attended, n_rows);
        let form = Form::of(&[out], precision);
        rows.input.fill(&mut self.pool, kernels, &mut rows.attended, n_rows, form, |_, _| ());
        let x = rows.input.rows(&out, precision);
        let job = MatmulJob { weights: out, rows: x, out: rows.out.columns(n_rows) };
        self.pool.matmul(kernels, &mut [job]);
        self.add(w.attn_post_norm.as_deref(), eps);

        // Feed-forward.
        let rows = &mut self.rows;
        rows.gate.resize(n_rows, layer.ffn_dim);
        rows.up.resize(n_rows, layer.ffn_dim);
        let (gate, up) = (w.ffn_gate.view(), w.ffn_up.view());
        let form = Form::of(&[gate, up], precision);
        rows.norm_input(&mut self.pool, kernels, form, n_rows, (&w.ffn_norm, eps), |r| r);
        pass.observe(Some(index), Role::FfnGate, &rows.normed, n_rows);
        let x = &rows.input;
        let (gate_out, up_out) = (rows.gate.columns(n_rows), rows.up.columns(n_rows));
        self.pool.matmul_pair(
            kernels,
            MatmulJob { rows: x.rows(&gate, precision), weights: gate, out: gate_out },
            MatmulJob { rows: x.rows(&up, precision), weights: up, out: up_out },
            match layer.activation {
                Activation::Silu => Kernels::silu_mul,
                Activation::GeluTanh => Kernels::gelu_mul,
            },
        );
        let down = w.ffn_down.view();
        pass.observe(Some(index), Role::FfnDown, &rows.gate, n_rows);
        let form = Form::of(&[down], precision);
        rows.input.fill(&mut self.pool, kernels, &mut rows.gate, n_rows, form, |_, _| ());
        let x = rows.input.rows(&down, precision);
        let job = MatmulJob { weights: down, rows: x, out: rows.out.columns(n_rows) };
        self.pool.matmul(kernels, &mut [job]);
        self.add(w.ffn_post_norm.as_deref(), eps);
    }

    /// Puts embedding rows into the residual stream and works out each row's rotary angles.
    fn embed(&mut self, weights: &Weights, batch: &[Segment<'_>]) {
        let config = weights.config();
        let rows = &mut self.rows;
        rows.n_rows = batch.iter().map(|s| s.tokens.len()).sum();
        rows.residual.resize(rows.n_rows, config.dim);
        rows.normed.resize(rows.n_rows, config.dim);
        let embed = weights.embed.view();
        let tokens = batch.iter().flat_map(|s| s.tokens);
        for (r, &token) in tokens.enumerate() {
            let row = rows.residual.row_mut(r);
            embed.read_row(token as usize, row);
            if config.embed_scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= config.embed_scale);
            }
        }
        rows.positions.clear();
        rows.positions.extend(batch.iter().flat_map(|s| s.start..s.start + s.tokens.len()));
        rows.angles.resize_with(config.ropes.len(), Buffer::default);
        for (rope, angles) in config.ropes.iter().zip(&mut rows.angles) {
            angles.resize(rows.n_rows, rope.len() * 2);
            for (r, &position) in rows.positions.iter().enumerate() {
                let (cos, sin) = angles.row_mut(r).split_at_mut(rope.len());
                for ((frequency, cos), sin) in rope.iter().zip(cos).zip(sin) {
                    let (s, c) = (position as f64 * frequency).sin_cos();
                    (*cos, *sin) = (c as f32, s as f32);
                }
            }
        }
    }

    /// Biases, per-head norms and rotary embedding of queries and keys; then keys and values go into
    /// the cache.
    fn positions_and_cache(
        &mut self,
        config: &Config,
        layer: &LayerConfig,
        w: &LayerWeights,
        index: usize,
        batch: &mut [Segment<'_>],
    ) {
        let (kernels, eps, dim) = (self.kernels, config.norm_eps, layer.head_dim);
        let RowBuffers { n_rows, q, k, v, angles, .. } = &mut self.rows;
        let angles = &angles[layer.rope];
        let finish = |r: usize, x: &mut [f32], bias: Option<&[f32]>, norm: Option<&[f32]>| {
            if let Some(bias) = bias {
                add(x, bias);
            }
            let (cos, sin) = angles.row(r).split_at(dim / 2);
            for head in x.chunks_exact_mut(dim) {
                if let Some(norm) = norm {
                    let mut normed = [0.0; MAX_HEAD_DIM];
                    kernels.rms_norm(head, norm, eps, &mut normed[..dim]);
                    head.copy_from_slice(&normed[..dim]);
                }
                kernels.rope(head, cos, sin);
            }
        };
        let (bias, width) = (w.qkv_bias.as_ref(), q.width);
        let (stride, size) = (q.stride, rows_per_task(&self.pool, *n_rows));
        self.pool.for_each_chunk(&mut q.data[..*n_rows * stride], size * stride, |i, q| {
            for (r, q) in q.chunks_exact_mut(stride).enumerate() {
                let bias = bias.map(|b| &b.q[..]);
                finish(i * size + r, &mut q[..width], bias, w.q_norm.as_deref());
            }
        });
        for r in 0..*n_rows {
            finish(r, k.row_mut(r), bias.map(|b| &b.k[..]), w.k_norm.as_deref());
            if let Some(bias) = bias {
                add(v.row_mut(r), &bias.v);
            }
        }
        let mut r = 0;
        for segment in batch {
            for position in segment.start..segment.start + segment.tokens.len() {
                segment.cache.store(index, position, k.row(r), v.row(r));
                r += 1;
            }
        }
    }

    /// Grouped-query attention: softmax(q · keys) · values for every row and head.
    fn attend(&mut self, layer: &LayerConfig, index: usize, batch: &[Segment<'_>]) {
        let kernels = self.kernels;
        let dim = layer.head_dim;
        let group = layer.n_heads / layer.n_kv_heads;
        let RowBuffers { n_rows, q, attended, task_out, .. } = &mut self.rows;
        attended.resize(*n_rows, layer.n_heads * dim);
        task_out.resize(*n_rows * layer.n_heads * dim, 0.0);
        // A task is some rows of one segment for some of the heads that share keys. How many of each
        // only decides how often keys are read, never a result.
        let n_threads = self.pool.n_threads();
        let heads_per_task = if *n_rows * layer.n_kv_heads >= n_threads {
            group
        } else {
            group.div_ceil(n_threads.div_ceil(*n_rows * layer.n_kv_heads))
        };
        let most_rows = (MAX_QUERIES / heads_per_task).max(1);
        let mut tasks = Vec::new();
        let (mut first_row, mut left) = (0, &mut task_out[..]);
        for segment in batch {
            let n = segment.tokens.len();
            for start in (0..n).step_by(most_rows) {
                for kv_head in 0..layer.n_kv_heads {
                    let (first, end) = (kv_head * group, (kv_head + 1) * group);
                    for head in (first..end).step_by(heads_per_task) {
                        let heads = head..end.min(head + heads_per_task);
                        let rows = first_row + start..first_row + n.min(start + most_rows);
                        let (out, rest) = left.split_at_mut(rows.len() * heads.len() * dim);
                        left = rest;
                        tasks.push(AttentionTask {
                            cache: &*segment.cache,
                            kv_head,
                            heads,
                            rows,
                            position: segment.start + start,
                            out,
                        });
                    }
                }
            }
            first_row += n;
        }
        let q = &*q;
        self.pool.for_each_chunk_with(&mut self.attention, &mut tasks, 1, |buffers, _, task| {
            task.iter_mut().for_each(|task| task.run(kernels, layer, index, q, buffers));
        });
        for task in tasks {
            let columns = task.heads.start * dim..task.heads.end * dim;
            for (r, out) in task.rows.zip(task.out.chunks_exact(columns.len())) {
                attended.row_mut(r)[columns.clone()].copy_from_slice(out);
            }
        }
    }

    /// Shows an observer the inputs of the head for all of the last pass's rows.
    pub(crate) fn observe_head(&mut self, weights: &Weights, pass: &mut Pass<'_>) {
        let RowBuffers { n_rows, residual, normed, .. } = &mut self.rows;
        let (w, eps) = (&weights.final_norm, weights.config().norm_eps);
        norm(&mut self.pool, self.kernels, residual, w, eps, normed, *n_rows);
        pass.observe(None, Role::Head, normed, *n_rows);
    }

    /// Logits of some of the last pass's rows, in the order of `rows`.
    pub(crate) fn logits(
        &mut self,
        weights: &Weights,
        rows: &[usize],
        precision: Precision,
    ) -> impl Iterator<Item = &[f32]> {
        let (config, kernels, n) = (weights.config(), self.kernels, rows.len());
        let buffers = &mut self.rows;
        assert!(n <= buffers.n_rows && rows.iter().all(|r| *r < buffers.n_rows));
        let head = weights.head().view();
        let form = Form::of(&[head], precision);
        let norm = (&weights.final_norm[..], config.norm_eps);
        buffers.norm_input(&mut self.pool, kernels, form, n, norm, |i| rows[i]);
        buffers.logits.resize(n, config.vocab_size);
        let x = buffers.input.rows(&head, precision);
        let job = MatmulJob { weights: head, rows: x, out: buffers.logits.columns(n) };
        self.pool.matmul(kernels, &mut [job]);
        let logits = &self.rows.logits;
        (0..n).map(|r| logits.row(r))
    }
}

/// A few rows of one sequence, and some of the query heads that share a key head.
struct AttentionTask<'a> {
    cache: &'a KvCache,
    kv_head: usize,
    heads: Range<usize>,
    rows: Range<usize>,
    /// Position of the first row.
    position: usize,
    /// `(rows, heads, head_dim)`
    out: &'a mut [f32],
}

impl AttentionTask<'_> {
    /// out = softmax(q · keys) · values
    fn run(
        &mut self,
        kernels: &Kernels,
        layer: &LayerConfig,
        index: usize,
        q: &Buffer,
        buffers: &mut AttentionBuffers,
    ) {
        let dim = layer.head_dim;
        let n = self.rows.len() * self.heads.len();
        let last = self.position + self.rows.len() - 1;
        let first_seen = |position: usize| match layer.window {
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        };
        let blocks = first_seen(self.position) / BLOCK..last / BLOCK + 1;
        let (start, stride) = (blocks.start * BLOCK, blocks.len() * BLOCK);
        let AttentionBuffers { queries, scores } = buffers;
        queries.resize(n * dim, 0.0);
        scores.resize(n * stride, 0.0);

        let columns = self.heads.start * dim..self.heads.end * dim;
        for (r, queries) in self.rows.clone().zip(queries.chunks_exact_mut(columns.len())) {
            for (to, from) in queries.iter_mut().zip(&q.row(r)[columns.clone()]) {
                *to = from * layer.attn_scale;
            }
        }
        kernels.scores(queries, dim, self.cache.keys(index, self.kv_head), blocks, scores);
        for (h, scores) in scores.chunks_exact_mut(stride).enumerate() {
            let position = self.position + h / self.heads.len();
            let (low, high) = (first_seen(position) - start, position + 1 - start);
            // What this row doesn't see but a row beside it does weighs nothing: adding 0 · value
            // leaves every sum as it is.
            scores[..low].fill(0.0);
            kernels.softmax(&mut scores[low..high]);
            scores[high..].fill(0.0);
        }
        let values = self.cache.values(index, self.kv_head);
        kernels.values(scores, values, start..last + 1, dim, self.out);
    }
}

/// Rows that one task takes in work that goes row by row; few rows stay together.
fn rows_per_task(pool: &Pool, n_rows: usize) -> usize {
    n_rows.div_ceil(pool.n_threads() * 4).max(4)
}

impl Workspace {
    /// residual += out, through a norm if the layer has one after the block.
    fn add(&mut self, post_norm: Option<&[f32]>, eps: f32) {
        let RowBuffers { n_rows, residual, normed, out, .. } = &mut self.rows;
        let mut source = &*out;
        if let Some(w) = post_norm {
            norm(&mut self.pool, self.kernels, out, w, eps, normed, *n_rows);
            source = normed;
        }
        let (stride, width) = (residual.stride, residual.width);
        let size = rows_per_task(&self.pool, *n_rows);
        let residual = &mut residual.data[..*n_rows * stride];
        self.pool.for_each_chunk(residual, size * stride, |i, rows| {
            for (r, row) in rows.chunks_exact_mut(stride).enumerate() {
                add(&mut row[..width], source.row(i * size + r));
            }
        });
    }
}

fn norm(
    pool: &mut Pool,
    kernels: &Kernels,
    x: &Buffer,
    w: &[f32],
    eps: f32,
    out: &mut Buffer,
    n_rows: usize,
) {
    let (stride, width) = (out.stride, out.width);
    let size = rows_per_task(pool, n_rows);
    pool.for_each_chunk(&mut out.data[..n_rows * stride], size * stride, |i, rows| {
        for (r, row) in rows.chunks_exact_mut(stride).enumerate() {
            kernels.rms_norm(x.row(i * size + r), w, eps, &mut row[..width]);
        }
    });
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
