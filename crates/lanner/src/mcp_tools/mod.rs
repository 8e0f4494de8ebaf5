//! Tools of MCP servers as a model is offered them, and the steps of an answer that calls them. The
//! server and `lanner chat` share this; what each asks before a call is its own.

mod offer;
mod step;

pub(crate) use self::{
    offer::{McpTool, McpTools},
    step::{AnswerStep, ToolCall, ToolOutput, tool_message},
};
