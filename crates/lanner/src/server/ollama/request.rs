//! Request bodies of `/api/chat` and `/api/generate` as requests of OpenAI's routes.

use schemars::JsonSchema;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};

use super::{
    keep_alive,
    messages::{MessageImages, openai_messages},
    options::Options,
};
use crate::{
    conversation,
    keep_alive::KeepAlive,
    model::Conversation,
    server::{
        openai::{
            ValidRequest,
            chat::{ChatPrompt, ChatRequest},
            completions::{CompletionPrompts, CompletionRequest},
            error::{ApiError, json_error},
            fields,
        },
        schema::{ChatMessage, ChatTool, KeepAliveField, OllamaFormatField, Refused, above_zero, words},
    },
};

/// The fields of both routes.
macro_rules! ollama_body {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$about:meta])* $own:ident: $own_type:ty,)* }) => {
        #[derive(Debug, Deserialize, JsonSchema)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$about])* $own: $own_type,)*
            /// A model on the machine, with or without `:latest`; the default one if it is missing.
            model: Option<String>,
            /// `json`, or a JSON Schema that the answer matches.
            #[schemars(with = "Option<OllamaFormatField>")]
            format: Option<Value>,
            #[schemars(with = "Option<Options>")]
            options: Option<Map<String, Value>>,
            /// For the chat template.
            think: Option<ThinkField>,
            /// Answer in lines of JSON.
            #[schemars(extend("default" = true))]
            stream: Option<bool>,
            /// How long the model stays loaded afterwards; negative: for ever.
            #[schemars(with = "Option<KeepAliveField>")]
            keep_alive: Option<Value>,
            /// Report log-probabilities of the content's tokens.
            #[schemars(extend("default" = false))]
            logprobs: Option<bool>,
            /// Alternatives per token.
            #[schemars(range(max = fields::MAX_TOP_LOGPROBS), extend("default" = 0))]
            top_logprobs: Option<usize>,
            /// Priority in the queue.
            #[schemars(transform = words(fields::PRIORITIES), extend("default" = "normal"))]
            priority: Option<String>,
            /// Seconds from the request's arrival to the end of its answer. None by default.
            #[schemars(transform = above_zero(fields::MAX_TIMEOUT))]
            timeout: Option<f64>,
            /// Requests share stored prefixes only with requests of the same salt.
            cache_salt: Option<String>,
        }

        impl $name {
            fn take_shared(&mut self) -> Result<SharedFields, ApiError> {
                let keep_alive = keep_alive(self.keep_alive.take())?;
                let options = Options::parse(self.options.take())?;
                let max_tokens = options.max_tokens();
                let mut fields = options.into_fields();
                fields.extend([
                    ("model".to_owned(), self.model.take().into()),
                    ("format".to_owned(), self.format.take().into()),
                    ("stream".to_owned(), self.stream.unwrap_or(true).into()),
                    ("priority".to_owned(), self.priority.take().into()),
                    ("timeout".to_owned(), self.timeout.into()),
                    ("cache_salt".to_owned(), self.cache_salt.take().into()),
                    ("ttl".to_owned(), keep_alive.map(KeepAlive::seconds).into()),
                ]);
                Ok(SharedFields { fields, max_tokens })
            }

            /// Fields that only conversations have.
            fn chat_fields(&self) -> Result<Map<String, Value>, ApiError> {
                let mut fields = self.think.as_ref().map(ThinkField::fields).transpose()?.unwrap_or_default();
                fields.insert("logprobs".into(), self.logprobs.into());
                fields.insert("top_logprobs".into(), self.top_logprobs.into());
                Ok(fields)
            }
        }
    };
}

ollama_body! {
    /// A body of `/api/chat`.
    #[schemars(rename = "OllamaChatRequest")]
    pub struct ChatBody {
        /// Also with `images`, each in base64, `thinking`, `tool_calls` and `tool_name`.
        #[schemars(with = "Vec<ChatMessage>")]
        messages: Vec<Value>,
        /// Functions that the model may call.
        #[schemars(with = "Option<Vec<ChatTool>>")]
        tools: Option<Vec<Value>>,
    }
}

ollama_body! {
    /// A body of `/api/generate`.
    #[schemars(rename = "OllamaGenerateRequest")]
    pub struct GenerateBody {
        /// The user's turn; with `raw`, the text to continue.
        prompt: Option<String>,
        /// The text after the answer, for models with tokens to fill in the middle.
        suffix: Option<String>,
        /// A system message.
        system: Option<String>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        template: Option<String>,
        /// Continue the prompt without a template.
        #[schemars(extend("default" = false))]
        raw: Option<bool>,
        /// Only empty; `/api/chat` takes conversations.
        #[schemars(with = "Option<[(); 0]>")]
        context: Option<Vec<IgnoredAny>>,
        /// Images in base64, before the prompt.
        #[schemars(with = "Option<Vec<String>>")]
        images: Option<Value>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        width: Option<IgnoredAny>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        height: Option<IgnoredAny>,
        /// Not supported.
        #[schemars(with = "Option<Refused>")]
        steps: Option<IgnoredAny>,
    }
}

/// Fields that both bodies share, under the names of OpenAI's routes.
struct SharedFields {
    fields: Map<String, Value>,
    max_tokens: Option<usize>,
}

