//! Chat templates: conversations as the text, and then the ids, that a model was trained on.
//!
//! A template comes from the model file and its messages from anywhere, so neither is trusted: a
//! template runs under limits and touches nothing but its inputs, and what a message says can't
//! become a control token, whatever the template does with it. There is deliberately no built-in
//! format to fall back on: a template that can't be rendered exactly is an error that names what
//! it asks for. Start at [`ChatTemplate::render`].

mod jinja;
mod rewrite;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use crate::tokenizer::Tokenizer;

/// Longest template, in bytes; known ones have at most some twenty thousand.
const MAX_SOURCE: usize = 128 * 1024;
/// Work that rendering nothing at all may do: instructions, and 64 bytes each.
const BASE_FUEL: u64 = 60_000;
/// More of it for each message and each 16 bytes of input.
const FUEL_PER_MESSAGE: u64 = 1_000;
const BYTES_PER_FUEL: u64 = 16;
/// Most output, beyond a multiple of the input.
const BASE_OUTPUT: usize = 1 << 20;
const OUTPUT_PER_INPUT: usize = 8;

const NAME: &str = "chat template";

/// A compiled chat template.
#[derive(Clone)]
pub struct ChatTemplate {
    source: String,
    env: Environment<'static>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks: letters and underscores, at most 32.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Whatever else the template reads from a message, such as `tool_calls`.
    pub fields: Vec<(String, Data)>,
}

impl Message {
    /// A message with a role and a content only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), fields: Vec::new() }
    }
}

/// A JSON-like value for a template to read.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Null.
    Null,
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Data>),
    /// Names and values, in order.
    Map(Vec<(String, Data)>),
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions<'a> {
    /// End with the start of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Text of the beginning-of-sequence token.
    pub bos_token: &'a str,
    /// Text of the end-of-sequence token.
    pub eos_token: &'a str,
    /// Tools the model may call.
    pub tools: Option<&'a [Data]>,
    /// Further variables, such as `enable_thinking`.
    pub variables: &'a [(String, Data)],
    /// Seconds since 1970 for `strftime_now`, moved to the user's zone; `None` is now, in UTC.
    pub time: Option<i64>,
}

/// A rendered conversation, and which of its bytes strangers wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Ranges of bytes that can't be part of a control token, ascending. Characters that no
    /// control token has aren't listed.
    pub untrusted: Vec<Range<usize>>,
}

impl Rendered {
    /// The ids, with exactly one beginning-of-sequence if the model wants one.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut ids = tokenizer.encode_mixed(&self.text, &self.untrusted);
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }
}

/// Why a template can't be used, or not with these messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The source is longer than any real template.
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many brackets or blocks are open at this line.
    TooDeep {
        /// The line, from 1.
        line: usize,
    },
    /// The source isn't a template we understand.
    Parse {
        /// The line, from 1.
        line: usize,
        /// What isn't understood.
        message: String,
    },
    /// Rendering failed, or asked for something that isn't supported.
    Render {
        /// The line, from 1.
        line: usize,
        /// What failed.
        message: String,
    },
    /// The template itself refused the messages.
    Raised {
        /// Its reason.
        message: String,
    },
    /// Rendering used up its work, memory or output.
    Limit {
        /// The line it had come to, from 1; 0 if unknown.
        line: usize,
        /// Which limit.
        limit: &'static str,
    },
    /// A role isn't 1 to 32 letters and underscores.
    Role {
        /// Position of the message.
        message: usize,
    },
    /// The input has too many different private-use characters to tell texts apart.
    Characters,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "chat template has {bytes} bytes, more than {MAX_SOURCE}")
            }
            Self::TooDeep { line } => write!(f, "chat template line {line}: nested too deeply"),
            Self::Parse { line, message } | Self::Render { line, message } => {
                write!(f, "chat template line {line}: {message}")
            }
            Self::Raised { message } => write!(f, "chat template refuses: {message}"),
            Self::Limit { line, limit } => {
                write!(f, "chat template line {line}: exceeds the limit of {limit}")
            }
            Self::Role { message } => {
                write!(f, "role of message {message} isn't 1 to 32 letters and underscores")
            }
            Self::Characters => write!(f, "too many private-use characters in the messages"),
        }
    }
}

impl std::error::Error for Error {}

