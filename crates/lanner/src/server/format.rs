//! What the completion path needs of a route: its request body, and how it writes answers. A
//! whole answer is the fold of the pieces that a stream sends.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Server,
    openai::{
        GenerateParams, ValidRequest,
        error::ApiError,
        mcp::{McpRequest, ToolEvent, ToolPlan},
        usage::Usage,
    },
    protocol::Protocol,
    tenant::Tenant,
};
use crate::{
    generate::ChoiceEvent,
    model::{Conversation, Model, Prompt},
};

/// The request and response bodies of one route.
pub(super) trait ApiFormat: Sized + Send + 'static {
    type Request: DeserializeOwned + TryInto<ValidRequest<Self::Prompts>, Error = ApiError>;
    type Prompts: Send + Sync;
    /// A part of the answer.
    type Piece: Send;
    /// The whole answer, folded from pieces.
    type Whole: Serialize + Send;

    const PROTOCOL: Protocol;
    const ID_PREFIX: &'static str;
    /// Distinguishes the route's idempotency keys from those of others.
    const ROUTE: &'static str;
    /// The request's field that holds the prompt.
    const PROMPT: &'static str;
    /// Whether an answer reports MCP servers that fail; elsewhere that is an error.
    const LISTS_MCP_SERVERS: bool = false;

    /// Adds what the server has stored for the tenant to the prompts. Returns its bytes.
    ///
    /// # Errors
    /// 400: it is not stored, or too much.
    fn attach(_: &mut Self::Prompts, _: &Server, _: &Tenant) -> Result<usize, ApiError> {
        Ok(0)
    }
    /// The conversation that may have images.
    fn conversation(_: &mut Self::Prompts) -> Option<&mut Conversation> {
        None
    }

    /// The MCP tools that the request asks for, and the conversation that is to offer them.
    fn mcp(_: &mut Self::Prompts) -> Option<(&mut McpRequest, &mut Conversation)> {
        None
    }
    /// Encodes the prompts.
    ///
    /// # Errors
    /// A prompt cannot be rendered or encoded, or is too long.
    fn prepare(
        model: &Arc<Model>,
        prompts: Self::Prompts,
        params: &GenerateParams,
    ) -> Result<(Self, Vec<Prompt>), ApiError>;
    /// The calls of MCP tools that the answer makes, if it may; asked once, after `prepare`.
    fn take_tool_plan(&mut self) -> Option<ToolPlan> {
        None
    }
    /// The pieces before the first token.
    fn begin(&mut self, answer: &AnswerInfo) -> Vec<Self::Piece>;
    /// The pieces of one event of a choice.
    fn on_event(&mut self, answer: &AnswerInfo, choice: usize, event: ChoiceEvent) -> Vec<Self::Piece>;
    /// The pieces of what happens to a call of an MCP tool.
    fn on_tool(&mut self, _: &AnswerInfo, _: ToolEvent) -> Vec<Self::Piece> {
        vec![]
    }
    /// The pieces after the last token of all choices.
    fn end(&mut self, answer: &AnswerInfo) -> Vec<Self::Piece>;
    /// The event that ends a stream with an error; `id` is the request's.
    fn fail(&mut self, error: &ApiError, id: &str) -> Frame {
        Self::PROTOCOL.error_frame(error, id)
    }
    /// What a stream sends while nothing happens, if not a comment of server-sent events.
    fn keep_alive(_: &AnswerInfo) -> Option<Frame> {
        None
    }
    /// The piece as it is streamed, or `None` if only a whole answer has it.
    fn frame(answer: &AnswerInfo, piece: Self::Piece) -> Option<Frame>;
    /// A whole answer without any piece.
    fn empty(answer: &AnswerInfo) -> Self::Whole;
    fn append(whole: &mut Self::Whole, piece: Self::Piece);
}

/// What an answer has besides its choices.
#[derive(Debug)]
pub(super) struct AnswerInfo {
    pub id: String,
    /// In seconds since the Unix epoch.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Tokens of each choice's prompt.
    pub prompt_tokens: Vec<usize>,
    /// Of the choices that have finished.
    pub usage: Usage,
    /// Whether the client wants usage in the stream.
    pub include_usage: bool,
}

/// One event of a stream: a server-sent event, or a line of JSON.
#[derive(Debug)]
pub(super) struct Frame {
    /// Name of the server-sent event.
    pub event: Option<&'static str>,
    /// One line.
    pub data: String,
}

impl Frame {
    pub(super) fn json(event: Option<&'static str>, data: &impl Serialize) -> Frame {
        // Fails only for types that JSON cannot represent; these are plain structs.
        Frame { event, data: serde_json::to_string(data).unwrap_or_default() }
    }
}

impl AnswerInfo {
    /// The number of choices, over all prompts.
    pub(super) fn choices(&self) -> usize {
        self.prompt_tokens.len()
    }
}
