//! The template language as chat templates use it: Jinja with Python's strings and dictionaries.
//!
//! The language itself is minijinja's. Here is what templates expect besides: Python methods (the
//! ones seen in chat templates, written here because each must also pay for its memory), Python's
//! way of printing, `tojson`, `raise_exception`. What isn't here fails by name. Start at
//! [`environment`].

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

use super::rewrite::{ADD, MUL};

/// Bytes that one unit of fuel pays for.
pub(super) const BYTES_PER_FUEL: u64 = 64;
/// What a list slot costs, in bytes.
const SLOT_BYTES: u64 = 64;
/// Calls of macros, nested loops and the like, in minijinja's measure.
const RECURSION_LIMIT: usize = 100;
const JSON_DEPTH: usize = 64;

/// An environment with everything but the template and the fuel.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::None);
    let mut syntax = env.syntax().to_builder();
    if let Ok(syntax) = syntax.trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax); // only delimiters can be wrong, and those are the default ones
    }
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_formatter(print);
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", to_json);
    env.add_filter("trim", |text: &str, chars: Option<&str>| {
        strip(text, chars, true, true).to_owned()
    });
    env.add_filter(ADD, add);
    env.add_filter(MUL, multiply);
    env.add_function("raise_exception", raise);
    env
}

/// Marks an error as the template's own.
pub(super) const RAISED: &str = "\u{0}raised: ";

fn raise(message: &str) -> Result<Value, Error> {
    Err(failed(format!("{RAISED}{message}")))
}

fn failed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Fails if `bytes` more can't be paid for, before they are allocated.
fn afford(state: &State<'_, '_>, bytes: u64) -> Result<(), Error> {
    match state.fuel_levels() {
        Some((_, left)) if bytes / BYTES_PER_FUEL >= left => Err(ErrorKind::OutOfFuel.into()),
        _ => Ok(()),
    }
}

// ---- Operators (see `rewrite.rs`) -------------------------------------------------------------

fn add(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        afford(state, (left.len() + right.len()) as u64)?;
        return Ok(Value::from([left, right].concat()));
    }
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list(left) && is_list(right) {
        let mut items = Vec::new();
        for item in left.try_iter()?.chain(right.try_iter()?) {
            state.consume_fuel(1)?;
            items.push(item);
        }
        return Ok(Value::from(items));
    }
    arithmetic("+", left, right, i64::checked_add, |a, b| a + b)
}

fn multiply(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let text = left.as_str().zip(right.as_i64()).or_else(|| right.as_str().zip(left.as_i64()));
    if let Some((text, count)) = text {
        let count = usize::try_from(count).unwrap_or(0);
        afford(state, (text.len() as u64).saturating_mul(count as u64))?;
        return Ok(Value::from(text.repeat(count)));
    }
    arithmetic("*", left, right, i64::checked_mul, |a, b| a * b)
}

fn arithmetic(
    operator: &str,
    left: &Value,
    right: &Value,
    integers: fn(i64, i64) -> Option<i64>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let wrong =
        |why: &str| failed(format!("{operator} of a {} and a {}{why}", left.kind(), right.kind()));
    if !left.is_number() || !right.is_number() {
        return Err(wrong(" isn't supported"));
    }
    if left.is_integer() && right.is_integer() {
        let both = left.as_i64().zip(right.as_i64());
        let result = both.and_then(|(left, right)| integers(left, right));
        return result.map(Value::from).ok_or_else(|| wrong(" is too large"));
    }
    Ok(Value::from(floats(f64::try_from(left.clone())?, f64::try_from(right.clone())?)))
}

/// Prints as Python does, where that is a scalar.
fn print(out: &mut Output<'_>, _state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::Undefined => return Ok(()),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value)?,
        ValueKind::String => {
            return out.write_str(value.as_str().unwrap_or_default()).map_err(Error::from);
        }
        kind => return Err(failed(format!("printing a {kind} isn't supported (use tojson)"))),
    };
    out.write_str(&text).map_err(Error::from)
}

/// A number as Python writes it.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    if !number.is_finite() {
        let text = if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        return Ok(text.to_owned());
    }
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    Ok(if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        if plain.contains('.') { plain } else { format!("{plain}.0") }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    })
}

// ---- Methods ----------------------------------------------------------------------------------

fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let unknown = || {
        let message = format!("method {name} of a {}", value.kind());
        Error::new(ErrorKind::UnknownMethod, message)
    };
    if args.last().is_some_and(Value::is_kwargs) {
        return Err(failed(format!("method {name}: named arguments aren't supported")));
    }
    match value.kind() {
        ValueKind::String => {
            let text = value.to_str().unwrap_or_default();
            string_method(state, &text, name, args)?.ok_or_else(unknown)
        }
        ValueKind::Map => map_method(state, value, name, args)?.ok_or_else(unknown),
        _ => Err(unknown()),
    }
}

fn string_method(
    state: &State<'_, '_>,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let string = |at: usize| match args.get(at) {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(failed(format!("method {name}: argument {at} must be a string"))),
        },
    };
    let needed = |at: usize| {
        string(at)?.ok_or_else(|| failed(format!("method {name}: argument {at} is missing")))
    };
    let at_most = |n: usize| match args.len() > n {
        true => Err(failed(format!("method {name}: too many arguments"))),
        false => Ok(()),
    };
    let limit = |at: usize| match args.get(at) {
        None => Ok(usize::MAX),
        Some(value) => match value.as_i64() {
            Some(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
            None => Err(failed(format!("method {name}: argument {at} must be a number"))),
        },
    };
    // Longest results of a change of case are three times the text.
    let result = match name {
        "strip" | "lstrip" | "rstrip" => {
            at_most(1)?;
            Value::from(strip(text, string(0)?, name != "rstrip", name != "lstrip"))
        }
        "startswith" | "endswith" => {
            at_most(1)?;
            let starts = name == "startswith";
            let is =
                |part: &str| if starts { text.starts_with(part) } else { text.ends_with(part) };
            match args.first() {
                Some(list) if list.is_tuple() => {
                    let mut any = false;
                    for part in list.try_iter()? {
                        any |= part.as_str().is_some_and(is);
                    }
                    Value::from(any)
                }
                _ => Value::from(is(needed(0)?)),
            }
        }
        "upper" | "lower" | "title" | "capitalize" => {
            at_most(0)?;
            afford(state, 3 * text.len() as u64)?;
            Value::from(match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                "title" => title(text),
                _ => capitalize(text),
            })
        }
        "split" | "rsplit" => {
            at_most(2)?;
            let separator = string(0)?;
            if separator == Some("") {
                return Err(failed("method split: empty separator"));
            }
            let most = limit(1)?;
            let parts = split(text, separator, most, name == "rsplit");
            let count = parts.clone().count() as u64;
            afford(state, text.len() as u64 + count * SLOT_BYTES)?;
            let mut parts: Vec<Value> = parts.map(Value::from).collect();
            if name == "rsplit" {
                parts.reverse();
            }
            Value::from(parts)
        }
        "splitlines" => {
            at_most(0)?;
            afford(state, text.len() as u64 * SLOT_BYTES)?;
            Value::from(text.lines().map(Value::from).collect::<Vec<_>>())
        }
        "replace" => {
            at_most(3)?;
            let (from, to, most) = (needed(0)?, needed(1)?, limit(2)?);
            let count = text.matches(from).take(most).count() as u64;
            afford(state, text.len() as u64 + count * to.len() as u64)?;
            Value::from(text.replacen(from, to, most))
        }
        "find" => {
            at_most(1)?;
            let at = text.find(needed(0)?).map(|at| text[..at].chars().count() as i64);
            Value::from(at.unwrap_or(-1))
        }
        "count" => {
            at_most(1)?;
            Value::from(text.matches(needed(0)?).count())
        }
        "isdigit" => Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())),
        "isspace" => Value::from(!text.is_empty() && text.chars().all(python_space)),
        "removeprefix" => Value::from(text.strip_prefix(needed(0)?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(needed(0)?).unwrap_or(text)),
        "join" => {
            at_most(1)?;
            let list = args.first().ok_or_else(|| failed("method join: argument 0 is missing"))?;
            let mut out = String::new();
            for (at, part) in list.try_iter()?.enumerate() {
                let Some(part) = part.as_str() else {
                    return Err(failed(format!("method join: item {at} isn't a string")));
                };
                if at > 0 {
                    out.push_str(text);
                }
                out.push_str(part);
                afford(state, out.len() as u64)?;
            }
            Value::from(out)
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn map_method(
    state: &State<'_, '_>,
    map: &Value,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    afford(state, map.len().unwrap_or(0) as u64 * 3 * SLOT_BYTES)?;
    let result = match (name, args) {
        ("get", [key]) => found(map.get_item(key)?, Value::from(())),
        ("get", [key, default]) => found(map.get_item(key)?, default.clone()),
        ("keys", []) => Value::from(map.try_iter()?.collect::<Vec<_>>()),
        ("values", []) => {
            let values: Result<Vec<_>, _> = map.try_iter()?.map(|key| map.get_item(&key)).collect();
            Value::from(values?)
        }
        ("items", []) => {
            let pair = |key: Value| Ok(Value::from(vec![key.clone(), map.get_item(&key)?]));
            let pairs: Result<Vec<Value>, Error> = map.try_iter()?.map(pair).collect();
            Value::from(pairs?)
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn found(value: Value, default: Value) -> Value {
    if value.is_undefined() { default } else { value }
}

/// What Python strips by default.
fn python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| python_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

/// The parts, from the end backwards if `backwards`, cut at most `most` times.
fn split<'a>(
    text: &'a str,
    separator: Option<&'a str>,
    most: usize,
    backwards: bool,
) -> impl Iterator<Item = &'a str> + Clone {
    let mut left = Some(text);
    let mut cuts = 0;
    std::iter::from_fn(move || {
        let mut rest = left?;
        if separator.is_none() {
            rest = strip(rest, None, !backwards, backwards);
            if rest.is_empty() {
                left = None;
                return None;
            }
        }
        let cut = match (separator, backwards) {
            _ if cuts == most => None,
            (Some(separator), false) => rest.split_once(separator),
            (Some(separator), true) => rest.rsplit_once(separator),
            (None, false) => rest.split_once(python_space),
            (None, true) => rest.rsplit_once(python_space),
        };
        cuts += 1;
        let Some((before, after)) = cut else {
            left = None;
            // Python keeps spaces at the far end of what it didn't cut, except when it ends there.
            return Some(rest);
        };
        let (part, others) = if backwards { (after, before) } else { (before, after) };
        left = Some(others);
        Some(part)
    })
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase).into_iter().flatten();
    first.collect::<String>() + &chars.as_str().to_lowercase()
}

fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
}

// ---- tojson -----------------------------------------------------------------------------------

/// `json.dumps(value, ensure_ascii=False, indent=…)`.
fn to_json(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    if !args.is_empty() {
        return Err(failed("tojson: only indent=… and ensure_ascii=false are supported"));
    }
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(failed("tojson: ensure_ascii=true isn't supported"));
    }
    let indent = options.get::<Option<usize>>("indent")?;
    options.assert_all_used()?;
    let mut json = Json { state, indent: indent.map(|n| n.min(64)), out: String::new() };
    json.write(value, 0)?;
    Ok(Value::from(json.out))
}

