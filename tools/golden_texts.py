"""The prompts and tokenizer strings behind the golden outputs. All of it was written for this project.

PROMPTS: (name, text) continued as they stand. CHATS: (name, [(role, content), …]) put through the model's chat format.
STRINGS: text for the tokenizer, where control-token spellings are text. SPECIAL_STRINGS: the same with those spellings
parsed. Invisible and combining characters are escaped here so that no editor can alter them.

Used by golden.py, golden_tokens_hf.py, stories260k.py and compare_tokens.py; not a program of its own, needs no package.
"""


def _ledger(rows):
    """A long, dull, regular text (beyond Gemma's sliding window of 512 tokens when rows is large)."""
    goods = ["lamp oil", "blue thread", "tin cups", "barley", "rope", "candles", "salt", "paper"]
    lines = ["Stock book of the harbour shop. Each line gives the day, what was sold, and how many were left."]
    for i in range(rows):
        lines.append(f"Day {i + 1}: sold {i * 7 % 9 + 1} {goods[i * 5 % 8]}, {83 - i * 2} left.")
    return "\n".join(lines) + f"\nDay {rows + 1}: sold"


PROMPTS = [
    ("en-word", "The"),
    ("en-short", "The ferry leaves the island every morning at"),
    ("en-fact", "The largest planet in the solar system is"),
    ("en-list", "Four things to pack for a rainy walk:\n1. A waterproof jacket\n2."),
    (
        "en-story",
        "Mira kept a small brass compass in her left pocket. It had never pointed north. Her uncle, who had given it to "
        "her, said that it pointed to whatever its owner had lost, and Mira had laughed at him for years. On the morning "
        "her brother's boat failed to come home she took it out, and for the first time the needle",
    ),
    (
        "en-long",
        "Notes from the repair of a village clock\n\nThe clock above the bakery stopped in late autumn, at ten past four. "
        "Nobody noticed for a day, because the baker tells the time by her ovens and everybody else tells it by the "
        "baker. When we opened the case we found three separate faults. First, the pendulum spring had cracked along its "
        "upper edge, so that each swing was a little shorter than the one before. Second, a wasp had built a nest of grey "
        "paper between the hour wheel and the back plate. Third, somebody, many years ago, had replaced a steel pin with "
        "a piece of bent wire, which had worn a groove as deep as a fingernail into the soft brass. We made a new spring, "
        "moved the nest to the roof, and turned a proper pin on the lathe. The groove we filled with solder and filed "
        "flat. The clock now loses about two seconds a day, which the baker considers rude but acceptable. What we learned "
        "from all this is that",
    ),
    ("en-dialogue", '"Is the bridge open?" asked the driver.\n"Not before noon," the guard replied. "The river is still'),
    ("zh-short", "秋天的山里，"),
    ("zh-question", "问题：一年有几个季节？\n回答："),
    (
        "zh-long",
        "小镇的图书馆只有两间屋子，一间放书，一间放人。馆长姓陈，戴一副旧眼镜，说话很慢。他给每一本书都写了一张卡片，"
        "卡片上没有编号，只有一句话：这本书适合在什么时候读。有的写着“下雨的下午”，有的写着“搬家以后”，"
        "有一本薄薄的诗集上写的是“想念一个人的时候”。孩子们最喜欢的那本画册，卡片上写着",
    ),
    ("ja", "駅前の小さな喫茶店で、彼女は毎朝"),
    ("ko", "오늘 아침에 비가 와서 나는"),
    ("fr", "Le vieux phare se dresse encore au bout de la jetée, où les pêcheurs"),
    ("ar", "في الصباح الباكر يذهب الصياد إلى"),
    ("mixed", "The 茶 ceremony (茶道, sadō) began when"),
    ("code-python", "def count_vowels(text: str) -> int:\n    total = 0\n    for letter in text.lower():\n        if"),
    (
        "code-rust",
        "/// Returns the index of the largest value, or `None` when the slice is empty.\n"
        "pub fn argmax(values: &[f32]) -> Option<usize> {\n    let mut best = None;\n    for (i, v) in",
    ),
    ("code-c", '#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; i++) {\n\t\tprintf("%d\\n",'),
    ("code-sql", "SELECT name, SUM(amount) AS total\nFROM orders\nWHERE shipped = 1\nGROUP BY"),
    ("json", '{"name": "kettle", "price": 24.5, "tags": ["kitchen", "steel"], "stock": {"north": 12, "south":'),
    ("html", "<ul>\n  <li><a href=\"/tea\">Tea</a></li>\n  <li><a href=\"/bread\">Bread</a></li>\n  <li>"),
    ("numbers", "2, 4, 8, 16, 32, 64,"),
    ("sums", "17 + 25 = 42\n31 + 8 = 39\n46 + 13 ="),
    ("dates", "2019-03-01, 2019-03-02, 2019-03-03, 2019-03-"),
    ("emoji", "Weather today: ☀️ → 🌦️ → ⛈️. Mood: 😴 → 😀 →"),
    ("repeat", "red green blue red green blue red green blue red green"),
    ("spaces", "name      qty    price\nplum        3     0.40\npear       12"),
    ("ledger", _ledger(8)),
    ("beyond-window", _ledger(32)),
]

