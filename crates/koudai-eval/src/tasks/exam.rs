//! Exams in many subjects: MMLU, CMMLU and C-Eval. The letters A to D are scored, five worked
//! examples of the same subject come first, and every question counts the same.

use std::path::Path;

use serde::Deserialize;

use super::choice::{Question, letter_index, within};
use super::{Example, Item, Source, Task, data};
use crate::Error;

const fn task(
    name: &'static str,
    about: &'static str,
    load: fn(&Source<'_>) -> Result<Vec<Item>, Error>,
) -> Task {
    Task { name, about, metrics: &["acc"], shots: 5, runs_code: false, load }
}

pub(super) const TASKS: [Task; 3] = [
    task("mmlu", "57 subjects in English", mmlu),
    task("cmmlu", "67 subjects in Chinese", cmmlu),
    task("ceval", "52 subjects in Chinese (its questions are the user's to fetch)", ceval),
];

/// Items of all subjects: `subject(name)` gives a description, the examples and the questions.
fn subjects(
    source: &Source<'_>,
    names: Vec<String>,
    subject: impl Fn(&str) -> Result<(String, Vec<Question>, Vec<Question>), Error>,
) -> Result<Vec<Item>, Error> {
    let mut items = Vec::new();
    for name in names {
        let (description, pool, docs) = subject(&name)?;
        let pool: Vec<Example> = pool.iter().map(Question::example).collect();
        let examples = source.draw(pool)?;
        items.extend(docs.into_iter().enumerate().map(|(i, q)| Item {
            group: Some(name.clone()),
            ..q.item(format!("{name}/{i}"), source, &description, &examples)
        }));
    }
    Ok(items)
}

#[derive(Deserialize)]
struct Mmlu {
    question: String,
    choice0: String,
    choice1: String,
    choice2: String,
    choice3: String,
    answer: usize,
}

fn mmlu(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let folder = source.data.join("mmlu");
    let read = |path: &Path| -> Result<Vec<Question>, Error> {
        let row = |(i, r): (usize, Mmlu)| {
            within(path, i + 2, r.answer, 4)?;
            let options = [r.choice0, r.choice1, r.choice2, r.choice3];
            Ok(Question::lettered(&r.question, &options, "Answer:", r.answer))
        };
        data::csv::<Mmlu>(path)?.into_iter().enumerate().map(row).collect()
    };
    subjects(source, data::names(&folder.join("test"), "_test.csv")?, |name| {
        let about = name.replace('_', " ");
        let description = format!(
            "The following are multiple choice questions (with answers) about {about}.\n\n"
        );
        let dev = read(&folder.join(format!("dev/{name}_dev.csv")))?;
        Ok((description, dev, read(&folder.join(format!("test/{name}_test.csv")))?))
    })
}

/// A row of CMMLU or C-Eval.
#[derive(Deserialize)]
struct Chinese {
    #[serde(alias = "Question")]
    question: String,
    #[serde(rename = "A")]
    a: String,
    #[serde(rename = "B")]
    b: String,
    #[serde(rename = "C")]
    c: String,
    #[serde(rename = "D")]
    d: String,
    #[serde(alias = "Answer")]
    answer: String,
}

fn chinese(path: &Path) -> Result<Vec<Question>, Error> {
    let row = |(i, r): (usize, Chinese)| match letter_index(&r.answer) {
        Some(answer @ 0..4) => {
            Ok(Question::lettered(&r.question, &[r.a, r.b, r.c, r.d], "答案：", answer))
        }
        _ => Err(Error::data(path, i + 2, format!("answer `{}` is none of A to D", r.answer))),
    };
    data::csv::<Chinese>(path)?.into_iter().enumerate().map(row).collect()
}

fn cmmlu(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let folder = source.data.join("cmmlu");
    subjects(source, data::names(&folder.join("test"), ".csv")?, |name| {
        let about = chinese_name(CMMLU_NAMES, name, &folder)?;
        let description = format!("以下是关于{about}的单项选择题，请直接给出正确答案的选项。\n\n");
        let dev = chinese(&folder.join(format!("dev/{name}.csv")))?;
        Ok((description, dev, chinese(&folder.join(format!("test/{name}.csv")))?))
    })
}

fn ceval(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let folder = source.data.join("ceval");
    subjects(source, data::names(&folder.join("val"), "_val.csv")?, |name| {
        let about = chinese_name(CEVAL_NAMES, name, &folder)?;
        let description = format!("以下是中国关于{about}的单项选择题，请选出其中的正确答案。\n\n");
        let dev = chinese(&folder.join(format!("dev/{name}_dev.csv")))?;
        Ok((description, dev, chinese(&folder.join(format!("val/{name}_val.csv")))?))
    })
}

/// A subject's Chinese name out of a list of `name=中文`.
fn chinese_name(list: &'static str, name: &str, folder: &Path) -> Result<&'static str, Error> {
    let mut pairs = list.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(key, _)| *key == name)
        .map(|(_, about)| about)
        .ok_or_else(|| Error::data(folder, 1, format!("`{name}` is none of the known subjects")))
}

const CMMLU_NAMES: &str = "
    agronomy=农学 anatomy=解剖学 ancient_chinese=古汉语 arts=艺术学 astronomy=天文学
    business_ethics=商业伦理 chinese_civil_service_exam=中国公务员考试
    chinese_driving_rule=中国驾驶规则 chinese_food_culture=中国饮食文化
    chinese_foreign_policy=中国外交政策 chinese_history=中国历史 chinese_literature=中国文学
    chinese_teacher_qualification=中国教师资格 clinical_knowledge=临床知识
    college_actuarial_science=大学精算学 college_education=大学教育学
    college_engineering_hydrology=大学工程水文学 college_law=大学法律
    college_mathematics=大学数学 college_medical_statistics=大学医学统计
    college_medicine=大学医学 computer_science=计算机科学 computer_security=计算机安全
    conceptual_physics=概念物理学 construction_project_management=建设工程管理 economics=经济学
    education=教育学 electrical_engineering=电气工程 elementary_chinese=小学语文
    elementary_commonsense=小学常识 elementary_information_and_technology=小学信息技术
    elementary_mathematics=初等数学 ethnology=民族学 food_science=食品科学 genetics=遗传学
    global_facts=全球事实 high_school_biology=高中生物 high_school_chemistry=高中化学
    high_school_geography=高中地理 high_school_mathematics=高中数学
    high_school_physics=高中物理学 high_school_politics=高中政治 human_sexuality=人类性行为
    international_law=国际法学 journalism=新闻学 jurisprudence=法理学
    legal_and_moral_basis=法律与道德基础 logical=逻辑学 machine_learning=机器学习
    management=管理学 marketing=市场营销 marxist_theory=马克思主义理论 modern_chinese=现代汉语
    nutrition=营养学 philosophy=哲学 professional_accounting=专业会计 professional_law=专业法学
    professional_medicine=专业医学 professional_psychology=专业心理学 public_relations=公共关系
    security_study=安全研究 sociology=社会学 sports_science=体育学
    traditional_chinese_medicine=中医中药 virology=病毒学 world_history=世界历史
    world_religions=世界宗教
";

const CEVAL_NAMES: &str = "
    accountant=注册会计师 advanced_mathematics=高等数学 art_studies=艺术学
    basic_medicine=基础医学 business_administration=工商管理
    chinese_language_and_literature=中国语言文学 civil_servant=公务员 clinical_medicine=临床医学
    college_chemistry=大学化学 college_economics=大学经济学 college_physics=大学物理
    college_programming=大学编程 computer_architecture=计算机组成 computer_network=计算机网络
    discrete_mathematics=离散数学 education_science=教育学 electrical_engineer=注册电气工程师
    environmental_impact_assessment_engineer=环境影响评价工程师 fire_engineer=注册消防工程师
    high_school_biology=高中生物 high_school_chemistry=高中化学 high_school_chinese=高中语文
    high_school_geography=高中地理 high_school_history=高中历史 high_school_mathematics=高中数学
    high_school_physics=高中物理 high_school_politics=高中政治
    ideological_and_moral_cultivation=思想道德修养与法律基础 law=法学
    legal_professional=法律职业资格 logic=逻辑学
    mao_zedong_thought=毛泽东思想和中国特色社会主义理论体系概论 marxism=马克思主义基本原理
    metrology_engineer=注册计量师 middle_school_biology=初中生物 middle_school_chemistry=初中化学
    middle_school_geography=初中地理 middle_school_history=初中历史
    middle_school_mathematics=初中数学 middle_school_physics=初中物理
    middle_school_politics=初中政治 modern_chinese_history=近代史纲要 operating_system=操作系统
    physician=医师资格 plant_protection=植物保护 probability_and_statistics=概率统计
    professional_tour_guide=导游资格 sports_science=体育学 tax_accountant=税务师
    teacher_qualification=教师资格 urban_and_rural_planner=注册城乡规划师
    veterinary_medicine=兽医学
";
