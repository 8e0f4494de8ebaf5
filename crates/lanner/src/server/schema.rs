//! Parts of JSON Schemas that types alone do not give. The ranges and words are those that the
//! parser checks; [`openapi`](super::openapi) collects the schemas.

use engine::SamplingRange;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Key of a property that stands for the one of the same name in another schema.
pub(crate) const SAME_AS: &str = "x-same-as";

/// The range of a sampling parameter.
pub(crate) fn number(range: SamplingRange) -> impl FnMut(&mut Schema) {
    move |schema| {
        let least = if range.above { "exclusiveMinimum" } else { "minimum" };
        schema.insert(least.into(), decimal(range.least));
        schema.insert("maximum".into(), decimal(range.most));
    }
}

/// The range of each value of an object.
pub(crate) fn each_number(range: SamplingRange) -> impl FnMut(&mut Schema) {
    move |schema| {
        let values = schema.get_mut("patternProperties").and_then(Value::as_object_mut);
        for value in values.into_iter().flat_map(|values| values.values_mut()) {
            if let Ok(value) = value.try_into() {
                number(range)(value);
            }
        }
    }
}

/// Above 0, and at most this.
pub(crate) fn above_zero(most: f64) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("exclusiveMinimum".into(), 0.0.into());
        schema.insert("maximum".into(), most.into());
    }
}

/// The only values of a string; null if the field may be left out.
pub(crate) fn words<const N: usize>(words: [&'static str; N]) -> impl FnMut(&mut Schema) {
    move |schema| {
        let is_nullable = schema.get("type").is_some_and(|kind| kind.as_str() != Some("string"));
        let null = is_nullable.then_some(Value::Null);
        schema.insert("enum".into(), words.into_iter().map(Value::from).chain(null).collect());
    }
}

/// The only values of an array's items.
pub(crate) fn items_of<const N: usize>(names: [&'static str; N]) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(Ok(items)) = schema.get_mut("items").map(TryInto::try_into) {
            words(names)(items);
        }
    }
}

/// Properties that a route refuses.
pub(crate) fn without<const N: usize>(names: [&'static str; N]) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.retain(|name, _| !names.contains(&&**name));
        }
    }
}

/// A float32 as it is usually written.
fn decimal(value: f32) -> Value {
    json!(value.to_string().parse().unwrap_or(f64::from(value)))
}

/// Declares types that only have a schema.
macro_rules! schemas {
    ($($(#[$meta:meta])* $name:ident: $schema:tt;)*) => {
        $(
            $(#[$meta])*
            pub(crate) struct $name;

            impl JsonSchema for $name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> std::borrow::Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!($schema)
                }
            }
        )*
    };
}

schemas! {
    /// A field of which every value but null is a 400.
    Refused: { "type": "null" };
    /// A property that is checked as the field of the same name of chat completions.
    AsInChat: { "x-same-as": "ChatRequest" };
    /// A JSON Schema, or its text.
    JsonSchemaField: { "type": ["object", "boolean", "string"] };
    /// `format` of Ollama's API.
    OllamaFormatField: {
        "anyOf": [{ "enum": ["json", ""] }, { "type": "object", "description": "A JSON Schema." }]
    };
    /// `keep_alive` of Ollama's API: seconds, or a duration such as `5m`.
    KeepAliveField: { "type": ["number", "string"] };
    /// A text, or parts: texts, and images at data URIs.
    TextOrParts: {
        "anyOf": [
            { "type": ["string", "null"] },
            {
                "type": "array",
                "items": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": { "type": { "const": "text" }, "text": { "type": "string" } },
                            "required": ["type", "text"]
                        },
                        {
                            "type": "object",
                            "properties": {
                                "type": { "const": "image_url" },
                                "image_url": {
                                    "type": "object",
                                    "properties": {
                                        "url": { "type": "string", "description": "A data URI in base64." },
                                        "detail": { "enum": ["auto", "low", "high"] }
                                    },
                                    "required": ["url"]
                                }
                            },
                            "required": ["type", "image_url"]
                        }
                    ]
                }
            }
        ]
    };
    /// A text or null, and always there.
    TextOrNull: { "type": ["string", "null"] };
    /// A list of names, or an object.
    ListOrObject: { "anyOf": [{ "type": "array", "items": { "type": "string" } }, { "type": ["object", "null"] }] };
    /// A word, or an object.
    WordOrObject: { "anyOf": [{ "enum": ["always", "never", null] }, { "type": "object" }] };
    /// An object that a template or a grammar reads.
    AnyObject: { "type": "object" };
}

/// A message of a conversation. Templates read further fields.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct ChatMessage {
    #[schemars(transform = words(["system", "developer", "user", "assistant", "tool", "function"]))]
    role: String,
    /// Text and images. Null beside `tool_calls`.
    #[schemars(with = "Option<TextOrParts>")]
    content: (),
    /// Calls that an assistant made.
    #[schemars(with = "Option<Vec<AnyObject>>")]
    tool_calls: (),
    /// Of a tool's result: the call that it answers.
    tool_call_id: Option<String>,
    /// Reasoning before the content, for templates that keep it.
    reasoning_content: Option<String>,
    /// Calls of MCP tools in an answer of this server.
    #[schemars(with = "Option<Vec<AnyObject>>")]
    mcp_calls: (),
}

/// A function or a custom tool that the model may call.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum ChatTool {
    Function { function: FunctionDefinition },
    Custom { custom: CustomDefinition },
    Mcp(McpDefinition),
}

/// Tools of an MCP server that this server's `--mcp` file has; this server calls them itself.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct McpDefinition {
    /// The server's name, or with `server_url` any other.
    server_label: String,
    /// The URL of a server of the `--mcp` file.
    server_url: Option<String>,
    /// No effect.
    server_description: Option<String>,
    /// Names of tools, or `{"tool_names": [..], "read_only": true}`; all by default.
    #[schemars(with = "Option<ListOrObject>")]
    allowed_tools: (),
    /// `always`, `never`, or `{"always": .., "never": ..}` with lists as `allowed_tools` has them.
    #[schemars(with = "Option<WordOrObject>", extend("default" = "always"))]
    require_approval: (),
}

/// A tool that takes a text.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct CustomDefinition {
    name: String,
    description: Option<String>,
    /// `{"type": "text"}`, or `{"type": "grammar", "grammar": {"syntax": .., "definition": ..}}`.
    #[schemars(with = "Option<AnyObject>")]
    format: (),
}

/// A function: its name, and a JSON Schema of its arguments.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct FunctionDefinition {
    name: String,
    description: Option<String>,
    /// A JSON Schema of an object.
    #[schemars(with = "Option<AnyObject>")]
    parameters: (),
    /// Accepted: arguments always match the schema.
    strict: Option<bool>,
}

/// Whether the model calls, and what.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum ToolChoice {
    Word(#[schemars(transform = words(["none", "auto", "required"]))] String),
    /// `{"type": "function", "function": {"name": ..}}`, the same of a custom tool, or
    /// `allowed_tools`.
    Tool(#[schemars(with = "AnyObject")] ()),
}
