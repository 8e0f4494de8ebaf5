use std::time::{Duration, Instant};

use lanner_store::{Conversation, Role, Scope, Update};
use serde_json::Map;

use crate::{Fixture, message, turn};

const ALL: Scope = Scope::All;

fn found(fixture: &Fixture, query: &str) -> Vec<String> {
    let page = fixture.store.search(&ALL, query, None, 100).unwrap();
    page.items.into_iter().map(|summary| summary.id).collect()
}

#[test]
fn search_finds_all_words_anywhere_in_a_conversation() {
    let fixture = Fixture::new();
    let put = |id: &str, at, question: &str, answer: &str| {
        let update = Update { created: Some(at), updated: Some(at), ..turn(question, answer) };
        fixture.store.put("", id, update).unwrap();
    };
    put("birds", 1, "Which birds hunt at night?", "Owls, and the Éclair-winged nightjar.");
    put("cjk", 2, "明天天气怎么样？", "東京は晴れです。한국어도 됩니다");
    put("code", 3, "Why `std::mem::swap`?", "It moves; no C++ needed. 100 % 'quoted'");
    for (query, expected) in [
        ("owl", vec!["birds"]),
        ("NIGHT owls", vec!["birds"]),
        ("eclair", vec!["birds"]),
        ("birds swap", vec![]),
        ("天气", vec!["cjk"]),
        ("天", vec!["cjk"]),
        ("晴れ", vec!["cjk"]),
        ("한국", vec!["cjk"]),
        ("气天", vec![]),
        ("mem::swap", vec!["code"]),
        ("c++", vec!["code"]),
        ("\"quoted\" OR -x* NEAR(", vec![]),
        ("\"quoted\"", vec!["code"]),
        ("wl", vec![]),
        ("", vec![]),
        ("*", vec![]),
        ("a\0b", vec![]),
    ] {
        assert_eq!(found(&fixture, query), expected, "{query}");
    }
    let page = fixture.store.search(&ALL, "hunt", None, 1).unwrap();
    assert_eq!(page.items[0].snippet.as_deref(), Some("Which birds hunt at night?"));
}

#[test]
fn search_follows_edits_titles_and_removals() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    store.put("", "c", turn("falcon", "kestrel")).unwrap();
    // Added: its row of the index has the new word only.
    let more = message("m", Some("a"), Role::User, "falcon merlin");
    store.put("", "c", Update { messages: vec![more.clone()], ..Update::default() }).unwrap();
    assert_eq!(
        (found(&fixture, "falcon merlin"), found(&fixture, "kestrel")),
        (vec!["c".into()], vec!["c".into()])
    );
    // Edited in place.
    let edited =
        Update { messages: vec![message("m", Some("a"), Role::User, "harrier")], ..Update::default() };
    store.put("", "c", edited).unwrap();
    assert_eq!((found(&fixture, "merlin").len(), found(&fixture, "harrier").len()), (0, 1));
    // An answer that was stored before it had any text.
    let answer =
        |text| Update { messages: vec![message("n", Some("m"), Role::Assistant, text)], ..Update::default() };
    store.put("", "c", answer("")).unwrap();
    store.put("", "c", answer("goshawk")).unwrap();
    assert_eq!(found(&fixture, "goshawk harrier").len(), 1);
    store.rename(&ALL, "c", "Raptors").unwrap();
    assert_eq!((found(&fixture, "raptors").len(), found(&fixture, "falcon").len()), (1, 1));
    store.remove(&ALL, "c").unwrap();
    assert!(["raptors", "falcon", "harrier"].iter().all(|word| found(&fixture, word).is_empty()));
}

#[test]
fn search_pages_have_every_match_once() {
    let fixture = Fixture::new();
    // More than are looked up one by one, and fewer.
    let conversations = (0..700).map(|number| conversation(number, "common", number % 100)).collect();
    fixture.store.import("", conversations).unwrap();
    for (query, expected) in [("common", 700), ("common needle7", 7)] {
        let (mut ids, mut after, mut last) = (vec![], None, i64::MAX);
        loop {
            let page = fixture.store.search(&ALL, query, after, 90).unwrap();
            for summary in page.items {
                assert!(summary.updated <= last, "latest first");
                last = summary.updated;
                ids.push(summary.id);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        ids.sort();
        ids.dedup();
        // `needle7` is the start of needle70 to needle79 too.
        assert_eq!(ids.len(), if expected == 7 { 77 } else { expected }, "{query}");
    }
}

/// With a word of its own number, and `needle` with another one.
fn conversation(number: i64, text: &str, needle: i64) -> Conversation {
    let question = format!("{text} unique{number} needle{needle}");
    Conversation {
        id: format!("c{number}"),
        title: format!("Conversation {number}"),
        created: number,
        updated: number % 350,
        leaf: Some("a".into()),
        messages: vec![
            message("q", None, Role::User, &question),
            message("a", Some("q"), Role::Assistant, text),
        ],
        settings: Map::new(),
    }
}

/// Words as frequent as in a language: the word of rank `n` in one of `n` places.
struct Text(u64);

impl Text {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn words(&mut self, count: usize) -> String {
        let word = |rank: usize| {
            let syllables = ["ka", "lo", "mi", "ne", "ru", "sta", "ver", "ti", "on", "ped"];
            let digits = format!("{rank:03}");
            digits.bytes().map(|digit| syllables[usize::from(digit - b'0')]).collect::<String>()
        };
        let rank = |share: f64| (50_000f64.powf(share)) as usize;
        (0..count).map(|_| word(rank(self.next()))).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn search_in_100_000_conversations_is_fast() {
    let fixture = Fixture::new();
    let mut text = Text(1);
    let started = Instant::now();
    // Fewer in a debug build, which takes a minute for all of them.
    let chunks = if cfg!(debug_assertions) { 10 } else { 100 };
    for chunk in 0..chunks {
        let one = |number| {
            let cjk = if number % 50 == 0 { "今天天气很好" } else { "" };
            conversation(number, &format!("common {} {cjk}", text.words(60)), number % 1000)
        };
        let conversations = (chunk * 1000..(chunk + 1) * 1000).map(one).collect();
        fixture.store.import("", conversations).unwrap();
    }
    let size = std::fs::metadata(fixture.path()).unwrap().len();
    eprintln!("{chunks},000 conversations in {:.1?}, {} MB", started.elapsed(), size / 1_000_000);
    // The median of a few: the machine may be busy.
    let mut slowest = Duration::ZERO;
    for query in [
        "unique7777",
        "needle500",
        "common",
        "com",
        "common needle5",
        "conversation common",
        "ka",
        "kaka common",
        "天气",
        "天",
        "unique",
        "conversation 5",
        "lolo mimi common",
        "absent",
    ] {
        let time = |_| {
            let started = Instant::now();
            let page = fixture.store.search(&ALL, query, None, 50).unwrap();
            (started.elapsed(), page.items.len())
        };
        let mut times: Vec<(Duration, usize)> = (0..5).map(time).collect();
        times.sort_unstable();
        let (median, items) = times[2];
        eprintln!("{query}: {median:.1?}, {items} on the first page");
        assert_eq!(items == 0, query == "absent", "{query}");
        slowest = slowest.max(median);
    }
    let bound = if cfg!(debug_assertions) { 100 } else { 50 };
    assert!(slowest < Duration::from_millis(bound), "{slowest:?}");
}
