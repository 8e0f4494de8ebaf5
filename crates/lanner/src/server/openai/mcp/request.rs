//! The MCP tools of a request: from its fields to the tools that the model is offered.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use chat::tools::ToolSet;
use mcp::{McpError, Server, Servers, ToolList};
use serde_json::Value;

use super::{ListedServer, McpServerField, choice::offered_choice};
use crate::{
    mcp_tools::McpTools,
    model::{Conversation, Model},
    server::openai::{
        custom_tools::{CustomTools, rename_functions},
        error::ApiError,
    },
};

/// The servers that requests may use, and how much one request may.
#[derive(Debug)]
pub struct McpAccess {
    pub servers: Arc<Servers>,
    /// Calls of a request.
    pub max_calls: usize,
    /// For all calls of a request.
    pub max_time: Duration,
    /// Bytes of all results of a request.
    pub max_bytes: usize,
}

/// The MCP tools that a request asks for, and the other tools beside them.
#[derive(Clone, Debug, PartialEq)]
pub struct McpRequest {
    pub(crate) servers: Vec<McpServerField>,
    /// Functions.
    others: Vec<Value>,
    /// Where the request has those.
    indexes: Vec<usize>,
    custom: CustomTools,
    choice: Option<Value>,
    parallel: Option<bool>,
    lists: Vec<Listing>,
    offered: Option<Offered>,
}

/// A server's tools, or its error.
#[derive(Clone, Debug)]
struct Listing {
    server: Arc<Server>,
    tools: Result<Arc<ToolList>, McpError>,
}

impl PartialEq for Listing {
    fn eq(&self, other: &Listing) -> bool {
        self.server.name() == other.server.name() && self.tools == other.tools
    }
}

/// The tools that the model is offered.
#[derive(Clone, Debug)]
pub struct Offered {
    pub(crate) tools: McpTools,
    /// Offered names of those whose calls the client must approve.
    pub(crate) asks: BTreeSet<String>,
    pub(crate) listed: Vec<ListedServer>,
}

impl PartialEq for Offered {
    fn eq(&self, other: &Offered) -> bool {
        self.asks == other.asks && self.tools.definitions() == other.tools.definitions()
    }
}

