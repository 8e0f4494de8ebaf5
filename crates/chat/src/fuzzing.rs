//! Entry points for fuzzing tokenizers and chat templates. Each takes a file's bytes and returns
//! `Ok` or an error; none may panic, hang or allocate more than its input justifies.

use serde_json::{Value, json};

use crate::{DecodeOptions, Decoder, RenderInput, Template, Tokenizer, conversation};

type Outcome = Result<(), String>;

/// Short texts that every tokenizer encodes and decodes.
const TEXTS: [&str; 6] = [
    "",
    "Hello, world! It's 1987.",
    "naïve café, 日本語, 🦅🏽",
    "<|im_start|>user\nhi<|im_end|>\n",
    "   \t\n\n  x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Loads a tokenizer.json (after a zero byte: tokenizer_config.json), then encodes and decodes
/// texts.
pub fn tokenizer_json(bytes: &[u8]) -> Outcome {
    let (file, config) = halves(bytes);
    let tokenizer = Tokenizer::from_bytes(file, config).map_err(text)?;
    let tokenizer = std::sync::Arc::new(tokenizer);
    for input in TEXTS {
        tokenizer.surely_exceeds(input, 4);
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

/// Parses a chat template and renders messages (those after a zero byte, if they are JSON).
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
mod tests {
    use super::*;

    /// Runs the committed seeds of a target; at least `least` of them must be accepted.
    fn check(target: &str, run: impl Fn(&[u8]) -> Outcome, least: usize) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let (mut sound, mut errors) = (0, vec![]);
        for entry in std::fs::read_dir(folder).expect("seeds") {
            let path = entry.expect("an entry").path();
            match run(&std::fs::read(&path).expect("a seed")) {
                Ok(()) => sound += 1,
                Err(error) => errors.push(format!("{}: {error}", path.display())),
            }
        }
        assert!(sound >= least, "{sound} of {target} are sound; others: {errors:#?}");
    }

    #[test]
    fn seeds_of_tokenizers_are_read_or_refused() {
        check("tokenizer_json", tokenizer_json, 4);
    }

    #[test]
    fn seeds_of_templates_are_rendered_or_refused() {
        check("template", template, 8);
    }
}
