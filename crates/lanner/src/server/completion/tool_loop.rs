//! An answer in steps: the model calls MCP tools, this server makes the calls, and the model goes
//! on with their results, within the limits of a request.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Instant,
};

use axum::http::StatusCode;
use mcp::Cancel;
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        oneshot,
    },
    task::JoinHandle,
};

use super::{AnswerEvent, submitter::Submitter};
use crate::{
    generate::{Canceller, ChoiceEvent, Finish, Generation, Reason},
    mcp_tools::{AnswerStep, ToolCall, ToolOutput, tool_message},
    model::{AnsweredPrompt, Conversation, Prompt},
    server::{
        active_requests::CancelFn,
        openai::{
            error::ApiError,
            mcp::{McpAccess, Offered, ToolEvent, ToolPlan},
            prompt_error,
        },
    },
};

/// The steps of one answer. Dropping it ends the running step or call.
pub(super) struct ToolLoop {
    submitter: Submitter,
    offered: Arc<Offered>,
    conversation: Conversation,
    /// The running step's prompt, and what the model has written since.
    prompt: Vec<u32>,
    step: AnswerStep,
    phase: Phase,
    ready: VecDeque<AnswerEvent>,
    budget: Budget,
    cancel: LoopCancel,
}

enum Phase {
    Generating(Generation),
    /// Calls are being made; then the next step begins, or the answer ends.
    Calling {
        results: UnboundedReceiver<(ToolCall, ToolOutput)>,
        ending: Option<Box<Finish>>,
        /// Where the result of a call goes that was approved, by the call's id; of others it
        /// becomes the last message.
        messages: Vec<(String, usize)>,
    },
    /// The next step's prompt is rendered and submitted.
    Preparing(JoinHandle<Result<(Prompt, Generation), ApiError>>),
    Ended,
}

/// Rest of a request's limits.
struct Budget {
    calls: usize,
    bytes: usize,
    deadline: Option<Instant>,
    /// New tokens; `None`: as many as the context holds.
    tokens: Option<usize>,
    /// Whether the model was told that nothing is left.
    is_told: bool,
}

/// Ends the running step or call, and all later ones.
#[derive(Clone, Default)]
struct LoopCancel {
    calls: Arc<CancelOnDrop>,
    generation: Arc<Mutex<Option<Canceller>>>,
}

