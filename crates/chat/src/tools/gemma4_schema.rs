//! Schemas as grammars of Gemma's notation: bare keys, strings in `<|"|>`.

use serde_json::{Value, json};

use super::{
    call_grammar::Lark,
    definition::{InvalidTools, invalid},
    literal::QUOTE,
};

/// Keywords that this notation can honour, in any schema.
const KNOWN: [&str; 27] = [
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "anyOf",
    "description",
    "title",
    "default",
    "examples",
    "format",
    "nullable",
    "$defs",
    "definitions",
    "$comment",
];
const NUMBER_KEYWORDS: [&str; 6] =
    ["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const MAX_DEPTH: usize = 16;
/// Maximum nesting of values without a schema.
const FREE_DEPTH: usize = 3;

/// A Lark expression for the values of a schema.
///
/// # Errors
/// It has a keyword that this notation cannot honour.
pub(super) fn value(lark: &mut Lark, schema: &Value) -> Result<String, InvalidTools> {
    schema_value(lark, schema, MAX_DEPTH)
}

fn schema_value(lark: &mut Lark, schema: &Value, depth: usize) -> Result<String, InvalidTools> {
    if depth == 0 {
        return Err(invalid("tools", "a parameter's schema is nested too deeply"));
    }
    let Some(object) = schema.as_object() else { return free(lark, FREE_DEPTH) };
    if let Some(keyword) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let message = format!("a parameter uses `{keyword}`, which this model's syntax cannot honour");
        return Err(invalid("tools", message));
    }
    let constant = object.get("const").map(|value| vec![value.clone()]);
    if let Some(values) = constant.or_else(|| schema["enum"].as_array().cloned()) {
        let written: Vec<String> = values.iter().map(|value| written(lark, value)).collect();
        return Ok(lark.rule(&written.join(" | ")));
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let options: Result<Vec<String>, _> =
            options.iter().map(|option| schema_value(lark, option, depth - 1)).collect();
        return Ok(lark.rule(&options?.join(" | ")));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => return free(lark, FREE_DEPTH),
    };
    let typed: Result<Vec<String>, _> = types.iter().map(|name| typed(lark, schema, name, depth)).collect();
    Ok(lark.rule(&typed?.join(" | ")))
}

fn typed(lark: &mut Lark, schema: &Value, name: &str, depth: usize) -> Result<String, InvalidTools> {
    match name {
        "string" => {
            let text = lark.text(schema, QUOTE)?;
            Ok(format!("{} {text}", lark.literal(QUOTE)))
        }
        "integer" | "number" => {
            let mut number = schema.clone();
            if let Some(object) = number.as_object_mut() {
                object.retain(|key, _| NUMBER_KEYWORDS.contains(&key.as_str()));
                object.insert("type".into(), name.into());
            }
            lark.json(&number)
        }
        "boolean" => Ok(lark.rule("\"true\" | \"false\"")),
        "null" => Ok("\"null\"".to_owned()),
        "array" => array(lark, schema, depth),
        "object" => object(lark, schema, depth),
        other => Err(invalid("tools", format!("a parameter has the unknown type `{other}`"))),
    }
}

fn array(lark: &mut Lark, schema: &Value, depth: usize) -> Result<String, InvalidTools> {
    let item = match schema.get("items") {
        Some(items) => schema_value(lark, items, depth - 1)?,
        None => free(lark, FREE_DEPTH - 1)?,
    };
    let (least, most) = (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64());
    if most.is_some_and(|most| least > most) {
        return Err(invalid("tools", "a parameter's minItems is more than its maxItems"));
    }
    let more = match most {
        Some(0) => return Ok("\"[]\"".to_owned()),
        // A repetition cannot be of at most 0.
        Some(1) => String::new(),
        Some(most) => format!("(\",\" {item}){{{},{}}}", least.saturating_sub(1), most - 1),
        None => format!("(\",\" {item}){{{},}}", least.saturating_sub(1)),
    };
    let items = format!("{item} {more}");
    Ok(lark.rule(&format!("\"[\" {} \"]\"", if least == 0 { format!("({items})?") } else { items })))
}

fn object(lark: &mut Lark, schema: &Value, depth: usize) -> Result<String, InvalidTools> {
    let Some(properties) = schema["properties"].as_object() else { return free_object(lark, FREE_DEPTH - 1) };
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let [mut first, mut rest] = [lark.rule("\"\""), lark.rule("\"\"")];
    for (name, property) in properties.iter().rev() {
        let value = schema_value(lark, property, depth - 1)?;
        let member = lark.rule(&format!("{} {value}", json!(format!("{name}:"))));
        let skips = !required.contains(&name.as_str());
        let skip = |next: &str| if skips { format!(" | {next}") } else { String::new() };
        let (after, before) = (rest.clone(), first.clone());
        rest = lark.rule(&format!("\",\" {member} {after}{}", skip(&after)));
        first = lark.rule(&format!("{member} {after}{}", skip(&before)));
    }
    Ok(lark.rule(&format!("\"{{\" {first} \"}}\"")))
}

/// Any value nested at most `depth` levels.
fn free(lark: &mut Lark, depth: usize) -> Result<String, InvalidTools> {
    let text = typed(lark, &json!({}), "string", 1)?;
    let number = typed(lark, &json!({}), "number", 1)?;
    let mut options = vec![text, number, "\"true\" | \"false\" | \"null\"".to_owned()];
    if depth > 0 {
        let item = free(lark, depth - 1)?;
        options.push(format!("\"[\" ({item} (\",\" {item})*)? \"]\""));
        options.push(free_object(lark, depth - 1)?);
    }
    Ok(lark.rule(&options.join(" | ")))
}

fn free_object(lark: &mut Lark, depth: usize) -> Result<String, InvalidTools> {
    let value = free(lark, depth)?;
    let key = lark.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/");
    Ok(lark.rule(&format!("\"{{\" ({key} \":\" {value} (\",\" {key} \":\" {value})*)? \"}}\"")))
}

/// A value of an enumeration.
fn written(lark: &Lark, value: &Value) -> String {
    let comma = " \",\" ";
    match value {
        Value::String(text) => {
            let quote = lark.literal(QUOTE);
            if text.is_empty() {
                format!("{quote} {quote}")
            } else {
                format!("{quote} {} {quote}", json!(text))
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(lark, item)).collect();
            format!("\"[\" {} \"]\"", items.join(comma))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{} {}", json!(format!("{name}:")), written(lark, value))
            };
            let members: Vec<String> = members.iter().map(member).collect();
            format!("\"{{\" {} \"}}\"", members.join(comma))
        }
        other => json!(other.to_string()).to_string(),
    }
}
