#!/usr/bin/env python3
"""Compares the prompts of `koudai eval` with those that lm-evaluation-harness's task files define.

    tools/compare_prompts.py RECORDS [--tasks FOLDER]

RECORDS is a folder that `koudai eval --out RECORDS` filled. The harness's task files (YAML with Jinja
templates) are read and rendered here, without the harness: FOLDER is lm_eval/tasks, by default of the
installed package. Worked examples are those that Koudai takes (the harness may draw others), rendered by the
harness's templates; then whole prompts are compared, character by character. Needs jinja2 and pyyaml.
"""

import argparse
import csv
import importlib.util
import json
import pathlib
import re

import jinja2
import yaml

ENV = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("!function", lambda loader, node: node.value)


def config(path):
    """A task file with what it includes."""
    text = yaml.load(path.read_text(encoding="utf-8"), Loader)
    base = config(path.parent / text.pop("include")) if "include" in text else {}
    return {**base, **text}


def jsonl(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def render(template, doc):
    if isinstance(template, list):
        return template
    if template in doc:
        return doc[template]
    return ENV.from_string(template).render(**doc)


def instructed(entry, mark):
    question, rest = entry["instruction"].split(": ", 1)[1].split(f"\n\n{mark}1: ", 1)
    options = re.split(rf" {mark}\d+: ", rest.rsplit("Answer format:", 1)[0])
    return question, [o.strip() for o in options]


def documents(name, data):
    """The data's items as the harness's dataset has them, by our id."""
    if name == "hellaswag":
        return {str(i): d for i, d in enumerate(jsonl(data / "hellaswag/hellaswag_val_2000.jsonl"))}
    if name in ("arc_easy", "arc_challenge"):
        folder = "ARC-Easy" if name == "arc_easy" else "ARC-Challenge"
        docs = {}
        for i, entry in enumerate(json.load(open(data / f"arc/{folder}/test.json", encoding="utf-8"))):
            question, options = instructed(entry, "Answer")
            docs[str(i)] = {"question": question, "choices": {"text": options}}
        return docs
    if name == "piqa":
        return {str(i): d for i, d in enumerate(jsonl(data / "piqa/valid.jsonl"))}
    if name == "openbookqa":
        docs = {}
        lines = open(data / "openbookqa/test.tsv", encoding="utf-8").read().splitlines()[1:]
        for i, line in enumerate(lines):
            stem, choices = line.split("\t")[1:3]
            docs[str(i)] = {"question_stem": stem,
                            "choices": {"text": re.split(r" ?\([A-D]\) ", choices)[1:]}}
        return docs
    if name == "commonsense_qa":
        docs = jsonl(data / "commonsenseqa/commonsense_qa.jsonl")
        return {str(i): {**d, "choices": {"text": d["choices"]}} for i, d in enumerate(docs)}
    if name == "gsm8k":
        return {str(i): d for i, d in enumerate(jsonl(data / "gsm8k/test.jsonl"))}
    if name in ("mgsm_en", "mgsm_zh"):
        lines = open(data / f"mgsm/{name}.tsv", encoding="utf-8").read().splitlines()
        return {str(i): {"question": l.split("\t")[0], "answer": None} for i, l in enumerate(lines)}
    if name == "mbpp":
        return {str(d["task_id"]): d for d in jsonl(data / "mbpp/mbpp.jsonl")}
    if name in ("mmlu", "cmmlu"):
        docs = {}
        for path in sorted((data / name / "test").glob("*.csv")):
            subject = path.stem.removesuffix("_test")
            docs |= {f"{subject}/{i}": row for i, row in enumerate(rows(path, name))}
        return docs
    if name == "bbh":
        docs = {}
        for path in (data / "bbh/bbh").glob("*.json"):
            for i, d in enumerate(json.load(open(path, encoding="utf-8"))["examples"]):
                docs[f"{path.stem}/{i}"] = d
        return docs
    return None


def files(name, group):
    return {
        "hellaswag": "hellaswag/hellaswag.yaml", "arc_easy": "arc/arc_easy.yaml",
        "arc_challenge": "arc/arc_challenge.yaml", "piqa": "piqa/piqa.yaml",
        "openbookqa": "openbookqa/openbookqa.yaml", "commonsense_qa": "commonsense_qa/default.yaml",
        "gsm8k": "gsm8k/gsm8k.yaml", "mbpp": "mbpp/mbpp.yaml",
        "mgsm_en": "mgsm/native_cot/mgsm_native_cot_en.yaml",
        "mgsm_zh": "mgsm/native_cot/mgsm_native_cot_zh.yaml",
        "mmlu": f"mmlu/default/mmlu_{group}.yaml", "cmmlu": f"cmmlu/cmmlu_{group}.yaml",
        "bbh": f"bbh/cot_fewshot/{group}.yaml",
    }[name]


def rows(path, name):
    for row in csv.DictReader(open(path, encoding="utf-8", newline="")):
        yield {**row, "choices": [row[f"choice{k}"] for k in range(4)]} if name == "mmlu" else row


def examples(name, group, task, data):
    """The documents that are shown: the first, as Koudai takes them without --seed."""
    if name == "gsm8k":
        return jsonl(data / "gsm8k/train.jsonl")
    if name in ("mmlu", "cmmlu"):
        return list(rows(data / name / "dev" / (f"{group}_dev.csv" if name == "mmlu" else f"{group}.csv"), name))
    if name == "mbpp":
        docs = [d for d in jsonl(data / "mbpp/mbpp.jsonl") if d["task_id"] in (2, 3, 4)]
        return [{**d, "is_fewshot": True} for d in docs]
    return task.get("fewshot_config", {}).get("samples")


def shown(task, docs):
    """Worked examples as the harness's templates render them."""
    text = ""
    for doc in docs:
        target = render(task["doc_to_target"], doc)
        if isinstance(task.get("doc_to_choice"), list):
            target = task["doc_to_choice"][int(target)]
        text += render(task["doc_to_text"], doc) + task.get("target_delimiter", " ") + target + "\n\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default="../shared/data/eval")
    parser.add_argument("--tasks", type=pathlib.Path)
    args = parser.parse_args()
    folder = args.tasks or pathlib.Path(
        importlib.util.find_spec("lm_eval").submodule_search_locations[0], "tasks")
    for path in sorted(args.records.glob("*.jsonl")):
        docs = documents(path.stem, args.data)
        if docs is None:
            print(f"{path.stem:16} not compared here")
            continue
        header, *records = jsonl(path)
        shots, same, choices = header["settings"]["shots"], 0, 0
        for record in records:
            group, _, _ = record["id"].rpartition("/")
            task, doc = config(folder / files(path.stem, group)), docs[record["id"]]
            question = render(task["doc_to_text"], doc)
            wanted = task.get("description", "")
            before = examples(path.stem, group, task, args.data) if shots else []
            if before is None:  # MGSM, whose examples the harness cuts: only what is around them
                equal = record["prompt"].endswith("\n\n" + question)
            else:
                equal = record["prompt"] == wanted + shown(task, before[:shots]) + question
            if isinstance(record["output"], list):
                options = task["doc_to_choice"]
                if isinstance(options, str):
                    options = doc.get(options) or eval(  # noqa: S307 - a list that Jinja printed
                        ENV.from_string(options).render(**doc))
                given = [c["continuation"] for c in record["output"]]
                equal &= given == [" " + o for o in options]
                choices += len(given)
            same += equal
            if not equal:
                print("DIFFERS", path.stem, record["id"], json.dumps(record["prompt"][-300:]))
        print(f"{path.stem:16} {same} of {len(records)} prompts equal, {choices} choices")


if __name__ == "__main__":
    main()
