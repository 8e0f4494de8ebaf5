//! The answer of `POST /v1/messages`: events that build a message block by block.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chat::Delta;
use serde::Serialize;

use super::{
    events::{BlockDelta, ContentBlock, ContextManagement, Message, MessageEnd, MessageUsage, StreamEvent},
    request::{CacheMark, MessagesPrompt, MessagesRequest},
    thinking::Thinking,
};
use crate::{
    generate::{ChoiceEvent, Finish, Reason},
    model::{Conversation, Model, Prompt},
    server::{
        format::{AnswerInfo, ApiFormat, Frame},
        openai::{GenerateParams, error::ApiError, prompt_error},
        protocol::Protocol,
    },
};

/// Shortest time between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(3);

/// Writes the answer to one request.
pub(super) struct MessagesFormat {
    thinking: Thinking,
    /// Tokens of the prompt that are to be cached.
    marked: usize,
    max_tokens: Option<usize>,
    reports_edits: bool,
    started: bool,
    last_ping: Option<Instant>,
    open: Option<ContentBlock>,
    /// The index of the open block, or of the next one.
    index: usize,
    /// The text of the open thinking block.
    reasoning: String,
    /// Whitespace that is text only if more follows.
    leading_space: String,
    end: MessageEnd,
}

/// The message of an answer without `stream`.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct WholeMessage(Option<Box<Message>>);

impl ApiFormat for MessagesFormat {
    type Request = MessagesRequest;
    type Prompts = MessagesPrompt;
    type Piece = StreamEvent;
    type Whole = WholeMessage;

    const PROTOCOL: Protocol = Protocol::Anthropic;
    const ID_PREFIX: &'static str = "msg_";
    const ROUTE: &'static str = "message";
    const PROMPT: &'static str = "messages";

    fn conversation(prompt: &mut MessagesPrompt) -> Option<&mut Conversation> {
        Some(&mut prompt.conversation)
    }

    fn prepare(
        model: &Arc<Model>,
        prompt: MessagesPrompt,
        params: &GenerateParams,
    ) -> Result<(MessagesFormat, Vec<Prompt>), ApiError> {
        let MessagesPrompt { conversation, thinking, cache_mark, reports_edits } = prompt;
        let rendered = model.chat_prompt(&conversation);
        let rendered = rendered.map_err(|error| prompt_error(&error, Self::PROMPT))?;
        let format = MessagesFormat {
            thinking,
            marked: cache_mark.map_or(0, |mark| marked_tokens(&rendered, mark)),
            max_tokens: params.overrides.max_tokens,
            reports_edits,
            started: false,
            last_ping: None,
            open: None,
            index: 0,
            reasoning: String::new(),
            leading_space: String::new(),
            end: MessageEnd::default(),
        };
        Ok((format, vec![rendered]))
    }

    /// The message starts when the reused tokens are known.
    fn begin(&mut self, _: &AnswerInfo) -> Vec<StreamEvent> {
        vec![]
    }

    fn on_event(&mut self, answer: &AnswerInfo, _: usize, event: ChoiceEvent) -> Vec<StreamEvent> {
        let cached = if let ChoiceEvent::PromptProgress { cached, .. } = event { cached } else { 0 };
        let mut events: Vec<StreamEvent> = self.start(answer, cached).into_iter().collect();
        events.extend(match event {
            ChoiceEvent::PromptProgress { .. } => self.ping(),
            ChoiceEvent::Text { delta: Delta::Reasoning(text), .. } => self.reasoning(text),
            ChoiceEvent::Text { delta: Delta::Content(text), .. } => self.content(text),
            ChoiceEvent::Text { delta: Delta::ToolCall { id, name, .. }, .. } => self.call(id, name),
            ChoiceEvent::Text { delta: Delta::ToolArguments { arguments, .. }, .. } => {
                vec![self.delta(BlockDelta::InputJson { partial_json: arguments })]
            }
            ChoiceEvent::Finished(finish) => self.finish(finish),
            ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. } => vec![],
        });
        events
    }

    fn end(&mut self, answer: &AnswerInfo) -> Vec<StreamEvent> {
        let usage = Box::new(MessageUsage::of_answer(&answer.usage, self.marked));
        let context_management = self.reports_edits.then_some(ContextManagement { applied_edits: [] });
        let delta = std::mem::take(&mut self.end);
        vec![StreamEvent::MessageDelta { delta, usage, context_management }, StreamEvent::MessageStop]
    }

    fn frame(_: &AnswerInfo, event: StreamEvent) -> Option<Frame> {
        Some(Frame::json(Some(event.name()), &event))
    }

    fn empty(_: &AnswerInfo) -> WholeMessage {
        WholeMessage(None)
    }

    fn append(whole: &mut WholeMessage, event: StreamEvent) {
        match (&mut whole.0, event) {
            (message, StreamEvent::MessageStart { message: started }) => *message = Some(started),
            (Some(message), event) => message.apply(event),
            (None, _) => {}
        }
    }
}

