//! An opened model: an engine with its tokenizer and chat template, which turn text into prompts
//! and tokens into text.

mod answer;
mod chat_prompt;
mod continuation;
mod image_tokens;
mod thinking;
mod vision;

use std::sync::{Arc, atomic::AtomicBool};

use chat::{
    FillInMiddle, Markers, Template, TextOffsets, Tokenizer, ToolOptions,
    grammar::{Grammars, ReasoningStart, Source, Start, Trigger},
    tools::{self, Dialect, InvalidTools, ToolSet},
};
use engine::{Constraint, Engine, Pooling, Request};
use serde_json::{Map, Value};

pub use self::{
    answer::AnswerParams,
    continuation::AnsweredPrompt,
    vision::{DecodingLimits, ImageMemory, NoVision, PromptImage, Vision},
};

use crate::{
    cache_breakpoints::CacheBreakpoints,
    cli::VolatilePrefix,
    config::ModelConfig,
    grammar::{self, ModelGrammars},
    image::{ImageError, Images},
    loading::{self, OpenError, Opened},
    pooling::EmbeddingHead,
    sampling::{self, Overrides},
    source::{ModelLocation, Source as ModelSource},
    terminal::say,
    thinking::{ThinkingDecision, ThinkingDefaults},
};

pub struct Model {
    /// The folder's name, ORG/NAME, or the built-in model's.
    pub name: String,
    /// The name that the user typed, if it is another.
    pub alias: Option<String>,
    /// Where it was found; `None`: it was made of parts.
    pub location: Option<ModelLocation>,
    pub engine: Engine,
    tokenizer: Arc<Tokenizer>,
    /// `None`: the model only completes text.
    template: Option<Template>,
    /// Where reasoning begins and ends; `None`: the model does not reason.
    markers: Option<Markers>,
    /// How the model writes tool calls; `None`: it is not known to do so.
    pub tool_dialect: Option<Dialect>,
    /// How embeddings are made, or why there are none.
    pub embedding_head: Result<EmbeddingHead, String>,
    /// How it takes images, or why it takes none.
    pub vision: Result<Vision, NoVision>,
    cache_breakpoints: CacheBreakpoints,
    grammars: ModelGrammars,
    pub volatile_prefix: VolatilePrefix,
    /// What requests do not say of their thinking.
    pub thinking: ThinkingDefaults,
}

/// The input of a chat template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages in the form of the OpenAI API. Images are parts that refer to `images`.
    pub messages: Vec<Value>,
    pub images: Images,
    pub tools: Vec<Value>,
    /// End with the start of an answer.
    pub add_generation_prompt: bool,
    /// End inside the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// Other variables of the template, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// Decide by rules whether to think, if nothing says so.
    pub auto_thinking: bool,
}

/// A prompt's tokens, and what the decoder of its answer needs.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub ids: Vec<u32>,
    /// In the order of the prompt.
    pub images: Vec<PromptImage>,
    /// Positions at which later prompts are likely to differ.
    pub cache_breakpoints: Vec<usize>,
    reasoning: Option<Markers>,
    starts_in_reasoning: bool,
    /// Whether the prompt has already closed the reasoning.
    reasoning_ended: bool,
    /// Whether the answer begins with the header of a channel, as gpt-oss writes it.
    begins_with_channel: bool,
    /// Whether the answer thinks; `None`: the model cannot.
    pub thinking: Option<ThinkingDecision>,
    /// The last user's turn, which tells the task.
    user_text: String,
}

impl Model {
    /// Loads the model that `config` names, with progress on stderr.
    ///
    /// # Errors
    /// The model is not there, or a file of it cannot be read.
    pub fn open(config: &ModelConfig) -> Result<Model, OpenError> {
        Model::open_unless(config, &Arc::default())
    }

