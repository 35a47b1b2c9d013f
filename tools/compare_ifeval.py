#!/usr/bin/env python3
"""Compares IFEval's verdicts with those of lm-evaluation-harness, one by one.

    tools/compare_ifeval.py PROMPTS.jsonl --koudai-verdicts BINARY [--records FILE.jsonl] [--made 3]

Texts come from records that `koudai eval --tasks ifeval --out DIR` kept, and are made up: for every
prompt a few that try, or fail, to follow it. BINARY is target/debug/examples/ifeval_verdicts. Needs
lm-eval (its task files only), langdetect, nltk and nltk's punkt_tab; --data names the folder whose
ifeval/punkt_tab/english is the same model.
"""

import argparse
import collections
import json
import random
import subprocess
import tempfile

import importlib.util
import sys
import types

import langdetect

# The task's own files are enough; the packages around them would import a whole training stack.
FOLDER = importlib.util.find_spec("lm_eval").submodule_search_locations[0]
for name, folder in (("lm_eval", FOLDER), ("lm_eval.tasks", f"{FOLDER}/tasks")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from lm_eval.tasks.ifeval import utils  # noqa: E402

SENTENCES = """The quick brown fox jumps over the lazy dog.
Dr. Smith went to Washington D.C. on Jan. 5th, and Mr. Jones stayed at home.
It costs $3.50, i.e. less than 4.00 dollars!
"Are you sure?" she asked. "Yes." he replied.
I think, therefore I am... or so they say.
NASA and the U.S. Navy built it (see Fig. 3 for details).
We can't say WHY it is SO HARD, but it's GONNA be fine.
This isn't the end; it is the beginning: a new day.
He studied at St. Mary's College, Inc. for 3 yrs. Then he left.
what a wonderful world this is
Why not? Because J. S. Bach wrote it at No. 5 Main St. in 1720.
Visit www.example.com or mail a.b@example.org for more info.
My answer is yes.
My answer is maybe.
She said: “This is great.” Then she left.
Wow!!! That is amazing?! Right.
There are 1,000 reasons to go, e.g. the food.""".split("\n")

LANGUAGES = {
    "hi": "यह एक सुंदर दिन है और हम सब बाहर जा रहे हैं। मौसम बहुत अच्छा है।",
    "kn": "ಇದು ಒಂದು ಸುಂದರ ದಿನ ಮತ್ತು ನಾವು ಹೊರಗೆ ಹೋಗುತ್ತಿದ್ದೇವೆ.",
    "mr": "आज हवामान खूप छान आहे आणि आम्ही सर्वजण बाहेर फिरायला जात आहोत.",
    "vi": "Hôm nay trời rất đẹp và chúng tôi đang đi ra ngoài chơi.",
    "ko": "오늘은 날씨가 아주 좋아서 우리는 밖으로 나가고 있습니다.",
    "sw": "Leo hali ya hewa ni nzuri sana na sisi sote tunaenda nje kutembea.",
    "de": "Heute ist das Wetter sehr schön und wir gehen alle nach draußen.",
    "pa": "ਅੱਜ ਮੌਸਮ ਬਹੁਤ ਵਧੀਆ ਹੈ ਅਤੇ ਅਸੀਂ ਸਾਰੇ ਬਾਹਰ ਜਾ ਰਹੇ ਹਾਂ।",
    "fa": "امروز هوا بسیار خوب است و همه ما بیرون می رویم.",
    "ru": "Сегодня очень хорошая погода, и мы все идём гулять.",
    "bg": "Днес времето е много хубаво и всички излизаме навън.",
    "pt": "Hoje o tempo está muito bonito e nós vamos todos para fora.",
    "gu": "આજે હવામાન ખૂબ સરસ છે અને આપણે બધા બહાર જઈ રહ્યા છીએ.",
    "te": "ఈ రోజు వాతావరణం చాలా బాగుంది మరియు మేము బయటకు వెళ్తున్నాము.",
    "it": "Oggi il tempo è molto bello e andiamo tutti fuori a passeggiare.",
    "ar": "الطقس اليوم جميل جدا ونحن جميعا نخرج للتنزه.",
    "ta": "இன்று வானிலை மிகவும் நன்றாக உள்ளது, நாங்கள் வெளியே செல்கிறோம்.",
    "fi": "Tänään sää on todella kaunis ja me kaikki menemme ulos.",
    "ur": "آج موسم بہت اچھا ہے اور ہم سب باہر جا رہے ہیں۔",
    "th": "วันนี้อากาศดีมากและพวกเรากำลังออกไปข้างนอก",
    "ne": "आज मौसम धेरै राम्रो छ र हामी सबै बाहिर जाँदैछौं।",
    "bn": "আজ আবহাওয়া খুব ভালো এবং আমরা সবাই বাইরে যাচ্ছি।",
}


def prose(rng, n):
    return " ".join(rng.choice(SENTENCES) for _ in range(n))


def attempt(rng, doc):
    """A text that follows each instruction with some probability."""
    n = rng.choice([1, 2, 4, 8, 20, 40])
    parts = [prose(rng, rng.randint(1, n)) for _ in range(rng.randint(1, 5))]
    separator = rng.choice(["\n\n", "\n", "\n\n***\n\n", " *** ", "\n\n\n"])
    text, wraps = separator.join(parts), []
    for kind, kwargs in zip(doc["instruction_id_list"], doc["kwargs"]):
        if rng.random() < 0.3:
            continue
        about = lambda k: max(0, int(kwargs[k]) + rng.choice([-1, 0, 0, 1]))
        name = kind.split(":")[1]
        if name == "existence":
            text += " " + " ".join(rng.choice([k, k.upper(), k + "s"]) for k in kwargs["keywords"])
        elif name == "frequency":
            text += f" {kwargs['keyword']}" * about("frequency")
        elif name == "forbidden_words" and rng.random() < 0.4:
            text += " " + rng.choice(["", "x", "-"]) + rng.choice(kwargs["forbidden_words"])
        elif name == "letter_frequency":
            text += kwargs["letter"] * about("let_frequency")
        elif name == "response_language":
            text = LANGUAGES.get(rng.choice([kwargs["language"]] * 4 + list(LANGUAGES)), text)
        elif name == "number_sentences":
            text = prose(rng, about("num_sentences"))
        elif name == "number_paragraphs":
            text = rng.choice(["\n***\n", "***", "\n\n***\n\n"]).join(
                prose(rng, 1) for _ in range(about("num_paragraphs")))
        elif name == "number_words":
            text = " ".join(rng.choice(["word", "can't", "नमस्ते", "x-y", "1,000"])
                            for _ in range(about("num_words")))
        elif name == "nth_paragraph_first_word":
            ps = [prose(rng, 1) for _ in range(about("num_paragraphs"))]
            if 0 < kwargs["nth_paragraph"] <= len(ps):
                i = kwargs["nth_paragraph"] - 1
                ps[i] = rng.choice(["", "'", '"', "*"]) + kwargs["first_word"].title() + rng.choice(
                    [" ", ", ", "! ", "'s "]) + ps[i]
            text = rng.choice(["\n\n", "\n\n", "\n\n\n\n"]).join(ps)
        elif name == "number_placeholders":
            text += " [name]" * about("num_placeholders")
        elif name == "postscript":
            text += "\n\n" + rng.choice([kwargs["postscript_marker"], "p.s.", "P.P.S.", "P. P. S", "PS"]) + " Bye"
        elif name == "number_bullet_lists":
            text += "".join(rng.choice(["\n* one", "\n- two", "\n  * three"])
                            for _ in range(about("num_bullets")))
        elif name == "number_highlighted_sections":
            text += "".join(rng.choice([" *one*", " **two**", " * *", " *a b*"])
                            for _ in range(about("num_highlights")))
        elif name == "multiple_sections":
            text = "".join(f"{kwargs['section_spliter']} {i + 1}\n{prose(rng, 1)}\n"
                           for i in range(about("num_sections")))
        elif name == "json_format":
            body = json.dumps({"a": [1, text]})
            text = rng.choice([body, f"```json\n{body}\n```", f"```\n{body}", body[:-1], "Sure:\n" + body])
        elif name == "title":
            text = rng.choice(["<<A title>>\n", "<< >>\n", "<<<x>>>\n", "<<\n>>"]) + text
        elif name == "two_responses":
            text = rng.choice(["{a}******{b}", "{a}******{a}", "******{a}\n******\n{b}******", "{a}*****{b}",
                               "{a}******\n******{b}"]).format(a=prose(rng, 1), b=prose(rng, 2))
        elif name == "repeat_prompt":
            prompt = kwargs["prompt_to_repeat"]
            text = rng.choice([prompt, prompt.upper(), " \n" + prompt, prompt[:-1] + "x"]) + "\n" + text
        elif name == "end_checker":
            wraps.append(lambda t, e=kwargs["end_phrase"]: t + rng.choice([" ", "\n"]) + rng.choice(
                [e, e.upper(), e + '"', e + " bye"]))
        elif name == "quotation":
            wraps.append(lambda t: rng.choice(['"{}"', '"{}', ' "{}" \n', "“{}”"]).format(t))
        elif name == "capital_word_frequency":
            text += " " + " ".join(rng.choice(["HELLO", "N.A.S.A.", "A-B", "CAN'T", "\"X\"", "I", "Hi", "CANNOT!"])
                                   for _ in range(about("capital_frequency")))
        elif name == "english_capital":
            wraps.append(str.upper)
        elif name == "english_lowercase":
            wraps.append(str.lower)
        elif name == "no_comma":
            text = text.replace(",", "")
    for wrap in wraps:
        text = wrap(text)
    # Pleasantries that only the loose verdict forgives.
    before, after = rng.choice([("", "")] * 2 + [("Sure!\n", ""), ("", "\nGoodbye."), ("*", "*")])
    return before + text + after


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prompts")
    parser.add_argument("--koudai-verdicts", required=True)
    parser.add_argument("--data", default=".")
    parser.add_argument("--records")
    parser.add_argument("--made", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", help="keep texts and the harness's verdicts in this file")
    args = parser.parse_args()
    langdetect.DetectorFactory.seed = 0
    docs = [json.loads(line) for line in open(args.prompts, encoding="utf-8")]
    rng = random.Random(args.seed)
    texts = [(doc, attempt(rng, doc)) for doc in docs for _ in range(args.made)]
    if args.records:
        by_id = {str(d["id"]): d for d in docs}
        records = [json.loads(line) for line in open(args.records, encoding="utf-8")][1:]
        texts += [(by_id[r["id"]], r["output"]) for r in records]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for doc, text in texts:
            file.write(json.dumps({**doc, "response": text}, ensure_ascii=False) + "\n")
        file.flush()
        out = subprocess.run([args.koudai_verdicts, file.name, args.data], check=True,
                             capture_output=True, text=True).stdout
    ours = [json.loads(line) for line in out.splitlines()]
    assert len(ours) == len(texts)
    counts = collections.defaultdict(collections.Counter)
    wrong, kept = 0, []
    for (doc, text), verdicts in zip(texts, ours):
        kept.append({**doc, "response": text})
        example = utils.InputExample(doc["id"], doc["instruction_id_list"], doc["prompt"], doc["kwargs"])
        for level, judge in (("strict", utils.test_instruction_following_strict),
                             ("loose", utils.test_instruction_following_loose)):
            theirs = judge(example, text).follow_instruction_list
            kept[-1][level] = [bool(t) for t in theirs]
            for kind, a, b, kwargs in zip(doc["instruction_id_list"], theirs, verdicts[level], doc["kwargs"]):
                if kwargs.get("letter", "a") in "#!":
                    continue  # the harness draws a letter at random
                counts[kind][f"{bool(a)}"] += 1
                if bool(a) != b:
                    counts[kind]["differ"] += 1
                    wrong += 1
                    if wrong <= 20:
                        print("DIFFER", level, kind, kwargs, "theirs", a, json.dumps(text[-300:]))
    if args.write:
        with open(args.write, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(k, ensure_ascii=False) + "\n" for k in kept)
    for kind, c in sorted(counts.items()):
        print(f"{kind:48} true {c['True']:5} false {c['False']:5} differ {c['differ']}")
    total = sum(c["True"] + c["False"] for c in counts.values())
    print(f"{len(texts)} texts, {total} verdicts, {wrong} differ")


if __name__ == "__main__":
    main()
