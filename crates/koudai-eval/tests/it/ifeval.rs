//! Instructions that a program checks: each kind with texts that follow it and texts that don't.

use std::collections::BTreeSet;

use koudai_eval::tasks::ifeval::{Checker, Instructed, loose, strict};
use koudai_eval::tasks::{Answer, Request, Source, Task};
use serde_json::{Value, json};

/// Whether each text follows the instruction, in the form in which prompts carry it.
fn verdicts(checker: &Checker, id: &str, kwargs: Value, texts: &[&str]) -> Vec<bool> {
    let doc = json!({ "id": 1, "prompt": "", "instruction_id_list": [id], "kwargs": [kwargs] });
    let doc: Instructed = serde_json::from_value(doc).unwrap();
    let checks = checker.checks(&doc).unwrap_or_else(|e| panic!("{e}"));
    texts.iter().map(|text| strict(&checks, text)[0]).collect()
}

fn judge(checker: &Checker, id: &str, kwargs: Value, follow: &[&str], dont: &[&str]) {
    let yes = verdicts(checker, id, kwargs.clone(), follow);
    let no = verdicts(checker, id, kwargs.clone(), dont);
    for (text, verdict) in follow.iter().zip(yes) {
        assert!(verdict, "{id} {kwargs}: {text:?} follows");
    }
    for (text, verdict) in dont.iter().zip(no) {
        assert!(!verdict, "{id} {kwargs}: {text:?} doesn't follow");
    }
}

