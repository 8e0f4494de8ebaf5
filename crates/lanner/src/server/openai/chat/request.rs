//! Request bodies of `POST /v1/chat/completions`, and their validation.

use std::{collections::BTreeSet, sync::Arc};

use chat::tools::ToolSet;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{
    custom, functions,
    mcp_calls::{self, ApprovedCalls, McpApproval},
    thinking::{MAX_ESCAPE_BYTES, ThinkingFields, ThinkingObject, ThinkingSwitch, Thinks},
};
use crate::{
    image::Images,
    model::Conversation,
    server::{
        images,
        openai::{
            accepted::{self, PredictionField},
            custom_tools::{CustomTools, rename_functions},
            error::ApiError,
            fields,
            mcp::McpRequest,
            params::ValidRequest,
            request::{RouteParams, request_body},
        },
        schema::{ChatMessage, ChatTool, FunctionDefinition, Refused, ToolChoice, items_of, words},
    },
    thinking::DEFAULT_BUDGET,
};

request_body! {
    pub struct ChatRequest {
        /// The conversation, at least one message.
        #[schemars(with = "Vec<ChatMessage>", length(min = 1))]
        messages: Vec<Value>,
        /// Functions and custom tools that the model may call, and MCP servers whose tools this
        /// server calls itself.
        #[schemars(with = "Option<Vec<ChatTool>>")]
        tools: Option<Vec<Value>>,
        /// `auto` with tools by default.
        #[schemars(with = "Option<ToolChoice>")]
        tool_choice: Option<Value>,
        /// Allow several calls in an answer.
        #[schemars(extend("default" = true))]
        parallel_tool_calls: Option<bool>,
        /// Approves or refuses calls of MCP tools that the last answer made.
        mcp_approvals: Option<Vec<McpApproval>>,
        /// Most calls of MCP tools.
        #[schemars(range(min = 1))]
        max_tool_calls: Option<u64>,
        /// Whether the answer thinks; with `auto`, rules decide.
        enable_thinking: Option<ThinkingSwitch>,
        /// Anthropic's: whether the answer thinks, and its budget.
        thinking: Option<ThinkingObject>,
        /// For the chat template. `none` turns thinking off, any other turns it on; `minimal`,
        /// `low`, `medium` and `high` are budgets.
        reasoning_effort: Option<String>,
        /// Most tokens of thinking before it is closed.
        #[schemars(extend("default" = DEFAULT_BUDGET))]
        max_thinking_tokens: Option<usize>,
        /// Qwen's name of `max_thinking_tokens`.
        thinking_budget: Option<usize>,
        /// vLLM's name of `max_thinking_tokens`.
        thinking_token_budget: Option<usize>,
        /// The sentence that thinking which is cut ends with: `on` for one that fits the task,
        /// `off` for none, or the sentence.
        #[schemars(length(min = 1, max = MAX_ESCAPE_BYTES), extend("default" = "on"))]
        thinking_escape: Option<String>,
        /// Whether an answer that repeats itself ends.
        #[schemars(transform = words(["stop", "ignore"]), extend("default" = "ignore"))]
        repetition: Option<String>,
        /// Variables of the chat template.
        chat_template_kwargs: Option<Map<String, Value>>,
        /// End the prompt with the start of an answer; true unless the last message is continued.
        add_generation_prompt: Option<bool>,
        /// End the prompt inside the last message.
        #[schemars(extend("default" = false))]
        continue_final_message: Option<bool>,
        /// Maximum number of new tokens, thinking included. Overrides `max_tokens`.
        #[schemars(range(min = 1))]
        max_completion_tokens: Option<usize>,
        /// Report log-probabilities of the content's tokens.
        #[schemars(extend("default" = false))]
        logprobs: Option<bool>,
        /// Alternatives per token. Only with `logprobs: true`.
        #[schemars(range(max = fields::MAX_TOP_LOGPROBS), extend("default" = 0))]
        top_logprobs: Option<usize>,
        /// Only text.
        #[schemars(transform = items_of(["text"]))]
        modalities: Option<Vec<String>>,
        /// No effect.
        #[schemars(transform = words(accepted::VERBOSITY))]
        verbosity: Option<String>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        audio: Option<IgnoredAny>,
        /// The deprecated form of `tools`.
        #[schemars(with = "Option<Vec<FunctionDefinition>>")]
        functions: Option<Vec<Value>>,
        /// The deprecated form of `tool_choice`.
        #[schemars(with = "Option<ToolChoice>")]
        function_call: Option<Value>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        web_search_options: Option<IgnoredAny>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        moderation: Option<IgnoredAny>,
        /// No effect: chat completions are not kept.
        #[schemars(transform = accepted::metadata_limits)]
        metadata: Option<Map<String, Value>>,
        /// No effect: chat completions are not kept.
        store: Option<bool>,
        /// No effect: what to draft is up to `speculation`.
        prediction: Option<PredictionField>,
    }
}

