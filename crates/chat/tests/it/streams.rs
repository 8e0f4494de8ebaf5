//! Stop strings and reasoning do not depend on how the text is chunked.

use lanner_chat::{Delta, Error, Markers, Reasoning, StopStrings, starts_in_reasoning};
use proptest::prelude::*;

fn stop(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
    let mut stream = StopStrings::new(stops.iter().map(ToString::to_string).collect()).unwrap();
    let mut text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
    text.push_str(&stream.finish());
    (text, stream.matched().map(str::to_owned))
}

#[test]
fn stop_string_is_removed() {
    let check = |stops: &[&str], pieces: &[&str], text: &str, matched: Option<&str>| {
        assert_eq!(stop(stops, pieces), (text.to_owned(), matched.map(str::to_owned)));
    };
    check(&["END"], &["a E", "N", "D b"], "a ", Some("END"));
    check(&["END"], &["a E", "N"], "a EN", None);
    check(&["END"], &["EEN", "ENDx"], "EEN", Some("END"));
    check(&["abcd", "bc"], &["xabcd"], "xa", Some("bc"));
    check(&["bcd", "abcd"], &["xabcd"], "x", Some("abcd"));
    check(&["ää"], &["ä", "ö", "ä", "ä"], "äö", Some("ää"));
    check(&[], &["a", "b"], "ab", None);
}

#[test]
fn pending_text_is_emitted_as_soon_as_possible() {
    let mut stream = StopStrings::new(vec!["\nUser:".into()]).unwrap();
    assert_eq!(stream.push("hello\n"), "hello");
    assert_eq!(stream.push("Us"), "");
    assert_eq!(stream.push("e it"), "\nUse it");
    assert_eq!(stream.push("\nUser: x"), "");
    assert_eq!((stream.push("more"), stream.finish()), (String::new(), String::new()));
}

#[test]
fn empty_stop_string_fails() {
    let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
    assert!(matches!(error, Error::EmptyStop(1)));
    assert!(error.is_request_error());
}

fn split(inside: bool, pieces: &[&str]) -> (String, String) {
    let mut reasoning = Reasoning::new(Markers::default(), inside);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| reasoning.push(piece)).collect();
    deltas.extend(reasoning.finish());
    let mut texts = (String::new(), String::new());
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => {
                assert!(!text.is_empty() && texts.1.is_empty());
                texts.0.push_str(&text);
            }
            Delta::Content(text) => {
                assert!(!text.is_empty());
                texts.1.push_str(&text);
            }
            Delta::ToolCall { .. } | Delta::ToolArguments { .. } => panic!("{delta:?}"),
        }
    }
    texts
}

#[test]
fn reasoning_is_separated_from_content() {
    let check = |inside: bool, text: &str, reasoning: &str, content: &str| {
        assert_eq!(split(inside, &[text]), (reasoning.to_owned(), content.to_owned()), "{text:?}");
    };
    check(false, "<think>\nwhy\n\nso\n</think>\n\nanswer\n", "why\n\nso", "answer\n");
    check(false, " \n<think>why</think>answer", "why", "answer");
    check(false, "<think>\n\n</think>\n\nanswer", "", "answer");
    check(false, "plain <think> is a tag</think>", "", "plain <think> is a tag</think>");
    check(false, "  <thin", "", "  <thin");
    check(false, "  indented", "", "  indented");
    check(false, "<think>never closed\n</thi", "never closed\n</thi", "");
    check(false, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>");
    check(true, "why\n</think>\n\nanswer", "why", "answer");
    check(true, "\n<think>\nwhy</think>answer", "why", "answer");
    check(true, "</think>\n\nanswer", "", "answer");
    check(true, "why", "why", "");
    check(true, "\n", "", "");
}

#[test]
fn starts_in_reasoning_checks_end_of_prompt() {
    let check = |prompt: &str, expected: bool| {
        assert_eq!(starts_in_reasoning(prompt, &Markers::default()), expected, "{prompt:?}");
    };
    check("[user]what is <think>?[assistant]\n<think>\n", true);
    check("[user]what is <think>?[assistant]\n", false);
    check("[assistant]\n<think>\n\n</think>\n\n", false);
    check("", false);
}

#[test]
fn detect_finds_markers_in_template() {
    assert_eq!(Markers::detect("... '[THINK]' ...").unwrap().close, "[/THINK]");
    assert_eq!(Markers::detect("content.split('</think>')").unwrap(), Markers::default());
    assert_eq!(Markers::detect("{{ content }}"), None);
}

/// Splits a text between characters at random places.
fn cut(text: &str, cuts: &[usize]) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for (index, c) in text.chars().enumerate() {
        if cuts.contains(&index) {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push(c);
    }
    pieces
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..40, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn stop_string_does_not_depend_on_chunks(text in "[abä\n]{0,40}", stops in prop::collection::vec("[abä\n]{1,4}", 0..4), cuts in cuts()) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let pieces = cut(&text, &cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let whole = stop(&stops, &[&text]);
        prop_assert_eq!(&stop(&stops, &pieces), &whole);
        match &whole.1 {
            Some(matched) => {
                let used = [whole.0.as_str(), matched].concat();
                prop_assert!(text.starts_with(&used));
            }
            None => prop_assert_eq!(&whole.0, &text),
        }
        prop_assert!(stops.iter().all(|s| !whole.0.contains(s)));
    }

    #[test]
    fn reasoning_does_not_depend_on_chunks(text in "(<think>|</think>|<think|think>|</|[ab<>/ \n]){0,12}", inside: bool, cuts in cuts()) {
        let pieces = cut(&text, &cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let whole = split(inside, &[&text]);
        prop_assert_eq!(&split(inside, &pieces), &whole);
        let letters = |s: &str| s.replace("<think>", "").replace("</think>", "").replace(['\n', ' '], "");
        if !text.contains("<think>") && !text.contains("</think>") {
            prop_assert_eq!(letters(&text), letters(&format!("{}{}", whole.0, whole.1)));
        }
    }
}
