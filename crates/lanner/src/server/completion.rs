//! One request from read to answered. The whole answer is a fold over the pieces that a stream would send.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json,
    http::{HeaderName, StatusCode},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use chat::{Decoder, spoilers::Spoiler};
use engine::{Lossy, RequestError};
use futures_util::stream;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Server,
    idempotency::{Claim, Fingerprint, KeyReused, Recorder, Recording},
    metrics::{Outcome, OutcomeGuard},
    openai::{
        self, GenerateParams, Reply, ValidRequest,
        error::{ApiError, ErrorObject},
        usage::{self, MissContext, Usage},
    },
    shutdown::{self, ShutdownWatch},
    unix_seconds,
};
use crate::{
    generate::{ChoiceEvent, Generation},
    model::{Model, Prompt, PromptError},
    sampling,
};

/// So that proxies do not give up on a request that waits or reads a long prompt.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Most bytes of generated events buffered for a client that does not read.
const MOST_UNREAD: usize = 32 << 20;
/// Marks an answer that was given before; Stripe's name for it.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Says that an answer may be another than the model's, and why: streams need not have a usage that does.
const LOSSY: HeaderName = HeaderName::from_static("lanner-lossy");

/// Tokens on either side that are shown of a place in a prompt.
const AROUND: usize = 12;
/// Tokens on either side in which the ends of a line are looked for.
const LINE: usize = 64;

/// How one wire words requests and answers.
pub trait ApiFormat: Sized + Send + 'static {
    type Request: DeserializeOwned + TryInto<ValidRequest<Self::Prompts>, Error = ApiError>;
    type Prompts: Send + Sync;
    /// What a chunk says about one choice.
    type Piece: Serialize + Send;
    /// A whole choice, made of pieces.
    type Choice: Serialize + Send;

    const ID_PREFIX: &'static str;
    const CHUNK: &'static str;
    const WHOLE: &'static str;
    /// The request's field that holds the prompt.
    const PROMPT: &'static str;

    /// Token ids for each prompt, and the state that writing the answer needs.
    fn begin(
        model: &Arc<Model>,
        prompts: Self::Prompts,
        params: &GenerateParams,
    ) -> Result<(Self, Vec<Prompt>), ApiError>;
    /// What a choice says before its first token.
    fn open(&mut self, choice: usize) -> Option<Self::Piece>;
    fn write(&mut self, choice: usize, step: ChoiceEvent) -> Option<Self::Piece>;
    fn choice(index: usize) -> Self::Choice;
    fn fold(choice: &mut Self::Choice, piece: Self::Piece);
}

/// A valid request.
pub struct ParsedRequest<F: ApiFormat> {
    server: Arc<Server>,
    valid: ValidRequest<F::Prompts>,
    /// Of a request with an idempotency key.
    fingerprint: Option<Fingerprint>,
    deadline: Option<Instant>,
}

/// A request that is being answered. Dropping it, as happens when the client goes, cancels the generation.
pub struct Completion<F: ApiFormat> {
    server: Arc<Server>,
    format: F,
    steps: Steps,
    params: GenerateParams,
    prompts: Vec<Vec<u32>>,
    /// All prompts' choices.
    choices: usize,
    usage: Usage,
    id: String,
    created: u64,
    outcome: Arc<OutcomeGuard>,
}

/// Where an answer comes from.
enum Steps {
    Live {
        generation: Generation,
        recorder: Option<Recorder>,
        _running: Running,
    },
    /// From an earlier answer.
    Replayed(VecDeque<(usize, ChoiceEvent)>),
}

/// A chunk, or a whole answer.
#[derive(Serialize)]
struct Envelope<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    /// Left out, or null in every chunk but the last, or there.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

