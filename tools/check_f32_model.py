#!/usr/bin/env python3
"""Checks f32_model.py against llama.cpp on small random F32 models: llama, qwen2, qwen3 and gemma3 with a short window.

    pip install gguf numpy llama-cpp-python
    check_f32_model.py

With F32 weights and an F32 cache llama.cpp computes in f32 too, so logits agree to rounding; only its table of
half-precision GELU values leaves a difference for gemma3. Also checks that a prompt in pieces gives the same logits.
Takes seconds; exit status 1 when something is off.
"""
import os
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

from f32_model import Model

DIM, FFN, LAYERS, HEADS, KV_HEADS, WINDOW, LENGTH = 64, 96, 7, 4, 2, 24, 200
CASES = [  # architecture, head size, separate output matrix, largest relative difference
    ("llama", 16, True, 1e-4),
    ("qwen2", 16, False, 1e-4),
    ("qwen3", 32, True, 1e-4),
    ("gemma3", 32, False, 2e-3),
]


def write(path, arch, head_dim, separate, dice):
    tokens = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % b for b in range(256)]
    kinds = gguf.TokenType
    w = gguf.GGUFWriter(path, arch)
    w.add_vocab_size(len(tokens))
    w.add_context_length(512)
    w.add_embedding_length(DIM)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    if arch == "gemma3":
        w.add_sliding_window(WINDOW)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * len(tokens))
    w.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)

    def add(name, *shape, spread=None, centre=0.0):
        spread = shape[-1] ** -0.5 if spread is None else spread
        w.add_tensor(name, (centre + spread * dice.standard_normal(shape)).astype(np.float32))

    add("token_embd.weight", len(tokens), DIM, spread=1.0)
    if separate:
        add("output.weight", len(tokens), DIM)
    add("output_norm.weight", DIM, spread=0.2, centre=1.0)
    for i in range(LAYERS):
        norms = ["attn_norm", "ffn_norm"] + ["post_attention_norm", "post_ffw_norm"] * (arch == "gemma3")
        for name in norms:
            add(f"blk.{i}.{name}.weight", DIM, spread=0.2, centre=1.0)
        for name, count in ("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS):
            add(f"blk.{i}.attn_{name}.weight", count * head_dim, DIM, spread=0.2)
            if arch == "qwen2":
                add(f"blk.{i}.attn_{name}.bias", count * head_dim, spread=0.5)
            if arch in ("qwen3", "gemma3") and name != "v":
                add(f"blk.{i}.attn_{name}_norm.weight", head_dim, spread=0.3, centre=1.5)
        add(f"blk.{i}.attn_output.weight", DIM, HEADS * head_dim)
        add(f"blk.{i}.ffn_gate.weight", FFN, DIM)
        add(f"blk.{i}.ffn_up.weight", FFN, DIM)
        add(f"blk.{i}.ffn_down.weight", DIM, FFN)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return len(tokens)


def main():
    dice, failed = np.random.default_rng(1), False
    with tempfile.TemporaryDirectory() as folder:
        for arch, head_dim, separate, limit in CASES:
            path = os.path.join(folder, f"{arch}.gguf")
            ids = dice.integers(3, write(path, arch, head_dim, separate, dice), LENGTH).tolist()
            f32 = llama_cpp.GGML_TYPE_F32
            peer = llama_cpp.Llama(path, n_ctx=256, logits_all=True, verbose=False, type_k=f32, type_v=f32)
            peer.eval(ids)
            model = Model(path)
            whole = model.hidden(ids, model.new_cache()) @ model.head.T
            cache, cuts = model.new_cache(), [0, 70, 71, LENGTH]
            pieces = np.concatenate([model.hidden(ids[a:b], cache) @ model.head.T for a, b in zip(cuts, cuts[1:])])
            scale = float(whole.std())
            off = float(np.abs(whole - peer.scores[:LENGTH]).max()) / scale
            split = float(np.abs(whole - pieces).max()) / scale
            failed |= off > limit or split > 1e-4
            print(f"{arch}: max |Δ logit| / deviation: {off:.2e} from llama.cpp, {split:.2e} in pieces")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