CHATS = [
    ("chat-short", [("user", "Name one river in Africa.")]),
    ("chat-system", [("system", "You answer with a single word."), ("user", "What colour is a ripe lemon?")]),
    ("chat-code", [("user", "Write a Rust function that doubles every number in a Vec<i32>.")]),
    ("chat-zh", [("user", "请用一句话说明什么是潮汐。")]),
    (
        "chat-turns",
        [
            ("user", "I have 12 eggs and use 5 for a cake. How many are left?"),
            ("assistant", "You have 7 eggs left."),
            ("user", "Then I buy 6 more. And now?"),
        ],
    ),
    ("chat-json", [("user", 'Reply with JSON only: {"city": ..., "country": ...} for the city of Lima.')]),
]

_ENGLISH = """
Good evening, neighbour!
The quick grey heron waits; the slow eel doesn't.
An hour later--maybe two--the train came.
She said: "Yes," then "no", then 'perhaps'.
“Curly quotes” and ‘single ones’, an ellipsis… and a dash — done.
a
A
I
ok.
Mr. O'Neill's niece isn't Dr. D'Arcy's.
hyphen-ated, under_scored, dotted.name, slash/ed, back\\slash
e.g. i.e. etc. vs. U.S.A. a.m. p.m.
UPPERCASE lowercase MixedCase camelCaseName PascalCaseName SCREAMING_SNAKE kebab-case-name
Don't you think we'll need what they've got? I'd say he's right, I'm sure you're not.
DON'T YOU THINK WE'LL NEED WHAT THEY'VE GOT? I'D SAY HE'S RIGHT, I'M SURE YOU'RE NOT.
Don'T wE'Ll tHeY'vE i'D hE'S i'M yOu'Re
's 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D
it's'll've 'tis 'twas o'clock rock'n'roll y'all'd've
don’t can’t we’ll they’ve I’m
naïve café résumé Ångström façade jalapeño coöperate
antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
Thequickgreyheronwaitswithoutanyspacesatallinthissentence
!!! ??? ?!?! ... ---- ==== **** ~~~~ #### @@@@ $$$$ %%%% ^^^^ &&&& ____
(a) [b] {c} <d> |e| "f" 'g' `h`
50% off — only $19.99 (was €24,50 / £21.00 / ¥3,000)!
Re: Fwd: [list] subject #42 @handle #topic
""".strip("\n").split("\n")

