//! Response bodies of `POST /v1/chat/completions`: chunks of a choice, and the choice folded from
//! them.

use std::sync::Arc;

use chat::Delta;
use engine::TokenLogprobs;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    ChatPrompt, ChatRequest,
    mcp_calls::{ApprovedCalls, McpCall, McpCallWriter, pending},
    tool_calls::{CallWriter, Function, FunctionDelta, ToolCall, ToolCallDelta},
};
use crate::{
    generate::{ChoiceEvent, Reason, Token},
    model::{Conversation, Model, Prompt},
    server::openai::{
        error::ApiError,
        format::{self, ChoiceFormat, finite, prompt_error},
        mcp::{McpRequest, ToolEvent, ToolPlan},
        params::GenerateParams,
    },
};

/// Writes the responses to one request.
pub struct ChatFormat {
    model: Arc<Model>,
    logprobs: bool,
    /// Report calls as the deprecated `function_call`.
    functions: bool,
    calls: CallWriter,
    mcp: McpCallWriter,
    plan: Option<ToolPlan>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct ChatDelta {
    index: usize,
    delta: MessageDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_details: Option<FinishDetails>,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The same under the name that vLLM and OpenRouter give it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionDelta>,
    /// Calls that this server has made, each whole, in the order of their ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mcp_calls: Vec<McpCall>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct ChatChoice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_details: Option<FinishDetails>,
}

/// What `finish_reason` does not say.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
struct FinishDetails {
    /// `repetition`: the answer repeated itself, and the request has `repetition: stop`.
    r#type: &'static str,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
#[schemars(rename = "AssistantMessage")]
struct Message {
    role: &'static str,
    /// Null if there are only tool calls.
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<Function>,
    /// Calls that this server has made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mcp_calls: Vec<McpCall>,
    refusal: Option<()>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct ChatLogprobs {
    content: Vec<TokenLogprob>,
    refusal: Option<()>,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TokenLogprob {
    #[serde(flatten)]
    token: Scored,
    top_logprobs: Vec<Scored>,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "ScoredToken")]
struct Scored {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChoiceFormat for ChatFormat {
    type Request = ChatRequest;
    type Prompts = ChatPrompt;
    type Piece = ChatDelta;
    type Choice = ChatChoice;

    const ID_PREFIX: &'static str = "chatcmpl-";
    const CHUNK: &'static str = "chat.completion.chunk";
    const WHOLE: &'static str = "chat.completion";
    const PROMPT: &'static str = "messages";

    fn conversation(prompt: &mut ChatPrompt) -> Option<&mut Conversation> {
        Some(&mut prompt.conversation)
    }

    fn prepare(
        model: &Arc<Model>,
        prompt: ChatPrompt,
        params: &GenerateParams,
    ) -> Result<(ChatFormat, Vec<Prompt>), ApiError> {
        let ChatPrompt { conversation, functions, custom_tools, mcp, max_tool_calls, approvals } = prompt;
        let prompt = model.chat_prompt(&conversation).map_err(|error| prompt_error(&error, Self::PROMPT))?;
        let (calls, logprobs) = (CallWriter::new(custom_tools), params.logprobs.is_some());
        let ApprovedCalls { approved, refused } = approvals;
        let plan = mcp.and_then(McpRequest::into_offered).map(|offered| {
            let pending = pending(approved, &conversation.messages, &offered)?;
            let max_calls = max_tool_calls;
            Ok::<_, ApiError>(ToolPlan { offered, conversation, pending, refused, max_calls })
        });
        let plan = plan.transpose()?;
        let mcp = McpCallWriter::new(plan.as_ref());
        Ok((ChatFormat { model: model.clone(), logprobs, functions, calls, mcp, plan }, vec![prompt]))
    }

    fn mcp(prompt: &mut ChatPrompt) -> Option<(&mut McpRequest, &mut Conversation)> {
        Some((prompt.mcp.as_mut()?, &mut prompt.conversation))
    }

    fn take_tool_plan(&mut self) -> Option<ToolPlan> {
        self.plan.take()
    }

    fn tool_piece(&mut self, event: ToolEvent) -> Option<ChatDelta> {
        let call = self.mcp.on_event(event)?;
        let delta = MessageDelta { mcp_calls: vec![call], ..Default::default() };
        Some(ChatDelta { index: 0, delta, logprobs: None, finish_reason: None, finish_details: None })
    }

    fn first_piece(&mut self, choice: usize) -> Option<ChatDelta> {
        let delta =
            MessageDelta { role: Some("assistant"), content: Some(String::new()), ..Default::default() };
        Some(ChatDelta { index: choice, delta, logprobs: None, finish_reason: None, finish_details: None })
    }

