//! Prompts for measuring speculative decoding, of kinds that suit drafting well and badly.

/// Prompts of one kind.
#[derive(Clone, Copy, Debug)]
pub struct PromptClass {
    pub name: &'static str,
    /// Whether the model is asked to reason before it answers.
    pub think: bool,
    text: &'static str,
}

/// Separator of prompts in a file.
const SEPARATOR: &str = "\n%%\n";

pub(crate) const PROMPT_CLASSES: [PromptClass; 5] = [
    PromptClass { name: "prose", think: false, text: include_str!("../prompts/prose.txt") },
    PromptClass { name: "copying", think: false, text: include_str!("../prompts/copying.txt") },
    PromptClass { name: "json", think: false, text: include_str!("../prompts/json.txt") },
    PromptClass { name: "arithmetic", think: true, text: include_str!("../prompts/arithmetic.txt") },
    PromptClass { name: "chat", think: false, text: include_str!("../prompts/chat.txt") },
];

impl PromptClass {
    pub fn prompts(&self) -> impl Iterator<Item = &'static str> {
        self.text.trim_end().split(SEPARATOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_eight_distinct_prompts() {
        let mut all: Vec<&str> = PROMPT_CLASSES.iter().flat_map(PromptClass::prompts).collect();
        assert!(all.iter().all(|prompt| prompt.len() > 10 && !prompt.contains("%%")), "{all:?}");
        assert!(PROMPT_CLASSES.iter().all(|class| class.prompts().count() == 8));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 40, "no two are alike");
    }
}
