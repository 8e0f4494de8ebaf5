//! A request being answered, generated or replayed. A whole response is folded from the pieces that
//! a stream sends.

mod request;
mod stream;
mod submitter;
mod tool_loop;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json,
    http::HeaderName,
    response::{IntoResponse, Response},
};
use chat::volatile_lines::VolatileLine;
use engine::Lossy;
use mcp::Cancel;

pub(super) use self::{request::ParsedRequest, stream::NDJSON, tool_loop::CancelOnDrop};
use self::{submitter::Submitter, tool_loop::ToolLoop};
use super::{
    Server,
    active_requests::{ActiveGuard, CancelFn},
    format::{AnswerInfo, ApiFormat},
    idempotency::{Claim, Recorder, Recording},
    metrics::{Outcome, OutcomeGuard},
    models::ModelLease,
    openai::{
        self, GenerateParams, Reply, ValidRequest,
        error::ApiError,
        mcp::ToolEvent,
        usage::{self, MissContext, ThinkingUsage, Usage},
    },
    preparation::ImageCharge,
    unix_seconds,
};
use crate::{
    generate::{ChoiceEvent, Finish, Generation},
    model::{Model, Prompt},
    sampling,
};

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
    /// Steps with calls of MCP tools between them.
    Steps {
        tools: Box<ToolLoop>,
        /// Held to the end: each step decodes the images anew.
        _images: Option<ImageCharge>,
        _running: RunningChoices,
        _active: ActiveGuard,
    },
    /// The stored answer of an earlier request.
    Replayed(VecDeque<(usize, ChoiceEvent)>),
}

/// Next event of an answer.
enum AnswerEvent {
    Choice(usize, ChoiceEvent),
    /// A step has ended, and calls of tools follow.
    StepEnded(Box<Finish>),
    /// Another step begins, with a prompt of this many tokens.
    StepBegun(usize),
    Tool(ToolEvent),
}

impl<F: ApiFormat> Completion<F> {
    /// Renders, encodes and submits the prompts: CPU-bound work, which does not belong on an async
    /// thread. Images are decoded until the client has `disconnected`.
    ///
    /// # Errors
    /// A prompt is not valid, or the engine rejects the request.
    pub(super) fn start(
        request: ParsedRequest<F>,
        claim: Option<Claim>,
        outcome: Arc<OutcomeGuard>,
        disconnected: Cancel,
    ) -> Result<Completion<F>, ApiError> {
        match claim {
            Some(Claim::Replay(recording)) => Completion::replay(request, &recording, outcome),
            Some(Claim::New(recorder)) => {
                Completion::generate(request, Some(recorder), outcome, disconnected)
            }
            None => Completion::generate(request, None, outcome, disconnected),
        }
    }

