//! Tools of MCP servers in requests, `{"type": "mcp", "server_label": ..}`, and what answers report
//! of their calls.

mod choice;
mod events;
mod fields;
mod request;

pub use self::request::{McpAccess, McpRequest, Offered};
pub(crate) use self::{
    events::{ListedServer, PendingCall, ToolEvent, ToolPlan},
    fields::McpServerField,
};
