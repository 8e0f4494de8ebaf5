//! The answer of `POST /v1/responses`: events that build a response item by item.

use std::{collections::BTreeSet, sync::Arc};

use chat::Delta;
use serde::Serialize;

use super::{
    events::{EventBody, PartPosition, StreamEvent},
    mcp_approvals::pending,
    mcp_items::McpItems,
    output::{ContentPart, ItemStatus, OutputItem},
    request::{ResponsesPrompt, ResponsesRequest},
    response::{IncompleteDetails, ResponseError, ResponseObject, ResponseStatus},
    store::{ResponseStore, Turn},
    stored_item::StoredItem,
};
use crate::{
    generate::{ChoiceEvent, Reason, Token},
    model::{Conversation, Model, Prompt},
    server::{
        Server,
        format::{AnswerInfo, ApiFormat, Frame},
        openai::{
            GenerateParams,
            chat::TokenLogprob,
            custom_input::CustomInput,
            error::ApiError,
            mcp::{McpRequest, ToolEvent, ToolPlan},
            prompt_error,
        },
        protocol::Protocol,
        tenant::Tenant,
        unix_seconds,
    },
};

const CUSTOM_DELTA: &str = "response.custom_tool_call_input.delta";

/// Writes the response to one request.
pub struct ResponsesFormat {
    model: Arc<Model>,
    pub(super) response: ResponseObject,
    /// The item being written; the response has those before it.
    open: Option<OutputItem>,
    /// Whitespace that is content only if more follows, or nothing else does.
    leading_space: String,
    num_events: usize,
    finished: Option<Reason>,
    custom_tools: BTreeSet<String>,
    /// Of the custom call being written.
    custom_input: CustomInput,
    with_logprobs: bool,
    encrypts_reasoning: bool,
    turn: StoredTurn,
    pub(super) mcp: McpItems,
    plan: Option<ToolPlan>,
}

/// The stored part of this turn, its store and its tenant; dropping it before its end stores that
/// it was cancelled.
struct StoredTurn {
    store: Option<(Arc<ResponseStore>, Tenant)>,
    input: Arc<[StoredItem]>,
}

/// The response of the last event.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct FinalResponse(Option<Box<ResponseObject>>);

impl ApiFormat for ResponsesFormat {
    type Request = ResponsesRequest;
    type Prompts = ResponsesPrompt;
    type Piece = StreamEvent;
    type Whole = FinalResponse;

    const PROTOCOL: Protocol = Protocol::OpenAi;
    const ID_PREFIX: &'static str = "resp_";
    const ROUTE: &'static str = "response";
    const PROMPT: &'static str = "input";
    const LISTS_MCP_SERVERS: bool = true;

    fn attach(prompt: &mut ResponsesPrompt, server: &Server, tenant: &Tenant) -> Result<usize, ApiError> {
        prompt.resolve(&server.common.responses, tenant)
    }

    fn conversation(prompt: &mut ResponsesPrompt) -> Option<&mut Conversation> {
        Some(&mut prompt.conversation)
    }

    fn mcp(prompt: &mut ResponsesPrompt) -> Option<(&mut McpRequest, &mut Conversation)> {
        Some((prompt.mcp.as_mut()?, &mut prompt.conversation))
    }

    fn take_tool_plan(&mut self) -> Option<ToolPlan> {
        self.plan.take()
    }

    fn on_tool(&mut self, _: &AnswerInfo, event: ToolEvent) -> Vec<StreamEvent> {
        match event {
            ToolEvent::Listed(listed) => self.listed(listed),
            // The client knows.
            ToolEvent::Refused { .. } => vec![],
            ToolEvent::Started(call) => self.begun(call),
            ToolEvent::Written => {
                self.leading_space.clear();
                self.close(ItemStatus::Completed)
            }
            ToolEvent::Done { call, output } => self.done(&call, output),
        }
    }

