//! Events of an answer that calls MCP tools, besides the model's text.

use mcp::ToolInfo;

use super::Offered;
use crate::{
    mcp_tools::{ToolCall, ToolOutput},
    model::Conversation,
};

/// The tools of one server, or why there are none.
#[derive(Clone, Debug)]
pub(crate) struct ListedServer {
    pub label: String,
    pub tools: Vec<ToolInfo>,
    pub error: Option<String>,
}

/// A call that the client has approved, to be made before the model goes on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PendingCall {
    /// Its id is that of the approval request.
    pub call: ToolCall,
    /// The message that gets its result.
    pub message: usize,
}

/// How an answer calls tools.
pub(crate) struct ToolPlan {
    pub offered: Offered,
    /// To be continued with the answer's steps.
    pub conversation: Conversation,
    pub pending: Vec<PendingCall>,
    /// Calls that the client has refused, with its reasons.
    pub refused: Vec<(ToolCall, String)>,
    /// Most calls; `None`: the server's limit alone.
    pub max_calls: Option<u64>,
}

/// An event of MCP servers and their calls.
#[derive(Clone, Debug)]
pub(crate) enum ToolEvent {
    /// A server was asked for its tools.
    Listed(ListedServer),
    /// The client has refused a call.
    Refused { call: ToolCall, reason: String },
    /// An approved call begins.
    Started(ToolCall),
    /// The model has written all calls of a step, and this server begins to make them.
    Written,
    /// A call has ended.
    Done { call: ToolCall, output: ToolOutput },
}
