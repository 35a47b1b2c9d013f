//! A model's tensors, found once and then only looked at.

use koudai_kernels::{Kind, Matrix};

use crate::bytes::SharedBytes;
use crate::config::{Config, Role, Shape, TensorId};
use crate::file::ModelFile;

/// All tensors of a model. Matrices stay in the mapped file; norms and biases are copied.
pub(crate) struct Weights {
    config: Config,
    pub(crate) embed: StoredMatrix,
    head: Option<StoredMatrix>,
    pub(crate) final_norm: Vec<f32>,
    pub(crate) layers: Vec<LayerWeights>,
}

/// The tensors of one layer; optional ones are there exactly if the configuration says so.
pub(crate) struct LayerWeights {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) attn_q: StoredMatrix,
    pub(crate) attn_k: StoredMatrix,
    pub(crate) attn_v: StoredMatrix,
    pub(crate) qkv_bias: Option<QkvBias>,
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) k_norm: Option<Vec<f32>>,
    pub(crate) attn_out: StoredMatrix,
    pub(crate) attn_post_norm: Option<Vec<f32>>,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) ffn_gate: StoredMatrix,
    pub(crate) ffn_up: StoredMatrix,
    pub(crate) ffn_down: StoredMatrix,
    pub(crate) ffn_post_norm: Option<Vec<f32>>,
}

/// Biases of the three projections.
pub(crate) struct QkvBias {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
}

/// A matrix in a mapped file.
pub(crate) struct StoredMatrix {
    kind: Kind,
    rows: usize,
    cols: usize,
    bytes: SharedBytes,
}

impl StoredMatrix {
    pub(crate) fn view(&self) -> Matrix<'_> {
        Matrix::new(self.kind, self.rows, self.cols, &self.bytes)
            .expect("sizes were checked when the file was opened")
    }
}

impl Weights {
    pub(crate) fn new(file: &ModelFile) -> Weights {
        let config = file.config().clone();
        let matrix = |layer, role| {
            let info = file.tensor(TensorId { layer, role });
            let Shape::Matrix { rows, cols } = info.shape else {
                panic!("{} is a vector", info.id)
            };
            StoredMatrix { kind: info.kind, rows, cols, bytes: file.tensor_bytes(info) }
        };
        let vector = |layer, role| file.vector(TensorId { layer, role });
        let layers = config.layers.iter().enumerate().map(|(i, l)| {
            let at = Some(i);
            LayerWeights {
                attn_norm: vector(at, Role::AttnNorm),
                attn_q: matrix(at, Role::AttnQ),
                attn_k: matrix(at, Role::AttnK),
                attn_v: matrix(at, Role::AttnV),
                qkv_bias: l.qkv_bias.then(|| QkvBias {
                    q: vector(at, Role::AttnQBias),
                    k: vector(at, Role::AttnKBias),
                    v: vector(at, Role::AttnVBias),
                }),
                q_norm: l.qk_norm.then(|| vector(at, Role::QNorm)),
                k_norm: l.qk_norm.then(|| vector(at, Role::KNorm)),
                attn_out: matrix(at, Role::AttnOut),
                attn_post_norm: l.post_norms.then(|| vector(at, Role::AttnPostNorm)),
                ffn_norm: vector(at, Role::FfnNorm),
                ffn_gate: matrix(at, Role::FfnGate),
                ffn_up: matrix(at, Role::FfnUp),
                ffn_down: matrix(at, Role::FfnDown),
                ffn_post_norm: l.post_norms.then(|| vector(at, Role::FfnPostNorm)),
            }
        });
        Weights {
            layers: layers.collect(),
            embed: matrix(None, Role::Embed),
            head: (!config.tied_head).then(|| matrix(None, Role::Head)),
            final_norm: vector(None, Role::FinalNorm),
            config,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The output matrix: the embedding, if the model ties them.
    pub(crate) fn head(&self) -> &StoredMatrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}
