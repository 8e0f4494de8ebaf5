//! Grammars under random choices: every answer matches, wherever its grammar begins.

use std::sync::Arc;

use lanner_chat::Markers;
use lanner_chat::Tokenizer;
use lanner_chat::grammar::{Grammar, Grammars, Mask, Matcher, ReasoningStart, Source, Start, Trigger};
use proptest::prelude::*;
use serde_json::{Value, json};

pub(crate) const EOS: u32 = 1;

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/byte_level");
    Arc::new(Tokenizer::from_dir(folder.as_ref()).unwrap())
}

pub(crate) fn grammars() -> (Arc<Tokenizer>, Grammars) {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(tokenizer.clone(), 520, &[EOS]).unwrap();
    (tokenizer, grammars)
}

/// A generator of random numbers (xorshift).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

pub(crate) fn allowed(mask: &Mask, vocab_size: u32) -> Vec<u32> {
    let allows = |id: &u32| mask.as_ref().is_none_or(|words| words[*id as usize / 32] >> (id % 32) & 1 == 1);
    (0..vocab_size).filter(allows).collect()
}

/// Random allowed tokens up to the end, at most `max`; whether it ended.
fn generate(matcher: &mut Matcher, random: &mut Random, max: usize) -> (Vec<u32>, bool) {
    let mut ids = vec![];
    while ids.len() < max {
        let mask = matcher.mask().unwrap();
        let allowed = allowed(&mask, 512);
        // Ends soon: most random grammars go on forever otherwise.
        let id = match allowed.contains(&EOS) && random.below(4) == 0 {
            true => EOS,
            false => allowed[random.below(allowed.len())],
        };
        assert!(matcher.push(id).unwrap(), "the mask allows {id}, push does not");
        if id == EOS {
            return (ids, true);
        }
        ids.push(id);
    }
    (ids, false)
}

/// Texts of answers that ended, under 60 seeds.
fn answers(source: &Source, start: &Start) -> Vec<String> {
    let (tokenizer, grammars) = grammars();
    let grammar = grammars.compile(source, start).unwrap();
    let text = |seed: u64| {
        let (ids, ended) = generate(&mut grammar.matcher(), &mut Random(seed), 400);
        ended.then(|| tokenizer.decode(&ids, false).unwrap())
    };
    let texts: Vec<String> =
        (1..=60u64).map(|seed| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).filter_map(text).collect();
    assert!(texts.len() > 20, "{} of 60 answers ended", texts.len());
    texts
}

pub(crate) fn at_once(source: Source) -> Vec<String> {
    answers(&source, &Start::default())
}

#[test]
fn answers_under_a_schema_are_valid() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "kind": { "enum": ["a", "b", 3, null] },
            "sizes": { "type": "array", "items": { "type": "integer", "minimum": -2, "maximum": 30 }, "maxItems": 3 },
        },
        "required": ["name", "kind"],
        "additionalProperties": false,
    });
    for text in at_once(Source::JsonSchema(schema)) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let object = value.as_object().unwrap();
        assert!(object["name"].as_str().unwrap().chars().count() <= 8, "{text}");
        assert!([json!("a"), json!("b"), json!(3), json!(null)].contains(&object["kind"]), "{text}");
        let sizes = object.get("sizes").map_or(&[][..], |sizes| sizes.as_array().unwrap());
        assert!(
            sizes.len() <= 3 && sizes.iter().all(|n| (-2.0..=30.0).contains(&n.as_f64().unwrap())),
            "{text}"
        );
        assert!(object.keys().all(|key| ["name", "kind", "sizes"].contains(&key.as_str())), "{text}");
    }
}

