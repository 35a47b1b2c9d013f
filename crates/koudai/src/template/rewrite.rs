//! Prepares a template's source so that running it is bounded.
//!
//! Two things in the template language aren't bounded by its fuel. Its parser and compiler recurse
//! on long or nested expressions: those are refused. And `+` and `*` on lists are free however long
//! the result, so doubling one a few dozen times exhausts memory: each `a + b` becomes
//! `(a)|__add(b)`, and `*` likewise, filters that pay for what they make. Lines stay the same.
//!
//! Knows tokens and precedence only; whatever else is wrong is left for the real parser to report.
//! Start at [`rewrite`].

use super::Error;

/// Brackets, or blocks with their `elif`s, open at once.
const MAX_NESTING: usize = 64;
/// Operators, names of filters and the like between one pair of delimiters.
const MAX_OPERATORS: usize = 400;

/// The filters that stand for `+` and `*`.
pub(super) const ADD: &str = "__add";
pub(super) const MUL: &str = "__mul";

/// The source with every `+` and `*` made a filter, or why it isn't to be parsed.
pub(super) fn rewrite(source: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len() + source.len() / 4);
    let mut blocks = 0; // block tags open, `elif`s counted
    let mut elifs = Vec::new(); // of each block open
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        let line = || source[..start].matches('\n').count() + 1;
        let parse_error = |message: &str| Error::Parse { line: line(), message: message.into() };
        let rest = &source[start..];
        if rest.starts_with("{#") {
            let end = rest.find("#}").ok_or_else(|| parse_error("comment without an end"))?;
            out.push_str(&source[at..start + end + 2]);
            at = start + end + 2;
            continue;
        }
        if !rest.starts_with("{{") && !rest.starts_with("{%") {
            out.push_str(&source[at..start + 1]);
            at = start + 1;
            continue;
        }
        let is_block = rest.starts_with("{%");
        let mark = usize::from(rest[2..].starts_with(['-', '+']));
        let inside = start + 2 + mark;
        out.push_str(&source[at..inside]);
        let close = if is_block { "%}" } else { "}}" };
        let tokens = tokens(&source[inside..], close).map_err(&parse_error)?;
        let first = tokens.first().filter(|t| is_block && t.kind == Kind::Name).map(|t| t.text);
        match first {
            Some("raw") => return Err(parse_error("raw blocks aren't supported")),
            Some("elif") => {
                blocks += 1;
                elifs.last_mut().into_iter().for_each(|n| *n += 1);
            }
            Some(name) if name.starts_with("end") => {
                blocks -= elifs.pop().map_or(0, |n: usize| n + 1);
            }
            Some("if" | "for" | "macro" | "call" | "filter" | "with" | "block" | "autoescape") => {
                blocks += 1;
                elifs.push(0);
            }
            _ => {}
        }
        if blocks > MAX_NESTING || tokens.iter().filter(|t| t.is_operator()).count() > MAX_OPERATORS
        {
            return Err(Error::TooDeep { line: line() });
        }
        let end = tokens.last().map_or(0, |token| token.end);
        let mut group = Group { tokens: &tokens, at: 0, statement: is_block };
        out.push_str(&group.rewrite(0, None).map_err(|refused| match refused {
            Refused::TooDeep => Error::TooDeep { line: line() },
            Refused::Unary => parse_error("+ or * without an operand before it"),
        })?);
        let tail = &source[inside + end..];
        let stop = tail.find(close).map_or(tail.len(), |stop| stop + 2);
        out.push_str(&tail[..stop]);
        at = inside + end + stop;
    }
    out.push_str(&source[at..]);
    Ok(out)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Literal,
    Open,
    Close,
    Operator,
}

#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    space: &'a str, // before it
    text: &'a str,
    end: usize,
}

impl Token<'_> {
    /// Whether it makes an expression longer in a way that a parser recurses on.
    fn is_operator(&self) -> bool {
        match self.kind {
            Kind::Operator => !matches!(self.text, "," | ":" | "="),
            Kind::Open => true,
            Kind::Name => SEPARATORS.contains(&self.text) || self.text == "is",
            Kind::Literal | Kind::Close => false,
        }
    }
}

