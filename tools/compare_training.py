#!/usr/bin/env python3
"""Compares the trainer's speed and memory with PyTorch's on the same model, runs alternating.

Needs torch and transformers. MODEL is a Hugging Face folder (`koudai export` writes them), TEXT any
text. Both train with AdamW on rows of the same length; in PyTorch it is the model of Transformers with
its own loss, as most would write it.

    tools/compare_training.py MODEL TEXT --rows 4 --length 256 --precision bf16
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PYTORCH = "--pytorch"  # a process of its own, so that peak memory is that of one side


def recipe(args, folder):
    return f"""
stage = "pretrain"
output = "{folder}/run"
[model]
from = "{args.model.resolve()}"
[data]
sources = [{{ path = "{args.text.resolve()}" }}]
[train]
steps = {args.steps}
length = {args.length}
rows = {args.rows}
precision = "{args.precision}"
save_every = 1000000
[optimizer]
lr = 1e-5
"""


def trainer(args):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "recipe.toml")
        path.write_text(recipe(args, folder))
        command = [args.trainer, path, "--threads", str(args.threads), "--json"]
        output, megabytes = measured(command)
        report = json.loads(output)
        return report["tokens"] / report["seconds"], megabytes


def pytorch(args):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1)
    shape = (args.rows, args.length + 1)
    started = time.perf_counter()
    for _ in range(args.steps):
        ids = torch.randint(model.config.vocab_size, shape)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - started
    print(args.steps * args.rows * args.length / seconds)


def measured(command):
    """What a program prints, and its largest resident memory in MB."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command[0]} ended with status {child.returncode}")
    return output, usage.ru_maxrss / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--trainer", default="target/release/koudai-train")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(PYTORCH, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pytorch:
        return pytorch(args)
    ours, theirs = [], []
    for _ in range(args.runs):
        ours.append(trainer(args))
        output, megabytes = measured([sys.executable, *sys.argv, PYTORCH])
        theirs.append((float(output), megabytes))
        for name, (speed, peak) in [("trainer", ours[-1]), ("PyTorch", theirs[-1])]:
            print(f"{name} {speed:8.0f} tokens/s, peak {peak:6.0f} MB", flush=True)
    speed, peak = (statistics.median(a) / statistics.median(b) for a, b in
                   zip(zip(*ours), zip(*theirs)))
    print(f"medians: {speed:.2f} of PyTorch's speed, {peak:.2f} of its memory")


if __name__ == "__main__":
    main()
