//! How both routes write their answers: lines of JSON, the last with durations.

use std::{
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use chat::Delta;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    answer::{AnswerEnd, AnswerPart, Line, ToolCall, ToolFunction},
    request::{ChatBody, GenerateBody, GeneratePrompt},
};
use crate::{
    generate::{ChoiceEvent, Reason, Token},
    model::{Conversation, Model, Prompt},
    server::{
        format::{AnswerInfo, ApiFormat, Frame},
        openai::{
            GenerateParams, OpenAi, ValidRequest, chat::TokenLogprob, completions::CompletionFormat,
            error::ApiError, prompt_error,
        },
        protocol::Protocol,
    },
};

/// A route that generates.
pub(super) trait Route: Sized + Send + 'static {
    type Body: DeserializeOwned + TryInto<ValidRequest<Self::Prompts>, Error = ApiError>;
    type Prompts: Send + Sync;

    const PATH: &'static str;
    /// The request's field that holds the prompt.
    const PROMPT: &'static str;
    const IS_CHAT: bool;

    /// The conversation that may have images.
    fn conversation(prompts: &mut Self::Prompts) -> Option<&mut Conversation>;
    /// # Errors
    /// The prompt cannot be rendered or encoded, or is too long.
    fn encode(
        model: &Arc<Model>,
        prompts: Self::Prompts,
        params: &GenerateParams,
    ) -> Result<Vec<Prompt>, ApiError>;
}

/// `/api/chat`.
pub(super) struct ChatRoute;

/// `/api/generate`.
pub(super) struct GenerateRoute;

/// Writes the answer to one request.
pub(super) struct OllamaFormat<R> {
    model: Arc<Model>,
    started: Instant,
    logprobs: bool,
    /// The call whose arguments arrive.
    call: Option<OpenCall>,
    num_calls: usize,
    route: PhantomData<fn() -> R>,
}

struct OpenCall {
    id: String,
    name: String,
    arguments: String,
}

impl Route for ChatRoute {
    type Body = ChatBody;
    type Prompts = Conversation;

    const PATH: &'static str = "/api/chat";
    const PROMPT: &'static str = "messages";
    const IS_CHAT: bool = true;

    fn conversation(conversation: &mut Conversation) -> Option<&mut Conversation> {
        Some(conversation)
    }

    fn encode(
        model: &Arc<Model>,
        conversation: Conversation,
        _: &GenerateParams,
    ) -> Result<Vec<Prompt>, ApiError> {
        turn(model, &conversation, Self::PROMPT)
    }
}

impl Route for GenerateRoute {
    type Body = GenerateBody;
    type Prompts = GeneratePrompt;

    const PATH: &'static str = "/api/generate";
    const PROMPT: &'static str = "prompt";
    const IS_CHAT: bool = false;

    fn conversation(prompt: &mut GeneratePrompt) -> Option<&mut Conversation> {
        match prompt {
            GeneratePrompt::Turn(conversation) => Some(conversation),
            GeneratePrompt::Text(_) => None,
        }
    }

    fn encode(
        model: &Arc<Model>,
        prompt: GeneratePrompt,
        params: &GenerateParams,
    ) -> Result<Vec<Prompt>, ApiError> {
        match prompt {
            GeneratePrompt::Turn(conversation) => turn(model, &conversation, Self::PROMPT),
            GeneratePrompt::Text(prompts) => {
                Ok(OpenAi::<CompletionFormat>::prepare(model, prompts, params)?.1)
            }
        }
    }
}

fn turn(model: &Model, conversation: &Conversation, param: &str) -> Result<Vec<Prompt>, ApiError> {
    let prompt = model.chat_prompt(conversation);
    Ok(vec![prompt.map_err(|error| prompt_error(&error, param))?])
}

impl<R: Route> ApiFormat for OllamaFormat<R> {
    type Request = R::Body;
    type Prompts = R::Prompts;
    type Piece = AnswerPart;
    type Whole = Line;

    const PROTOCOL: Protocol = Protocol::Ollama;
    const ID_PREFIX: &'static str = "ollama-";
    const ROUTE: &'static str = R::PATH;
    const PROMPT: &'static str = R::PROMPT;

    fn conversation(prompts: &mut R::Prompts) -> Option<&mut Conversation> {
        R::conversation(prompts)
    }

