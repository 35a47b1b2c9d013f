//! What each tensor becomes, and how it gets there: one panel of 16 rows at a time.
//!
//! [`plan`] decides how a tensor is stored, looking at its scales where that decides whether codes
//! can be kept exactly. [`encode`] produces the bytes and measures, on the bytes, what was lost.
//! Neither knows names, formats or files. Memory is a few panels, whatever the model's size.

use koudai::{Shape, TensorId};
use koudai_kernels::num::{f16_to_f32, f32_to_f16};
use koudai_kernels::{Kind, Matrix, PANEL_ROWS, PanelWriter};

use crate::arch::{Mapped, Transform};
use crate::calibrate::Calibration;
use crate::dequant;
use crate::error::Error;
use crate::quantize::{self, Grid};
pub use crate::source::{Source, Stored};

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Quant {
    /// As they are, where that is possible: codes are kept bit for bit, the rest goes to the nearest
    /// kind.
    #[default]
    Keep,
    /// 4 bits in groups of 64.
    Q4G64,
    /// 4 bits in groups of 32.
    Q4G32,
    /// 8 bits.
    Q8,
    /// Half floats.
    F16,
}

impl Quant {
    /// All policies.
    pub const ALL: [Quant; 5] = [Quant::Keep, Quant::Q4G64, Quant::Q4G32, Quant::Q8, Quant::F16];

    /// Its name, as given on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Quant::Keep => "keep",
            Quant::Q4G64 => "q4g64",
            Quant::Q4G32 => "q4g32",
            Quant::Q8 => "q8",
            Quant::F16 => "f16",
        }
    }

    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<Quant> {
        Quant::ALL.into_iter().find(|q| q.name() == name)
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Quant::Keep => None,
            Quant::Q4G64 => Some(Kind::Q4G64),
            Quant::Q4G32 => Some(Kind::Q4G32),
            Quant::Q8 => Some(Kind::Q8),
            Quant::F16 => Some(Kind::F16),
        }
    }
}

/// How the codes of quantized matrices are chosen.
#[derive(Clone, Debug, Default)]
pub enum Mode {
    /// To nearest, between the smallest and the largest weight of each group.
    MinMax,
    /// On the grid with the least squared error in each group.
    #[default]
    Search,
    /// The same, with errors weighed by the inputs that a text gave.
    Calibrate(Calibration),
}

impl Mode {
    /// Its name, as given on a command line.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::MinMax => "minmax",
            Mode::Search => "search",
            Mode::Calibrate(_) => "calibrate",
        }
    }

    /// What it means for one matrix.
    pub(crate) fn method(&self, id: TensorId) -> Method<'_> {
        match self {
            Mode::MinMax => Method::MinMax,
            Mode::Search => Method::Search(None),
            Mode::Calibrate(calibration) => Method::Search(calibration.importance(id)),
        }
    }
}

/// How one tensor is converted.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Which tensor.
    pub id: TensorId,
    /// Its shape.
    pub shape: Shape,
    /// Its name in the source.
    pub name: String,
    /// Its values.
    pub source: Stored<'a>,
    /// What it becomes.
    pub kind: Kind,
    /// Why it isn't what was asked for, if it isn't.
    pub note: Option<String>,
    transform: Transform,
    /// Codes are carried over instead of chosen anew.
    keeps_codes: bool,
}

/// What one tensor became.
#[derive(Clone, Debug)]
pub struct TensorReport {
    /// Which tensor.
    pub id: TensorId,
    /// Its name in the source.
    pub source: String,
    /// How the source stored it.
    pub from: &'static str,
    /// How it is stored now.
    pub to: Kind,
    /// Weights.
    pub weights: u64,
    /// Bytes now.
    pub bytes: u64,
    /// Every value is what it was.
    pub exact: bool,
    /// Largest error over largest magnitude.
    pub max_error: f64,
    /// Root mean square error over root mean square value.
    pub rms_error: f64,
    /// Why it isn't what was asked for, if it isn't.
    pub note: Option<String>,
    pub(crate) loss: Loss,
}

/// Sums from which errors are reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    pub(crate) largest_error: f64,
    pub(crate) largest: f64,
    pub(crate) squared_error: f64,
    pub(crate) squared: f64,
}

impl Loss {
    fn add_row(&mut self, before: &[f32], after: &[f32]) {
        for (a, b) in before.iter().zip(after) {
            let (a, e) = (*a as f64, (*a - *b) as f64);
            self.largest_error = self.largest_error.max(e.abs());
            self.largest = self.largest.max(a.abs());
            self.squared_error += e * e;
            self.squared += a * a;
        }
    }