#[test]
fn answers_under_other_sources_match() {
    for text in at_once(Source::JsonObject) {
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => assert!(value.is_object(), "{text}"),
            // Numbers of hundreds of digits are JSON too.
            Err(error) => assert!(error.to_string().contains("out of range"), "{error}: {text}"),
        }
    }
    for text in at_once(Source::Regex(r"^[a-c]{2}-\d+$".into())) {
        let (letters, digits) = text.split_once('-').unwrap();
        assert!(letters.len() == 2 && letters.chars().all(|c| ('a'..='c').contains(&c)), "{text}");
        assert!(!digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()), "{text}");
    }
    let choices = ["yes", "no", "no way", "\"quoted\"\n", "ä/|b"].map(String::from).to_vec();
    let texts = at_once(Source::Choice(choices.clone()));
    assert!(choices.iter().all(|choice| texts.contains(choice)), "{texts:?}");
    assert!(texts.iter().all(|text| choices.contains(text)), "{texts:?}");
    let boolean = Source::JsonSchema(json!({ "type": "boolean" })).expression().unwrap();
    let lark = format!("start: \"<\" (\"x\" | {boolean}) \">\"");
    for text in at_once(Source::Lark(lark)) {
        assert!(["<x>", "<true>", "<false>"].contains(&text.as_str()), "{text}");
    }
}

