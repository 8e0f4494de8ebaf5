//! A request being answered, generated or replayed. A whole response is folded from the pieces that
//! a stream sends.

mod request;
mod stream;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use axum::{
    Json,
    http::HeaderName,
    response::{IntoResponse, Response},
};
use chat::{Decoder, grammar::Source, thinking::TaskKind, volatile_lines::VolatileLine};
use engine::{Constraint, Lossy, RequestError};

pub(super) use self::{request::ParsedRequest, stream::NDJSON};
use super::{
    Server,
    active_requests::ActiveGuard,
    format::{AnswerInfo, ApiFormat},
    idempotency::{Claim, Recorder, Recording},
    metrics::{Outcome, OutcomeGuard},
    models::ModelLease,
    openai::{
        self, AnswerFormat, GenerateParams, Reply, ValidRequest,
        error::ApiError,
        prompt_error,
        usage::{self, MissContext, ThinkingUsage, Usage},
    },
    preparation::ImageCharge,
    unix_seconds,
};
use crate::{
    generate::{ChoiceEvent, Generation},
    model::{AnswerParams, Model, Prompt, PromptError},
    sampling,
};

/// Most bytes of generated events buffered for a client that does not read.
const MAX_UNREAD_BYTES: usize = 32 << 20;
/// Marks a replayed answer; Stripe's name for it.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Why an answer may differ from the model's; streams may have no usage that says so.
const LOSSY: HeaderName = HeaderName::from_static("lanner-lossy");

/// Tokens on either side of a cache miss that usage shows.
const MISS_TEXT_TOKENS: usize = 12;
/// Tokens on either side of a cache miss that are searched for the ends of its line.
const MISS_LINE_TOKENS: usize = 64;

/// The answer to one request. Dropping it, as happens when the client disconnects, cancels the
/// generation.
pub(super) struct Completion<F: ApiFormat> {
    server: ModelLease,
    format: F,
    source: Events,
    params: GenerateParams,
    prompts: Vec<Vec<u32>>,
    answer: AnswerInfo,
    outcome: Arc<OutcomeGuard>,
}

/// Where the events of an answer come from.
enum Events {
    Live {
        generation: Generation,
        recorder: Option<Recorder>,
        /// Held until the engine has read the prompt.
        images: Option<ImageCharge>,
        _running: RunningChoices,
        _active: ActiveGuard,
    },
    /// The stored answer of an earlier request.
    Replayed(VecDeque<(usize, ChoiceEvent)>),
}

impl<F: ApiFormat> Completion<F> {
    /// Renders, encodes and submits the prompts: CPU-bound work, which does not belong on an async
    /// thread.
    ///
    /// # Errors
    /// A prompt is not valid, or the engine rejects the request.
    pub(super) fn start(
        request: ParsedRequest<F>,
        claim: Option<Claim>,
        outcome: Arc<OutcomeGuard>,
    ) -> Result<Completion<F>, ApiError> {
        match claim {
            Some(Claim::Replay(recording)) => Completion::replay(request, &recording, outcome),
            Some(Claim::New(recorder)) => Completion::generate(request, Some(recorder), outcome),
            None => Completion::generate(request, None, outcome),
        }
    }

