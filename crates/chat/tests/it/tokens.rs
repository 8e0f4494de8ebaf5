//! Tokenizer, detokenizer and decoder on a byte-level and a SentencePiece tokenizer trained for
//! tests.

use std::sync::Arc;

use lanner_chat::{DecodeOptions, Decoder, Delta, Detokenizer, Markers, Tokenizer};
use proptest::prelude::*;

fn byte_level() -> Arc<Tokenizer> {
    load(
        include_bytes!("../data/byte_level/tokenizer.json"),
        include_bytes!("../data/byte_level/tokenizer_config.json"),
    )
}

fn sentencepiece() -> Arc<Tokenizer> {
    load(
        include_bytes!("../data/sentencepiece/tokenizer.json"),
        include_bytes!("../data/sentencepiece/tokenizer_config.json"),
    )
}

fn load(json: &[u8], config: &[u8]) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_bytes(json, Some(config)).unwrap())
}

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

const TEXT: &str = "The lanner déjà 😀🦅 隼 on  cliffs\n\n\tfly(bird)\u{7}";

#[test]
fn text_round_trips() {
    for tokenizer in [byte_level(), sentencepiece()] {
        let ids = tokenizer.encode(TEXT, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), TEXT);
    }
}

#[test]
fn special_tokens_are_encoded_and_skipped() {
    for tokenizer in [byte_level(), sentencepiece()] {
        assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<s>"), Some("</s>")));
        let eos = tokenizer.token_to_id("</s>").unwrap();
        assert!(tokenizer.is_special(eos));
        assert_eq!(tokenizer.id_to_token(eos).unwrap(), "</s>");
        let mut ids = tokenizer.encode("a</s>", false).unwrap();
        assert_eq!(ids.pop(), Some(eos));
        ids.push(eos);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "a");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "a</s>");
    }
}

#[test]
fn token_bytes_are_raw_bytes() {
    let tokenizer = byte_level();
    let bytes: Vec<u8> =
        tokenizer.encode(TEXT, false).unwrap().iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
    assert_eq!(bytes, TEXT.as_bytes());
    let tokenizer = sentencepiece();
    let ids = tokenizer.encode("é", false).unwrap();
    let bytes: Vec<Vec<u8>> = ids.iter().map(|&id| tokenizer.token_bytes(id)).collect();
    assert_eq!(bytes, [b" ".to_vec(), vec![0xc3], vec![0xa9]]);
    assert!(tokenizer.token_bytes(u32::MAX).is_empty());
}

#[test]
fn split_character_is_emitted_with_its_last_token() {
    for tokenizer in [byte_level(), sentencepiece()] {
        let ids = tokenizer.encode("ok 龘", false).unwrap();
        let mut detokenizer = Detokenizer::new(tokenizer, true);
        let pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
        assert!(!pieces.concat().contains('\u{fffd}'));
        assert_eq!(pieces.last().unwrap(), "龘");
        assert_eq!(detokenizer.finish(), "");
        ids[..ids.len() - 1].iter().for_each(|&id| drop(detokenizer.push(id)));
        assert_eq!(detokenizer.finish(), "\u{fffd}");
    }
}

fn decode_all(tokenizer: &Arc<Tokenizer>, text: &str, options: DecodeOptions) -> (Vec<Delta>, Decoder) {
    let mut decoder = Decoder::new(tokenizer.clone(), options).unwrap();
    let ids = tokenizer.encode(text, false).unwrap();
    let mut deltas: Vec<Delta> = ids.iter().flat_map(|&id| decoder.push(id)).collect();
    deltas.extend(decoder.finish());
    (deltas, decoder)
}

/// Joins deltas to reasoning and content.
fn fold(deltas: &[Delta]) -> (String, String) {
    let mut texts = (String::new(), String::new());
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => texts.0.push_str(text),
            Delta::Content(text) => texts.1.push_str(text),
            Delta::ToolCall { .. } | Delta::ToolArguments { .. } => panic!("{delta:?}"),
        }
    }
    texts
}