    /// [`open`](Model::open) that fails once `stopped` is set.
    ///
    /// # Errors
    /// As [`open`](Model::open).
    pub fn open_unless(config: &ModelConfig, stopped: &Arc<AtomicBool>) -> Result<Model, OpenError> {
        let source = ModelSource::find(config.model.as_deref(), &config.hub)?;
        Model::open_at(source, config, stopped)
    }

    /// [`open_unless`](Model::open_unless) of the model at `source`, whatever `config` names.
    ///
    /// # Errors
    /// A file of it cannot be read.
    pub fn open_at(
        source: ModelSource,
        config: &ModelConfig,
        stopped: &Arc<AtomicBool>,
    ) -> Result<Model, OpenError> {
        let Opened { source, engine, tokenizer, template, embedding_head } =
            loading::open(source, config, stopped)?;
        let ModelSource { name, alias, location } = source;
        let model = Model::new(name, engine, tokenizer, template);
        let tool_dialect = config.tool_dialect.or(model.tool_dialect);
        let volatile_prefix = config.volatile_prefix;
        let (info, tokenizer) = (model.engine.info(), &model.tokenizer);
        let vision = Vision::open(&model.name, &location, info, tokenizer, config.max_image_tokens);
        if let Err(error @ NoVision::Config { .. }) = &vision {
            say(format_args!("lanner: warning: {error}"));
        }
        let thinking = config.thinking.defaults(&location, &config.hub);
        Ok(Model {
            alias,
            location: Some(location),
            embedding_head,
            vision,
            volatile_prefix,
            tool_dialect,
            thinking,
            ..model
        })
    }

    pub fn new(name: String, engine: Engine, tokenizer: Tokenizer, template: Option<Template>) -> Model {
        let markers = template.as_ref().and_then(|template| Markers::detect(template.source()));
        let tool_dialect =
            template.as_ref().and_then(|template| Dialect::detect(template.source(), &tokenizer));
        let (tokenizer, cache_breakpoints) = (Arc::new(tokenizer), CacheBreakpoints::default());
        let volatile_prefix = VolatilePrefix::default();
        let vision = Err(NoVision::TextModel(name.clone()));
        Model {
            name,
            alias: None,
            location: None,
            engine,
            tokenizer,
            template,
            markers,
            tool_dialect,
            embedding_head: Ok(EmbeddingHead::new(Pooling::Mean)),
            vision,
            cache_breakpoints,
            grammars: ModelGrammars::default(),
            volatile_prefix,
            thinking: ThinkingDefaults::default(),
        }
    }

    /// Stops the engine after `work`, also if that fails.
    pub fn with<T>(self, work: impl FnOnce(&Model) -> T) -> T {
        let result = work(&self);
        self.engine.stop();
        result
    }

