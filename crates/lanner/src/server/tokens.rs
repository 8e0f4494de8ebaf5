//! Routes that tokenise, as llama.cpp and vLLM have them: texts to tokens and back, the tokenizer,
//! and the text that the chat template makes of a conversation.

use std::time::Instant;

use axum::{Extension, Json, body::Bytes, extract::State, response::Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer, de::IgnoredAny};
use serde_json::{Value, json};

use super::{
    Server,
    app_state::AppState,
    handlers::{Body, ImageBody, JsonBody, Threads, json_text},
    images,
    openai::{
        self, MAX_PROMPT_VALUES, ValidRequest,
        chat::{ChatPrompt, ChatRequest},
        error::ApiError,
        fields, prompt_error,
    },
    preparation::{Preparation, Received},
    schema::ChatMessage,
};
use crate::{
    image::NO_IMAGES,
    model::{Conversation, Model},
};

/// llama.cpp's fields, and vLLM's.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TokenizeRequest {
    /// A model on the machine; the default one if it is missing.
    #[serde(rename = "model")]
    #[schemars(rename = "model")]
    _model: Option<String>,
    /// llama.cpp's text.
    content: Option<String>,
    /// vLLM's text.
    prompt: Option<String>,
    /// A conversation; the body then has the fields of a chat completion.
    #[schemars(with = "Option<Vec<ChatMessage>>")]
    messages: Option<IgnoredAny>,
    /// llama.cpp's `add_special_tokens`.
    add_special: Option<bool>,
    /// Put the tokenizer's special tokens around the text; true for `prompt` by default.
    add_special_tokens: Option<bool>,
    /// Only true.
    #[schemars(extend("enum" = [true, null]))]
    parse_special: Option<bool>,
    /// Tokens as objects with `id` and `piece`.
    #[schemars(extend("default" = false))]
    with_pieces: Option<bool>,
    /// Also `token_strs`, the tokens as the vocabulary spells them.
    #[schemars(extend("default" = false))]
    return_token_strs: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DetokenizeRequest {
    /// A model on the machine; the default one if it is missing.
    #[serde(rename = "model")]
    #[schemars(rename = "model")]
    _model: Option<String>,
    /// Token ids of the model's vocabulary.
    tokens: Vec<u32>,
}

pub(super) async fn tokenize(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    prepared_chat(&state, &preparation, body, parse_tokenize, |server, request, conversation| {
        let ids = request.ids(server, conversation.as_ref())?;
        request.answer(&server.model, &ids)
    })
    .await
    .map(json_text)
}

pub(super) async fn detokenize(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    prepared(&state, &preparation, body, |server, body| {
        let request: DetokenizeRequest = openai::parse(body)?;
        let size = server.model.engine.info().vocab_size;
        if let Some(id) = request.tokens.iter().find(|id| **id as usize >= size) {
            let message = format!("tokens has {id}, which is outside the model's vocabulary of {size}");
            return Err(ApiError::invalid("tokens", message));
        }
        let text = server.model.decode(&request.tokens);
        Ok(json!({ "content": text, "prompt": text }))
    })
    .await
    .map(Json)
}

pub(super) async fn apply_template(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    ImageBody(body): ImageBody,
) -> Result<Json<Value>, ApiError> {
    prepared_chat(&state, &preparation, body, parse_conversation, |server, (), conversation| {
        let prompt = server.model.render(&conversation.unwrap_or_default());
        let prompt = prompt.map_err(|error| prompt_error(&error, "messages"))?;
        Ok(json!({ "prompt": prompt }))
    })
    .await
    .map(Json)
}

pub(super) async fn tokenizer_info(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let server = state.lease(None).await?;
    let (info, tokenizer) = (server.model.engine.info(), server.model.tokenizer());
    Ok(Json(json!({
        "model": server.name(),
        "vocab_size": tokenizer.vocab_size(),
        "model_max_length": info.context_length,
        "bos_token": tokenizer.bos_token(),
        "eos_token": tokenizer.eos_token(),
        "eos_token_ids": info.eos_ids,
        "chat_template": server.model.template_source(),
    })))
}

/// Runs work on a body where requests are prepared.
pub(super) async fn prepared<T: Send + 'static>(
    state: &AppState,
    preparation: &Preparation,
    body: Body,
    work: impl FnOnce(&Server, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let JsonBody { received, .. } = body?;
    let server = state.lease_for(preparation, &received, Instant::now()).await?;
    let Received { bytes, charge, .. } = received;
    let lane = charge.lane();
    let work = move || {
        // Until preparation has freed its memory.
        let _charge = charge;
        work(&server, &bytes)
    };
    preparation.run(lane, work).await
}

/// A parsed body, and its conversation, whose images are fetched.
type ParsedBody<P> = Result<(P, Option<Conversation>), ApiError>;

