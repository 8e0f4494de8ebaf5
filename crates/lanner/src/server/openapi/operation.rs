//! One operation of the document: a method of a path, its bodies and its statuses.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::statuses::{self, Status};
use crate::server::protocol::Protocol;

/// Server-sent events.
pub(crate) const SSE: &str = "text/event-stream";
/// Lines of JSON.
pub(crate) const NDJSON: &str = "application/x-ndjson";

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// A method of a path.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    summary: &'static str,
    tag: &'static str,
    request: Option<(MakeSchema, Value)>,
    answer: Body,
    /// The parts of a streamed answer.
    stream: Option<(&'static str, MakeSchema)>,
    parameters: Vec<Value>,
    statuses: Vec<&'static [Status]>,
    /// A status whose answer may also have the shape of the one with 200.
    like_answer: Option<u16>,
    is_public: bool,
}

/// Content of an answer with status 200.
enum Body {
    Json(MakeSchema),
    /// Text of one of these types.
    Text(&'static [&'static str]),
    /// There is none: every request is refused.
    Refused,
}

/// The generators of both directions: what requests may send, and what answers have.
pub(crate) struct Generators {
    pub(crate) requests: SchemaGenerator,
    pub(crate) answers: SchemaGenerator,
}

impl Operation {
    fn new(method: &'static str, path: &'static str, summary: &'static str, answer: Body) -> Operation {
        Operation {
            method,
            path,
            summary,
            tag: "",
            request: None,
            answer,
            stream: None,
            parameters: vec![],
            statuses: vec![statuses::ANY],
            like_answer: None,
            is_public: false,
        }
    }

    /// Answers with an object.
    pub(crate) fn json<A: JsonSchema>(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> Operation {
        Operation::new(method, path, summary, Body::Json(SchemaGenerator::subschema_for::<A>))
    }

    /// Answers with a text of one of these types.
    pub(crate) fn text(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        media: &'static [&'static str],
    ) -> Operation {
        Operation::new(method, path, summary, Body::Text(media))
    }

    /// Refuses every request.
    pub(crate) fn refused(method: &'static str, path: &'static str, summary: &'static str) -> Operation {
        Operation {
            statuses: vec![statuses::REFUSED],
            ..Operation::new(method, path, summary, Body::Refused)
        }
    }

    pub(crate) fn tag(&self) -> &'static str {
        self.tag
    }

    pub(crate) fn tagged(self, tag: &'static str) -> Operation {
        Operation { tag, ..self }
    }

    /// Takes a body, with an example of one.
    pub(crate) fn takes<R: JsonSchema>(mut self, example: Value) -> Operation {
        self.statuses.push(statuses::BODY);
        Operation { request: Some((SchemaGenerator::subschema_for::<R>, example)), ..self }
    }

    /// Also answers in parts, which clients read as they come.
    pub(crate) fn streams<P: JsonSchema>(self, media: &'static str) -> Operation {
        Operation { stream: Some((media, SchemaGenerator::subschema_for::<P>)), ..self }
    }

    pub(crate) fn fails(mut self, statuses: &'static [Status]) -> Operation {
        self.statuses.push(statuses);
        self
    }

    pub(crate) fn query(mut self, name: &str, about: &str, schema: Value) -> Operation {
        let parameter = json!({ "name": name, "in": "query", "description": about, "schema": schema });
        self.parameters.push(parameter);
        self
    }

    /// The answer with this status has the shape of the one with 200.
    pub(crate) fn answers_alike(self, status: u16) -> Operation {
        Operation { like_answer: Some(status), ..self }
    }

    /// Never asks for a key.
    pub(crate) fn public(mut self) -> Operation {
        self.statuses[0] = statuses::PUBLIC;
        Operation { is_public: true, ..self }
    }

    /// The operation object of OpenAPI.
    pub(crate) fn object(&self, generators: &mut Generators) -> Value {
        let mut object = json!({
            "tags": [self.tag],
            "summary": self.summary,
            "operationId": self.id(),
        });
        let parameters: Vec<Value> = self.path_parameters().chain(self.parameters.iter().cloned()).collect();
        if !parameters.is_empty() {
            object["parameters"] = parameters.into();
        }
        if let Some((schema, example)) = &self.request {
            let schema = schema(&mut generators.requests);
            let media = json!({ "schema": schema, "example": example });
            object["requestBody"] = json!({ "required": true, "content": { "application/json": media } });
        }
        object["responses"] = self.responses(generators).into();
        if self.is_public {
            object["security"] = json!([]);
        }
        object
    }

    /// The method and the path's names, in one word.
    fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        std::iter::once(self.method).chain(words).collect::<Vec<_>>().join("_")
    }

    fn path_parameters(&self) -> impl Iterator<Item = Value> {
        let names = self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        names.map(|name| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
        })
    }

    fn responses(&self, generators: &mut Generators) -> Map<String, Value> {
        let mut responses = Map::new();
        if let Some(content) = self.content(generators) {
            let response = json!({
                "description": "The answer.",
                "headers": statuses::headers(false),
                "content": content,
            });
            responses.insert("200".into(), response);
        }
        let protocol = Protocol::of(self.path);
        let mut all: Vec<Status> = self.statuses.iter().copied().flatten().copied().collect();
        all.sort_by_key(|status| status.code);
        for status in all {
            let (code, response) = status.response(protocol);
            match responses.get_mut(&code) {
                // Several reasons of one status.
                Some(Value::Object(known)) => {
                    let more = format!("; {}", status.when);
                    if let Some(Value::String(text)) = known.get_mut("description") {
                        text.push_str(&more);
                    }
                }
                _ => drop(responses.insert(code, response)),
            }
        }
        self.widen(&mut responses);
        responses
    }

    fn widen(&self, responses: &mut Map<String, Value>) {
        let schema_of = |response: &Value| response["content"]["application/json"]["schema"].clone();
        let Some(code) = self.like_answer.map(|code| code.to_string()) else { return };
        let own = responses.get("200").map(schema_of);
        if let (Some(own), Some(response)) = (own, responses.get_mut(&code)) {
            let any_of = json!({ "anyOf": [own, schema_of(response)] });
            response["content"]["application/json"]["schema"] = any_of;
        }
    }

    fn content(&self, generators: &mut Generators) -> Option<Value> {
        let mut content = match self.answer {
            Body::Json(schema) => {
                json!({ "application/json": { "schema": schema(&mut generators.answers) } })
            }
            Body::Text(media) => {
                let content =
                    media.iter().map(|media| ((*media).into(), json!({ "schema": { "type": "string" } })));
                Value::Object(content.collect())
            }
            Body::Refused => return None,
        };
        if let Some((media, schema)) = self.stream {
            let part = schema(&mut generators.answers);
            content[media] = json!({ "x-itemSchema": part });
        }
        Some(content)
    }
}