impl ChatTemplate {
    /// Compiles a template.
    pub fn parse(source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            return Err(Error::TooLong { bytes: source.len() });
        }
        let mut env = jinja::environment();
        env.add_template_owned(NAME, rewrite::rewrite(source)?).map_err(|error| Error::Parse {
            line: error.line().unwrap_or(0),
            message: describe(&error),
        })?;
        Ok(Self { source: source.to_owned(), env })
    }

    /// The source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation for a model with this tokenizer.
    ///
    /// To learn which characters of the text strangers wrote, it is also rendered with those that
    /// could spell control tokens replaced by stand-ins: private-use characters that are nowhere
    /// else. If that, put back, is the same text, the template looks at nothing it shouldn't. If
    /// not, it looks into contents (say, splits them at `</think>`), and stand-ins replace only
    /// the starts of control tokens' spellings. Should that let through other control tokens than
    /// the first did, the first rendering stands.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<Rendered, Error> {
        let role = |role: &str| {
            let proper = |b: u8| b.is_ascii_alphabetic() || b == b'_';
            (1..=32).contains(&role.len()) && role.bytes().all(proper)
        };
        if let Some(message) = messages.iter().position(|message| !role(&message.role)) {
            return Err(Error::Role { message });
        }
        let plain = self.run(messages, options, &|text| text.to_owned())?;

        let stand_ins = StandIns::new(tokenizer, self.source(), messages, options)?;
        let all =
            self.run(messages, options, &|text| text.chars().map(|c| stand_ins.of(c)).collect());
        let all = all.map(|text| stand_ins.put_back(&text));
        if let Ok(all) = &all
            && all.text == plain
        {
            return Ok(all.clone());
        }
        let starts = self.run(messages, options, &|text| {
            let starts = tokenizer.control_starts(text);
            let stand_in = |(at, c)| match starts.binary_search(&at) {
                Ok(_) => stand_ins.of(c),
                Err(_) => c,
            };
            text.char_indices().map(stand_in).collect()
        })?;
        let starts = stand_ins.put_back(&starts);
        let controls = |rendered: &Rendered| -> Vec<u32> {
            let found = tokenizer.trusted_controls(&rendered.text, &rendered.untrusted);
            found.into_iter().map(|(id, _)| id).collect()
        };
        Ok(match all {
            Ok(all) if controls(&all) != controls(&starts) => all,
            _ => starts,
        })
    }

    /// Renders once, with every text of a stranger passed through `change`.
    fn run(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
        change: &dyn Fn(&str) -> String,
    ) -> Result<String, Error> {
        let list: Vec<Value> = messages
            .iter()
            .map(|message| {
                let said = [
                    ("role".to_owned(), Value::from(message.role.as_str())),
                    ("content".to_owned(), Value::from(change(&message.content))),
                ];
                let fields = message.fields.iter();
                let fields = fields.map(|(name, data)| (name.clone(), value(data, change)));
                Value::from_pairs(said.into_iter().chain(fields))
            })
            .collect();
        let time = options.time.unwrap_or_else(time::now);
        let strftime_now = move |pattern: &str| {
            time::format(time, pattern).map_err(|directive| {
                let message = format!("strftime_now: {directive} isn't supported");
                minijinja::Error::new(ErrorKind::InvalidOperation, message)
            })
        };
        let mut variables: Vec<(String, Value)> = vec![
            ("messages".to_owned(), Value::from(list)),
            ("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt)),
            ("bos_token".to_owned(), Value::from(options.bos_token)),
            ("eos_token".to_owned(), Value::from(options.eos_token)),
            ("strftime_now".to_owned(), Value::from_function(strftime_now)),
        ];
        let tools = options.tools.map(|tools| tools.iter().map(|tool| value(tool, change)));
        let tools = tools.map_or(Value::from(()), |tools| Value::from(tools.collect::<Vec<_>>()));
        variables.push(("tools".to_owned(), tools));
        let others = options.variables.iter();
        variables.extend(others.map(|(name, data)| (name.clone(), value(data, change))));

        let mut input = 0;
        each_text(messages, options, &mut |text| input += text.len());
        let mut env = self.env.clone();
        let fuel =
            BASE_FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + input as u64 / BYTES_PER_FUEL;
        env.set_fuel(Some(fuel));
        let context = Value::from_pairs(variables);
        let text = env
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| render_error(&error))?;
        if text.len() > BASE_OUTPUT + OUTPUT_PER_INPUT * input {
            return Err(Error::Limit { line: 0, limit: "output" });
        }
        Ok(text)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChatTemplate").field(&self.source()).finish()
    }
}

