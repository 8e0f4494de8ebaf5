//! Tools of MCP servers in the chat: which are offered, what the user is asked before a call, and
//! what is shown of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    thread,
    time::Instant,
};

use chat::tools::ToolSet;
use engine::Constraint;
use mcp::{Cancel, Servers, ToolInfo};
use rustix::termios::{QueueSelector, tcflush};
use rustyline::{Behavior, Config, DefaultEditor, error::ReadlineError};
use serde_json::Value;
use tokio::{runtime::Builder, signal::unix::Signal, sync::oneshot};

use super::input::TYPED_AHEAD;
use crate::{
    commands::CommandError,
    config::{AllowedCall, McpConfig},
    mcp_tools::{AnswerStep, McpTool, McpTools, ToolCall, ToolOutput, tool_message},
    model::{AnsweredPrompt, Conversation, Model, Prompt, PromptError},
    terminal::{NoEcho, say},
};

/// Most characters of a call or a result that are shown.
const SHOWN: usize = 300;
/// Most steps with calls in one answer.
const MAX_STEPS: usize = 32;

/// The tools of a chat; it may have none.
pub(super) struct ChatTools {
    servers: Option<Arc<Servers>>,
    /// Calls that need no question.
    allowed: Vec<AllowedCall>,
    /// Tools that the user always allows, as they were then, or never, by server and name.
    always: BTreeMap<(String, String), ToolInfo>,
    never: BTreeSet<(String, String)>,
    is_terminal: bool,
    offered: McpTools,
    set: Option<Arc<ToolSet>>,
    /// Names of servers whose failure was told.
    told: BTreeSet<String>,
}

/// The steps of one answer so far.
#[derive(Default)]
pub(super) struct Steps {
    /// The prompt of the last step, and what the model wrote.
    last: Option<(Vec<u32>, AnswerStep)>,
    count: usize,
    /// Messages with calls and their results.
    pub messages: Vec<Value>,
}

impl Steps {
    /// Whether the model has called tools.
    pub(super) fn has_calls(&self) -> bool {
        self.count > 0
    }
}

/// The user's decision on a call.
enum Consent {
    Once,
    Always,
    No,
    Never,
}

impl ChatTools {
    /// # Errors
    /// Calls would have to be asked for, and stdin is no terminal.
    pub(super) fn new(config: Option<McpConfig>, is_terminal: bool) -> Result<ChatTools, CommandError> {
        let allowed = config.as_ref().map(|config| config.allowed.clone()).unwrap_or_default();
        if config.is_some() && !is_terminal && allowed.is_empty() {
            return Err(CommandError::Mcp(
                "--mcp asks before each call, and stdin is no terminal\n\
                 hint: name what may be called with --mcp-allow SERVER, SERVER/TOOL or '*'"
                    .into(),
            ));
        }
        let servers = config.map(|config| {
            config.ignored.iter().for_each(|field| say(format_args!("(no effect: mcpServers.{field})")));
            let servers = Arc::new(Servers::new(config.servers, &config.options));
            end_with_program(servers.clone(), is_terminal);
            servers
        });
        Ok(ChatTools {
            servers,
            allowed,
            always: BTreeMap::new(),
            never: BTreeSet::new(),
            is_terminal,
            offered: McpTools::default(),
            set: None,
            told: BTreeSet::new(),
        })
    }

    /// Asks the servers for their tools. Those that fail are told once, and left out. `false`:
    /// Ctrl-C has ended that.
    ///
    /// # Errors
    /// The model cannot call tools.
    pub(super) async fn offer(
        &mut self,
        model: &Model,
        interrupts: &mut Option<Signal>,
    ) -> Result<bool, PromptError> {
        let Some(servers) = &self.servers else { return Ok(true) };
        let mut offered = McpTools::default();
        let (asked, quiet) = (servers.clone(), self.is_terminal.then(NoEcho::begin));
        let lists = until_interrupt(interrupts, move |cancel| Servers::list(asked.all(), cancel)).await;
        drop(quiet);
        let lists = match lists {
            Some(lists) => lists.unwrap_or_default(),
            None => return Ok(false),
        };
        for (server, list) in servers.all().iter().zip(lists) {
            match list {
                Ok(list) => offered.add(server.name(), server, &list, |_| true),
                Err(error) if self.told.insert(server.name().to_owned()) => say(format_args!("({error})")),
                Err(_) => {}
            }
        }
        let first = self.offered.all().is_empty() && !offered.all().is_empty();
        self.set = offered.tool_set(model, &[], None, None)?.map(Arc::new);
        self.offered = offered;
        if first {
            say(format_args!("({} tools of MCP servers)", self.offered.all().len()));
        }
        Ok(true)
    }

