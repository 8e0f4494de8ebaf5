//! The document against the router's source and against docs/api.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::{Map, Value};

use super::document;

type Operations = BTreeSet<(String, String)>;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Method and path of every `.route(..)` in a source, without its tests.
fn routes_of(source: &str) -> Operations {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let mut operations = Operations::new();
    for call in code.split(".route(\"").skip(1) {
        let (path, handlers) = call.split_once('"').unwrap();
        // Handlers have no line of their own: the call ends with its line.
        let handlers = handlers.lines().next().unwrap();
        for method in ["get", "post", "put", "delete", "head", "patch", "any"] {
            let is_named = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let call = format!("{method}(");
            let mut at = handlers.match_indices(&call);
            if at.any(|(start, _)| is_named(&handlers[..start])) {
                operations.insert((method.into(), path.replace("{*", "{")));
            }
        }
    }
    operations
}

fn routes_below(folder: &Path) -> Operations {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of_entry = |path: std::path::PathBuf| match path.is_dir() {
        true => routes_below(&path),
        false if path.extension().is_some_and(|extension| extension == "rs") => {
            routes_of(&fs::read_to_string(&path).unwrap())
        }
        false => Operations::new(),
    };
    entries.flat_map(of_entry).collect()
}

fn operations(document: &Value) -> BTreeMap<(String, String), &Value> {
    let mut all = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            all.insert((method.clone(), path.clone()), operation);
        }
    }
    all
}

#[test]
fn document_has_the_operations_of_the_router() {
    let document = document();
    let documented: Operations = operations(&document).into_keys().collect();
    let routed = routes_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server"));
    assert!(routed.len() > 40, "{routed:?}");
    let missing: Vec<_> = routed.difference(&documented).collect();
    let surplus: Vec<_> = documented.difference(&routed).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}, without a route: {surplus:?}");
}

/// Calls `visit` with every object inside a value that is a schema or holds some.
fn each_object<'a>(value: &'a Value, visit: &mut dyn FnMut(&'a Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            visit(fields);
            fields.values().for_each(|value| each_object(value, visit));
        }
        Value::Array(items) => items.iter().for_each(|value| each_object(value, visit)),
        _ => {}
    }
}

#[test]
fn document_is_deterministic_and_its_references_resolve() {
    let one = document();
    assert_eq!(one.to_string(), document().to_string());
    let mut references = 0;
    each_object(&one, &mut |object| {
        assert!(!object.contains_key(crate::server::schema::SAME_AS), "{object:?}");
        if let Some(Value::String(reference)) = object.get("$ref") {
            references += 1;
            assert!(one.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    });
    assert!(references > 100, "{references}");
}

/// Names of the properties that a value's schemas have, references followed.
fn properties(document: &Value, value: &Value, seen: &mut BTreeSet<String>, names: &mut BTreeSet<String>) {
    each_object(value, &mut |object| {
        if let Some(Value::Object(properties)) = object.get("properties") {
            names.extend(properties.keys().cloned());
        }
        let reference = object.get("$ref").and_then(Value::as_str);
        if let Some(reference) = reference.filter(|reference| seen.insert((*reference).to_owned())) {
            let target = document.pointer(reference.trim_start_matches('#')).unwrap();
            properties(document, target, seen, names);
        }
    });
}

/// Words in the code of a page: between backquotes, or in blocks.
fn code_words(page: &str) -> BTreeSet<&str> {
    let is_separator = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
    page.split('`').skip(1).step_by(2).flat_map(|code| code.split(is_separator)).collect()
}

#[test]
fn docs_name_every_field_of_the_document() {
    let document = document();
    let general = ["api.md", "tools.md", "api/answers.md", "mcp.md", "vision.md"]
        .map(|page| file(&format!("../../docs/{page}")))
        .concat();
    let mut missing = BTreeMap::<&str, BTreeSet<String>>::new();
    for operation in operations(&document).values() {
        let page = match operation["tags"][0].as_str().unwrap() {
            "Responses" => "responses",
            "Anthropic" => "anthropic",
            "Ollama" => "ollama",
            "Tokens" => "utility",
            "Store" => "store",
            _ => "embeddings",
        };
        let text = [&general[..], &file(&format!("../../docs/api/{page}.md"))].concat();
        let words = code_words(&text);
        let (mut seen, mut names) = (BTreeSet::new(), BTreeSet::new());
        for part in [&operation["requestBody"], &operation["responses"]] {
            properties(&document, part, &mut seen, &mut names);
        }
        names.retain(|name| !words.contains(&name[..]));
        missing.entry(page).or_default().extend(names);
    }
    missing.retain(|_, names| !names.is_empty());
    assert!(missing.is_empty(), "docs/api.md and docs/api/PAGE.md do not name {missing:#?}");
}

#[test]
fn every_field_of_a_request_has_a_type() {
    let document = document();
    for ((method, path), operation) in operations(&document) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let Some(reference) = schema["$ref"].as_str() else { continue };
        let body = document.pointer(reference.trim_start_matches('#')).unwrap();
        for (name, field) in body["properties"].as_object().unwrap() {
            let has_type = ["type", "anyOf", "$ref", "enum"].iter().any(|key| field.get(key).is_some());
            assert!(has_type, "{method} {path}: {name} is {field}");
        }
    }
}

#[test]
fn ranges_are_those_of_the_parser() {
    let document = document();
    let field =
        |schema: &str, name: &str| document["components"]["schemas"][schema]["properties"][name].clone();
    for schema in ["ChatRequest", "CompletionRequest", "ResponsesRequest", "MessagesRequest"] {
        let top_p = field(schema, "top_p");
        assert_eq!((&top_p["exclusiveMinimum"], &top_p["maximum"]), (&0.0.into(), &1.0.into()), "{schema}");
        assert_eq!(field(schema, "repetition_penalty")["minimum"], 0.01, "{schema}");
        assert_eq!(field(schema, "cache_ttl_ms")["maximum"], 60_000, "{schema}");
    }
    assert_eq!(field("ChatRequest", "n")["maximum"], 16);
    assert_eq!(field("ResponsesRequest", "n"), Value::Null);
}
