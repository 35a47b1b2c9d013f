#!/usr/bin/env python3
"""Converts the public stories260K model (a llama2.c checkpoint with its tokenizer.bin) to GGUF, and makes its golden.

    pip install gguf numpy llama-cpp-python          (llama-cpp-python only for --golden and --verify)
    stories260k.py stories260K.bin tokenizer.bin -o stories260K.gguf [--verify] [--golden OUT.json]

The checkpoint: seven i32 (dim, ffn, layers, heads, kv heads, vocabulary, context; a negative vocabulary says that the
output matrix is separate), then f32 weights, each kind for all layers. The tokenizer: i32 longest piece, then for each
token f32 score, i32 length, bytes. llama2.c rotates channels 2i and 2i+1 together, as GGUF's llama rows expect, so q
and k are stored as they are. --golden writes greedy stories in f32 arithmetic (f32_model.py): 200 ids, margins, text.
--verify compares llama.cpp's greedy stories and logits with ours. Takes seconds.
"""
import argparse
import os
import sys

import gguf
import numpy as np

import golden_io
from f32_model import Model, best, log_softmax

SHAPE = ("dim", "ffn", "layers", "heads", "kv_heads", "vocab", "context")
STEPS = 200
OPENINGS = ["", "Once upon a time", "The little red boat"]
BOS, EOS = 1, 2