_WORLD = """
你好，世界！
今天天气很好，我们去公园散步吧。
他说：“明天见！”然后就走了……
《红灯笼》是一本写给孩子的书。
简体中文与繁體中文混排：書、车、車、书。
一二三四五六七八九十百千万亿〇零
龘靐齉爩 𠮷野家 𪚥 㐀㐁
我今年25岁，身高1.75米，体重60kg。
中文English混合text没有空格
（全角）［括号］｛测试｝！？；：，。、～
ＦＵＬＬ　ｗｉｄｔｈ　１２３
人人人人人人人人人人人人人人人人人人人人
湖边的小屋里，灯还亮着。屋外下着雪，屋里煮着茶。
お茶をください。ありがとうございます！
カタカナ ｶﾀｶﾅ ひらがな 漢字 ヴァイオリン
東京都港区一丁目2番3号
すもももももももものうち
ーーー〜〜〜「」『』【】・
안녕하세요, 반갑습니다.
대한민국 서울특별시 종로구
ㄱㄴㄷ ㅏㅑㅓ ㅋㅋㅋㅋ ㅠㅠ
العربية لغة جميلة.
السَّلامُ عَلَيْكُمْ
١٢٣٤٥٦٧٨٩٠ و ۱۲۳۴
مرحبا world مختلط
שלום עולם
שָׁלוֹם
नमस्ते दुनिया
हिन्दी में लिखना
वह १२३ रुपये
বাংলা ভাষা
தமிழ் மொழி
สวัสดีชาวโลก
ภาษาไทยไม่มีช่องว่างระหว่างคำ
ພາສາລາວ ខ្មែរ မြန်မာ
Привет, мир! Как дела?
Съешь ещё этих мягких французских булок
Українська їжа, ґанок
Γειά σου Κόσμε, άλφα βήτα
Έλληνες και αρχαίοι ᾠδή
Tiếng Việt có nhiều dấu thanh
Đường phố Hà Nội
Zażółć gęślą jaźń
Příliš žluťoučký kůň
Grüße aus München, Straße, ÄÖÜ ẞ
İstanbul ıssız ğ ş
Íslenska þjóðin ð
Հայերեն ქართული አማርኛ
ᚠᚢᚦᚨᚱᚲ 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛
∀x∈ℝ: x² ≥ 0 ∧ ∑ᵢ aᵢ ≤ ∞
α+β→γ, ½ + ¼ = ¾, ⅷ Ⅷ ① ② ㊗ ㎏
H₂O, CO₂, E=mc², 10⁻⁹ m, 25 °C, 5 µm
‰ § ¶ † ‡ • ™ © ® № ℃
─│┌┐└┘├┤ ▀▄█ ▲▼ ♠♥♦♣ ♪♫
""".strip("\n").split("\n")

_NUMBERS = """
0
7
42
123
1234
12345
123456789
1234567890123456789012345678901234567890
3.14159265358979
1,000,000.00
-273.15 +4 ±0.5
1e-9 6.02E+23 0x1F 0b1010 0o755 1_000
192.168.0.1:8080 fe80::1%eth0
2024-02-29T23:59:59.999Z
12:30 12/31/99 v1.2.3-rc.4+build.5
(555) 010-0199 ext. 7
007 0007 00000000
1st 2nd 3rd 4th 21st 1990s '90s
9.8m/s^2 100km/h 5GB 3x4 10x
a1b2c3 x86_64 utf8 mp3 3D 4K
1 2 3 4 5 6 7 8 9 10 11 12
""".strip("\n").split("\n")

