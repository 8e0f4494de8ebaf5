//! Compiles grammars for one tokenizer.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use llguidance::{
    ParserFactory,
    api::TopLevelGrammar,
    earley::SlicedBiasComputer,
    toktrie::{InferenceCapabilities, TokEnv, TokenizerEnv},
};
use serde_json::json;

use super::{Matcher, Source, Start, Trigger, gbnf, limits, schema, token_env::TokenEnv, watch::Watches};
use crate::{Error, Result, Tokenizer};

/// Compiled grammars that are kept for later requests.
const CACHED: usize = 32;
/// Classes that stand for ASCII alone, as in JSON Schema's regular expressions.
const ASCII_CLASSES: &str = "dw";
/// Stack of the compiling thread: grammar parsers recurse.
const STACK_BYTES: usize = 16 << 20;

/// Data shared by the grammars of one tokenizer. Building it takes time; share it in an `Arc`.
pub struct Grammars {
    shared: Arc<Shared>,
    factory: ParserFactory,
    /// Oldest first.
    cached: Mutex<VecDeque<Grammar>>,
}

/// Facts about the tokenizer that matchers need.
pub(super) struct Shared {
    pub env: Arc<TokenEnv>,
    pub tokenizer: Arc<Tokenizer>,
    pub eos_ids: Vec<u32>,
    /// The tokens of one and of two line feeds, with that number.
    pub line_feeds: Vec<(u32, usize)>,
    /// Tokens that complete a text, by the texts and the preceding text.
    pub completing: Mutex<HashMap<WatchedText, Arc<[u32]>>>,
}

/// Texts that are searched for, and the text before a token.
type WatchedText = (Vec<Vec<u8>>, Vec<u8>);

/// A compiled grammar. Cheap to clone.
#[derive(Clone)]
pub struct Grammar(pub(super) Arc<Compiled>);

pub(super) struct Compiled {
    source: Source,
    pub start: Start,
    pub shared: Arc<Shared>,
    pub watches: Watches,
    /// At the start of the grammar; cloned for each matcher.
    parser: Mutex<llguidance::Matcher>,
}

impl Grammars {
    /// For a model with this vocabulary size, whose answers end with one of `eos_ids`.
    ///
    /// # Errors
    /// No token can end an answer, or the tokenizer's tokens cannot be used.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, eos_ids: &[u32]) -> Result<Grammars> {
        let mut eos_ids = eos_ids.to_vec();
        eos_ids.retain(|&id| (id as usize) < vocab_size);
        if eos_ids.is_empty() {
            return Err(Error::Grammar("the model has no token that ends an answer".into()));
        }
        let env = Arc::new(TokenEnv::new(tokenizer.clone(), vocab_size, &eos_ids));
        let capabilities = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
        let slices = SlicedBiasComputer::general_slices();
        let as_env: TokEnv = env.clone();
        let mut factory = ParserFactory::new(&as_env, capabilities, &slices).map_err(|e| failed(&e))?;
        *factory.limits_mut() = limits::parser_limits();
        factory.quiet();
        let line_feeds = [1, 2].map(|count| (env.tok_trie().token_id(&b"\n\n"[..count]), count));
        let line_feeds = line_feeds.into_iter().filter_map(|(id, count)| Some((id?, count))).collect();
        let shared = Arc::new(Shared { env, tokenizer, eos_ids, line_feeds, completing: Mutex::default() });
        Ok(Grammars { shared, factory, cached: Mutex::default() })
    }

    /// Compiles a grammar, or returns the compiled one of an earlier call.
    ///
    /// # Errors
    /// [`Error::Grammar`]: invalid syntax, too large, no token can begin an answer, or a schema
    /// keyword cannot be honoured.
    pub fn compile(&self, source: &Source, start: &Start) -> Result<Grammar> {
        let is_same = |known: &&Grammar| known.0.source == *source && known.0.start == *start;
        let known = self.cached().iter().find(is_same).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let parser = self.parser(source)?;
        let watches = Watches::new(start, &self.shared);
        let grammar = Grammar(Arc::new(Compiled {
            source: source.clone(),
            start: start.clone(),
            shared: self.shared.clone(),
            watches,
            parser: Mutex::new(parser),
        }));
        let mut cached = self.cached();
        if cached.len() == CACHED {
            cached.pop_front();
        }
        cached.push_back(grammar.clone());
        Ok(grammar)
    }

    /// `text` as part of a Lark rule, with its special tokens by id.
    pub fn literal(&self, text: &str) -> String {
        let special = |id: &u32| self.shared.tokenizer.is_special(*id);
        let ids = self.shared.tokenizer.encode(text, false).unwrap_or_default();
        let (mut parts, mut rest) = (vec![], text);
        for id in ids.into_iter().filter(special) {
            let spelled = self.shared.tokenizer.id_to_token(id).unwrap_or_default();
            let Some((before, after)) = rest.split_once(&spelled) else { continue };
            parts.extend((!before.is_empty()).then(|| json!(before).to_string()));
            parts.push(format!("<[{id}]>"));
            rest = after;
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(json!(rest).to_string());
        }
        parts.join(" ")
    }

    /// A trigger for this text: the special token if it is one.
    pub fn trigger(&self, text: &str) -> Trigger {
        let id = self.shared.tokenizer.token_to_id(text).filter(|&id| self.shared.tokenizer.is_special(id));
        id.map_or_else(|| Trigger::Text(text.to_owned()), Trigger::Token)
    }

    fn parser(&self, source: &Source) -> Result<llguidance::Matcher> {
        let grammar = source.top_level()?;
        let compile = || {
            let mut parser = llguidance::Matcher::new(self.factory.create_parser(grammar));
            // Computes the first mask, which fails if no token can begin an answer.
            parser.compute_mask_or_eos().map(|_| parser).map_err(|e| failed(&e))
        };
        let on_large_stack = thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, compile);
            thread.map(|thread| thread.join())
        });
        match on_large_stack {
            Ok(Ok(parser)) => parser,
            Ok(Err(_)) => Err(Error::Grammar("the compiler of grammars failed on it".into())),
            Err(error) => Err(Error::Grammar(format!("there is no thread to compile it: {error}"))),
        }
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, VecDeque<Grammar>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grammar {
    /// A matcher at the start of an answer.
    pub fn matcher(&self) -> Matcher {
        Matcher::new(self.clone())
    }
}