    pub(crate) fn merge(&mut self, other: &Loss) {
        self.largest_error = self.largest_error.max(other.largest_error);
        self.largest = self.largest.max(other.largest);
        self.squared_error += other.squared_error;
        self.squared += other.squared;
    }

    pub(crate) fn exact(&self) -> bool {
        self.largest_error == 0.0
    }

    pub(crate) fn max_error(&self) -> f64 {
        ratio(self.largest_error, self.largest)
    }

    pub(crate) fn rms_error(&self) -> f64 {
        ratio(self.squared_error, self.squared).sqrt()
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 { 0.0 } else { a / b }
}

/// Decides how a tensor is stored. Checks that its shape is the one the model needs.
pub fn plan<'a>(
    mapped: &Mapped,
    source: impl Into<Stored<'a>>,
    quant: Quant,
) -> Result<Plan<'a>, Error> {
    let source = source.into();
    let Mapped { id, shape, source: name, transform } = mapped.clone();
    let expected = match shape {
        Shape::Vector(n) => (1, n),
        Shape::Matrix { rows, cols } => (rows, cols),
    };
    let (rows, cols) = source.shape();
    if (rows, cols) != expected {
        let (r, c) = expected;
        let why = format!("is {rows}×{cols}, the configuration needs {r}×{c}");
        return Err(Error::tensor(name, why));
    }
    source.check().map_err(|why| Error::tensor(&name, why))?;
    let mut plan = Plan {
        id,
        shape,
        name,
        source,
        kind: Kind::F32,
        note: None,
        transform,
        keeps_codes: false,
    };
    if let Shape::Matrix { cols, .. } = shape {
        plan.choose(cols, quant)?;
    }
    Ok(plan)
}

impl Plan<'_> {
    fn choose(&mut self, cols: usize, quant: Quant) -> Result<(), Error> {
        let native = self.source.native_kind();
        let asked = quant.kind().unwrap_or(native);
        self.kind = fitting(asked, cols);
        if self.kind != asked {
            let why = format!("{cols} columns don't fit {}", asked.name());
            self.note = Some(format!("{} because {why}", self.kind.name()));
        }
        // Two halves of a group of 64 stored apart become one again.
        let may_merge = self.source.may_merge() && cols.is_multiple_of(64);
        let wide = self.kind == Kind::Q4G64;
        let kept = if wide && may_merge { Kind::Q4G32 } else { self.kind };
        if self.source.keeps_codes(kept) {
            let scan = self.scan_groups(kept);
            if !scan.finite {
                return Err(self.not_finite());
            }
            let merge = may_merge && scan.mergeable && (wide || quant == Quant::Keep);
            if scan.fits_f16 && (merge || !wide) {
                self.kind = if merge { Kind::Q4G64 } else { kept };
                self.keeps_codes = true;
                return Ok(());
            }
            if !scan.fits_f16 && !wide {
                self.kind = Kind::F16;
                self.note = Some("its scales don't fit f16, so it is stored as f16 or f32".into());
            }
        }
        // Floats that are kept were not looked at yet; encoding finds what isn't finite.
        if self.kind == native && !self.kind.is_quantized() {
            return Ok(());
        }
        if self.largest()? > quantize::MAX_WEIGHT && self.kind != Kind::Bf16 {
            self.kind = Kind::F32;
            self.note = Some("f32 because it has weights beyond f16's range".into());
        }
        Ok(())
    }

    /// Looks at the scales of all groups as `kind` would store them.
    fn scan_groups(&self, kind: Kind) -> GroupScan {
        let mut scan = GroupScan { finite: true, fits_f16: true, mergeable: true };
        let may_merge = self.source.may_merge();
        for row in 0..self.source.shape().0 {
            let (mut index, mut last) = (0, (0, 0));
            self.source.for_each_group(row, |g| {
                let (d, m) = stored_scales(kind, g);
                scan.finite &= g.d.is_finite() && g.m.is_finite();
                scan.fits_f16 &= f16_to_f32(d).is_finite() && f16_to_f32(m).is_finite();
                scan.mergeable &= may_merge && (index % 2 == 0 || last == (d, m));
                (index, last) = (index + 1, (d, m));
            });
        }
        scan
    }

    /// The largest magnitude, or an error if a value isn't finite.
    fn largest(&self) -> Result<f32, Error> {
        let (rows, cols) = self.source.shape();
        let mut values = vec![0.0f32; cols];
        let mut largest = 0.0f32;
        for row in 0..rows {
            self.read_row(row, &mut values)?;
            largest = values
                .iter()
                .fold(largest, |a, v| if v.is_finite() { a.max(v.abs()) } else { f32::NAN });
            if largest.is_nan() {
                return Err(self.not_finite());
            }
        }
        Ok(largest)
    }

    fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), Error> {
        self.source.read_row(row, out).ok_or_else(|| Error::tensor(&self.name, "can't be read"))
    }

    /// All values as they are before they are stored, row after row; each is finite.
    pub(crate) fn values(&self) -> Result<Vec<f32>, Error> {
        let (rows, cols) = self.source.shape();
        let mut values = vec![0.0; rows * cols];
        match self.shape {
            Shape::Vector(_) => {
                let mut stored = vec![0.0; cols];
                self.read_row(0, &mut stored)?;
                for (i, value) in values.iter_mut().enumerate() {
                    *value = match self.transform {
                        Transform::AddOne => 1.0 + stored[i],
                        _ => stored[self.transform.source_row(i)],
                    };
                }
            }
            Shape::Matrix { .. } => {
                for (row, values) in values.chunks_exact_mut(cols).enumerate() {
                    self.read_row(self.transform.source_row(row), values)?;
                }
            }
        }
        match values.iter().all(|v| v.is_finite()) {
            true => Ok(values),
            false => Err(self.not_finite()),
        }
    }

    fn not_finite(&self) -> Error {
        Error::tensor(&self.name, "has a value that isn't finite")
    }

    /// True if codes of the source are given up for others: what both lose adds up.
    pub(crate) fn requantizes(&self) -> bool {
        self.source.is_quantized() && self.kind.is_quantized() && !self.keeps_codes
    }

    /// Bytes of the result.
    pub fn len_bytes(&self) -> u64 {
        let bytes = match self.shape {
            Shape::Vector(n) => Some(n * 4),
            Shape::Matrix { rows, cols } => self.kind.matrix_bytes(rows, cols),
        };
        bytes.unwrap_or(0) as u64
    }
}

