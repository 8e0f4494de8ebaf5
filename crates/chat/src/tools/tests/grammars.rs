//! Grammars under random choices: in every dialect, every reply is a call whose arguments are
//! valid.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{
    DecodeOptions, Decoder, Delta, Tokenizer, ToolOptions,
    grammar::{Grammars, Start},
    tools::{self, Dialect, ToolSet},
};

pub(super) const EOS: u32 = 1;
const MAX_TOKENS: usize = 4_000;
const TOKENIZER: &str = include_str!("../../../tests/data/byte_level/tokenizer.json");

/// The tests' tokenizer; with the markers of a dialect as special tokens, or as plain text.
pub(super) fn tokenizer(dialect: Dialect, special: bool) -> Arc<Tokenizer> {
    let mut json: Value = serde_json::from_str(TOKENIZER).unwrap();
    let first = 512;
    if special {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        for (index, marker) in dialect.markers().iter().enumerate() {
            tokens
                .push(json!({ "id": first + index, "content": marker, "special": true, "single_word": false,
                                "lstrip": false, "rstrip": false, "normalized": false }));
        }
    }
    Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap())
}

pub(super) fn tools(choice: &Value, parallel: bool) -> Arc<ToolSet> {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let text = json!({ "type": "string", "maxLength": 6 });
    let all = json!({
        "type": "object",
        "properties": {
            "text": text,
            "kind": { "enum": ["a", "b c"] },
            "maybe": { "type": ["string", "null"], "maxLength": 3 },
            "count": { "type": "integer", "minimum": 0, "maximum": 40 },
            "flag": { "type": "boolean" },
            "list": { "type": "array", "items": text, "maxItems": 2 },
            "inner": { "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] },
        },
        "required": ["text", "count", "flag", "inner"],
    });
    let tools = [
        tool("f", all),
        tool("g.h-1", json!({ "type": "object" })),
        tool(
            "code",
            json!({
                "type": "object",
                "properties": { "pattern": { "type": "string", "pattern": "^[a-c]{2,4}$" } },
                "required": ["pattern"],
            }),
        ),
    ];
    Arc::new(ToolSet::new(&tools, Some(choice), Some(parallel)).unwrap().unwrap())
}

/// Whether a value is valid, by the keywords that these tests use.
fn is_valid(value: &Value, schema: &Value) -> bool {
    let is = |name: &str| match name {
        "string" => value.is_string(),
        // `-0` is one.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let typed = match &schema["type"] {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().any(|name| is(name.as_str().unwrap())),
        _ => true,
    };
    let listed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    let length = value.as_str().map_or(0, |text| text.chars().count() as u64);
    let short = schema["maxLength"].as_u64().is_none_or(|most| length <= most);
    let number = value.as_f64().unwrap_or(0.0);
    let bounded = schema["minimum"].as_f64().is_none_or(|least| number >= least)
        && schema["maximum"].as_f64().is_none_or(|most| number <= most);
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    let few = schema["maxItems"].as_u64().is_none_or(|most| items.len() as u64 <= most);
    let valid_items =
        schema.get("items").is_none_or(|schema| items.iter().all(|item| is_valid(item, schema)));
    let required = schema["required"]
        .as_array()
        .is_none_or(|names| names.iter().all(|name| value.get(name.as_str().unwrap()).is_some()));
    let member = |(name, value): (&String, &Value)| {
        schema["properties"].get(name).is_some_and(|schema| is_valid(value, schema))
    };
    let members = schema.get("properties").is_none()
        || value.as_object().is_none_or(|object| object.iter().all(member));
    let pattern = schema.get("pattern").is_none() || {
        let text = value.as_str().unwrap_or_default();
        (2..=4).contains(&text.len()) && text.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
    };
    typed && listed && short && bounded && few && valid_items && required && members && pattern
}

/// A generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Extends `ids` with random allowed tokens up to EOS; `None` if it does not come within
/// [`MAX_TOKENS`].
fn reply(
    matcher: &mut crate::grammar::Matcher,
    random: &mut Random,
    vocab_size: u32,
    mut ids: Vec<u32>,
) -> Option<Vec<u32>> {
    for &id in &ids {
        assert!(matcher.push(id).unwrap());
    }
    while ids.len() < MAX_TOKENS {
        let mask = matcher.mask().unwrap();
        let allows =
            |id: &u32| mask.as_ref().is_none_or(|words| words[*id as usize / 32] >> (id % 32) & 1 == 1);
        let allowed: Vec<u32> = (0..vocab_size).filter(allows).collect();
        let ends = allowed.contains(&EOS) && random.below(3) > 0;
        let id = if ends { EOS } else { allowed[random.below(allowed.len())] };
        assert!(matcher.push(id).unwrap());
        if id == EOS {
            return Some(ids);
        }
        ids.push(id);
    }
    None
}

/// How replies begin.
#[derive(Clone, Copy, PartialEq)]
enum Beginning {
    /// With a call.
    AtOnce,
    /// With free text, then the text that begins a call.
    Trigger,
}

/// Free text before a call, as the tokens of a reply.
fn free_text(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Harmony => "<|channel|>final<|message|>I look.<|end|><|start|>assistant",
        _ => "I look. ",
    }
}