    fn piece(&mut self, choice: usize, event: ChoiceEvent) -> Option<ChatDelta> {
        let repeated = matches!(&event, ChoiceEvent::Finished(finish) if finish.repeated);
        let finish_details = repeated.then_some(FinishDetails { r#type: "repetition" });
        let (delta, tokens, finish_reason) = match event {
            ChoiceEvent::Text { delta, tokens } => (self.delta(choice, delta)?, tokens, None),
            ChoiceEvent::Finished(finish) => {
                let reason = match finish.reason {
                    Reason::ToolCalls if self.functions => "function_call",
                    reason => format::finish_reason(reason),
                };
                let rest = MessageDelta { tool_calls: self.calls.end(choice), ..Default::default() };
                (rest, finish.tokens, Some(reason))
            }
            ChoiceEvent::Prompt(_) | ChoiceEvent::PromptProgress { .. } | ChoiceEvent::Logits { .. } => {
                return None;
            }
        };
        let logprobs = self.logprobs(tokens);
        Some(ChatDelta { index: choice, delta, logprobs, finish_reason, finish_details })
    }

    fn empty_choice(index: usize) -> ChatChoice {
        let message = Message::default();
        ChatChoice { index, message, logprobs: None, finish_reason: None, finish_details: None }
    }

    fn append(choice: &mut ChatChoice, piece: ChatDelta) {
        let message = &mut choice.message;
        message.role = piece.delta.role.unwrap_or(message.role);
        if let Some(text) = piece.delta.content {
            message.content.get_or_insert_default().push_str(&text);
        }
        for call in piece.delta.tool_calls {
            message.content = message.content.take().filter(|content| !content.is_empty());
            call.append_to(&mut message.tool_calls);
        }
        if let Some(call) = piece.delta.function_call {
            message.content = message.content.take().filter(|content| !content.is_empty());
            call.append_to(&mut message.function_call);
        }
        message.mcp_calls.extend(piece.delta.mcp_calls);
        if let Some(text) = piece.delta.reasoning_content {
            message.reasoning_content.get_or_insert_default().push_str(&text);
            message.reasoning.get_or_insert_default().push_str(&text);
        }
        match (&mut choice.logprobs, piece.logprobs) {
            (Some(all), Some(more)) => all.content.extend(more.content),
            (all, more) => *all = all.take().or(more),
        }
        choice.finish_reason = choice.finish_reason.or(piece.finish_reason);
        choice.finish_details = choice.finish_details.or(piece.finish_details);
    }
}

impl ChatFormat {
    /// `None` if the client gets nothing of it.
    fn delta(&mut self, choice: usize, delta: Delta) -> Option<MessageDelta> {
        let empty = MessageDelta::default();
        let calls = match delta {
            Delta::Content(text) => return Some(MessageDelta { content: Some(text), ..empty }),
            Delta::Reasoning(text) => {
                let (reasoning, reasoning_content) = (Some(text.clone()), Some(text));
                return Some(MessageDelta { reasoning, reasoning_content, ..empty });
            }
            // Clients number the calls that are theirs.
            Delta::ToolCall { index, name, id } => {
                let index = self.mcp.begin(index, &name);
                index.map_or(vec![], |index| self.calls.begin(choice, index, id, name))
            }
            Delta::ToolArguments { index, arguments } => {
                let index = self.mcp.own_index(index);
                index.map_or(vec![], |index| self.calls.arguments(choice, index, arguments))
            }
        };
        if self.functions {
            let function_call = calls.into_iter().find_map(ToolCallDelta::into_function);
            return Some(MessageDelta { function_call, ..empty });
        }
        (!calls.is_empty() || self.logprobs).then_some(MessageDelta { tool_calls: calls, ..empty })
    }

    /// Log-probabilities of the content's tokens, without reasoning: clients match them to the
    /// content.
    fn logprobs(&self, tokens: Vec<Token>) -> Option<ChatLogprobs> {
        let content = tokens.into_iter().filter(|token| !token.reasoning).filter_map(|token| token.logprobs);
        let content = content.map(|logprobs| TokenLogprob::new(&self.model, logprobs));
        self.logprobs.then(|| ChatLogprobs { content: content.collect(), refusal: None })
    }
}

impl TokenLogprob {
    pub fn new(model: &Model, logprobs: TokenLogprobs) -> TokenLogprob {
        let top_logprobs = logprobs.top.into_iter().map(|(id, logprob)| Scored::new(model, id, logprob));
        TokenLogprob {
            token: Scored::new(model, logprobs.id, logprobs.logprob),
            top_logprobs: top_logprobs.collect(),
        }
    }
}

impl Scored {
    fn new(model: &Model, id: u32, logprob: f32) -> Scored {
        let bytes = model.token_bytes(id);
        Scored { token: String::from_utf8_lossy(&bytes).into_owned(), logprob: finite(logprob), bytes }
    }
}