impl Compiled {
    pub(super) fn parser(&self) -> llguidance::Matcher {
        // A deep clone shares no lock with the matchers of other answers.
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Grammar").field("source", &self.0.source).field("start", &self.0.start).finish()
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Source {
    /// The source as an expression in a rule of a [`Source::Lark`] grammar.
    ///
    /// # Errors
    /// It is too large, or a schema has a keyword that cannot be honoured.
    pub fn expression(&self) -> Result<String> {
        let expression = match self {
            Source::JsonSchema(schema) => {
                limits::check_text(&schema.to_string())?;
                format!("%json {}", schema::prepared(schema)?)
            }
            Source::JsonObject => format!("%json {}", schema::prepared(&json!({ "type": "object" }))?),
            Source::Regex(regex) => {
                format!("/{}/", llguidance::regex_to_lark(unanchored(regex), ASCII_CLASSES))
            }
            Source::Choice(choices) => {
                limits::check_choices(choices)?;
                let texts: Vec<String> = choices.iter().map(|choice| json!(choice).to_string()).collect();
                format!("({})", texts.join(" | "))
            }
            Source::Lark(lark) => format!("%lark {{\n{lark}\n}}"),
            Source::Gbnf(gbnf) => format!("%lark {{\n{}\n}}", gbnf::to_lark(gbnf)?),
        };
        limits::check_text(&expression)?;
        Ok(expression)
    }

    fn top_level(&self) -> Result<TopLevelGrammar> {
        Ok(match self {
            Source::JsonSchema(schema) => {
                limits::check_text(&schema.to_string())?;
                TopLevelGrammar::from_json_schema(schema::prepared(schema)?)
            }
            Source::Lark(lark) => {
                limits::check_text(lark)?;
                TopLevelGrammar::from_lark(lark.clone())
            }
            Source::Gbnf(gbnf) => {
                limits::check_text(gbnf)?;
                TopLevelGrammar::from_lark(gbnf::to_lark(gbnf)?)
            }
            // A terminal, so that one text may be a prefix of another.
            Source::Choice(_) => {
                TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", self.expression()?))
            }
            other => TopLevelGrammar::from_lark(format!("start: {}", other.expression()?)),
        })
    }
}

/// A regular expression without anchors at its ends: it matches the whole answer anyway.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if rest.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0 => rest,
        _ => regex,
    }
}

/// llguidance's error, without the parser's state.
pub(super) fn failed(error: &impl fmt::Display) -> Error {
    let text = error.to_string();
    Error::Grammar(text.split("\n<").next().unwrap_or_default().trim().to_owned())
}
