#!/usr/bin/env python3
"""Writes the training texts of koudai-mini: permissively licensed English and Chinese.

    recipes/mini/prepare.py --corpus DIR --out DIR [--wordnet DIR]

--corpus holds en/{python311_doc_en,libreoffice_help_en-US,tinyshakespeare}.txt, en/self_instruct_seeds.jsonl and
zh/{chinese_poetry,libreoffice_help_zh-CN}.txt; --wordnet the dictionary files of WordNet (Debian's wordnet-base).
Written are, as JSONL and always the same:

    pretrain.jsonl, pretrain.heldout.DOMAIN.txt     {"text": …}: documents; one in 100 is held out
    sft.jsonl, sft.heldout.jsonl                    {"messages": […]}: poems, definitions, help texts, instructions

A document is held out by a hash of its text, so that adding one moves no other.
"""

import argparse
import hashlib
import json
import pathlib
import random
import re

# Poems are a third of all text by bytes; a model of both languages needs less of them.
POETRY_BYTES = 12_000_000
FORMS = {(4, 5): "五言絕句", (4, 7): "七言絕句", (8, 5): "五言律詩", (8, 7): "七言律詩"}


def held_out(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:2]) < 655


def python_docs(path):
    """Sections of the manual: a line underlined with stars or equal signs starts one."""
    text = path.read_text(encoding="utf-8")
    starts = [m.start() for m in re.finditer(r"^[^\n]+\n(\*{4,}|={4,})\n", text, re.M)]
    for start, end in zip(starts, starts[1:] + [len(text)]):
        section = text[start:end].strip()
        # Long ones come in pieces at paragraphs, so that one in a hundred is a fair sample.
        piece = ""
        for paragraph in section.split("\n\n"):
            piece += paragraph + "\n\n"
            if len(piece) > 4000:
                yield piece.strip()
                piece = ""
        if len(piece) > 200:
            yield piece.strip()


def help_pages(path):
    for page in re.split(r"^LibreOffice 7\.4 (?:Help|帮助)$", path.read_text(encoding="utf-8"), flags=re.M):
        page = re.split(r"^(?:Help content debug info|帮助内容调试信息)", page, flags=re.M)[0]
        page = re.sub(r"\A\s*(?:Module|模块)\s+(?:Contents|目录)\s+(?:Index|索引) 🔎︎\s*", "", page)
        page = re.sub(r"\n\s*\n+", "\n", page).strip()
        if len(page) > 200:
            yield page


def plays(path):
    lines, piece = path.read_text(encoding="utf-8").split("\n\n"), ""
    for line in lines:
        piece += line + "\n\n"
        if len(piece) > 2000:
            yield piece.strip()
            piece = ""


