//! The conversation in the store: saved after each answer, continued from there.

use serde_json::{Map, Value, json};
use store::{Conversation, Message, Role, Scope, Store, StoreError, Update};

use crate::{
    commands::serve::open_store,
    config::{ChatConfig, StoreConfig},
    conversation, sampling,
    terminal::say,
};

/// A conversation that is saved, or `None` of it if nothing is.
pub(super) struct Saved {
    store: Option<Store>,
    id: String,
    /// The last saved message.
    leaf: Option<String>,
    /// Those of the web page are kept, if it made the conversation.
    settings: Map<String, Value>,
    has_failed: bool,
}

/// A stored conversation as the chat goes on with it.
pub(super) struct Continued {
    pub(super) title: String,
    pub(super) system: Option<String>,
    pub(super) turns: Vec<Value>,
}

impl Saved {
    /// Opens the store, and the conversation to continue.
    ///
    /// # Errors
    /// There is no such conversation, or a store that the user named cannot be opened.
    pub(super) fn open(config: &ChatConfig) -> Result<(Saved, Option<Continued>), StoreError> {
        let is_named = config.continued.is_some();
        let store =
            config.store.clone().map(|store| StoreConfig { is_named: store.is_named || is_named, ..store });
        let store = open_store(store.as_ref())?;
        let mut saved = Saved { store, id: new_id(), leaf: None, settings: Map::new(), has_failed: false };
        let Some(start) = &config.continued else { return Ok((saved, None)) };
        let Some(store) = &saved.store else {
            return Err(start.clone().map_or(StoreError::Empty, StoreError::NotFound));
        };
        let scope = Scope::All;
        let read = store.conversation(&scope, &store.find(&scope, start.as_deref())?)?;
        let continued = saved.attach(&read);
        Ok((saved, Some(continued)))
    }

    fn attach(&mut self, stored: &Conversation) -> Continued {
        let mut branch = stored.branch();
        // Templates expect an answer to every message.
        while branch.last().is_some_and(|message| message.role != Role::Assistant) {
            branch.pop();
        }
        self.id.clone_from(&stored.id);
        self.settings.clone_from(&stored.settings);
        self.leaf = branch.last().map(|message| message.id.clone());
        Continued {
            title: stored.title.clone(),
            system: stored.system().map(str::to_owned),
            turns: branch.into_iter().map(turn).collect(),
        }
    }

    /// Saves a message and its answer. A failure is told once, and ends nothing.
    pub(super) fn add(
        &mut self,
        model: &str,
        system: Option<&str>,
        text: &str,
        between: &[Value],
        answer: &Value,
        usage: Value,
    ) {
        let Some(store) = &self.store else { return };
        let (question, reply) = (new_id(), new_id());
        let at = store::now();
        let empty = Message {
            id: question,
            parent: self.leaf.clone(),
            role: Role::User,
            text: text.to_owned(),
            created: at,
            reasoning: None,
            model: None,
            tool_calls: None,
            usage: None,
            other: Map::new(),
        };
        let mut messages = vec![empty.clone()];
        for step in between {
            let parent = messages.last().map(|message| message.id.clone());
            messages.push(step_message(step, model, Message { id: new_id(), parent, ..empty.clone() }));
        }
        let answer = Message {
            id: reply.clone(),
            parent: messages.last().map(|message| message.id.clone()),
            role: Role::Assistant,
            text: answer["content"].as_str().unwrap_or_default().to_owned(),
            reasoning: answer["reasoning_content"].as_str().map(str::to_owned),
            model: Some(model.to_owned()),
            usage: Some(usage),
            ..empty
        };
        messages.push(answer);
        self.settings.insert("system".into(), system.unwrap_or_default().into());
        let update = Update {
            leaf: Some(reply.clone()),
            messages,
            settings: Some(self.settings.clone()),
            ..Update::default()
        };
        match store.put("", &self.id, update) {
            Ok(_) => (self.leaf, self.has_failed) = (Some(reply), false),
            Err(error) if std::mem::replace(&mut self.has_failed, true) => {
                tracing::debug!("the conversation is not saved: {error}");
            }
            Err(error) => say(format_args!("(the conversation is not saved: {error})")),
        }
    }

    /// Begins another conversation.
    pub(super) fn restart(&mut self) {
        (self.id, self.leaf) = (new_id(), None);
        self.settings.clear();
    }
}

/// A message in OpenAI's format.
fn turn(message: &Message) -> Value {
    match message.role {
        Role::User => conversation::user(&message.text),
        Role::Tool => {
            let id = message.other.get("toolCallId").cloned().unwrap_or_default();
            json!({ "role": "tool", "content": message.text, "tool_call_id": id })
        }
        Role::Assistant => {
            let reasoning = message.reasoning.as_deref().unwrap_or_default();
            let mut turn = conversation::assistant(&message.text, reasoning);
            message.tool_calls.iter().for_each(|calls| turn["tool_calls"] = calls.clone());
            turn
        }
    }
}

/// A message with calls of tools, or with the result of one.
fn step_message(step: &Value, model: &str, empty: Message) -> Message {
    let text = step["content"].as_str().unwrap_or_default().to_owned();
    if step["role"] == "tool" {
        let mut other = Map::new();
        other.insert("toolCallId".into(), step["tool_call_id"].clone());
        return Message { role: Role::Tool, text, other, ..empty };
    }
    Message {
        role: Role::Assistant,
        text,
        reasoning: step["reasoning_content"].as_str().map(str::to_owned),
        model: Some(model.to_owned()),
        tool_calls: Some(step["tool_calls"].clone()),
        ..empty
    }
}

fn new_id() -> String {
    format!("{:016x}", sampling::random())
}
