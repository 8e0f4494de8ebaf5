//! Output items of MCP tools: lists of tools, calls, and requests to approve one.

use std::collections::BTreeMap;

use super::{
    ResponsesFormat,
    events::{EventBody, StreamEvent},
    output::{ItemStatus, McpCallStatus, OutputItem},
};
use crate::{
    mcp_tools::{ToolCall, ToolOutput},
    server::openai::mcp::{ListedServer, ToolPlan},
};

/// The MCP tools of a response, and its calls that have no result yet.
#[derive(Default)]
pub(super) struct McpItems {
    /// By the name that the model calls.
    tools: BTreeMap<String, McpToolName>,
    /// Where the item of a call is, by the call's id.
    unfinished: BTreeMap<String, usize>,
}

struct McpToolName {
    label: String,
    name: String,
    needs_approval: bool,
}

impl McpItems {
    pub(super) fn new(plan: Option<&ToolPlan>) -> McpItems {
        let tools = plan.into_iter().flat_map(|plan| {
            plan.offered.tools.all().iter().map(|tool| {
                let needs_approval = plan.offered.asks.contains(&tool.name);
                let (label, name) = (tool.label.clone(), tool.info.name.clone());
                (tool.name.clone(), McpToolName { label, name, needs_approval })
            })
        });
        McpItems { tools: tools.collect(), unfinished: BTreeMap::new() }
    }

    /// The item of a call whose arguments are to come; `None`: it is not of an MCP tool. It gets
    /// the id of a call, or of a request to approve one.
    pub(super) fn item(&self, name: &str, call: &str, approval: &str) -> Option<OutputItem> {
        let McpToolName { label, name, needs_approval } = self.tools.get(name)?;
        let (server_label, name, arguments) = (label.clone(), name.clone(), String::new());
        Some(match needs_approval {
            true => OutputItem::McpApprovalRequest { id: approval.to_owned(), server_label, name, arguments },
            false => OutputItem::McpCall {
                id: call.to_owned(),
                status: McpCallStatus::InProgress,
                server_label,
                name,
                arguments,
                output: None,
                error: None,
                approval_request_id: None,
            },
        })
    }
}

impl ResponsesFormat {
    pub(super) fn listed(&mut self, listed: ListedServer) -> Vec<StreamEvent> {
        let ListedServer { label: server_label, tools, error } = listed;
        let failed = error.is_some();
        let (id, output_index) = (self.item_id("mcpl"), self.response.output.len());
        let empty = OutputItem::McpListTools {
            id: id.clone(),
            server_label: server_label.clone(),
            tools: vec![],
            error: None,
        };
        let tools = tools.into_iter().map(Into::into).collect();
        let whole = OutputItem::McpListTools { id: id.clone(), server_label, tools, error };
        let mut events =
            vec![self.event("response.output_item.added", EventBody::Item { output_index, item: empty })];
        let ended =
            if failed { "response.mcp_list_tools.failed" } else { "response.mcp_list_tools.completed" };
        for name in ["response.mcp_list_tools.in_progress", ended] {
            events.push(self.event(name, EventBody::McpProgress { item_id: id.clone(), output_index }));
        }
        self.response.output.push(whole.clone());
        events.push(self.event("response.output_item.done", EventBody::Item { output_index, item: whole }));
        events
    }

    /// Begins the item of a call that the model writes.
    pub(super) fn begin_mcp(&mut self, call_id: String, item: OutputItem) -> Vec<StreamEvent> {
        let is_call = item.is_unfinished_call();
        let item_id = item.id().to_owned();
        let mut events = self.open(item);
        if is_call {
            let output_index = self.response.output.len();
            self.mcp.unfinished.insert(call_id, output_index);
            let progress = EventBody::McpProgress { item_id, output_index };
            events.push(self.event("response.mcp_call.in_progress", progress));
        }
        events
    }

    /// Writes the item of a call that the client has approved.
    pub(super) fn begun(&mut self, call: ToolCall) -> Vec<StreamEvent> {
        let Some(mut item) = self.mcp.item(&call.name, &self.item_id("mcp"), "") else { return vec![] };
        if let OutputItem::McpApprovalRequest { server_label, name, .. } = item {
            item = OutputItem::McpCall {
                id: self.item_id("mcp"),
                status: McpCallStatus::InProgress,
                server_label,
                name,
                arguments: String::new(),
                output: None,
                error: None,
                approval_request_id: Some(call.id.clone()),
            };
        }
        item.append(&call.arguments, vec![]);
        let mut events = self.begin_mcp(call.id, item);
        events.extend(self.close(ItemStatus::Completed));
        events
    }

    /// Ends the item of a call with its result.
    pub(super) fn done(&mut self, call: &ToolCall, result: ToolOutput) -> Vec<StreamEvent> {
        let Some(output_index) = self.mcp.unfinished.remove(&call.id) else { return vec![] };
        let Some(item) = self.response.output.get_mut(output_index) else { return vec![] };
        let OutputItem::McpCall { status, output, error, .. } = item else { return vec![] };
        let name = match result {
            Ok(text) => {
                (*status, *output) = (McpCallStatus::Completed, Some(text));
                "response.mcp_call.completed"
            }
            Err(text) => {
                (*status, *error) = (McpCallStatus::Failed, Some(text));
                "response.mcp_call.failed"
            }
        };
        let item = item.clone();
        let progress = EventBody::McpProgress { item_id: item.id().to_owned(), output_index };
        let done = EventBody::Item { output_index, item };
        vec![self.event(name, progress), self.event("response.output_item.done", done)]
    }
}
