//! The fields that constrain an answer: OpenAI's, vLLM's, llama.cpp's and Ollama's. A request has
//! at most one of them.

use chat::grammar::Source;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use crate::server::schema::{JsonSchemaField, Refused, words};

/// What the answer must match, and the field that says so.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerFormat {
    pub source: Source,
    pub field: &'static str,
}

/// OpenAI's `response_format`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ResponseFormatField {
    #[schemars(transform = words(["text", "json_object", "json_schema"]))]
    r#type: String,
    /// A format of type `json_schema`.
    json_schema: Option<NamedSchema>,
    /// llama.cpp's, with `json_object`.
    #[schemars(with = "Option<JsonSchemaField>")]
    schema: Option<Value>,
}

/// A schema. Its name and description are for people, and every schema is followed strictly.
#[derive(Debug, Deserialize, JsonSchema)]
struct NamedSchema {
    /// A JSON Schema that the answer matches, strictly.
    #[schemars(with = "Option<JsonSchemaField>")]
    schema: Option<Value>,
}

/// vLLM's `structured_outputs`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct StructuredOutputsField {
    /// A JSON Schema.
    #[schemars(with = "Option<JsonSchemaField>")]
    json: Option<Value>,
    /// Any JSON object.
    json_object: Option<bool>,
    /// A regular expression.
    regex: Option<String>,
    /// Texts, one of which the answer is.
    choice: Option<Vec<String>>,
    /// A grammar in Lark or GBNF.
    grammar: Option<String>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    structural_tag: Option<Value>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    whitespace_pattern: Option<String>,
}

/// The fields as sent.
#[derive(Debug, Default)]
pub(super) struct FormatFields {
    pub response_format: Option<ResponseFormatField>,
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Vec<String>>,
    pub guided_grammar: Option<String>,
    pub guided_whitespace_pattern: Option<String>,
    pub structured_outputs: Option<StructuredOutputsField>,
    pub grammar: Option<String>,
    pub json_schema: Option<Value>,
    pub format: Option<Value>,
}

impl FormatFields {
    /// # Errors
    /// 400: a field is not valid or not supported, or two of them constrain the answer.
    pub(super) fn validate(self) -> Result<Option<AnswerFormat>, ApiError> {
        let whitespace = self.guided_whitespace_pattern.is_some();
        let mut formats = vec![];
        let mut add = |field, source: Option<Source>| {
            formats.extend(source.map(|source| AnswerFormat { source, field }));
        };
        add("response_format", self.response_format.map(response_format).transpose()?.flatten());
        add("guided_json", self.guided_json.map(|schema| json("guided_json", schema)).transpose()?);
        add("guided_regex", self.guided_regex.map(Source::Regex));
        add("guided_choice", self.guided_choice.map(Source::Choice));
        add("guided_grammar", self.guided_grammar.as_deref().map(grammar));
        add("structured_outputs", self.structured_outputs.map(structured_outputs).transpose()?.flatten());
        add("grammar", self.grammar.as_deref().filter(|text| !text.trim().is_empty()).map(grammar));
        add("json_schema", self.json_schema.map(|schema| json("json_schema", schema)).transpose()?);
        add("format", self.format.map(ollama_format).transpose()?.flatten());
        if whitespace {
            return Err(ApiError::unsupported("guided_whitespace_pattern"));
        }
        match &formats[..] {
            [first, second, ..] => {
                let message = format!("{} and {} exclude each other", first.field, second.field);
                Err(ApiError::invalid(second.field, message))
            }
            _ => Ok(formats.pop()),
        }
    }
}

fn response_format(field: ResponseFormatField) -> Result<Option<Source>, ApiError> {
    let wrong = |param: &str, message: String| Err(ApiError::invalid(param, message));
    match (&*field.r#type, field.json_schema, field.schema) {
        ("text", None, None) => Ok(None),
        ("json_object", None, None) => Ok(Some(Source::JsonObject)),
        ("json_object", None, Some(schema)) => json("response_format.schema", schema).map(Some),
        ("json_schema", Some(NamedSchema { schema: Some(schema), .. }), None)
        | ("json_schema", None, Some(schema)) => json("response_format.json_schema.schema", schema).map(Some),
        ("json_schema", ..) => {
            let param = "response_format.json_schema.schema";
            wrong(param, format!("response_format of type json_schema needs one schema, {param}"))
        }
        ("text" | "json_object", ..) => wrong(
            "response_format",
            format!("response_format has a schema, which its type `{}` does not take", field.r#type),
        ),
        (other, ..) => wrong(
            "response_format.type",
            format!("response_format.type is `{other}`; it must be text, json_object or json_schema"),
        ),
    }
}

/// A schema, or its text.
fn json(field: &str, schema: Value) -> Result<Source, ApiError> {
    let schema = match schema {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::invalid(field, format!("{field} is not valid JSON: {error}")))?,
        other => other,
    };
    match schema {
        Value::Object(_) | Value::Bool(true) => Ok(Source::JsonSchema(schema)),
        _ => Err(ApiError::invalid(field, format!("{field} must be a JSON Schema: an object"))),
    }
}

/// A grammar in llama.cpp's GBNF or in Lark.
fn grammar(text: &str) -> Source {
    match text.contains("::=") {
        true => Source::Gbnf(text.to_owned()),
        false => Source::Lark(text.to_owned()),
    }
}

fn structured_outputs(field: StructuredOutputsField) -> Result<Option<Source>, ApiError> {
    for (name, given) in [
        ("structured_outputs.structural_tag", field.structural_tag.is_some()),
        ("structured_outputs.whitespace_pattern", field.whitespace_pattern.is_some()),
    ] {
        if given {
            return Err(ApiError::unsupported(name));
        }
    }
    let mut sources = vec![];
    sources.extend(field.json.map(|schema| json("structured_outputs.json", schema)).transpose()?);
    sources.extend(field.json_object.filter(|wanted| *wanted).map(|_| Source::JsonObject));
    sources.extend(field.regex.map(Source::Regex));
    sources.extend(field.choice.map(Source::Choice));
    sources.extend(field.grammar.as_deref().map(grammar));
    match sources.len() {
        0 | 1 => Ok(sources.pop()),
        _ => Err(ApiError::invalid("structured_outputs", "structured_outputs must have one constraint only")),
    }
}

fn ollama_format(format: Value) -> Result<Option<Source>, ApiError> {
    match format.as_str() {
        Some("") => Ok(None),
        Some("json") => Ok(Some(Source::JsonObject)),
        _ => json("format", format).map(Some),
    }
}