/// Values of `think` for templates with levels.
const LEVELS: [&str; 3] = ["low", "medium", "high"];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "true, false or a level: `low`, `medium` or `high`")]
enum ThinkField {
    Enabled(bool),
    Level(#[schemars(transform = words(LEVELS))] String),
}

/// The prompt of `/api/generate`.
#[derive(Debug)]
pub enum GeneratePrompt {
    Turn(Conversation),
    /// Without a template.
    Text(CompletionPrompts),
}

impl ThinkField {
    fn fields(&self) -> Result<Map<String, Value>, ApiError> {
        let mut fields = Map::new();
        match self {
            ThinkField::Enabled(enabled) => fields.insert("enable_thinking".into(), (*enabled).into()),
            ThinkField::Level(level) if LEVELS.contains(&&**level) => {
                fields.insert("reasoning_effort".into(), level.clone().into());
                fields.insert("enable_thinking".into(), true.into())
            }
            ThinkField::Level(level) => {
                let message = format!("think is `{level}`; it must be true, false, low, medium or high");
                return Err(ApiError::invalid("think", message));
            }
        };
        Ok(fields)
    }
}

impl TryFrom<ChatBody> for ValidRequest<Conversation> {
    type Error = ApiError;

    fn try_from(mut body: ChatBody) -> Result<ValidRequest<Conversation>, ApiError> {
        let mut fields = body.take_shared()?.fields;
        fields.extend(body.chat_fields()?);
        let (messages, images) = openai_messages(body.messages)?;
        fields.insert("messages".into(), messages.into());
        fields.insert("tools".into(), body.tools.filter(|tools| !tools.is_empty()).into());
        chat(fields, images)
    }
}

impl TryFrom<GenerateBody> for ValidRequest<GeneratePrompt> {
    type Error = ApiError;

    fn try_from(mut body: GenerateBody) -> Result<ValidRequest<GeneratePrompt>, ApiError> {
        body.refuse_unsupported()?;
        let shared = body.take_shared()?;
        let is_text = body.raw.unwrap_or(false) || body.suffix.as_ref().is_some_and(|text| !text.is_empty());
        if is_text { body.text(shared) } else { body.turn(shared) }
    }
}

impl GenerateBody {
    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let has_any = |list: &Option<Vec<IgnoredAny>>| list.as_ref().is_some_and(|list| !list.is_empty());
        if has_any(&self.context) {
            let message = "context is not supported; send the conversation to /api/chat";
            return Err(ApiError::invalid("context", message).code("unsupported_parameter"));
        }
        fields::refuse(&[
            ("template", is_set(&self.template)),
            ("width", self.width.is_some()),
            ("height", self.height.is_some()),
            ("steps", self.steps.is_some()),
        ])
    }

    /// One turn of a conversation.
    fn turn(self, shared: SharedFields) -> Result<ValidRequest<GeneratePrompt>, ApiError> {
        let mut fields = shared.fields;
        fields.extend(self.chat_fields()?);
        let mut messages = conversation::opening(self.system.as_deref().filter(|text| !text.is_empty()));
        let mut images = MessageImages::default();
        images.add(messages.len(), &self.images.unwrap_or_default(), "images")?;
        messages.push(conversation::user(&self.prompt.unwrap_or_default()));
        fields.insert("messages".into(), messages.into());
        Ok(chat(fields, images)?.map(GeneratePrompt::Turn))
    }

    /// Text to continue, or to fill in before the suffix.
    fn text(self, shared: SharedFields) -> Result<ValidRequest<GeneratePrompt>, ApiError> {
        let thinks = !matches!(self.think, None | Some(ThinkField::Enabled(false)));
        let has_images = self.images.as_ref().is_some_and(|images| !images.is_null() && *images != json!([]));
        for (name, given) in [
            ("system", self.system.is_some_and(|text| !text.is_empty())),
            ("think", thinks),
            ("images", has_images),
        ] {
            if given {
                let message = format!("{name} needs the chat template, which raw and suffix leave out");
                return Err(ApiError::invalid(name, message));
            }
        }
        let logprobs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "top_logprobs only goes with `logprobs: true`";
                return Err(ApiError::invalid("top_logprobs", message));
            }
        };
        let mut fields = shared.fields;
        fields.insert("prompt".into(), self.prompt.unwrap_or_default().into());
        fields.insert("suffix".into(), self.suffix.into());
        fields.insert("logprobs".into(), logprobs.into());
        let request: CompletionRequest = converted(fields)?;
        let mut valid: ValidRequest<CompletionPrompts> = request.try_into().map_err(renamed)?;
        // Completions have a default of their own.
        valid.params.overrides.max_tokens = shared.max_tokens;
        Ok(valid.map(GeneratePrompt::Text))
    }
}

fn chat(
    mut fields: Map<String, Value>,
    images: MessageImages,
) -> Result<ValidRequest<Conversation>, ApiError> {
    // `num_predict` counts thinking too.
    if let Some(max_tokens) = fields.remove("max_tokens") {
        fields.insert("max_completion_tokens".into(), max_tokens);
    }
    let request: ChatRequest = converted(fields)?;
    let valid: ValidRequest<ChatPrompt> = request.try_into().map_err(renamed)?;
    Ok(valid.map(|ChatPrompt { mut conversation, .. }| {
        if !images.is_empty() {
            images.place(&mut conversation);
        }
        conversation
    }))
}

fn converted<T: serde::de::DeserializeOwned>(fields: Map<String, Value>) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(fields)).map_err(|error| ApiError::invalid_body(json_error(&error)))
}

/// An error of OpenAI's route with the names of Ollama's options.
fn renamed(mut error: ApiError) -> ApiError {
    let names = [("max_tokens", "num_predict"), ("repetition_penalty", "repeat_penalty")];
    for (theirs, own) in names {
        error.body.message = error.body.message.replace(theirs, own);
    }
    error
}
