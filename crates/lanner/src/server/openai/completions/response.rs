//! Response bodies of `POST /v1/completions`: a chunk of a choice has the fields of the whole
//! choice.

use std::sync::Arc;

use chat::{Delta, TextOffsets};
use engine::TokenLogprobs;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{CompletionRequest, request::CompletionPrompts};
use crate::{
    generate::{ChoiceEvent, Token},
    model::{Model, Prompt},
    server::openai::{
        error::ApiError,
        format::{self, ChoiceFormat, finite, prompt_error},
        params::GenerateParams,
        prompt::PromptInput,
    },
};

/// Writes the responses to one request.
pub struct CompletionFormat {
    model: Arc<Model>,
    prompts: Vec<Echo>,
    /// Choices per prompt.
    n: usize,
    echo: bool,
    logprobs: bool,
    return_token_ids: bool,
    /// By choice: where the tokens reported so far end.
    offsets: Vec<TextOffsets>,
}

/// A prompt to repeat to the client.
struct Echo {
    text: String,
    ids: Vec<u32>,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl ChoiceFormat for CompletionFormat {
    type Request = CompletionRequest;
    type Prompts = CompletionPrompts;
    type Piece = CompletionChoice;
    type Choice = CompletionChoice;

    const ID_PREFIX: &'static str = "cmpl-";
    const CHUNK: &'static str = "text_completion";
    const WHOLE: &'static str = "text_completion";
    const PROMPT: &'static str = "prompt";

    fn prepare(
        model: &Arc<Model>,
        completions: CompletionPrompts,
        params: &GenerateParams,
    ) -> Result<(CompletionFormat, Vec<Prompt>), ApiError> {
        let prompts = completions.prompts.iter().map(|input| match &completions.suffix {
            None => input.encode(model, Self::PROMPT),
            Some(suffix) => fill_in(model, input, suffix),
        });
        let prompts: Vec<Prompt> = prompts.collect::<Result<_, _>>()?;
        let echoes = completions.prompts.into_iter().zip(&prompts).map(|(input, prompt)| Echo {
            text: match input {
                _ if !completions.echo => String::new(),
                PromptInput::Text(text) => text,
                PromptInput::Ids(ids) => model.decode(&ids),
            },
            ids: prompt.ids.clone(),
        });
        let wire = CompletionFormat {
            model: model.clone(),
            n: params.n,
            echo: completions.echo,
            logprobs: params.logprobs.is_some(),
            return_token_ids: completions.return_token_ids,
            offsets: (0..prompts.len() * params.n).map(|_| model.text_offsets(0)).collect(),
            prompts: echoes.collect(),
        };
        Ok((wire, prompts))
    }

    fn first_piece(&mut self, choice: usize) -> Option<CompletionChoice> {
        if !self.echo && !self.return_token_ids {
            return None;
        }
        let prompt = &self.prompts[choice / self.n];
        Some(CompletionChoice {
            index: choice,
            text: if self.echo { prompt.text.clone() } else { String::new() },
            prompt_token_ids: self.return_token_ids.then(|| prompt.ids.clone()),
            ..CompletionChoice::default()
        })
    }

    fn piece(&mut self, choice: usize, event: ChoiceEvent) -> Option<CompletionChoice> {
        let (text, tokens, finish_reason) = match event {
            ChoiceEvent::Text { delta: Delta::Content(text) | Delta::Reasoning(text), tokens } => {
                (text, tokens, None)
            }
            // Text completions have no tools.
            ChoiceEvent::Text { delta: Delta::ToolCall { .. } | Delta::ToolArguments { .. }, .. } => {
                return None;
            }
            ChoiceEvent::Finished(finish) => {
                (String::new(), finish.tokens, Some(format::finish_reason(finish.reason)))
            }
            ChoiceEvent::Prompt(logprobs) => return Some(self.prompt_logprobs(choice, logprobs)),
            ChoiceEvent::PromptProgress { .. } | ChoiceEvent::Logits { .. } => return None,
        };
        let token_ids = self.return_token_ids.then(|| tokens.iter().map(|token| token.id).collect());
        let logprobs = self.logprobs.then(|| self.logprobs(choice, tokens));
        Some(CompletionChoice {
            index: choice,
            text,
            logprobs,
            finish_reason,
            prompt_token_ids: None,
            token_ids,
        })
    }

    fn empty_choice(index: usize) -> CompletionChoice {
        CompletionChoice { index, ..CompletionChoice::default() }
    }

    fn append(choice: &mut CompletionChoice, piece: CompletionChoice) {
        choice.text.push_str(&piece.text);
        match (&mut choice.logprobs, piece.logprobs) {
            (Some(all), Some(more)) => all.extend(more),
            (all, more) => *all = all.take().or(more),
        }
        choice.finish_reason = choice.finish_reason.or(piece.finish_reason);
        choice.prompt_token_ids = choice.prompt_token_ids.take().or(piece.prompt_token_ids);
        if let Some(more) = piece.token_ids {
            choice.token_ids.get_or_insert_default().extend(more);
        }
    }
}

/// The prompt is what stands before the completion, without a token that begins a text.
fn fill_in(model: &Model, prefix: &PromptInput, suffix: &str) -> Result<Prompt, ApiError> {
    let prefix = match prefix {
        PromptInput::Text(text) => model.text_part(text),
        PromptInput::Ids(ids) => Ok(Prompt::from_ids(ids.clone())),
    };
    let prompt = prefix.and_then(|prefix| model.fill_in_prompt(&prefix, suffix));
    prompt.map_err(|error| prompt_error(&error, "suffix").code("unsupported_parameter"))
}

impl CompletionFormat {
    fn prompt_logprobs(&mut self, choice: usize, scores: Vec<Option<TokenLogprobs>>) -> CompletionChoice {
        let mut logprobs = CompletionLogprobs::default();
        let model = self.model.clone();
        for (index, score) in scores.into_iter().enumerate() {
            let Echo { text, ids } = &self.prompts[choice / self.n];
            let id = ids[index];
            // A special token is in the text only if the client wrote it there.
            let offset = self.offsets[choice].push(id, false);
            let shown = model.is_special(id) && occurs_at(text, offset, &self.token_text(id));
            if shown {
                self.offsets[choice].push(id, true);
            }
            self.report(id, offset, score, &mut logprobs);
        }
        // The answer follows the prompt's text, and is decoded by itself.
        let characters = self.prompts[choice / self.n].text.chars().count();
        self.offsets[choice] = model.text_offsets(characters);
        CompletionChoice { index: choice, logprobs: Some(logprobs), ..CompletionChoice::default() }
    }

