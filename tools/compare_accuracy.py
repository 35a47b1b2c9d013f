#!/usr/bin/env python3
"""Runs lm-evaluation-harness itself on the questions that `koudai eval` recorded, and compares.

    tools/compare_accuracy.py HF_FOLDER RECORDS [--limit N]

HF_FOLDER holds the same weights for Transformers (`koudai export MODEL -o HF_FOLDER`); RECORDS is a
folder that `koudai eval --tasks hellaswag,arc_easy,arc_challenge,piqa --out RECORDS` filled, without
--limit or --shots. The harness's own task files are used; only their data sets are replaced by the
files below --data. Prints for each task both accuracies on the same questions and how many questions
got the same choice. Needs lm_eval[hf].
"""

import argparse
import importlib.util
import json
import pathlib
import tempfile

import lm_eval
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM

from compare_prompts import config, documents, files, jsonl


def labelled(name, data):
    """The harness's documents with their answers, in the order of their ids."""
    docs = list(documents(name, data).values())
    if name == "piqa":
        labels = open(data / "piqa/valid-labels.lst", encoding="utf-8").read().split()
        return [{**doc, "label": int(label)} for doc, label in zip(docs, labels, strict=True)]
    if name.startswith("arc"):
        folder = "ARC-Easy" if name == "arc_easy" else "ARC-Challenge"
        entries = json.load(open(data / f"arc/{folder}/test.json", encoding="utf-8"))
        for doc, entry in zip(docs, entries, strict=True):
            labels = [str(i + 1) for i in range(len(doc["choices"]["text"]))]
            doc["choices"]["label"] = labels
            doc["answerKey"] = entry["answer"].removeprefix("answer")
    return docs


def harness_task(name, docs, folder):
    """The harness's task, with its own wording, on these documents."""
    root = pathlib.Path(importlib.util.find_spec("lm_eval").submodule_search_locations[0], "tasks")
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    settings = config(root / files(name, None))
    settings.pop("process_docs", None)  # HellaSwag's file holds what it would make
    return ConfigurableTask(config={
        **settings, "dataset_path": "json", "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "training_split": None, "validation_split": None, "test_split": "test", "num_fewshot": 0,
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("records", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default="../shared/data/eval")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = HFLM(pretrained=args.model, device="cpu", dtype="float32", batch_size=16)
    for path in sorted(args.records.glob("*.jsonl")):
        header, *records = jsonl(path)
        if path.stem not in ("hellaswag", "arc_easy", "arc_challenge", "piqa"):
            print(f"{path.stem:16} not compared here")
            continue
        if header["settings"]["shots"]:
            parser.error(f"{path}: has worked examples; the harness would draw others")
        ours = {r["id"]: r for r in records}
        docs = labelled(path.stem, args.data)[:args.limit]
        with tempfile.TemporaryDirectory() as folder:
            task = harness_task(path.stem, docs, pathlib.Path(folder))
            results = lm_eval.evaluate(lm=model, task_dict={path.stem: task}, log_samples=True, bootstrap_iters=0)
        samples = sorted(results["samples"][path.stem], key=lambda s: s["doc_id"])
        theirs = {"acc": [], "acc_norm": []}
        mine = {"acc": [], "acc_norm": []}
        same = 0
        for sample in samples:
            record = ours[str(sample["doc_id"])]
            for metric in mine:
                mine[metric] += record["scores"][metric]
                theirs[metric].append(sample[metric])
            logprobs = [r[0][0] for r in sample["resps"]]
            chosen = [c["logprob"] for c in record["output"]]
            same += logprobs.index(max(logprobs)) == chosen.index(max(chosen))
        n = len(samples)
        both = ", ".join(f"{m} {sum(mine[m]) / n:.4f} / {sum(theirs[m]) / n:.4f}" for m in mine)
        print(f"{path.stem:16} {n} questions, koudai / harness: {both}; same choice on {same}", flush=True)


if __name__ == "__main__":
    main()