struct GroupScan {
    finite: bool,
    fits_f16: bool,
    mergeable: bool,
}

/// A group's (d, m) as stored. Kinds with a minimum have the zero point of 4-bit codes folded into
/// it, which is exact.
fn stored_scales(kind: Kind, g: &dequant::Group) -> (u16, u16) {
    let m = if kind.zero() == 0 && g.zero == 8.0 { -8.0 * g.d } else { g.m };
    (f32_to_f16(g.d), f32_to_f16(m))
}

/// The first of `wanted` and the kinds after it whose blocks divide `cols`.
pub(crate) fn fitting(wanted: Kind, cols: usize) -> Kind {
    let order: &[Kind] = match wanted {
        Kind::Q4G64 => &[Kind::Q4G64, Kind::Q4G32, Kind::Q8],
        Kind::Q4G32 => &[Kind::Q4G32, Kind::Q8],
        _ => &[],
    };
    let fits = |k: &&Kind| cols.is_multiple_of(k.block());
    let fallback = if wanted.is_quantized() && !cols.is_multiple_of(wanted.block()) {
        Kind::F16
    } else {
        wanted
    };
    order.iter().find(fits).copied().unwrap_or(fallback)
}

/// How the codes of one matrix are chosen.
#[derive(Clone, Copy)]
pub(crate) enum Method<'a> {
    /// [`Grid::min_max`].
    MinMax,
    /// [`Grid::search`] by what each column counts, or all alike.
    Search(Option<&'a [f32]>),
}

