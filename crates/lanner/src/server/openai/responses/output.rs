//! Output items of a response.

use mcp::ToolInfo;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::input::encode_reasoning;
use crate::server::{openai::chat::TokenLogprob, schema::AnyObject};

#[derive(Clone, Debug, JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    Reasoning {
        id: String,
        status: ItemStatus,
        /// Always empty: the reasoning is there itself.
        summary: [(); 0],
        content: Vec<ContentPart>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    Message {
        id: String,
        status: ItemStatus,
        role: &'static str,
        content: Vec<ContentPart>,
    },
    FunctionCall {
        id: String,
        status: ItemStatus,
        call_id: String,
        name: String,
        arguments: String,
    },
    CustomToolCall {
        id: String,
        status: ItemStatus,
        call_id: String,
        name: String,
        input: String,
    },
    /// The tools of an MCP server.
    McpListTools {
        id: String,
        server_label: String,
        tools: Vec<McpToolEntry>,
        /// Why there are none; null if there are.
        error: Option<String>,
    },
    /// A call that this server makes.
    McpCall {
        id: String,
        status: McpCallStatus,
        server_label: String,
        name: String,
        arguments: String,
        output: Option<String>,
        error: Option<String>,
        /// Id of the call's approval request, if it needed one.
        approval_request_id: Option<String>,
    },
    /// A call that this server makes once the client approves it.
    McpApprovalRequest {
        id: String,
        server_label: String,
        name: String,
        arguments: String,
    },
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct McpToolEntry {
    name: String,
    description: Option<String>,
    #[schemars(with = "AnyObject")]
    input_schema: Value,
    #[schemars(with = "Option<AnyObject>")]
    annotations: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum McpCallStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl From<ToolInfo> for McpToolEntry {
    fn from(tool: ToolInfo) -> McpToolEntry {
        let ToolInfo { name, description, input_schema, annotations } = tool;
        McpToolEntry { name, description, input_schema, annotations }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentPart {
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<TokenLogprob> },
    ReasoningText { text: String },
}

impl OutputItem {
    /// A message whose text is to come.
    pub(crate) fn message(id: String) -> OutputItem {
        OutputItem::Message { id, status: ItemStatus::InProgress, role: "assistant", content: vec![] }
    }

    /// Reasoning whose text is to come.
    pub(crate) fn reasoning(id: String) -> OutputItem {
        let (content, encrypted_content) = (vec![], None);
        OutputItem::Reasoning { id, status: ItemStatus::InProgress, summary: [], content, encrypted_content }
    }

    /// A call whose arguments are to come, of a custom tool or of a function.
    pub(crate) fn call(id: String, call_id: String, name: String, is_custom: bool) -> OutputItem {
        let status = ItemStatus::InProgress;
        match is_custom {
            true => OutputItem::CustomToolCall { id, status, call_id, name, input: String::new() },
            false => OutputItem::FunctionCall { id, status, call_id, name, arguments: String::new() },
        }
    }

    /// Whether the answer calls a tool with it.
    pub(crate) fn is_call(&self) -> bool {
        matches!(
            self,
            OutputItem::FunctionCall { .. }
                | OutputItem::CustomToolCall { .. }
                | OutputItem::McpCall { .. }
                | OutputItem::McpApprovalRequest { .. }
        )
    }

    /// Whether this server has still to make the call.
    pub(crate) fn is_unfinished_call(&self) -> bool {
        matches!(self, OutputItem::McpCall { status: McpCallStatus::InProgress, .. })
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            OutputItem::Reasoning { id, .. }
            | OutputItem::Message { id, .. }
            | OutputItem::FunctionCall { id, .. }
            | OutputItem::CustomToolCall { id, .. }
            | OutputItem::McpListTools { id, .. }
            | OutputItem::McpCall { id, .. }
            | OutputItem::McpApprovalRequest { id, .. } => id,
        }
    }

    /// The only part of a message or of reasoning, once it has begun.
    pub(crate) fn part(&self) -> Option<&ContentPart> {
        match self {
            OutputItem::Reasoning { content, .. } | OutputItem::Message { content, .. } => content.first(),
            _ => None,
        }
    }

    /// Appends to the text of its part, or to its arguments.
    pub(crate) fn append(&mut self, more: &str, scores: Vec<TokenLogprob>) {
        match self {
            OutputItem::Message { content, .. } => {
                if let Some(ContentPart::OutputText { text, logprobs, .. }) = content.first_mut() {
                    text.push_str(more);
                    logprobs.extend(scores);
                }
            }
            OutputItem::Reasoning { content, .. } => {
                if let Some(ContentPart::ReasoningText { text }) = content.first_mut() {
                    text.push_str(more);
                }
            }
            OutputItem::FunctionCall { arguments: text, .. }
            | OutputItem::CustomToolCall { input: text, .. }
            | OutputItem::McpCall { arguments: text, .. }
            | OutputItem::McpApprovalRequest { arguments: text, .. } => text.push_str(more),
            OutputItem::McpListTools { .. } => {}
        }
    }

    /// Begins the part of a message or of reasoning.
    pub(crate) fn begin_part(&mut self) -> Option<ContentPart> {
        let (content, part) = match self {
            OutputItem::Message { content, .. } => {
                (content, ContentPart::OutputText { text: String::new(), annotations: [], logprobs: vec![] })
            }
            OutputItem::Reasoning { content, .. } => {
                (content, ContentPart::ReasoningText { text: String::new() })
            }
            _ => return None,
        };
        content.push(part.clone());
        Some(part)
    }

    /// Ends the item; `encrypts` adds the encoded reasoning.
    pub(crate) fn end(&mut self, ended: ItemStatus, encrypts: bool) {
        match self {
            OutputItem::Reasoning { status, content, encrypted_content, .. } => {
                *status = ended;
                let text = content.first().map(ContentPart::text).unwrap_or_default();
                *encrypted_content = encrypts.then(|| encode_reasoning(text));
            }
            OutputItem::Message { status, .. }
            | OutputItem::FunctionCall { status, .. }
            | OutputItem::CustomToolCall { status, .. } => *status = ended,
            // A complete call is still to be made.
            OutputItem::McpCall { status, .. } if ended == ItemStatus::Incomplete => {
                *status = McpCallStatus::Incomplete;
            }
            OutputItem::McpCall { .. }
            | OutputItem::McpListTools { .. }
            | OutputItem::McpApprovalRequest { .. } => {}
        }
    }
}

impl ContentPart {
    pub(crate) fn text(&self) -> &str {
        match self {
            ContentPart::OutputText { text, .. } | ContentPart::ReasoningText { text } => text,
        }
    }
}
