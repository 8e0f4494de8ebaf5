//! Prompts of conversations: the template's text, and its tokens with those of images.

use std::{borrow::Cow, ops::Range, sync::Arc};

use ::vision::Plan;
use chat::{
    RenderInput, Template,
    thinking::{ThinkingRule, harmony, last_user_text},
    tools::Dialect,
    volatile_lines,
};
use serde_json::{Map, Value};

use super::{
    Conversation, Model, Prompt, PromptError,
    image_tokens::{self, Expanded, Literals},
    vision::{DecodingLimits, PromptImage, Vision},
};
use crate::{
    cache_breakpoints::Rendered,
    cli::VolatilePrefix,
    image::{Image, ImageFile, Images},
    thinking::ThinkingDecision,
};

impl Model {
    /// # Errors
    /// The model has no template, the template does not accept or does not finish this
    /// conversation, or the model does not take its images.
    pub fn chat_prompt(&self, conversation: &Conversation) -> Result<Prompt, PromptError> {
        let (conversation, decision) = self.decide_thinking(conversation);
        let prepared = self.prepared(&conversation)?;
        let input = prepared.render_input(&conversation);
        let text = prepared.template.render(&input)?;
        self.check_length(&text)?;
        let inside = self.markers.as_ref().is_some_and(|markers| chat::starts_in_reasoning(&text, markers));
        let expanded = self.expand(&prepared, text, false)?;
        let text = &expanded.text;
        let rendered = Rendered {
            template: prepared.template,
            tokenizer: &self.tokenizer,
            input: &input,
            text,
            ids: &expanded.short_ids,
        };
        let cache_breakpoints = self.cache_breakpoints.find(rendered).into_iter();
        let cache_breakpoints = cache_breakpoints.map(|at| expanded.position(at)).collect();
        let reasoning = self.markers.clone();
        let ended = reasoning.as_ref().is_some_and(|markers| text.trim_end().ends_with(&markers.close));
        let by_template = ThinkingDecision { enabled: !ended, rule: ThinkingRule::Template };
        let thinking = self.can_think().then(|| decision.unwrap_or(by_template));
        let writes_channels = self.tool_dialect == Some(Dialect::Harmony);
        Ok(Prompt {
            cache_breakpoints,
            reasoning,
            starts_in_reasoning: inside,
            reasoning_ended: ended,
            begins_with_channel: writes_channels && text.ends_with(harmony::BEGIN),
            thinking,
            user_text: last_user_text(&conversation.messages),
            images: prepared.prompt_images(expanded.positions),
            ids: expanded.ids,
        })
    }

    /// The text that the template makes of a conversation, with a placeholder for each image.
    ///
    /// # Errors
    /// Those of [`chat_prompt`](Model::chat_prompt).
    pub fn render(&self, conversation: &Conversation) -> Result<String, PromptError> {
        let (conversation, _) = self.decide_thinking(conversation);
        let prepared = self.prepared(&conversation)?;
        let text = prepared.template.render(&prepared.render_input(&conversation))?;
        Ok(prepared.literals.show(&text).into_owned())
    }

    /// Tokens of a conversation of any length; special tokens stand around those of its template
    /// if they are to be added.
    ///
    /// # Errors
    /// Those of [`chat_prompt`](Model::chat_prompt).
    pub fn encode_chat(
        &self,
        conversation: &Conversation,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        let (conversation, _) = self.decide_thinking(conversation);
        let prepared = self.prepared(&conversation)?;
        let text = prepared.template.render(&prepared.render_input(&conversation))?;
        Ok(self.expand(&prepared, text, add_special_tokens)?.ids)
    }

