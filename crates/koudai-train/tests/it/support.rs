//! Tiny models as the trainer has them, and random tokens.

use koudai::kernels::Kind as MatrixKind;
use koudai::{Config, Flow};
use koudai_convert::FloatModel;
use koudai_train::backend::{Device, Kind, Tensor, set_threads};
use koudai_train::model::{Decoder, Full};
use koudai_train::start::trainable;

use crate::models::{self, Random};

/// A random model of each architecture, with the folder that holds its file.
pub(crate) struct Tiny {
    pub(crate) name: &'static str,
    pub(crate) path: std::path::PathBuf,
    pub(crate) model: FloatModel,
    _folder: tempfile::TempDir,
}

impl Tiny {
    pub(crate) fn all() -> Vec<Tiny> {
        models::configs().into_iter().map(|(name, config)| Tiny::new(name, &config)).collect()
    }

    pub(crate) fn named(name: &str) -> Tiny {
        Tiny::all().into_iter().find(|tiny| tiny.name == name).unwrap()
    }

    fn new(name: &'static str, config: &Config) -> Tiny {
        set_threads(1);
        let folder = tempfile::tempdir().unwrap();
        let path = models::write(folder.path(), name, config, MatrixKind::F32);
        let model = FloatModel::read(&path, &mut |_| Flow::Continue(())).unwrap();
        Tiny { name, path, model, _folder: folder }
    }

    pub(crate) fn decoder(&self) -> Decoder {
        Decoder::new(self.model.config.clone(), Kind::Float, Device::Cpu)
    }

    pub(crate) fn weights(&self) -> Full {
        trainable(&self.model, Device::Cpu)
    }
}

/// Ids below 256, the same ones for a seed.
pub(crate) fn tokens(n: usize, seed: u64) -> Vec<i64> {
    let mut random = Random(seed);
    (0..n).map(|_| (random.bits() >> 56) as i64).collect()
}

/// The largest difference of two tensors of one shape.
pub(crate) fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[])
}

/// The gradient of every parameter by name, and forgets them.
pub(crate) fn gradients(weights: &Full) -> Vec<(String, Tensor)> {
    use koudai_train::backend::{clear_gradient, gradient};
    use koudai_train::model::Weights;
    let taken = weights.parameters().into_iter().map(|p| {
        let taken = gradient(&p.value).map(|g| g.copy());
        clear_gradient(&p.value);
        (p.name.clone(), taken.unwrap_or_else(|| panic!("{} has no gradient", p.name)))
    });
    taken.collect()
}

/// Fails unless both have the same gradients within `tolerance` of the largest.
pub(crate) fn assert_same_gradients(
    a: &[(String, Tensor)],
    b: &[(String, Tensor)],
    tolerance: f64,
    what: &str,
) {
    for ((name, a), (_, b)) in a.iter().zip(b) {
        let scale = a.abs().max().double_value(&[]).max(1e-6);
        let difference = largest_difference(a, b);
        assert!(
            difference <= tolerance * scale,
            "{what}: {name} differs by {difference} of {scale}"
        );
    }
}