/// Characters that stand for those that control tokens are spelled with.
struct StandIns {
    of: BTreeMap<char, char>,
    back: BTreeMap<char, char>,
}

impl StandIns {
    /// Chooses private-use characters that no input has.
    fn new(
        tokenizer: &Tokenizer,
        source: &str,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<Self, Error> {
        let private = |c: &char| ('\u{F0000}'..='\u{10FFFD}').contains(c);
        let mut used: BTreeSet<char> = source.chars().filter(private).collect();
        for token in [options.bos_token, options.eos_token] {
            used.extend(token.chars().filter(private));
        }
        each_text(messages, options, &mut |text| used.extend(text.chars().filter(private)));
        let characters = tokenizer.control_characters();
        used.extend(characters.iter().filter(|c| private(c)));
        let planes = ('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}');
        let mut free = planes.filter(|c| !used.contains(c));
        let mut of = BTreeMap::new();
        for c in characters {
            of.insert(c, free.next().ok_or(Error::Characters)?);
        }
        let back = of.iter().map(|(&c, &stand_in)| (stand_in, c)).collect();
        Ok(Self { of, back })
    }

    fn of(&self, c: char) -> char {
        *self.of.get(&c).unwrap_or(&c)
    }

    /// The text with its own characters again, and where they had stand-ins.
    fn put_back(&self, text: &str) -> Rendered {
        let mut rendered = Rendered { text: String::with_capacity(text.len()), untrusted: vec![] };
        for c in text.chars() {
            let Some(&own) = self.back.get(&c) else {
                rendered.text.push(c);
                continue;
            };
            let start = rendered.text.len();
            rendered.text.push(own);
            let end = rendered.text.len();
            match rendered.untrusted.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => rendered.untrusted.push(start..end),
            }
        }
        rendered
    }
}

/// Calls `with` with every text that a stranger may have written.
fn each_text(messages: &[Message], options: &RenderOptions<'_>, with: &mut dyn FnMut(&str)) {
    fn data(of: &Data, with: &mut dyn FnMut(&str)) {
        match of {
            Data::Text(text) => with(text),
            Data::List(list) => list.iter().for_each(|item| data(item, with)),
            Data::Map(map) => map.iter().for_each(|(name, item)| {
                with(name);
                data(item, with);
            }),
            Data::Null | Data::Bool(_) | Data::Int(_) | Data::Float(_) => {}
        }
    }
    for message in messages {
        with(&message.content);
        message.fields.iter().for_each(|(_, field)| data(field, with));
    }
    options.tools.unwrap_or_default().iter().for_each(|tool| data(tool, with));
    options.variables.iter().for_each(|(_, variable)| data(variable, with));
}

/// `data` for the template, its texts changed. Plain names of fields stay: templates look for them.
fn value(data: &Data, change: &dyn Fn(&str) -> String) -> Value {
    let name = |name: &str| {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if plain { name.to_owned() } else { change(name) }
    };
    match data {
        Data::Null => Value::from(()),
        Data::Bool(on) => Value::from(*on),
        Data::Int(n) => Value::from(*n),
        Data::Float(x) => Value::from(*x),
        Data::Text(text) => Value::from(change(text)),
        Data::List(list) => Value::from(list.iter().map(|d| value(d, change)).collect::<Vec<_>>()),
        Data::Map(map) => Value::from_pairs(map.iter().map(|(n, d)| (name(n), value(d, change)))),
    }
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn render_error(error: &minijinja::Error) -> Error {
    let line = error.line().unwrap_or(0);
    // The first cause says what happened; the others say where it passed.
    let mut cause = error;
    while let Some(deeper) = std::error::Error::source(cause)
        .and_then(|source| source.downcast_ref::<minijinja::Error>())
    {
        cause = deeper;
    }
    let raised = cause.detail().and_then(|detail| detail.strip_prefix(jinja::RAISED));
    if let Some(message) = raised {
        return Error::Raised { message: message.to_owned() };
    }
    match (cause.kind(), cause.detail()) {
        (ErrorKind::OutOfFuel, _) => Error::Limit { line, limit: "work" },
        (_, Some("recursion limit exceeded")) => Error::Limit { line, limit: "recursion" },
        _ => Error::Render { line, message: describe(cause) },
    }
}

#[cfg(test)]
mod tests;
