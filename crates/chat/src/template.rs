//! Chat templates, rendered byte for byte as in transformers. Knows nothing of tokens.
//!
//! Both templates and requests are untrusted: see `sandbox`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

pub use jiff::civil::DateTime;
use minijinja::value::Serde;
use serde_json::{Map, Value};

use crate::call_form::CallForm;
use crate::environment::jinja_source;
use crate::error::{parse_json, read};
use crate::late_system;
use crate::sandbox::{Sandbox, budget::Allowance, memory::RenderMemory};
use crate::tokenizer::special_tokens;
use crate::{Error, Result};

/// Marks the end of the message to continue; its trailing space shows whether the template trims.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Name of the template used without tools.
const DEFAULT: &str = "default";
/// Name of the template used with tools, if it exists.
const TOOL_USE: &str = "tool_use";

/// A checkpoint's chat template.
#[derive(Debug)]
pub struct Template {
    sandbox: Sandbox,
    sources: BTreeMap<String, String>,
    special_tokens: Map<String, Value>,
    now: Option<DateTime>,
    /// Found when a conversation first has a call.
    call_form: OnceLock<CallForm>,
    /// Found when a conversation first has a system message after its start.
    writes_late_system: OnceLock<bool>,
}

/// Variables of a template.
#[derive(Debug, Clone, Default)]
pub struct RenderInput<'a> {
    /// The conversation, as returned by [`crate::conversation::prepare`].
    pub messages: &'a [Value],
    /// Tool definitions as in the OpenAI API.
    pub tools: Option<&'a [Value]>,
    /// Documents for retrieval templates.
    pub documents: Option<&'a [Value]>,
    /// Whether to append the start of the model's reply.
    pub add_generation_prompt: bool,
    /// Whether to end within the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// Other variables, such as `enable_thinking`: `chat_template_kwargs` of a request.
    pub kwargs: Map<String, Value>,
}