impl<F: ApiFormat> ParsedRequest<F> {
    /// # Errors
    /// 400: the body is not what this route takes, or asks for what cannot be done. 404: another model's name.
    pub fn parse(server: Arc<Server>, body: &[u8], arrived: Instant) -> Result<ParsedRequest<F>, ApiError> {
        let request: F::Request = openai::parse(body)?;
        let valid: ValidRequest<F::Prompts> = request.try_into()?;
        server.check_model(valid.model.as_deref())?;
        if valid.idempotency.is_some() && !valid.params.is_repeatable(server.model.engine.info()) {
            let message = "idempotency_key only goes with a seed or `temperature: 0`";
            return Err(ApiError::invalid("idempotency_key", message));
        }
        let lossy = server.model.engine.info().is_lossy(valid.params.speculation.as_ref());
        let fingerprint = valid.idempotency.as_ref().map(|_| openai::fingerprint(F::WHOLE, body, lossy));
        let deadline = valid.params.timeout.and_then(|timeout| arrived.checked_add(timeout));
        Ok(ParsedRequest { server, valid, fingerprint, deadline })
    }

    /// What is to be done for its idempotency key, if it has one; waits while another request with the key is answered.
    ///
    /// # Errors
    /// 400: another request had the key. 504: the request's time is up.
    pub async fn claim(&self) -> Result<Option<Claim>, ApiError> {
        let (Some(idempotency), Some(fingerprint)) = (&self.valid.idempotency, &self.fingerprint) else {
            return Ok(None);
        };
        let claim = self.server.idempotency.claim(&idempotency.key, fingerprint.clone(), idempotency.ttl);
        let claim = match self.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), claim)
                .await
                .map_err(|_| ApiError::from_engine(&RequestError::TimeIsUp, F::PROMPT))?,
            None => claim.await,
        };
        match claim {
            Ok(claim) => Ok(Some(claim)),
            Err(KeyReused) => Err(ApiError::key_reused()),
        }
    }
}