    fn prepare(
        model: &Arc<Model>,
        prompt: ResponsesPrompt,
        params: &GenerateParams,
    ) -> Result<(ResponsesFormat, Vec<Prompt>), ApiError> {
        let ResponsesPrompt { items, conversation, approved, mut echo, store, mcp, .. } = prompt;
        let offered = mcp.and_then(McpRequest::into_offered);
        let pending = pending(approved, offered.as_ref())?;
        let input = StoredItem::all(&items).into();
        drop(items);
        let rendered = model.chat_prompt(&conversation);
        let rendered = rendered.map_err(|error| prompt_error(&error, Self::PROMPT))?;
        let max_calls = echo.max_tool_calls;
        let plan =
            offered.map(|offered| ToolPlan { offered, conversation, pending, refused: vec![], max_calls });
        let sampling = params.overrides.sampling(&model.engine.info().default_sampling);
        (echo.temperature, echo.top_p) = (shortest(sampling.temperature), shortest(sampling.top_p));
        let response = ResponseObject {
            id: String::new(),
            object: "response",
            created_at: 0,
            completed_at: None,
            status: ResponseStatus::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            model: String::new(),
            output: vec![],
            usage: None,
            echo,
        };
        let format = ResponsesFormat {
            model: model.clone(),
            response,
            open: None,
            leading_space: String::new(),
            num_events: 0,
            finished: None,
            custom_tools: prompt.custom_tools,
            custom_input: CustomInput::default(),
            with_logprobs: params.logprobs.is_some(),
            encrypts_reasoning: prompt.encrypts_reasoning,
            turn: StoredTurn { store, input },
            mcp: McpItems::new(plan.as_ref()),
            plan,
        };
        Ok((format, vec![rendered]))
    }

    fn begin(&mut self, answer: &AnswerInfo) -> Vec<StreamEvent> {
        self.response.id.clone_from(&answer.id);
        self.response.model.clone_from(&answer.model);
        self.response.created_at = answer.created;
        self.store();
        ["response.created", "response.in_progress"].map(|name| self.response_event(name)).into()
    }

