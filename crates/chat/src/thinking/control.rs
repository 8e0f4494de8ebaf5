//! Whether a request thinks, where its fields do not say so: by a word in its last turn, or by
//! rules that the response names.

use serde_json::Value;

/// Why an answer thinks or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingRule {
    /// The request says so.
    Request,
    /// `/think` or `/no_think` ends the user's turn.
    Keyword,
    /// A short question about a long system message.
    Needle,
    /// A short factual question.
    ShortQuestion,
    /// No other rule applies.
    Otherwise,
    /// The server's or the model's setting.
    Default,
    /// Nothing says so, and the chat template has a default.
    Template,
}

/// More characters of system messages are a text to search.
const LONG_SYSTEM: usize = 3000;
/// A question about such a text is shorter.
const NEEDLE_QUESTION: usize = 200;
/// Shorter questions are factual.
const TINY_QUESTION: usize = 30;
/// Shorter ones are, if they begin as one.
const SHORT_QUESTION: usize = 80;
const ASKS: [&str; 11] =
    ["what", "which", "where", "who", "when", "find", "extract", "list", "name", "tell me", "how many"];
const FACTUAL: [&str; 8] =
    ["what is", "who is", "when was", "where is", "how many", "how much", "define", "translate"];
/// Words that make no question a short one.
const LABORIOUS: [&str; 10] =
    ["explain", "why", "how do", "analyze", "compare", "implement", "design", "debug", "prove", "solve"];

impl ThinkingRule {
    /// Its name in responses.
    pub fn name(self) -> &'static str {
        match self {
            ThinkingRule::Request => "request",
            ThinkingRule::Keyword => "keyword",
            ThinkingRule::Needle => "needle",
            ThinkingRule::ShortQuestion => "short_question",
            ThinkingRule::Otherwise => "otherwise",
            ThinkingRule::Default => "default",
            ThinkingRule::Template => "template",
        }
    }
}

/// What `/think` or `/no_think` at the end of the last user's turn says; the text stays as it is.
pub fn keyword(messages: &[Value]) -> Option<bool> {
    let text = last_user_text(messages);
    match text.split_whitespace().next_back()? {
        "/think" => Some(true),
        "/no_think" | "/nothink" => Some(false),
        _ => None,
    }
}

/// Whether a conversation is worth thinking about, and the rule that says so.
pub fn auto(messages: &[Value]) -> (bool, ThinkingRule) {
    let system = messages.iter().filter(|m| m["role"] == "system" || m["role"] == "developer");
    let system: usize = system.map(|message| text_of(&message["content"]).chars().count()).sum();
    let question = last_user_text(messages).trim().to_lowercase();
    let length = question.chars().count();
    let begins = |words: &[&str]| words.iter().any(|word| question.starts_with(word));
    if system > LONG_SYSTEM && length < NEEDLE_QUESTION && (question.contains('?') || begins(&ASKS)) {
        return (true, ThinkingRule::Needle);
    }
    let is_laborious = LABORIOUS.iter().any(|word| question.contains(word));
    let is_short =
        (length < TINY_QUESTION && question.contains('?')) || (length < SHORT_QUESTION && begins(&FACTUAL));
    if is_short && !is_laborious {
        return (false, ThinkingRule::ShortQuestion);
    }
    (true, ThinkingRule::Otherwise)
}

/// The text of the last user's turn.
pub fn last_user_text(messages: &[Value]) -> String {
    let last = messages.iter().rev().find(|message| message["role"] == "user");
    last.map(|message| text_of(&message["content"])).unwrap_or_default()
}

/// The text of a content, or of its parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turn(text: &str) -> Vec<Value> {
        vec![json!({ "role": "user", "content": text })]
    }

    #[test]
    fn auto_decides_by_named_rules() {
        let long = json!({ "role": "system", "content": "word ".repeat(700) });
        for (system, text, expected) in [
            (true, "What is the code of the vault?", (true, ThinkingRule::Needle)),
            (true, "Find the owner's name.", (true, ThinkingRule::Needle)),
            (true, &"Tell a story. ".repeat(20)[..], (true, ThinkingRule::Otherwise)),
            (false, "Capital of Norway?", (false, ThinkingRule::ShortQuestion)),
            (
                false,
                "What is the capital of the country with most lakes?",
                (false, ThinkingRule::ShortQuestion),
            ),
            (false, "How many legs has a spider?", (false, ThinkingRule::ShortQuestion)),
            (false, "Why is it so?", (true, ThinkingRule::Otherwise)),
            (false, "What is 17 * 23? Explain it.", (true, ThinkingRule::Otherwise)),
            (false, "Write a poem.", (true, ThinkingRule::Otherwise)),
            (false, "", (true, ThinkingRule::Otherwise)),
        ] {
            let mut messages = turn(text);
            if system {
                messages.insert(0, long.clone());
            }
            assert_eq!(auto(&messages), expected, "{text}");
        }
    }

    #[test]
    fn keyword_counts_at_the_end_of_the_last_user_turn_alone() {
        assert_eq!(keyword(&turn("Hi /think")), Some(true));
        assert_eq!(keyword(&turn("Hi\n/no_think ")), Some(false));
        assert_eq!(keyword(&turn("what does /think do?")), None);
        assert_eq!(keyword(&[turn("a /think"), turn("b")].concat()), None);
        let parts = json!([{ "type": "text", "text": "Hi" }, { "type": "text", "text": "/no_think" }]);
        assert_eq!(keyword(&[json!({ "role": "user", "content": parts })]), Some(false));
        assert_eq!(keyword(&[]), None);
    }
}
