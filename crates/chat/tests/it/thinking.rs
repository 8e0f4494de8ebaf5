//! The limit on thinking follows tokens, however the markers are split, and goes back exactly.

use std::sync::{Arc, OnceLock};

use lanner_chat::{
    Markers, Tokenizer,
    thinking::{Cut, Next, ThinkingLimit, ThinkingOptions, ThinkingTracker},
};
use proptest::prelude::*;

fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let json = include_bytes!("../data/byte_level/tokenizer.json");
    TOKENIZER.get_or_init(|| Arc::new(Tokenizer::from_bytes(json, None).unwrap())).clone()
}

fn limit(markers: Markers, inside: bool, budget: usize) -> Arc<ThinkingLimit> {
    let closing = format!("\n{}", markers.close);
    let options = ThinkingOptions {
        markers,
        inside,
        budget,
        room: usize::MAX,
        transition: "Enough.".into(),
        closing,
        eos_ids: vec![eos()],
        free_answer: true,
    };
    ThinkingLimit::new(tokenizer(), options).unwrap()
}

/// Single-byte tokens of a text.
fn bytes(text: &str) -> Vec<u32> {
    let tokenizer = tokenizer();
    let of_byte = |byte: u8| (0..512).find(|&id| tokenizer.token_bytes(id) == [byte]);
    text.bytes().map(|byte| of_byte(byte).unwrap()).collect()
}

fn eos() -> u32 {
    bytes("\u{1}")[0]
}

fn push_all(tracker: &mut ThinkingTracker, tokens: &[u32]) {
    for &token in tokens {
        assert!(tracker.push(token), "token {token} is not allowed");
    }
}

/// Appends the forced tokens; returns their text.
fn close(tracker: &mut ThinkingTracker) -> String {
    let mut closing = vec![];
    while let Next::Forced(forced) = tracker.next() {
        let next = forced[0];
        assert!(!tracker.push(next + 1), "only the forced token is allowed");
        assert!(tracker.push(next));
        closing.push(next);
    }
    tokenizer().decode(&closing, false).unwrap()
}

#[test]
fn budget_closes_thinking_once() {
    let mut tracker = limit(Markers::default(), false, 20).start();
    push_all(&mut tracker, &bytes(" \n<think>0123456789012345678"));
    assert_eq!(tracker.next(), Next::NoEnd);
    assert!(!tracker.push(eos()), "an answer does not end within thinking");
    push_all(&mut tracker, &bytes("9"));
    assert_eq!(tracker.cut(), Some(Cut::Budget));
    assert_eq!(close(&mut tracker), "\n\nEnough.\n</think>");
    push_all(&mut tracker, &bytes("<think>an answer may mention it, at any length</think>"));
    push_all(&mut tracker, &[eos()]);
    assert_eq!(tracker.next(), Next::Any);
}

#[test]
fn begun_character_is_completed_before_thinking_is_closed() {
    let mut tracker = limit(Markers::default(), true, 2).start();
    let text = bytes("aé");
    push_all(&mut tracker, &text[..2]);
    assert_eq!(tracker.next(), Next::NoEnd, "half of a character");
    push_all(&mut tracker, &text[2..]);
    assert!(close(&mut tracker).ends_with("</think>"));
}

#[test]
fn no_budget_closes_thinking_before_it_begins() {
    let mut tracker = limit(Markers::default(), true, 0).start();
    assert!(close(&mut tracker).ends_with("</think>"));
}

#[test]
fn loop_closes_thinking() {
    let mut tracker = limit(Markers::default(), true, 10_000).start();
    let mut tokens = bytes("Wait, no. ").into_iter().cycle();
    let mut count = 0;
    while tracker.next() == Next::NoEnd {
        assert!(tracker.push(tokens.next().unwrap()));
        count += 1;
    }
    assert_eq!((tracker.cut(), count), (Some(Cut::Repetition), 97), "one token after it is found");
    close(&mut tracker);
}

#[test]
fn loop_of_any_period_closes_thinking() {
    let letters = bytes("abcdefghijklmnopqrstuvwxyz0123456789");
    let mut random = 1u64;
    for period in 1..=512usize {
        let mut letter = || {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            letters[(random >> 33) as usize % letters.len()]
        };
        let block: Vec<u32> = (0..period).map(|_| letter()).collect();
        let mut tracker = limit(Markers::default(), true, 10_000).start();
        let allows = |token: &&u32| tracker.next() == Next::NoEnd && tracker.push(**token);
        let count = block.iter().cycle().take_while(allows).count();
        // With long periods, enough tokens are stale before the fourth block ends.
        let latest = (4 * period).max(96) + 1;
        assert!(count <= latest && count > 3 * period, "period {period}: {count} tokens of {latest}");
        assert_eq!(tracker.cut(), Some(Cut::Repetition), "period {period}");
    }
}