/// Checks random replies that must have calls; returns the number of calls.
fn check(dialect: Dialect, special: bool, tools: &Arc<ToolSet>, begins: Beginning, seeds: u64) -> usize {
    let tokenizer = tokenizer(dialect, special);
    let vocab_size = tokenizer.vocab_size().max(520);
    let grammars = Grammars::new(tokenizer.clone(), vocab_size, &[EOS]).unwrap();
    let (source, triggers) = tools::grammar(dialect, tools, &grammars, begins == Beginning::AtOnce).unwrap();
    let grammar = grammars.compile(&source, &Start { reasoning: None, triggers });
    let grammar = grammar.unwrap_or_else(|error| panic!("{dialect}: {error}\n{source:?}"));
    let texts = (dialect.syntax().grammar_triggers)(tools);
    let (mut ended, mut calls) = (0, 0);
    for seed in 1..=seeds {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (content, first) = match begins {
            Beginning::AtOnce => ("", String::new()),
            Beginning::Trigger => {
                ("I look.", free_text(dialect).to_owned() + &texts[random.below(texts.len())])
            }
        };
        let first = tokenizer.encode(&first, false).unwrap();
        let Some(ids) = reply(&mut grammar.matcher(), &mut random, vocab_size as u32, first) else {
            continue;
        };
        ended += 1;
        let text = tokenizer.decode(&ids, false).unwrap();
        let (before, found) = parsed(&tokenizer, dialect, tools, &ids);
        assert_eq!(before, content, "{dialect}: {text}");
        assert!(!found.is_empty() && (tools.parallel || found.len() == 1), "{dialect}: {text}");
        for (name, arguments) in &found {
            let arguments: Value =
                serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{dialect}: {error}: {text}"));
            let schema = &tools.get(name).unwrap().parameters;
            assert!(is_valid(&arguments, schema), "{dialect}: {arguments} in {text}");
        }
        calls += found.len();
    }
    assert!(ended * 2 > seeds, "{dialect}: {ended} of {seeds} replies ended");
    calls
}

