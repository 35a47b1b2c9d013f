//! Instructions that fit Chinese: characters instead of words, sentences that end with 。！？, titles
//! in 《》, quotation marks, scripts, numbered lists and verse.
//!
//! Ours, in the form of IFEval. A Chinese character here is a Han ideograph; punctuation and spaces
//! never count.

use std::collections::HashSet;
use std::sync::LazyLock;

use fancy_regex::Regex;

use super::words::pattern;
use super::{Arguments, Check};

/// The check of an instruction.
pub(super) fn check(id: &str, a: &Arguments<'_>) -> Result<Check, String> {
    Ok(match id {
        "length:characters" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(han(text).count()))
        }
        "length:sentences" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(sentences(text)))
        }
        "length:paragraphs" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(lines(text).count()))
        }
        "length:nth_paragraph_start" => {
            let (nth, start) = (a.number("nth")?, a.text("start")?);
            let index = nth.checked_sub(1).ok_or_else(|| a.wrong("nth", "1 or more"))?;
            Box::new(move |text| lines(text).nth(index).is_some_and(|l| l.starts_with(&start)))
        }
        "keywords:existence" => {
            let keywords = a.texts("keywords")?;
            Box::new(move |text| keywords.iter().all(|k| text.contains(k)))
        }
        "keywords:forbidden" => {
            let keywords = a.texts("keywords")?;
            Box::new(move |text| !keywords.iter().any(|k| text.contains(k)))
        }
        "keywords:frequency" => {
            let (keyword, fits) = (a.text("keyword")?, a.comparison("relation", "num")?);
            Box::new(move |text| fits(text.matches(&keyword).count()))
        }
        "format:bullets" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(lines(text).filter(|l| is_bullet(l)).count()))
        }
        "format:numbered_list" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| numbered(text).is_some_and(&fits))
        }
        "format:highlights" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(HIGHLIGHT.find_iter(text).map_while(Result::ok).count()))
        }
        "format:sections" => {
            let (mark, number) = (a.text("mark")?, a.number("num")?);
            if !mark.contains('N') {
                return Err(a.wrong("mark", "a heading with N for the number"));
            }
            Box::new(move |text| has_sections(text, &mark, number))
        }
        "format:title" => Box::new(|text| lines(text).next().is_some_and(is_title)),
        "format:titles" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(between(text, '《', '》')))
        }
        "format:placeholders" => {
            let fits = a.comparison("relation", "num")?;
            Box::new(move |text| fits(between(text, '【', '】')))
        }
        "format:json" => Box::new(is_json),
        "format:table" => {
            let fits = a.comparison("relation", "rows")?;
            Box::new(move |text| table_rows(text).is_some_and(&fits))
        }
        "format:options" => {
            let options = a.texts("options")?;
            Box::new(move |text| options.iter().any(|o| text.trim() == o))
        }
        "quotes:whole" => {
            let (open, close) = quotes(a)?;
            Box::new(move |text| is_wrapped(text.trim(), open, close))
        }
        "quotes:count" => {
            let ((open, close), fits) = (quotes(a)?, a.comparison("relation", "num")?);
            Box::new(move |text| fits(between(text, open, close)))
        }
        "script:simplified" => {
            Box::new(|text| has_han(text) && !han(text).any(|c| TRADITIONAL.contains(&c)))
        }
        "script:traditional" => {
            Box::new(|text| has_han(text) && !han(text).any(|c| SIMPLIFIED.contains(&c)))
        }
        "script:pinyin" => Box::new(is_pinyin),
        "script:no_latin" => {
            Box::new(|text| has_han(text) && !text.chars().any(|c| c.is_alphabetic() && !is_han(c)))
        }
        "script:no_digits" => Box::new(|text| !text.chars().any(|c| c.is_numeric() && !is_han(c))),
        "script:english" => {
            Box::new(|text| !has_han(text) && text.chars().any(|c| c.is_ascii_alphabetic()))
        }
        "punctuation:forbidden" => {
            let marks = a.texts("marks")?;
            Box::new(move |text| !marks.iter().any(|m| text.contains(m)))
        }
        "punctuation:frequency" => {
            let (mark, fits) = (a.text("mark")?, a.comparison("relation", "num")?);
            Box::new(move |text| fits(text.matches(&mark).count()))
        }
        "punctuation:fullwidth" => Box::new(|text| !HALFWIDTH.is_match(text).unwrap_or(true)),
        "startend:start" => {
            let phrase = a.text("phrase")?;
            Box::new(move |text| text.trim().starts_with(&phrase))
        }
        "startend:end" => {
            let phrase = a.text("phrase")?;
            Box::new(move |text| text.trim().ends_with(&phrase))
        }
        "startend:postscript" => {
            let marker = a.text("marker")?;
            Box::new(move |text| {
                lines(text).last().is_some_and(|l| l.starts_with(&marker) && l.len() > marker.len())
            })
        }
        "combination:two_responses" => Box::new(two_responses),
        "combination:repeat_prompt" => {
            let prompt = a.text("prompt")?;
            Box::new(move |text| {
                let rest = text.trim().strip_prefix(prompt.as_str());
                rest.is_some_and(|rest| !rest.trim().is_empty())
            })
        }
        "verse:lines" => {
            let (number, length) = (a.number("num")?, a.number("characters")?);
            Box::new(move |text| {
                let lengths: Vec<usize> = verses(text).map(|v| v.chars().count()).collect();
                lengths.len() == number && lengths.iter().all(|n| *n == length)
            })
        }
        "verse:acrostic" => {
            let word = a.text("word")?;
            Box::new(move |text| lines(text).filter_map(|l| han(l).next()).eq(word.chars()))
        }
        _ => return Err(format!("`{id}` is no known instruction")),
    })
}

