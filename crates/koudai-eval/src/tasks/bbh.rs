//! BIG-Bench Hard: 27 kinds of puzzles, each after three worked examples that think step by step.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;

use super::{Example, Item, Prompt, Request, Source, Task, data, point, prompt, written};
use crate::Error;

pub(super) const TASKS: [Task; 1] = [Task {
    name: "bbh",
    about: "27 kinds of puzzles, with a chain of thought",
    metrics: &["exact_match"],
    shots: 3,
    runs_code: false,
    load,
}];

const CUE: &str = "\nA: Let's think step by step.\n";

#[derive(Deserialize)]
struct File {
    examples: Vec<Puzzle>,
}

#[derive(Deserialize)]
struct Puzzle {
    input: String,
    target: String,
}

fn load(source: &Source<'_>) -> Result<Vec<Item>, Error> {
    let folder = source.data.join("bbh");
    let mut items = Vec::new();
    for name in data::names(&folder.join("bbh"), ".json")? {
        let (description, pool) = examples(&folder.join(format!("cot-prompts/{name}.txt")))?;
        let examples = source.draw(pool)?;
        let file: File = data::json(&folder.join(format!("bbh/{name}.json")))?;
        items.extend(file.examples.into_iter().enumerate().map(|(i, puzzle)| Item {
            id: format!("{name}/{i}"),
            group: Some(name.clone()),
            request: Request::Generate(Prompt {
                text: prompt(&description, &examples, &format!("Q: {}{CUE}", puzzle.input)),
                stop: ["</s>", "Q", "\n\n"].map(String::from).into(),
                max_tokens: 1024,
            }),
            target: json!(puzzle.target),
            judge: Box::new(move |answer| {
                let right = conclusion(written(answer)) == Some(puzzle.target.as_str());
                Ok(vec![("exact_match", point(right))])
            }),
        }));
    }
    Ok(items)
}

/// The description and the examples of a prompt file: a note, a line of dashes, the description and
/// blocks that start with `Q: `.
fn examples(path: &Path) -> Result<(String, Vec<Example>), Error> {
    let text = data::text(path)?;
    let parts = || {
        let (_, text) = text.split_once("-----\n")?;
        let (description, blocks) = text.trim_end().split_once("\n\nQ: ")?;
        let example = |block: &str| {
            // One of the files goes on in the same line.
            let (question, answer) = block.split_once(CUE.trim_end())?;
            Some(Example { question: format!("Q: {question}{CUE}"), answer: answer.trim().into() })
        };
        let examples: Option<Vec<Example>> = blocks.split("\n\nQ: ").map(example).collect();
        Some((format!("{}\n\n", description.trim()), examples?))
    };
    parts().ok_or_else(|| Error::data(path, 1, "it isn't a description and `Q: … A: …` blocks"))
}

/// What follows the first `the answer is ` on its line, without the last character, the full stop.
fn conclusion(text: &str) -> Option<&str> {
    text.match_indices("the answer is ").find_map(|(at, cue)| {
        let line = text[at + cue.len()..].split('\n').next()?;
        let (last, _) = line.char_indices().next_back()?;
        Some(line[..last].trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conclusion_is_what_the_line_says() {
        assert_eq!(conclusion("So the answer is (B)."), Some("(B)"));
        assert_eq!(conclusion("the answer is no\nmore"), Some("n"));
        assert_eq!(conclusion("the answer is \nthe answer is 24."), Some("24"));
        assert_eq!(conclusion("The answer: 3."), None);
    }
}
