#!/usr/bin/env python3
"""How far Koudai and llama.cpp are from f32 arithmetic on the same weights, over the same teacher-forced positions.

    pip install gguf numpy llama-cpp-python
    compare_llama_cpp.py MODEL.gguf --file TEXT [--ctx 512] [--limit-tokens 2048]     Koudai and llama.cpp
    compare_llama_cpp.py MODEL.gguf --file TEXT --numpy                               llama.cpp only; f32 by f32_model.py
    compare_llama_cpp.py MODEL.gguf --golden GOLDEN.json [--numpy]                    last positions of golden prompts

Text: tokenized as a whole without special parsing, cut into windows of --ctx tokens that do not overlap (each begins
with BOS where the model adds it); every position of a window but its last predicts the next token. Printed for each
engine against f32: mean, median and 99th percentile of KL(f32 || engine), rate of equal top tokens, mean |Δ log p| over
f32's top 20, and everyone's perplexity. Golden prompts: mean and max |Δ log p| over the golden's top 20.

Koudai's part: `koudai perplexity … --activation A --save-logits F.npy --json` (f32, then --activation, default auto),
whose `token_windows` are what llama.cpp is fed; for golden prompts `koudai score --ids … --top N --json`.
Logits go to files (positions x vocabulary x 4 bytes each; --work DIR keeps them) and are read row by row, so memory
stays near one window's logits. With --numpy, 2,044 positions take about 1.5 minutes on two busy cores (SmolLM2-135M
and Gemma 3 270M alike).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from f32_model import Model, log_softmax

TOP = 20


class Distance:
    """Gathers how far an engine's distributions are from the reference's."""

    def __init__(self, name):
        self.name, self.kl, self.same, self.delta, self.loss = name, [], [], [], []

    def add(self, reference, top, z, target):
        """reference: f64 log-probabilities; top: its likeliest ids; z: the engine's logits; target: the true next id."""
        logp = log_softmax(z)
        self.kl.append(float(np.exp(reference) @ (reference - logp)))
        self.same.append(int(np.argmax(z)) == top[0])
        self.delta.append(float(np.abs(reference[top] - logp[top]).mean()))
        self.loss.append(-float(logp[target]))

    def summary(self):
        return {
            "engine": self.name,
            "positions": len(self.kl),
            "kl_mean": float(np.mean(self.kl)),
            "kl_median": float(np.median(self.kl)),
            "kl_p99": float(np.percentile(self.kl, 99)),
            "same_top": float(np.mean(self.same)),
            "delta_logp_top20": float(np.mean(self.delta)),
            "perplexity": float(np.exp(np.mean(self.loss))),
        }


def peer_model(path, o, context):
    import llama_cpp

    kv = {"f16": llama_cpp.GGML_TYPE_F16, "f32": llama_cpp.GGML_TYPE_F32}[o.kv]
    sizes = dict(n_ctx=context, n_batch=min(context, 512), n_threads=o.threads, n_threads_batch=o.threads)
    return llama_cpp.Llama(path, logits_all=True, verbose=False, type_k=kv, type_v=kv, **sizes)


