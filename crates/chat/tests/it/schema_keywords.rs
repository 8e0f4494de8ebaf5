//! Keywords and formats of JSON Schema that grammars follow in other words.

use lanner_chat::grammar::{Source, Start};
use serde_json::{Value, json};

use crate::grammars::{EOS, grammars};

/// Whether the compact JSON of each value is an answer under a schema.
fn check_schema(schema: &Value, valid: &[Value], invalid: &[Value]) {
    let (tokenizer, grammars) = grammars();
    let grammar = grammars.compile(&Source::JsonSchema(schema.clone()), &Start::default());
    let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
    for (expected, values) in [(true, valid), (false, invalid)] {
        for value in values {
            let ids = tokenizer.encode(&value.to_string(), false).unwrap();
            let mut matcher = grammar.matcher();
            let accepted = ids.into_iter().chain([EOS]).all(|id| matcher.push(id).unwrap_or(false));
            assert_eq!(accepted, expected, "{value} under {schema}");
        }
    }
}

#[test]
fn keywords_that_others_express_are_honoured() {
    let no = Value::Null;
    check_schema(
        &json!({ "oneOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }, { "enum": [1, 2.5] }, { "const": 3 }],
            "$defs": {
                "a": { "type": "object", "properties": { "k": { "const": "a" } }, "required": ["k"] },
                "b": { "type": "object", "properties": { "k": { "const": "b" } }, "required": ["k"] },
            } }),
        &[json!({ "k": "a" }), json!({ "k": "b" }), json!(2.5), json!(3)],
        &[json!({ "k": "c" }), json!({}), json!(4), no.clone()],
    );
    check_schema(
        &json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } },
            "oneOf": [{ "required": ["a"] }, { "required": ["b"] }], "additionalProperties": false }),
        &[json!({ "a": 1 }), json!({ "b": 2 })],
        &[json!({}), json!({ "a": 1, "b": 2 })],
    );
    check_schema(
        &json!({ "type": "object", "properties": { "a": {}, "b": {}, "c": {} }, "additionalProperties": false,
            "dependentRequired": { "a": ["b"] }, "dependencies": { "c": { "properties": { "b": { "const": 1 } } } } }),
        &[
            json!({}),
            json!({ "b": 2 }),
            json!({ "a": 1, "b": 2 }),
            json!({ "b": 1, "c": 2 }),
            json!({ "c": 2 }),
        ],
        &[json!({ "a": 1 }), json!({ "b": 2, "c": 2 }), json!({ "a": 1, "c": 2 })],
    );
    check_schema(
        &json!({ "type": ["object", "string"], "not": { "required": ["secret"] } }),
        &[json!({ "open": 1 })],
        &[json!({ "secret": 1 }), json!({ "open": 1, "secret": 2 }), json!("secret")],
    );
    check_schema(
        &json!({ "not": { "type": ["object", "number"] } }),
        &[json!("a"), no],
        &[json!(1), json!({})],
    );
    check_schema(
        &json!({ "type": "object", "propertyNames": { "pattern": "^x[0-9]$" }, "additionalProperties": { "type": "null" } }),
        &[json!({}), json!({ "x1": null })],
        &[json!({ "x1": 1 }), json!({ "y1": null })],
    );
    check_schema(
        &json!({ "type": "object", "properties": { "a": {} }, "unevaluatedProperties": false }),
        &[json!({ "a": 1 })],
        &[json!({ "b": 1 })],
    );
}

#[test]
fn formats_of_the_standard_are_honoured_and_others_ignored() {
    let format = |name: &str| json!({ "type": "string", "format": name });
    let check = |name: &str, valid: &[&str], invalid: &[&str]| {
        let values = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
        check_schema(&format(name), &values(valid), &values(invalid));
    };
    check("color", &["", "#fff"], &[]);
    check("json-pointer", &["", "/a/~0b/", "/"], &["a", "/~2"]);
    check("relative-json-pointer", &["0", "12#", "1/a"], &["", "01", "/a", "1a"]);
    let references = ["", "/", "//h.org:80/a//b", "a/b?c=d#e", "../x", "mailto:a@b", "/a%20b", "#", "?"];
    check("uri-reference", &references, &["a b", "%zz", "//h:x", "1:a", "#a#"]);
    check("iri", &["http://a.org/"], &["a b"]);
    check("idn-email", &["a@b.org"], &["a"]);
    let (_, grammars) = grammars();
    for name in ["regex", "uri-template"] {
        let error = grammars.compile(&Source::JsonSchema(format(name)), &Start::default()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn alternatives_that_may_overlap_are_refused() {
    let (_, grammars) = grammars();
    for options in [
        json!([{ "type": "integer" }, { "type": "number" }]),
        json!([{ "properties": { "a": { "const": 1 } }, "required": ["a"] },
               { "properties": { "a": { "const": 2 } }, "required": ["a"] }]),
        json!([{ "type": "object", "properties": { "a": { "const": 1 } } },
               { "type": "object", "properties": { "a": { "const": 2 } } }]),
        json!([{ "enum": [1, "a"] }, { "const": 1.0 }]),
        json!([{ "required": ["a", "b"] }, { "required": ["c"] }]),
        json!([{ "minLength": 2 }, { "type": "array" }]),
    ] {
        let source = Source::JsonSchema(json!({ "oneOf": options }));
        let error = grammars.compile(&source, &Start::default()).unwrap_err();
        assert!(error.to_string().contains("oneOf"), "{options}: {error}");
    }
}
