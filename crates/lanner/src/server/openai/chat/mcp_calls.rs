//! Calls of MCP tools in chat completions: this server makes them, and the message reports them in
//! `mcp_calls`, which OpenAI's API does not have.

use std::collections::{BTreeMap, BTreeSet};

use mcp::offered_name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    mcp_tools::{ToolCall, ToolOutput, tool_message},
    server::openai::{
        error::ApiError,
        mcp::{Offered, PendingCall, ToolEvent, ToolPlan},
    },
};

/// A call that this server made.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "McpCall")]
pub(super) struct McpCall {
    id: String,
    server_label: String,
    /// The server's name of the tool.
    name: String,
    /// JSON.
    arguments: String,
    /// Null if the call failed.
    output: Option<String>,
    /// Null if it did not.
    error: Option<String>,
}

/// Tells the calls that this server makes from those that are the client's.
#[derive(Debug, Default)]
pub(super) struct McpCallWriter {
    /// Label and name of each tool, by its offered name.
    tools: BTreeMap<String, (String, String)>,
    /// Offered names of those whose calls the client sees, to approve them.
    asks: BTreeSet<String>,
    /// The client's index of each call in this step, by the model's index.
    indexes: BTreeMap<usize, Option<usize>>,
}

impl McpCallWriter {
    pub(super) fn new(plan: Option<&ToolPlan>) -> McpCallWriter {
        let tools = plan.into_iter().flat_map(|plan| plan.offered.tools.all());
        let tools = tools.map(|tool| (tool.name.clone(), (tool.label.clone(), tool.info.name.clone())));
        let asks = plan.map(|plan| plan.offered.asks.clone()).unwrap_or_default();
        McpCallWriter { tools: tools.collect(), asks, indexes: BTreeMap::new() }
    }

    /// Begins a call. Returns the client's index; `None`: it is this server's.
    pub(super) fn begin(&mut self, index: usize, name: &str) -> Option<usize> {
        // Without MCP tools an answer may have several choices.
        if self.tools.is_empty() {
            return Some(index);
        }
        let before = self.indexes.values().flatten().count();
        let is_hidden = self.tools.contains_key(name) && !self.asks.contains(name);
        let own = (!is_hidden).then_some(before);
        self.indexes.insert(index, own);
        own
    }

    pub(super) fn own_index(&self, index: usize) -> Option<usize> {
        if self.tools.is_empty() { Some(index) } else { *self.indexes.get(&index)? }
    }

    /// The call, once it has ended.
    pub(super) fn on_event(&mut self, event: ToolEvent) -> Option<McpCall> {
        match event {
            ToolEvent::Done { call, output } => Some(self.ended(call, output)),
            ToolEvent::Refused { call, reason } => Some(self.ended(call, Err(reason))),
            ToolEvent::Written => {
                // The next step numbers its calls anew. Calls of the client end the answer.
                self.indexes.retain(|_, own| own.is_some());
                None
            }
            ToolEvent::Listed(_) | ToolEvent::Started(_) => None,
        }
    }

    fn ended(&self, call: ToolCall, output: ToolOutput) -> McpCall {
        let (server_label, name) = self.tools.get(&call.name).cloned().unwrap_or_default();
        let (output, error) = match output {
            Ok(output) => (Some(output), None),
            Err(error) => (None, Some(error)),
        };
        McpCall { id: call.id, server_label, name, arguments: call.arguments, output, error }
    }
}

/// Replaces messages with `mcp_calls` by those that the model wrote and read: each call with its
/// result, then the rest.
///
/// # Errors
/// 400: a call lacks a field.
pub(super) fn as_tool_messages(messages: &mut Vec<Value>) -> Result<(), ApiError> {
    if !messages.iter().any(|message| message.get("mcp_calls").is_some()) {
        return Ok(());
    }
    for (index, mut message) in std::mem::take(messages).into_iter().enumerate() {
        let calls = message.as_object_mut().and_then(|fields| fields.remove("mcp_calls"));
        let calls = match calls {
            None | Some(Value::Null) => vec![],
            Some(Value::Array(calls)) => calls,
            Some(_) => {
                let param = format!("messages[{index}].mcp_calls");
                return Err(ApiError::invalid(param.clone(), format!("{param} must be an array")));
            }
        };
        for (at, call) in calls.iter().enumerate() {
            let text = |field: &str| {
                let param = format!("messages[{index}].mcp_calls[{at}].{field}");
                let text = call[field].as_str().map(str::to_owned);
                text.ok_or_else(|| ApiError::invalid(param.clone(), format!("{param} must be a string")))
            };
            let name = offered_name(&text("server_label")?, &text("name")?, &mut Default::default());
            let made = ToolCall { id: text("id")?, name, arguments: text("arguments")? };
            let output = match call["error"].as_str() {
                Some(error) => Err(error.to_owned()),
                None => Ok(text("output")?),
            };
            // One that was approved is in the message that asked for it.
            if call_of(messages, &made.id).is_none() {
                let function = json!({ "name": made.name, "arguments": made.arguments });
                let calls = json!([{ "id": made.id, "type": "function", "function": function }]);
                messages.push(json!({ "role": "assistant", "content": "", "tool_calls": calls }));
            }
            messages.push(tool_message(&made, &output));
        }
        messages.push(message);
    }
    Ok(())
}