/// Tokens up to the mark. State is stored after the tools and the system prompt, and after the
/// messages, whether the request marks them or not.
fn marked_tokens(prompt: &Prompt, mark: CacheMark) -> usize {
    let breakpoints = &prompt.cache_breakpoints;
    let at = match mark {
        CacheMark::Head => breakpoints.first(),
        CacheMark::Messages => breakpoints.last(),
    };
    at.copied().unwrap_or(prompt.ids.len())
}

impl MessagesFormat {
    fn start(&mut self, answer: &AnswerInfo, cached: usize) -> Option<StreamEvent> {
        if std::mem::replace(&mut self.started, true) {
            return None;
        }
        let prompt = answer.prompt_tokens.iter().sum();
        let message = Message {
            id: answer.id.clone(),
            r#type: "message",
            role: "assistant",
            model: answer.model.clone(),
            content: vec![],
            end: MessageEnd::default(),
            usage: Box::new(MessageUsage::of_prompt(prompt, cached, self.marked)),
            context_management: None,
        };
        Some(StreamEvent::MessageStart { message: Box::new(message) })
    }

    fn ping(&mut self) -> Vec<StreamEvent> {
        if self.last_ping.is_some_and(|last| last.elapsed() < PING_INTERVAL) {
            return vec![];
        }
        self.last_ping = Some(Instant::now());
        vec![StreamEvent::Ping]
    }

    fn reasoning(&mut self, text: String) -> Vec<StreamEvent> {
        let mut events = match self.open {
            Some(ContentBlock::Thinking { .. }) => vec![],
            _ => self.open(ContentBlock::Thinking { thinking: String::new(), signature: String::new() }),
        };
        self.reasoning.push_str(&text);
        if !self.thinking.omitted {
            events.push(self.delta(BlockDelta::Thinking { thinking: text }));
        }
        events
    }

    fn content(&mut self, text: String) -> Vec<StreamEvent> {
        let is_open = matches!(self.open, Some(ContentBlock::Text { .. }));
        // Between thinking and a call there is often whitespace alone.
        if !is_open && text.trim().is_empty() {
            self.leading_space.push_str(&text);
            return vec![];
        }
        let text = std::mem::take(&mut self.leading_space) + &text;
        let mut events = if is_open { vec![] } else { self.open(ContentBlock::Text { text: String::new() }) };
        events.push(self.delta(BlockDelta::Text { text }));
        events
    }

    fn call(&mut self, id: String, name: String) -> Vec<StreamEvent> {
        self.leading_space.clear();
        self.open(ContentBlock::ToolUse { id, name, input: Default::default(), json: String::new() })
    }

    fn finish(&mut self, finish: Finish) -> Vec<StreamEvent> {
        let is_limit = |limit: usize| finish.completion_tokens >= limit;
        let stop_reason = match finish.reason {
            Reason::Stop if finish.stop_string.is_some() => "stop_sequence",
            Reason::Stop => "end_turn",
            Reason::ToolCalls => "tool_use",
            Reason::Length if self.max_tokens.is_none_or(is_limit) => "max_tokens",
            Reason::Length => "model_context_window_exceeded",
            // Anthropic has no name for it.
            Reason::Cancelled => "abort",
        };
        let stop_sequence = finish.stop_string.filter(|_| stop_reason == "stop_sequence");
        self.end = MessageEnd { stop_reason: Some(stop_reason), stop_sequence };
        self.close()
    }

    fn delta(&self, delta: BlockDelta) -> StreamEvent {
        StreamEvent::ContentBlockDelta { index: self.index, delta }
    }

    /// Begins a block; the one before it is complete.
    fn open(&mut self, block: ContentBlock) -> Vec<StreamEvent> {
        let mut events = self.close();
        self.open = Some(block.clone());
        events.push(StreamEvent::ContentBlockStart { index: self.index, content_block: block });
        events
    }

    fn close(&mut self) -> Vec<StreamEvent> {
        let Some(block) = self.open.take() else { return vec![] };
        let mut events = vec![];
        if matches!(block, ContentBlock::Thinking { .. }) {
            let signature = self.thinking.signature(&std::mem::take(&mut self.reasoning));
            events.push(self.delta(BlockDelta::Signature { signature }));
        }
        events.push(StreamEvent::ContentBlockStop { index: self.index });
        self.index += 1;
        events
    }
}
