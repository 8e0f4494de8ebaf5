//! The syntaxes of tool calls, by model family.

use std::{fmt, str::FromStr};

use super::{
    deepseek, gemma4, glm, harmony, hermes, kimi, llama, mistral, pythonic, qwen_xml, syntax::Syntax,
};
use crate::Tokenizer;

/// How a model family writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// JSON in `<tool_call>` tags: Qwen 2.5, Qwen3, Hermes, merlin.
    Hermes,
    /// `<function=NAME>` with `<parameter=KEY>` tags: Qwen3-Coder, Qwen3.5 and later.
    QwenXml,
    /// `NAME`, then `<arg_key>` and `<arg_value>` tags: GLM-4.5 and later.
    Glm,
    /// A JSON object with `name` and `parameters`: Llama 3.
    LlamaJson,
    /// `[f(a=1), g()]`: Llama 4.
    LlamaPythonic,
    /// `[f(a=1)]` between `<|tool_call_start|>` and `<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `[TOOL_CALLS]NAME[ARGS]{..}`: Mistral, Devstral, Ministral since 2025.
    Mistral,
    /// `[TOOL_CALLS][{..}, ..]`: Mistral before 2025.
    MistralList,
    /// Calls with ids in a section: Kimi K2.
    Kimi,
    /// `NAME`, then JSON in a code block: DeepSeek V3 and R1.
    DeepSeekV3,
    /// `NAME`, then JSON: DeepSeek V3.1.
    DeepSeekV31,
    /// `call:NAME{key:value}`: Gemma 4.
    Gemma4,
    /// Messages with channels and recipients: gpt-oss.
    Harmony,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 13] = [
        Self::Hermes,
        Self::QwenXml,
        Self::Glm,
        Self::LlamaJson,
        Self::LlamaPythonic,
        Self::Lfm2,
        Self::Mistral,
        Self::MistralList,
        Self::Kimi,
        Self::DeepSeekV3,
        Self::DeepSeekV31,
        Self::Gemma4,
        Self::Harmony,
    ];

    /// The name, as flags and `/v1/models` show it.
    pub fn name(self) -> &'static str {
        self.syntax().name
    }

    /// Models that write it.
    pub fn models(self) -> &'static str {
        self.syntax().models
    }

    /// A call of the tool `f` with `a` = 1.
    pub fn example(self) -> &'static str {
        self.syntax().example
    }

    /// The dialect of a chat template's source, or of the tokenizer's special tokens.
    pub fn detect(template: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        let token = |text: &str| tokenizer.token_to_id(text).is_some();
        let known = [
            (has("<|start|>assistant") && has("<|channel|>"), Self::Harmony),
            (has("<arg_key>"), Self::Glm),
            (has("<function=") && has("<parameter=") && !has("<seed:tool_call>"), Self::QwenXml),
            (has("<|tool_call>"), Self::Gemma4),
            (has("<|tool_call_begin|>"), Self::Kimi),
            (has("tool▁call▁begin") && has("```json"), Self::DeepSeekV3),
            (has("tool▁call▁begin"), Self::DeepSeekV31),
            (has("[TOOL_CALLS]") && has("[ARGS]"), Self::Mistral),
            (has("[TOOL_CALLS]"), Self::MistralList),
            (has("<tool_call>") && !has("<tool_calls>[") && !has("<function="), Self::Hermes),
            (has("<|tool_list_start|>") || token("<|tool_call_start|>"), Self::Lfm2),
            (has("<|python_start|>") || has("[func_name1("), Self::LlamaPythonic),
            (has("\"parameters\": ") && has("tool_calls") && has("<|start_header_id|>"), Self::LlamaJson),
        ];
        known.into_iter().find(|(matches, _)| *matches).map(|(_, dialect)| dialect)
    }

    /// Whether a reply is written in this syntax from its first character on, reasoning included.
    pub fn is_whole_reply(self) -> bool {
        self == Self::Harmony
    }

    pub(crate) fn markers(self) -> &'static [&'static str] {
        self.syntax().markers
    }

    pub(super) fn syntax(self) -> &'static Syntax {
        match self {
            Self::Hermes => &hermes::SYNTAX,
            Self::QwenXml => &qwen_xml::SYNTAX,
            Self::Glm => &glm::SYNTAX,
            Self::LlamaJson => &llama::SYNTAX,
            Self::LlamaPythonic => &pythonic::LLAMA,
            Self::Lfm2 => &pythonic::LFM2,
            Self::Mistral => &mistral::SYNTAX,
            Self::MistralList => &mistral::LIST,
            Self::Kimi => &kimi::SYNTAX,
            Self::DeepSeekV3 => &deepseek::V3,
            Self::DeepSeekV31 => &deepseek::V31,
            Self::Gemma4 => &gemma4::SYNTAX,
            Self::Harmony => &harmony::SYNTAX,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|dialect| dialect.name() == name);
        found.ok_or_else(|| format!("`{name}` is not a tool dialect; there are {}", names()))
    }
}
