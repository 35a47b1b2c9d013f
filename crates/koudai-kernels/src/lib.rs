//! Numbers on slices: quantized blocks, matmul, norm, rope, attention.
