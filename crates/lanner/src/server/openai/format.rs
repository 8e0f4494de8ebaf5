//! How both completion routes write their answers: chunks and whole responses in one envelope, over
//! the choices of each route.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use engine::RequestError;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    error::ApiError,
    mcp::{McpRequest, ToolEvent, ToolPlan},
    params::{GenerateParams, ValidRequest},
    usage::{Timings, Usage},
};
use crate::{
    generate::{ChoiceEvent, Reason},
    model::{Conversation, Model, Prompt, PromptError},
    server::{
        format::{AnswerInfo, ApiFormat, Frame},
        protocol::Protocol,
    },
};

/// The choices of one route.
pub(crate) trait ChoiceFormat: Sized + Send + 'static {
    type Request: DeserializeOwned + TryInto<ValidRequest<Self::Prompts>, Error = ApiError>;
    type Prompts: Send + Sync;
    /// The part of a choice in one chunk of a stream.
    type Piece: Serialize + Send;
    /// A whole choice, folded from pieces.
    type Choice: Serialize + Send;

    const ID_PREFIX: &'static str;
    /// `object` of a chunk.
    const CHUNK: &'static str;
    /// `object` of a whole response.
    const WHOLE: &'static str;
    /// The request's field that holds the prompt.
    const PROMPT: &'static str;

    /// The conversation that may have images.
    fn conversation(_: &mut Self::Prompts) -> Option<&mut Conversation> {
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
    /// The MCP tools that the request asks for, and the conversation that is to offer them.
    fn mcp(_: &mut Self::Prompts) -> Option<(&mut McpRequest, &mut Conversation)> {
        None
    }
    /// The calls of MCP tools that the answer makes, if it may; asked once.
    fn take_tool_plan(&mut self) -> Option<ToolPlan> {
        None
    }
    /// The piece of what happens to a call of an MCP tool.
    fn tool_piece(&mut self, _: ToolEvent) -> Option<Self::Piece> {
        None
    }
    /// The piece before a choice's first token.
    fn first_piece(&mut self, choice: usize) -> Option<Self::Piece>;
    fn piece(&mut self, choice: usize, event: ChoiceEvent) -> Option<Self::Piece>;
    fn empty_choice(index: usize) -> Self::Choice;
    fn append(choice: &mut Self::Choice, piece: Self::Piece);
}

/// Puts the choices of a route into OpenAI's envelope.
pub(crate) struct OpenAi<F> {
    format: F,
    unfinished: usize,
    return_progress: bool,
    /// When the first prompt was begun.
    started: Option<Instant>,
}

pub(crate) enum Chunk<P> {
    /// The index of a choice, a part of it, and after the last token of all choices the timings.
    Choice(usize, P, Option<Box<Timings>>),
    Progress(PromptProgress),
    Usage(Box<Usage>),
    Done,
}

/// llama-server's progress of a prompt, and the choice that has it.
#[derive(JsonSchema, Serialize)]
pub(crate) struct PromptProgress {
    index: usize,
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

/// A chunk, or a whole response.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "{C}Envelope")]
pub(crate) struct Envelope<C> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<C>,
    /// Omitted; or null in every chunk but the last; or the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Box<Usage>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Box<Timings>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<PromptProgress>,
}

impl<C> Envelope<C> {
    fn new(answer: &AnswerInfo, object: &'static str, choices: Vec<C>) -> Envelope<C> {
        let (id, created, model) = (answer.id.clone(), answer.created, answer.model.clone());
        Envelope { id, object, created, model, choices, usage: None, timings: None, prompt_progress: None }
    }
}

impl<F: ChoiceFormat> ApiFormat for OpenAi<F> {
    type Request = F::Request;
    type Prompts = F::Prompts;
    type Piece = Chunk<F::Piece>;
    type Whole = Envelope<F::Choice>;

    const PROTOCOL: Protocol = Protocol::OpenAi;
    const ID_PREFIX: &'static str = F::ID_PREFIX;
    const ROUTE: &'static str = F::WHOLE;
    const PROMPT: &'static str = F::PROMPT;

    fn conversation(prompts: &mut F::Prompts) -> Option<&mut Conversation> {
        F::conversation(prompts)
    }

    fn prepare(
        model: &Arc<Model>,
        prompts: F::Prompts,
        params: &GenerateParams,
    ) -> Result<(OpenAi<F>, Vec<Prompt>), ApiError> {
        let (format, prompts) = F::prepare(model, prompts, params)?;
        let (unfinished, return_progress) = (prompts.len() * params.n, params.return_progress);
        Ok((OpenAi { format, unfinished, return_progress, started: None }, prompts))
    }

    fn mcp(prompts: &mut F::Prompts) -> Option<(&mut McpRequest, &mut Conversation)> {
        F::mcp(prompts)
    }

    fn take_tool_plan(&mut self) -> Option<ToolPlan> {
        self.format.take_tool_plan()
    }