_CODE = [
    "def area(r):\n    return 3.14159 * r ** 2  # circle\n",
    "class Queue:\n\tdef __init__(self):\n\t\tself.items = []\n\n\tdef push(self, x):\n\t\tself.items.append(x)\n",
    "if x == 1 and not y:\n        z = [i for i in range(10) if i % 2 == 0]",
    "fn main() {\n    let v: Vec<u8> = vec![0; 16];\n    println!(\"{:?}\", &v[..4]);\n}\n",
    "impl<'a, T: Clone + 'static> Iterator for Walk<'a, T> { type Item = &'a T; }",
    "for (size_t i = 0; i < n; ++i) { sum += a[i] * b[i]; } // dot product",
    "#define MAX(a, b) ((a) > (b) ? (a) : (b))",
    "std::unordered_map<std::string, std::vector<int>> m{{\"a\", {1, 2}}};",
    "const f = async (x) => { await g(x?.y ?? 0); return `${x}px`; };",
    "<div class=\"row\"><p>Hi&nbsp;there</p><br/></div>",
    "<h1>Tea</h1><table><tr><td>1</td></tr></table>",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_' ORDER BY c DESC;",
    "{\"id\":7,\"ok\":true,\"v\":[1,2.5,null],\"s\":\"a\\\"b\\n\\u00e9\"}",
    "{\n  \"name\": \"lamp\",\n  \"sizes\": [\n    1,\n    2\n  ]\n}",
    "key: value\nlist:\n  - one\n  - two\nmap: {a: 1, b: [x, y]}\n",
    "[section]\npath = 'C:\\temp\\new'\nlevel=3 ; comment\n",
    "$ ls -la ~/src | grep '^d' | awk '{print $9}' > out.txt 2>&1",
    "https://example.org/a/b.html?q=tea+time&lang=zh-CN#top",
    "someone@example.org, ftp://files.example.net:2121/pub/",
    "\\frac{a+b}{\\sqrt{c^2}} \\leq \\sum_{i=1}^{n} x_i",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "# Title\n\n- item *one*\n- item **two**\n\n```sh\necho hi\n```\n",
    "a=b;c==d;e!=f;g<=h;i>=j;k->l;m=>n;o::p;q&&r;s||t;u++;v--;w<<2;x>>3;!y;~z",
    "(((((((((())))))))))[[[[]]]]{{{{}}}}<<<<>>>>",
    "/* block */ // line\n/** doc */ /// doc\n-- sql # sh % tex",
    "@decorator\n@app.route('/x/<int:id>', methods=[\"GET\"])\n",
    "0xDEADBEEF ^ ~mask & 0b1111_0000u8",
    "lambda s: re.sub(r'(?<=\\d)\\s+(?=[A-Z])', '', s)",
    "git commit -m \"fix: off-by-one in `slice()`\" --no-edit",
    "x = {'a': 1, **rest}\nprint(f\"{x['a']!r:>10}\")\n",
]

_SPACE = [
    " ",
    "  ",
    "   ",
    "    ",
    " " * 7,
    " " * 8,
    " " * 16,
    " " * 31,
    " " * 32,
    " " * 33,
    " " * 70,
    "\n",
    "\n\n",
    "\n\n\n",
    "\n" * 5,
    "\n" * 31,
    "\n" * 33,
    "\t",
    "\t\t",
    "\t" * 4,
    "\t" * 32,
    "\r",
    "\r\n",
    "\r\n\r\n",
    "\n\r",
    "\r\r\n",
    " \n",
    "\n ",
    " \n ",
    "  \n\n  \n",
    "\t\n",
    "\n\t",
    " \t ",
    "\t \t",
    " \r\n ",
    "\f\v",
    "\u0085",
    "\u00a0",
    "\u3000",
    "\u2028\u2029",
    "\u2002\u2003\u2009\u200a\u202f\u205f",
    " a",
    "  a",
    "   a",
    "    a",
    "a ",
    "a  ",
    "a   ",
    "a b",
    "a  b",
    "a   b",
    "a    b",
    "a\tb",
    "a\t\tb",
    "a \tb",
    "a\t b",
    "a\nb",
    "a\n\nb",
    "a\n\n\nb",
    "a \nb",
    "a\n b",
    "a  \n  b",
    "a\r\nb",
    "a\r\n\r\nb",
    "a\rb",
    "a\u00a0b",
    "a\u3000b",
    "line one\nline two\n  indented\n\tTabbed\n\n\nfar below\n",
    "line one\r\nline two\r\n  indented\r\n\tTabbed\r\n\r\n\r\nfar below\r\n",
    "trailing spaces   \nand tabs\t\t\nend   ",
    "   leading, then    four,     five,      six",
    "col1\tcol2\tcol3\n1\t2\t3\n",
    ".\n\n\n  !\n\n ?  \n",
    "word\n    \n\n    word",
    "1  2   3\n4\t5\r\n6",
    "你  好\n\n世\t界",
]