#[test]
fn every_english_kind_tells_texts_apart() {
    let data = tempfile::tempdir().unwrap();
    let english = Checker::english(data.path()).unwrap();
    let j = |id, kwargs, follow: &[&str], dont: &[&str]| judge(&english, id, kwargs, follow, dont);
    j(
        "keywords:existence",
        json!({"keywords": ["river", "Moon"]}),
        &["A RIVER under the moon"],
        &["a river"],
    );
    j(
        "keywords:frequency",
        json!({"keyword": "sea ", "frequency": 2, "relation": "at least"}),
        &["sea, Seaside"],
        &["sea"],
    );
    j(
        "keywords:forbidden_words",
        json!({"forbidden_words": ["red", "old"]}),
        &["hundred gold"],
        &["It is Red.", "old"],
    );
    j(
        "keywords:letter_frequency",
        json!({"letter": "E", "let_frequency": 3, "let_relation": "less than"}),
        &["eE"],
        &["eeE"],
    );
    j(
        "language:response_language",
        json!({"language": "de"}),
        &["Heute ist das Wetter sehr schön und wir gehen nach draußen.", "123"],
        &["The weather is very nice today and we all go out."],
    );
    j(
        "length_constraints:number_sentences",
        json!({"num_sentences": 2, "relation": "less than"}),
        &["Dr. Smith and Mr. Jones left at 5.30."],
        &["He left. She stayed."],
    );
    j(
        "length_constraints:number_paragraphs",
        json!({"num_paragraphs": 2}),
        &["one\n***\ntwo", "***one***two***"],
        &["one\n\ntwo", "one***\n***two***three"],
    );
    j(
        "length_constraints:number_words",
        json!({"num_words": 4, "relation": "at least"}),
        &["it's a day", "a-b c_d e f"],
        &["three short words"],
    );
    j(
        "length_constraints:nth_paragraph_first_word",
        json!({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Later"}),
        &["One.\n\nlater, two.", "One.\n\n\"Later\" it was"],
        &["Later.\n\nOne.", "a\n\nlater\n\nb", "later"],
    );
    j(
        "detectable_content:number_placeholders",
        json!({"num_placeholders": 2}),
        &["[name] and [place]"],
        &["[name\n]", "[a]"],
    );
    j(
        "detectable_content:postscript",
        json!({"postscript_marker": "P.P.S"}),
        &["Bye\np. p. s hello", "P.P.S. x"],
        &["P.S. x", "PPS x"],
    );
    j(
        "detectable_format:number_bullet_lists",
        json!({"num_bullets": 2}),
        &["* a\n- b", " * a\n  *b"],
        &["* a", "** a\n* b", "* a\n* b\n- c"],
    );
    j(
        "detectable_format:constrained_response",
        json!({}),
        &["Well. My answer is maybe."],
        &["Yes."],
    );
    j(
        "detectable_format:number_highlighted_sections",
        json!({"num_highlights": 2}),
        &["*a* and *b*", "**a** *b*"],
        &["**a**", "*a*", "** ** * *"],
    );
    j(
        "detectable_format:multiple_sections",
        json!({"section_spliter": "Part", "num_sections": 2}),
        &["Part 1\na\nPart 2\nb"],
        &["Part one, Part 2"],
    );
    j(
        "detectable_format:json_format",
        json!({}),
        &["{\"a\": 1}", "```json\n[1]\n```"],
        &["Sure: {}", "{a: 1}"],
    );
    j("detectable_format:title", json!({}), &["<<Poem>>\nx"], &["<<  >>", "<<a\nb>>", "<a>"]);
    j(
        "combination:two_responses",
        json!({}),
        &["a******b", "******a******b"],
        &["a******a", "a", "a******b******c", "a************b"],
    );
    j(
        "combination:repeat_prompt",
        json!({"prompt_to_repeat": "Write a poem."}),
        &["write a poem. Here:"],
        &["Here: Write a poem."],
    );
    j(
        "startend:end_checker",
        json!({"end_phrase": "The end."}),
        &["x the END.\n", "\"x The end.\""],
        &["The end. No."],
    );
    j("startend:quotation", json!({}), &["\"a\"", " \"\" "], &["\"", "“a”", "\"a"]);
    j(
        "change_case:capital_word_frequency",
        json!({"capital_frequency": 3, "capital_relation": "at least"}),
        &["NASA and U.S. and I.", "CANNOT I"],
        &["CANNOT", "Nasa Us Me"],
    );
    j(
        "change_case:english_capital",
        json!({}),
        &["THIS IS ALL IN BIG LETTERS, AS WANTED."],
        &["This IS not.", "DAS IST EIN SATZ IN DEUTSCHER SPRACHE."],
    );
    j(
        "change_case:english_lowercase",
        json!({}),
        &["this is all in small letters, as wanted."],
        &["This is not."],
    );
    j("punctuation:no_comma", json!({}), &["one and two，three"], &["one, two"]);
}

/// Texts made by tools/compare_ifeval.py for instructions of our own, with the harness's verdicts.
#[test]
fn english_verdicts_are_the_harnesss() {
    let data = tempfile::tempdir().unwrap();
    let english = Checker::english(data.path()).unwrap();
    for (i, line) in include_str!("golden/ifeval.jsonl").lines().enumerate() {
        let golden: Value = serde_json::from_str(line).unwrap();
        let doc: Instructed = serde_json::from_value(golden.clone()).unwrap();
        let checks = english.checks(&doc).unwrap();
        let text = golden["response"].as_str().unwrap();
        assert_eq!(json!(strict(&checks, text)), golden["strict"], "line {}: {text}", i + 1);
        assert_eq!(json!(loose(&checks, text)), golden["loose"], "line {}: {text}", i + 1);
    }
}

#[test]
fn every_chinese_kind_tells_texts_apart() {
    let zh = Checker::chinese();
    let j = |id, kwargs, follow: &[&str], dont: &[&str]| judge(&zh, id, kwargs, follow, dont);
    let n = |relation: &str, num: usize| json!({"relation": relation, "num": num});
    j("length:characters", n("at least", 4), &["春，夏；秋。冬"], &["春夏秋 abcd 1234！"]);
    j("length:characters", n("at most", 2), &["好hello好"], &["好好好"]);
    j(
        "length:sentences",
        n("exactly", 2),
        &["今天好。真的！", "什么？！是的……", "你好。再见"],
        &["今天，好。", "一。二。三。"],
    );
    j("length:paragraphs", n("exactly", 2), &["一\n二", "一\n\n\n二\n"], &["一", "一\n二\n三"]);
    j(
        "length:nth_paragraph_start",
        json!({"nth": 2, "start": "后来"}),
        &["起初\n\n后来他走了"],
        &["后来", "后来\n起初", "起初\n他后来"],
    );
    j("keywords:existence", json!({"keywords": ["团队", "沟通"]}), &["沟通让团队前进"], &["团队"]);
    j("keywords:forbidden", json!({"keywords": ["努力", "奋斗"]}), &["加油"], &["不努力"]);
    let often = json!({"keyword": "加油", "relation": "at least", "num": 2});
    j("keywords:frequency", often, &["加油加油"], &["加油"]);
    j(
        "format:bullets",
        n("exactly", 2),
        &["- 一\n- 二", "以下：\n* 一\n• 二"],
        &["-一\n-二", "- 一"],
    );
    j(
        "format:numbered_list",
        n("exactly", 3),
        &[
            "1. 甲\n2. 乙\n3. 丙",
            "一、甲\n二、乙\n三、丙",
            "（1）甲\n说明\n（2）乙\n（3）丙",
            "1、甲\n2、乙\n3、丙",
        ],
        &["1. 甲\n2. 乙", "1. 甲\n3. 乙\n2. 丙", "3.14 是圆周率\n1.甲\n2.乙"],
    );
    j(
        "format:numbered_list",
        n("exactly", 11),
        &["一、a\n二、a\n三、a\n四、a\n五、a\n六、a\n七、a\n八、a\n九、a\n十、a\n十一、a"],
        &["十一、a"],
    );
    j(
        "format:highlights",
        n("at least", 2),
        &["**重点**和*其次*"],
        &["**重点**", "** ** **", "2*3*"],
    );
    let parts = json!({"mark": "第N部分", "num": 2});
    j(
        "format:sections",
        parts,
        &["第一部分 起\n甲\n第二部分 落", "## 第1部分\n甲\n**第2部分**"],
        &[
            "第一部分",
            "第二部分\n第一部分",
            "看第一部分\n看第二部分",
            "第一部分\n第二部分\n第三部分",
        ],
    );
    j(
        "format:title",
        json!({}),
        &["《寻猫》\n走失", "# 《寻猫》"],
        &["寻猫\n《寻猫》", "《》\n", "看《寻猫》"],
    );
    j(
        "format:titles",
        n("at least", 2),
        &["读《红楼梦》和《家》"],
        &["读《红楼梦》和《》", "《甲\n乙》"],
    );
    j("format:placeholders", n("at least", 2), &["【姓名】于【日期】"], &["[姓名]于【日期】"]);
    j(
        "format:json",
        json!({}),
        &["{\"甲\": [1]}", "```json\n[1, 2]\n```"],
        &["结果：{}", "12", "{甲}"],
    );
    let table = json!({"relation": "exactly", "rows": 2});
    j(
        "format:table",
        table,
        &["| 名 | 值 |\n|---|:-:|\n| 甲 | 1 |\n| 乙 | 2 |\n"],
        &["| 名 | 值 |\n| 甲 | 1 |", "| 名 |\n|---|---|\n| 甲 | 1 |\n| 乙 | 2 |", "没有表格"],
    );
    j(
        "format:options",
        json!({"options": ["同意", "反对"]}),
        &["同意", " 反对\n"],
        &["我同意", "同意。"],
    );
    j(
        "quotes:whole",
        json!({"marks": "「」"}),
        &["「你好」", " 「好」 "],
        &["你「好」", "「」", "“好”"],
    );
    let quotes = json!({"marks": "“”", "relation": "at least", "num": 2});
    j("quotes:count", quotes, &["“好。”他说，“走。”"], &["“好。”", "“”“”", "「好」「走」"]);
    j("script:simplified", json!({}), &["汉语学习", "山水"], &["漢語", "abc"]);
    j("script:traditional", json!({}), &["漢語學習", "皇后在此"], &["汉语", "漢语", "123"]);
    j(
        "script:pinyin",
        json!({}),
        &["Wǒ xǐhuan zài túshūguǎn kàn shū.", "nǐ hǎo"],
        &["wo xihuan kan shu", "nǐ 好", "", "straße nǐ hǎo"],
    );
    j("script:no_latin", json!({}), &["人工智能，2024"], &["人工智能AI", "人工智能é", "12"]);
    j("script:no_digits", json!({}), &["十二月"], &["12月", "１２月", "③"]);
    j("script:english", json!({}), &["Time is money."], &["Time 时间", "123"]);
    j(
        "punctuation:forbidden",
        json!({"marks": ["，", "、"]}),
        &["好。走, 吧"],
        &["好，走", "甲、乙"],
    );
    let marks = json!({"mark": "！", "relation": "at least", "num": 2});
    j("punctuation:frequency", marks, &["雨！雨！"], &["雨!雨！"]);
    j(
        "punctuation:fullwidth",
        json!({}),
        &["秋天，红叶。3.14 和 1,000", "（好）"],
        &["秋天,红叶。", "好!", "(好)", "好."],
    );
    j("startend:start", json!({"phrase": "今天"}), &["\n今天好"], &["是今天"]);
    j("startend:end", json!({"phrase": "谢谢"}), &["再见，谢谢\n"], &["谢谢。"]);
    j(
        "startend:postscript",
        json!({"marker": "附言："}),
        &["正文\n附言：别忘了"],
        &["附言：早\n正文", "正文\n附言："],
    );
    j(
        "combination:two_responses",
        json!({}),
        &["甲******乙"],
        &["甲******甲", "甲", "甲******", "甲******乙******丙"],
    );
    j(
        "combination:repeat_prompt",
        json!({"prompt": "多长？"}),
        &["多长？\n很长。"],
        &["多长？", "问：多长？很长"],
    );
    let verse = json!({"num": 4, "characters": 5});
    j(
        "verse:lines",
        verse,
        &[
            "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。",
            "《静》\n一二三四五\n一二三四五\n一二三四五\n一二三四五",
        ],
        &["床前明月光，疑是地上霜。", "床前明月光，疑是地霜。举头望明月，低头思故乡。"],
    );
    j(
        "verse:acrostic",
        json!({"word": "春夏"}),
        &["春来了\n夏来了", "“春”来\n\n 夏来"],
        &["春来了", "夏\n春", "春\n夏\n秋"],
    );
}

#[test]
fn loose_verdicts_forgive_pleasantries() {
    let doc = json!({
        "id": 1, "prompt": "", "instruction_id_list": ["format:json", "startend:end"],
        "kwargs": [{}, {"phrase": "}"}],
    });
    let doc: Instructed = serde_json::from_value(doc).unwrap();
    let checks = Checker::chinese().checks(&doc).unwrap();
    for text in ["好的：\n{\"a\": 1}", "{\"a\": 1}\n再见", "好的\n**{\"a\": 1}**\n再见"] {
        assert_eq!(loose(&checks, text), [true, true], "{text}");
        assert_ne!(strict(&checks, text), [true, true], "{text}");
    }
    assert_eq!(loose(&checks, "好的\n请看：\n{\"a\": 1}\n再见\n走了"), [false, false]);
    for empty in ["", " \n ", "**"] {
        assert_eq!(loose(&checks, empty), [false, false]);
    }
}

#[test]
fn instructions_that_make_no_sense_are_named() {
    let refuse = |id: &str, kwargs: Value| {
        let doc = json!({ "id": 1, "prompt": "", "instruction_id_list": [id], "kwargs": kwargs });
        let doc: Instructed = serde_json::from_value(doc).unwrap();
        Checker::chinese().checks(&doc).err().expect("refused")
    };
    assert!(refuse("no:such", json!([{}])).contains("`no:such`"));
    assert!(refuse("format:bullets", json!([])).contains("differ in number"));
    assert!(refuse("format:bullets", json!([{"relation": "at least"}])).contains("`num`"));
    assert!(
        refuse("format:bullets", json!([{"relation": "at least", "num": -1}])).contains("`num`")
    );
    assert!(
        refuse("format:bullets", json!([{"relation": "about", "num": 1}])).contains("`relation`")
    );
    assert!(refuse("quotes:whole", json!([{"marks": "()"}])).contains("`marks`"));
    assert!(refuse("format:sections", json!([{"mark": "部分", "num": 1}])).contains("`mark`"));
}

#[test]
fn our_prompts_are_many_and_sound() {
    let source = Source {
        data: "".as_ref(),
        shots: 0,
        chat: true,
        seed: None,
        max_tokens: None,
        sandbox: None,
    };
    let items = Task::named("ifeval_zh").unwrap().load(&source, None).unwrap();
    let mut prompts = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for item in &items {
        let Request::Generate(prompt) = &item.request else { panic!("a text is asked for") };
        assert!(prompts.insert(prompt.text.clone()), "twice: {}", prompt.text);
        for id in item.target["instruction_id_list"].as_array().unwrap() {
            kinds.insert(id.to_string());
        }
        // Nobody follows everything by saying nothing, or by saying this.
        for text in ["", "好的。"] {
            let scores = (item.judge)(&Answer::Text(text.into())).unwrap();
            assert_eq!(scores[1].1.len(), item.target["kwargs"].as_array().unwrap().len());
            assert!(!text.is_empty() || scores[0].1 == [0.0], "{}", prompt.text);
        }
    }
    assert!(prompts.len() >= 300 && kinds.len() == 35, "{} {}", prompts.len(), kinds.len());
}