    pub(super) fn set(&self) -> Option<&Arc<ToolSet>> {
        self.set.as_ref()
    }

    /// The prompt of the next step of an answer; the first step has no step before it.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub(super) fn prompt(
        &self,
        model: &Model,
        conversation: Conversation,
        steps: &Steps,
    ) -> Result<Prompt, PromptError> {
        let conversation = Conversation { tools: self.offered.definitions(), ..conversation };
        let role = |message: &Value| message["role"] == "assistant";
        match (&steps.last, conversation.messages.iter().rposition(role)) {
            (Some((prompt, step)), Some(answer)) => {
                let (answer, end_token, messages) = (&step.tokens[..], step.end_token, answer + 1);
                let before = AnsweredPrompt { prompt, answer, end_token, messages };
                model.continued_prompt(&conversation, before)
            }
            _ => model.chat_prompt(&conversation),
        }
    }

    /// Keeps the calls of an answer valid.
    ///
    /// # Errors
    /// The model cannot call tools.
    pub(super) fn constraint(
        &self,
        model: &Model,
        prompt: &Prompt,
    ) -> Result<Option<Arc<dyn Constraint>>, PromptError> {
        self.set.as_ref().map_or(Ok(None), |set| model.tool_constraint(prompt, set, None))
    }

    /// Makes the calls of a step that the user allows. Returns whether the model goes on: there
    /// were calls, and Ctrl-C did not end them.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub(super) async fn make_calls(
        &mut self,
        steps: &mut Steps,
        prompt: &[u32],
        step: AnswerStep,
        interrupts: &mut Option<Signal>,
    ) -> Result<bool, CommandError> {
        if step.calls.is_empty() || self.servers.is_none() {
            return Ok(false);
        }
        steps.count += 1;
        steps.messages.push(step.message());
        let mut goes_on = true;
        for call in &step.calls {
            let output = match self.offered.get(&call.name).cloned() {
                _ if !goes_on => Err("the user stopped the answer".into()),
                _ if steps.count > MAX_STEPS => Err("this answer has made too many calls; answer now".into()),
                Some(tool) => match self.consent(&tool, call)? {
                    true => {
                        let output = run(tool, call.clone(), interrupts).await;
                        goes_on &= output.is_some();
                        output.unwrap_or_else(|| Err("the user stopped the call".into()))
                    }
                    false => Err("the user refused this call".into()),
                },
                None => Err(format!("there is no tool {}", call.name)),
            };
            let (mark, text) = match &output {
                Ok(text) => ("", text),
                Err(text) => ("failed: ", text),
            };
            say(format_args!("  {mark}{}", shown(text)));
            steps.messages.push(tool_message(call, &output));
        }
        // The calls over the limit are told to the model once.
        goes_on &= steps.count <= MAX_STEPS + 1;
        steps.last = Some((prompt.to_vec(), step));
        Ok(goes_on)
    }

    fn consent(&mut self, tool: &McpTool, call: &ToolCall) -> Result<bool, CommandError> {
        let (server, name) = (&tool.label, &tool.info.name);
        say(format_args!("• {server}/{} {}", shown(name), shown(&call.arguments)));
        let key = (server.clone(), name.clone());
        if self.allowed.iter().any(|allowed| allowed.covers(server, name)) || self.is_always(&key, tool) {
            return Ok(true);
        }
        if self.never.contains(&key) || !self.is_terminal {
            return Ok(false);
        }
        let consent = ask()?;
        match consent {
            Consent::Always => _ = self.always.insert(key, tool.info.clone()),
            Consent::Never => _ = self.never.insert(key),
            Consent::Once | Consent::No => {}
        }
        Ok(matches!(consent, Consent::Once | Consent::Always))
    }

    /// Whether the user always allows the tool. One whose description, arguments or hints have
    /// changed since is not the one that was allowed.
    fn is_always(&mut self, key: &(String, String), tool: &McpTool) -> bool {
        match self.always.get(key) {
            Some(allowed) if *allowed == tool.info => true,
            Some(_) => {
                say("  (its server has changed this tool since you always allowed it)");
                self.always.remove(key);
                false
            }
            None => false,
        }
    }
}