    fn generate(
        request: ParsedRequest<F>,
        recorder: Option<Recorder>,
        outcome: Arc<OutcomeGuard>,
    ) -> Result<Completion<F>, ApiError> {
        let ParsedRequest { server, valid, tenant, deadline, image_charge, .. } = request;
        let ValidRequest { prompts, params, .. } = valid;
        let engine_error = |error| ApiError::from_engine(&error, F::PROMPT);
        // Before any work: a full server refuses at once.
        let permit = server.model.engine.acquire().map_err(engine_error)?;
        let (format, prompts) = F::prepare(&server.model, prompts, &params)?;
        let constraints = constraints(&server.model, &prompts, &params)?;
        let encoded = EncodedPrompt::all(&server.model, &prompts, &constraints);
        let requests = encoded.and_then(|encoded| requests(&server.model, &encoded, &params, deadline));
        let mut requests = requests.map_err(|error| prompt_error(&error, F::PROMPT))?;
        let cache_salt = tenant.prefix_salt();
        requests.iter_mut().for_each(|(request, _)| request.cache_salt = cache_salt);
        let id = format!("{}{:016x}", F::ID_PREFIX, sampling::random());
        let answer = answer_info(&server, &params, &prompts, id, unix_seconds());
        let generation = Generation::start_in(&permit, &server.model.engine, requests, MAX_UNREAD_BYTES)
            .map_err(engine_error)?;
        let running = RunningChoices::new(&server.common.running, answer.choices());
        outcome.log().set_model(server.name());
        outcome.log().add_prompt_tokens(prompts.iter().map(|prompt| prompt.ids.len()).sum());
        let ids = [outcome.log().id().to_owned(), answer.id.clone()];
        let active = server.common.active.insert(ids, tenant.client, generation.canceller());
        Ok(Completion {
            format,
            source: Events::Live {
                generation,
                recorder,
                images: image_charge,
                _running: running,
                _active: active,
            },
            params,
            prompts: prompts.into_iter().map(|prompt| prompt.ids).collect(),
            answer,
            outcome,
            server,
        })
    }

    fn replay(
        request: ParsedRequest<F>,
        recording: &Recording,
        outcome: Arc<OutcomeGuard>,
    ) -> Result<Completion<F>, ApiError> {
        let ParsedRequest { server, valid: ValidRequest { prompts, params, .. }, .. } = request;
        let (format, prompts) = F::prepare(&server.model, prompts, &params)?;
        outcome.log().set_model(server.name());
        Ok(Completion {
            format,
            source: Events::Replayed(recording.events.clone().into()),
            answer: answer_info(&server, &params, &prompts, recording.id.clone(), recording.created),
            prompts: prompts.into_iter().map(|prompt| prompt.ids).collect(),
            params,
            outcome,
            server,
        })
    }

    /// # Errors
    /// The engine fails before a whole response is complete.
    pub(super) async fn respond(self) -> Result<Response, ApiError> {
        let replayed = matches!(self.source, Events::Replayed(_)).then_some([(REPLAYED, "true")]);
        let info = self.server.model.engine.info();
        let lossy = info.is_lossy(self.params.speculation.as_ref());
        let lossy = lossy.then_some([(LOSSY, usage::lossy(Lossy::SkippedLayers))]);
        let response = match self.params.reply {
            Reply::Whole => self.whole().await?,
            Reply::Stream { .. } => stream::respond(self),
        };
        Ok((replayed, lossy, response).into_response())
    }

    /// The next event of any choice; `None` when all have finished.
    async fn next(&mut self) -> Option<Result<(usize, ChoiceEvent), RequestError>> {
        let (generation, recorder) = match &mut self.source {
            Events::Replayed(events) => return events.pop_front().map(Ok),
            Events::Live { generation, recorder, .. } => (generation, recorder),
        };
        let next = generation.next().await;
        *recorder = match (&next, recorder.take()) {
            (Some(Ok((choice, event))), Some(recorder)) => recorder.push(*choice, event),
            (None, Some(recorder)) => {
                recorder.finish(self.answer.id.clone(), self.answer.created);
                None
            }
            _ => None,
        };
        next
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut whole = F::empty(&self.answer);
        self.format.begin(&self.answer).into_iter().for_each(|piece| F::append(&mut whole, piece));
        while let Some(event) = self.next().await {
            let (index, event) = event.map_err(|error| ApiError::from_engine(&error, F::PROMPT))?;
            self.pieces(index, event).into_iter().for_each(|piece| F::append(&mut whole, piece));
        }
        self.end().into_iter().for_each(|piece| F::append(&mut whole, piece));
        Ok(Json(whole).into_response())
    }

    /// The pieces after the last event.
    fn end(&mut self) -> Vec<F::Piece> {
        self.record_outcome();
        self.format.end(&self.answer)
    }

    /// Records that the whole answer was sent.
    fn record_outcome(&self) {
        self.outcome.record(match self.source {
            Events::Live { .. } => Outcome::Answered,
            Events::Replayed(_) => Outcome::Replayed,
        });
    }