/// Parses a body, fetches the images of its conversation, and runs work on both. Pixels are not
/// decoded.
pub(super) async fn prepared_chat<P: Send + 'static, T: Send + 'static>(
    state: &AppState,
    preparation: &Preparation,
    body: Body,
    parse: fn(&[u8]) -> ParsedBody<P>,
    work: impl FnOnce(&Server, P, Option<Conversation>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let JsonBody { received, .. } = body?;
    let server = state.lease_for(preparation, &received, Instant::now()).await?;
    let Received { bytes, charge, text_limit } = received;
    let lane = charge.lane();
    let parse = move || {
        let (parsed, conversation) = parse(&bytes)?;
        let images = conversation.as_ref().map_or(&NO_IMAGES, |conversation| &conversation.images);
        images::check(images, &server.model, bytes.len(), text_limit, "messages")?;
        Ok((server, parsed, conversation))
    };
    let (server, parsed, mut conversation) = preparation.run(lane, parse).await?;
    let mut files = None;
    if let Some(conversation) = &mut conversation {
        files = images::fetch(&mut conversation.images, state, preparation, None).await?;
    }
    let work = move || {
        // Until preparation has freed its memory.
        let _held = (charge, files);
        work(&server, parsed, conversation)
    };
    preparation.run(lane, work).await
}

fn parse_tokenize(body: &[u8]) -> Result<(TokenizeRequest, Option<Conversation>), ApiError> {
    let request: TokenizeRequest = openai::parse(body)?;
    let conversation = request.messages.is_some().then(|| conversation(body)).transpose()?;
    Ok((request, conversation))
}

fn parse_conversation(body: &[u8]) -> Result<((), Option<Conversation>), ApiError> {
    Ok(((), Some(conversation(body)?)))
}

/// The conversation in the body of a chat completion.
fn conversation(body: &[u8]) -> Result<Conversation, ApiError> {
    let request: ChatRequest = openai::parse(body)?;
    let valid: ValidRequest<ChatPrompt> = request.try_into()?;
    Ok(valid.prompts.conversation)
}

impl TokenizeRequest {
    /// Special tokens stand around a text by default in vLLM, and not in llama.cpp.
    fn ids(&self, server: &Server, conversation: Option<&Conversation>) -> Result<Vec<u32>, ApiError> {
        fields::refuse(&[("parse_special: false", self.parse_special == Some(false))])?;
        let add_special = self.add_special_tokens.or(self.add_special);
        let model = &server.model;
        match (&self.content, &self.prompt, conversation) {
            (Some(text), None, None) => model
                .encode_text(text, add_special.unwrap_or(false))
                .map_err(|error| prompt_error(&error, "content")),
            (None, Some(text), None) => model
                .encode_text(text, add_special.unwrap_or(true))
                .map_err(|error| prompt_error(&error, "prompt")),
            (None, None, Some(conversation)) => model
                .encode_chat(conversation, add_special.unwrap_or(false))
                .map_err(|error| prompt_error(&error, "messages")),
            _ => Err(ApiError::invalid("content", "send one of content, prompt and messages")),
        }
    }

    /// The answer as JSON, written token by token: as values they would take a hundred times the
    /// memory of their ids.
    fn answer(&self, model: &Model, ids: &[u32]) -> Result<Bytes, ApiError> {
        if ids.len() > MAX_PROMPT_VALUES {
            let field = if self.content.is_some() { "content" } else { "prompt" };
            let field = if self.messages.is_some() { "messages" } else { field };
            let message =
                format!("{field} has {} tokens, more than {MAX_PROMPT_VALUES}; send it in parts", ids.len());
            return Err(ApiError::invalid(field, message));
        }
        let answer = TokenizeAnswer {
            tokens: Tokens { model, ids, with_pieces: self.with_pieces.unwrap_or(false) },
            count: ids.len(),
            max_model_len: model.engine.info().context_length,
            token_strs: self.return_token_strs.unwrap_or(false).then_some(Spellings { model, ids }),
        };
        let text = serde_json::to_vec(&answer);
        // Fails only for types that JSON cannot represent; these are plain structs.
        Ok(text.unwrap_or_default().into())
    }
}

#[derive(Serialize)]
struct TokenizeAnswer<'a> {
    tokens: Tokens<'a>,
    count: usize,
    max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Spellings<'a>>,
}

/// Ids, or objects with the token's text too.
struct Tokens<'a> {
    model: &'a Model,
    ids: &'a [u32],
    with_pieces: bool,
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.with_pieces {
            true => serializer
                .collect_seq(self.ids.iter().map(|id| TokenPiece { id: *id, piece: piece(self.model, *id) })),
            false => serializer.collect_seq(self.ids),
        }
    }
}

#[derive(Serialize)]
struct TokenPiece {
    id: u32,
    piece: Value,
}

/// Tokens as the vocabulary spells them.
struct Spellings<'a> {
    model: &'a Model,
    ids: &'a [u32],
}

impl Serialize for Spellings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ids.iter().map(|id| self.model.tokenizer().id_to_token(*id)))
    }
}

/// A token's text, or its bytes if they are no whole characters.
fn piece(model: &Model, id: u32) -> Value {
    String::from_utf8(model.token_bytes(id)).map_or_else(|error| error.into_bytes().into(), Value::String)
}