/// The tokens before the closing delimiter.
fn tokens<'a>(source: &'a str, close: &str) -> Result<Vec<Token<'a>>, &'static str> {
    let mut tokens: Vec<Token<'a>> = Vec::new();
    let mut depth = 0usize;
    let mut at = 0;
    loop {
        let rest = &source[at..];
        let space = &rest[..rest.len() - rest.trim_start().len()];
        let rest = &rest[space.len()..];
        let unmarked = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if depth == 0 && (rest.starts_with(close) || unmarked.starts_with(close)) {
            return Ok(tokens);
        }
        let Some(first) = rest.chars().next() else {
            return Err("block or expression without an end");
        };
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let after_dot = tokens.last().is_some_and(|t| t.text == "." && space.is_empty());
        let (kind, len) = match first {
            '\'' | '"' => (Kind::Literal, string_len(rest).ok_or("string without an end")?),
            '0'..='9' => (Kind::Literal, number_len(rest, after_dot)),
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            c if word(c) => (Kind::Name, rest.find(|c| !word(c)).unwrap_or(rest.len())),
            c => {
                let two =
                    ["**", "//", "==", "!=", "<=", ">="].iter().any(|op| rest.starts_with(op));
                (Kind::Operator, if two { 2 } else { c.len_utf8() })
            }
        };
        match kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.checked_sub(1).ok_or("bracket closed but not opened")?,
            _ => {}
        }
        at += space.len() + len;
        tokens.push(Token { kind, space, text: &rest[..len], end: at });
    }
}

fn string_len(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn number_len(text: &str, after_dot: bool) -> usize {
    let word =
        |rest: &str| rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let mut len = word(text);
    let fraction =
        text[len..].strip_prefix('.').filter(|f| f.starts_with(|c: char| c.is_ascii_digit()));
    if let Some(fraction) = fraction.filter(|_| !after_dot) {
        len += 1 + word(fraction);
    }
    let exponent = text[..len].ends_with(['e', 'E']) && !text.starts_with("0x");
    match text[len..].strip_prefix(['-', '+']) {
        Some(digits) if exponent && digits.starts_with(|c: char| c.is_ascii_digit()) => {
            len + 1 + word(digits)
        }
        _ => len,
    }
}

/// Names that end an operand of `+`, and so start the next expression.
const SEPARATORS: [&str; 6] = ["and", "or", "not", "in", "if", "else"];

/// The tokens of one pair of brackets, or of a whole expression or block.
struct Group<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
    statement: bool,
}

impl Group<'_, '_> {
    /// Rewrites up to the bracket that closes this group, `open` being the one that opened it.
    fn rewrite(&mut self, depth: usize, open: Option<Token<'_>>) -> Result<String, Refused> {
        if depth > MAX_NESTING {
            return Err(Refused::TooDeep);
        }
        let mut out = String::new();
        let mut sum = Sum::default();
        let mut before = open;
        let mut keyword_before = false;
        let mut test_follows = false; // after `is` or `is not`
        while let Some(&token) = self.tokens.get(self.at) {
            if token.kind == Kind::Close {
                break;
            }
            self.at += 1;
            // Names after these are attributes, filters or tests, whatever they spell.
            let plain_name = test_follows || before.is_some_and(|t| matches!(t.text, "." | "|"));
            test_follows = token.kind == Kind::Name
                && ((token.text == "is" && !plain_name) || (token.text == "not" && test_follows));
            let keyword = token.kind == Kind::Name
                && !plain_name
                && (SEPARATORS.contains(&token.text)
                    || (self.statement && depth == 0 && before.is_none()));
            let operand_before = before.is_some_and(|t| match t.kind {
                Kind::Literal | Kind::Close => true,
                Kind::Name => !keyword_before,
                Kind::Open | Kind::Operator => false,
            });
            keyword_before = keyword;
            let spread = before.is_some_and(|t| matches!(t.text, "(" | ",")) && token.text == "*";
            if token.kind == Kind::Operator
                && matches!(token.text, "+" | "*")
                && !operand_before
                && !spread
            {
                return Err(Refused::Unary); // or none would be sure to be bounded
            }
            match token.text {
                "+" | "-" if token.kind == Kind::Operator && operand_before => sum.add(token),
                "*" | "/" | "//" | "%" if token.kind == Kind::Operator && operand_before => {
                    sum.multiply(token);
                }
                "~" if token.kind == Kind::Operator => sum.concat(token),
                "," | ":" | "=" | "==" | "!=" | "<" | "<=" | ">" | ">="
                    if token.kind == Kind::Operator =>
                {
                    out.push_str(&sum.take());
                    out.push_str(token.space);
                    out.push_str(token.text);
                }
                _ if keyword => {
                    out.push_str(&sum.take());
                    out.push_str(token.space);
                    out.push_str(token.text);
                }
                _ => {
                    sum.push(token);
                    if token.kind == Kind::Open {
                        sum.factor.push_str(&self.rewrite(depth + 1, Some(token))?);
                        if let Some(&close) = self.tokens.get(self.at) {
                            self.at += 1;
                            sum.push(close);
                            before = Some(close);
                            continue;
                        }
                    }
                }
            }
            before = Some(token);
        }
        out.push_str(&sum.take());
        Ok(out)
    }
}

