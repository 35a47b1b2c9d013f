#!/usr/bin/env python3
"""Scores the choices that `koudai eval` recorded with llama.cpp, and compares.

    tools/compare_likelihoods.py MODEL.gguf RECORDS.jsonl... [--limit N]

The texts are those of the records, so only the arithmetic and the tokenizer can differ. Prints for
each file the accuracies of both on the same items, on how many items they choose alike, and how far
apart log-probabilities are. Needs llama_cpp and numpy.
"""

import argparse
import json

import llama_cpp
import numpy


def score(llm, context, continuation, before):
    """Sum of log-probabilities of a continuation; `before` caches the context's tokens."""
    stripped = context.rstrip()
    start = llm.tokenize(stripped.encode(), add_bos=before["bos"], special=False)
    whole = llm.tokenize((context + continuation).encode(), add_bos=before["bos"], special=False)
    llm.reset()
    llm.eval(whole)
    logits = llm.scores[len(start) - 1:len(whole) - 1].astype(numpy.float64)
    top = logits.max(axis=1, keepdims=True)
    norm = top[:, 0] + numpy.log(numpy.exp(logits - top).sum(axis=1))
    targets = whole[len(start):]
    return float((logits[numpy.arange(len(targets)), targets] - norm).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("records", nargs="+")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    llm = llama_cpp.Llama(args.model, n_ctx=4096, n_threads=args.threads, logits_all=True, verbose=False)
    before = {"bos": bool(llama_cpp.llama_vocab_get_add_bos(llm._model.vocab))}
    for path in args.records:
        items = [json.loads(line) for line in open(path, encoding="utf-8")][1:args.limit + 1]
        ours = {"acc": [], "acc_norm": []}
        theirs = {"acc": [], "acc_norm": []}
        alike, apart = 0, []
        for item in items:
            choices = item["output"]
            lengths = numpy.array([len(c["continuation"].removeprefix(" ")) for c in choices])
            answer = [c["continuation"].removeprefix(" ") for c in choices].index(item["target"])
            a = numpy.array([c["logprob"] for c in choices])
            b = numpy.array([score(llm, item["prompt"], c["continuation"], before) for c in choices])
            apart += list(abs(a - b))
            alike += a.argmax() == b.argmax()
            for which, x in ((ours, a), (theirs, b)):
                which["acc"].append(x.argmax() == answer)
                which["acc_norm"].append((x / lengths).argmax() == answer)
        both = ", ".join(f"{m} {numpy.mean(ours[m]):.4f} / {numpy.mean(theirs[m]):.4f}" for m in ours)
        print(f"{path}: {len(items)} items, koudai / llama.cpp: {both}; same choice on {alike}; "
              f"mean |difference| of log-probabilities {numpy.mean(apart):.4f}, max {max(apart):.4f}")


if __name__ == "__main__":
    main()