impl Drop for ChatTools {
    fn drop(&mut self) {
        self.servers.iter().for_each(|servers| servers.stop());
    }
}

/// Calls a tool; `None`: Ctrl-C has ended it.
async fn run(tool: McpTool, call: ToolCall, interrupts: &mut Option<Signal>) -> Option<ToolOutput> {
    let result = until_interrupt(interrupts, move |cancel| tool.call(&call.arguments, None, cancel)).await?;
    Some(result.unwrap_or_else(|| Err("the call failed".into())))
}

/// Runs what waits for servers on a thread of its own. `None`: Ctrl-C has cancelled it;
/// `Some(None)`: it panicked.
async fn until_interrupt<T: Send + 'static>(
    interrupts: &mut Option<Signal>,
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> Option<Option<T>> {
    let (cancel, (sender, result)) = (Cancel::default(), oneshot::channel());
    let own = cancel.clone();
    // Sending fails if nothing waits for it any more.
    thread::spawn(move || _ = sender.send(work(&own)));
    tokio::select! {
        result = result => Some(result.ok()),
        () = next_interrupt(interrupts) => {
            cancel.cancel();
            None
        }
    }
}

/// Never, without signals.
pub(super) async fn next_interrupt(interrupts: &mut Option<Signal>) {
    match interrupts {
        Some(interrupts) => _ = interrupts.recv().await,
        None => std::future::pending().await,
    }
}

fn ask() -> Result<Consent, CommandError> {
    let config = Config::builder().behavior(Behavior::PreferTerm).build();
    let mut editor = DefaultEditor::with_config(config)?;
    loop {
        // Keys that were pressed before the question do not answer it.
        let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        let asked = Instant::now();
        let line = match editor.readline("  call it? [y]es, [a]lways this tool, [n]o, ne[v]er this tool: ") {
            Ok(_) if asked.elapsed() < TYPED_AHEAD => continue,
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(Consent::No),
            Err(error) => return Err(error.into()),
        };
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Consent::Once),
            "a" | "always" => return Ok(Consent::Always),
            "n" | "no" => return Ok(Consent::No),
            "v" | "never" => return Ok(Consent::Never),
            _ => {}
        }
    }
}