    /// A prompt of plain text, to be continued.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn text_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        self.check_length(text)?;
        Ok(Prompt::from_ids(self.tokenizer.encode(text, true)?))
    }

    /// A part of a prompt of plain text, without special tokens around it.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn text_part(&self, text: &str) -> Result<Prompt, PromptError> {
        self.check_length(text)?;
        Ok(Prompt::from_ids(self.tokenizer.encode(text, false)?))
    }

    /// A prompt whose answer stands between `prefix` and `suffix`.
    ///
    /// # Errors
    /// The vocabulary has no tokens for that, or the tokenizer cannot encode the suffix.
    pub fn fill_in_prompt(&self, prefix: &Prompt, suffix: &str) -> Result<Prompt, PromptError> {
        let fill_in = FillInMiddle::detect(&self.tokenizer);
        let fill_in = fill_in.ok_or_else(|| PromptError::NoFillInMiddle(self.name.clone()))?;
        self.check_length(suffix)?;
        Ok(Prompt::from_ids(fill_in.prompt(&self.tokenizer, &prefix.ids, suffix)?))
    }

    /// Tokens of a text of any length, special tokens included.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        self.encode_text(text, true)
    }

    /// Tokens of a text of any length, with or without the special tokens around it.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn encode_text(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        Ok(self.tokenizer.encode(text, add_special_tokens)?)
    }

    /// Encoding megabytes costs seconds and gigabytes; a text this long is refused before.
    fn check_length(&self, text: &str) -> Result<(), PromptError> {
        let context = self.engine.info().context_length;
        match self.tokenizer.exceeded_bytes(text, context) {
            Some(most) => Err(PromptError::TooLong { bytes: text.len(), most, context }),
            None => Ok(()),
        }
    }

    pub fn request(&self, ids: Vec<u32>, overrides: &Overrides) -> Request {
        overrides.request(ids, self.engine.info())
    }

    fn tool_options(
        &self,
        tools: Option<&Arc<ToolSet>>,
        stream: bool,
    ) -> Result<Option<ToolOptions>, PromptError> {
        let whole_reply = self.tool_dialect.filter(|dialect| dialect.is_whole_reply());
        let options = |dialect, tools| ToolOptions { dialect, tools, id_seed: sampling::random(), stream };
        match (tools, whole_reply) {
            (Some(tools), _) => Ok(Some(options(self.dialect()?, tools.clone()))),
            (None, Some(dialect)) => Ok(Some(options(dialect, Arc::new(ToolSet::none())))),
            (None, None) => Ok(None),
        }
    }

    /// Keeps the tool calls of an answer valid, and an answer without calls in `format`.
    /// `None`: this tokenizer has no grammars, and nothing is required.
    ///
    /// # Errors
    /// The model has no syntax for tool calls, or a schema cannot be honoured.
    pub fn tool_constraint(
        &self,
        prompt: &Prompt,
        tools: &ToolSet,
        format: Option<&Source>,
    ) -> Result<Option<Arc<dyn Constraint>>, PromptError> {
        let dialect = self.dialect()?;
        let grammars = match self.grammars() {
            Ok(grammars) => grammars,
            Err(error) if tools.required || format.is_some() => return Err(error),
            Err(error) => {
                tracing::warn!("tool calls are not constrained: {error}");
                return Ok(None);
            }
        };
        let at_once = tools.required || format.is_some();
        let (mut source, triggers) = tools::grammar(dialect, tools, &grammars, at_once)?;
        if let Some(format) = format.filter(|_| !tools.required) {
            source = Source::Lark(format!("start: {} | {}", source.expression()?, format.expression()?));
        }
        let constraint = self
            .constraint(prompt, &source, triggers)
            .map_err(|error| InvalidTools { field: "tools".into(), message: error.to_string() });
        Ok(constraint.map(Some)?)
    }

    /// Whether a grammar can keep calls of these tools valid, or none is needed.
    pub fn can_follow(&self, tools: &ToolSet) -> bool {
        let result = self.tool_constraint(&Prompt::from_ids(vec![]), tools, None);
        !matches!(result, Err(PromptError::Tools(_)))
    }

    fn dialect(&self) -> Result<Dialect, PromptError> {
        self.tool_dialect.ok_or_else(|| PromptError::NoToolDialect(self.name.clone()))
    }

    /// Keeps the content of an answer in this format.
    ///
    /// # Errors
    /// The format cannot be honoured.
    pub fn format_constraint(
        &self,
        prompt: &Prompt,
        format: &Source,
    ) -> Result<Arc<dyn Constraint>, PromptError> {
        match prompt.begins_with_channel {
            true => {
                let source = tools::in_final_channel(format, &*self.grammars()?)?;
                self.constraint(prompt, &source, vec![])
            }
            false => self.constraint(prompt, format, vec![]),
        }
    }

    /// The constraint on the content of an answer: from its start, or from the first of the
    /// triggers on. Reasoning before it is free.
    ///
    /// # Errors
    /// The grammar cannot be used.
    pub fn constraint(
        &self,
        prompt: &Prompt,
        source: &Source,
        triggers: Vec<Trigger>,
    ) -> Result<Arc<dyn Constraint>, PromptError> {
        let reasoning = prompt.reasoning.clone().filter(|_| !prompt.reasoning_ended);
        let inside = prompt.starts_in_reasoning;
        let reasoning = reasoning.map(|markers| ReasoningStart { markers, inside });
        Ok(grammar::constraint(&*self.grammars()?, source, &Start { reasoning, triggers })?)
    }

    /// The grammars of this model's tokens.
    ///
    /// # Errors
    /// They cannot follow grammars.
    pub fn grammars(&self) -> Result<Arc<Grammars>, PromptError> {
        Ok(self.grammars.get(&self.tokenizer, self.engine.info())?)
    }

    /// The text of some tokens, control tokens included.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Offsets of tokens in a text that begins after `characters` others.
    pub fn text_offsets(&self, characters: usize) -> TextOffsets {
        TextOffsets::new(self.tokenizer.clone(), characters)
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template's source; `None`: the model only completes text.
    pub fn template_source(&self) -> Option<&str> {
        self.template.as_ref().map(Template::source)
    }

    /// Whether answers may begin with reasoning.
    pub fn reasons(&self) -> bool {
        self.markers.is_some()
    }

    /// Whether the vocabulary has the tokens of [`fill_in_prompt`](Model::fill_in_prompt).
    pub fn fills_in(&self) -> bool {
        FillInMiddle::detect(&self.tokenizer).is_some()
    }

    /// Whether a token is special; answers do not show it.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// The bytes of one token, which need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id)
    }
}