    /// Decodes the images of a prompt for the engine.
    ///
    /// # Errors
    /// A file is damaged or takes too long to decode, or the limits are passed.
    pub fn load_images(
        &self,
        prompt: &Prompt,
        limits: &DecodingLimits,
    ) -> Result<Vec<engine::Image>, PromptError> {
        if prompt.images.is_empty() {
            return Ok(vec![]);
        }
        let vision = self.vision.as_ref().map_err(|error| PromptError::NoVision(error.clone()))?;
        vision.load(&prompt.images, limits)
    }

    /// The template, and the messages as it takes them.
    fn prepared<'a>(&'a self, conversation: &'a Conversation) -> Result<Prepared<'a>, PromptError> {
        let template = self.template.as_ref().ok_or_else(|| PromptError::NoTemplate(self.name.clone()))?;
        let messages = match self.volatile_prefix {
            VolatilePrefix::Keep => Cow::Borrowed(&conversation.messages),
            VolatilePrefix::Normalize => Cow::Owned(volatile_lines::normalize(&conversation.messages)),
        };
        let messages = chat::conversation::prepare(&messages, template)?;
        let (tools, kwargs) = (Cow::Borrowed(&conversation.tools[..]), conversation.kwargs.clone());
        let mut prepared = Prepared {
            template,
            messages,
            tools,
            kwargs,
            images: vec![],
            plans: vec![],
            literals: Literals::default(),
        };
        match &self.vision {
            Ok(vision) => prepared.add_images(&conversation.images, vision)?,
            Err(error) if !conversation.images.is_empty() => {
                return Err(PromptError::NoVision(error.clone()));
            }
            Err(_) => {}
        }
        Ok(prepared)
    }

    /// The tokens of a rendered text.
    fn expand(
        &self,
        prepared: &Prepared,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Expanded, PromptError> {
        let encode = image_tokens::encoder(&self.tokenizer, add_special_tokens);
        match &self.vision {
            Ok(vision) => image_tokens::expand(&text, &prepared.plans, vision, &prepared.literals, &encode),
            Err(_) => {
                let ids = encode(&text, true)?;
                Ok(Expanded::without_images(text, ids))
            }
        }
    }
}

/// A conversation as its template takes it.
struct Prepared<'a> {
    template: &'a Template,
    messages: Vec<Value>,
    tools: Cow<'a, [Value]>,
    kwargs: Map<String, Value>,
    /// In the order of the messages.
    images: Vec<Arc<ImageFile>>,
    plans: Vec<Plan>,
    literals: Literals,
}

impl Prepared<'_> {
    fn add_images(&mut self, images: &Images, vision: &Vision) -> Result<(), PromptError> {
        self.literals = Literals::find(vision, &self.messages, &self.tools, &self.kwargs);
        if !self.literals.is_empty() {
            self.messages.iter_mut().for_each(|message| self.literals.hide(message));
            self.tools.to_mut().iter_mut().for_each(|tool| self.literals.hide(tool));
            self.literals.hide_fields(&mut self.kwargs);
        }
        if images.is_empty() {
            return Ok(());
        }
        self.messages = vision.placed(std::mem::take(&mut self.messages), self.template);
        for index in chat::conversation::take_images(&mut self.messages) {
            let file = match images.get(index) {
                Some(Image::File(file)) => file.clone(),
                Some(Image::Url(url)) => return Err(url.not_fetched().into()),
                None => return Err(PromptError::Placeholders { images: images.len(), printed: index + 1 }),
            };
            self.plans.push(vision.plan(&file)?);
            self.images.push(file);
        }
        Ok(())
    }

    fn render_input<'b>(&'b self, conversation: &Conversation) -> RenderInput<'b> {
        RenderInput {
            messages: &self.messages,
            tools: (!self.tools.is_empty()).then_some(&self.tools),
            documents: None,
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            kwargs: self.kwargs.clone(),
        }
    }

    fn prompt_images(&self, positions: Vec<Vec<Range<usize>>>) -> Vec<PromptImage> {
        let images = self.images.iter().cloned().zip(positions);
        images.map(|(file, positions)| PromptImage { file, positions }).collect()
    }
}