/// The start of a text in one line, without control characters: they could move the cursor and
/// hide a call.
fn shown(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let visible = |c: char| match c {
        '\n' | '\t' => ' ',
        c if is_hidden(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    let start: String = text.chars().take(SHOWN).map(visible).collect();
    match text.chars().count() {
        length if length > SHOWN => format!("{start}… ({length} characters)"),
        _ => start,
    }
}

/// Ends the servers when a signal ends the program. On a terminal Ctrl-C ends answers only.
fn end_with_program(servers: Arc<Servers>, is_terminal: bool) {
    use tokio::signal::unix::{SignalKind, signal};
    thread::spawn(move || {
        let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
        let code = runtime.block_on(async {
            let (mut terminate, mut hang_up) =
                (signal(SignalKind::terminate()).ok()?, signal(SignalKind::hangup()).ok()?);
            let mut interrupt = signal(SignalKind::interrupt()).ok().filter(|_| !is_terminal);
            let interrupted = async {
                match &mut interrupt {
                    Some(interrupt) => _ = interrupt.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = terminate.recv() => Some(143),
                _ = hang_up.recv() => Some(129),
                () = interrupted => Some(130),
            }
        });
        if let Some(code) = code {
            servers.stop();
            // A normal exit runs MLX's destructors, which crash while MLX computes.
            engine::exit_now(code);
        }
    });
}

#[cfg(test)]
#[path = "../../../../mcp/tests/it/fake.rs"]
mod fake;

#[cfg(test)]
mod tests {
    use mcp::ServerList;
    use serde_json::json;

    use super::{fake::HttpFake, *};

    /// A chat in a pipe with the fake server, which may make these calls.
    fn chat(fake: &HttpFake, allowed: Vec<AllowedCall>) -> ChatTools {
        let text = json!({ "mcpServers": { "fake": fake.entry() } }).to_string();
        let servers = ServerList::parse(&text, |_| None).unwrap();
        let servers = Arc::new(Servers::new(servers, &Default::default()));
        let mut offered = McpTools::default();
        let server = &servers.all()[0];
        offered.add("fake", server, &server.tools(&Cancel::default()).unwrap(), |_| true);
        ChatTools {
            servers: Some(servers.clone()),
            allowed,
            always: BTreeMap::new(),
            never: BTreeSet::new(),
            is_terminal: false,
            offered,
            set: None,
            told: BTreeSet::new(),
        }
    }

    fn step(names: &[&str]) -> AnswerStep {
        let call = |name: &&str| ToolCall {
            id: format!("id-{name}"),
            name: format!("mcp__fake__{name}"),
            arguments: json!({ "text": "hi" }).to_string(),
        };
        AnswerStep { calls: names.iter().map(call).collect(), ..AnswerStep::default() }
    }

    #[test]
    fn only_allowed_calls_are_made_in_a_pipe() {
        let fake = HttpFake::start("");
        let mut tools = chat(&fake, vec![AllowedCall::Tool { server: "fake".into(), tool: "echo".into() }]);
        let runtime = Builder::new_current_thread().build().unwrap();
        let (mut steps, mut interrupts) = (Steps::default(), None);
        let made = step(&["echo", "fail", "nothing"]);
        let made = tools.make_calls(&mut steps, &[1], made, &mut interrupts);
        assert!(runtime.block_on(made).unwrap());
        let results: Vec<&str> = steps.messages[1..].iter().map(|m| m["content"].as_str().unwrap()).collect();
        let unknown = "Error: there is no tool mcp__fake__nothing";
        assert_eq!(results, ["hi", "Error: the user refused this call", unknown]);
        assert_eq!(steps.messages[0]["tool_calls"].as_array().unwrap().len(), 3);
        let none = tools.make_calls(&mut steps, &[1], step(&[]), &mut interrupts);
        assert!(!runtime.block_on(none).unwrap(), "a step without calls is the last one");
    }

    #[test]
    fn always_allowed_tool_that_changed_is_asked_again() {
        let fake = HttpFake::start("");
        let mut tools = chat(&fake, vec![]);
        let mut tool = tools.offered.get("mcp__fake__echo").unwrap().clone();
        let key = ("fake".to_owned(), "echo".to_owned());
        tools.always.insert(key.clone(), tool.info.clone());
        let call = &step(&["echo"]).calls[0];
        assert!(tools.consent(&tool, call).unwrap());
        tool.info.annotations = Some(json!({ "destructiveHint": true }));
        // In a pipe there is no question, so the call is refused.
        assert!(!tools.consent(&tool, call).unwrap());
        assert!(!tools.always.contains_key(&key));
    }

    #[test]
    fn model_that_only_calls_is_stopped() {
        let fake = HttpFake::start("");
        let mut tools = chat(&fake, vec![AllowedCall::All]);
        let runtime = Builder::new_current_thread().build().unwrap();
        let (mut steps, mut made) = (Steps::default(), 0);
        while runtime.block_on(tools.make_calls(&mut steps, &[1], step(&["echo"]), &mut None)).unwrap() {
            made += 1;
        }
        assert_eq!(made, MAX_STEPS + 1);
        assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), MAX_STEPS);
    }

    #[test]
    fn shown_text_is_one_line_without_control_characters() {
        assert_eq!(shown("a\nb\u{1b}[2Jc\u{202e}d"), "a b\u{fffd}[2Jc\u{fffd}d");
        let long = shown(&"é".repeat(1000));
        assert!(long.ends_with("… (1000 characters)") && long.chars().count() < 330, "{long}");
    }
}
