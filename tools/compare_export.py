#!/usr/bin/env python3
"""Checks that what `koudai export` writes is the model that it read: tensors, perplexity, logits.

    pip install gguf numpy llama-cpp-python safetensors          (torch and transformers for --logits)
    compare_export.py ORIGINAL.gguf EXPORTED.gguf [--file TEXT [--limit-tokens 2048]]    against the GGUF it came from
    compare_export.py EXPORTED.gguf --folder DIR                                         against the exported folder
    compare_export.py EXPORTED.gguf --folder DIR --logits --file TEXT                    and Transformers on it

Two GGUF files: every tensor is dequantized by the gguf package and compared value by value; types that the converter
requantizes (Q4_K, whose scales are rounded to half floats, and 5- and 6-bit ones) are counted apart, with the largest
difference. With --file, llama.cpp's perplexity on both over windows of --ctx tokens must agree to four digits, unless
something was requantized.
A folder holds the dequantized values of the same .koudai file: those of the exported GGUF must be equal to them.
--logits runs the folder in Transformers and the GGUF in f32_model.py, both in f32; the largest difference of
log-probabilities must stay below --bound. Exit status 1 when something is off.
"""
import argparse
import os
import re
import sys

import numpy as np

REQUANTIZED = {"Q4_K", "Q5_K", "Q6_K", "Q5_1", "Q2_K", "Q3_K"}
GGUF_NAMES = {  # of folders, as regular expressions
    r"model\.embed_tokens": "token_embd",
    r"model\.norm": "output_norm",
    r"lm_head": "output",
    r"model\.layers\.(\d+)\.input_layernorm": r"blk.\1.attn_norm",
    r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj": r"blk.\1.attn_\2",
    r"model\.layers\.(\d+)\.self_attn\.([qk])_norm": r"blk.\1.attn_\2_norm",
    r"model\.layers\.(\d+)\.self_attn\.o_proj": r"blk.\1.attn_output",
    r"model\.layers\.(\d+)\.pre_feedforward_layernorm": r"blk.\1.ffn_norm",
    r"model\.layers\.(\d+)\.post_feedforward_layernorm": r"blk.\1.post_ffw_norm",
    r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj": r"blk.\1.ffn_\2",
}


class Gguf:
    def __init__(self, path):
        import gguf

        self._gguf, reader = gguf, gguf.GGUFReader(path)
        self.arch = reader.fields["general.architecture"].contents()
        head_dim = reader.fields.get(f"{self.arch}.attention.key_length")
        self.head_dim = head_dim.contents() if head_dim else None
        self.tensors = {t.name: t for t in reader.tensors}

    def kind(self, name):
        return self.tensors[name].tensor_type.name

    def values(self, name):
        t = self.tensors[name]
        return self._gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])


def compare_ggufs(original, exported):
    a, b = Gguf(original), Gguf(exported)
    missing = a.tensors.keys() ^ b.tensors.keys()
    ok, counts, worst = not missing, {}, {}
    if missing:
        print(f"only in one of the files: {sorted(missing)}")
    for name in sorted(a.tensors.keys() & b.tensors.keys()):
        x, y, kind = a.values(name), b.values(name), (a.kind(name), b.kind(name))
        equal = x.shape == y.shape and np.array_equal(x, y)
        counts.setdefault(kind, [0, 0])[not equal] += 1
        if not equal:
            worst[kind] = max(worst.get(kind, 0), float(np.abs(x - y).max() / np.abs(x).max()))
            ok &= kind[0] in REQUANTIZED
    for kind, (equal, other) in sorted(counts.items()):
        differ = f", {other} requantized on import (largest difference {worst[kind]:.1e})" if other else ""
        print(f"{kind[0]:>5} -> {kind[1]:5} {equal:4} tensors equal{differ}")
    return ok, not worst