impl Template {
    /// Loads the template of a checkpoint: `chat_template.jinja` (with
    /// `additional_chat_templates/`), else `chat_template.json`, else `chat_template` in
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// There is no template, or a file cannot be read or parsed.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let json = |name: &str| {
            let path = dir.join(name);
            match path.exists() {
                true => parse_json(name, &read(&path, files::SETTINGS)?),
                false => Ok(Value::Null),
            }
        };
        let config = json("tokenizer_config.json")?;
        let sources = match jinja_files(dir)? {
            sources if !sources.is_empty() => sources,
            _ => match named_templates(&json("chat_template.json")?["chat_template"]) {
                sources if !sources.is_empty() => sources,
                _ => named_templates(&config["chat_template"]),
            },
        };
        if sources.is_empty() {
            return Err(Error::NoTemplate(dir.to_owned()));
        }
        Self::named(sources, special_tokens(&config))
    }

    /// Compiles a template; `special_tokens` are variables such as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`].
    pub fn new(source: &str, special_tokens: Map<String, Value>) -> Result<Self> {
        Self::named(BTreeMap::from([(DEFAULT.to_owned(), source.to_owned())]), special_tokens)
    }

    fn named(sources: BTreeMap<String, String>, special_tokens: Map<String, Value>) -> Result<Self> {
        let jinja = sources.iter().map(|(name, source)| (name.clone(), jinja_source(source)));
        let sandbox = Sandbox::new(jinja.collect())?;
        let (call_form, writes_late_system) = Default::default();
        Ok(Self { sandbox, sources, special_tokens, now: None, call_form, writes_late_system })
    }

    /// Fixes the time of `strftime_now`, for reproducible prompts.
    pub fn at(mut self, now: DateTime) -> Self {
        self.now = Some(now);
        self
    }

    /// Bounds the memory of its renderings together with those of other templates.
    pub fn within(mut self, memory: RenderMemory) -> Self {
        self.sandbox.memory = memory;
        self
    }

    /// The source of the template used without tools.
    pub fn source(&self) -> &str {
        &self.sources[self.choose(false)]
    }

    pub(crate) fn call_form(&self) -> CallForm {
        *self.call_form.get_or_init(|| CallForm::detect(self))
    }

    /// Whether it writes system messages that follow other turns.
    pub(crate) fn writes_late_system(&self) -> bool {
        *self.writes_late_system.get_or_init(|| late_system::is_written(self))
    }

    /// Renders the prompt of a conversation.
    ///
    /// # Errors
    /// [`Error::Refused`] if the template calls `raise_exception`; [`Error::OutOfFuel`],
    /// [`Error::TooCostly`] or [`Error::PromptTooLong`] if it exceeds a limit;
    /// [`Error::RenderMemoryInUse`] if others leave too little; [`Error::Message`] if there is no
    /// message to continue; [`Error::TemplateRender`] otherwise.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        if !input.continue_final_message {
            return self.run(input, input.messages);
        }
        let mut messages = input.messages.to_vec();
        let last = messages.len().saturating_sub(1);
        let missing = || Error::Message { index: last, message: "there is no text to continue".to_owned() };
        let content = messages.last_mut().and_then(|m| m.get_mut("content")).ok_or_else(missing)?;
        let text = content.as_str().ok_or_else(missing)?.to_owned();
        *content = format!("{text}{CONTINUE}").into();
        let prompt = self.run(input, &messages)?;
        let end = prompt.rfind(CONTINUE.trim_end()).filter(|_| prompt.contains(text.trim()));
        let end = end.ok_or_else(missing)?;
        let trimmed = !prompt[end..].starts_with(CONTINUE);
        Ok(if trimmed { prompt[..end].trim_end() } else { &prompt[..end] }.to_owned())
    }

    fn run(&self, input: &RenderInput, messages: &[Value]) -> Result<String> {
        let list = |list: Option<&[Value]>| minijinja::Value::from(Serde(list));
        let own = [
            ("messages", list(Some(messages))),
            ("tools", list(input.tools)),
            ("documents", list(input.documents)),
            ("add_generation_prompt", input.add_generation_prompt.into()),
        ];
        let given = self.special_tokens.iter().chain(&input.kwargs);
        let given = given.map(|(name, value)| (&name[..], minijinja::Value::from(Serde(value))));
        // Later variables replace earlier ones of the same name.
        let variables = minijinja::Value::from_pairs(given.chain(own));
        let bytes = messages.iter().chain(input.tools.into_iter().flatten()).map(size).sum();
        let allowance = Allowance::new(messages.len(), bytes);
        self.sandbox.render(self.choose(input.tools.is_some()), variables, allowance, self.now)
    }

    /// The name of the template to use.
    fn choose(&self, with_tools: bool) -> &str {
        let wanted = if with_tools && self.sources.contains_key(TOOL_USE) { TOOL_USE } else { DEFAULT };
        let found = self.sources.get_key_value(wanted).or_else(|| self.sources.first_key_value());
        found.map_or(DEFAULT, |(name, _)| name)
    }
}

/// `chat_template.jinja` and the named templates next to it.
fn jinja_files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let path = dir.join("chat_template.jinja");
    if path.exists() {
        let source = String::from_utf8_lossy(&read(&path, files::SETTINGS)?).into_owned();
        sources.insert(DEFAULT.to_owned(), source);
    }
    let Ok(entries) = std::fs::read_dir(dir.join("additional_chat_templates")) else { return Ok(sources) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if let (Some(name), Some("jinja")) = (path.file_stem(), path.extension().and_then(|e| e.to_str())) {
            let source = String::from_utf8_lossy(&read(&path, files::SETTINGS)?).into_owned();
            sources.insert(name.to_string_lossy().into_owned(), source);
        }
    }
    Ok(sources)
}

/// A template given as a string, or as a list of `{"name": .., "template": ..}`.
fn named_templates(value: &Value) -> BTreeMap<String, String> {
    if let Some(source) = value.as_str() {
        return BTreeMap::from([(DEFAULT.to_owned(), source.to_owned())]);
    }
    let entries = value.as_array().into_iter().flatten();
    entries
        .filter_map(|e| Some((e["name"].as_str()?.to_owned(), e["template"].as_str()?.to_owned())))
        .collect()
}

/// Approximate bytes of a value's strings.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum::<usize>() + 16,
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| key.len() + size(value)).sum::<usize>() + 16
        }
        _ => 8,
    }
}
