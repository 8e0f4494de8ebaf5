//! Request bodies of the Messages API, and their validation: fields that chat completions share are
//! checked in the same way.

use schemars::JsonSchema;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};

use super::{
    input::{SystemField, chat_messages},
    thinking::{Thinking, ThinkingField},
    tools::{ToolChoiceField, chat_choice, chat_tools},
};
use crate::{
    image::Images,
    model::Conversation,
    server::{
        openai::{
            ValidRequest,
            chat::{ChatPrompt, ChatRequest},
            error::{ApiError, json_error},
            fields,
        },
        schema::{AnyObject, AsInChat, Refused, words},
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct MessagesRequest {
    /// A model on the machine; the default one if it is missing.
    model: Option<String>,
    /// Turns of `user`, `assistant` and `system`.
    #[schemars(with = "Vec<Turn>", length(min = 1))]
    messages: Vec<Value>,
    /// Maximum number of new tokens.
    #[schemars(required, range(min = 1))]
    pub max_tokens: Option<usize>,
    system: Option<SystemField>,
    /// Texts before which the answer ends.
    #[schemars(
        length(max = fields::MAX_STOP_STRINGS),
        inner(length(min = 1, max = fields::MAX_STOP_BYTES))
    )]
    stop_sequences: Option<Vec<String>>,
    /// Answer in server-sent events.
    #[schemars(extend("default" = false))]
    stream: Option<bool>,
    #[schemars(with = "Option<AsInChat>")]
    temperature: Option<f64>,
    #[schemars(with = "Option<AsInChat>")]
    top_p: Option<f64>,
    #[schemars(with = "Option<AsInChat>")]
    top_k: Option<i64>,
    /// With `name`, `description`, `input_schema` and `strict`.
    #[schemars(with = "Option<Vec<ToolDefinition>>")]
    tools: Option<Vec<Value>>,
    tool_choice: Option<ToolChoiceField>,
    thinking: Option<ThinkingField>,
    output_config: Option<OutputConfig>,
    /// The former place of `output_config.format`.
    #[schemars(with = "Option<AnyObject>")]
    output_format: Option<Value>,
    /// Changes only how tokens are counted.
    #[schemars(with = "Option<AnyObject>")]
    cache_control: Option<Value>,
    /// Accepted; no edit is ever applied.
    #[schemars(with = "Option<AnyObject>")]
    context_management: Option<IgnoredAny>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    container: Option<IgnoredAny>,
    /// Only empty.
    #[schemars(with = "Option<[(); 0]>")]
    mcp_servers: Option<Vec<IgnoredAny>>,
    // Fields of chat completions.
    #[schemars(with = "Option<AsInChat>")]
    min_p: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    repetition_penalty: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    presence_penalty: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    frequency_penalty: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    logit_bias: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    seed: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    chat_template_kwargs: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    priority: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    timeout: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    speculation: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    idempotency_key: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    cache_ttl_ms: Option<Value>,
    #[schemars(with = "Option<AsInChat>")]
    cache_salt: Option<Value>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct OutputConfig {
    /// For the chat template.
    effort: Option<String>,
    /// A format of type `json_schema` that the answer must match.
    #[schemars(with = "Option<AnyObject>")]
    format: Option<Value>,
}

/// A turn. Blocks are `text`, `image`, `thinking`, `redacted_thinking`, `tool_use` and
/// `tool_result`.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Turn {
    #[schemars(transform = words(["user", "assistant", "system"]))]
    role: String,
    content: TextOrBlocks,
}

/// A text, or blocks.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum TextOrBlocks {
    Text(String),
    Blocks(#[schemars(with = "Vec<AnyObject>")] ()),
}

/// A function that the model may call.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct ToolDefinition {
    /// Tools of Anthropic's are refused.
    #[schemars(transform = words(["custom"]))]
    r#type: Option<String>,
    name: String,
    description: Option<String>,
    /// A JSON Schema of an object.
    #[schemars(with = "AnyObject")]
    input_schema: (),
    /// Accepted: arguments always match the schema.
    strict: Option<bool>,
}

/// The conversation to answer, and the format of the answer.
#[derive(Debug)]
pub struct MessagesPrompt {
    pub conversation: Conversation,
    pub thinking: Thinking,
    pub cache_mark: Option<CacheMark>,
    /// The request asks for edits of its context, and its answer says that there were none.
    pub reports_edits: bool,
}

/// The last part of the prompt that the request wants cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMark {
    Head,
    Messages,
}

impl TryFrom<MessagesRequest> for ValidRequest<MessagesPrompt> {
    type Error = ApiError;

    fn try_from(mut request: MessagesRequest) -> Result<ValidRequest<MessagesPrompt>, ApiError> {
        request.refuse_unsupported()?;
        let max_tokens = request
            .max_tokens
            .ok_or_else(|| ApiError::invalid("max_tokens", "max_tokens is missing; this API requires it"))?;
        let thinking = Thinking::new(request.thinking.as_ref(), max_tokens)?;
        let cache_mark = request.cache_mark();
        let (messages, images) = request.chat_messages()?;
        let reports_edits = request.context_management.is_some();
        let valid: ValidRequest<ChatPrompt> =
            request.chat(&messages, thinking).and_then(TryInto::try_into).map_err(renamed)?;
        let prompt = |chat: ChatPrompt| MessagesPrompt {
            conversation: Conversation { messages, images, ..chat.conversation },
            thinking,
            cache_mark,
            reports_edits,
        };
        Ok(valid.map(prompt))
    }
}

