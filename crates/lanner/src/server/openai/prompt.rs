//! The fields `prompt` of text completions and `input` of embeddings: texts or token ids, one or
//! several.

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use engine::RequestError;
use schemars::JsonSchema;

use crate::{
    model::{Model, Prompt},
    server::openai::{error::ApiError, prompt_error},
};

#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum PromptField {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

const PROMPTS: &str = "a string, an array of strings, an array of token ids, or an array of those";

/// A prompt, or an element of an array of prompts.
enum Element {
    Text(String),
    Id(u32),
    Elements(PromptField),
    Wrong,
}

/// Reads token ids directly: serde's untagged enums take eight times the memory.
struct ElementVisitor {
    /// Levels of arrays that may still be nested here.
    levels: usize,
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PromptField, D::Error> {
        match deserializer.deserialize_any(ElementVisitor { levels: 2 })? {
            Element::Text(text) => Ok(PromptField::Text(text)),
            Element::Elements(prompts) => Ok(prompts),
            Element::Id(_) | Element::Wrong => Err(D::Error::custom(format_args!("it must be {PROMPTS}"))),
        }
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for ElementVisitor {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(PROMPTS)
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }

    fn visit_u64<E>(self, id: u64) -> Result<Element, E> {
        Ok(u32::try_from(id).map_or(Element::Wrong, Element::Id))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_unit<E>(self) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Element::Wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Element, A::Error> {
        let (mut all, mut is_wrong) = (None, self.levels == 0);
        let levels = self.levels.saturating_sub(1);
        while let Some(element) = array.next_element_seed(ElementVisitor { levels })? {
            all = match (all, element) {
                _ if is_wrong => None,
                (None, Element::Text(text)) => Some(PromptField::Texts(vec![text])),
                (None, Element::Id(id)) => Some(PromptField::Ids(vec![id])),
                (None, Element::Elements(PromptField::Ids(ids))) if levels > 0 => {
                    Some(PromptField::IdLists(vec![ids]))
                }
                (Some(PromptField::Texts(mut texts)), Element::Text(text)) => {
                    texts.push(text);
                    Some(PromptField::Texts(texts))
                }
                (Some(PromptField::Ids(mut ids)), Element::Id(id)) => {
                    ids.push(id);
                    Some(PromptField::Ids(ids))
                }
                (Some(PromptField::IdLists(mut lists)), Element::Elements(PromptField::Ids(ids))) => {
                    lists.push(ids);
                    Some(PromptField::IdLists(lists))
                }
                _ => {
                    is_wrong = true;
                    None
                }
            };
        }
        // An empty array is a list of no ids.
        let all = all.unwrap_or_else(|| PromptField::Ids(vec![]));
        Ok(if is_wrong { Element::Wrong } else { Element::Elements(all) })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
}

impl PromptField {
    /// One input per prompt, at least one and at most `most`; `param` is the field's name.
    ///
    /// # Errors
    /// 400: there is no prompt, or there are too many.
    pub(super) fn split(self, param: &str, most: usize) -> Result<Vec<PromptInput>, ApiError> {
        let prompts: Vec<PromptInput> = match self {
            PromptField::Text(text) => vec![PromptInput::Text(text)],
            PromptField::Texts(texts) => texts.into_iter().map(PromptInput::Text).collect(),
            PromptField::Ids(ids) => vec![PromptInput::Ids(ids)],
            PromptField::IdLists(lists) => lists.into_iter().map(PromptInput::Ids).collect(),
        };
        match prompts.len() {
            0 => Err(ApiError::invalid(param, format!("the {param} is empty; send at least one token"))),
            count if count <= most => Ok(prompts),
            count => {
                let message = format!("{count} {param}s in one request; at most {most}");
                Err(ApiError::invalid(param, message))
            }
        }
    }
}

impl PromptInput {
    /// Its tokens. One longer than the context is refused before it is encoded or copied; `param`
    /// is the field that held it.
    ///
    /// # Errors
    /// 400: it is too long, or cannot be encoded.
    pub fn encode(&self, model: &Model, param: &str) -> Result<Prompt, ApiError> {
        let context = model.engine.info().context_length;
        match self {
            PromptInput::Text(text) => model.text_prompt(text).map_err(|error| prompt_error(&error, param)),
            PromptInput::Ids(ids) if ids.len() >= context => {
                let error = RequestError::PromptTooLong { prompt: ids.len(), context };
                Err(ApiError::from_engine(&error, param))
            }
            PromptInput::Ids(ids) => Ok(Prompt::from_ids(ids.clone())),
        }
    }
}
