//! Entry points for fuzzing tokenizers and chat templates. They return `Ok` or an error for any
//! bytes, and must not panic, hang, or allocate more than the input justifies.

use serde_json::{Value, json};

use crate::{DecodeOptions, Decoder, RenderInput, Template, Tokenizer, conversation};

type Outcome = Result<(), String>;

/// Texts to encode and decode.
const TEXTS: [&str; 6] = [
    "",
    "Hello, world! It's 1987.",
    "naïve café, 日本語, 🦅🏽",
    "<|im_start|>user\nhi<|im_end|>\n",
    "   \t\n\n  x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Loads a tokenizer.json (followed by a zero byte and tokenizer_config.json), then encodes and
/// decodes texts.
pub fn tokenizer_json(bytes: &[u8]) -> Outcome {
    let (file, config) = halves(bytes);
    let tokenizer = Tokenizer::from_bytes(file, config).map_err(text)?;
    let tokenizer = std::sync::Arc::new(tokenizer);
    for input in TEXTS {
        tokenizer.exceeded_bytes(input, 4);
        let (Ok(ids), Ok(_)) = (tokenizer.encode(input, true), tokenizer.encode_prompt(input)) else {
            continue;
        };
        let whole = tokenizer.decode(&ids, true).map_err(text)?;
        let mut decoder = Decoder::new(tokenizer.clone(), DecodeOptions::default()).map_err(text)?;
        ids.iter().for_each(|&id| _ = decoder.push(id));
        decoder.finish();
        assert!(whole.len() < 1 << 20, "{} bytes of {} ids", whole.len(), ids.len());
        ids.iter().for_each(|&id| _ = tokenizer.token_bytes(id));
    }
    Ok(())
}

/// Parses a chat template (followed by a zero byte and messages as JSON) and renders it.
pub fn template(bytes: &[u8]) -> Outcome {
    let (source, messages) = halves(bytes);
    let source = String::from_utf8_lossy(source);
    let special = [("bos_token".to_owned(), json!("<s>")), ("eos_token".to_owned(), json!("</s>"))];
    let template = Template::new(&source, special.into_iter().collect()).map_err(text)?;
    let given: Option<Vec<Value>> = messages.and_then(|messages| serde_json::from_slice(messages).ok());
    let default = || vec![json!({ "role": "user", "content": "Hi!" })];
    let messages = conversation::prepare(&given.unwrap_or_else(default), &template).map_err(text)?;
    let tools = [json!({ "type": "function", "function": { "name": "f", "parameters": {} } })];
    for (with_tools, continue_final_message) in [(false, false), (true, false), (false, true)] {
        let input = RenderInput {
            messages: &messages,
            tools: with_tools.then_some(&tools[..]),
            documents: None,
            add_generation_prompt: !continue_final_message,
            continue_final_message,
            kwargs: [("enable_thinking".to_owned(), json!(false))].into_iter().collect(),
        };
        template.render(&input).map_err(text)?;
    }
    Ok(())
}

/// The bytes before and after the first zero byte.
fn halves(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    match bytes.iter().position(|&byte| byte == 0) {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
#[path = "../../../fuzz/check_seeds.rs"]
mod check_seeds;

#[cfg(test)]
mod tests {
    use super::{check_seeds::check_seeds, *};

    #[test]
    fn tokenizer_seeds_load_or_fail() {
        check_seeds("tokenizer_json", tokenizer_json, 4);
    }

    #[test]
    fn template_seeds_render_or_fail() {
        check_seeds("template", template, 8);
    }
}