enum Refused {
    TooDeep,
    Unary,
}

/// A sum being read: what is to the left of its last `+` or `-`, then of its last `~`, then of its
/// last `*` or the like, then the factor being read.
#[derive(Default)]
struct Sum {
    left: Option<Pending>,
    concat: String,
    product: Option<Pending>,
    factor: String,
}

struct Pending {
    text: String,
    is_filter: bool,  // needs no brackets before another filter
    operator: String, // with the space before it
}

impl Sum {
    fn push(&mut self, token: Token<'_>) {
        self.factor.push_str(token.space);
        self.factor.push_str(token.text);
    }

    fn multiply(&mut self, token: Token<'_>) {
        let factor = std::mem::take(&mut self.factor);
        self.product = Some(join(self.product.take(), factor, "*", MUL).then(token));
    }

    fn concat(&mut self, token: Token<'_>) {
        let factor = std::mem::take(&mut self.factor);
        self.concat += &join(self.product.take(), factor, "*", MUL).text;
        self.concat.push_str(token.space);
        self.concat.push_str(token.text);
    }

    fn add(&mut self, token: Token<'_>) {
        self.left = Some(self.close().then(token));
    }

    fn take(&mut self) -> String {
        self.close().text
    }

    fn close(&mut self) -> Pending {
        let factor = std::mem::take(&mut self.factor);
        let product = join(self.product.take(), factor, "*", MUL);
        let term = std::mem::take(&mut self.concat) + &product.text;
        join(self.left.take(), term, "+", ADD)
    }
}

impl Pending {
    fn then(mut self, token: Token<'_>) -> Self {
        self.operator = format!("{}{}", token.space, token.text);
        self
    }
}

/// `left`, its operator and `right` as one operand; `operator` becomes `filter`.
fn join(left: Option<Pending>, right: String, operator: &str, filter: &str) -> Pending {
    let Some(left) = left else {
        return Pending { text: right, is_filter: false, operator: String::new() };
    };
    let text = match left.operator.strip_suffix(operator) {
        Some(space) if space.trim().is_empty() => {
            let (open, close) = if left.is_filter { ("", "") } else { ("(", ")") };
            let text = format!("{open}{}{close}{space}|{filter}({right})", left.text);
            return Pending { text, is_filter: true, operator: String::new() };
        }
        _ => format!("{}{}{right}", left.text, left.operator),
    };
    Pending { text, is_filter: false, operator: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sums_and_products_change() {
        for (source, expected) in [
            ("a + b {{ a.b }} { x", "a + b {{ a.b }} { x"),
            ("{{ a + b }}", "{{( a) |__add( b) }}"),
            ("{{ a + b - c + d }}", "{{(( a) |__add( b) - c) |__add( d) }}"),
            ("{{a+b+c}}", "{{(a)|__add(b)|__add(c)}}"),
            ("{{- a * b ~ c + -1 -}}", "{{-(( a) |__mul( b) ~ c) |__add( -1) -}}"),
            ("{% set x = [1 + 2, f(a+b)] %}", "{% set x = [(1) |__add( 2), f((a)|__add(b))] %}"),
            ("{%- if not a + b is not in c -%}", "{%- if not( a) |__add( b is not in c) -%}"),
            ("{% if a.if + b|else %}", "{% if( a.if) |__add( b|else) %}"),
            ("{% for x in a + b if c + d %}", "{% for x in( a) |__add( b) if( c) |__add( d) %}"),
            (
                "{{ m[::-1] }}{{ m[-1] }}{{ -1 }}{{ f(*a, **b) }}",
                "{{ m[::-1] }}{{ m[-1] }}{{ -1 }}{{ f(*a, **b) }}",
            ),
            (
                "{{ 'a + }}' }}{# a + b }} #}{{ 1e+2 ** 2 }}",
                "{{ 'a + }}' }}{# a + b }} #}{{ 1e+2 ** 2 }}",
            ),
            ("{{ {'a': {'b': 1}}}}", "{{ {'a': {'b': 1}}}}"),
            ("{{ a // b % c }}", "{{ a // b % c }}"),
        ] {
            assert_eq!(rewrite(source).unwrap(), expected);
        }
    }

    #[test]
    fn what_has_no_end_is_refused() {
        for source in [
            "\n{{ a",
            "\n{% a }}",
            "\n{# a",
            "\n{{ 'a }}",
            "\n{{ a) }}",
            "\n{% raw %}",
            "\n{% set if = if + if %}",
            "\n{{ not + a }}",
            "\n{{ [*a] }}",
        ] {
            assert!(matches!(rewrite(source), Err(Error::Parse { line: 2, .. })), "{source}");
        }
    }
}
