//! The model compiled into the program, so that `lanner chat` works without a download.

/// The files of a model folder.
pub(crate) struct Builtin {
    pub name: &'static str,
    pub config: &'static str,
    pub generation_config: &'static str,
    pub weights: &'static [u8],
    pub tokenizer: &'static str,
    pub tokenizer_config: &'static str,
    pub chat_template: &'static str,
    pub preprocessor_config: &'static str,
}

// Not a `const`: every codegen unit that uses one would hold a copy of the weights.
pub(crate) static BUILTIN: Builtin = Builtin {
    name: "merlin",
    config: include_str!("../../../models/merlin/config.json"),
    generation_config: include_str!("../../../models/merlin/generation_config.json"),
    weights: include_bytes!("../../../models/merlin/model.safetensors"),
    tokenizer: include_str!("../../../models/merlin/tokenizer.json"),
    tokenizer_config: include_str!("../../../models/merlin/tokenizer_config.json"),
    chat_template: include_str!("../../../models/merlin/chat_template.jinja"),
    preprocessor_config: include_str!("../../../models/merlin/preprocessor_config.json"),
};