_EMOJI = [
    "😀",
    "😀😃😄😁",
    "I ❤️ tea ☕️ and cake 🍰!",
    "👍👍🏻👍🏼👍🏽👍🏾👍🏿",
    "👨\u200d👩\u200d👧\u200d👦",
    "👩🏽\u200d💻 writes, 🧑\u200d🌾 plants, 🏳️\u200d🌈 waves",
    "🇯🇵🇫🇷🇧🇷 and half a flag: 🇯",
    "1️⃣2️⃣3️⃣ #️⃣ *️⃣",
    "🫠🫡🪿🩷",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "❤ ❤️ ❤\ufe0e ♥ ♥️",
    "🎉party🎉time🎉",
    "(╯°□°)╯︵ ┻━┻ ¯\\_(ツ)_/¯",
    "👩\u200d❤️\u200d💋\u200d👨🐻\u200d❄️",
    "🀄🂡🃏 ♟️",
]

_UNICODE = [
    "caf\u00e9",
    "cafe\u0301",
    "A\u030angstro\u0308m \u00c5ngstr\u00f6m \u212bngstrom",
    "n\u0303 \u00f1, u\u0308 \u00fc, c\u0327 \u00e7",
    "\u1e69 s\u0323\u0307 s\u0307\u0323 \u1e61\u0323",
    "\ud55c\uae00 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u304c \u304b\u3099 \u30d1 \u30cf\u309a",
    "\u0958 \u0915\u093c",
    "\ufb01ne \ufb02ow \ufb03 \u0133 \u01c6",
    "\uff21\uff22\uff23 \uff71\uff72 \u3392",
    "\u2126 \u03a9 \u00b5 \u03bc \u212a K",
    "\u0065\u0301\u0065\u0300\u0065\u0302\u0065\u0308",
    "Z\u0351\u036ba\u0363\u0346l\u0313\u0313g\u0306\u0307o\u0345\u0359",
    "\u0301",
    "a\u0301\u0301\u0301",
    "zero\u200bwidth\u200bspace",
    "non\u200cjoiner \u200djoiner word\u2060joiner",
    "\ufeffbom at the start",
    "mid\ufeffdle",
    "soft\u00adhy\u00adphen",
    "\u200eleft \u200fright \u202bembedded\u202c \u2066isolate\u2069",
    "\u200b",
    "\u200b\u200b\u200b",
    "\u2581\u2581 lower \u2581 one eighth \u2581block",
    "\u0120 \u010a \u0100 \u0142 \u00c2\u00a0",
    "\ufffd \ufffe \uffff",
    "\ue000 private \U000f0000 use \U0010ffff",
    "\x01\x02\x1b[31mred\x1b[0m\x7f\x08",
    "nul\x00byte",
    "\u0660\u0661\u0662 \u0966\u0967 \u0e50\u0e51 \u00b2\u00b3 \u2460 \u216b",
    "x\u00b2+y\u00b3 \u2153\u2154 \u3007\u5341",
    "\u01c5\u01c8 \u02b0\u02b2 \u00aa\u00ba \u2160\u2170",
    "'\u00e9t\u00e9' l'\u00e9t\u00e9 L'\u00c9T\u00c9 \u017ft '\u017f '\u212a",
]

