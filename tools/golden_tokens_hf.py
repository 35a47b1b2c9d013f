#!/usr/bin/env python3
"""Golden token ids of a Hugging Face tokenizer.json, over the strings of golden_texts.py.

    pip install tokenizers
    golden_tokens_hf.py TOKENIZER.json -o OUT.json [--name NAME]

The ids are those of encode(text, add_special_tokens=False): Hugging Face always parses the spellings of added tokens,
so every string is as Koudai's `--special`; the header says so. Takes a second.
"""
import argparse
import os

import golden_io
import golden_texts


class Tokenizer:
    def __init__(self, path):
        import tokenizers

        self.engine = f"Hugging Face tokenizers {tokenizers.__version__}"
        self._inner = tokenizers.Tokenizer.from_file(path)

    def ids(self, text):
        return self._inner.encode(text, add_special_tokens=False).ids


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("tokenizer")
    a.add_argument("-o", "--out", required=True)
    a.add_argument("--name", help="what the header calls it (default: the file's name)")
    o = a.parse_args()
    tokenizer = Tokenizer(o.tokenizer)
    texts = dict.fromkeys(golden_texts.STRINGS + golden_texts.SPECIAL_STRINGS)
    header = {"model": o.name or os.path.basename(o.tokenizer), "sha256": golden_io.sha256(o.tokenizer)}
    header |= {"tokenizer": tokenizer.engine, "special": True}
    golden_io.write(o.out, header, "strings", [dict(text=t, ids=tokenizer.ids(t)) for t in texts])


if __name__ == "__main__":
    main()
