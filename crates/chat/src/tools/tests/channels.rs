//! gpt-oss under a grammar: thinking that is cut is closed into the channel that the grammar needs.

use serde_json::json;

use super::grammars::{EOS, parsed, tokenizer, tools};
use crate::{
    Markers,
    grammar::{Grammars, Source, Start, Trigger},
    thinking::{Next, ThinkingLimit, ThinkingOptions, harmony},
    tools::{self, Dialect},
};

const THOUGHT: &str = "I wonder what";

/// The grammar of a reply, the tokens after its thinking, and its content and calls.
struct Case {
    source: Source,
    triggers: Vec<Trigger>,
    closing: &'static str,
    rest: &'static str,
    content: &'static str,
    calls: Vec<(String, String)>,
}

fn check(case: Case, grammars: &Grammars) {
    let tokenizer = tokenizer(Dialect::Harmony, true);
    let grammar = grammars.compile(&case.source, &Start { reasoning: None, triggers: case.triggers });
    let mut matcher = grammar.unwrap_or_else(|error| panic!("{error}\n{:?}", case.source)).matcher();
    let markers = Markers { open: harmony::OPEN.into(), close: harmony::CLOSE.into() };
    let options = ThinkingOptions {
        markers,
        inside: false,
        budget: THOUGHT.len(),
        room: usize::MAX,
        transition: "Enough.".into(),
        closing: case.closing.into(),
        eos_ids: vec![EOS],
        free_answer: false,
    };
    let mut tracker = ThinkingLimit::new(tokenizer.clone(), options).unwrap().start();
    let mut ids = vec![];
    let mut push = |id: u32, tracker: &mut crate::thinking::ThinkingTracker| {
        assert!(tracker.push(id) && matcher.push(id).unwrap(), "{id} after {ids:?}");
        ids.push(id);
    };
    let byte = |text: &str| tokenizer.encode(text, false).unwrap();
    for id in byte(harmony::OPEN) {
        push(id, &mut tracker);
    }
    for character in THOUGHT.chars() {
        byte(&character.to_string()).into_iter().for_each(|id| push(id, &mut tracker));
    }
    while let Next::Forced([next, ..]) = tracker.next() {
        let next = *next;
        push(next, &mut tracker);
    }
    for id in byte(case.rest).into_iter().chain([EOS]) {
        push(id, &mut tracker);
    }
    ids.pop();
    let (content, calls) = parsed(&tokenizer, Dialect::Harmony, &tools(&json!("auto"), true), &ids);
    assert_eq!((content.as_str(), calls), (case.content, case.calls), "{}", case.rest);
}

#[test]
fn thinking_of_gpt_oss_is_closed_into_the_channel_of_the_grammar() {
    let grammars = Grammars::new(tokenizer(Dialect::Harmony, true), 520, &[EOS]).unwrap();
    let of_calls = |choice: &str| {
        let tools = tools(&json!(choice), true);
        tools::grammar(Dialect::Harmony, &tools, &grammars, choice == "required").unwrap()
    };
    // The token after it ends the turn.
    let rest = " to=functions.g.h-1 <|constrain|>json<|message|>{}";
    let called = vec![("g.h-1".to_owned(), "{}".to_owned())];
    for choice in ["required", "auto"] {
        let (source, triggers) = of_calls(choice);
        let closing = harmony::TO_CALL;
        check(Case { source, triggers, closing, rest, content: "", calls: called.clone() }, &grammars);
    }
    let (source, triggers) = of_calls("auto");
    let (closing, rest) = (harmony::TO_CALL, "<|message|>No tool.");
    check(Case { source, triggers, closing, rest, content: "No tool.", calls: vec![] }, &grammars);
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let source = tools::in_final_channel(&Source::JsonSchema(schema), &grammars).unwrap();
    let (closing, rest, content) = (harmony::TO_ANSWER, "{\"n\": 7}", "{\"n\": 7}");
    check(Case { source, triggers: vec![], closing, rest, content, calls: vec![] }, &grammars);
}

#[test]
fn format_of_gpt_oss_allows_an_answer_with_and_without_reasoning() {
    let tokenizer = tokenizer(Dialect::Harmony, true);
    let grammars = Grammars::new(tokenizer.clone(), 520, &[EOS]).unwrap();
    let source = tools::in_final_channel(&Source::JsonObject, &grammars).unwrap();
    let grammar = grammars.compile(&source, &Start::default()).unwrap();
    for (reply, fits) in [
        ("<|channel|>final<|message|>{}", true),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{}", true),
        ("{}", false),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary", false),
        ("<|channel|>final<|message|>no", false),
    ] {
        let mut matcher = grammar.matcher();
        let ids = tokenizer.encode(reply, false).unwrap();
        assert_eq!(ids.iter().all(|&id| matcher.push(id).unwrap()), fits, "{reply}");
    }
}