/// Why a prompt cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("{0} has no chat template; send plain text to the completions endpoint, or use --raw")]
    NoTemplate(String),
    #[error("how {0} writes tool calls is not known; name its syntax with --tool-dialect")]
    NoToolDialect(String),
    #[error("{0} has no tokens to fill in the middle of a text; leave `suffix` out")]
    NoFillInMiddle(String),
    #[error(transparent)]
    NoVision(NoVision),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(
        "the chat template wrote {printed} image placeholders for {images} images; put each image into a turn whose images the template writes, as a user's"
    )]
    Placeholders { images: usize, printed: usize },
    #[error("the tokenizer does not keep the model's image token whole, so images cannot be placed")]
    ImageToken,
    #[error(transparent)]
    Tools(#[from] InvalidTools),
    #[error("the request's time was up while its images were decoded")]
    TimeIsUp,
    #[error("the request was cancelled while its images were decoded")]
    Cancelled,
    #[error(
        "the prompt has {bytes} bytes, of which the model's context of {context} tokens holds at most {most}; shorten it"
    )]
    TooLong { bytes: usize, most: usize, context: usize },
    #[error(transparent)]
    Text(#[from] chat::Error),
}

impl PromptError {
    /// Whether the request is at fault.
    pub fn is_request_error(&self) -> bool {
        match self {
            PromptError::NoTemplate(_)
            | PromptError::NoToolDialect(_)
            | PromptError::NoFillInMiddle(_)
            | PromptError::NoVision(_)
            | PromptError::Image(_)
            | PromptError::Placeholders { .. }
            | PromptError::Tools(_)
            | PromptError::TimeIsUp
            | PromptError::Cancelled
            | PromptError::TooLong { .. } => true,
            PromptError::ImageToken => false,
            PromptError::Text(error) => error.is_request_error(),
        }
    }
}

impl Prompt {
    /// Number of tokens that stand for images.
    pub fn num_image_tokens(&self) -> usize {
        self.images.iter().flat_map(|image| &image.positions).map(ExactSizeIterator::len).sum()
    }

    pub fn from_ids(ids: Vec<u32>) -> Prompt {
        Prompt {
            ids,
            images: vec![],
            cache_breakpoints: vec![],
            reasoning: None,
            starts_in_reasoning: false,
            reasoning_ended: false,
            begins_with_channel: false,
            thinking: None,
            user_text: String::new(),
        }
    }
}