#[test]
fn answers_under_gbnf_match() {
    let gbnf = r#"
# A comment.
root ::= "<" item{2,3} ">" | "[" (other-item |
  "-"? [0-9]+ ) "]"
item ::= [a-c\x41] | "\"" [^\x00-\x1f"a-zA-Z]
other-item ::= [-x] "\u00e4"
"#;
    for text in at_once(Source::Gbnf(gbnf.into())) {
        let inner = &text[1..text.len() - 1];
        if text.starts_with('<') {
            assert!(text.ends_with('>'), "{text}");
            let items = inner.chars().filter(|c| "abcA\"".contains(*c)).count();
            assert!((2..=3).contains(&items) || inner.contains('"'), "{text}");
        } else {
            let is_other = ["-ä", "xä"].contains(&inner);
            assert!(is_other || inner.parse::<i128>().is_ok() || inner.len() > 30, "{text}");
        }
    }
    let (_, grammars) = grammars();
    for (gbnf, part) in [
        ("root ::= \"a", "line 1"),
        ("x ::= \"a\"", "no rule `root`"),
        ("root ::= a\n  ;", "line 2"),
        ("root ::= a\n\n;", "line 3"),
    ] {
        let error = grammars.compile(&Source::Gbnf(gbnf.into()), &Start::default()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn gbnf_literal_with_a_brace_opens_no_repetition() {
    let gbnf = r#"root ::= "{" item{1,2} "}" [{] end
item ::= "a"
end ::= "z""#;
    for text in at_once(Source::Gbnf(gbnf.into())) {
        assert!(["{a}{z", "{aa}{z"].contains(&&text[..]), "{text}");
    }
}

fn thinking(inside: bool) -> Start {
    Start { reasoning: Some(ReasoningStart { markers: Markers::default(), inside }), triggers: vec![] }
}

#[test]
fn grammar_begins_after_the_reasoning() {
    let choice = || Source::Choice(vec!["yes".into(), "no".into()]);
    for text in answers(&choice(), &thinking(true)) {
        let (_, content) = text.split_once("</think>").unwrap_or_else(|| panic!("{text}"));
        assert!(["yes", "no"].contains(&content.trim_start_matches('\n')), "{text}");
        assert!(content.bytes().take_while(|byte| *byte == b'\n').count() <= 2, "{text}");
    }
    let texts = answers(&choice(), &thinking(false));
    for text in &texts {
        match text.strip_prefix("<think>") {
            Some(reasoned) => assert!(reasoned.contains("</think>"), "{text}"),
            None => assert!(["yes", "no"].contains(&text.as_str()), "{text}"),
        }
    }
    assert!(texts.iter().any(|text| text.starts_with("<think>")));
    assert!(texts.iter().any(|text| text == "yes"));
}

fn call_grammar() -> Source {
    let argument = Source::JsonSchema(json!({ "enum": [1, "two"] })).expression().unwrap();
    Source::Lark(format!("start: \"<c>\" {argument} \"</c>\""))
}

#[test]
fn grammar_begins_at_its_trigger() {
    let (tokenizer, grammars) = grammars();
    let start = Start { triggers: vec![grammars.trigger("<c>")], ..Start::default() };
    let grammar = grammars.compile(&call_grammar(), &start).unwrap();
    let ids = |text: &str| tokenizer.encode(text, false).unwrap();
    let check = |text: &str, next: &str, free: bool, ends: bool| {
        let mut matcher = grammar.matcher();
        // Token by token, and character by character.
        let singly: Vec<u32> = text.chars().flat_map(|c| ids(&c.to_string())).collect();
        for tokens in [ids(text), singly] {
            let before = tokens.len();
            for id in tokens {
                assert!(matcher.push(id).unwrap(), "{text:?} at {id}");
            }
            let mask = matcher.mask().unwrap();
            let allowed = allowed(&mask, 512);
            assert_eq!((mask.is_none(), allowed.contains(&EOS)), (free, ends), "{text:?}");
            assert!(ids(next).iter().take(1).all(|id| allowed.contains(id)), "{text:?}, then {next:?}");
            matcher.rewind(before).unwrap();
        }
    };
    check("Hello, world", "!", true, true);
    check("a < b, <", "d", true, true);
    check("So: <c>", "1", false, false);
    check("So: <c>1</c>", "", false, true);
    check("<c>\"two\"</c>", "", false, true);
}

#[test]
fn token_that_continues_past_a_trigger_must_match() {
    let (tokenizer, grammars) = grammars();
    let contains = |id: &u32| tokenizer.token_bytes(*id).contains(&b'n');
    assert!((0..512).filter(contains).count() > 20, "tokens that contain the trigger");
    let start = Start { triggers: vec![Trigger::Text("n".into())], ..Start::default() };
    let grammar = grammars.compile(&Source::Lark("start: \"n\" /[a-m]/ \"!\"".into()), &start).unwrap();
    let allowed = allowed(&grammar.matcher().mask().unwrap(), 512);
    for id in 0..512 {
        let bytes = tokenizer.token_bytes(id);
        let rest = bytes.iter().position(|byte| *byte == b'n').map(|at| &bytes[at + 1..]);
        let is_special = tokenizer.is_special(id);
        let matches = match rest {
            None | Some([]) => true,
            Some([b'a'..=b'm']) | Some([b'a'..=b'm', b'!']) => true,
            Some(_) => false,
        };
        assert_eq!(allowed.contains(&id), matches || is_special, "{id}: {bytes:?}");
        assert_eq!(grammar.matcher().push(id).unwrap(), matches || is_special, "{id}: {bytes:?}");
    }
}

#[test]
fn call_within_reasoning_is_text() {
    let (tokenizer, grammars) = grammars();
    let start = Start { triggers: vec![grammars.trigger("<c>")], ..thinking(true) };
    let grammar = grammars.compile(&call_grammar(), &start).unwrap();
    let mut matcher = grammar.matcher();
    let mut push = |text: &str| {
        for id in tokenizer.encode(text, false).unwrap() {
            assert!(matcher.push(id).unwrap(), "{text:?}");
        }
        matcher.mask().unwrap().is_none()
    };
    assert!(push("I could <c>call"));
    assert!(push("</think>\n\nBut "));
    assert!(!push("<c>"));
}

#[test]
fn forced_tokens_are_the_only_allowed_ones() {
    let (tokenizer, grammars) = grammars();
    let schema = json!({
        "type": "object",
        "properties": { "temperature": { "enum": ["warm"] } },
        "required": ["temperature"],
        "additionalProperties": false,
    });
    let mut matcher = grammars.compile(&Source::JsonSchema(schema), &Start::default()).unwrap().matcher();
    let (mut text, mut random, mut num_forced) = (String::new(), Random(5), 0);
    loop {
        let forced = matcher.forced(3).unwrap();
        assert!(forced.len() <= 3);
        let next = match forced.first() {
            Some(&first) => {
                assert_eq!(allowed(&matcher.mask().unwrap(), 512), [first]);
                num_forced += 1;
                first
            }
            None => {
                let allowed = allowed(&matcher.mask().unwrap(), 512);
                allowed[random.below(allowed.len())]
            }
        };
        assert!(matcher.push(next).unwrap());
        if next == EOS {
            break;
        }
        text.push_str(&tokenizer.decode(&[next], false).unwrap());
    }
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({ "temperature": "warm" }));
    assert!(num_forced > 5, "{num_forced}");
}

fn sources() -> Vec<(Source, Start)> {
    let schema =
        json!({ "type": "object", "properties": { "a": { "type": "string" }, "ab": { "type": "number" } } });
    vec![
        (Source::JsonSchema(schema.clone()), Start::default()),
        (Source::JsonSchema(schema), thinking(false)),
        (Source::Choice(vec!["one".into(), "once".into(), "on".into()]), thinking(true)),
        (call_grammar(), Start { triggers: vec![Trigger::Text("<c>".into())], ..thinking(false) }),
        (Source::Regex("(ab?)*c".into()), Start::default()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn rewound_matcher_equals_a_new_one(seed in 1u64.., which in 0usize..5) {
        let (_, grammars) = grammars();
        let (source, start) = &sources()[which];
        let grammar: Grammar = grammars.compile(source, start).unwrap();
        let mut random = Random(seed);
        let (mut matcher, mut kept) = (grammar.matcher(), vec![]);
        for _ in 0..12 {
            let before = kept.len();
            let (ids, ended) = generate(&mut matcher, &mut random, 6);
            kept.extend(ids);
            kept.extend(ended.then_some(EOS));
            let removed = random.below(kept.len() - before + 1);
            matcher.rewind(removed).unwrap();
            kept.truncate(kept.len() - removed);
            let mut fresh = grammar.matcher();
            for &id in &kept {
                prop_assert!(fresh.push(id).unwrap());
            }
            prop_assert_eq!(matcher.mask().unwrap(), fresh.mask().unwrap());
            prop_assert_eq!(matcher.forced(8).unwrap(), fresh.forced(8).unwrap());
        }
    }
}

#[test]
fn unusable_source_is_an_error() {
    let (_, grammars) = grammars();
    let check = |source: Source, part: &str| {
        let error = grammars.compile(&source, &Start::default()).unwrap_err();
        assert!(error.is_request_error() && error.to_string().contains(part), "{error}");
    };
    check(Source::Regex("a(".into()), "a(");
    check(Source::Regex("(?=a)b".into()), "look");
    check(Source::Lark("start: missing".into()), "missing");
    check(Source::Lark("start: ((((".repeat(100)), "nested");
    check(Source::Regex("(".repeat(100_000)), "nested");
    check(Source::Choice(vec![]), "no choice");
    check(Source::Lark(String::new()), "");
}

#[test]
fn rejected_token_changes_nothing() {
    let (tokenizer, grammars) = grammars();
    let grammar = grammars.compile(&Source::Choice(vec!["yes".into()]), &Start::default()).unwrap();
    let mut matcher = grammar.matcher();
    let id = |text: &str| tokenizer.encode(text, false).unwrap()[0];
    let before = matcher.mask().unwrap();
    assert!(!matcher.push(id("n")).unwrap() && !matcher.push(EOS).unwrap() && !matcher.push(9999).unwrap());
    assert_eq!(matcher.mask().unwrap(), before);
    assert!(matcher.push(id("y")).unwrap());
    assert!(matcher.rewind(2).is_err(), "only one token was pushed");
    assert!(matcher.mask().is_err(), "errors stay");
}

#[test]
fn literal_names_special_tokens() {
    let (_, grammars) = grammars();
    assert_eq!(grammars.literal("a [user] \"b\""), r#""a " <[2]> " \"b\"""#);
    assert_eq!(grammars.literal("[user]"), "<[2]>");
    assert_eq!(grammars.literal("<think>"), "\"<think>\"");
    assert_eq!(grammars.trigger("[user]"), Trigger::Token(2));
    assert_eq!(grammars.trigger("<think>"), Trigger::Text("<think>".into()));
}
