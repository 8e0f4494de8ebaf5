#[path = "../../../engine/tests/it/support/skipped.rs"]
mod skipped;

use std::{fs, path::PathBuf, time::Instant};

use super::*;
use crate::builtin::BUILTIN;

/// Published templates and their tokenizers, in the folder LANNER_SHARED.
const PUBLISHED: [(&str, &str, &str); 7] = [
    ("Qwen--Qwen3-14B-MLX-4bit.jinja", "qwen3", "tokenizer.rebuilt.json"),
    ("Qwen--Qwen3-nonthinking(QwenLM docs).jinja", "qwen3", "tokenizer.rebuilt.json"),
    ("Qwen--Qwen2.5.jinja", "qwen3", "tokenizer.rebuilt.json"),
    ("Qwen3.5-25B-REAP-A3B-Coding.jinja", "qwen3", "tokenizer.rebuilt.json"),
    ("openai--gpt-oss-20b.jinja", "gpt-oss", "tokenizer.rebuilt.json"),
    ("meta-llama--Llama-3.x(LLM-TPU).jinja", "llama3", "tokenizer.rebuilt.json"),
    ("mistralai--Mistral-7B-Instruct-v0.2.jinja", "mistral-7b-v0.2", "tokenizer.json"),
];

fn published() -> Vec<(String, Template, Tokenizer)> {
    let Some(shared) = std::env::var_os("LANNER_SHARED").map(PathBuf::from) else {
        skipped::skipped("published templates: LANNER_SHARED is not set");
        return vec![];
    };
    let load = |(template, folder, file): (&str, &str, &str)| {
        let folder = shared.join("tokenizers").join(folder);
        let source = fs::read_to_string(shared.join("templates/hf").join(template)).unwrap();
        let config = fs::read(folder.join("tokenizer_config.json")).unwrap();
        let tokenizer = Tokenizer::from_bytes(&fs::read(folder.join(file)).unwrap(), Some(&config)).unwrap();
        let special = [("bos_token", tokenizer.bos_token()), ("eos_token", tokenizer.eos_token())];
        let special = special.into_iter().filter_map(|(name, text)| Some((name.into(), text?.into())));
        let parsed = Template::new(&source, special.collect()).unwrap();
        (template.to_owned(), parsed, tokenizer)
    };
    PUBLISHED.into_iter().map(load).collect()
}

fn builtin() -> (String, Template, Tokenizer) {
    let config = Some(BUILTIN.tokenizer_config.as_bytes());
    let tokenizer = Tokenizer::from_bytes(BUILTIN.tokenizer.as_bytes(), config).unwrap();
    (BUILTIN.name.into(), Template::new(BUILTIN.chat_template, Map::new()).unwrap(), tokenizer)
}

fn tool(i: usize) -> Value {
    let parameters = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let description = format!("Number {i} of the tools with which files are read and written");
    json!({ "type": "function", "function":
            { "name": format!("tool_{i}"), "description": description, "parameters": parameters } })
}

/// Ids of a conversation, and its cache breakpoints.
fn ask(
    known: &CacheBreakpoints,
    template: &Template,
    tokenizer: &Tokenizer,
    tools: &[Value],
    turns: &[&str],
) -> Option<(Vec<u32>, Vec<usize>)> {
    let roles = ["system", "user", "assistant", "user"];
    let without_system = usize::from(template.source().contains("[INST]"));
    let turns = roles.iter().zip(turns).skip(without_system);
    let messages: Vec<Value> =
        turns.map(|(role, content)| json!({ "role": role, "content": content })).collect();
    let input = RenderInput {
        messages: &messages,
        tools: (!tools.is_empty()).then_some(tools),
        add_generation_prompt: true,
        ..RenderInput::default()
    };
    let text = template.render(&input).ok()?;
    let ids = tokenizer.encode(&text, false).unwrap();
    let started = Instant::now();
    let at = known.find(Rendered { template, tokenizer, input: &input, text: &text, ids: &ids });
    println!("{:?} for {} tokens", started.elapsed(), ids.len());
    Some((ids, at))
}

#[test]
fn later_prompts_share_the_tokens_before_a_cache_breakpoint() {
    for (name, template, tokenizer) in published().into_iter().chain([builtin()]) {
        for tools in [vec![], vec![tool(1), tool(2)]] {
            let known = CacheBreakpoints::default();
            let ask = |turns: &[&str]| ask(&known, &template, &tokenizer, &tools, turns).expect("renders");
            let system = "You help with files.";
            let (ids, at) = ask(&[system, "What is in a.txt?"]);
            let (next, _) = ask(&[system, "What is in a.txt?", "Nothing.", "And in b.txt?"]);
            let (other, again) = ask(&[system, "\n Read c.txt."]);
            println!("{name}: {at:?} of {}", ids.len());
            let history = *at.last().expect("a history");
            assert!(ids.len() - history < 16 && next.starts_with(&ids[..history]), "{name}: {at:?}");
            if at.len() == 2 {
                assert!(at[0] > 4 && other.starts_with(&ids[..at[0]]), "{name}: {at:?}");
                assert_eq!(at[0], again[0], "{name}");
            } else {
                assert!(name.starts_with("mistral"), "{name}: {at:?}");
            }
        }
    }
}

#[test]
fn head_is_rendered_and_encoded_once() {
    let (_, template, tokenizer) = builtin();
    let tools: Vec<Value> = (0..150).map(tool).collect();
    let known = CacheBreakpoints::default();
    let ask = |turns: &[&str]| ask(&known, &template, &tokenizer, &tools, turns).expect("renders");
    let (_, first) = ask(&["You help.", "Read a.txt."]);
    let encoded = |known: &CacheBreakpoints| known.heads.lock().unwrap()[0].ids.as_ptr();
    let before = encoded(&known);
    let (_, later) = ask(&["You help.", "Write b.txt."]);
    assert_eq!(first[0], later[0]);
    assert_eq!(known.heads.lock().unwrap().len(), 1, "rendered once");
    assert_eq!(encoded(&known), before, "and encoded once");
}
