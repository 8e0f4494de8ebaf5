//! Custom tools of chat completions, as functions.

use serde_json::{Value, json};

use crate::server::openai::{
    custom_tools::{CustomTools, function_call, not_a_string},
    error::ApiError,
};

/// Replaces the custom tools by the functions that the model is offered.
///
/// # Errors
/// 400: a custom tool has no name, or a format that cannot be followed.
pub(super) fn as_functions(tools: &mut [Value]) -> Result<CustomTools, ApiError> {
    let mut custom = CustomTools::default();
    for (index, tool) in tools.iter_mut().enumerate().filter(|(_, tool)| is_custom(tool)) {
        *tool = custom.add(&tool["custom"], &format!("tools[{index}].custom"))?;
    }
    Ok(custom)
}

/// Replaces `tool_choice`, if it names custom tools.
pub(super) fn as_function_choice(choice: &mut Value) {
    let replace = |tool: &mut Value| {
        if is_custom(tool) {
            *tool = json!({ "type": "function", "function": { "name": tool["custom"]["name"] } });
        }
    };
    replace(choice);
    let allowed = choice.pointer_mut("/allowed_tools/tools").and_then(Value::as_array_mut);
    allowed.into_iter().flatten().for_each(replace);
}

/// Replaces calls of custom tools in messages by those of functions.
///
/// # Errors
/// 400: the call has no name or no input.
pub(super) fn as_function_calls(messages: &mut [Value]) -> Result<(), ApiError> {
    for (index, message) in messages.iter_mut().enumerate() {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (at, call) in calls.into_iter().flatten().enumerate().filter(|(_, call)| is_custom(call)) {
            let text = |field: &str| {
                let param = || format!("messages[{index}].tool_calls[{at}].custom.{field}");
                call["custom"][field].as_str().ok_or_else(|| not_a_string(param()))
            };
            let function = function_call(text("name")?, text("input")?);
            if let Some(fields) = call.as_object_mut() {
                fields.remove("custom");
                fields.insert("type".into(), "function".into());
                fields.insert("function".into(), function);
            }
        }
    }
    Ok(())
}

fn is_custom(tool: &Value) -> bool {
    tool["type"] == "custom"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_tools_become_functions_of_one_text() {
        let f = json!({ "type": "function", "function": { "name": "f" } });
        let format = json!({ "type": "text" });
        let custom = json!({ "name": "patch", "description": "d", "format": format });
        let mut tools = [f.clone(), json!({ "type": "custom", "custom": custom })];
        let found = as_functions(&mut tools).unwrap();
        assert_eq!(tools[0], f);
        assert_eq!(tools[1]["function"]["description"], "d");
        assert_eq!(tools[1]["function"]["parameters"]["required"], json!(["input"]));
        assert!(found.is_at("tools[1].custom") && !found.is_at("tools[0].custom"));
        assert_eq!(found.into_names(), ["patch".to_owned()].into());
    }

    #[test]
    fn choice_of_custom_tools_becomes_that_of_functions() {
        let check = |mut choice: Value, expected: Value| {
            as_function_choice(&mut choice);
            assert_eq!(choice, expected);
        };
        let custom = json!({ "type": "custom", "custom": { "name": "patch" } });
        let function = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let allowed = |tools: Value| json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": tools } });
        check(json!("required"), json!("required"));
        check(custom.clone(), function("patch"));
        check(allowed(json!([custom, function("f")])), allowed(json!([function("patch"), function("f")])));
    }

    #[test]
    fn calls_in_messages_become_those_of_functions() {
        let call = |custom: Value| json!({ "id": "c1", "type": "custom", "custom": custom });
        let message = |call: Value| json!({ "role": "assistant", "content": null, "tool_calls": [call] });
        let mut messages = [
            json!({ "role": "user", "content": "x" }),
            message(call(json!({ "name": "patch", "input": "a\n" }))),
        ];
        as_function_calls(&mut messages).unwrap();
        let function = json!({ "name": "patch", "arguments": "{\"input\":\"a\\n\"}" });
        assert_eq!(messages[1], message(json!({ "id": "c1", "type": "function", "function": function })));

        let mut messages = [json!({ "tool_calls": 7 }), message(call(json!({ "name": "patch" })))];
        let error = as_function_calls(&mut messages).unwrap_err();
        assert_eq!(error.body.param.as_deref(), Some("messages[1].tool_calls[0].custom.input"));
    }
}
