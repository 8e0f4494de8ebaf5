//! The thinking of families with markers of their own, by their published templates.
//!
//! The templates are not in this repository: set `LANNER_SHARED` to a folder with `templates/`, or
//! the tests are skipped.

use std::{path::PathBuf, sync::Arc};

use lanner_chat::{
    DecodeOptions, Decoder, Delta, Markers, RenderInput, Template, Tokenizer, starts_in_reasoning,
    thinking::{Cut, Next, ThinkingLimit, ThinkingOptions},
};
use serde_json::{Map, Value, json};

use crate::skipped;

struct Family {
    template: &'static str,
    markers: [&'static str; 2],
    /// Template variables that turn thinking on and off; without a switch it is always on.
    switch: Option<[Value; 2]>,
    /// Whether a prompt that turns thinking on opens it.
    opens: bool,
    /// Whether a prompt that turns thinking off closes it.
    closes: bool,
    /// How a turn with the reasoning `Hm.` stands in a later prompt; `None`: it is left out.
    kept: Option<&'static str>,
}

fn families() -> Vec<Family> {
    let gemma = |template, closes| Family {
        template,
        markers: ["<|channel>thought", "<channel|>"],
        switch: Some([json!({ "enable_thinking": true }), json!({ "enable_thinking": false })]),
        opens: false,
        closes,
        kept: Some("<|channel>thought\nHm.\n<channel|>"),
    };
    let command = |template, switch, opens| Family {
        template,
        markers: ["<|START_THINKING|>", "<|END_THINKING|>"],
        switch: Some(switch),
        opens,
        closes: true,
        kept: Some("<|START_THINKING|>Hm.<|END_THINKING|>"),
    };
    let exaone = |template| Family {
        template,
        markers: ["<thought>", "</thought>"],
        switch: None,
        opens: true,
        closes: false,
        kept: None,
    };
    let enable = [json!({ "enable_thinking": true }), json!({ "enable_thinking": false })];
    let reasoning = [json!({ "reasoning": true }), json!({ "reasoning": false })];
    vec![
        gemma("llama.cpp-2026-04/google-gemma-4-31B-it.jinja", true),
        gemma("ollama/gemma4_e2b_chat_template.jinja2", false),
        command("llama.cpp-2026-04/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja", enable, false),
        command("ik_llama.cpp-2026-08/Cohere2MoE.jinja", reasoning, true),
        exaone("gguf-hfjs/library_exaone-deep_2.4b.jinja"),
        exaone("gguf-hfjs/library_exaone-deep_32b.jinja"),
    ]
}

/// The published templates; none if they are not there.
fn published() -> Vec<(Family, Template)> {
    let Some(shared) = std::env::var_os("LANNER_SHARED").map(PathBuf::from) else {
        skipped::skipped("published templates: LANNER_SHARED is not set");
        return vec![];
    };
    let open = |family: Family| {
        let source = std::fs::read_to_string(shared.join("templates").join(family.template)).unwrap();
        let tokens = json!({ "bos_token": "<bos>", "eos_token": "<eos>" });
        let template = Template::new(&source, tokens.as_object().unwrap().clone()).unwrap();
        (family, template)
    };
    families().into_iter().map(open).collect()
}

fn render(template: &Template, messages: &Value, switch: Option<&Value>) -> String {
    let kwargs = switch.and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    let input = RenderInput {
        messages: messages.as_array().unwrap(),
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs,
    };
    template.render(&input).unwrap()
}

fn markers([open, close]: [&str; 2]) -> Markers {
    Markers { open: open.into(), close: close.into() }
}

#[test]
fn markers_of_a_family_are_those_of_its_template() {
    let question = json!([{ "role": "user", "content": "Why?" }]);
    for (family, template) in published() {
        let name = family.template;
        let markers = markers(family.markers);
        assert_eq!(Markers::detect(template.source()), Some(markers.clone()), "{name}");
        let on = family.switch.as_ref().map(|[on, _]| on);
        let prompt = render(&template, &question, on);
        assert_eq!(starts_in_reasoning(&prompt, &markers), family.opens, "{name}: {prompt}");
        assert!(!prompt.trim_end().ends_with(&markers.close), "{name}: {prompt}");
        if let Some([_, off]) = &family.switch {
            let prompt = render(&template, &question, Some(off));
            assert_eq!(prompt.trim_end().ends_with(&markers.close), family.closes, "{name}: {prompt}");
            assert!(!starts_in_reasoning(&prompt, &markers), "{name}: {prompt}");
        }
    }
}

#[test]
fn reasoning_of_an_earlier_turn_is_written_between_the_markers_or_left_out() {
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": {} } });
    let messages = json!([
        { "role": "user", "content": "Why?" },
        { "role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "name": "f", "content": "1" },
    ]);
    for (family, template) in published() {
        let Some(kept) = family.kept else {
            // These models' clients send the reasoning within the content.
            let messages = json!([
                { "role": "user", "content": "Why?" },
                { "role": "assistant", "content": "<thought>\nHm.\n</thought>\n\nSo." },
                { "role": "user", "content": "Oh?" },
            ]);
            let prompt = render(&template, &messages, None);
            assert!(prompt.contains("So.") && !prompt.contains("Hm."), "{}: {prompt}", family.template);
            continue;
        };
        let on = family.switch.as_ref().map(|[on, _]| on);
        let prompt = render(&template, &messages, on);
        assert!(prompt.contains(kept), "{}: {prompt}", family.template);
    }
}

fn tokenizer() -> Arc<Tokenizer> {
    let json = include_bytes!("../data/byte_level/tokenizer.json");
    Arc::new(Tokenizer::from_bytes(json, None).unwrap())
}

/// Reasoning and content of a reply, token by token.
fn decoded(markers: &Markers, inside: bool, ids: &[u32]) -> [String; 2] {
    let reasoning = Some(markers.clone());
    let options = DecodeOptions { reasoning, starts_in_reasoning: inside, ..DecodeOptions::default() };
    let mut decoder = Decoder::new(tokenizer(), options).unwrap();
    let mut parts = [String::new(), String::new()];
    let mut deltas: Vec<Delta> = ids.iter().flat_map(|&id| decoder.push(id)).collect();
    deltas.extend(decoder.finish());
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => parts[0] += &text,
            Delta::Content(text) => parts[1] += &text,
            other => panic!("{other:?}"),
        }
    }
    parts
}