    fn logprobs(&mut self, choice: usize, tokens: Vec<Token>) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        for token in tokens.into_iter().filter(|token| token.logprobs.is_some()) {
            let offset = self.offsets[choice].push(token.id, false);
            self.report(token.id, offset, token.logprobs, &mut logprobs);
        }
        logprobs
    }

    /// Adds one token; only a prompt's first token has no score.
    fn report(
        &self,
        id: u32,
        offset: usize,
        score: Option<TokenLogprobs>,
        logprobs: &mut CompletionLogprobs,
    ) {
        logprobs.text_offset.push(offset);
        logprobs.tokens.push(self.token_text(id));
        logprobs.token_logprobs.push(score.as_ref().map(|score| finite(score.logprob)));
        logprobs.top_logprobs.push(score.map(|score| self.top(&score)));
    }

    /// The most likely tokens by text, and the chosen one; of tokens with the same text the first
    /// counts.
    fn top(&self, score: &TokenLogprobs) -> Map<String, Value> {
        let mut top = Map::new();
        for &(id, logprob) in score.top.iter().chain([&(score.id, score.logprob)]) {
            top.entry(self.token_text(id)).or_insert_with(|| finite(logprob).into());
        }
        top
    }

    fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.model.token_bytes(id)).into_owned()
    }
}

/// Whether `token` occurs in `text` at this character.
fn occurs_at(text: &str, character: usize, token: &str) -> bool {
    let at = text.char_indices().map(|(at, _)| at).nth(character);
    at.is_some_and(|at| text[at..].starts_with(token))
}

impl CompletionLogprobs {
    fn extend(&mut self, more: CompletionLogprobs) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}
