//! The tools that a model is offered, by the names under which it calls them.

use std::{collections::HashSet, sync::Arc, time::Instant};

use chat::tools::{InvalidTools, ToolSet};
use mcp::{CallParams, Cancel, Server, ToolInfo, ToolList, offered_name};
use serde_json::{Value, json};

use super::ToolOutput;
use crate::model::Model;

/// A tool of a server.
#[derive(Clone, Debug)]
pub(crate) struct McpTool {
    /// Name in the model's calls: `mcp__server__tool`.
    pub name: String,
    /// The server's name, or the one that the request has for it.
    pub label: String,
    pub server: Arc<Server>,
    pub info: ToolInfo,
}

/// Tools of several servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct McpTools {
    tools: Vec<McpTool>,
    taken: HashSet<String>,
}

impl McpTools {
    /// No tool gets one of these names, which others have.
    pub(crate) fn without_names(names: impl IntoIterator<Item = String>) -> McpTools {
        McpTools { tools: vec![], taken: names.into_iter().collect() }
    }

    /// Adds those tools of a server that `is_allowed`.
    pub(crate) fn add(
        &mut self,
        label: &str,
        server: &Arc<Server>,
        list: &ToolList,
        is_allowed: impl Fn(&ToolInfo) -> bool,
    ) {
        for info in list.tools.iter().filter(|info| is_allowed(info)) {
            let name = offered_name(label, &info.name, &mut self.taken);
            let (label, server, info) = (label.to_owned(), server.clone(), info.clone());
            self.tools.push(McpTool { name, label, server, info });
        }
    }

    pub(crate) fn all(&self) -> &[McpTool] {
        &self.tools
    }

    pub(crate) fn get(&self, name: &str) -> Option<&McpTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Tools as functions of OpenAI's API.
    pub(crate) fn definitions(&self) -> Vec<Value> {
        self.tools.iter().map(McpTool::definition).collect()
    }

    /// The set of these tools and of `others`. A schema that a grammar cannot follow is replaced by
    /// that of any object: the server checks its arguments itself.
    ///
    /// # Errors
    /// One of the others is not valid, or the choice is not.
    pub(crate) fn tool_set(
        &self,
        model: &Model,
        others: &[Value],
        choice: Option<&Value>,
        parallel: Option<bool>,
    ) -> Result<Option<ToolSet>, InvalidTools> {
        let all = |own: Vec<Value>| [others, &own].concat();
        let set = ToolSet::new(&all(self.definitions()), choice, parallel)?;
        if set.as_ref().is_none_or(|set| model.can_follow(set)) {
            return Ok(set);
        }
        let own = self.tools.iter().map(|tool| {
            let definition = tool.definition();
            let alone = ToolSet::new(std::slice::from_ref(&definition), None, None);
            match alone {
                Ok(Some(set)) if !model.can_follow(&set) => {
                    tool.definition_with(&json!({ "type": "object" }))
                }
                _ => definition,
            }
        });
        ToolSet::new(&all(own.collect()), choice, parallel)
    }
}

impl McpTool {
    fn definition(&self) -> Value {
        self.definition_with(&self.info.input_schema)
    }

    fn definition_with(&self, parameters: &Value) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.info.description {
            function["description"] = description.as_str().into();
        }
        function["parameters"] = parameters.clone();
        json!({ "type": "function", "function": function })
    }

    /// Calls the tool and waits for its result.
    pub(crate) fn call(&self, arguments: &str, deadline: Option<Instant>, cancel: &Cancel) -> ToolOutput {
        let parsed = match arguments.trim() {
            "" => Ok(json!({})),
            text => serde_json::from_str::<Value>(text),
        };
        let arguments = match parsed {
            Ok(arguments) if arguments.is_object() => arguments,
            _ => return Err("the arguments are not a JSON object".into()),
        };
        let params = CallParams { tool: &self.info.name, arguments: &arguments, deadline, cancel };
        match self.server.call(params) {
            Ok(result) if result.is_error => Err(result.text),
            Ok(result) => Ok(result.text),
            Err(error) => Err(error.to_string()),
        }
    }
}
