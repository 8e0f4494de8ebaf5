//! Rules of tool calls, written as Lark: the parts of a call, and the parameters of a tool.

use serde_json::{Map, Value, json};

use super::{
    definition::{InvalidTools, invalid},
    gemma4_schema,
    parameters::Parameter,
};
use crate::grammar::Source;

/// Grammar of the tool calls of a reply.
#[derive(Debug, Default)]
pub(super) struct CallGrammar {
    /// Before the first call.
    pub open: String,
    /// Text that may come before `open`.
    pub optional_start: Option<String>,
    /// Between two calls.
    pub separator: String,
    /// After the last call.
    pub close: String,
    /// Whether a reply has at most one call.
    pub single: bool,
    pub calls: Vec<CallRule>,
}

/// A call of one tool.
#[derive(Debug, Default)]
pub(super) struct CallRule(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(String),
    Optional(String),
    Regex(&'static str),
    Json(Value),
    Tagged(Tagged),
    Listed { members: Vec<Member>, separator: &'static str },
}

/// A parameter written as a tag with text or JSON.
#[derive(Debug)]
struct Tagged {
    parameter: Parameter,
    head: Vec<Part>,
    close: String,
    tail: Vec<Part>,
}

/// A parameter in a list with separators.
#[derive(Debug)]
struct Member {
    head: String,
    value: ListedValue,
    required: bool,
}

/// How a listed value is written.
#[derive(Debug)]
pub(super) enum ListedValue {
    Json(Value),
    Words(Vec<&'static str>),
    Gemma(Value),
}

impl CallGrammar {
    /// Adds the call of a tool.
    pub(super) fn call(&mut self) -> &mut CallRule {
        self.calls.push(CallRule::default());
        let last = self.calls.len() - 1;
        &mut self.calls[last]
    }
}

impl CallRule {
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.part(Part::Text(text.to_owned()))
    }

    pub(super) fn optional(&mut self, text: &str) -> &mut Self {
        self.part(Part::Optional(text.to_owned()))
    }

    pub(super) fn regex(&mut self, regex: &'static str) -> &mut Self {
        self.part(Part::Regex(regex))
    }

    pub(super) fn json(&mut self, schema: &Value) -> &mut Self {
        self.part(Part::Json(schema.clone()))
    }

    /// A parameter between `head` and `close`.
    pub(super) fn parameter(
        &mut self,
        parameter: &Parameter,
        head: &str,
        close: &str,
        tail: &str,
    ) -> &mut Self {
        let (parameter, head) = (parameter.clone(), vec![Part::Text(head.to_owned())]);
        let tail = vec![Part::Text(tail.to_owned())];
        self.part(Part::Tagged(Tagged { parameter, head, close: close.to_owned(), tail }))
    }

    /// A parameter with optional line feeds after its key and after its value.
    pub(super) fn spaced_parameter(
        &mut self,
        parameter: &Parameter,
        key: &str,
        open: &str,
        close: &str,
    ) -> &mut Self {
        let line_feed = || Part::Optional("\n".to_owned());
        let head = vec![Part::Text(key.to_owned()), line_feed(), Part::Text(open.to_owned())];
        let (parameter, close) = (parameter.clone(), close.to_owned());
        self.part(Part::Tagged(Tagged { parameter, head, close, tail: vec![line_feed()] }))
    }

    /// Parameters with `separator` between them.
    pub(super) fn listed(
        &mut self,
        parameters: &[Parameter],
        separator: &'static str,
        written: impl Fn(&Parameter) -> (String, ListedValue),
    ) -> &mut Self {
        let member = |parameter: &Parameter| {
            let (head, value) = written(parameter);
            Member { head, value, required: parameter.required }
        };
        self.part(Part::Listed { members: parameters.iter().map(member).collect(), separator })
    }

    fn part(&mut self, part: Part) -> &mut Self {
        self.0.push(part);
        self
    }
}

impl Parameter {
    /// Written as `True`, `False` and `None` where a parameter takes only those; as JSON otherwise.
    pub(super) fn python(&self) -> ListedValue {
        let plain = ["enum", "const", "anyOf", "oneOf", "allOf", "$ref"];
        let plain = plain.iter().all(|key| self.schema.get(key).is_none());
        let words = self.types.iter().all(|name| ["boolean", "null"].contains(name));
        match plain && words {
            true => {
                let known = [("boolean", ["True", "False"].as_slice()), ("null", &["None"])];
                let used = known.iter().filter(|(name, _)| self.types.contains(name));
                ListedValue::Words(used.flat_map(|(_, words)| words.iter().copied()).collect())
            }
            false => ListedValue::Json(self.schema.clone()),
        }
    }

    /// In Gemma's notation.
    pub(super) fn gemma(&self) -> ListedValue {
        ListedValue::Gemma(self.schema.clone())
    }
}

/// A Lark grammar that is being written.
pub(super) struct Lark<'a> {
    literal: &'a dyn Fn(&str) -> String,
    rules: Vec<String>,
}

impl<'a> Lark<'a> {
    /// `literal` writes texts as Lark.
    pub(super) fn new(literal: &'a dyn Fn(&str) -> String) -> Lark<'a> {
        Lark { literal, rules: Vec::new() }
    }

    pub(super) fn literal(&self, text: &str) -> String {
        (self.literal)(text)
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, expression: &str) -> String {
        let name = format!("r{}", self.rules.len());
        self.rules.push(format!("{name}: {expression}"));
        name
    }

    /// Adds a terminal and returns its name.
    pub(super) fn terminal(&mut self, expression: &str) -> String {
        let name = format!("T{}", self.rules.len());
        self.rules.push(format!("{name}: {expression}"));
        name
    }

    /// A rule of JSON that is valid against a schema.
    pub(super) fn json(&mut self, schema: &Value) -> Result<String, InvalidTools> {
        let expression = Source::JsonSchema(closed(schema)).expression();
        Ok(self.rule(&expression.map_err(|error| invalid("tools", error.to_string()))?))
    }

    /// A rule for text valid against a string schema, followed by `close`.
    pub(super) fn text(&mut self, schema: &Value, close: &str) -> Result<String, InvalidTools> {
        let closing = self.literal(close);
        let values =
            schema["enum"].as_array().cloned().or_else(|| schema.get("const").map(|v| vec![v.clone()]));
        if let Some(values) = values {
            let texts: Vec<String> = values.iter().filter(|v| v.is_string()).map(Value::to_string).collect();
            return Ok(self.rule(&format!("({}) {closing}", texts.join(" | "))));
        }
        let base = text_regex(schema)?;
        let quoted = Value::from(close).to_string();
        let closed = self.terminal(&format!("/(?s:.*)/ {quoted} /(?s:.*)/"));
        let open = self.terminal(&format!("{base} & ~{closed}"));
        // A terminal is never empty.
        let may_be_empty = schema.get("pattern").is_none() && schema["minLength"].as_u64().unwrap_or(0) == 0;
        let optional = if may_be_empty { "?" } else { "" };
        Ok(match closing.starts_with("<[") {
            // A special token is no text: the terminal before it ends there.
            true => self.rule(&format!("{open}{optional} {closing}")),
            // One terminal with its end, since terminals match as much as possible.
            false => self.terminal(&format!("{open} {quoted}")),
        })
    }

    /// The whole grammar, which begins with `preamble`.
    pub(super) fn source(
        mut self,
        grammar: CallGrammar,
        parallel: bool,
        preamble: &str,
    ) -> Result<String, InvalidTools> {
        let mut calls = Vec::new();
        for call in grammar.calls {
            let parts: Result<Vec<String>, _> = call.0.into_iter().map(|part| self.part(part)).collect();
            calls.push(self.rule(&parts?.join(" ")));
        }
        let call = self.rule(&calls.join(" | "));
        let calls = match (parallel && !grammar.single, &*grammar.separator) {
            (false, _) => call,
            (true, "") => format!("{call}+"),
            (true, separator) => format!("{call} ({} {call})*", self.literal(separator)),
        };
        let optional = grammar.optional_start.map(|text| format!("({})?", self.literal(&text)));
        let text = |text: &str| if text.is_empty() { String::new() } else { self.literal(text) };
        let start = [optional.unwrap_or_default(), text(&grammar.open), calls, text(&grammar.close)];
        Ok(self.with_start(&format!("{preamble} {}", start.join(" "))))
    }

    /// The whole grammar.
    pub(super) fn with_start(&self, start: &str) -> String {
        format!("start: {start}\n{}\n", self.rules.join("\n"))
    }

    fn part(&mut self, part: Part) -> Result<String, InvalidTools> {
        Ok(match part {
            Part::Text(text) => self.literal(&text),
            Part::Optional(text) => format!("({})?", self.literal(&text)),
            Part::Regex(regex) => format!("/{regex}/"),
            Part::Json(schema) => self.json(&schema)?,
            Part::Tagged(tagged) => self.tagged(tagged)?,
            Part::Listed { members, separator } => self.listed(members, separator)?,
        })
    }

    fn tagged(&mut self, tagged: Tagged) -> Result<String, InvalidTools> {
        let Tagged { parameter, head, close, tail } = tagged;
        let head: Vec<String> = head.into_iter().map(|part| self.part(part)).collect::<Result<_, _>>()?;
        let tail: Vec<String> = tail.into_iter().map(|part| self.part(part)).collect::<Result<_, _>>()?;
        let value = match parameter.is_written_as_text() || has_text_choices(&parameter) {
            true => self.text(&parameter.schema, &close)?,
            false => format!("{} {}", self.json(&parameter.schema)?, self.literal(&close)),
        };
        let rule = self.rule(&format!("{} {value} {}", head.join(" "), tail.join(" ")));
        Ok(if parameter.required { rule } else { format!("{rule}?") })
    }

    /// Rules for "none written yet" and "some written", from the last member to the first.
    fn listed(&mut self, members: Vec<Member>, separator: &str) -> Result<String, InvalidTools> {
        let separator = self.literal(separator);
        let [mut first, mut rest] = [self.rule("\"\""), self.rule("\"\"")];
        for member in members.into_iter().rev() {
            let value = match member.value {
                ListedValue::Json(schema) => self.json(&schema)?,
                ListedValue::Words(words) => {
                    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                    self.rule(&words.join(" | "))
                }
                ListedValue::Gemma(schema) => gemma4_schema::value(self, &schema)?,
            };
            let written = self.rule(&format!("{} {value}", self.literal(&member.head)));
            let (after, before) = (rest.clone(), first.clone());
            let skip = |next: &str| if member.required { String::new() } else { format!(" | {next}") };
            rest = self.rule(&format!("{separator} {written} {after}{}", skip(&after)));
            first = self.rule(&format!("{written} {after}{}", skip(&before)));
        }
        Ok(first)
    }
}

/// Whether a parameter takes one of some texts.
fn has_text_choices(parameter: &Parameter) -> bool {
    parameter.is_text() && ["enum", "const"].iter().any(|key| parameter.schema.get(key).is_some())
}

/// A regular expression of the texts that a schema accepts.
fn text_regex(schema: &Value) -> Result<String, InvalidTools> {
    for keyword in ["anyOf", "oneOf", "allOf", "$ref", "not", "if"] {
        if schema.get(keyword).is_some() {
            let message = format!("a parameter of strings uses `{keyword}`, which cannot be honoured here");
            return Err(invalid("tools", message));
        }
    }
    let bound = |keyword: &str| schema[keyword].as_u64();
    let length = match (bound("minLength"), bound("maxLength")) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (least, most) => {
            let most = most.map_or_else(String::new, |most| most.to_string());
            format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0))
        }
    };
    let Some(pattern) = schema["pattern"].as_str() else { return Ok(length) };
    let start = if pattern.starts_with('^') { "" } else { "(?s:.*)" };
    let end = if pattern.ends_with('$') && !pattern.ends_with("\\$") { "" } else { "(?s:.*)" };
    let inner = pattern.trim_start_matches('^');
    let inner = if end.is_empty() { &inner[..inner.len() - 1] } else { inner };
    let regex = Source::Regex(format!("{start}({inner}){end}")).expression();
    let regex = regex.map_err(|error| invalid("tools", error.to_string()))?;
    Ok(format!("{regex} & {length}"))
}

/// The schema with `additionalProperties: false` in objects that do not set it.
///
/// Callers reject arguments that a model invents.
fn closed(schema: &Value) -> Value {
    let Value::Object(object) = schema else { return schema.clone() };
    let composed =
        ["allOf", "anyOf", "oneOf", "$ref", "if", "not", "patternProperties", "unevaluatedProperties"];
    let mut object = object.clone();
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        let inner: Map<String, Value> =
            properties.iter().map(|(name, schema)| (name.clone(), closed(schema))).collect();
        *properties = inner;
        if composed.iter().all(|key| !object.contains_key(*key)) && !undeclared(&object) {
            object.entry("additionalProperties").or_insert(json!(false));
        }
    }
    if let Some(items @ Value::Object(_)) = object.get_mut("items") {
        *items = closed(items);
    }
    Value::Object(object)
}

/// Whether a schema requires properties that it does not declare.
fn undeclared(object: &Map<String, Value>) -> bool {
    let required = object.get("required").and_then(Value::as_array);
    let mut names = required.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| object["properties"].get(name).is_none())
}
