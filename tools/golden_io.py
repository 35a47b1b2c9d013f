"""Writing golden files: compact JSON with one record a line, invisible characters escaped. Not a program of its own."""
import hashlib
import json
import os
import unicodedata

_HIDDEN = {"Cf", "Cc", "Cn", "Co", "Mn", "Mc", "Me", "Zl", "Zp"}


def dumps(value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "".join(
        json.dumps(c)[1:-1] if c > "\x7e" and (unicodedata.category(c) in _HIDDEN or c.isspace()) else c for c in text
    )


def write(path, header, key, records):
    """Writes {**header, key: [records]} so that each record has a line to itself."""
    head = dumps(header)[:-1]
    body = ",\n".join(dumps(r) for r in records)
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8", newline="\n") as f:
        f.write(f'{head},"{key}":[\n{body}\n]}}\n')
    os.replace(part, path)
    with open(path, encoding="utf-8") as f:
        assert json.load(f) == {**header, key: records}
    print(f"{path}: {len(records)} {key}, {os.path.getsize(path):,} bytes")


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