#[test]
fn decoder_separates_reasoning_and_stops_in_content_only() {
    let options = DecodeOptions {
        stop: vec!["STOP".into(), "\n\n".into()],
        reasoning: Some(Markers::default()),
        ..DecodeOptions::default()
    };
    // Markers are tokens of the first tokenizer, and several tokens of the second.
    for (tokenizer, extra) in [(byte_level(), 2), (sentencepiece(), 0)] {
        let text = "<think>\nfly STOP\n\nhigh\n</think>\n\nlow STOPnever";
        let (deltas, decoder) = decode_all(&tokenizer, text, options.clone());
        assert_eq!(fold(&deltas), ("fly STOP\n\nhigh".into(), "low ".into()));
        assert_eq!(decoder.stopped(), Some("STOP"));
        let reasoning = text.split_inclusive("</think>").next().unwrap();
        assert_eq!(decoder.reasoning_tokens(), tokenizer.encode(reasoning, false).unwrap().len());
        assert!(decoder.reasoning_tokens() > extra);
    }
}

#[test]
fn markers_that_are_special_tokens_are_recognized() {
    let json = String::from_utf8_lossy(include_bytes!("../data/byte_level/tokenizer.json"))
        .replace(r#""special":false"#, r#""special":true"#);
    let tokenizer = Arc::new(Tokenizer::from_bytes(json.as_bytes(), None).unwrap());
    assert!(tokenizer.is_special(tokenizer.token_to_id("<think>").unwrap()));
    let options = DecodeOptions { reasoning: Some(Markers::default()), ..DecodeOptions::default() };
    let (deltas, decoder) = decode_all(&tokenizer, "<think>why</think>because</s>", options);
    assert_eq!(fold(&deltas), ("why".into(), "because".into()));
    assert_eq!(decoder.stopped(), None);
}

#[test]
fn invalid_tokenizer_fails() {
    let whole = include_bytes!("../data/sentencepiece/tokenizer.json");
    for cut in (0..whole.len() - 1).step_by(97) {
        Tokenizer::from_bytes(&whole[..cut], None).unwrap_err();
    }
    Tokenizer::from_bytes(whole, Some(b"{")).unwrap_err();
    Tokenizer::from_dir(std::path::Path::new("/nowhere")).unwrap_err();
}

proptest! {
    #[test]
    fn streaming_equals_decode(ids in prop::collection::vec(0u32..560, 0..60)) {
        for tokenizer in [byte_level(), sentencepiece()] {
            prop_assert_eq!(stream(&tokenizer, &ids), tokenizer.decode(&ids, true).unwrap());
            let bytes: Vec<u8> =
                ids.iter().filter(|&&id| !tokenizer.is_special(id)).flat_map(|&id| tokenizer.token_bytes(id)).collect();
            let whole = String::from_utf8_lossy(&bytes);
            let strips = tokenizer.id_to_token(0).as_deref() == Some("<unk>");
            let whole = if strips { whole.strip_prefix(' ').unwrap_or(&whole) } else { &whole };
            prop_assert_eq!(stream(&tokenizer, &ids), whole);
        }
    }

    #[test]
    fn random_text_round_trips(text in "(\\PC|[ \\n\\t]|<think>|😀){0,60}") {
        for tokenizer in [byte_level(), sentencepiece()] {
            let ids = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(&stream(&tokenizer, &ids), &text);
        }
    }

    #[test]
    fn damaged_tokenizer_does_not_panic(at in 0usize..8000, byte in any::<u8>(), text in "\\PC{0,20}") {
        for json in [&include_bytes!("../data/byte_level/tokenizer.json")[..], include_bytes!("../data/sentencepiece/tokenizer.json")] {
            let mut damaged = json.to_vec();
            let at = at % damaged.len();
            damaged[at] = byte;
            if let Ok(tokenizer) = Tokenizer::from_bytes(&damaged, None) && let Ok(ids) = tokenizer.encode(&text, true) {
                tokenizer.decode(&ids, false).unwrap();
            }
        }
    }
}