/// The content and the calls of a reply.
pub(super) fn parsed(
    tokenizer: &Arc<Tokenizer>,
    dialect: Dialect,
    tools: &Arc<ToolSet>,
    ids: &[u32],
) -> (String, Vec<(String, String)>) {
    let options = ToolOptions { dialect, tools: tools.clone(), id_seed: 1, stream: true };
    let options = DecodeOptions { tools: Some(options), ..DecodeOptions::default() };
    let mut decoder = Decoder::new(tokenizer.clone(), options).unwrap();
    let mut deltas: Vec<Delta> = ids.iter().flat_map(|&id| decoder.push(id)).collect();
    deltas.extend(decoder.finish());
    let mut content = String::new();
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::ToolCall { name, .. } => calls.push((name, String::new())),
            Delta::ToolArguments { arguments, .. } => calls.last_mut().unwrap().1 += &arguments,
            Delta::Reasoning(_) => {}
            Delta::Content(text) => content += &text,
        }
    }
    assert_eq!(decoder.tool_calls(), calls.len());
    (content, calls)
}

#[test]
fn random_replies_are_valid_calls_in_every_dialect() {
    for dialect in Dialect::ALL {
        let calls = check(dialect, true, &tools(&json!("required"), true), Beginning::AtOnce, 40);
        assert!(calls >= 21, "{dialect}: {calls}");
        // The reasoning of a reply ends at a special token alone.
        if dialect != Dialect::Harmony {
            check(dialect, false, &tools(&json!("required"), false), Beginning::AtOnce, 20);
        }
    }
}

#[test]
fn random_replies_after_a_trigger_are_valid_calls_in_every_dialect() {
    for dialect in Dialect::ALL {
        for special in [true, false] {
            check(dialect, special, &tools(&json!("auto"), special), Beginning::Trigger, 20);
        }
    }
}

#[test]
fn named_tool_is_the_only_one_called() {
    let named = json!({ "type": "function", "function": { "name": "code" } });
    for dialect in Dialect::ALL {
        let tools = tools(&named, true);
        assert_eq!((tools.tools().len(), tools.parallel), (1, false));
        check(dialect, true, &tools, Beginning::AtOnce, 10);
    }
}

/// Schemas whose random values are short, in keywords that [`is_valid`] knows.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (0..8u32).prop_map(|most| json!({ "type": "string", "maxLength": most })),
        (-9..9i32, 0..99i32).prop_map(
            |(least, range)| json!({ "type": "integer", "minimum": least, "maximum": least + range })
        ),
        Just(json!({ "type": "boolean" })),
        Just(json!({ "type": ["integer", "null"], "minimum": 0, "maximum": 5 })),
        Just(json!({ "type": ["string", "null"], "maxLength": 4 })),
        Just(json!({ "type": "string", "enum": ["a", "b c", "", "null"] })),
        Just(json!({ "enum": ["x", 1, "true", null, false] })),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let list = (inner.clone(), 0..3u32)
            .prop_map(|(items, most)| json!({ "type": "array", "items": items, "maxItems": most }));
        prop_oneof![list, any_object(inner)]
    })
}

fn any_object(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z][a-z_]{0,5}", (values, any::<bool>()), 0..4).prop_map(|members| {
        let required = members.iter().filter(|(_, (_, required))| *required).map(|(name, _)| name.clone());
        let required: Vec<String> = required.collect();
        let properties = members.into_iter().map(|(name, (schema, _))| (name, schema));
        json!({ "type": "object", "properties": properties.collect::<Map<_, _>>(), "required": required })
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(12, |cases| cases.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_replies_are_valid_calls_for_any_schemas_in_every_dialect(
        parameters in prop::collection::vec(any_object(any_schema()), 1..3),
        parallel in any::<bool>(),
        special in any::<bool>(),
    ) {
        let tool = |(index, parameters): (usize, &Value)| {
            json!({ "type": "function", "function": { "name": format!("f{index}"), "parameters": parameters } })
        };
        let tools: Vec<Value> = parameters.iter().enumerate().map(tool).collect();
        let tools = ToolSet::new(&tools, Some(&json!("required")), Some(parallel)).unwrap().unwrap();
        let tools = Arc::new(tools);
        for dialect in Dialect::ALL {
            // The reasoning of a reply ends at a special token alone.
            check(dialect, special || dialect == Dialect::Harmony, &tools, Beginning::AtOnce, 3);
        }
    }
}