impl<F: ApiFormat> Completion<F> {
    /// Renders, encodes and submits: processor work, which does not belong on an async thread.
    pub fn start(
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
        let ParsedRequest { server, valid: ValidRequest { prompts, params, .. }, deadline, .. } = request;
        let engine_error = |error| ApiError::from_engine(&error, F::PROMPT);
        // Before any work: a full server has none to spare.
        let place = server.model.engine.enter().map_err(engine_error)?;
        let (format, prompts) = F::begin(&server.model, prompts, &params)?;
        let requests = requests(&server.model, &prompts, &params, deadline)
            .map_err(|error| prompt_error(&error, F::PROMPT))?;
        let choices = requests.len();
        let generation = Generation::start_in(&place, &server.model.engine, requests, MOST_UNREAD)
            .map_err(engine_error)?;
        let running = Running::new(&server.running, choices);
        Ok(Completion {
            format,
            steps: Steps::Live { generation, recorder, _running: running },
            params,
            prompts: prompts.into_iter().map(|prompt| prompt.ids).collect(),
            choices,
            usage: Usage::default(),
            id: format!("{}{:016x}", F::ID_PREFIX, sampling::random()),
            created: unix_seconds(),
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
        let (format, prompts) = F::begin(&server.model, prompts, &params)?;
        Ok(Completion {
            format,
            steps: Steps::Replayed(recording.steps.clone().into()),
            choices: prompts.len() * params.n,
            prompts: prompts.into_iter().map(|prompt| prompt.ids).collect(),
            params,
            usage: Usage::default(),
            id: recording.id.clone(),
            created: recording.created,
            outcome,
            server,
        })
    }

    pub async fn respond(self) -> Result<Response, ApiError> {
        let replayed = matches!(self.steps, Steps::Replayed(_)).then_some([(REPLAYED, "true")]);
        let info = self.server.model.engine.info();
        let lossy = info.is_lossy(self.params.speculation.as_ref());
        let lossy = lossy.then_some([(LOSSY, usage::lossy(Lossy::SkippedLayers))]);
        let response = match self.params.reply {
            Reply::Whole => self.whole().await?,
            Reply::Stream { include_usage } => self.stream(include_usage),
        };
        Ok((replayed, lossy, response).into_response())
    }

    /// The next step of any choice; `None` when all have finished.
    async fn next(&mut self) -> Option<Result<(usize, ChoiceEvent), RequestError>> {
        let (generation, recorder) = match &mut self.steps {
            Steps::Replayed(steps) => return steps.pop_front().map(Ok),
            Steps::Live { generation, recorder, .. } => (generation, recorder),
        };
        let next = generation.next().await;
        *recorder = match (&next, recorder.take()) {
            (Some(Ok((choice, step))), Some(recorder)) => recorder.push(*choice, step),
            (None, Some(recorder)) => {
                recorder.finish(self.id.clone(), self.created);
                None
            }
            _ => None,
        };
        next
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut choices: Vec<F::Choice> = (0..self.choices).map(F::choice).collect();
        for (index, choice) in choices.iter_mut().enumerate() {
            self.format.open(index).into_iter().for_each(|piece| F::fold(choice, piece));
        }
        while let Some(step) = self.next().await {
            let (index, step) = step.map_err(|error| ApiError::from_engine(&error, F::PROMPT))?;
            self.piece(index, step).into_iter().for_each(|piece| F::fold(&mut choices[index], piece));
        }
        let usage = self.usage.take();
        self.record_outcome();
        Ok(Json(self.envelope(F::WHOLE, choices, Some(Some(usage)))).into_response())
    }

    fn stream(mut self, include_usage: bool) -> Response {
        let opening = (0..self.choices).filter_map(|index| self.format.open(index)).collect::<Vec<_>>();
        let chunk = |piece| event(&self.envelope(F::CHUNK, vec![piece], include_usage.then_some(None)));
        let ready = opening.into_iter().map(chunk);
        let (ready, shutdown) = (ready.collect(), self.server.shutdown.watch());
        let events = Events { ready, include_usage, ended: false, shutdown, completion: self };
        let events = stream::unfold(events, |mut events| async {
            events.next().await.map(|event| (Ok::<_, Infallible>(event), events))
        });
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    }

    /// It has been given whole.
    fn record_outcome(&self) {
        self.outcome.record(match self.steps {
            Steps::Live { .. } => Outcome::Answered,
            Steps::Replayed(_) => Outcome::Replayed,
        });
    }

    fn piece(&mut self, index: usize, step: ChoiceEvent) -> Option<F::Piece> {
        let step = match step {
            ChoiceEvent::Text { .. } if self.params.prompt_only => return None,
            ChoiceEvent::Finished(finish) if self.params.prompt_only => {
                ChoiceEvent::Finished(finish.prompt_only())
            }
            step => step,
        };
        if let ChoiceEvent::Finished(finish) = &step {
            let (prompt, choice) = (index / self.params.n, index % self.params.n);
            let context = |at: usize| miss_context(&self.server.model, &self.prompts[prompt], at);
            self.usage.add(finish, choice == 0, context);
        }
        self.format.write(index, step)
    }

    fn envelope<C>(
        &self,
        object: &'static str,
        choices: Vec<C>,
        usage: Option<Option<Usage>>,
    ) -> Envelope<'_, C> {
        Envelope { id: &self.id, object, created: self.created, model: self.server.name(), choices, usage }
    }
}

/// The server-sent events of an answer.
struct Events<F: ApiFormat> {
    completion: Completion<F>,
    ready: VecDeque<Event>,
    include_usage: bool,
    ended: bool,
    shutdown: ShutdownWatch,
}

impl<F: ApiFormat> Events<F> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let next = tokio::select! {
                next = self.completion.next() => next,
                () = self.shutdown.begun() => {
                    self.fail(&shutdown::error());
                    continue;
                }
            };
            match next {
                Some(Ok((index, step))) => self.step(index, step),
                Some(Err(error)) => self.fail(&ApiError::from_engine(&error, F::PROMPT)),
                None => self.end(),
            }
        }
    }

    fn step(&mut self, index: usize, step: ChoiceEvent) {
        if let Some(piece) = self.completion.piece(index, step) {
            let usage = self.include_usage.then_some(None);
            self.ready.push_back(event(&self.completion.envelope(F::CHUNK, vec![piece], usage)));
        }
    }

    /// The status has long been sent, so the error travels as an event; no `[DONE]` follows it.
    fn fail(&mut self, error: &ApiError) {
        self.completion.outcome.record(Outcome::of(error));
        tracing::error!("{}", error.body.message);
        self.ready.push_back(event(&ErrorObject { error: &error.body }));
        self.ended = true;
    }

    fn end(&mut self) {
        if self.include_usage {
            let usage = Some(Some(self.completion.usage.take()));
            self.ready.push_back(event(&self.completion.envelope(F::CHUNK, Vec::<F::Piece>::new(), usage)));
        }
        self.completion.record_outcome();
        self.ready.push_back(Event::default().data("[DONE]"));
        self.ended = true;
    }
}