fn is_han(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}' | '〇')
}

fn han(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| is_han(*c))
}

fn has_han(text: &str) -> bool {
    text.chars().any(is_han)
}

/// Lines that aren't empty, without spaces around.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|l| !l.is_empty())
}

/// Stretches that end with one or more of 。！？…; what follows the last mark counts if it says
/// something.
fn sentences(text: &str) -> usize {
    let parts = text.split(['。', '！', '？', '…', '!', '?', '\n']);
    parts.filter(|part| part.chars().any(char::is_alphanumeric)).count()
}

fn is_bullet(line: &str) -> bool {
    ["- ", "* ", "+ ", "• ", "· ", "•", "·"].iter().any(|mark| line.starts_with(mark))
}

const NUMERALS: [&str; 10] = ["一", "二", "三", "四", "五", "六", "七", "八", "九", "十"];

/// A number from 1 to 99 in Chinese numerals.
fn numeral(n: usize) -> String {
    let digit = |n: usize| if n == 0 { "" } else { NUMERALS[n - 1] };
    match n {
        0..=10 => digit(n).into(),
        11..=19 => format!("十{}", digit(n % 10)),
        _ => format!("{}十{}", digit(n / 10), digit(n % 10)),
    }
}

/// Items of a list numbered 1, 2, 3 … (`1.`, `1、`, `（1）`, `一、` …); `None` if a number is out of
/// place.
fn numbered(text: &str) -> Option<usize> {
    let numbers: Vec<&str> = lines(text)
        .filter_map(|l| NUMBERED.captures(l).ok().flatten())
        .filter_map(|c| Some(c.get(1).or(c.get(2))?.as_str()))
        .collect();
    let expected = |(i, n): (usize, &&str)| *n == (i + 1).to_string() || *n == numeral(i + 1);
    numbers.iter().enumerate().all(expected).then_some(numbers.len())
}

/// Headings with N from 1 to `number`, each starting a line, in order, and none beyond.
fn has_sections(text: &str, mark: &str, number: usize) -> bool {
    let heading = |n: usize| [mark.replace('N', &n.to_string()), mark.replace('N', &numeral(n))];
    let starts = |line: &str, n: usize| {
        let line = line.trim_start_matches(['#', '*', ' ', '【']);
        heading(n).iter().any(|h| line.starts_with(h))
    };
    let mut next = 1;
    for line in lines(text) {
        if starts(line, next) {
            next += 1;
        }
    }
    next == number + 1
}

/// Stretches between two marks that hold something, on one line.
fn between(text: &str, open: char, close: char) -> usize {
    let mut n = 0;
    for line in text.lines() {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once(open) {
            let Some((inside, after)) = after.split_once(close) else { break };
            n += !inside.trim().is_empty() as usize;
            rest = after;
        }
    }
    n
}

fn is_title(line: &str) -> bool {
    let line = line.trim_matches(['#', '*', ' ']);
    is_wrapped(line, '《', '》')
}

/// The text is in one pair of marks and not empty.
fn is_wrapped(text: &str, open: char, close: char) -> bool {
    let inside = text.strip_prefix(open).and_then(|t| t.strip_suffix(close));
    inside.is_some_and(|t| !t.trim().is_empty())
}