def compare_folder(path, folder):
    from safetensors import safe_open

    a, ok, count = Gguf(path), True, 0
    with safe_open(os.path.join(folder, "model.safetensors"), "np") as f:
        names = set(f.keys())
        for name in sorted(names):
            stem, end = name.rsplit(".", 1)
            post = "post_attention_norm" if a.arch == "gemma3" else "ffn_norm"
            stem = re.sub(r"model\.layers\.(\d+)\.post_attention_layernorm", rf"blk.\1.{post}", stem)
            for pattern, to in GGUF_NAMES.items():
                stem = re.sub(f"^{pattern}$", to, stem)
            x, y = a.values(f"{stem}.{end}"), f.get_tensor(name)
            if a.arch == "gemma3" and "norm" in stem:
                y = np.float32(1) + y
            if a.arch == "llama" and re.search(r"attn_[qk]$", stem):  # GGUF pairs neighbours, the folder halves
                y = y.reshape(-1, 2, a.head_dim // 2, y.shape[-1]).swapaxes(1, 2).reshape(y.shape)
            count += 1
            if not np.array_equal(x, y):
                ok = False
                print(f"{name}: differs from {stem}")
    print(f"{count} of {len(a.tensors)} tensors of the GGUF compared with the folder: {'equal' if ok else 'NOT EQUAL'}")
    return ok and count == len(a.tensors)


def perplexity(path, o):
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=o.ctx, n_batch=o.ctx, n_threads=o.threads, n_threads_batch=o.threads, logits_all=True, verbose=False)
    with open(o.file, encoding="utf-8") as f:
        ids = model.tokenize(f.read().encode(), add_bos=False)
    loss, bos = [], model.tokenize(b"", add_bos=True)
    for start in range(0, o.limit_tokens // o.ctx * (o.ctx - len(bos)), o.ctx - len(bos)):
        window = bos + ids[start : start + o.ctx - len(bos)]
        model.reset()
        model.eval(window)
        z = np.asarray(model.scores[: len(window) - 1], np.float64)
        z -= z.max(axis=1, keepdims=True)
        loss += list(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), window[1:]])
    return float(np.exp(np.mean(loss))), len(loss)


def compare_logits(path, o):
    import torch
    import transformers

    from f32_model import Model, log_softmax

    tokenizer = transformers.AutoTokenizer.from_pretrained(o.folder)
    with open(o.file, encoding="utf-8") as f:
        ids = tokenizer(f.read()[: 8 * o.limit_tokens])["input_ids"][: o.limit_tokens]
    model = transformers.AutoModelForCausalLM.from_pretrained(o.folder, dtype=torch.float32, attn_implementation="eager").eval()
    reference, largest, same_top, at = Model(path), 0.0, 0, 0
    with torch.no_grad():
        for window in (ids[i : i + o.ctx] for i in range(0, len(ids), o.ctx)):
            theirs = model(torch.tensor([window])).logits[0].numpy()
            hidden = reference.hidden(window, reference.new_cache())
            for z, h in zip(theirs, hidden):
                x, y = log_softmax(z), log_softmax(reference.head @ h)
                largest, same_top, at = max(largest, float(np.abs(x - y).max())), same_top + (x.argmax() == y.argmax()), at + 1
    print(f"Transformers {transformers.__version__} against f32 arithmetic on the GGUF, {at} positions: largest difference of a "
          f"log-probability {largest:.1e}, same top token {same_top / at:.2%}")
    return largest < o.bound


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("ggufs", nargs="*", help="ORIGINAL.gguf EXPORTED.gguf, or EXPORTED.gguf with --folder")
    a.add_argument("--folder", help="the exported folder")
    a.add_argument("--file", help="text to measure on")
    a.add_argument("--logits", action="store_true", help="run the folder in Transformers")
    a.add_argument("--ctx", type=int, default=512)
    a.add_argument("--limit-tokens", type=int, default=2048)
    a.add_argument("--bound", type=float, default=1e-3, help="largest difference of log-probabilities")
    a.add_argument("--threads", type=int, default=2)
    o = a.parse_args()

    ok = True
    if len(o.ggufs) == 2:
        ok, same_weights = compare_ggufs(*o.ggufs)
        if o.file:
            (x, count), (y, _) = (perplexity(path, o) for path in o.ggufs)
            print(f"llama.cpp's perplexity over {count} tokens: {x:.6f} and {y:.6f}")
            ok &= not same_weights or f"{x:.4g}" == f"{y:.4g}"
    if len(o.ggufs) == 1 and o.folder:
        ok &= compare_folder(o.ggufs[0], o.folder)
        if o.logits:
            ok &= compare_logits(o.ggufs[0], o)
    print("ok" if ok else "NOT OK")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
