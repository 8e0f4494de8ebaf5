//! Request bodies of `POST /v1/responses`, and their validation: the fields that chat completions
//! have too are checked as theirs.

use std::{collections::BTreeSet, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};

use super::{
    input::{InputField, messages},
    mcp_approvals::{ApprovedCall, approved},
    response::{ReasoningEcho, RequestEcho, TextEcho},
    store::{MAX_TAKEN, ResponseStore, TakeError, Taken},
    tools::{OfferedTools, chat_choice},
};
use crate::{
    model::Conversation,
    server::tenant::Tenant,
    server::{
        openai::{
            accepted,
            chat::{ChatPrompt, ChatRequest},
            error::{ApiError, json_error},
            fields,
            mcp::McpRequest,
            params::ValidRequest,
            request::request_body,
        },
        schema::{AnyObject, Refused, ToolChoice, items_of, without, words},
    },
};

/// Values of `include`; what those of OpenAI's own tools would add is never there.
const INCLUDED: [&str; 8] = [
    ENCRYPTED_REASONING,
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";
const LOGPROBS: &str = "message.output_text.logprobs";

request_body! {
    #[schemars(transform = without(["max_tokens", "n"]))]
    pub struct ResponsesRequest {
        /// A text, or items.
        #[schemars(required)]
        input: Option<InputField>,
        /// A system message before everything else.
        instructions: Option<String>,
        /// A stored response to continue.
        previous_response_id: Option<String>,
        /// Keep the response.
        #[schemars(extend("default" = true))]
        store: Option<bool>,
        /// Further fields of the response.
        #[schemars(transform = items_of(INCLUDED))]
        include: Option<Vec<String>>,
        /// Returned with the response.
        #[schemars(transform = accepted::metadata_limits)]
        metadata: Option<Map<String, Value>>,
        text: Option<TextField>,
        reasoning: Option<ReasoningField>,
        /// Functions and custom tools that the model may call, and MCP servers whose tools this
        /// server calls itself.
        #[schemars(with = "Option<Vec<AnyObject>>")]
        tools: Option<Vec<Value>>,
        /// `auto` with tools by default.
        #[schemars(with = "Option<ToolChoice>")]
        tool_choice: Option<Value>,
        /// Allow several calls in an answer.
        #[schemars(extend("default" = true))]
        parallel_tool_calls: Option<bool>,
        /// Maximum number of new tokens; the rest of the context by default.
        #[schemars(range(min = 1))]
        max_output_tokens: Option<usize>,
        /// Most calls of MCP tools in the response; the server's own limit by default.
        #[schemars(range(min = 1))]
        max_tool_calls: Option<u64>,
        /// Alternatives per token.
        #[schemars(range(max = fields::MAX_TOP_LOGPROBS), extend("default" = 0))]
        top_logprobs: Option<usize>,
        #[schemars(transform = words(["disabled"]))]
        truncation: Option<String>,
        /// Only false.
        #[schemars(extend("enum" = [false, null]))]
        background: Option<bool>,
        /// For the chat template.
        enable_thinking: Option<bool>,
        /// Variables of the chat template.
        chat_template_kwargs: Option<Map<String, Value>>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        conversation: Option<IgnoredAny>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        prompt: Option<IgnoredAny>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        context_management: Option<IgnoredAny>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        moderation: Option<IgnoredAny>,
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct TextField {
    /// `response_format` of chat completions, without the inner object.
    #[schemars(with = "Option<AnyObject>")]
    format: Option<Value>,
    /// No effect.
    #[schemars(transform = words(accepted::VERBOSITY))]
    verbosity: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct ReasoningField {
    /// For the chat template; `none` turns thinking off.
    effort: Option<String>,
    /// No effect: the reasoning is there itself.
    summary: Option<String>,
    /// The former name of `summary`.
    generate_summary: Option<String>,
}

/// What to answer.
#[derive(Debug)]
pub struct ResponsesPrompt {
    /// Of this turn.
    pub items: Vec<Value>,
    /// Without messages until the items are resolved.
    pub conversation: Conversation,
    pub custom_tools: BTreeSet<String>,
    /// Tools that this server calls; they are not offered in the conversation yet.
    pub mcp: Option<McpRequest>,
    /// Calls of them that the items approve.
    pub(super) approved: Vec<ApprovedCall>,
    /// The client sends reasoning back as it gets it, encoded.
    pub encrypts_reasoning: bool,
    pub echo: RequestEcho,
    /// Where the answer is to be stored, and for whom.
    pub store: Option<(Arc<ResponseStore>, Tenant)>,
}

impl ResponsesPrompt {
    /// Finds the turns before this one, and the items that it refers to, and makes the messages of
    /// all items. Returns the bytes of those that were found.
    ///
    /// # Errors
    /// 400: they are not stored, or too much; or an item is not valid.
    pub fn resolve(&mut self, store: &Arc<ResponseStore>, tenant: &Tenant) -> Result<usize, ApiError> {
        let mut taken = Taken::default();
        let mut history = vec![];
        if let Some(id) = &self.echo.previous_response_id {
            history = store.history(id, tenant, &mut taken).map_err(|error| match error {
                TakeError::NotStored(id) => {
                    let message = format!("the previous response `{id}` is not stored here, or not any more");
                    ApiError::invalid("previous_response_id", message).code("previous_response_not_found")
                }
                TakeError::TooMuch => too_much(),
            })?;
        }
        let at: Vec<usize> = (0..self.items.len()).filter(|at| is_reference(&self.items[*at])).collect();
        let ids: Vec<&str> = at.iter().map(|at| self.items[*at]["id"].as_str().unwrap_or_default()).collect();
        let found = store.items(&ids, tenant, &mut taken).map_err(|error| match error {
            TakeError::NotStored(id) => {
                let index = ids.iter().position(|other| *other == id).map_or(0, |position| at[position]);
                let message = format!("the item `{id}` is not stored here, or not any more");
                ApiError::invalid(format!("input[{index}].id"), message).code("item_not_found")
            }
            TakeError::TooMuch => too_much(),
        })?;
        at.into_iter().zip(found).for_each(|(at, item)| self.items[at] = item);
        self.store = self.echo.store.then(|| (store.clone(), tenant.clone()));
        let made = messages(self.echo.instructions.as_deref(), &history, &self.items)?;
        (self.conversation.messages, self.conversation.images) = made;
        self.approved = approved(&history, &self.items, &self.conversation.messages)?;
        // Only a stored answer needs its items.
        self.items.retain(|_| self.store.is_some());
        Ok(taken.bytes())
    }
}

fn too_much() -> ApiError {
    let message = format!(
        "the stored items that come before the input, or that it refers to, are more than {} items or {} bytes; \
         start a new conversation, or refer to fewer items",
        MAX_TAKEN.items, MAX_TAKEN.bytes
    );
    ApiError::invalid("input", message)
}

fn is_reference(item: &Value) -> bool {
    item["type"] == "item_reference"
}

impl TryFrom<ResponsesRequest> for ValidRequest<ResponsesPrompt> {
    type Error = ApiError;

    fn try_from(mut request: ResponsesRequest) -> Result<ValidRequest<ResponsesPrompt>, ApiError> {
        request.refuse_unsupported()?;
        let items = request.items()?;
        let includes = request.includes()?;
        let tools = OfferedTools::new(request.tools.take().unwrap_or_default())?;
        let chat = request.chat(&tools, includes.contains(&LOGPROBS))?;
        let valid: Result<ValidRequest<ChatPrompt>, ApiError> = chat.try_into();
        let mut valid = valid.map_err(|error| tools.renamed(renamed(error)))?;
        valid.params.tools.iter_mut().for_each(|set| tools.custom.constrain(Arc::make_mut(set)));
        valid.prompts.mcp.iter_mut().for_each(|mcp| mcp.reindex(&tools.indexes));
        let custom_tools = tools.custom.into_names();
        let prompt = |chat: ChatPrompt| ResponsesPrompt {
            items,
            conversation: chat.conversation,
            custom_tools,
            mcp: chat.mcp,
            approved: vec![],
            encrypts_reasoning: includes.contains(&ENCRYPTED_REASONING),
            echo: request.echo(tools.own),
            store: None,
        };
        Ok(valid.map(prompt))
    }
}

impl ResponsesRequest {
    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        fields::refuse(&[
            ("background", self.background == Some(true)),
            ("conversation", self.conversation.is_some()),
            ("prompt", self.prompt.is_some()),
            ("context_management", self.context_management.is_some()),
            ("moderation", self.moderation.is_some()),
            ("n", self.n.is_some_and(|n| n != 1)),
        ])?;
        if self.max_tool_calls == Some(0) {
            return Err(ApiError::invalid("max_tool_calls", "max_tool_calls is 0; it must be at least 1"));
        }
        if self.max_tokens.is_some() {
            let message = "responses have max_output_tokens instead of max_tokens";
            return Err(ApiError::invalid("max_tokens", message));
        }
        match self.truncation.as_deref() {
            None | Some("disabled") => accepted::metadata(self.metadata.as_ref()),
            Some("auto") => Err(ApiError::unsupported("truncation: auto")),
            Some(other) => {
                let message = format!("truncation is `{other}`; it must be disabled");
                Err(ApiError::invalid("truncation", message))
            }
        }
    }

    /// The items of this turn. Those that it refers to are known later.
    fn items(&mut self) -> Result<Vec<Value>, ApiError> {
        let items = self.input.take().map(InputField::items).transpose()?.unwrap_or_default();
        if items.is_empty() {
            return Err(ApiError::invalid("input", "input is empty; send a text or at least one item"));
        }
        Ok(items)
    }

    fn includes(&mut self) -> Result<Vec<&'static str>, ApiError> {
        let known = |name: &String| {
            let known = INCLUDED.iter().find(|known| *known == name).copied();
            let message = || format!("include names `{name}`; it can name {}", INCLUDED.join(", "));
            known.ok_or_else(|| ApiError::invalid("include", message()))
        };
        self.include.iter().flatten().map(known).collect()
    }

    /// A request for a chat completion with the same parameters; its messages stand for the items.
    fn chat(&mut self, tools: &OfferedTools, with_logprobs: bool) -> Result<ChatRequest, ApiError> {
        let choice = self.tool_choice.as_ref().map(chat_choice).transpose()?;
        let is_idle = tools.chat.is_empty() && choice.as_ref().is_none_or(|c| c == "auto" || c == "none");
        let text = self.text.as_ref();
        let reasoning = self.reasoning.as_ref();
        let fields = json!({
            "messages": [{ "role": "user", "content": "" }],
            "tools": (!tools.chat.is_empty()).then_some(&tools.chat),
            "tool_choice": choice.filter(|_| !is_idle),
            "parallel_tool_calls": self.parallel_tool_calls.filter(|_| !tools.chat.is_empty()),
            "reasoning_effort": reasoning.and_then(|reasoning| reasoning.effort.as_ref()),
            "enable_thinking": self.enable_thinking,
            "chat_template_kwargs": self.chat_template_kwargs.take(),
            "verbosity": text.and_then(|text| text.verbosity.as_ref()),
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": (with_logprobs || self.top_logprobs.is_some_and(|top| top > 0)).then_some(true),
            "top_logprobs": self.top_logprobs,
        });
        let invalid = |error: serde_json::Error| renamed(ApiError::invalid_body(json_error(&error)));
        let mut shared = self.take_shared();
        self.user = shared.user.clone();
        self.safety_identifier = shared.safety_identifier.clone();
        self.prompt_cache_key = shared.prompt_cache_key.clone();
        if let Some(format) = self.text.as_ref().and_then(|text| text.format.as_ref()) {
            if shared.response_format.is_some() {
                let message = "response_format and text.format exclude each other";
                return Err(ApiError::invalid("response_format", message));
            }
            shared.response_format = Some(serde_json::from_value(response_format(format)).map_err(invalid)?);
        }
        let mut chat: ChatRequest = serde_json::from_value(fields).map_err(invalid)?;
        chat.put_shared(shared);
        Ok(chat)
    }

    fn echo(self, tools: Vec<Value>) -> RequestEcho {
        let ReasoningField { effort, summary, generate_summary } = self.reasoning.unwrap_or_default();
        let TextField { format, verbosity } = self.text.unwrap_or_default();
        RequestEcho {
            instructions: self.instructions,
            max_output_tokens: self.max_output_tokens,
            max_tool_calls: self.max_tool_calls,
            metadata: self.metadata.unwrap_or_default(),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id,
            prompt_cache_key: self.prompt_cache_key,
            reasoning: ReasoningEcho { effort, summary: summary.or(generate_summary) },
            safety_identifier: self.safety_identifier,
            service_tier: "default",
            store: self.store.unwrap_or(true),
            temperature: 0.0,
            text: TextEcho {
                format: format.unwrap_or(json!({ "type": "text" })),
                verbosity: verbosity.unwrap_or("medium".into()),
            },
            tool_choice: self.tool_choice.unwrap_or("auto".into()),
            tools,
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: 1.0,
            truncation: "disabled",
            user: self.user,
        }
    }
}

/// `text.format` as chat completions have it: a schema with its name in an object of its own.
fn response_format(format: &Value) -> Value {
    let mut schema = format.clone();
    match schema.as_object_mut() {
        Some(fields) if fields.get("type") == Some(&"json_schema".into()) => {
            fields.remove("type");
            json!({ "type": "json_schema", "json_schema": schema })
        }
        _ => schema,
    }
}

/// An error of a chat completion with the names of this route's fields.
fn renamed(mut error: ApiError) -> ApiError {
    const NAMES: [(&str, &str); 6] = [
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("messages", "input"),
        ("response_format", "text.format"),
        ("reasoning_effort", "reasoning.effort"),
        ("verbosity", "text.verbosity"),
    ];
    let name = |text: String| {
        let known = NAMES.iter().find(|(chat, own)| text.contains(chat) && !text.contains(own));
        known.map_or(text.clone(), |(chat, own)| text.replace(chat, own))
    };
    error.body.param = error.body.param.map(name);
    error.body.message = name(error.body.message);
    error
}