/// The pair of quotation marks that an instruction names.
fn quotes(a: &Arguments<'_>) -> Result<(char, char), String> {
    match a.text("marks")?.as_str() {
        "“”" => Ok(('“', '”')),
        "「」" => Ok(('「', '」')),
        "『』" => Ok(('『', '』')),
        _ => Err(a.wrong("marks", "“”, 「」 or 『』")),
    }
}

fn is_json(text: &str) -> bool {
    let text = text.trim();
    let text = text.strip_prefix("```json").or(text.strip_prefix("```")).unwrap_or(text);
    let text = text.strip_suffix("```").unwrap_or(text);
    let value = serde_json::from_str::<serde_json::Value>(text.trim());
    value.is_ok_and(|v| v.is_object() || v.is_array())
}

/// Rows of the first Markdown table, without its heading.
fn table_rows(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let rule = |l: &str| l.contains("--") && l.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    let at = lines.iter().position(|l| l.starts_with('|') && rule(l)).filter(|at| *at > 0)?;
    let columns = |l: &str| l.trim_matches('|').split('|').count();
    let wanted = columns(lines[at]);
    let rows = lines[at + 1..].iter().take_while(|l| l.starts_with('|'));
    let same = lines[at - 1].starts_with('|') && columns(lines[at - 1]) == wanted;
    same.then(|| rows.filter(|l| columns(l) == wanted).count())
}

/// Words in Latin letters, mostly with tone marks, and nothing in characters.
fn is_pinyin(text: &str) -> bool {
    const TONES: &str = "āáǎàēéěèīíǐìōóǒòūúǔùǖǘǚǜ";
    let letters = |c: char| c.is_ascii_alphabetic() || c == 'ü' || TONES.contains(c);
    let lower = text.to_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !c.is_alphabetic()).filter(|w| !w.is_empty()).collect();
    let toned = words.iter().filter(|w| w.chars().any(|c| TONES.contains(c))).count();
    !words.is_empty() && words.iter().all(|w| w.chars().all(letters)) && toned * 2 > words.len()
}

fn two_responses(text: &str) -> bool {
    let parts: Vec<&str> = text.split("******").map(str::trim).collect();
    parts.len() == 2 && parts.iter().all(|p| !p.is_empty()) && parts[0] != parts[1]
}

/// Verses: what stands between punctuation and line ends, if it is all characters.
fn verses(text: &str) -> impl Iterator<Item = &str> {
    let lines = lines(text).filter(|l| !is_title(l));
    lines.flat_map(|l| l.split(['，', '。', '！', '？', '；', '、', ' '])).filter(|v| has_han(v))
}

static HIGHLIGHT: LazyLock<Regex> =
    LazyLock::new(|| constant(r"\*\*[^\n*]*[^\n*\s][^\n*]*\*\*|(?<!\*)\*[^\n*\s][^\n*]*\*(?!\*)"));