_CONTROL = [
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|>",
    "a<|im_end|>b",
    "<|im_start|><|im_start|>",
    "<|im_start |> <| im_start|> <|im_start",
    "<s> </s> <unk> <pad> <bos> <eos>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<0x0A> <0x41> <0xE4>",
    "[INST] [/INST] <<SYS>> <|user|> <|eot_id|>",
    "<think>\nhm\n</think>",
    "<tool_call>{\"name\": \"f\"}</tool_call>",
    "<repo_name>a<file_sep>b <filename> <jupyter_start>",
    "<unused3> <unused99> [multimodal] <mask> <start_of_image>",
    "<b>bold</b> <i>it</i> <code>x</code> <s>gone</s>",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
]

_LONG = [
    "a" * 64,
    "a" * 257,
    "ab" * 60,
    "abc" * 40,
    "xyzzy" * 30,
    "0123456789" * 12,
    "=" * 80,
    "-" * 79 + ">",
    "_" * 40,
    "ha" * 33 + "!",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen" * 2,
    "GATTACA" * 25,
    "deadbeef" * 16,
    "啊" * 50,
    "哈哈" * 20 + "！",
    "あ" * 40,
    "😀" * 20,
    "é" * 30,
    "e\u0301" * 30,
    "word " * 30,
    "the the the the the the the the the the the the",
    "/" .join(["very", "deep", "path"] * 10),
    "QWxsIHRoaXMgdGV4dCBpcyBvdXJzLCBldmVuIHRoaXMgbGluZQ==",
    "3b1f8a52-90cd-4e7a-b6f1-7c2d5e08a94f",
]

_MIXED = [
    "Total：¥128.50（含税），共3件 items.",
    "在Rust里，`Option<T>`表示“可能没有值”。",
    "the word 'mañana' → 明天 / あした / 내일 / غداً",
    "1. 你好\n2. Hello\n3. こんにちは\n4. 안녕\n",
    "print('你好')  # 打印问候",
    "{\"城市\": \"成都\", \"温度\": 21, \"单位\": \"°C\"}",
    "ABCабвαβγ漢字かなカナ한글عربيहिंदी",
    "x=1，y=2；z＝x＋y。",
    "第1章　Introduction——从零开始",
    "Ünïcödé 123абв456中文789",
    "价格：￥99／$14.5／€13，折扣20%～30%",
    "2024年2月29日（星期四）23:59:59",
    "Q: 1+1=? A: 2。Q：为什么？A：因为😀",
    "re\u0301sume\u0301.pdf 上传完成 ✓ 100%",
    "tea/茶/чай/çay/chá/シャイ/차/شاي",
    "…and so on… 等等…… и т.д.",
]

STRINGS = list(dict.fromkeys(
    [""] + _ENGLISH + _WORLD + _NUMBERS + _CODE + _SPACE + _EMOJI + _UNICODE + _CONTROL + _LONG + _MIXED
    + [text for _, text in PROMPTS if len(text) < 300]
))  # fmt: skip

SPECIAL_STRINGS = list(dict.fromkeys(_CONTROL + [
    "<|im_start|>system\nYou speak softly.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>",
    " <|im_start|> ",
    "  <|im_end|>  \n",
    "x<|im_start|>y <|im_end|>z",
    "<|im_end|>\n\n<|im_start|>",
    "e<|im_end|>\u0301",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"大理\"}}\n</tool_call>",
    "<tool_response>\n21 °C\n</tool_response>",
    "text before<think>thought</think>text after",
    "<think><think></think>",
    "<THINK> <think > < think>",
    "<|im_end|><|endoftext|>",
    "你好<|im_end|>世界",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<bos>Hello<eos>",
    "<bos><start_of_turn>user\nSpeak softly.<end_of_turn>\n<start_of_turn>model\n",
    " <start_of_turn> ",
    "<s>Once</s> <s> twice</s>",
    "<|im_start|><h1>Hi</h1>\n\n\n<|im_end|>",
]))  # fmt: skip
