//! Approvals of calls in the input of a response.

use std::collections::BTreeMap;

use mcp::offered_name;
use serde_json::Value;

use crate::{
    mcp_tools::ToolCall,
    server::openai::{
        error::ApiError,
        mcp::{Offered, PendingCall},
    },
};

/// Answers to the requests to approve a call, by their ids.
#[derive(Default)]
pub(super) struct Approvals<'a> {
    answers: BTreeMap<&'a str, Answer<'a>>,
}

enum Answer<'a> {
    /// It is made, or was made: then an item of its own has the result.
    Approved {
        is_made: bool,
    },
    Refused {
        reason: Option<&'a str>,
    },
}

impl<'a> Approvals<'a> {
    pub(super) fn new(items: impl Iterator<Item = &'a Value>) -> Approvals<'a> {
        let mut approvals = Approvals::default();
        for item in items {
            let Some(id) = item["approval_request_id"].as_str() else { continue };
            let answer = match item["type"].as_str() {
                Some("mcp_call") => Answer::Approved { is_made: true },
                Some("mcp_approval_response") if item["approve"] == true => {
                    Answer::Approved { is_made: false }
                }
                Some("mcp_approval_response") => Answer::Refused { reason: item["reason"].as_str() },
                _ => continue,
            };
            // A call that was made stays made.
            match approvals.answers.get(id) {
                Some(Answer::Approved { is_made: true }) => {}
                _ => _ = approvals.answers.insert(id, answer),
            }
        }
        approvals
    }

    /// Whether another item has the call and its result.
    pub(super) fn is_made(&self, id: &str) -> bool {
        matches!(self.answers.get(id), Some(Answer::Approved { is_made: true }))
    }

    /// The result that the model reads for a call that was not made: of an approved one it is
    /// replaced once it is made.
    pub(super) fn result(&self, id: &str) -> String {
        match self.answers.get(id) {
            Some(Answer::Approved { .. }) => "(the result is not there yet)".into(),
            Some(Answer::Refused { reason: Some(reason) }) => format!("The user refused this call: {reason}"),
            Some(Answer::Refused { reason: None }) => "The user refused this call.".into(),
            None => "The user has not approved this call.".into(),
        }
    }

    fn is_to_be_made(&self, id: &str) -> bool {
        matches!(self.answers.get(id), Some(Answer::Approved { is_made: false }))
    }
}

/// The name that the model called, of an item with a label and a tool's name.
pub(super) fn called_name(label: &str, name: &str) -> String {
    offered_name(label, name, &mut Default::default())
}

/// A call that the input approves and that was not made yet.
#[derive(Debug)]
pub(super) struct ApprovedCall {
    /// The approval's field.
    param: String,
    /// Id of the approval request.
    id: String,
    label: String,
    name: String,
    arguments: String,
    /// The message that gets its result.
    message: Option<usize>,
}

/// The calls that this turn's items approve and that were not made yet.
///
/// # Errors
/// 400: an approval answers no request.
pub(super) fn approved(
    history: &[Value],
    items: &[Value],
    messages: &[Value],
) -> Result<Vec<ApprovedCall>, ApiError> {
    let all = || history.iter().chain(items);
    let approvals = Approvals::new(all());
    let requests: BTreeMap<&str, &Value> = all()
        .filter(|item| item["type"] == "mcp_approval_request")
        .filter_map(|item| Some((item["id"].as_str()?, item)))
        .collect();
    let mut approved: Vec<ApprovedCall> = vec![];
    for (index, item) in items.iter().enumerate().filter(|(_, item)| item["type"] == "mcp_approval_response")
    {
        let param = format!("input[{index}].approval_request_id");
        let id = item["approval_request_id"].as_str().unwrap_or_default();
        let Some(request) = requests.get(id) else {
            let message = format!("{param} names no mcp_approval_request of this conversation");
            return Err(ApiError::invalid(param, message));
        };
        if !approvals.is_to_be_made(id) || approved.iter().any(|other| other.id == id) {
            continue;
        }
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        approved.push(ApprovedCall {
            param,
            id: id.to_owned(),
            label: text("server_label"),
            name: text("name"),
            arguments: text("arguments"),
            message: messages.iter().position(|message| message["tool_call_id"] == id),
        });
    }
    Ok(approved)
}

/// Approved calls with the tools that they call.
///
/// # Errors
/// 400: the request does not offer such a tool.
pub(super) fn pending(
    approved: Vec<ApprovedCall>,
    offered: Option<&Offered>,
) -> Result<Vec<PendingCall>, ApiError> {
    let mut pending = vec![];
    for ApprovedCall { param, id, label, name, arguments, message } in approved {
        let tools = offered.into_iter().flat_map(|offered| offered.tools.all());
        let tool = tools.into_iter().find(|tool| tool.label == label && tool.info.name == name);
        let Some(tool) = tool else {
            let message = format!("the approved tool {name} of {label} is not among the request's tools");
            return Err(ApiError::invalid(param, message));
        };
        let call = ToolCall { id, name: tool.name.clone(), arguments };
        pending.extend(message.map(|message| PendingCall { call, message }));
    }
    Ok(pending)
}