#[test]
fn marker_that_the_model_writes_itself_is_no_cut() {
    let mut tracker = limit(Markers::default(), true, 10).start();
    push_all(&mut tracker, &bytes("ab</think>"));
    assert_eq!((tracker.next(), tracker.cut()), (Next::NoEnd, None), "the answer is not empty");
    push_all(&mut tracker, &bytes("x"));
    assert_eq!((tracker.next(), tracker.cut()), (Next::Any, None));
}

#[test]
fn thinking_that_is_closed_right_after_a_loop_was_found_is_not_cut() {
    let mut tracker = limit(one_byte("~"), true, 10_000).start();
    push_all(&mut tracker, &bytes(&"Wait, no. ".repeat(10)[..96]));
    assert_eq!(tracker.cut(), Some(Cut::Repetition));
    push_all(&mut tracker, &bytes("~"));
    assert_eq!((tracker.next(), tracker.cut()), (Next::NoEnd, None));
}

/// Markers of which the closing one is a single byte.
fn one_byte(close: &str) -> Markers {
    Markers { open: "<think>".into(), close: close.into() }
}

#[test]
fn answer_without_thinking_is_free() {
    let mut tracker = limit(Markers::default(), false, 3).start();
    push_all(&mut tracker, &bytes("  <thing> of any length"));
    push_all(&mut tracker, &[eos()]);
    assert_eq!(tracker.cut(), None);
}

fn markers() -> impl Strategy<Value = Markers> {
    let known =
        vec!["<think>|</think>", "[THINK]|[/THINK]", "<|channel>thought|<channel|>", "◁think▷|◁/think▷"];
    prop::sample::select(known).prop_map(|pair| {
        let (open, close) = pair.split_once('|').unwrap();
        Markers { open: open.into(), close: close.into() }
    })
}

/// What may come next, and the forced tokens.
fn owned(next: Next) -> (bool, bool, Vec<u32>) {
    let forced = if let Next::Forced(forced) = next { forced.to_vec() } else { vec![] };
    (next == Next::Any, next == Next::NoEnd, forced)
}

#[test]
fn what_may_come_is_known_a_token_ahead_except_where_thinking_may_be_cut() {
    let mut tracker = limit(Markers::default(), false, 20).start();
    let mut unknown = 0;
    let mut count = |tracker: &ThinkingTracker| unknown += usize::from(tracker.after_next().is_none());
    for token in bytes("<think>01234567890123456789") {
        count(&tracker);
        push_all(&mut tracker, &[token]);
    }
    while let Next::Forced(forced) = tracker.next() {
        let next = forced[0];
        count(&tracker);
        assert!(tracker.push(next));
    }
    for token in bytes("Yes.") {
        count(&tracker);
        push_all(&mut tracker, &[token]);
    }
    // The opening marker has seven bytes, and the budget ends with one.
    assert_eq!(unknown, 8);
}

proptest! {
    /// Whatever the tokens are and however many are taken back, the state is that of the tokens,
    /// and what was known of it a token ahead was right.
    #[test]
    fn rewound_tracker_equals_a_new_one(
        markers in markers(),
        thought in "[a-z ]{0,30}",
        budget in 0usize..40,
        steps in prop::collection::vec((1usize..20, 0usize..20), 1..12),
    ) {
        let text = bytes(&format!("{}{thought}{} answer", markers.open, markers.close));
        let limit = limit(markers, false, budget);
        let (mut tracker, mut pushed) = (limit.start(), vec![]);
        for (more, removed) in steps {
            for _ in 0..more {
                let ahead = tracker.after_next().map(owned);
                let next = match tracker.next() {
                    Next::Forced(forced) => forced[0],
                    _ => text.get(pushed.len()).copied().unwrap_or(bytes("x")[0]),
                };
                prop_assert!(tracker.push(next));
                prop_assert!(ahead.is_none_or(|ahead| ahead == owned(tracker.next())));
                pushed.push(next);
            }
            let removed = removed.min(pushed.len());
            prop_assert!(tracker.rewind(removed));
            pushed.truncate(pushed.len() - removed);
            let mut new = limit.start();
            push_all(&mut new, &pushed);
            prop_assert_eq!(tracker.next(), new.next());
            prop_assert_eq!(tracker.cut(), new.cut());
        }
    }
}
