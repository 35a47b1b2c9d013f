#!/usr/bin/env python3
"""Times Koudai and llama.cpp's llama-bench in turns, on the same weights and threads, and prints medians and ratios.

    compare_speed.py MODEL.gguf -m MODEL.koudai --llama-bench PATH [-t 2] [-p 512] [-n 128] [-d 0] [--rounds 5] [--koudai BIN]
    compare_speed.py … -- --activation int8           (everything after -- goes to `koudai bench`)

Each round runs both programs once with a warm-up of their own, in alternating order, so that a noisy machine
disturbs both alike. llama.cpp computes attention at depths above 0 with -fa 1. KOUDAI_ISA is passed on. Printed: each round's tokens/s, then medians and Koudai ÷ llama.cpp.
"""
import argparse
import json
import statistics
import subprocess


def koudai(o):
    command = [o.koudai, "bench", "-m", o.model, "-p", o.prompt, "-n", o.generate, "-t", o.threads, "-d", o.depth,
               "-r", 2, "--json"]
    out = subprocess.run([*map(str, command), *o.rest], stdout=subprocess.PIPE, check=True).stdout
    report = json.loads(out)
    return report["prefill_tps"], report["decode_tps"]


def llama(o):
    command = [o.llama_bench, "-m", o.gguf, "-p", o.prompt, "-n", o.generate, "-t", o.threads, "-d", o.depth,
               "-fa", int(o.depth > 0), "-r", 2, "-o", "json"]
    out = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    runs = json.loads(out)
    speed = {bool(r["n_gen"]): r["avg_ts"] for r in runs}
    return speed[False], speed[True]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("gguf")
    a.add_argument("-m", "--model", required=True, help="the .koudai file made of it")
    a.add_argument("--llama-bench", required=True)
    a.add_argument("-t", "--threads", type=int, default=2)
    a.add_argument("-p", "--prompt", type=int, default=512)
    a.add_argument("-n", "--generate", type=int, default=128)
    a.add_argument("-d", "--depth", type=int, default=0, help="tokens in the context before")
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--koudai", default="koudai", help="the command")
    a.add_argument("rest", nargs="*", help="options for `koudai bench`, after --")
    o = a.parse_args()
    engines = [("koudai", koudai, []), ("llama.cpp", llama, [])]
    for i in range(o.rounds):
        for name, run, results in engines if i % 2 == 0 else engines[::-1]:
            results.append(run(o))
            print(f"round {i + 1}  {name:<10} prefill {results[-1][0]:8.1f}  decode {results[-1][1]:7.1f}", flush=True)
    medians = [[statistics.median(r[k] for r in results) for k in (0, 1)] for _, _, results in engines]
    for (name, _, _), (prefill, decode) in zip(engines, medians):
        print(f"median   {name:<10} prefill {prefill:8.1f}  decode {decode:7.1f}")
    print(f"ratio               prefill {medians[0][0] / medians[1][0]:8.2f}  decode {medians[0][1] / medians[1][1]:7.2f}")


main()