/// The conversation to continue, and how calls are to be reported.
#[derive(Debug, PartialEq)]
pub struct ChatPrompt {
    pub conversation: Conversation,
    /// As the deprecated `function_call`.
    pub functions: bool,
    /// Names of the tools whose calls have an input instead of arguments.
    pub custom_tools: BTreeSet<String>,
    /// Tools that this server calls; they are not offered in the conversation yet.
    pub mcp: Option<McpRequest>,
    /// Most calls of them; the server's own limit holds too.
    pub(super) max_tool_calls: Option<u64>,
    /// Calls of them that need no further approval.
    pub(super) approvals: ApprovedCalls,
}

impl TryFrom<ChatRequest> for ValidRequest<ChatPrompt> {
    type Error = ApiError;

    fn try_from(mut request: ChatRequest) -> Result<ValidRequest<ChatPrompt>, ApiError> {
        request.refuse_unsupported()?;
        accepted::metadata(request.metadata.as_ref())?;
        accepted::prediction(request.prediction.as_ref())?;
        accepted::store(request.store);
        let functions = request.replace_functions()?;
        let custom = request.replace_custom_tools()?;
        let mcp = request.take_mcp(&custom)?;
        let tools = if mcp.is_some() { None } else { request.tools(&custom)? };
        let (thinks, thinking) = request.thinking_fields().validate()?;
        let mut conversation = request.conversation(tools.is_some(), thinks)?;
        let approvals = request.mcp_approvals.take().unwrap_or_default();
        if mcp.is_none() && !approvals.is_empty() {
            let message = "mcp_approvals go with the tools of type `mcp` that they approve calls of";
            return Err(ApiError::invalid("mcp_approvals", message));
        }
        let approvals = mcp_calls::add_approvals(&mut conversation.messages, approvals)?;
        let logprobs = request.alternatives()?;
        let shared = request.take_shared();
        let max_tokens = request.max_completion_tokens.or(shared.max_tokens);
        if max_tokens == Some(0) {
            return Err(ApiError::invalid("max_tokens", "max_tokens is 0; ask for at least one token"));
        }
        let route =
            RouteParams { max_tokens, logprobs, prompt_logprobs: false, prompt_only: false, tools, thinking };
        let (custom_tools, max_tool_calls) = (custom.into_names(), request.max_tool_calls);
        let prompt = ChatPrompt { conversation, functions, custom_tools, mcp, max_tool_calls, approvals };
        shared.validate(prompt, route)
    }
}