    fn prepare(
        model: &Arc<Model>,
        prompts: R::Prompts,
        params: &GenerateParams,
    ) -> Result<(OllamaFormat<R>, Vec<Prompt>), ApiError> {
        let started = Instant::now();
        let prompts = R::encode(model, prompts, params)?;
        let format = OllamaFormat {
            model: model.clone(),
            started,
            logprobs: params.logprobs.is_some(),
            call: None,
            num_calls: 0,
            route: PhantomData,
        };
        Ok((format, prompts))
    }

    fn begin(&mut self, _: &AnswerInfo) -> Vec<AnswerPart> {
        vec![]
    }

    fn on_event(&mut self, answer: &AnswerInfo, _: usize, event: ChoiceEvent) -> Vec<AnswerPart> {
        match event {
            ChoiceEvent::Text { delta: Delta::ToolArguments { arguments, .. }, .. } => {
                self.call.iter_mut().for_each(|call| call.arguments.push_str(&arguments));
                vec![]
            }
            ChoiceEvent::Text { delta: Delta::ToolCall { id, name, .. }, .. } => {
                let before = self.finish_call();
                self.call = Some(OpenCall { id, name, arguments: String::new() });
                before.into_iter().collect()
            }
            ChoiceEvent::Text { delta: Delta::Content(content), tokens } => {
                let logprobs = self.logprobs(tokens);
                let part = AnswerPart { content, logprobs, ..AnswerPart::default() };
                self.finish_call().into_iter().chain([part]).collect()
            }
            ChoiceEvent::Text { delta: Delta::Reasoning(thinking), .. } => {
                vec![AnswerPart { thinking, ..AnswerPart::default() }]
            }
            ChoiceEvent::Finished(finish) => {
                let end = self.end_of(answer, finish.reason);
                self.finish_call()
                    .into_iter()
                    .chain([AnswerPart { end: Some(end), ..AnswerPart::default() }])
                    .collect()
            }
            ChoiceEvent::Prompt(_) | ChoiceEvent::PromptProgress { .. } | ChoiceEvent::Logits { .. } => {
                vec![]
            }
        }
    }

    fn end(&mut self, _: &AnswerInfo) -> Vec<AnswerPart> {
        vec![]
    }

    fn keep_alive(answer: &AnswerInfo) -> Option<Frame> {
        Self::frame(answer, AnswerPart::default())
    }

    fn frame(answer: &AnswerInfo, part: AnswerPart) -> Option<Frame> {
        Some(Frame::json(None, &Line::new(answer, R::IS_CHAT, part)))
    }

    fn empty(answer: &AnswerInfo) -> Line {
        Line::new(answer, R::IS_CHAT, AnswerPart::default())
    }

    fn append(whole: &mut Line, part: AnswerPart) {
        whole.append(part);
    }
}

impl<R: Route> OllamaFormat<R> {
    /// The call whose arguments are complete; one that was cut off is left out.
    fn finish_call(&mut self) -> Option<AnswerPart> {
        let OpenCall { id, name, arguments } = self.call.take()?;
        let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
        let arguments: Map<String, Value> = serde_json::from_str(text).ok()?;
        let function = ToolFunction { index: self.num_calls, name, arguments };
        self.num_calls += 1;
        Some(AnswerPart { tool_calls: vec![ToolCall { id, function }], ..AnswerPart::default() })
    }

    /// Log-probabilities of the content's tokens.
    fn logprobs(&self, tokens: Vec<Token>) -> Option<Vec<TokenLogprob>> {
        let content = tokens.into_iter().filter(|token| !token.reasoning).filter_map(|token| token.logprobs);
        self.logprobs.then(|| content.map(|logprobs| TokenLogprob::new(&self.model, logprobs)).collect())
    }

    fn end_of(&self, answer: &AnswerInfo, reason: Reason) -> AnswerEnd {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (usage, timing) = (&answer.usage, &answer.usage.timing);
        AnswerEnd {
            done_reason: match reason {
                Reason::Stop | Reason::ToolCalls => "stop",
                Reason::Length => "length",
                Reason::Cancelled => "abort",
            },
            total_duration: nanoseconds(self.started.elapsed()),
            load_duration: nanoseconds(timing.waiting),
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: nanoseconds(timing.prompt),
            eval_count: usage.completion_tokens,
            eval_duration: nanoseconds(timing.decode),
        }
    }
}