struct Json<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    indent: Option<usize>,
    out: String,
}

impl Json<'_, '_, '_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > JSON_DEPTH {
            return Err(failed("tojson: nested too deeply"));
        }
        self.state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::Undefined => return Err(failed("tojson: value is undefined")),
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.list(['[', ']'], items, depth, |json, item| json.write(item, depth + 1))?;
            }
            ValueKind::Map => {
                let keys = value.try_iter()?;
                self.list(['{', '}'], keys, depth, |json, key| {
                    let Some(text) = key.as_str() else {
                        return Err(failed("tojson: keys must be strings"));
                    };
                    json.string(text)?;
                    json.out.push_str(": ");
                    json.write(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(failed(format!("tojson: can't write a {kind}"))),
        }
        Ok(())
    }

    fn list(
        &mut self,
        brackets: [char; 2],
        items: impl Iterator<Item = Value>,
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        let mut empty = true;
        for item in items {
            if !empty {
                self.out.push_str(if self.indent.is_some() { "," } else { ", " });
            }
            empty = false;
            self.new_line(depth + 1)?;
            write(self, &item)?;
        }
        if !empty {
            self.new_line(depth)?;
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = self.indent {
            self.state.consume_fuel((indent * depth) as u64 / BYTES_PER_FUEL)?;
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 8)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}