/// Produces the bytes of one tensor in order and reports what was lost.
pub fn encode(
    plan: &Plan<'_>,
    mode: &Mode,
    threads: usize,
    mut sink: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<TensorReport, Error> {
    let method = mode.method(plan.id);
    let mut loss = Loss::default();
    match plan.shape {
        Shape::Vector(_) => {
            let bytes: Vec<u8> = plan.values()?.into_iter().flat_map(f32::to_le_bytes).collect();
            sink(&bytes)?;
        }
        Shape::Matrix { rows, cols } => {
            let n_panels = rows.div_ceil(PANEL_ROWS);
            let panel_bytes = plan.kind.panel_bytes(cols).unwrap_or(1);
            // About a megabyte for each thread at a time.
            let run = ((1 << 20) / panel_bytes).max(1);
            let runs: Vec<_> = (0..n_panels.div_ceil(run))
                .map(|i| i * run..((i + 1) * run).min(n_panels))
                .collect();
            for batch in runs.chunks(threads.max(1)) {
                for encoded in
                    in_parallel(batch, |panels| encode_panels(plan, method, cols, panels.clone()))
                {
                    let (bytes, part) = encoded?;
                    loss.merge(&part);
                    sink(&bytes)?;
                }
            }
        }
    }
    let weights = match plan.shape {
        Shape::Vector(n) => n as u64,
        Shape::Matrix { rows, cols } => rows as u64 * cols as u64,
    };
    Ok(TensorReport {
        id: plan.id,
        source: plan.name.clone(),
        from: plan.source.format(),
        to: plan.kind,
        weights,
        bytes: plan.len_bytes(),
        exact: loss.exact(),
        max_error: loss.max_error(),
        rms_error: loss.rms_error(),
        note: plan.note.clone(),
        loss,
    })
}

/// `f` of every item, each on its own thread, in order.
pub(crate) fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let [first, rest @ ..] = items else { return Vec::new() };
    std::thread::scope(|scope| {
        let f = &f;
        let handles: Vec<_> = rest.iter().map(|item| scope.spawn(move || f(item))).collect();
        let mut results = vec![f(first)];
        for handle in handles {
            match handle.join() {
                Ok(result) => results.push(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
}

fn encode_panels(
    plan: &Plan<'_>,
    method: Method<'_>,
    cols: usize,
    panels: std::ops::Range<usize>,
) -> Result<(Vec<u8>, Loss), Error> {
    let panel_bytes = plan.kind.panel_bytes(cols).unwrap_or(0);
    let mut bytes = vec![0; panel_bytes * panels.len()];
    let mut loss = Loss::default();
    let (mut before, mut after) = (vec![0.0; cols], vec![0.0; cols]);
    for (panel, data) in panels.zip(bytes.chunks_exact_mut(panel_bytes.max(1))) {
        let rows = (plan.source.shape().0 - panel * PANEL_ROWS).min(PANEL_ROWS);
        let source_row = |lane| plan.transform.source_row(panel * PANEL_ROWS + lane);
        let mut writer = PanelWriter::new(plan.kind, cols, data);
        for lane in 0..rows {
            let row = source_row(lane);
            if plan.keeps_codes {
                copy_codes(plan, row, lane, &mut writer);
            } else {
                plan.read_row(row, &mut before)?;
                put_row(&mut writer, plan.kind, lane, &before, method);
            }
        }
        let Some(stored) = Matrix::new(plan.kind, PANEL_ROWS, cols, data) else { continue };
        for lane in 0..rows {
            plan.read_row(source_row(lane), &mut before)?;
            stored.read_row(lane, &mut after);
            loss.add_row(&before, &after);
        }
    }
    if !(loss.squared_error.is_finite() && loss.squared.is_finite()) {
        return Err(plan.not_finite());
    }
    Ok((bytes, loss))
}

fn copy_codes(plan: &Plan<'_>, row: usize, lane: usize, writer: &mut PanelWriter<'_>) {
    let (q8, g64) = (plan.kind == Kind::Q8, plan.kind == Kind::Q4G64);
    let (mut index, mut pair) = (0, [0; 64]);
    plan.source.for_each_group(row, |g| {
        let (d, m) = stored_scales(plan.kind, g);
        if q8 {
            // Q8's code of zero is 128, Q5_0's is 16.
            let shift = 128 - g.zero as u8;
            writer.put_group(lane, index, d, m, &g.q.map(|q| q + shift));
        } else if !g64 {
            writer.put_group(lane, index, d, m, &g.q);
        } else if index % 2 == 0 {
            pair[..32].copy_from_slice(&g.q);
        } else {
            pair[32..].copy_from_slice(&g.q);
            writer.put_group(lane, index / 2, d, m, &pair);
        }
        index += 1;
    });
}

/// Quantizes one row into a panel.
pub(crate) fn put_row(
    writer: &mut PanelWriter<'_>,
    kind: Kind,
    lane: usize,
    values: &[f32],
    method: Method<'_>,
) {
    if !kind.is_quantized() {
        return writer.put_row(lane, values);
    }
    let size = kind.group();
    let mut codes = [0u8; 64];
    let codes = &mut codes[..size];
    for (i, group) in values.chunks_exact(size).enumerate() {
        let grid = match method {
            Method::MinMax => Grid::min_max(kind, group),
            Method::Search(None) => Grid::search(kind, group, &[1.0; 64][..size]),
            Method::Search(Some(columns)) => {
                Grid::search(kind, group, &columns[i * size..][..size])
            }
        };
        codes.iter_mut().zip(group).for_each(|(q, w)| *q = grid.code(*w));
        let (d, m) = grid.stored();
        writer.put_group(lane, i, d, m, codes);
    }
}
