//! Chat templates, rendered byte for byte as transformers renders them. Knows nothing of tokens.
//!
//! Steps and output are limited, so that an endless template ends. A malicious one can still exhaust memory, by doubling
//! a string, or the stack, by nesting lists: templates come with a checkpoint the user chose, never from a request.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

pub use jiff::civil::DateTime;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::clock::strftime;
use crate::environment::{Refusal, environment, fuel, jinja_source};
use crate::error::{parse_json, read};
use crate::tokenizer::special_tokens;
use crate::{Error, Result};

/// The longest prompt a template may write, in bytes.
const MAX_PROMPT: usize = 64 << 20;
/// Marks, while rendering, where the message to continue ends; the space shows whether the template trims.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// The template used when the checkpoint names several and nothing else fits.
const DEFAULT: &str = "default";
/// The template used, where there is one, for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    sources: BTreeMap<String, String>,
    special_tokens: Map<String, Value>,
}

/// What a template is given.
#[derive(Debug, Clone, Default)]
pub struct RenderInput<'a> {
    /// The conversation, as [`crate::conversation::prepare`] leaves it.
    pub messages: &'a [Value],
    /// Definitions of tools, as in the OpenAI API.
    pub tools: Option<&'a [Value]>,
    /// Documents for retrieval templates.
    pub documents: Option<&'a [Value]>,
    /// Whether to end with the start of the model's reply.
    pub add_generation_prompt: bool,
    /// Whether to end inside the last message, so that the model goes on with it.
    pub continue_final_message: bool,
    /// Anything else the template reads, such as `enable_thinking`: `chat_template_kwargs` of a request.
    pub kwargs: Map<String, Value>,
}

impl Template {
    /// Finds the template of a checkpoint: `chat_template.jinja` (with `additional_chat_templates/`), else
    /// `chat_template.json`, else `chat_template` in `tokenizer_config.json`.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let json = |name: &str| {
            let path = dir.join(name);
            if path.is_file() { parse_json(name, &read(&path)?) } else { Ok(Value::Null) }
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

    /// A template from its source; `special_tokens` are the variables `bos_token`, `eos_token` and their like.
    pub fn new(source: &str, special_tokens: Map<String, Value>) -> Result<Self> {
        Self::named(BTreeMap::from([(DEFAULT.to_owned(), source.to_owned())]), special_tokens)
    }

    fn named(sources: BTreeMap<String, String>, special_tokens: Map<String, Value>) -> Result<Self> {
        let mut environment = environment();
        for (name, source) in &sources {
            environment
                .add_template_owned(name.clone(), jinja_source(source))
                .map_err(|e| Error::TemplateSyntax(e.to_string()))?;
        }
        Ok(Self { environment, sources, special_tokens })
    }

    /// Fixes the time that `strftime_now` sees, for prompts that do not change with the date.
    pub fn at(mut self, now: DateTime) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| strftime(format, now));
        self
    }

    /// The source of the template used without tools.
    pub fn source(&self) -> &str {
        &self.sources[self.choose(false)]
    }

    /// The prompt of a conversation.
    ///
    /// Errors: [`Error::Refused`] when the template itself objects, [`Error::OutOfFuel`] and
    /// [`Error::PromptTooLong`] when it does not end, [`Error::TemplateRender`] for the rest.
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
        let mut variables = self.special_tokens.clone();
        variables.extend(input.kwargs.clone());
        let list = |list: Option<&[Value]>| list.map_or(Value::Null, |l| Value::Array(l.to_vec()));
        variables.insert("messages".to_owned(), list(Some(messages)));
        variables.insert("tools".to_owned(), list(input.tools));
        variables.insert("documents".to_owned(), list(input.documents));
        variables.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());

        let mut prompt = Limited { bytes: Vec::new(), overflow: false };
        let context = minijinja::Value::from(Serde(&variables));
        let fuel = fuel(messages.len());
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(self.choose(input.tools.is_some()));
        match template.and_then(|t| t.render_captured_to(context, &mut prompt).map(drop)) {
            Ok(()) => Ok(String::from_utf8_lossy(&prompt.bytes).into_owned()),
            Err(_) if prompt.overflow => Err(Error::PromptTooLong(MAX_PROMPT)),
            Err(error) => Err(render_error(&error, fuel)),
        }
    }

    /// The name of the template to use.
    fn choose(&self, with_tools: bool) -> &str {
        let wanted = if with_tools && self.sources.contains_key(TOOL_USE) { TOOL_USE } else { DEFAULT };
        let found = self.sources.get_key_value(wanted).or_else(|| self.sources.first_key_value());
        found.map_or(DEFAULT, |(name, _)| name)
    }
}

/// `chat_template.jinja` and the named templates beside it.
fn jinja_files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let path = dir.join("chat_template.jinja");
    if path.is_file() {
        sources.insert(DEFAULT.to_owned(), String::from_utf8_lossy(&read(&path)?).into_owned());
    }
    let Ok(entries) = std::fs::read_dir(dir.join("additional_chat_templates")) else { return Ok(sources) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if let (Some(name), Some("jinja")) = (path.file_stem(), path.extension().and_then(|e| e.to_str())) {
            let source = String::from_utf8_lossy(&read(&path)?).into_owned();
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

fn render_error(error: &minijinja::Error, fuel: u64) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return Error::Refused(message.clone());
        }
        if current.downcast_ref().is_some_and(|e: &minijinja::Error| e.kind() == ErrorKind::OutOfFuel) {
            return Error::OutOfFuel(fuel);
        }
        cause = current.source();
    }
    Error::TemplateRender(error.to_string())
}

/// A buffer that refuses to grow beyond the longest prompt.
struct Limited {
    bytes: Vec<u8>,
    overflow: bool,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_PROMPT {
            self.overflow = true;
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
