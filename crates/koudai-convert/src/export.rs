//! From a `.koudai` file back to what other programs read: a GGUF file or a Hugging Face folder.
//!
//! Nobody is locked in: weights keep their values, and the tokenizer gives the same ids. What the
//! other format can't say is refused by name; what it says a little differently is told in a note.
//! Start with [`export`]; `gguf` and `folder` hold what is particular to each.

mod folder;
mod gguf;

use std::ops::Range;
use std::path::Path;

use koudai::file::{FileError, ModelFile, section};
use koudai::kernels::Kind;
use koudai::tokenizer::{Spec, Tokenizer};
use koudai::{Role, TensorId};

use crate::arch::Family;
use crate::arch::describe::{self, Description};
use crate::convert::{Watch, check_output};
use crate::dequant::TensorType;
use crate::error::Error;
use crate::weights::in_parallel;

/// What [`export`] can be told.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// How a folder stores its weights: F32, F16 or BF16; by default the narrowest of them that
    /// keeps every value. A GGUF stores each tensor in its own way.
    pub dtype: Option<TensorType>,
    /// Replace an earlier export.
    pub force: bool,
}

/// What an export did.
#[derive(Clone, Debug)]
pub struct ExportReport {
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// Family of the model.
    pub architecture: &'static str,
    /// Bytes of everything written.
    pub bytes: u64,
    /// Every tensor, in file order.
    pub tensors: Vec<ExportedTensor>,
    /// What the export's readers will do otherwise.
    pub notes: Vec<String>,
}

impl ExportReport {
    /// Every weight has the value it had.
    pub fn exact(&self) -> bool {
        self.tensors.iter().all(|t| t.exact)
    }

    /// Tensors of one role and kind that became the same, taken together, in file order.
    pub fn by_role(&self) -> Vec<ExportedRole> {
        let mut roles: Vec<ExportedRole> = Vec::new();
        for t in &self.tensors {
            let same = |r: &&mut ExportedRole| (r.role, r.from, r.to) == (t.id.role, t.from, t.to);
            let (inexact, bytes) = (usize::from(!t.exact), t.bytes);
            match roles.iter_mut().find(same) {
                Some(r) => {
                    (r.count, r.inexact, r.bytes) =
                        (r.count + 1, r.inexact + inexact, r.bytes + bytes);
                }
                None => {
                    let (role, from, to) = (t.id.role, t.from, t.to);
                    roles.push(ExportedRole { role, from, to, count: 1, inexact, bytes });
                }
            }
        }
        roles
    }
}

/// [`ExportedTensor`]s taken together.
#[derive(Clone, Debug)]
pub struct ExportedRole {
    /// What the tensors are for.
    pub role: Role,
    /// How the `.koudai` file stores them.
    pub from: Kind,
    /// How the export stores them.
    pub to: TensorType,
    /// How many there are.
    pub count: usize,
    /// How many of them hold a value that was rounded.
    pub inexact: usize,
    /// Bytes in the export.
    pub bytes: u64,
}

/// What became of one tensor.
#[derive(Clone, Debug)]
pub struct ExportedTensor {
    /// Which tensor.
    pub id: TensorId,
    /// Its name in the export.
    pub name: String,
    /// How the `.koudai` file stores it.
    pub from: Kind,
    /// How the export stores it.
    pub to: TensorType,
    /// Bytes in the export.
    pub bytes: u64,
    /// Every value is what it was.
    pub exact: bool,
}

impl ExportedTensor {
    /// Why not every value is what it was, if so.
    pub fn rounded(&self) -> Option<String> {
        let (from, to) = (self.from.name(), self.to.name());
        (!self.exact).then(|| format!("values of {from} that {to} doesn't hold were rounded"))
    }
}

/// Writes the model of `input` to `output`: a GGUF file if its name ends in `.gguf`, else a folder as
/// Hugging Face has them. It appears whole or not at all.
///
/// GGUF: 4-bit codes become Q4_0 where that is exact and Q4_1 otherwise, 8-bit codes Q8_0, floats
/// what they are; every value is kept. Folder: weights are dequantized.
///
/// ```no_run
/// use koudai_convert::{ExportOptions, export};
///
/// let (input, output) = ("model.koudai".as_ref(), "model.gguf".as_ref());
/// let report = export(input, output, &ExportOptions::default(), &mut |p| {
///     println!("{} of {} bytes", p.done, p.total);
///     std::ops::ControlFlow::Continue(())
/// })?;
/// println!("{} bytes, exact: {}", report.bytes, report.exact());
/// # Ok::<(), koudai_convert::Error>(())
/// ```
pub fn export(
    input: &Path,
    output: &Path,
    options: &ExportOptions,
    progress: &mut Watch<'_>,
) -> Result<ExportReport, Error> {
    let at = |path: &Path, e: Error| match e {
        Error::Io(..) | Error::At(..) | Error::Cancelled => e,
        Error::Output(FileError::Io(..)) => e,
        other => Error::At(path.to_owned(), Box::new(other)),
    };
    check_output(input, output)?;
    let mut model = Model::open(input).map_err(|e| at(input, e))?;
    let is_gguf = output.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if is_gguf && options.dtype.is_some() {
        let why = "is a GGUF file, which keeps each tensor's own type; --dtype is for folders";
        return Err(at(output, Error::Input(why.into())));
    }
    if is_gguf {
        return gguf::write(&model, output, progress).map_err(|e| at(input, e));
    }
    // In Transformers a llama with biases has one on the attention's output too. Without it, it is
    // what it calls a qwen2.
    if model.family == Family::Llama && model.file.config().layers[0].qkv_bias {
        model.family = Family::Qwen2;
    }
    folder::check(output, options.force).map_err(|e| at(output, e))?;
    folder::write(&model, output, options, progress).map_err(|e| at(input, e))
}

/// An opened model with everything but its weights read.
struct Model {
    file: ModelFile,
    family: Family,
    tokenizer: Spec,
    template: Option<String>,
    meta: Vec<(String, String)>,
}

impl Model {
    fn open(path: &Path) -> Result<Model, Error> {
        let file = ModelFile::open(path)?;
        file.verify()?;
        let tokens = file.section(section::TOKENIZER);
        let tokens = tokens.ok_or(FileError::Missing(section::TOKENIZER))?;
        let tokenizer = Tokenizer::open(tokens).map_err(|e| Error::Tokenizer(e.into()))?.spec();
        let (template, meta) = (file.template()?, file.meta()?);
        let named = meta.iter().find(|(key, _)| key == "architecture").map(|(_, v)| v.as_str());
        let family = describe::family(named, file.config());
        Ok(Model { family, tokenizer, template, meta, file })
    }

    fn describe(&self) -> Result<Description, Error> {
        describe::describe(self.family, self.file.config())
    }

    /// A pair of the file's `meta`.
    fn meta(&self, key: &str) -> Option<&str> {
        self.meta.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
}

/// Encodes all rows of a tensor, about a megabyte at a time on each processor, and hands the bytes
/// on in order. `encode` also says whether values were kept; the result, whether all were.
fn encode_rows(
    rows: usize,
    cols: usize,
    encode: impl Fn(Range<usize>) -> (Vec<u8>, bool) + Sync,
    mut sink: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<bool, Error> {
    let run = (1 << 18) / cols + 1;
    let runs: Vec<_> = (0..rows).step_by(run).map(|first| first..(first + run).min(rows)).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut exact = true;
    for batch in runs.chunks(threads) {
        for (bytes, kept) in in_parallel(batch, |rows| encode(rows.clone())) {
            exact &= kept;
            sink(&bytes)?;
        }
    }
    Ok(exact)
}