/// What a prompt says at one of its tokens.
fn miss_context(model: &Model, ids: &[u32], at: usize) -> MissContext {
    let around = |tokens: usize| {
        let [before, behind] = [at.saturating_sub(tokens), at + tokens].map(|end| end.min(ids.len()));
        [&ids[before..at.min(ids.len())], &ids[at.min(ids.len())..behind]]
    };
    let [before, behind] = around(LINE).map(|ids| model.decode(ids));
    MissContext {
        text: model.decode(&around(AROUND).concat()),
        spoiler: Spoiler::at(&(before.clone() + &behind), before.len()),
    }
}

fn event(data: &impl Serialize) -> Event {
    // Fails only for types that JSON cannot hold, and ours are plain structs.
    Event::default().json_data(data).unwrap_or_default()
}

/// Each prompt `n` times. Seeds count up over all choices, so that no two of them share their noise.
fn requests(
    model: &Model,
    prompts: &[Prompt],
    params: &GenerateParams,
    deadline: Option<Instant>,
) -> Result<Vec<(engine::Request, Decoder)>, PromptError> {
    let first = model.request(Vec::new(), &params.overrides).sampling.seed;
    let choice = |(index, prompt): (usize, &Prompt)| {
        let mut request = model.request(prompt.ids.clone(), &params.overrides);
        request.sampling.seed = first.wrapping_add(index as u64);
        request.ignore_eos = params.ignore_eos;
        request.logprobs = params.logprobs;
        request.prompt_logprobs = params.prompt_logprobs;
        (request.priority, request.deadline) = (params.priority, deadline);
        request.speculation = params.speculation.clone();
        request.cache_breakpoints = prompt.cache_breakpoints.clone();
        Ok((request, model.decoder(prompt, params.stop.clone())?))
    };
    prompts.iter().flat_map(|prompt| vec![prompt; params.n]).enumerate().map(choice).collect()
}

/// Why there is no prompt, as an answer to the client; `param` is the field that held it.
pub fn prompt_error(error: &PromptError, param: &str) -> ApiError {
    match error {
        PromptError::TooLong { .. } => {
            ApiError::invalid(param, error.to_string()).code("context_length_exceeded")
        }
        error if error.is_request_error() => ApiError::invalid(param, error.to_string()),
        error => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Counts choices while they are generated, for /health.
struct Running {
    count: Arc<AtomicUsize>,
    choices: usize,
}

impl Running {
    fn new(count: &Arc<AtomicUsize>, choices: usize) -> Running {
        count.fetch_add(choices, Ordering::Relaxed);
        Running { count: count.clone(), choices }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.count.fetch_sub(self.choices, Ordering::Relaxed);
    }
}
