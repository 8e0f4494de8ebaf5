//! Prompts with the parameters of a request, as the engine takes them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chat::{Decoder, grammar::Source, thinking::TaskKind};
use engine::{CacheSalt, Constraint, Permit};
use mcp::Cancel;

use crate::{
    generate::Generation,
    model::{AnswerParams, DecodingLimits, Model, Prompt, PromptError},
    server::openai::{AnswerFormat, GenerateParams, error::ApiError, prompt_error},
};

/// Most bytes of generated events buffered for a client that does not read.
const MAX_UNREAD_BYTES: usize = 32 << 20;
/// Most time for decoding the images of one request: meanwhile those of others wait.
const DECODING_TIMEOUT: Duration = Duration::from_secs(30);

/// Submits the prompts of one request: all at once, or one step after the other.
#[derive(Clone)]
pub(super) struct Submitter {
    pub model: Arc<Model>,
    pub params: GenerateParams,
    pub permit: Arc<Permit>,
    pub deadline: Option<Instant>,
    /// Ends the decoding of images.
    pub cancel: Cancel,
    pub cache_salt: Option<CacheSalt>,
    /// The request's field with the prompt.
    pub field: &'static str,
}

impl Submitter {
    /// # Errors
    /// A constraint cannot be honoured, or the engine rejects a prompt.
    pub(super) fn submit(&self, prompts: &[Prompt]) -> Result<Generation, ApiError> {
        let constraints = constraints(&self.model, prompts, &self.params)?;
        let limits = DecodingLimits {
            timeout: Some(DECODING_TIMEOUT),
            deadline: self.deadline,
            cancel: self.cancel.clone(),
        };
        let encoded = EncodedPrompt::all(&self.model, prompts, &constraints, &limits);
        let requests =
            encoded.and_then(|encoded| requests(&self.model, &encoded, &self.params, self.deadline));
        let mut requests = requests.map_err(|error| prompt_error(&error, self.field))?;
        requests.iter_mut().for_each(|(request, _)| request.cache_salt = self.cache_salt);
        Generation::start_in(&self.permit, &self.model.engine, requests, MAX_UNREAD_BYTES)
            .map_err(|error| ApiError::from_engine(&error, self.field))
    }
}

/// The constraint on the answers to each prompt.
fn constraints(
    model: &Model,
    prompts: &[Prompt],
    params: &GenerateParams,
) -> Result<Vec<Option<Arc<dyn Constraint>>>, ApiError> {
    let constraint = |prompt: &Prompt| match (&params.format, &params.tools) {
        (Some(AnswerFormat { source, field }), None) => {
            let constraint = model.format_constraint(prompt, source);
            constraint.map(Some).map_err(|error| prompt_error(&error, field))
        }
        (format, Some(tools)) => {
            let format = format.as_ref().map(|format| &format.source);
            let constraint = model.tool_constraint(prompt, tools, format);
            constraint.map_err(|error| prompt_error(&error, "tools"))
        }
        (None, None) => Ok(None),
    };
    prompts.iter().map(constraint).collect()
}

/// A prompt with everything that its choices share.
struct EncodedPrompt<'a> {
    prompt: &'a Prompt,
    images: Vec<engine::Image>,
    constraint: &'a Option<Arc<dyn Constraint>>,
}

impl<'a> EncodedPrompt<'a> {
    /// Decodes the images of prompts.
    ///
    /// # Errors
    /// A file is damaged, or the limits are passed.
    fn all(
        model: &Model,
        prompts: &'a [Prompt],
        constraints: &'a [Option<Arc<dyn Constraint>>],
        limits: &DecodingLimits,
    ) -> Result<Vec<EncodedPrompt<'a>>, PromptError> {
        let encoded = prompts.iter().zip(constraints).map(|(prompt, constraint)| {
            Ok(EncodedPrompt { images: model.load_images(prompt, limits)?, prompt, constraint })
        });
        encoded.collect()
    }
}

/// Each prompt `n` times. Seeds count up over all choices, so that no two choices share one.
fn requests(
    model: &Model,
    prompts: &[EncodedPrompt],
    params: &GenerateParams,
    deadline: Option<Instant>,
) -> Result<Vec<(engine::Request, Decoder)>, PromptError> {
    let first = model.request(Vec::new(), &params.overrides).sampling.seed;
    let kind = task_kind(params);
    let choice = |(index, EncodedPrompt { prompt, images, constraint }): (usize, &EncodedPrompt)| {
        let answer = AnswerParams {
            overrides: &params.overrides,
            images,
            thinking: &params.thinking,
            ignore_eos: params.ignore_eos,
            stop: params.stop.clone(),
            kind,
            constraint: (*constraint).clone(),
            tools: params.tools.as_ref(),
        };
        let (mut request, decoder) = model.answer(prompt, answer)?;
        request.sampling.seed = first.wrapping_add(index as u64);
        request.stop_token_ids = params.stop_token_ids.clone();
        request.logprobs = params.logprobs;
        request.prompt_logprobs = params.prompt_logprobs;
        (request.priority, request.deadline) = (params.priority, deadline);
        request.speculation = params.speculation.clone();
        Ok((request, decoder))
    };
    let choices = prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, params.n));
    choices.enumerate().map(choice).collect()
}

/// The task that a request's fields show.
fn task_kind(params: &GenerateParams) -> Option<TaskKind> {
    match (&params.format, &params.tools) {
        (Some(AnswerFormat { source: Source::JsonSchema(_) | Source::JsonObject, .. }), _) => {
            Some(TaskKind::Json)
        }
        (Some(_), _) => Some(TaskKind::Format),
        (None, Some(_)) => Some(TaskKind::ToolCall),
        (None, None) => None,
    }
}