#[test]
fn reply_of_a_family_is_split_and_cut_at_its_markers() {
    for family in families() {
        let (markers, tokenizer) = (markers(family.markers), tokenizer());
        let bytes = |text: &str| -> Vec<u32> {
            let of_byte = |byte: u8| (0..512).find(|&id| tokenizer.token_bytes(id) == [byte]).unwrap();
            text.bytes().map(of_byte).collect()
        };
        let open = if family.opens { String::new() } else { format!("{}\n", markers.open) };
        let reply = format!("{open}Hm.\n{}So.", markers.close);
        assert_eq!(decoded(&markers, family.opens, &bytes(&reply)), ["Hm.", "So."], "{reply}");
        let options = ThinkingOptions {
            markers: markers.clone(),
            inside: family.opens,
            budget: 12,
            room: usize::MAX,
            transition: "Enough.".into(),
            closing: format!("\n{}", markers.close),
            eos_ids: vec![],
            free_answer: true,
        };
        let mut tracker = ThinkingLimit::new(tokenizer.clone(), options).unwrap().start();
        let mut ids = bytes(&open);
        ids.iter().for_each(|&id| assert!(tracker.push(id)));
        let mut thought = bytes("I wonder and wonder what it may be").into_iter();
        while tracker.cut().is_none() {
            ids.extend(thought.next());
            assert!(tracker.push(ids[ids.len() - 1]));
        }
        assert_eq!(tracker.cut(), Some(Cut::Budget));
        while let Next::Forced([next, ..]) = tracker.next() {
            ids.push(*next);
            assert!(tracker.push(ids[ids.len() - 1]));
        }
        ids.extend(bytes("So."));
        let [reasoning, content] = decoded(&markers, family.opens, &ids);
        assert!(reasoning.starts_with("I wonder") && reasoning.ends_with("\n\nEnough."), "{reasoning}");
        assert_eq!(content, "So.");
    }
}