impl McpRequest {
    /// Takes the MCP tools out of a request's tools; `None` if there are none.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(in crate::server::openai) fn take(
        tools: &mut Option<Vec<Value>>,
        choice: Option<&Value>,
        parallel: Option<bool>,
        custom: &CustomTools,
    ) -> Result<Option<McpRequest>, ApiError> {
        let is_mcp = |tool: &Value| tool["type"] == "mcp";
        if !tools.iter().flatten().any(is_mcp) {
            return Ok(None);
        }
        let (mut servers, mut others, mut indexes): (Vec<McpServerField>, _, _) = (vec![], vec![], vec![]);
        for (index, tool) in tools.take().into_iter().flatten().enumerate() {
            if !is_mcp(&tool) {
                others.push(tool);
                indexes.push(index);
                continue;
            }
            let server = McpServerField::new(&tool, index)?;
            if servers.iter().any(|other| other.label == server.label) {
                let param = server.param("server_label");
                let message = format!("two tools have the server_label `{}`", server.label);
                return Err(ApiError::invalid(param, message));
            }
            servers.push(server);
        }
        let (custom, choice) = (custom.clone(), choice.cloned());
        let (lists, offered) = (vec![], None);
        Ok(Some(McpRequest { servers, others, indexes, custom, choice, parallel, lists, offered }))
    }

    /// Names errors by the request's own list of tools, which has those of this one at `indexes`.
    pub(in crate::server::openai) fn reindex(&mut self, indexes: &[usize]) {
        let own = |index: usize| indexes.get(index).copied().unwrap_or(index);
        self.servers.iter_mut().for_each(|field| field.index = own(field.index));
        self.indexes.iter_mut().for_each(|index| *index = own(*index));
    }

    /// The configured servers that the request names.
    ///
    /// # Errors
    /// 400: there is no such server; requests cannot have this server connect to any other.
    pub(crate) fn named(&self, access: Option<&McpAccess>) -> Result<Vec<Arc<Server>>, ApiError> {
        let find = |field: &McpServerField| {
            let param = |name: &str| field.param(name);
            let Some(access) = access else {
                let message =
                    "this server has no MCP servers; they are configured with lanner serve --mcp FILE";
                return Err(ApiError::invalid(param("server_label"), message).code("mcp_disabled"));
            };
            let by_url =
                |url: &str| access.servers.all().iter().find(|server| server.config().transport.is_at(url));
            let names =
                || access.servers.all().iter().map(|server| server.name()).collect::<Vec<_>>().join(", ");
            match &field.url {
                Some(url) => by_url(url).cloned().ok_or_else(|| {
                    let message = "server_url is not that of a configured MCP server; this server connects to those of \
                                   its --mcp file only, so that requests cannot reach other hosts through it";
                    ApiError::invalid(param("server_url"), message).code("mcp_server_not_configured")
                }),
                None => access.servers.get(&field.label).cloned().ok_or_else(|| {
                    let message =
                        format!("there is no MCP server `{}`; the configured ones are {}", field.label, names());
                    ApiError::invalid(param("server_label"), message).code("mcp_server_not_configured")
                }),
            }
        };
        self.servers.iter().map(find).collect()
    }

    /// Gives what the servers of [`named`](McpRequest::named) answered.
    pub(crate) fn give_lists(
        &mut self,
        servers: Vec<Arc<Server>>,
        lists: Vec<Result<Arc<ToolList>, McpError>>,
    ) {
        self.lists =
            servers.into_iter().zip(lists).map(|(server, tools)| Listing { server, tools }).collect();
    }

    /// Offers the tools in `conversation`. Returns them all, as the grammar of calls takes them.
    ///
    /// # Errors
    /// 400: a name is unknown. 424: a server fails, and the route has no other way to say so.
    pub(crate) fn offer(
        &mut self,
        model: &Model,
        conversation: &mut Conversation,
        lists_servers: bool,
    ) -> Result<Option<Arc<ToolSet>>, ApiError> {
        let names =
            self.others.iter().filter_map(|tool| tool["function"]["name"].as_str().map(str::to_owned));
        let (mut tools, mut listed) = (McpTools::without_names(names), vec![]);
        for (field, Listing { server, tools: list }) in self.servers.iter().zip(&self.lists) {
            let label = field.label.clone();
            match list {
                Ok(list) => {
                    field.check_names(&list.tools)?;
                    tools.add(&label, server, list, |tool| field.allows(tool));
                    let allowed = list.tools.iter().filter(|tool| field.allows(tool)).cloned();
                    listed.push(ListedServer { label, tools: allowed.collect(), error: None });
                }
                Err(error) if lists_servers => {
                    listed.push(ListedServer { label, tools: vec![], error: Some(error.to_string()) });
                }
                Err(error) => {
                    let error = ApiError::new(StatusCode::FAILED_DEPENDENCY, error.to_string());
                    return Err(error.param(format!("tools[{}]", field.index)).code("mcp_server_failed"));
                }
            }
        }
        let asks = self.asks(&tools);
        let choice = self.choice.as_ref().map(|choice| offered_choice(choice, &tools)).transpose()?;
        let set = tools.tool_set(model, &self.others, choice.as_ref(), self.parallel);
        let mut set = set.map_err(|error| self.renamed(ApiError::invalid(&error.field, error.message)))?;
        set.iter_mut().for_each(|set| self.custom.constrain(set));
        // With `tool_choice: none` the model sees no tools.
        conversation.tools =
            if set.is_some() { [self.others.clone(), tools.definitions()].concat() } else { vec![] };
        self.offered = Some(Offered { tools, asks, listed });
        Ok(set.map(Arc::new))
    }

    /// The offered tools, if there are any.
    pub(crate) fn into_offered(self) -> Option<Offered> {
        self.offered
    }

    fn asks(&self, tools: &McpTools) -> BTreeSet<String> {
        let field = |label: &str| self.servers.iter().find(|field| field.label == label);
        let asks = tools
            .all()
            .iter()
            .filter(|tool| field(&tool.label).is_some_and(|f| f.needs_approval(&tool.info)));
        asks.map(|tool| tool.name.clone()).collect()
    }

    fn renamed(&self, error: ApiError) -> ApiError {
        rename_functions(error, |index| {
            let own = self.indexes.get(index)?;
            let custom = format!("tools[{own}].custom");
            Some(if self.custom.is_at(&custom) { custom } else { format!("tools[{own}].function") })
        })
    }
}

impl McpServerField {
    /// # Errors
    /// 400: `allowed_tools` names a tool that the server does not have.
    fn check_names(&self, tools: &[mcp::ToolInfo]) -> Result<(), ApiError> {
        let Some(name) = self.unknown_tool(tools) else { return Ok(()) };
        let param = self.param("allowed_tools");
        let message = format!("the MCP server `{}` has no tool `{name}`", self.label);
        Err(ApiError::invalid(param, message))
    }
}

/// Until when the calls of a request that begins now may take.
impl McpAccess {
    pub(crate) fn deadline(&self, of_request: Option<Instant>) -> Option<Instant> {
        let own = Instant::now().checked_add(self.max_time);
        own.into_iter().chain(of_request).min()
    }
}
