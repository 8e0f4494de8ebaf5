//! The prompts: read from `data/`, and long texts and tool schemas made from the parts there.
//!
//! Everything but a nonce in front is the same for every server: sizes are in characters, at four
//! for each nominal token, and reports have the tokens that the server counts.

use std::sync::LazyLock;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::rubric::Criterion;

/// Of English prose, with the vocabularies of current models.
const CHARS_PER_TOKEN: usize = 4;

/// A quality task.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    pub name: String,
    pub system: Option<String>,
    pub prompt: String,
    pub max_tokens: u32,
    pub criteria: Vec<Criterion>,
}

/// A short factual question.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    pub name: String,
    pub prompt: String,
    /// In lower case; one of them must be in the answer.
    pub answers: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    pub system: String,
    pub turns: Vec<String>,
    /// For the last turn.
    pub answers: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextParts {
    sentences: Vec<String>,
    names: Vec<String>,
    places: Vec<String>,
    things: Vec<String>,
    days: Vec<String>,
    labels: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolParts {
    verbs: Vec<[String; 2]>,
    objects: Vec<String>,
    fields: Vec<[String; 3]>,
    /// The first question about the tools, and the next one.
    pub cold: String,
    pub warm: String,
}

/// A text with one fact in it, and the question about that fact.
pub(crate) struct Needle {
    pub text: String,
    pub question: String,
    pub answer: String,
}

pub(crate) static TASKS: LazyLock<Vec<Task>> = LazyLock::new(|| read(include_str!("../data/quality.json")));
pub(crate) static QUESTIONS: LazyLock<Vec<Question>> =
    LazyLock::new(|| read(include_str!("../data/questions.json")));
pub(crate) static SESSION: LazyLock<Session> = LazyLock::new(|| read(include_str!("../data/session.json")));
pub(crate) static TOOLS: LazyLock<ToolParts> = LazyLock::new(|| read(include_str!("../data/tools.json")));
static TEXT: LazyLock<TextParts> = LazyLock::new(|| read(include_str!("../data/text.json")));

/// A prompt whose answer is longer than 512 tokens.
pub(crate) const LONG_ANSWER: &str = "Write a long story about a keeper of a lighthouse who finds a letter in a \
    bottle. Describe the place, the weather, the people and what they say in detail. Write at least a thousand \
    words, and do not stop early.";

fn read<T: DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).expect("the files in data/ are valid")
}

/// Prose of about `tokens` tokens; `seed` chooses the sentences.
pub(crate) fn prose(tokens: usize, seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let (mut sentences, mut chars) = (vec![], 0);
    while chars < tokens * CHARS_PER_TOKEN {
        let sentence = sentence(&mut random);
        chars += sentence.chars().count() + 1;
        sentences.push(sentence);
    }
    sentences
}

fn sentence(random: &mut Random) -> String {
    let parts = &*TEXT;
    let number = (random.below(87) + 12).to_string();
    random
        .choose(&parts.sentences)
        .replace("{name}", random.choose(&parts.names))
        .replace("{friend}", random.choose(&parts.names))
        .replace("{place}", random.choose(&parts.places))
        .replace("{other}", random.choose(&parts.places))
        .replace("{thing}", random.choose(&parts.things))
        .replace("{day}", random.choose(&parts.days))
        .replace("{number}", &number)
}

/// A fact at `percent` of a text of about `tokens` tokens.
pub(crate) fn needle(tokens: usize, percent: usize, seed: u64) -> Needle {
    let mut random = Random(seed ^ 0x5eed);
    let label = random.choose(&TEXT.labels);
    let code = (random.below(9000) + 1000).to_string();
    let mut sentences = prose(tokens, seed);
    sentences.insert(sentences.len() * percent / 100, format!("The {label} code is {code}."));
    Needle {
        text: sentences.join(" "),
        question: format!("What is the {label} code? Answer with the number only."),
        answer: code,
    }
}

/// Tools of about `tokens` tokens as compact JSON; `nonce` is in the first one's description.
pub(crate) fn tools(tokens: usize, nonce: &str) -> Value {
    let (mut tools, mut chars) = (vec![], 0);
    for object in &TOOLS.objects {
        for [verb, description] in &TOOLS.verbs {
            if chars >= tokens * CHARS_PER_TOKEN {
                return Value::from(tools);
            }
            let mut tool = tool(verb, description, object);
            if tools.is_empty() {
                let text = tool["function"]["description"].as_str().unwrap_or_default();
                tool["function"]["description"] = format!("Catalogue {nonce}. {text}").into();
            }
            chars += tool.to_string().len() + 1;
            tools.push(tool);
        }
    }
    Value::from(tools)
}

fn tool(verb: &str, description: &str, object: &str) -> Value {
    let spoken = object.replace('_', " ");
    let fill = |text: &str| text.replace("{object}", &spoken);
    let field = |[name, kind, text]: &[String; 3]| {
        let mut schema = json!({ "type": kind, "description": fill(text) });
        if kind == "array" {
            schema["items"] = json!({ "type": "string" });
        }
        (name.clone(), schema)
    };
    let properties: serde_json::Map<String, Value> = TOOLS.fields.iter().map(field).collect();
    json!({
        "type": "function",
        "function": {
            "name": format!("{verb}_{object}"),
            "description": fill(description),
            "parameters": { "type": "object", "properties": properties, "required": ["title"] },
        },
    })
}

/// Splitmix64: prompts must be the same everywhere, and good enough randomness suffices.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn choose<'a>(&mut self, texts: &'a [String]) -> &'a str {
        &texts[self.below(texts.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_has_its_size_and_depends_on_the_seed_only() {
        let (text, again, other) = (prose(1000, 1), prose(1000, 1), prose(1000, 2));
        let chars = text.join(" ").chars().count();
        assert!((3999..4200).contains(&chars), "{chars}");
        assert_eq!(text, again);
        assert_ne!(text, other);
        assert!(!text.join(" ").contains('{'), "every part is filled");
        let distinct: std::collections::BTreeSet<&String> = text.iter().collect();
        assert!(
            distinct.len() * 10 > text.len() * 9,
            "{} of {} sentences differ",
            distinct.len(),
            text.len()
        );
    }

    #[test]
    fn needle_is_once_in_the_text_and_at_its_depth() {
        for percent in [10, 50, 90] {
            let needle = needle(4000, percent, 7);
            assert_eq!(needle.text.matches(&needle.answer).count(), 1, "{percent}");
            let at = needle.text.find(&needle.answer).unwrap() * 100 / needle.text.len();
            assert!(at.abs_diff(percent) < 3, "{at} instead of {percent}");
            assert!(needle.text.contains(needle.question[12..].split(" code").next().unwrap()));
        }
    }

    #[test]
    fn tools_have_their_size_and_distinct_names() {
        let tools = tools(12_000, "a1");
        let text = tools.to_string();
        assert!((48_000..50_000).contains(&text.len()), "{}", text.len());
        let names: std::collections::BTreeSet<&str> =
            tools.as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), tools.as_array().unwrap().len());
        assert!(!text.contains("{object}"), "every part is filled");
        assert!(text.contains("Catalogue a1."));
    }

    #[test]
    fn data_files_are_complete() {
        assert_eq!(TASKS.len(), 10);
        assert_eq!((QUESTIONS.len(), SESSION.turns.len()), (3, 5));
        for name in ["find_invoice", "create_support_ticket"] {
            assert!(tools(12_000, "").to_string().contains(name), "{name}");
        }
        for task in TASKS.iter() {
            assert!(task.criteria.len() >= 3, "{}", task.name);
        }
    }
}