def read_checkpoint(path):
    """(shape, {tensor name: array}) with GGUF's names, rows = outputs."""
    numbers = np.fromfile(path, "<i4", 7)
    shape = dict(zip(SHAPE, (int(n) for n in numbers)))
    tied, shape["vocab"] = shape["vocab"] > 0, abs(shape["vocab"])
    shape["head_dim"] = shape["dim"] // shape["heads"]
    weights, at = np.fromfile(path, "<f4", offset=28), 0

    def take(*size):
        nonlocal at
        at += (count := int(np.prod(size)))
        return weights[at - count : at].reshape(size)

    dim, ffn, depth, kv = shape["dim"], shape["ffn"], shape["layers"], shape["kv_heads"] * shape["head_dim"]
    tensors = {"token_embd.weight": take(shape["vocab"], dim)}
    for kind, *size in (
        ("attn_norm", dim),
        ("attn_q", dim, dim),
        ("attn_k", kv, dim),
        ("attn_v", kv, dim),
        ("attn_output", dim, dim),
        ("ffn_norm", dim),
        ("ffn_gate", ffn, dim),
        ("ffn_down", dim, ffn),
        ("ffn_up", ffn, dim),
    ):
        for i, matrix in enumerate(take(depth, *size)):
            tensors[f"blk.{i}.{kind}.weight"] = matrix
    tensors["output_norm.weight"] = take(dim)
    take(2, shape["context"], shape["head_dim"] // 2)  # tables of rotary angles
    if not tied:
        tensors["output.weight"] = take(shape["vocab"], dim)
    if at != len(weights):
        raise SystemExit(f"{path}: {len(weights)} weights, but this shape has {at}")
    return shape, tensors


def read_tokenizer(path, count):
    """[(piece as bytes, score)]"""
    with open(path, "rb") as f:
        data = f.read()
    at, pieces = 4, []
    for _ in range(count):
        score, length = np.frombuffer(data, "<f4", 1, at)[0], int(np.frombuffer(data, "<i4", 1, at + 4)[0])
        pieces.append((data[at + 8 : at + 8 + length], float(score)))
        at += 8 + length
    if at != len(data):
        raise SystemExit(f"{path}: {len(data) - at} bytes left over after {count} tokens")
    return pieces


def write_gguf(path, shape, tensors, pieces):
    kinds = gguf.TokenType
    tokens, types = [], []
    for i, (piece, _) in enumerate(pieces):
        byte = piece.startswith(b"<0x") and len(piece) == 6
        types.append([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL][i] if i < 3 else kinds.BYTE if byte else kinds.NORMAL)
        tokens.append(piece.strip() if i < 3 else piece.decode().replace(" ", "\u2581").encode())
    part = f"{path}.part"
    w = gguf.GGUFWriter(part, "llama")
    w.add_name("stories260K")
    w.add_license("mit")
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_vocab_size(shape["vocab"])
    w.add_context_length(shape["context"])
    w.add_embedding_length(shape["dim"])
    w.add_block_count(shape["layers"])
    w.add_feed_forward_length(shape["ffn"])
    w.add_head_count(shape["heads"])
    w.add_head_count_kv(shape["kv_heads"])
    w.add_rope_dimension_count(shape["head_dim"])
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([score for _, score in pieces])
    w.add_token_types(types)
    w.add_bos_token_id(BOS)
    w.add_eos_token_id(EOS)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)
    for name, data in tensors.items():
        w.add_tensor(name, np.ascontiguousarray(data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(part, path)
    print(f"{path}: {len(tensors)} tensors, {os.path.getsize(path):,} bytes; {shape}")


def stories(model, tokenizer):
    for text in OPENINGS:
        ids = tokenizer.ids(text, bos=True) if text else [BOS]
        greedy, margins, first = model.greedy(ids, STEPS, stop={EOS})
        logp = log_softmax(first)
        yield dict(
            name=text.lower().replace(" ", "-") or "bos",
            kind="text",
            text=text,
            ids=ids,
            greedy=greedy,
            margins=[round(m, 4) for m in margins],
            top=[[t, round(float(logp[t]), 5)] for t in best(logp, 20)],
            story=tokenizer.pieces(ids + greedy, special=False).decode(errors="replace"),
        )


def verify(path, records):
    import llama_cpp

    f32 = llama_cpp.GGML_TYPE_F32
    peer = llama_cpp.Llama(path, n_ctx=512, logits_all=True, verbose=False, type_k=f32, type_v=f32)
    model, failed = Model(path), False
    for r in records:
        peer.reset()
        peer.eval(r["ids"])
        said = []
        for _ in range(len(r["greedy"])):
            said.append(int(np.argmax(peer.scores[peer.n_tokens - 1])))
            peer.eval([said[-1]])
        same = next((i for i, (a, b) in enumerate(zip(said, r["greedy"])) if a != b), len(said))
        both = r["ids"] + r["greedy"][:same]
        mine = model.hidden(both, model.new_cache()) @ model.head.T
        off = float(np.abs(mine - peer.scores[: len(both)]).max())
        failed |= same < len(said) and r["margins"][same] > 0.01
        print(f"{r['text']!r}: {same} of {len(said)} greedy ids as llama.cpp's, max |Δ logit| {off:.5f}")
    return failed


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("checkpoint")
    a.add_argument("tokenizer")
    a.add_argument("-o", "--out", required=True)
    a.add_argument("--golden")
    a.add_argument("--verify", action="store_true")
    o = a.parse_args()
    shape, tensors = read_checkpoint(o.checkpoint)
    write_gguf(o.out, shape, tensors, read_tokenizer(o.tokenizer, shape["vocab"]))
    if not (o.golden or o.verify):
        return 0
    from llama_tokenizer import Tokenizer

    tokenizer = Tokenizer(o.out)
    records = list(stories(Model(o.out), tokenizer))
    if o.golden:
        header = {"model": "stories260K", "checkpoint_sha256": golden_io.sha256(o.checkpoint)}
        header |= {"tokenizer_sha256": golden_io.sha256(o.tokenizer), "gguf_sha256": golden_io.sha256(o.out)}
        header |= {"architecture": "llama", "arithmetic": "f32", "eos": EOS, "shape": shape}
        golden_io.write(o.golden, header, "prompts", records)
    return 1 if o.verify and verify(o.out, records) else 0


if __name__ == "__main__":
    sys.exit(main())