    fn on_tool(&mut self, _: &AnswerInfo, event: ToolEvent) -> Vec<Chunk<F::Piece>> {
        self.format.tool_piece(event).map(|piece| Chunk::Choice(0, piece, None)).into_iter().collect()
    }

    fn begin(&mut self, answer: &AnswerInfo) -> Vec<Chunk<F::Piece>> {
        let first = |choice| Some(Chunk::Choice(choice, self.format.first_piece(choice)?, None));
        (0..answer.choices()).filter_map(first).collect()
    }

    fn on_event(&mut self, answer: &AnswerInfo, choice: usize, event: ChoiceEvent) -> Vec<Chunk<F::Piece>> {
        if let ChoiceEvent::PromptProgress { processed, cached } = event {
            return self.progress(answer, choice, processed, cached).into_iter().collect();
        }
        self.unfinished -= usize::from(matches!(event, ChoiceEvent::Finished(_)));
        let timings = (self.unfinished == 0).then(|| Box::new(answer.usage.timings()));
        let piece = self.format.piece(choice, event);
        piece.map(|piece| Chunk::Choice(choice, piece, timings)).into_iter().collect()
    }

    fn end(&mut self, answer: &AnswerInfo) -> Vec<Chunk<F::Piece>> {
        vec![Chunk::Usage(Box::new(answer.usage.clone())), Chunk::Done]
    }

    fn frame(answer: &AnswerInfo, piece: Chunk<F::Piece>) -> Option<Frame> {
        let mut envelope = Envelope::new(answer, F::CHUNK, vec![]);
        envelope.usage = answer.include_usage.then_some(None);
        match piece {
            Chunk::Choice(_, piece, timings) => {
                envelope.choices.push(piece);
                envelope.timings = timings;
            }
            Chunk::Progress(progress) => envelope.prompt_progress = Some(progress),
            Chunk::Usage(_) if !answer.include_usage => return None,
            Chunk::Usage(usage) => envelope.usage = Some(Some(usage)),
            Chunk::Done => return Some(Frame { event: None, data: "[DONE]".into() }),
        }
        Some(Frame::json(None, &envelope))
    }

    fn empty(answer: &AnswerInfo) -> Envelope<F::Choice> {
        Envelope::new(answer, F::WHOLE, (0..answer.choices()).map(F::empty_choice).collect())
    }

    fn append(whole: &mut Envelope<F::Choice>, piece: Chunk<F::Piece>) {
        match piece {
            Chunk::Choice(index, piece, timings) => {
                F::append(&mut whole.choices[index], piece);
                whole.timings = timings.or(whole.timings.take());
            }
            Chunk::Usage(usage) => whole.usage = Some(Some(usage)),
            Chunk::Progress(_) | Chunk::Done => {}
        }
    }
}

impl<F: ChoiceFormat> OpenAi<F> {
    fn progress(
        &mut self,
        answer: &AnswerInfo,
        choice: usize,
        processed: usize,
        cached: usize,
    ) -> Option<Chunk<F::Piece>> {
        let started = *self.started.get_or_insert_with(Instant::now);
        self.return_progress.then(|| {
            Chunk::Progress(PromptProgress {
                index: choice,
                total: answer.prompt_tokens[choice],
                cache: cached,
                processed,
                time_ms: started.elapsed().as_millis() as u64,
            })
        })
    }
}

/// The error of a prompt; `param` is the field that held it.
pub fn prompt_error(error: &PromptError, param: &str) -> ApiError {
    match error {
        PromptError::TooLong { bytes, most, context } => {
            let rest = format!("it has {bytes} bytes, of which the context holds at most {most}; shorten it");
            ApiError::context_exceeded(param, *context, &rest)
        }
        PromptError::Tools(invalid) => ApiError::invalid(&invalid.field, error.to_string()),
        PromptError::Image(refused) => refused.clone().into(),
        PromptError::NoVision(_) => ApiError::invalid(param, error.to_string()).code("unsupported_image"),
        PromptError::TimeIsUp => ApiError::from_engine(&RequestError::TimeIsUp, param),
        PromptError::NoToolDialect(_) => ApiError::invalid("tools", error.to_string()),
        PromptError::Text(chat::Error::RenderMemoryInUse) => {
            let busy = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).code("busy");
            ApiError { retry_after: Some(Duration::from_secs(1)), ..busy }
        }
        error if error.is_request_error() => ApiError::invalid(param, error.to_string()),
        error => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::ToolCalls => "tool_calls",
        Reason::Length => "length",
        // vLLM's name; OpenAI has none for an answer that the server cancelled.
        Reason::Cancelled => "abort",
    }
}

/// JSON has no infinity; OpenAI writes -9999 for impossible tokens. Widened so that equal values
/// print alike everywhere.
pub(super) fn finite(logprob: f32) -> f64 {
    f64::from(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_reason_of_cancelled_is_abort() {
        let reasons = [Reason::Stop, Reason::ToolCalls, Reason::Length, Reason::Cancelled].map(finish_reason);
        assert_eq!(reasons, ["stop", "tool_calls", "length", "abort"]);
    }
}
