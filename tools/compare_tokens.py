#!/usr/bin/env python3
"""Compares Koudai's tokenizer with llama.cpp's (MODEL.gguf) or Hugging Face's (tokenizer.json), string by string.

    pip install llama-cpp-python          (for a GGUF)        pip install tokenizers          (for a tokenizer.json)
    compare_tokens.py MODEL.gguf [TEXT.txt …] [--slices 500] [--koudai BIN]
    compare_tokens.py TOKENIZER.json [TEXT.txt …] -m MODEL

The strings are golden_texts.py's and, for every text file given, --slices random pieces of it of 1 to 4,000 characters
(mostly short; --seed repeats them). With a GGUF, plain strings are compared without special parsing and SPECIAL_STRINGS
with it; with a tokenizer.json everything with it, as Hugging Face does. Koudai is called once for each of the two:
`koudai tokens -m MODEL --json --file STRINGS.jsonl [--special]`, a JSON string per line in, {"ids": […]} per line out.
Prints every mismatch and the counts; exit status 1 when there was one.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import golden_texts


def slices(path, count, dice):
    """Random pieces of a text file, lengths spread evenly over their logarithm."""
    with open(path, encoding="utf-8", errors="ignore", newline="") as f:
        text = f.read()
    for _ in range(count):
        length = int(math.exp(dice.uniform(0, math.log(4000))))
        start = dice.randrange(max(1, len(text) - length))
        yield text[start : start + length]


def koudai_ids(command, model, strings, special):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8", delete=False) as f:
        f.writelines(json.dumps(s) + "\n" for s in strings)
    call = [command, "tokens", "-m", model, "--json", "--file", f.name] + ["--special"] * special
    try:
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True)
    finally:
        os.unlink(f.name)
    if done.returncode:
        raise SystemExit(f"{' '.join(call)}: exit status {done.returncode}")
    answers = [json.loads(line)["ids"] for line in done.stdout.splitlines() if line]
    if len(answers) != len(strings):
        raise SystemExit(f"{' '.join(call)}: {len(answers)} answers to {len(strings)} strings")
    return answers


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("reference", help="MODEL.gguf or tokenizer.json")
    a.add_argument("texts", nargs="*", help="files to take random slices of")
    a.add_argument("-m", "--model", help="what Koudai loads (default: the reference)")
    a.add_argument("--slices", type=int, default=500, help="per text file")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--koudai", default="koudai", help="the command")
    a.add_argument("--show", type=int, default=20, help="how many mismatches to print")
    o = a.parse_args()

    plain, dice = list(golden_texts.STRINGS), random.Random(o.seed)
    for path in o.texts:
        plain += slices(path, o.slices, dice)
    if o.reference.endswith(".json"):
        from golden_tokens_hf import Tokenizer

        jobs = [(True, plain + golden_texts.SPECIAL_STRINGS)]
        inner = Tokenizer(o.reference)
        reference = lambda text, special: inner.ids(text)
    else:
        from llama_tokenizer import Tokenizer

        jobs = [(False, plain), (True, golden_texts.SPECIAL_STRINGS)]
        reference = Tokenizer(o.reference).ids

    wrong = total = tokens = 0
    for special, strings in jobs:
        for text, ours in zip(strings, koudai_ids(o.koudai, o.model or o.reference, strings, special)):
            theirs = reference(text, special)
            total, tokens = total + 1, tokens + len(theirs)
            if ours == theirs:
                continue
            wrong += 1
            if wrong <= o.show:
                at = next((i for i, (x, y) in enumerate(zip(ours, theirs)) if x != y), min(len(ours), len(theirs)))
                what = f"{text[:60]!r}{'…' if len(text) > 60 else ''} ({len(text)} characters{', special' * special})"
                print(f"{what}: from token {at}: ours {ours[at:at + 8]}, reference {theirs[at:at + 8]}")
    print(f"{total} strings, {tokens} tokens, {wrong} mismatches")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
