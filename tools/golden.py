#!/usr/bin/env python3
"""Golden outputs of a GGUF model: exact token ids, and what the model says in f32 arithmetic.

    pip install gguf numpy llama-cpp-python
    golden.py MODEL.gguf -o OUT.json              prompts: ids, greedy continuation, first-step top 20
    golden.py MODEL.gguf --tokens TOKENS.json     tokenizer strings (with -o or alone)
    golden.py MODEL.gguf --check FILE             compare with another file of facts instead of writing

Token ids come from llama.cpp (vocabulary only), the rest from f32_model.py. A prompt's record:
    name, kind (text | chat), text, ids (with BOS where the model adds it; control tokens parsed in chat only),
    greedy (up to --steps ids; ends after EOS), margins (best minus second logit at each step),
    top (the 20 likeliest first tokens: [id, log-probability])
Where a margin is under about 1e-3 even the order of summation in f32 may choose the other token: a test should compare
greedy ids up to the first such margin.
A string's record: text, ids (no BOS), and "special": true where control-token spellings were parsed.
FILE for --check is either our own output or {"f32": [{prompt_ids, greedy_ids, margins, top20}], "tokens": [{text, ids}]};
it fails when a greedy id differs, when a log-probability is more than 1e-4 off, or when a string's ids differ.

llama.cpp takes some spellings for control tokens whatever the file says (`</s>` in Gemma's vocabulary, where `<s>` is
an ordinary tag), so those are text unless special tokens are parsed.

Numpy with one thread takes about 1 (SmolLM2-135M) to 3 minutes (Gemma 3 270M); OPENBLAS_NUM_THREADS sets the threads.
"""
import argparse
import json
import os
import sys
import time

import golden_io
import golden_texts
from f32_model import Model, best, log_softmax
from llama_tokenizer import Tokenizer

TOP = 20


def prompts(tokenizer):
    for name, text in golden_texts.PROMPTS:
        yield dict(name=name, kind="text", text=text, ids=tokenizer.ids(text, bos=True))
    for name, messages in golden_texts.CHATS:
        text = tokenizer.chat(messages)
        if text is not None:
            yield dict(name=name, kind="chat", text=text, ids=tokenizer.ids(text, bos=True, special=True))


def strings(tokenizer):
    for text in golden_texts.STRINGS:
        yield dict(text=text, ids=tokenizer.ids(text))
    for text in golden_texts.SPECIAL_STRINGS:
        yield dict(text=text, special=True, ids=tokenizer.ids(text, special=True))


def facts(model, ids, steps):
    greedy, margins, first = model.greedy(ids, steps, stop={model.eos})
    logp = log_softmax(first)
    top = [[t, round(float(logp[t]), 5)] for t in best(logp, TOP)]
    return dict(greedy=greedy, margins=[round(m, 4) for m in margins], top=top), logp


def check(model, tokenizer, path):
    """Number of records in which we and the file disagree."""
    with open(path, encoding="utf-8") as f:
        theirs = json.load(f)
    wrong = 0
    for r in theirs.get("f32", theirs.get("prompts", [])):
        ids = r.get("prompt_ids", r.get("ids"))
        greedy, top = r.get("greedy_ids", r.get("greedy")), r.get("top20", r.get("top"))
        mine, logp = facts(model, ids, len(greedy))
        off = max(abs(float(logp[t]) - lp) for t, lp in top)
        bend = max(abs(a - b) for a, b in zip(mine["margins"], r["margins"]))
        same = mine["greedy"] == greedy
        wrong += not (same and off <= 1e-4)
        label = r.get("prompt", r.get("name"))[:40]
        print(f"{label!r}: greedy {'same' if same else 'DIFFERS'}, max |Δ log p| {off:.6f}, max |Δ margin| {bend:.4f}")
    texts = theirs.get("tokens", theirs.get("strings", []))
    missed = [r["text"] for r in texts if tokenizer.ids(r["text"], special=r.get("special", False)) != r["ids"]]
    print(f"tokenizer strings: {len(texts)}, different: {len(missed)} {missed or ''}")
    return wrong + len(missed)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("-o", "--out")
    a.add_argument("--tokens")
    a.add_argument("--check", action="append", default=[])
    a.add_argument("--steps", type=int, default=24)
    o = a.parse_args()
    if not (o.out or o.tokens or o.check):
        a.error("nothing to do: give -o, --tokens or --check")
    begin, tokenizer = time.time(), Tokenizer(o.model)
    header = {"model": os.path.basename(o.model), "sha256": golden_io.sha256(o.model), "tokenizer": tokenizer.engine}
    if o.tokens:
        golden_io.write(o.tokens, header, "strings", list(strings(tokenizer)))
    wrong = 0
    if o.out or o.check:
        model = Model(o.model)
        for path in o.check:
            wrong += check(model, tokenizer, path)
    if o.out:
        header |= {"architecture": model.arch, "arithmetic": "f32, dequantized weights", "eos": model.eos}
        header |= {"adds_bos": bool(tokenizer.bos_ids), "tensor_types": model.types}
        records = []
        for p in prompts(tokenizer):
            records.append(p | facts(model, p["ids"], o.steps)[0])
            said = tokenizer.pieces(records[-1]["greedy"]).decode(errors="replace")
            print(f"{p['name']} ({len(p['ids'])} tokens): {said!r}", file=sys.stderr)
        golden_io.write(o.out, header, "prompts", records)
    print(f"{time.time() - begin:.1f} s", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
