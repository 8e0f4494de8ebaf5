//! Prompts that go on after an answer with tool calls: they begin with the very tokens of the
//! prompt and the answer before them, so that the prefix cache holds them whole.

use super::{Conversation, Model, Prompt, PromptError};

/// A prompt with its answer.
#[derive(Clone, Copy)]
pub struct AnsweredPrompt<'a> {
    pub prompt: &'a [u32],
    /// Generated after it, without the token that ended the answer.
    pub answer: &'a [u32],
    /// The token that ended the answer.
    pub end_token: Option<u32>,
    /// The conversation's messages up to the answer, which is the last of them.
    pub messages: usize,
}

impl Model {
    /// The prompt of a conversation that goes on after `before`. Where the template writes the end
    /// of the answer as the model does, the prompt begins with the tokens of `before`; elsewhere it
    /// is the conversation rendered anew.
    ///
    /// # Errors
    /// Those of [`chat_prompt`](Model::chat_prompt).
    pub fn continued_prompt(
        &self,
        conversation: &Conversation,
        before: AnsweredPrompt,
    ) -> Result<Prompt, PromptError> {
        let mut prompt = self.chat_prompt(conversation)?;
        let Some(rest) = self.text_after(conversation, before) else { return Ok(prompt) };
        if let Ok(vision) = &self.vision {
            // The rendered prompt has image tokens that the model or a tool wrote as text.
            let written = self.decode(before.answer) + &rest;
            if [vision.placeholder(), vision.image_token()].iter().any(|token| written.contains(*token)) {
                return Ok(prompt);
            }
        }
        let rest = self.tokenizer.encode_prompt(&rest)?;
        let ids = [before.prompt, before.answer, before.end_token.as_slice(), &rest].concat();
        // Positions in what both have in common are the same ones.
        let common = ids.iter().zip(&prompt.ids).take_while(|(own, rendered)| own == rendered).count();
        // Image positions are the same too, unless the prompts differ before the last image ends.
        if prompt.images.iter().flat_map(|image| &image.positions).any(|run| run.end > common) {
            return Ok(prompt);
        }
        prompt.cache_breakpoints.retain(|at| *at <= common);
        prompt.ids = ids;
        Ok(prompt)
    }

    /// Text that the template writes after the token that ended the answer.
    fn text_after(&self, conversation: &Conversation, before: AnsweredPrompt) -> Option<String> {
        let end = self.decode(&[before.end_token?]);
        let answered = Conversation {
            messages: conversation.messages[..before.messages].to_vec(),
            add_generation_prompt: false,
            ..conversation.clone()
        };
        let whole = self.render(conversation).ok()?;
        // Some templates refuse a conversation that ends so.
        let answered = self.render(&answered).ok()?;
        after_end(&whole, &answered, &end).map(str::to_owned)
    }
}

/// The part of `whole` after the text of the token `end` that ends `answered`, its start.
fn after_end<'a>(whole: &'a str, answered: &str, end: &str) -> Option<&'a str> {
    let rest = whole.strip_prefix(answered).filter(|_| !end.is_empty())?;
    let closed = answered.trim_end();
    if closed.ends_with(end) {
        return Some(&whole[closed.len()..]);
    }
    // The token belongs to the start of the next turn, as in GLM's templates.
    rest.trim_start().strip_prefix(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_begins_after_the_token_that_ended_the_answer() {
        let check = |answered: &str, rest: &str, end: &str, expected: Option<&str>| {
            let whole = format!("{answered}{rest}");
            assert_eq!(after_end(&whole, answered, end), expected, "{answered} {rest}");
        };
        check("<u>hi<e>\n<a>call<e>\n", "<t>1<e>\n<a>", "<e>", Some("\n<t>1<e>\n<a>"));
        check("<u>hi<a>call", "\n<obs>1<a>", "<obs>", Some("1<a>"));
        check("<u>hi<a>call", "<t>1<a>", "<e>", None);
        check("<u>hi<a>call<e>", "<t>1", "", None);
        assert_eq!(after_end("<u>hi<a>other", "<u>hi<a>call<e>", "<e>"), None);
    }
}