static NUMBERED: LazyLock<Regex> = LazyLock::new(|| {
    constant(
        "^(?:[*#]+ *)?(?:[（(]([0-9]+|[一二三四五六七八九十]+)[）)]|([0-9]+|[一二三四五六七八九十]+)[.、．)）](?![0-9]))",
    )
});
/// Half-width punctuation where Chinese has its own; a point or comma inside a number is none.
static HALFWIDTH: LazyLock<Regex> =
    LazyLock::new(|| constant(r#"[!?;()"']|(?<![0-9])[.,:]|[.,:](?![0-9])"#));

fn constant(text: &str) -> Regex {
    pattern(text).expect("a constant pattern")
}

/// Common characters whose simplified form is no traditional character of another use: simplified,
/// traditional.
const PAIRS: &str = "爱愛 罢罷 办辦 帮幫 宝寶 报報 贝貝 备備 笔筆 毕畢 边邊 编編 变變 标標 宾賓 补補 财財 参參 \
    仓倉 产產 长長 尝嘗 场場 车車 陈陳 称稱 诚誠 迟遲 齿齒 虫蟲 处處 传傳 创創 词詞 从從 错錯 达達 带帶 单單 担擔 \
    当當 党黨 导導 灯燈 邓鄧 敌敵 递遞 点點 电電 东東 动動 对對 队隊 顿頓 夺奪 儿兒 尔爾 发發 饭飯 访訪 飞飛 费費 \
    风風 丰豐 妇婦 复復 负負 该該 刚剛 岗崗 个個 给給 过過 关關 观觀 馆館 广廣 归歸 贵貴 国國 还還 汉漢 号號 红紅 \
    后後 护護 华華 画畫 话話 怀懷 坏壞 欢歡 环環 换換 黄黃 会會 获獲 击擊 机機 积積 级級 极極 际際 继繼 纪紀 \
    计計 记記 济濟 价價 驾駕 坚堅 间間 艰艱 简簡 见見 键鍵 将將 讲講 奖獎 脚腳 觉覺 节節 结結 经經 进進 惊驚 静靜 \
    旧舊 举舉 剧劇 军軍 开開 壳殼 课課 块塊 夸誇 宽寬 矿礦 来來 兰蘭 蓝藍 劳勞 乐樂 离離 丽麗 历歷 励勵 连連 联聯 \
    练練 凉涼 两兩 疗療 邻鄰 灵靈 龄齡 领領 刘劉 龙龍 楼樓 录錄 陆陸 绿綠 论論 罗羅 妈媽 马馬 买買 卖賣 满滿 猫貓 \
    贸貿 么麼 门門 们們 梦夢 灭滅 难難 鸟鳥 农農 浓濃 盘盤 赔賠 评評 凭憑 齐齊 骑騎 岂豈 气氣 迁遷 钱錢 墙牆 桥橋 \
    亲親 轻輕 请請 庆慶 穷窮 区區 权權 劝勸 确確 让讓 热熱 认認 荣榮 软軟 赛賽 伞傘 扫掃 杀殺 晒曬 伤傷 赏賞 烧燒 \
    设設 绍紹 谁誰 审審 声聲 胜勝 师師 诗詩 时時 识識 实實 视視 试試 适適 书書 输輸 属屬 术術 树樹 数數 双雙 说說 \
    丝絲 苏蘇 虽雖 随隨 岁歲 孙孫 损損 态態 谈談 汤湯 题題 体體 条條 铁鐵 听聽 厅廳 头頭 图圖 团團 万萬 为為 围圍 \
    卫衛 伟偉 温溫 闻聞 问問 无無 务務 误誤 习習 系係 细細 戏戲 显顯 险險 现現 献獻 乡鄉 详詳 响響 项項 协協 写寫 \
    谢謝 兴興 选選 学學 寻尋 训訓 压壓 严嚴 颜顏 盐鹽 艳艷 验驗 养養 样樣 药藥 爷爺 业業 叶葉 医醫 仪儀 亿億 忆憶 \
    艺藝 义義 议議 异異 阴陰 银銀 饮飲 应應 营營 赢贏 拥擁 优優 忧憂 邮郵 鱼魚 与與 语語 预預 员員 园園 圆圓 远遠 \
    愿願 约約 阅閱 云雲 运運 杂雜 赞贊 脏髒 则則 择擇 泽澤 责責 战戰 张張 账賬 这這 阵陣 郑鄭 证證 织織 职職 执執 \
    纸紙 质質 钟鐘 种種 众眾 昼晝 猪豬 烛燭 筑築 专專 转轉 装裝 壮壯 状狀 准準 资資 总總 组組 钻鑽 岛島 锅鍋 \
    饺餃 饼餅 凤鳳 龟龜 鸡雞 鸭鴨 鹅鵝 虾蝦 鲜鮮 笼籠 炉爐 灿燦 烂爛 辉輝 飘飄 缘緣 绕繞 绘繪 络絡 续續";

fn side(index: usize) -> HashSet<char> {
    let pairs = PAIRS.split_whitespace().map(|p| p.chars().collect::<Vec<_>>());
    // Characters that are written alike on both sides, or are used on both, tell nothing.
    let all: Vec<Vec<char>> = pairs.filter(|p| p.len() == 2 && p[0] != p[1]).collect();
    let shared = |c: char| SHARED.contains(c) || all.iter().any(|p| p[1 - index] == c);
    all.iter().map(|p| p[index]).filter(|c| !shared(*c)).collect()
}

/// Simplified forms that are traditional characters too (皇后, 子云, 系列 …).
const SHARED: &str = "后云系谷丰准个几干里面松只台向才斗丑冲出复";

static SIMPLIFIED: LazyLock<HashSet<char>> = LazyLock::new(|| side(0));
static TRADITIONAL: LazyLock<HashSet<char>> = LazyLock::new(|| side(1));
