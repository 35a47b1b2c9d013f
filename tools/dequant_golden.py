#!/usr/bin/env python3
"""Writes crates/koudai-convert/tests/data/dequant.txt: random blocks of every supported GGML type and
the values that the `gguf` Python package reads from them.

    pip install gguf numpy
    python3 tools/dequant_golden.py > crates/koudai-convert/tests/data/dequant.txt

One line per type: its name, the blocks in hexadecimal, the values' f32 bits in hexadecimal.
"""
import gguf
import numpy as np

# Where the f16 scales of a block lie, so that they can be made ordinary numbers.
SCALES = {"F32": None, "F16": None, "BF16": None, "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

rng = np.random.default_rng(20)
for name, scales in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    length, size = gguf.GGML_QUANT_SIZES[kind]
    if scales is None:
        values = rng.standard_normal(64).astype(np.float32)
        if name == "F32":
            raw = values.view(np.uint8)
        elif name == "F16":
            raw = values.astype(np.float16).view(np.uint8)
        else:
            raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        raw = rng.integers(0, 256, (2, size), dtype=np.uint8)
        for at in scales:
            raw[:, at : at + 2] = rng.normal(0, 0.1, 2).astype(np.float16).reshape(2, 1).view(np.uint8)
        raw = raw.reshape(-1)
    values = gguf.quants.dequantize(raw, kind).astype("<f4").reshape(-1)
    print(name, raw.tobytes().hex(), values.tobytes().hex())