impl ChatRequest {
    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        accepted::verbosity(self.verbosity.as_deref())?;
        if self.max_tool_calls == Some(0) {
            return Err(ApiError::invalid("max_tool_calls", "max_tool_calls is 0; it must be at least 1"));
        }
        let only_text = |modes: &Vec<String>| modes.iter().all(|mode| mode == "text");
        fields::refuse(&[
            ("modalities", self.modalities.as_ref().is_some_and(|modes| !only_text(modes))),
            ("audio", self.audio.is_some()),
            ("web_search_options", self.web_search_options.is_some()),
            ("moderation", self.moderation.is_some()),
        ])
    }

    /// Takes the template's input out of the request.
    fn conversation(&mut self, with_tools: bool, thinks: Thinks) -> Result<Conversation, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages is empty; send at least one"));
        }
        functions::as_tool_messages(&mut self.messages);
        let mut images = Images::default();
        for (index, message) in self.messages.iter_mut().enumerate() {
            let Some(content) = message.get_mut("content") else { continue };
            images::take(content, &mut images, &format!("messages[{index}].content"))?;
        }
        mcp_calls::as_tool_messages(&mut self.messages)?;
        let continue_final_message = self.continue_final_message.unwrap_or(false);
        let add_generation_prompt = self.add_generation_prompt.unwrap_or(!continue_final_message);
        if continue_final_message && add_generation_prompt {
            let message = "continue_final_message and add_generation_prompt exclude each other";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        Ok(Conversation {
            messages: std::mem::take(&mut self.messages),
            images,
            tools: if with_tools { self.tools.take().unwrap_or_default() } else { Vec::new() },
            add_generation_prompt,
            continue_final_message,
            kwargs: self.kwargs(thinks),
            auto_thinking: thinks == Thinks::Auto,
        })
    }

    /// Turns the deprecated fields into their successors; whether there were any.
    fn replace_functions(&mut self) -> Result<bool, ApiError> {
        let functions = self.functions.take();
        let choice = self.function_call.take();
        let given = functions.is_some() || choice.is_some();
        if given && (self.tools.is_some() || self.tool_choice.is_some()) {
            let message = "functions and function_call exclude tools and tool_choice";
            return Err(ApiError::invalid("functions", message));
        }
        if let Some(functions) = functions {
            self.tools = Some(functions::as_tools(functions));
            self.parallel_tool_calls = Some(false);
        }
        self.tool_choice = choice.map(functions::as_tool_choice).transpose()?.or(self.tool_choice.take());
        Ok(given)
    }

    /// Turns custom tools, calls of them and the choice of one into those of functions.
    fn replace_custom_tools(&mut self) -> Result<CustomTools, ApiError> {
        custom::as_function_calls(&mut self.messages)?;
        self.tool_choice.iter_mut().for_each(custom::as_function_choice);
        custom::as_functions(self.tools.as_deref_mut().unwrap_or_default())
    }

    /// Takes the MCP tools, and with them all others, out of the request.
    fn take_mcp(&mut self, custom: &CustomTools) -> Result<Option<McpRequest>, ApiError> {
        let (choice, parallel) = (self.tool_choice.as_ref(), self.parallel_tool_calls);
        let mcp = McpRequest::take(&mut self.tools, choice, parallel, custom)?;
        let beside = |field: &str| {
            let message = format!("{field} and tools of type `mcp` exclude each other");
            Err(ApiError::invalid(field, message))
        };
        match mcp.is_some() {
            true if self.n.is_some_and(|n| n != 1) => beside("n"),
            true if self.ignore_eos == Some(true) => beside("ignore_eos"),
            true if self.idempotency_key.is_some() => beside("idempotency_key"),
            true if self.continue_final_message == Some(true) => beside("continue_final_message"),
            _ => Ok(mcp),
        }
    }

    fn tools(&self, custom: &CustomTools) -> Result<Option<Arc<ToolSet>>, ApiError> {
        let definitions = self.tools.as_deref().unwrap_or_default();
        let tools = ToolSet::new(definitions, self.tool_choice.as_ref(), self.parallel_tool_calls);
        let own = |index: usize| Some(format!("tools[{index}].custom")).filter(|param| custom.is_at(param));
        let mut tools =
            tools.map_err(|error| rename_functions(ApiError::invalid(&error.field, error.message), own))?;
        tools.iter_mut().for_each(|set| custom.constrain(set));
        Ok(tools.map(Arc::new))
    }

    fn thinking_fields(&mut self) -> ThinkingFields<'_> {
        ThinkingFields {
            enable_thinking: self.enable_thinking.take(),
            thinking: self.thinking.take(),
            reasoning_effort: self.reasoning_effort.as_deref(),
            max_thinking_tokens: self.max_thinking_tokens,
            thinking_budget: self.thinking_budget,
            thinking_token_budget: self.thinking_token_budget,
            thinking_escape: self.thinking_escape.take(),
            repetition: self.repetition.take(),
            shares_max_tokens: self.max_completion_tokens.is_some(),
        }
    }

    /// The more specific field wins: `enable_thinking` and `thinking`, then `chat_template_kwargs`,
    /// then `reasoning_effort`.
    fn kwargs(&mut self, thinks: Thinks) -> Map<String, Value> {
        let mut kwargs = Map::new();
        let given = self.chat_template_kwargs.take().unwrap_or_default();
        if let Some(effort) = self.reasoning_effort.take() {
            if thinks == Thinks::Unsaid && !given.contains_key("thinking") {
                kwargs.insert("enable_thinking".into(), (effort != "none").into());
            }
            kwargs.insert("reasoning_effort".into(), effort.into());
        }
        kwargs.extend(given);
        if let Thinks::Said(enable) = thinks {
            kwargs.insert("enable_thinking".into(), enable.into());
        }
        kwargs
    }

    fn alternatives(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, count) => Ok(Some(fields::top_logprobs("top_logprobs", count.unwrap_or(0))?)),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => {
                Err(ApiError::invalid("top_logprobs", "top_logprobs only goes with `logprobs: true`"))
            }
        }
    }
}