/// Cancels calls, or the decoding of images, when dropped.
#[derive(Default)]
pub(in crate::server) struct CancelOnDrop(pub Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl ToolLoop {
    /// Submits the first step, or begins with the calls that the client has approved.
    ///
    /// # Errors
    /// The engine rejects the prompt.
    pub(super) fn start(
        submitter: Submitter,
        plan: ToolPlan,
        access: &McpAccess,
        prompts: &[Prompt],
    ) -> Result<ToolLoop, ApiError> {
        let ToolPlan { offered, conversation, pending, refused, max_calls } = plan;
        let asked = max_calls.and_then(|calls| usize::try_from(calls).ok());
        let budget = Budget {
            calls: asked.map_or(access.max_calls, |calls| calls.min(access.max_calls)),
            bytes: access.max_bytes,
            deadline: access.deadline(submitter.deadline),
            tokens: submitter.params.overrides.max_tokens,
            is_told: false,
        };
        let listed = offered.listed.iter().cloned();
        let refused = refused.into_iter().map(|(call, reason)| ToolEvent::Refused { call, reason });
        let ready = listed.map(ToolEvent::Listed).chain(refused).map(AnswerEvent::Tool).collect();
        let mut tools = ToolLoop {
            submitter,
            offered: Arc::new(offered),
            conversation,
            prompt: prompts.iter().flat_map(|prompt| prompt.ids.clone()).collect(),
            step: AnswerStep::default(),
            phase: Phase::Ended,
            ready,
            budget,
            cancel: LoopCancel::default(),
        };
        if pending.is_empty() {
            let generation = tools.submitter.submit(prompts)?;
            tools.generate(generation);
            return Ok(tools);
        }
        let messages = pending.iter().map(|pending| (pending.call.id.clone(), pending.message)).collect();
        let calls: Vec<ToolCall> = pending.into_iter().map(|pending| pending.call).collect();
        tools.ready.extend(calls.iter().map(|call| AnswerEvent::Tool(ToolEvent::Started(call.clone()))));
        tools.call(calls, None, messages);
        Ok(tools)
    }

    /// Ends the answer from elsewhere.
    pub(super) fn canceller(&self) -> CancelFn {
        let calls = self.cancel.calls.0.clone();
        let generation = self.cancel.generation.clone();
        Box::new(move || {
            calls.cancel();
            let generation = generation.lock().unwrap_or_else(PoisonError::into_inner);
            generation.iter().for_each(Canceller::cancel);
        })
    }

    /// The prompt of the running step.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The next event; `None` at the end. It may be dropped before it is ready.
    pub(super) async fn next(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            match &mut self.phase {
                Phase::Ended => return None,
                Phase::Generating(generation) => match generation.next().await {
                    Some(Ok((_, event))) => self.on_event(event),
                    Some(Err(error)) => {
                        self.phase = Phase::Ended;
                        return Some(Err(ApiError::from_engine(&error, self.submitter.field)));
                    }
                    None => self.phase = Phase::Ended,
                },
                Phase::Calling { results, .. } => match results.recv().await {
                    Some((call, output)) => self.on_result(call, output),
                    None => self.after_calls(),
                },
                Phase::Preparing(prepared) => {
                    let prepared = prepared.await.unwrap_or_else(|error| Err(failed(&error.to_string())));
                    self.phase = Phase::Ended;
                    match prepared {
                        Ok((prompt, generation)) => {
                            self.prompt = prompt.ids;
                            self.ready.push_back(AnswerEvent::StepBegun(self.prompt.len()));
                            self.generate(generation);
                        }
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
        }
    }

    fn generate(&mut self, generation: Generation) {
        self.step = AnswerStep::default();
        *self.cancel.generation.lock().unwrap_or_else(PoisonError::into_inner) = Some(generation.canceller());
        // It may have been cancelled while there was no generation.
        if self.cancel.calls.0.is_cancelled() {
            generation.cancel();
        }
        self.phase = Phase::Generating(generation);
    }

    fn on_event(&mut self, event: ChoiceEvent) {
        self.step.record(&event);
        match event {
            ChoiceEvent::Finished(finish) if finish.reason == Reason::ToolCalls => self.after_step(finish),
            event => self.ready.push_back(AnswerEvent::Choice(0, event)),
        }
    }

    /// Makes the step's calls, if they are this server's to make.
    fn after_step(&mut self, finish: Finish) {
        let tools = &self.offered;
        let is_own = |call: &&ToolCall| tools.tools.get(&call.name).is_some();
        let asks = |call: &&ToolCall| tools.asks.contains(&call.name);
        let own: Vec<ToolCall> = self.step.calls.iter().filter(is_own).cloned().collect();
        let (ask, make): (Vec<ToolCall>, Vec<ToolCall>) = own.into_iter().partition(|call| asks(&call));
        if make.is_empty() {
            return self.ready.push_back(AnswerEvent::Choice(0, ChoiceEvent::Finished(finish)));
        }
        // The client has calls of its own to make, or one to approve.
        let others = self.step.calls.len() - make.len() - ask.len();
        let mut ends = others > 0 || !ask.is_empty();
        // The model was told that nothing is left, and goes on calling.
        ends |= self.budget.is_told;
        self.budget.tokens = self.budget.tokens.map(|left| left.saturating_sub(finish.completion_tokens));
        self.ready.push_back(AnswerEvent::Tool(ToolEvent::Written));
        let ending = match (ends, self.budget.tokens) {
            (true, _) => Some(Box::new(finish)),
            (false, Some(0)) => Some(Box::new(Finish { reason: Reason::Length, ..finish })),
            (false, _) => {
                self.ready.push_back(AnswerEvent::StepEnded(Box::new(finish)));
                None
            }
        };
        self.conversation.messages.push(self.step.message());
        self.call(make, ending, vec![]);
    }

    /// Makes calls one after the other, on a thread of their own.
    fn call(&mut self, calls: Vec<ToolCall>, ending: Option<Box<Finish>>, messages: Vec<(String, usize)>) {
        let (sender, results) = unbounded_channel();
        self.phase = Phase::Calling { results, ending, messages };
        let within = calls.len().min(self.budget.calls);
        self.budget.calls -= within;
        self.budget.is_told |= calls.len() > within;
        let (offered, cancel) = (self.offered.clone(), self.cancel.calls.0.clone());
        let (deadline, mut bytes) = (self.budget.deadline, self.budget.bytes);
        thread::spawn(move || {
            for (index, call) in calls.into_iter().enumerate() {
                let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
                let output = match offered.tools.get(&call.name) {
                    _ if cancel.is_cancelled() => Err("the request was cancelled".into()),
                    _ if index >= within => Err(exhausted("calls")),
                    _ if is_late => Err(exhausted("time")),
                    _ if bytes == 0 => Err(exhausted("bytes of results")),
                    Some(tool) => tool.call(&call.arguments, deadline, &cancel),
                    None => Err(format!("there is no tool {}", call.name)),
                };
                let output = within_bytes(output, &mut bytes);
                if sender.send((call, output)).is_err() {
                    return;
                }
            }
        });
    }

    fn on_result(&mut self, call: ToolCall, output: ToolOutput) {
        let length = output.as_ref().map_or_else(String::len, String::len);
        self.budget.bytes = self.budget.bytes.saturating_sub(length);
        let is_late = self.budget.deadline.is_some_and(|deadline| deadline <= Instant::now());
        self.budget.is_told |= self.budget.bytes == 0 || is_late;
        let message = tool_message(&call, &output);
        let Phase::Calling { messages, .. } = &self.phase else { return };
        match messages.iter().find(|(id, _)| *id == call.id) {
            Some((_, at)) => self.conversation.messages[*at] = message,
            None => self.conversation.messages.push(message),
        }
        self.ready.push_back(AnswerEvent::Tool(ToolEvent::Done { call, output }));
    }

    /// Ends the answer, or begins the next step.
    fn after_calls(&mut self) {
        let ending = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Calling { ending, .. } => ending,
            _ => None,
        };
        if let Some(finish) = ending {
            return self.ready.push_back(AnswerEvent::Choice(0, ChoiceEvent::Finished(*finish)));
        }
        let (mut submitter, mut conversation) = (self.submitter.clone(), self.conversation.clone());
        submitter.params.overrides.max_tokens = self.budget.tokens;
        submitter.cancel = self.cancel.calls.0.clone();
        conversation.add_generation_prompt = true;
        // A call is required of the first step alone.
        submitter.params.tools.iter_mut().for_each(|tools| Arc::make_mut(tools).required = false);
        let (before, step) = (self.prompt.clone(), std::mem::take(&mut self.step));
        self.phase = Phase::Preparing(tokio::task::spawn_blocking(move || {
            let prompt = match step.calls.is_empty() {
                // Approved calls came before any step.
                true => submitter.model.chat_prompt(&conversation),
                false => {
                    let role = |message: &serde_json::Value| message["role"] == "assistant";
                    let answer = conversation.messages.iter().rposition(role).unwrap_or_default();
                    let before = AnsweredPrompt {
                        prompt: &before,
                        answer: &step.tokens,
                        end_token: step.end_token,
                        messages: answer + 1,
                    };
                    submitter.model.continued_prompt(&conversation, before)
                }
            };
            let prompt = prompt.map_err(|error| prompt_error(&error, submitter.field))?;
            let generation = submitter.submit(std::slice::from_ref(&prompt))?;
            Ok((prompt, generation))
        }));
    }
}

impl Drop for ToolLoop {
    fn drop(&mut self) {
        self.cancel.calls.0.cancel();
    }
}

fn exhausted(what: &str) -> String {
    format!("the request has no {what} of tools left; answer with what is known")
}

/// Takes a result from the bytes that are left; of one that exceeds them, the start.
fn within_bytes(output: ToolOutput, left: &mut usize) -> ToolOutput {
    let is_error = output.is_err();
    let mut text = output.unwrap_or_else(|text| text);
    if text.len() > *left && !is_error {
        let end = (0..=*left).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        *left = 0;
        text.push_str("\n[… the rest exceeds the bytes of results that this request may have]");
        return Ok(text);
    }
    *left = left.saturating_sub(text.len());
    if is_error { Err(text) } else { Ok(text) }
}

fn failed(reason: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the next step could not be prepared: {reason}"))
}

/// Runs work that waits for servers on a thread of its own: those of the runtime are few. `None`:
/// it panicked.
pub(super) async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, result) = oneshot::channel();
    thread::spawn(move || {
        // Fails if nothing waits for it any more.
        let _ = sender.send(work());
    });
    result.await.ok()
}