    fn generate(
        request: ParsedRequest<F>,
        recorder: Option<Recorder>,
        outcome: Arc<OutcomeGuard>,
        disconnected: Cancel,
    ) -> Result<Completion<F>, ApiError> {
        let ParsedRequest { server, valid, tenant, deadline, image_charge, .. } = request;
        let ValidRequest { mut prompts, mut params, .. } = valid;
        // Before any work: a full server refuses at once.
        let permit =
            server.model.engine.acquire().map_err(|error| ApiError::from_engine(&error, F::PROMPT))?;
        if let Some((mcp, conversation)) = F::mcp(&mut prompts) {
            params.tools = mcp.offer(&server.model, conversation, F::LISTS_MCP_SERVERS)?;
        }
        let (mut format, prompts) = F::prepare(&server.model, prompts, &params)?;
        let submitter = Submitter {
            model: server.model.clone(),
            params: params.clone(),
            permit,
            deadline,
            cancel: disconnected,
            cache_salt: tenant.prefix_salt(),
            field: F::PROMPT,
        };
        let id = format!("{}{:016x}", F::ID_PREFIX, sampling::random());
        let answer = answer_info(&server, &params, &prompts, id, unix_seconds());
        outcome.log().set_model(server.name());
        outcome.log().add_prompt_tokens(prompts.iter().map(|prompt| prompt.ids.len()).sum());
        let ids = [outcome.log().id().to_owned(), answer.id.clone()];
        let running = || RunningChoices::new(&server.common.running, answer.choices());
        let activate = |cancel: CancelFn| server.common.active.insert(ids, tenant.client, cancel);
        let source = match (format.take_tool_plan(), server.common.mcp.get()) {
            (Some(plan), Some(access)) => {
                let tools = ToolLoop::start(submitter, plan, access, &prompts)?;
                let active = activate(tools.canceller());
                let (tools, images) = (Box::new(tools), image_charge);
                Events::Steps { tools, _images: images, _running: running(), _active: active }
            }
            _ => {
                let generation = submitter.submit(&prompts)?;
                let canceller = generation.canceller();
                let active = activate(Box::new(move || canceller.cancel()));
                let images = image_charge;
                Events::Live { generation, recorder, images, _running: running(), _active: active }
            }
        };
        let prompts = prompts.into_iter().map(|prompt| prompt.ids).collect();
        Ok(Completion { format, source, params, prompts, answer, outcome, server })
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

    /// The next event of any choice; `None` when all have finished. It may be dropped before it is
    /// ready, and loses nothing.
    async fn next(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        let (generation, recorder) = match &mut self.source {
            Events::Replayed(events) => {
                return events.pop_front().map(|(choice, event)| Ok(AnswerEvent::Choice(choice, event)));
            }
            Events::Steps { tools, .. } => return tools.next().await,
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
        Some(match next? {
            Ok((choice, event)) => Ok(AnswerEvent::Choice(choice, event)),
            Err(error) => Err(ApiError::from_engine(&error, F::PROMPT)),
        })
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut whole = F::empty(&self.answer);
        self.format.begin(&self.answer).into_iter().for_each(|piece| F::append(&mut whole, piece));
        while let Some(event) = self.next().await {
            self.pieces(event?).into_iter().for_each(|piece| F::append(&mut whole, piece));
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
            Events::Live { .. } | Events::Steps { .. } => Outcome::Answered,
            Events::Replayed(_) => Outcome::Replayed,
        });
    }

    fn pieces(&mut self, event: AnswerEvent) -> Vec<F::Piece> {
        match event {
            AnswerEvent::Choice(index, event) => self.choice_pieces(index, event),
            AnswerEvent::StepEnded(finish) => {
                self.outcome.log().add_answer_tokens(finish.tokens.len());
                self.add_usage(0, &finish);
                vec![]
            }
            AnswerEvent::StepBegun(prompt_tokens) => {
                self.outcome.log().add_prompt_tokens(prompt_tokens);
                vec![]
            }
            AnswerEvent::Tool(event) => {
                if let ToolEvent::Done { output, .. } = &event {
                    let usage = self.answer.usage.lanner.mcp.get_or_insert_default();
                    usage.calls += 1;
                    usage.result_bytes += output.as_ref().map_or_else(String::len, String::len);
                }
                self.format.on_tool(&self.answer, event)
            }
        }
    }

    fn choice_pieces(&mut self, index: usize, event: ChoiceEvent) -> Vec<F::Piece> {
        let is_new = !matches!(self.source, Events::Replayed(_));
        if let Some(tokens) = event.tokens().filter(|_| is_new) {
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
            self.add_usage(index, finish);
            self.outcome.log().set_finish_reason(openai::finish_reason(finish.reason));
        }
        self.format.on_event(&self.answer, index, event)
    }
}

impl<F: ApiFormat> Completion<F> {
    /// Adds what a choice, or a step of it, took.
    fn add_usage(&mut self, index: usize, finish: &Finish) {
        let (prompt, choice) = (index / self.params.n, index % self.params.n);
        let usage = &mut self.answer.usage;
        match &self.source {
            Events::Steps { tools, .. } => {
                usage.add_step(finish, |at| miss_context(&self.server.model, tools.prompt(), at));
            }
            _ => {
                let context = |at: usize| miss_context(&self.server.model, &self.prompts[prompt], at);
                usage.add(finish, choice == 0, context);
            }
        }
        self.outcome.log().set_usage(usage);
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
