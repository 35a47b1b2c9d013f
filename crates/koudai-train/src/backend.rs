//! The framework: tensors, differentiation, devices, threads. No other file names tch, so another
//! framework could take its place.
//!
//! Tensors are used as they are, through their methods; wrapping each of those would only rename
//! them. What is here is what isn't a method: where gradients begin and end, and numbers in and out.

pub use tch::{Device, IndexOp, Kind, Reduction, Tensor, no_grad};

/// Seeds what the framework draws, which is initial weights only.
pub fn seed(seed: u64) {
    tch::manual_seed(seed as i64);
}

/// Threads that one operation may use.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(threads as i32);
}

/// The same values as the start of a new graph, whose gradient will be collected.
pub fn leaf(x: &Tensor) -> Tensor {
    x.detach().set_requires_grad(true)
}

/// Continues differentiation through `output`, whose gradient is known.
pub fn backward_from(output: &Tensor, gradient: &Tensor) {
    // The derivative of Σ output · gradient by output is gradient.
    (output * gradient).sum(Kind::Float).backward();
}

/// The gradient collected in a leaf, or none if nothing depended on it.
pub fn gradient(leaf: &Tensor) -> Option<Tensor> {
    Some(leaf.grad()).filter(Tensor::defined)
}

/// Forgets the gradient collected in a leaf.
pub fn clear_gradient(leaf: &Tensor) {
    leaf.shallow_clone().zero_grad();
}

/// A tensor of f32 values.
pub fn floats(values: &[f32], shape: &[i64], device: Device) -> Tensor {
    Tensor::from_slice(values).view(shape).to_device(device)
}

/// A tensor of i64 values: ids and indices.
pub fn integers(values: &[i64], shape: &[i64], device: Device) -> Tensor {
    Tensor::from_slice(values).view(shape).to_device(device)
}

/// Values of an f32 tensor, row after row.
pub fn to_floats(x: &Tensor) -> Vec<f32> {
    let x = x.detach().to_device(Device::Cpu).contiguous();
    let mut values = vec![0.0; x.numel()];
    x.copy_data(&mut values, x.numel());
    values
}

/// The value of a tensor that has one.
pub fn scalar(x: &Tensor) -> f64 {
    x.double_value(&[])
}
