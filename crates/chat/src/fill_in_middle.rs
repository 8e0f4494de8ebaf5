//! Prompts that ask a model for the text between a prefix and a suffix, with the control tokens
//! that its vocabulary has for that.

use crate::{Result, Tokenizer};

/// The order in which a model reads the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Prefix, suffix; then the model writes the middle.
    PrefixFirst,
    /// Suffix, prefix; then the model writes the middle, without a token of its own.
    SuffixFirst,
}

/// Control tokens before the prefix, the suffix and the middle: Qwen and CodeGemma; StarCoder and
/// Granite; DeepSeek; GLM; Seed-Coder; Codestral.
const KNOWN: [([&str; 3], Order); 6] = [
    (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], Order::PrefixFirst),
    (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], Order::PrefixFirst),
    (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], Order::PrefixFirst),
    (["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"], Order::PrefixFirst),
    (["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"], Order::PrefixFirst),
    (["[PREFIX]", "[SUFFIX]", ""], Order::SuffixFirst),
];

/// The control tokens of one vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillInMiddle {
    prefix: u32,
    suffix: u32,
    /// `None` where the prefix comes last.
    middle: Option<u32>,
    order: Order,
}

impl FillInMiddle {
    /// `None` if the vocabulary has no such tokens.
    pub fn detect(tokenizer: &Tokenizer) -> Option<Self> {
        KNOWN.iter().find_map(|([prefix, suffix, middle], order)| {
            let middle = match order {
                Order::PrefixFirst => Some(tokenizer.token_to_id(middle)?),
                Order::SuffixFirst => None,
            };
            let [prefix, suffix] = [tokenizer.token_to_id(prefix)?, tokenizer.token_to_id(suffix)?];
            Some(Self { prefix, suffix, middle, order: *order })
        })
    }

    /// The tokens of a prompt whose answer belongs between `prefix` and `suffix`.
    ///
    /// # Errors
    /// [`Error::Encode`](crate::Error::Encode).
    pub fn prompt(&self, tokenizer: &Tokenizer, prefix: &[u32], suffix: &str) -> Result<Vec<u32>> {
        let start = tokenizer.encode("", true)?;
        let suffix = [&[self.suffix], &tokenizer.encode(suffix, false)?[..]].concat();
        let prefix = [&[self.prefix], prefix].concat();
        let parts = match self.order {
            Order::PrefixFirst => [start, prefix, suffix],
            Order::SuffixFirst => [start, suffix, prefix],
        };
        Ok([parts.concat(), self.middle.into_iter().collect()].concat())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// A tokenizer of the letters a to c with these control tokens.
    fn tokenizer(control: &[&str]) -> Tokenizer {
        let letters = ["a", "b", "c"].into_iter().zip(0u32..);
        let vocab: Map<String, Value> = letters.map(|(letter, id)| (letter.into(), id.into())).collect();
        let added = control.iter().zip(3u32..).map(|(content, id)| {
            json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false })
        });
        let json = json!({
            "version": "1.0",
            "added_tokens": added.collect::<Vec<_>>(),
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
    }

    fn check(control: &[&str], expected: Option<&[u32]>) {
        let tokenizer = tokenizer(control);
        let prompt =
            FillInMiddle::detect(&tokenizer).map(|fim| fim.prompt(&tokenizer, &[0, 1], "c").unwrap());
        assert_eq!(prompt.as_deref(), expected, "{control:?}");
    }

    #[test]
    fn fill_in_middle_prompt_has_the_tokens_of_the_vocabulary() {
        check(&[], None);
        check(&["<|fim_prefix|>", "<|fim_suffix|>"], None);
        check(&["<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>"], Some(&[4, 0, 1, 5, 2, 3]));
        check(&["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"], Some(&[4, 0, 1, 3, 2, 5]));
        check(&["[SUFFIX]", "[PREFIX]"], Some(&[3, 2, 4, 0, 1]));
    }
}
