//! AdamW and Muon: how gradients change parameters.
//!
//! States are tensors named after their parameters, so that a checkpoint can hold them. Start with
//! [`Optimizer::step`].

use std::collections::BTreeMap;

use crate::backend::{Kind, Tensor, clear_gradient, gradient, no_grad, scalar};
use crate::model::{Class, Parameter};
use crate::recipe::{OptimizerKind, OptimizerRecipe};

/// Coefficients of the quintic Newton–Schulz iteration that takes singular values near 1 (Jordan et
/// al., 2024, "Muon").
const NEWTON_SCHULZ: (f64, f64, f64) = (3.4445, -4.775, 2.0315);
const NEWTON_SCHULZ_STEPS: usize = 5;
/// Muon's updates of matrices have about the root mean square of AdamW's, so that one learning rate
/// serves both (Liu et al., 2025, "Muon is scalable for LLM training").
const MUON_RMS: f64 = 0.2;

/// Parameters with their optimizer's state.
pub struct Optimizer {
    recipe: OptimizerRecipe,
    parameters: Vec<Parameter>,
    /// By `NAME.m`, `NAME.v` (AdamW) and `NAME.momentum` (Muon).
    state: BTreeMap<String, Tensor>,
}

impl Optimizer {
    /// Starts with a state of zeros.
    pub fn new(recipe: &OptimizerRecipe, parameters: Vec<Parameter>) -> Optimizer {
        let mut state = BTreeMap::new();
        for parameter in &parameters {
            for part in parts(recipe, parameter) {
                let zeros = no_grad(|| parameter.value.zeros_like());
                state.insert(format!("{}.{part}", parameter.name), zeros);
            }
        }
        Optimizer { recipe: recipe.clone(), parameters, state }
    }

    /// What is trained.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Its state by name.
    pub fn state(&self) -> &BTreeMap<String, Tensor> {
        &self.state
    }

    /// Multiplies gradients so that their norm is at most the recipe's; returns what it was, which
    /// isn't finite if a gradient isn't.
    pub fn clip(&self) -> f64 {
        no_grad(|| {
            let gradients: Vec<Tensor> =
                self.parameters.iter().filter_map(|p| gradient(&p.value)).collect();
            let norms: Vec<Tensor> = gradients.iter().map(Tensor::norm).collect();
            if norms.is_empty() {
                return 0.0;
            }
            let norm = scalar(&Tensor::stack(&norms, 0).norm().to_kind(Kind::Double));
            let limit = self.recipe.clip;
            if limit > 0.0 && norm > limit {
                for gradient in gradients {
                    let _ = gradient.shallow_clone().g_mul_scalar_(limit / norm);
                }
            }
            norm
        })
    }

    /// Forgets all gradients.
    pub fn clear(&self) {
        self.parameters.iter().for_each(|p| clear_gradient(&p.value));
    }

    /// Changes parameters by their gradients. `step` counts from 0, `factor` is the schedule's.
    pub fn step(&self, step: u64, factor: f64) {
        let lr = self.recipe.lr * factor;
        no_grad(|| {
            for parameter in &self.parameters {
                let Some(gradient) = gradient(&parameter.value) else { continue };
                let mut value = parameter.value.shallow_clone();
                if parameter.class != Class::Vector && self.recipe.weight_decay > 0.0 {
                    let _ = value.g_mul_scalar_(1.0 - lr * self.recipe.weight_decay);
                }
                match uses_muon(&self.recipe, parameter) {
                    true => self.muon(&mut value, &gradient, &parameter.name, lr),
                    false => self.adamw(&mut value, &gradient, &parameter.name, step, lr),
                }
            }
        });
    }

    fn adamw(&self, value: &mut Tensor, gradient: &Tensor, name: &str, step: u64, lr: f64) {
        let [beta1, beta2] = self.recipe.betas;
        let mut m = self.state[&format!("{name}.m")].shallow_clone();
        let mut v = self.state[&format!("{name}.v")].shallow_clone();
        let _ = m.lerp_(gradient, 1.0 - beta1);
        let _ = v.g_mul_scalar_(beta2);
        let _ = v.g_add_(&(gradient * gradient * (1.0 - beta2)));
        let bias = |beta: f64| 1.0 - beta.powi(step as i32 + 1);
        let root = v.sqrt().g_mul_scalar_(1.0 / bias(beta2).sqrt()).g_add_scalar_(self.recipe.eps);
        let _ = value.g_sub_(&(&m / root * (lr / bias(beta1))));
    }

    fn muon(&self, value: &mut Tensor, gradient: &Tensor, name: &str, lr: f64) {
        let mut momentum = self.state[&format!("{name}.momentum")].shallow_clone();
        let _ = momentum.g_mul_scalar_(self.recipe.momentum).g_add_(gradient);
        let direction = orthogonal(&(gradient + &momentum * self.recipe.momentum));
        let (rows, cols) = direction.size2().unwrap_or((1, 1));
        let scale = MUON_RMS * (rows.max(cols) as f64).sqrt();
        let _ = value.g_sub_(&(direction * (lr * scale)));
    }
}

fn uses_muon(recipe: &OptimizerRecipe, parameter: &Parameter) -> bool {
    recipe.kind == OptimizerKind::Muon && parameter.class == Class::Matrix
}

fn parts(recipe: &OptimizerRecipe, parameter: &Parameter) -> &'static [&'static str] {
    if uses_muon(recipe, parameter) { &["momentum"] } else { &["m", "v"] }
}

/// The nearest matrix with all singular values near 1.
fn orthogonal(matrix: &Tensor) -> Tensor {
    let (a, b, c) = NEWTON_SCHULZ;
    let (rows, cols) = matrix.size2().unwrap_or((1, 1));
    let wide = |x: &Tensor| if rows > cols { x.transpose(0, 1) } else { x.shallow_clone() };
    let mut x = wide(matrix);
    x = &x / (x.norm() + 1e-7);
    for _ in 0..NEWTON_SCHULZ_STEPS {
        let square = x.matmul(&x.transpose(0, 1));
        let polynomial = &square * b + square.matmul(&square) * c;
        x = &x * a + polynomial.matmul(&x);
    }
    wide(&x)
}
