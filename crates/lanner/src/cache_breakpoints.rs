//! Cache breakpoints: positions at which later prompts are likely to differ from a rendered one,
//! after the system message and the tools, and after the conversation. Found by rendering variants
//! and comparing them; no template is known here.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use chat::{RenderInput, Template, Tokenizer};
use serde_json::{Map, Value, json};

/// Entries of each cache.
const CACHED: usize = 8;
/// Longer heads are not cached, in bytes.
const MAX_HEAD: usize = 1 << 20;
/// Tokens at the end of a head that are searched for a special token.
const UNSTABLE: usize = 16;
/// A first message unlike any real one.
const PROBE: &str = "\u{1F989}?";

/// Caches of what was found for a model's template, least recently used first. No lock is held
/// while rendering or tokenising: one huge prompt would block all others.
#[derive(Default)]
pub(crate) struct CacheBreakpoints {
    heads: Mutex<Vec<Head>>,
    openings: Mutex<Vec<Arc<Opening>>>,
}

/// A head, and the tokens of its start.
#[derive(Clone)]
struct Head {
    rendered: Arc<RenderedHead>,
    /// Bytes that it had in common with a prompt, and their tokens.
    shared: usize,
    ids: Arc<[u32]>,
}

/// System messages and tools, rendered with [`PROBE`] as the first message.
struct RenderedHead {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
    text: String,
}

/// The text that opens an answer.
struct Opening {
    kwargs: Map<String, Value>,
    text: Option<String>,
}

/// A prompt: `template` rendered `input` as `text`, whose tokens are `ids`.
#[derive(Clone, Copy)]
pub(crate) struct Rendered<'a> {
    pub template: &'a Template,
    pub tokenizer: &'a Tokenizer,
    pub input: &'a RenderInput<'a>,
    pub text: &'a str,
    pub ids: &'a [u32],
}

impl CacheBreakpoints {
    /// Breakpoints in the prompt's ids; one that cannot be found is omitted.
    pub(crate) fn find(&self, prompt: Rendered) -> Vec<usize> {
        let (head, history) = (self.head(prompt), self.history(prompt));
        head.into_iter().chain(history).filter(|&at| at > 0).collect()
    }

    fn head(&self, Rendered { template, tokenizer, input, text, ids }: Rendered) -> Option<usize> {
        let is_system = |message: &&Value| message["role"] == "system" || message["role"] == "developer";
        let system: Vec<Value> = input.messages.iter().take_while(is_system).cloned().collect();
        if system.is_empty() && input.tools.is_none() {
            return None;
        }
        let is_known = |head: &Head| head.matches(&system, input);
        let known = with(&self.heads, |heads| heads.iter().find(|head| is_known(head)).cloned());
        let mut head = match known {
            Some(head) => head,
            None => Head::render(template, input, system.clone())?,
        };
        let shared = common_prefix(&head.rendered.text, text);
        if head.shared != shared {
            head.ids = tokenizer.encode_prompt(&text[..shared]).ok()?.into();
            head.shared = shared;
        }
        let at = stable_tokens(&ids[..common_tokens(&head.ids, ids)], tokenizer);
        if head.rendered.text.len() <= MAX_HEAD {
            with(&self.heads, |heads| remember(heads, head, is_known));
        }
        Some(at)
    }

    fn history(&self, Rendered { template, tokenizer, input, text, ids }: Rendered) -> Option<usize> {
        if !input.add_generation_prompt || input.continue_final_message {
            return None;
        }
        // Most templates open every answer with the same text; then its tokens end the prompt.
        if let Some(opening) = self.opening(template, &input.kwargs).filter(|opening| text.ends_with(opening))
        {
            let opening = tokenizer.encode_prompt(&opening).ok()?;
            if ids.ends_with(&opening) {
                return Some(ids.len() - opening.len());
            }
        }
        let without = template.render(&RenderInput { add_generation_prompt: false, ..input.clone() }).ok()?;
        let before = tokenizer.encode_prompt(&text[..common_prefix(&without, text)]).ok()?;
        Some(common_tokens(&before, ids))
    }

    /// The text that a template adds to a conversation to open the answer.
    fn opening(&self, template: &Template, kwargs: &Map<String, Value>) -> Option<String> {
        let is_known = |opening: &Arc<Opening>| opening.kwargs == *kwargs;
        let known = with(&self.openings, |openings| openings.iter().find(|o| is_known(o)).cloned());
        let opening = known.unwrap_or_else(|| Opening::render(template, kwargs).into());
        let text = opening.text.clone();
        with(&self.openings, |openings| remember(openings, opening, is_known));
        text
    }
}

impl Head {
    fn matches(&self, system: &[Value], input: &RenderInput) -> bool {
        let RenderedHead { messages, tools, kwargs, .. } = &*self.rendered;
        messages == system && tools.as_deref() == input.tools && *kwargs == input.kwargs
    }

    fn render(template: &Template, input: &RenderInput, system: Vec<Value>) -> Option<Head> {
        let messages = [&system[..], &[json!({ "role": "user", "content": PROBE })]].concat();
        let text = template.render(&RenderInput {
            messages: &messages,
            add_generation_prompt: false,
            continue_final_message: false,
            ..input.clone()
        });
        let rendered = RenderedHead {
            messages: system,
            tools: input.tools.map(<[Value]>::to_vec),
            kwargs: input.kwargs.clone(),
            text: text.ok()?,
        };
        Some(Head { rendered: rendered.into(), shared: 0, ids: [].into() })
    }
}

impl Opening {
    fn render(template: &Template, kwargs: &Map<String, Value>) -> Opening {
        let messages = [json!({ "role": "user", "content": PROBE })];
        let render = |add_generation_prompt| {
            let kwargs = kwargs.clone();
            template.render(&RenderInput {
                messages: &messages,
                add_generation_prompt,
                kwargs,
                ..RenderInput::default()
            })
        };
        let text = match (render(false), render(true)) {
            (Ok(without), Ok(with)) => with.strip_prefix(&without).map(str::to_owned),
            _ => None,
        };
        Opening { kwargs: kwargs.clone(), text: text.filter(|text| !text.is_empty()) }
    }
}

fn with<T, R>(list: &Mutex<Vec<T>>, work: impl FnOnce(&mut Vec<T>) -> R) -> R {
    work(&mut list.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Replaces the entry of the same key, which another request may have added meanwhile.
fn remember<T>(list: &mut Vec<T>, new: T, is_same: impl Fn(&T) -> bool) {
    list.retain(|known| !is_same(known));
    list.push(new);
    if list.len() > CACHED {
        list.remove(0);
    }
}

/// Bytes of the common prefix of two texts, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    let bytes = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=bytes).rev().find(|&at| a.is_char_boundary(at)).unwrap_or(0)
}

/// How many tokens stay the same whatever text follows: special tokens never merge, others may
/// merge with the next text.
fn stable_tokens(ids: &[u32], tokenizer: &Tokenizer) -> usize {
    let last = ids.iter().rev().take(UNSTABLE).position(|&id| tokenizer.is_special(id));
    ids.len().saturating_sub(last.map_or(1, |back| back + 1))
}

fn common_tokens(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