    fn on_event(&mut self, _: &AnswerInfo, _: usize, event: ChoiceEvent) -> Vec<StreamEvent> {
        match event {
            ChoiceEvent::Text { delta: Delta::Reasoning(text), .. } => self.reasoning(text),
            ChoiceEvent::Text { delta: Delta::Content(text), tokens } => self.content(text, tokens),
            ChoiceEvent::Text { delta: Delta::ToolCall { id, name, .. }, .. } => self.call(id, name),
            ChoiceEvent::Text { delta: Delta::ToolArguments { arguments, .. }, .. } => {
                self.arguments(arguments)
            }
            ChoiceEvent::Finished(finish) => {
                self.finished = Some(finish.reason);
                let status = match finish.reason {
                    Reason::Stop | Reason::ToolCalls => ItemStatus::Completed,
                    Reason::Length | Reason::Cancelled => ItemStatus::Incomplete,
                };
                self.finish_output(status)
            }
            ChoiceEvent::PromptProgress { .. } | ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. } => {
                vec![]
            }
        }
    }

    fn end(&mut self, answer: &AnswerInfo) -> Vec<StreamEvent> {
        let (status, name) = match self.finished {
            Some(Reason::Stop | Reason::ToolCalls) => (ResponseStatus::Completed, "response.completed"),
            Some(Reason::Length) => (ResponseStatus::Incomplete, "response.incomplete"),
            Some(Reason::Cancelled) | None => (ResponseStatus::Cancelled, "response.incomplete"),
        };
        self.response.status = status;
        self.response.completed_at = (status == ResponseStatus::Completed).then(unix_seconds);
        let is_incomplete = status == ResponseStatus::Incomplete;
        self.response.incomplete_details =
            is_incomplete.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.response.usage = Some(Box::new(answer.usage.clone().into()));
        self.store_final();
        vec![self.response_event(name)]
    }

    fn fail(&mut self, error: &ApiError, _: &str) -> Frame {
        let code = error.body.code.unwrap_or("server_error");
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(ResponseError { code, message: error.body.message.clone() });
        self.store_final();
        let failed = self.response_event("response.failed");
        Frame::json(Some(failed.r#type), &failed)
    }

    fn frame(_: &AnswerInfo, event: StreamEvent) -> Option<Frame> {
        Some(Frame::json(Some(event.r#type), &event))
    }

    fn empty(_: &AnswerInfo) -> FinalResponse {
        FinalResponse(None)
    }

    fn append(whole: &mut FinalResponse, event: StreamEvent) {
        if let EventBody::Response { response } = event.body {
            whole.0 = Some(response);
        }
    }
}

/// Items.
impl ResponsesFormat {
    fn reasoning(&mut self, text: String) -> Vec<StreamEvent> {
        let mut events = match self.open {
            Some(OutputItem::Reasoning { .. }) => vec![],
            _ => self.open(OutputItem::reasoning(self.item_id("rs"))),
        };
        events.extend(self.text_delta("response.reasoning_text.delta", text, None));
        events
    }

    fn content(&mut self, text: String, tokens: Vec<Token>) -> Vec<StreamEvent> {
        let is_open = matches!(self.open, Some(OutputItem::Message { .. }));
        // Between reasoning and a call there is often whitespace alone.
        if !is_open && !self.with_logprobs && text.trim().is_empty() {
            self.leading_space.push_str(&text);
            return vec![];
        }
        let text = std::mem::take(&mut self.leading_space) + &text;
        let mut events = if is_open { vec![] } else { self.open(OutputItem::message(self.item_id("msg"))) };
        let scores = tokens.into_iter().filter(|token| !token.reasoning).filter_map(|token| token.logprobs);
        let scores = scores.map(|scores| TokenLogprob::new(&self.model, scores)).collect();
        events.extend(self.text_delta("response.output_text.delta", text, Some(scores)));
        events
    }

    fn call(&mut self, call_id: String, name: String) -> Vec<StreamEvent> {
        self.leading_space.clear();
        if let Some(item) = self.mcp.item(&name, &self.item_id("mcp"), &self.item_id("mcpr")) {
            return self.begin_mcp(call_id, item);
        }
        let is_custom = self.custom_tools.contains(&name);
        let prefix = if is_custom { "ctc" } else { "fc" };
        self.custom_input = CustomInput::default();
        self.open(OutputItem::call(self.item_id(prefix), call_id, name, is_custom))
    }

    fn arguments(&mut self, more: String) -> Vec<StreamEvent> {
        let (name, delta) = match &mut self.open {
            Some(OutputItem::FunctionCall { .. }) => ("response.function_call_arguments.delta", more),
            Some(OutputItem::CustomToolCall { .. }) => (CUSTOM_DELTA, self.custom_input.push(&more)),
            Some(OutputItem::McpCall { .. }) => ("response.mcp_call_arguments.delta", more),
            Some(item @ OutputItem::McpApprovalRequest { .. }) => {
                item.append(&more, vec![]);
                return vec![];
            }
            _ => return vec![],
        };
        self.call_delta(name, delta).into_iter().collect()
    }

    fn call_delta(&mut self, name: &'static str, delta: String) -> Option<StreamEvent> {
        let output_index = self.response.output.len();
        let item = self.open.as_mut().filter(|_| !delta.is_empty())?;
        item.append(&delta, vec![]);
        let item_id = item.id().to_owned();
        Some(self.event(name, EventBody::CallDelta { item_id, output_index, delta }))
    }

    fn text_delta(
        &mut self,
        name: &'static str,
        delta: String,
        logprobs: Option<Vec<TokenLogprob>>,
    ) -> Option<StreamEvent> {
        let at = self.position()?;
        self.open.as_mut()?.append(&delta, logprobs.clone().unwrap_or_default());
        Some(self.event(name, EventBody::TextDelta { at, delta, logprobs }))
    }

    /// Begins an item; the one before it is complete.
    pub(super) fn open(&mut self, mut item: OutputItem) -> Vec<StreamEvent> {
        let mut events = self.close(ItemStatus::Completed);
        let output_index = self.response.output.len();
        let body = EventBody::Item { output_index, item: item.clone() };
        events.push(self.event("response.output_item.added", body));
        let part = item.begin_part();
        self.open = Some(item);
        if let (Some(part), Some(at)) = (part, self.position()) {
            events.push(self.event("response.content_part.added", EventBody::Part { at, part }));
        }
        events
    }

    /// Ends the item being written.
    pub(super) fn close(&mut self, status: ItemStatus) -> Vec<StreamEvent> {
        let mut events = vec![];
        if let Some(OutputItem::CustomToolCall { .. }) = self.open {
            let rest = self.custom_input.finish();
            events.extend(self.call_delta(CUSTOM_DELTA, rest));
        }
        let (at, Some(mut item)) = (self.position(), self.open.take()) else { return events };
        let output_index = self.response.output.len();
        item.end(status, self.encrypts_reasoning);
        if let (Some(at), Some(part)) = (at, item.part().cloned()) {
            let (name, logprobs) = match &part {
                ContentPart::OutputText { logprobs, .. } => {
                    ("response.output_text.done", Some(logprobs.clone()))
                }
                ContentPart::ReasoningText { .. } => ("response.reasoning_text.done", None),
            };
            let text = part.text().to_owned();
            events.push(self.event(name, EventBody::TextDone { at: at.clone(), text, logprobs }));
            events.push(self.event("response.content_part.done", EventBody::Part { at, part }));
        }
        events.extend(self.call_done(&item, output_index));
        self.response.output.push(item.clone());
        // A call of this server is done when it has its result.
        if !item.is_unfinished_call() {
            events.push(self.event("response.output_item.done", EventBody::Item { output_index, item }));
        }
        events
    }

    fn call_done(&mut self, item: &OutputItem, output_index: usize) -> Vec<StreamEvent> {
        match item.clone() {
            OutputItem::FunctionCall { id: item_id, name, arguments, .. } => {
                let body = EventBody::FunctionCallDone { item_id, output_index, name, arguments };
                vec![self.event("response.function_call_arguments.done", body)]
            }
            OutputItem::CustomToolCall { id: item_id, input, .. } => {
                let done = EventBody::CustomCallDone { item_id, output_index, input };
                vec![self.event("response.custom_tool_call_input.done", done)]
            }
            OutputItem::McpCall { id: item_id, arguments, .. } => {
                let done = EventBody::McpCallDone { item_id, output_index, arguments };
                vec![self.event("response.mcp_call_arguments.done", done)]
            }
            OutputItem::Message { .. }
            | OutputItem::Reasoning { .. }
            | OutputItem::McpListTools { .. }
            | OutputItem::McpApprovalRequest { .. } => vec![],
        }
    }

    /// Ends the last item. An answer without any is an empty message.
    fn finish_output(&mut self, status: ItemStatus) -> Vec<StreamEvent> {
        let mut events = vec![];
        let last = self.open.as_ref().or(self.response.output.last());
        let wrote_call = last.is_some_and(OutputItem::is_call);
        let space = std::mem::take(&mut self.leading_space);
        let is_list = |item: &OutputItem| matches!(item, OutputItem::McpListTools { .. });
        let is_empty = self.open.is_none() && self.response.output.iter().all(is_list);
        if is_empty || !wrote_call && !space.is_empty() {
            events.extend(self.open(OutputItem::message(self.item_id("msg"))));
            let delta = (!space.is_empty())
                .then(|| self.text_delta("response.output_text.delta", space, Some(vec![])));
            events.extend(delta.flatten());
        }
        events.extend(self.close(status));
        events
    }
}

/// Events.
impl ResponsesFormat {
    pub(super) fn event(&mut self, r#type: &'static str, body: EventBody) -> StreamEvent {
        let sequence_number = self.num_events;
        self.num_events += 1;
        StreamEvent { r#type, sequence_number, body }
    }

    fn response_event(&mut self, name: &'static str) -> StreamEvent {
        let response = Box::new(self.response.clone());
        self.event(name, EventBody::Response { response })
    }

    /// That of the item being written, if it has parts.
    fn position(&self) -> Option<PartPosition> {
        let item = self.open.as_ref()?;
        item.part()?;
        let (item_id, output_index) = (item.id().to_owned(), self.response.output.len());
        Some(PartPosition { item_id, output_index, content_index: 0 })
    }

    /// Of the next item; the same for a replayed answer.
    pub(super) fn item_id(&self, prefix: &str) -> String {
        let answer = self.response.id.trim_start_matches(Self::ID_PREFIX);
        let next = self.response.output.len() + usize::from(self.open.is_some());
        format!("{prefix}_{answer}{next:02x}")
    }

    /// Stores the response, which does not change any more.
    fn store_final(&mut self) {
        self.store();
        self.turn.store = None;
    }

    fn store(&self) {
        let Some((store, tenant)) = &self.turn.store else { return };
        let turn = Turn {
            id: &self.response.id,
            previous: self.response.echo.previous_response_id.as_deref(),
            tenant,
            input: &self.turn.input,
        };
        // Fails only for types that JSON cannot represent; these are plain structs.
        store.insert(turn, &serde_json::to_value(&self.response).unwrap_or_default());
    }
}

impl Drop for ResponsesFormat {
    fn drop(&mut self) {
        if !self.response.id.is_empty() {
            self.response.status = ResponseStatus::Cancelled;
            self.store();
        }
    }
}

/// A float32 as it is usually written.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