def koudai(o, *arguments):
    command = [o.koudai, arguments[0], "-m", o.model, "--json", *map(str, arguments[1:])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: exit status {done.returncode}")
    return json.loads(done.stdout)


def koudai_logits(o, activation, work):
    """(windows, path of the logits)"""
    out = os.path.join(work, f"koudai-{activation}.npy")
    limits = ("--ctx", o.ctx, "--limit-tokens", o.limit_tokens)
    report = koudai(o, "perplexity", "--file", o.file, *limits, "--activation", activation, "--save-logits", out)
    return report["token_windows"], out


def numpy_logits(o, work):
    from llama_tokenizer import Tokenizer

    tokenizer = Tokenizer(o.model)
    with open(o.file, encoding="utf-8") as f:
        ids = tokenizer.ids(f.read())
    body = o.ctx - len(tokenizer.bos_ids)
    windows = [tokenizer.bos_ids + ids[i : i + body] for i in range(0, o.limit_tokens // o.ctx * body, body)]
    windows = [w for w in windows if len(w) > 1]
    model = Model(o.model)
    out = os.path.join(work, "numpy-f32.npy")
    rows = np.lib.format.open_memmap(out, "w+", np.float32, (sum(len(w) - 1 for w in windows), model.vocab))
    at = 0
    for w in windows:
        hidden = model.hidden(w[:-1], model.new_cache())
        for i in range(0, len(hidden), 64):
            part = hidden[i : i + 64] @ model.head.T
            rows[at : at + len(part)] = part
            at += len(part)
        rows.flush()
    return windows, out


def scored_rows(path, windows):
    """One iterator of logits per window. The file holds the scored positions, with or without each window's last."""
    data = np.load(path, mmap_mode="r")
    extra = {sum(len(w) - 1 for w in windows): 0, sum(map(len, windows)): 1}.get(len(data))
    if extra is None:
        raise SystemExit(f"{path}: {len(data)} rows do not fit windows of {[len(w) for w in windows]} tokens")
    at = 0
    for w in windows:
        yield (data[at + i] for i in range(len(w) - 1))
        at += len(w) - 1 + extra


def compare_text(o, work):
    begin = time.time()
    windows, exact = numpy_logits(o, work) if o.numpy else koudai_logits(o, "f32", work)
    files = []
    if not o.numpy:
        again, path = koudai_logits(o, o.activation, work)
        if again != windows:
            raise SystemExit("koudai's two runs report different token windows")
        files.append((Distance(f"koudai {o.activation}"), scored_rows(path, windows)))
    print(f"f32{'' if o.numpy else ' and koudai'} logits: {time.time() - begin:.1f} s", file=sys.stderr)

    begin, evaluating = time.time(), 0.0
    peer, theirs = peer_model(o.model, o, max(map(len, windows))), Distance("llama.cpp")
    reference = Distance("f32")
    for w, rows in zip(windows, scored_rows(exact, windows)):
        since = time.time()
        peer.reset()
        peer.eval(w)
        evaluating += time.time() - since
        others = [(d, next(windows_of)) for d, windows_of in files]
        for i, z in enumerate(rows):
            logp = log_softmax(z)
            top = best_of(logp)
            reference.add(logp, top, z, w[i + 1])
            theirs.add(logp, top, peer.scores[i], w[i + 1])
            for d, its in others:
                d.add(logp, top, next(its), w[i + 1])
    print(f"llama.cpp: {evaluating:.1f} s, with comparing {time.time() - begin:.1f} s", file=sys.stderr)
    return [d.summary() for d in (reference, theirs, *(d for d, _ in files))]


def best_of(logp, count=TOP):
    """The likeliest ids, without sorting the whole vocabulary."""
    some = np.argpartition(-logp, count)[:count]
    return [int(i) for i in sorted(some, key=lambda i: (-logp[i], i))]


def compare_golden(o):
    """Per engine: mean and max |Δ log p| over the goldens' top lists, and first tokens that differ."""
    with open(o.golden, encoding="utf-8") as f:
        prompts = json.load(f)["prompts"]
    peer = peer_model(o.model, o, max(len(p["ids"]) for p in prompts) + 8)

    def of_peer(p):
        peer.reset()
        peer.eval(p["ids"])
        logp = log_softmax(peer.scores[peer.n_tokens - 1])
        return {t: logp[t] for t, _ in p["top"]} | {int(np.argmax(logp)): float(logp.max())}

    def of_koudai(activation):
        def ask(p):
            ids = ",".join(map(str, p["ids"]))
            report = koudai(o, "score", "--ids", ids, "--top", o.top, "--activation", activation)
            return {entry["id"]: entry["logprob"] for entry in report["top"]}

        return ask

    engines = {"llama.cpp": of_peer}
    if not o.numpy:
        engines |= {f"koudai {a}": of_koudai(a) for a in dict.fromkeys(["f32", o.activation])}
    for name, ask in engines.items():
        deltas, flips = [], []
        for p in prompts:
            got = ask(p)
            lost = [t for t, _ in p["top"] if t not in got]
            if lost:
                raise SystemExit(f"{name}, {p['name']}: tokens {lost} are not in its top {o.top}")
            deltas.append([abs(got[t] - lp) for t, lp in p["top"]])
            first = max(got, key=got.get)
            if first != p["greedy"][0]:
                flips.append(f"{p['name']} (margin {p['margins'][0]})")
            if o.verbose:
                print(f"  {name:12} {p['name']:16} mean {np.mean(deltas[-1]):.5f} max {np.max(deltas[-1]):.5f}")
        yield {
            "engine": name,
            "prompts": len(prompts),
            "delta_logp_top20": float(np.mean([np.mean(d) for d in deltas])),
            "delta_logp_max": float(max(map(max, deltas))),
            "first_token_flips": flips,
        }


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    what = a.add_mutually_exclusive_group(required=True)
    what.add_argument("--file", help="text to score")
    what.add_argument("--golden", help="a file written by golden.py")
    a.add_argument("--ctx", type=int, default=512)
    a.add_argument("--limit-tokens", type=int, default=2048)
    a.add_argument("--activation", default="auto", help="Koudai's mode to compare with its f32")
    a.add_argument("--numpy", action="store_true", help="f32 from f32_model.py, and no Koudai")
    a.add_argument("--koudai", default="koudai", help="the command")
    a.add_argument("--top", type=int, default=2000, help="how many tokens to ask `koudai score` for")
    a.add_argument("--kv", choices=["f16", "f32"], default="f16", help="llama.cpp's cache")
    a.add_argument("--threads", type=int, default=2, help="llama.cpp's threads")
    a.add_argument("--work", help="keep logits in this folder")
    a.add_argument("--json", help="also write the figures to this file")
    a.add_argument("-v", "--verbose", action="store_true", help="golden: a line per prompt")
    o = a.parse_args()
    if o.golden:
        figures = list(compare_golden(o))
    elif o.work:
        os.makedirs(o.work, exist_ok=True)
        figures = compare_text(o, o.work)
    else:
        with tempfile.TemporaryDirectory() as work:
            figures = compare_text(o, work)
    for row in figures:
        print("  ".join(f"{k}={v:.5g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump({"model": os.path.basename(o.model), "engines": figures}, f, indent=1)


if __name__ == "__main__":
    main()