    fn pieces(&mut self, index: usize, event: ChoiceEvent) -> Vec<F::Piece> {
        if let (Events::Live { .. }, Some(tokens)) = (&self.source, event.tokens()) {
            self.outcome.log().add_answer_tokens(tokens.len());
        }
        if matches!(event, ChoiceEvent::Text { .. } | ChoiceEvent::Finished(_)) {
            self.outcome.log().set_first_token();
            if let Events::Live { images, .. } = &mut self.source {
                *images = None;
            }
        }
        let event = match event {
            ChoiceEvent::Text { .. } if self.params.prompt_only => return vec![],
            ChoiceEvent::Finished(finish) if self.params.prompt_only => {
                ChoiceEvent::Finished(finish.prompt_only())
            }
            event => event,
        };
        if let ChoiceEvent::Finished(finish) = &event {
            let (prompt, choice) = (index / self.params.n, index % self.params.n);
            let context = |at: usize| miss_context(&self.server.model, &self.prompts[prompt], at);
            self.answer.usage.add(finish, choice == 0, context);
            self.outcome.log().set_usage(&self.answer.usage);
            self.outcome.log().set_finish_reason(openai::finish_reason(finish.reason));
        }
        self.format.on_event(&self.answer, index, event)
    }
}

fn answer_info(
    server: &Server,
    params: &GenerateParams,
    prompts: &[Prompt],
    id: String,
    created: u64,
) -> AnswerInfo {
    let lengths = prompts.iter().flat_map(|prompt| vec![prompt.ids.len(); params.n]);
    let mut usage = Usage::default();
    usage.lanner.image_tokens = prompts.iter().map(Prompt::num_image_tokens).sum();
    usage.lanner.thinking = prompts.iter().find_map(|prompt| prompt.thinking).map(|decision| {
        let budget = params.thinking.budget.unwrap_or(server.model.thinking.budget);
        ThinkingUsage {
            enabled: decision.enabled,
            rule: decision.rule.name(),
            budget: (decision.enabled && !params.ignore_eos).then_some(budget),
            answer_tokens: 0,
            cut: None,
        }
    });
    AnswerInfo {
        id,
        created,
        model: server.name().to_owned(),
        prompt_tokens: lengths.collect(),
        usage,
        include_usage: matches!(params.reply, Reply::Stream { include_usage: true }),
    }
}

/// The prompt's text around token `at`.
pub(crate) fn miss_context(model: &Model, ids: &[u32], at: usize) -> MissContext {
    let around = |tokens: usize| {
        let [start, end] = [at.saturating_sub(tokens), at + tokens].map(|end| end.min(ids.len()));
        [&ids[start..at.min(ids.len())], &ids[at.min(ids.len())..end]]
    };
    let [before, after] = around(MISS_LINE_TOKENS).map(|ids| model.decode(ids));
    MissContext {
        text: model.decode(&around(MISS_TEXT_TOKENS).concat()),
        volatile_line: VolatileLine::at(&(before.clone() + &after), before.len()),
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
    /// A file is damaged, or takes too long.
    fn all(
        model: &Model,
        prompts: &'a [Prompt],
        constraints: &'a [Option<Arc<dyn Constraint>>],
    ) -> Result<Vec<EncodedPrompt<'a>>, PromptError> {
        let encoded = prompts.iter().zip(constraints).map(|(prompt, constraint)| {
            Ok(EncodedPrompt { images: model.load_images(prompt)?, prompt, constraint })
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

/// Counts choices while they are generated, and texts while they are embedded, for /health.
pub(super) struct RunningChoices {
    count: Arc<AtomicUsize>,
    choices: usize,
}

impl RunningChoices {
    pub(super) fn new(count: &Arc<AtomicUsize>, choices: usize) -> RunningChoices {
        count.fetch_add(choices, Ordering::Relaxed);
        RunningChoices { count: count.clone(), choices }
    }
}

impl Drop for RunningChoices {
    fn drop(&mut self) {
        self.count.fetch_sub(self.choices, Ordering::Relaxed);
    }
}
