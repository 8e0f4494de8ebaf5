//! Collects the operations and the schemas that they refer to into one document.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    answers::{AnthropicError, OllamaError},
    operation::Generators,
    routes::{COUNT_TOKENS, operations},
};
use crate::server::{openai::error::ErrorObject, schema::SAME_AS};

const ABOUT: &str = "An LLM inference server with the APIs of OpenAI, Anthropic and Ollama. A field that is null \
                     counts as left out; a field that a schema does not name is ignored. Base URLs work with and \
                     without `/v1`. `x-itemSchema` describes the parts of a streamed answer: the data of each event, \
                     or each line.";

/// This document.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct Document {
    openapi: String,
    info: Map<String, Value>,
    servers: Vec<Value>,
    security: Vec<Value>,
    tags: Vec<Value>,
    paths: Map<String, Value>,
    components: Map<String, Value>,
}

/// The OpenAPI 3.1 document; the same in every call.
pub(crate) fn document() -> Value {
    let mut generators = Generators {
        requests: settings().for_deserialize().into(),
        answers: settings().for_serialize().into(),
    };
    let operations = operations();
    let mut paths = Map::new();
    let mut tags: Vec<&str> = vec![];
    for operation in &operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.object(&mut generators);
        if !tags.contains(&operation.tag()) {
            tags.push(operation.tag());
        }
    }
    let mut schemas = schemas(generators);
    resolve(&mut schemas);
    paths[COUNT_TOKENS]["post"]["requestBody"]["content"]["application/json"]["schema"] =
        json!({ "$ref": "#/components/schemas/CountTokensRequest" });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lanner",
            "description": ABOUT,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        // A server without `--api-key` asks for none.
        "security": [{}, { "bearer": [] }, { "x-api-key": [] }],
        "tags": tags.iter().map(|tag| json!({ "name": tag })).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": headers(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "The key of `--api-key`." },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key." },
            },
        },
    })
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    })
}

fn headers() -> Value {
    json!({
        "x-request-id": {
            "description": "The id of the request: the client's, or a new one.",
            "schema": { "type": "string" },
        },
        "retry-after": {
            "description": "Seconds after which the same request may succeed.",
            "schema": { "type": "integer" },
        },
    })
}

/// The schemas of both directions. A type that both have is the same in both.
fn schemas(mut generators: Generators) -> Map<String, Value> {
    generators.answers.subschema_for::<ErrorObject<'static>>();
    generators.answers.subschema_for::<AnthropicError>();
    generators.answers.subschema_for::<OllamaError>();
    let definitions = |mut generator: SchemaGenerator| generator.take_definitions(true);
    let mut all: Vec<(String, Value)> =
        definitions(generators.requests).into_iter().chain(definitions(generators.answers)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.into_iter().collect()
}

/// Replaces properties that stand for those of another schema, and adds the schema of a prompt to
/// count.
fn resolve(schemas: &mut Map<String, Value>) {
    let known = schemas.clone();
    for schema in schemas.values_mut() {
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        for (name, property) in properties.into_iter().flatten() {
            if let Some(other) = same_as(property) {
                *property = known[other]["properties"][name].clone();
            }
        }
    }
    let mut count = schemas["MessagesRequest"].clone();
    if let Some(Value::Array(required)) = count.get_mut("required") {
        required.retain(|name| name != "max_tokens");
    }
    schemas.insert("CountTokensRequest".into(), count);
    schemas.sort_keys();
}

/// The schema that a property refers to, also if it may be null.
fn same_as(property: &Value) -> Option<&str> {
    let own = property
        .get(SAME_AS)
        .or_else(|| property.get("anyOf")?.as_array()?.iter().find_map(|schema| schema.get(SAME_AS)));
    own?.as_str()
}