def definitions(folder):
    """(word, part of speech, gloss, examples) of WordNet, without proper names."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(folder / f"data.{part}", encoding="utf-8"):
            if line.startswith("  "):
                continue
            data, gloss = line.split(" | ", 1)
            fields = data.split(" ")
            words = [fields[4 + 2 * i] for i in range(int(fields[3], 16))]
            word = re.sub(r"\(.*\)", "", words[0]).replace("_", " ")
            if word.islower():
                meaning, *examples = re.split(r'; (?=")', gloss.strip())
                yield word, {"adj": "adjective", "adv": "adverb"}.get(part, part), meaning, examples


def poems(path):
    """(title, author, lines); a poem that goes on for pages is left out."""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        head, _, body = block.strip().partition("\n")
        title, _, author = head.rpartition(" ")
        lines = body.split("\n")
        if title and body and len(body) < 400 and not re.search(r"[\[\]（）□{}<>a-z]", block):
            yield title.strip(), author, lines


def form(lines):
    """The classical form, if all clauses are equally long and there are four or eight."""
    clauses = [c for c in re.split(r"[，。？！；、]", "".join(lines)) if c]
    sizes = {len(c) for c in clauses}
    return FORMS.get((len(clauses), sizes.pop())) if len(sizes) == 1 else None


def dialogue(user, assistant):
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--wordnet", type=pathlib.Path, default="/usr/share/wordnet")
    args = parser.parse_args()
    if not (args.wordnet / "data.noun").exists():
        parser.error(f"{args.wordnet}: no WordNet there (Debian: apt-get install wordnet-base)")
    rng = random.Random(1)
    en, zh = args.corpus / "en", args.corpus / "zh"

    entries = sorted(definitions(args.wordnet))
    rng.shuffle(entries)
    verses = list(poems(zh / "chinese_poetry.txt"))
    rng.shuffle(verses)
    size, kept = 0, []
    for title, author, lines in verses:
        if size < POETRY_BYTES:
            kept.append((title, author, lines))
            size += len("\n".join([title, author, *lines]).encode())
    pages = {lang: list(help_pages(path)) for lang, path in
             [("en", en / "libreoffice_help_en-US.txt"), ("zh", zh / "libreoffice_help_zh-CN.txt")]}

    def dictionary():
        for start in range(0, len(entries), 8):
            yield "\n".join(f"{word} ({part}): {'; '.join([meaning, *examples])}"
                            for word, part, meaning, examples in entries[start:start + 8])

    domains = {
        "python": list(python_docs(en / "python311_doc_en.txt")),
        "help_en": pages["en"],
        "plays": list(plays(en / "tinyshakespeare.txt")),
        "dictionary": list(dictionary()),
        "poetry": [f"{title} {author}\n" + "\n".join(lines) for title, author, lines in kept],
        "help_zh": pages["zh"],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    train = []
    for name, documents in domains.items():
        kept_out = [d for d in documents if held_out(d)]
        (args.out / f"pretrain.heldout.{name}.txt").write_text("\n\n".join(kept_out), encoding="utf-8")
        train += [d for d in documents if not held_out(d)]
        print(f"{name}: {len(documents)} documents, {sum(len(d.encode()) for d in documents) / 1e6:.1f} MB, "
              f"{len(kept_out)} held out")
    rng.shuffle(train)
    write(args.out / "pretrain.jsonl", ({"text": d} for d in train))

    tasks = []
    for title, author, lines in kept:
        kind, text = form(lines), "\n".join(lines)
        if not kind or held_out(f"{title} {author}\n{text}"):
            continue
        if rng.random() < 0.5:
            tasks.append((dialogue(f"寫一首{kind}，題為《{title}》。", text), text))
        else:
            first, _, rest = text.partition("\n")
            tasks.append((dialogue(f"續寫這首{kind}：{first}", rest), text))
    tasks = tasks[:12_000]
    for word, part, meaning, examples in entries:
        if " " not in word and len(tasks) < 24_000:
            answer = f"{word} ({part}): {meaning}." + (f" For example: {examples[0]}." if examples else "")
            tasks.append((dialogue(rng.choice(["Define {}.", "What does \"{}\" mean?"]).format(word), answer), answer))
    for lang, ask in (("en", "Complete this help text: "), ("zh", "补全这段帮助文字：")):
        for page in pages[lang]:
            if held_out(page):
                continue
            for paragraph in page.split("\n"):
                sentences = re.split(r"(?<=[.。])\s*", paragraph.strip(), maxsplit=1)
                if len(sentences) == 2 and min(map(len, sentences)) > 20 and len(paragraph) < 500:
                    tasks.append((dialogue(ask + sentences[0], sentences[1].strip()), paragraph))
                    break
    for line in open(en / "self_instruct_seeds.jsonl", encoding="utf-8"):
        seed = json.loads(line)
        for instance in seed["instances"]:
            if len(instance["output"]) < 600:
                user = "\n".join(filter(None, [seed["instruction"], instance["input"]]))
                tasks.append((dialogue(user, instance["output"]), user))
    rng.shuffle(tasks)
    write(args.out / "sft.jsonl", (task for task, key in tasks if not held_out(key)))
    write(args.out / "sft.heldout.jsonl", (task for task, key in tasks if held_out(key)))


def write(path, items):
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for item in items:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")
            count += 1
    print(f"{path}: {count} lines, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