impl MessagesRequest {
    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let given = [
            ("container", self.container.is_some()),
            ("mcp_servers", self.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty())),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(ApiError::unsupported(name)),
            None => Ok(()),
        }
    }

    fn chat_messages(&mut self) -> Result<(Vec<Value>, Images), ApiError> {
        let (messages, images) = chat_messages(self.system.as_ref(), &std::mem::take(&mut self.messages))?;
        if messages.iter().all(|message| message["role"] == "system") {
            return Err(ApiError::invalid("messages", "messages is empty; send at least one of a user"));
        }
        Ok((messages, images))
    }

    /// Where the last `cache_control` is.
    fn cache_mark(&self) -> Option<CacheMark> {
        let is_marked = |block: &Value| !block["cache_control"].is_null();
        fn blocks(content: &Value) -> impl Iterator<Item = &Value> {
            content.as_array().into_iter().flatten()
        }
        let in_message = |message: &Value| {
            blocks(&message["content"])
                .any(|block| is_marked(block) || blocks(&block["content"]).any(is_marked))
        };
        let system = self.system.as_ref().map_or(&[][..], SystemField::blocks);
        if self.cache_control.is_some() || self.messages.iter().any(in_message) {
            return Some(CacheMark::Messages);
        }
        let mut head = self.tools.iter().flatten().chain(system);
        head.any(is_marked).then_some(CacheMark::Head)
    }

    /// A request for a chat completion with the same parameters; a placeholder replaces the
    /// messages, which need no checks.
    fn chat(self, messages: &[Value], thinking: Thinking) -> Result<ChatRequest, ApiError> {
        let tools = chat_tools(self.tools.as_deref().unwrap_or_default())?;
        let choice = self.tool_choice.as_ref().map(chat_choice).transpose()?;
        let parallel = self.tool_choice.and_then(|choice| choice.disable_parallel_tool_use);
        // The client begins the answer.
        let is_prefilled = messages
            .last()
            .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
        let OutputConfig { effort, format } = self.output_config.unwrap_or_default();
        let mut fields = json!({
            "messages": [{ "role": "user", "content": "" }],
            "model": self.model,
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "tools": (!tools.is_empty()).then_some(&tools),
            "tool_choice": choice,
            "parallel_tool_calls": parallel.map(|disabled| !disabled),
            "enable_thinking": thinking.enabled,
            "max_thinking_tokens": thinking.budget,
            "reasoning_effort": effort.as_deref().map(chat_effort),
            "continue_final_message": is_prefilled,
            "response_format": format.or(self.output_format).as_ref().map(response_format),
        });
        let more = [
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("logit_bias", self.logit_bias),
            ("seed", self.seed),
            ("chat_template_kwargs", self.chat_template_kwargs),
            ("priority", self.priority),
            ("timeout", self.timeout),
            ("speculation", self.speculation),
            ("idempotency_key", self.idempotency_key),
            ("cache_ttl_ms", self.cache_ttl_ms),
            ("cache_salt", self.cache_salt),
        ];
        for (name, value) in more {
            fields[name] = value.unwrap_or_default();
        }
        serde_path_to_error::deserialize(fields).map_err(|error| {
            let field = error.path().to_string();
            ApiError::invalid(&field, format!("{field}: {}", json_error(error.inner())))
        })
    }
}

/// Lowers levels that templates do not know to the highest that they know.
fn chat_effort(effort: &str) -> &str {
    match effort {
        "xhigh" | "max" => "high",
        effort => effort,
    }
}

/// `output_config.format` as chat completions have it: the schema in an object of its own.
fn response_format(format: &Value) -> Value {
    if format["type"] != "json_schema" {
        return format.clone();
    }
    let schema = Map::from_iter([
        ("name".to_owned(), json!("answer")),
        ("strict".to_owned(), json!(true)),
        ("schema".to_owned(), format["schema"].clone()),
    ]);
    json!({ "type": "json_schema", "json_schema": schema })
}

/// An error of a chat completion with the names of this API's fields.
fn renamed(mut error: ApiError) -> ApiError {
    const NAMES: [(&str, &str); 6] = [
        (".function.parameters", ".input_schema"),
        (".function", ""),
        ("response_format.json_schema", "output_config.format"),
        ("response_format", "output_config.format"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("reasoning_effort", "output_config.effort"),
    ];
    let rename = |text: String| NAMES.iter().fold(text, |text, (chat, own)| text.replace(chat, own));
    error.body.message = rename(error.body.message);
    if let Some(param) = error.body.param.take() {
        let param = if param == "stop" { "stop_sequences".to_owned() } else { rename(param) };
        // The only place where this API's errors name a field.
        if !error.body.message.contains(&param) {
            error.body.message = format!("{param}: {}", error.body.message);
        }
        error.body.param = Some(param);
    }
    error
}
