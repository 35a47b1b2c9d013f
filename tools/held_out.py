#!/usr/bin/env python3
"""Prints pieces of text that `koudai prune --corpus FILE` didn't count, for measuring perplexity.

The command cuts text into pieces of 16 KiB at line ends and holds out every tenth. This takes some
2,000 bytes of as many of those, evenly over all files, as make up BYTES: so each file has the share that
it has in the counts. Each file must have been a --corpus of its own.

    tools/held_out.py FILE... --bytes 40000 > held-out.txt
"""
import argparse
import sys

PIECE = 16 << 10
PART = 2000

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("files", nargs="+", metavar="FILE")
parser.add_argument("--bytes", type=int, default=40_000)
options = parser.parse_args()

held_out = []
for name in options.files:
    with open(name, "rb") as file:
        data = file.read()
    start = number = 0
    while start < len(data):
        line = data.rfind(b"\n", start, start + PIECE)
        whole = len(data) - start <= PIECE or line < 0
        end = start + PIECE if whole else line + 1
        if number % 10 == 9:
            held_out.append(data[start:end])
        start, number = end, number + 1

pieces = options.bytes // PART
for i in range(pieces):
    lines = held_out[len(held_out) * i // pieces][:PART].split(b"\n")
    sys.stdout.buffer.write(b"\n".join(lines[:-1]) + b"\n")
