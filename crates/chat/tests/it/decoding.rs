//! The decoder finds the first stop string of a reply, independently of its tokens.

use std::sync::Arc;

use lanner_chat::{DecodeOptions, Decoder, Delta, Markers, TextOffsets, Tokenizer};
use proptest::prelude::*;

fn tokenizer() -> Arc<Tokenizer> {
    let json = include_bytes!("../data/byte_level/tokenizer.json");
    Arc::new(
        Tokenizer::from_bytes(json, Some(include_bytes!("../data/byte_level/tokenizer_config.json")))
            .unwrap(),
    )
}

/// Reasoning, content and stop string of a reply, and the number of tokens before the stop.
#[derive(Debug, PartialEq)]
struct Decoded {
    reasoning: String,
    content: String,
    stop: Option<String>,
    tokens: usize,
}

fn decode(tokenizer: &Arc<Tokenizer>, ids: &[u32], stop: &[String], markers: bool) -> Decoded {
    let reasoning = markers.then(Markers::default);
    let options = DecodeOptions { stop: stop.to_vec(), reasoning, ..DecodeOptions::default() };
    let mut decoder = Decoder::new(tokenizer.clone(), options).unwrap();
    let mut decoded = Decoded { reasoning: String::new(), content: String::new(), stop: None, tokens: 0 };
    let mut deltas = Vec::new();
    for &id in ids {
        deltas.extend(decoder.push(id));
        decoded.tokens += usize::from(decoder.stopped().is_none());
    }
    deltas.extend(decoder.finish());
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => decoded.reasoning += &text,
            Delta::Content(text) => decoded.content += &text,
            Delta::ToolCall { .. } | Delta::ToolArguments { .. } => panic!("{delta:?}"),
        }
    }
    decoded.stop = decoder.stopped().map(str::to_owned);
    decoded
}

/// The text before the stop string that is complete first; of two ending together, the longer one.
fn cut(text: &str, stop: &[String]) -> (String, Option<String>) {
    let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
    let mut found = ends.flat_map(|end| {
        let mut ending: Vec<&String> = stop.iter().filter(|stop| text[..end].ends_with(*stop)).collect();
        ending.sort_by_key(|stop| std::cmp::Reverse(stop.len()));
        ending.into_iter().map(move |stop| (end - stop.len(), stop.clone()))
    });
    match found.next() {
        Some((start, stop)) => (text[..start].to_owned(), Some(stop)),
        None => (text.to_owned(), None),
    }
}

/// The content of a reply by the rules of `Reasoning` and `Decoder`.
fn content<'t>(text: &'t str, stop: &[String]) -> &'t str {
    let white_space = &text[..text.len() - text.trim_start().len()];
    let starts_with_stop = stop.iter().any(|stop| white_space.contains(stop));
    match text.trim_start().strip_prefix("<think>") {
        Some(rest) if !starts_with_stop => match rest.split_once("</think>") {
            Some((_, content)) => content.trim_start_matches('\n'),
            None => "",
        },
        _ => text,
    }
}

/// Tokens and parts of characters, markers and stop strings.
fn pieces() -> impl Strategy<Value = Vec<String>> {
    let piece = prop::sample::select(vec![
        "a", "b", "ab", " ", "\n", "\n\n", "<", "<th", "ink>", "é", "😀", "<think>", "</think>", "END", "E",
        "N",
    ]);
    prop::collection::vec(piece.prop_map(str::to_owned), 0..16)
}

fn stops() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(
        prop::sample::select(vec!["\n", "\n\n", " ", "<", "<t", "a", "ab", "END", "é", "😀a", " \n", "\n<"])
            .prop_map(str::to_owned),
        0..3,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn first_stop_string_ends_reply_for_any_tokens(pieces in pieces(), stop in stops(), markers: bool) {
        let tokenizer = tokenizer();
        let text = pieces.concat();
        let together = tokenizer.encode(&text, false).unwrap();
        let apart: Vec<u32> = pieces.iter().flat_map(|piece| tokenizer.encode(piece, false).unwrap()).collect();
        let whole = if markers { content(&text, &stop) } else { &text };
        let (expected, matched) = cut(whole, &stop);
        for ids in [&together, &apart] {
            let decoded = decode(&tokenizer, ids, &stop, markers);
            prop_assert_eq!((&decoded.content, &decoded.stop), (&expected, &matched), "{:?}", text);
        }
    }

    #[test]
    fn stop_string_matches_with_its_last_token(pieces in pieces(), stop in stops()) {
        let tokenizer = tokenizer();
        let ids: Vec<u32> = pieces.iter().flat_map(|piece| tokenizer.encode(piece, false).unwrap()).collect();
        let decoded = decode(&tokenizer, &ids, &stop, false);
        let complete = |count: &usize| {
            let text = tokenizer.decode(&ids[..*count], true).unwrap();
            stop.iter().any(|stop| text.contains(stop))
        };
        let first = (0..=ids.len()).find(complete).map_or(ids.len(), |count| count - 1);
        prop_assert_eq!(decoded.tokens, first);
    }

    #[test]
    fn text_offsets_equal_decoded_lengths(ids in prop::collection::vec(0u32..300, 0..20)) {
        let tokenizer = tokenizer();
        let mut offsets = TextOffsets::new(tokenizer.clone(), 7);
        for count in 0..ids.len() {
            let characters = tokenizer.decode(&ids[..count], true).unwrap().chars().count();
            prop_assert_eq!(offsets.push(ids[count], false), 7 + characters);
        }
    }
}

#[test]
fn stop_string_in_leading_whitespace_ends_reasoning_reply() {
    let tokenizer = tokenizer();
    let check = |pieces: &[&str], stop: &str, content: &str, tokens: usize| {
        let ids: Vec<u32> = pieces.iter().flat_map(|piece| tokenizer.encode(piece, false).unwrap()).collect();
        let decoded = decode(&tokenizer, &ids, &[stop.to_owned()], true);
        let found =
            Decoded { reasoning: String::new(), content: content.into(), stop: Some(stop.into()), tokens };
        assert_eq!(decoded, found, "{pieces:?}");
    };
    check(&["\n", "\n", "\n"], "\n", "", 0);
    check(&[" ", "\n", "\n"], "\n", " ", 1);
    check(&["\n", "<think>", "x"], "\n", "", 0);
    // `<` may start a marker until the next token.
    check(&["<", "b"], "<", "", 1);
    check(&["<"], "<", "", 1);
    check(&["a", "\n", "b"], "\n", "a", 1);
}
