//! A model as plain numbers: what training starts from and what it ends in.
//!
//! [`FloatModel::read`] takes any format that can be converted, its weights dequantized;
//! [`FloatModel::write`] makes a `.koudai` file, from which [`export`](crate::export()) goes on. All
//! weights are in memory, 4 bytes each; conversion alone doesn't come by here.

use std::collections::BTreeMap;
use std::path::Path;

use koudai::file::Defaults;
use koudai::{Config, Shape, TensorId};

use crate::arch::{Mapped, Transform};
use crate::convert::{self, Options, Prepared, Report, Watch};
use crate::error::Error;
use crate::source::Stored;
use crate::weights;

/// A model with its weights as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatModel {
    /// The configuration.
    pub config: Config,
    /// What its family is called; see [`crate::arch::Family`].
    pub architecture: String,
    /// Values of every tensor of the configuration, row after row. Norms are what the engine multiplies
    /// by, whatever the source stored.
    pub tensors: BTreeMap<TensorId, Vec<f32>>,
    /// The tokenizer, as [`koudai::tokenizer::Spec::to_bytes`] writes it.
    pub tokenizer: Vec<u8>,
    /// The chat template.
    pub template: Option<String>,
    /// Sampling advice.
    pub defaults: Defaults,
    /// Pairs about the model.
    pub meta: Vec<(String, String)>,
}

impl FloatModel {
    /// Reads a GGUF file, a Hugging Face folder or a `.koudai` file.
    pub fn read(input: &Path, progress: &mut Watch<'_>) -> Result<FloatModel, Error> {
        convert::prepare(input, &Options::default(), progress, |prepared, _| {
            let values = |plan: &weights::Plan<'_>| Ok((plan.id, plan.values()?));
            Ok(FloatModel {
                tensors: prepared.plans.iter().map(values).collect::<Result<_, Error>>()?,
                config: prepared.config,
                architecture: prepared.architecture,
                tokenizer: prepared.tokenizer,
                template: prepared.template,
                defaults: prepared.defaults,
                meta: prepared.meta,
            })
        })
    }

    /// Writes a `.koudai` file, quantized as `options` say. Fails if a tensor is missing or isn't of the
    /// configuration's shape.
    pub fn write(
        &self,
        output: &Path,
        options: &Options,
        progress: &mut Watch<'_>,
    ) -> Result<Report, Error> {
        let mut plans = Vec::with_capacity(self.tensors.len());
        for (id, shape) in self.config.tensors() {
            let name = id.to_string();
            let values = self.tensors.get(&id).filter(|values| !values.is_empty());
            let values = values.ok_or_else(|| Error::tensor(&name, "is missing"))?;
            let (Shape::Vector(cols) | Shape::Matrix { cols, .. }) = shape;
            let mapped = Mapped { id, shape, source: name, transform: Transform::None };
            let source = Stored::Floats { cols, values };
            plans.push(weights::plan(&mapped, source, options.quant_of(id))?);
        }
        let prepared = Prepared {
            architecture: self.architecture.clone(),
            config: self.config.clone(),
            plans,
            tokenizer: self.tokenizer.clone(),
            template: self.template.clone(),
            defaults: self.defaults.clone(),
            meta: self.meta.clone(),
            source_sha256: String::new(),
            notes: Vec::new(),
        };
        convert::write(prepared, output, options, progress)
    }
}