/// The client's decision on a call that needs approval.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct McpApproval {
    /// Id of the call.
    id: String,
    approve: bool,
    /// For the model, if the call is refused.
    reason: Option<String>,
}

/// The calls that the client approves, and those that it refuses with the reasons. Their messages
/// are there already.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ApprovedCalls {
    pub approved: Vec<ToolCall>,
    pub refused: Vec<(ToolCall, String)>,
}

/// Adds the results of calls that the client approves or refuses to the messages; those of approved
/// ones are replaced once the calls are made.
///
/// # Errors
/// 400: there is no such call, or it has a result.
pub(super) fn add_approvals(
    messages: &mut Vec<Value>,
    approvals: Vec<McpApproval>,
) -> Result<ApprovedCalls, ApiError> {
    let mut calls = ApprovedCalls::default();
    for (index, McpApproval { id, approve, reason }) in approvals.into_iter().enumerate() {
        let param = format!("mcp_approvals[{index}].id");
        let has_result = messages.iter().any(|message| message["tool_call_id"] == *id);
        let found = call_of(messages, &id).filter(|_| !has_result);
        let Some((at, call)) = found else {
            let message = format!("{param} names no call in the messages that has no result yet");
            return Err(ApiError::invalid(param, message));
        };
        let results = messages[at + 1..].iter().take_while(|message| message["role"] == "tool").count();
        let refusal = match reason {
            Some(reason) => format!("The user refused this call: {reason}"),
            None => "The user refused this call.".into(),
        };
        let output = if approve { Ok(String::new()) } else { Err(refusal.clone()) };
        messages.insert(at + 1 + results, tool_message(&call, &output));
        match approve {
            true => calls.approved.push(call),
            false => calls.refused.push((call, refusal)),
        }
    }
    Ok(calls)
}

/// The call of this id, and its message.
fn call_of(messages: &[Value], id: &str) -> Option<(usize, ToolCall)> {
    messages.iter().enumerate().find_map(|(at, message)| {
        let call = message["tool_calls"].as_array()?.iter().find(|call| call["id"] == *id)?;
        let text = |field: &str| call["function"][field].as_str().unwrap_or_default().to_owned();
        Some((at, ToolCall { id: id.to_owned(), name: text("name"), arguments: text("arguments") }))
    })
}

/// The approved calls with the messages that get their results.
///
/// # Errors
/// 400: the request does not offer the tool of one.
pub(super) fn pending(
    approved: Vec<ToolCall>,
    messages: &[Value],
    plan: &Offered,
) -> Result<Vec<PendingCall>, ApiError> {
    let find = |call: ToolCall| {
        if plan.tools.get(&call.name).is_none() {
            let message =
                format!("the approved call is of `{}`, which no MCP tool of this request is", call.name);
            return Err(ApiError::invalid("mcp_approvals", message));
        }
        let message = messages.iter().position(|message| message["tool_call_id"] == *call.id);
        Ok(PendingCall { call, message: message.unwrap_or_default() })
    };
    approved.into_iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_calls_become_messages_again() {
        let call = json!({ "id": "c1", "server_label": "files", "name": "read", "arguments": "{}",
            "output": "text", "error": null });
        let failed = json!({ "id": "c2", "server_label": "files", "name": "x.y", "arguments": "{}",
            "output": null, "error": "no" });
        let mut messages = vec![
            json!({ "role": "user", "content": "x" }),
            json!({ "role": "assistant", "content": "Done.", "mcp_calls": [call, failed] }),
        ];
        as_tool_messages(&mut messages).unwrap();
        let roles: Vec<&str> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "assistant"]);
        assert_eq!(messages[3]["tool_calls"][0]["function"]["name"], "mcp__files__x_y");
        assert_eq!((&messages[2]["content"], &messages[4]["content"]), (&json!("text"), &json!("Error: no")));
        assert_eq!(messages[5], json!({ "role": "assistant", "content": "Done." }));

        let mut messages = vec![json!({ "role": "assistant", "mcp_calls": [{ "id": "c" }] })];
        let error = as_tool_messages(&mut messages).unwrap_err();
        assert_eq!(error.body.param.as_deref(), Some("messages[0].mcp_calls[0].server_label"));
    }
}
