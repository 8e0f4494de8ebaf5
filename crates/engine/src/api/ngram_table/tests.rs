use std::{collections::HashMap, fs, path::Path};

use proptest::prelude::*;

use super::*;

const TOKENIZER: &str = "a fingerprint";

fn build(path: &Path, texts: &[&[u32]], order: usize, min_count: u32, buffer: usize) -> TableInfo {
    let mut builder = Builder::with_buffer(path, order, min_count, buffer).expect("begins");
    for text in texts {
        // In parts, like a long text.
        text.chunks(3).for_each(|part| builder.add(part).expect("added"));
        builder.end_text();
    }
    builder.finish(TOKENIZER, "owl").expect("written")
}

fn table(texts: &[&[u32]], order: usize, min_count: u32) -> NgramTable {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t");
    build(&path, texts, order, min_count, 5);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "the table and nothing else");
    NgramTable::open(&path, TOKENIZER, "owl").expect("opens")
}

#[test]
fn next_token_follows_the_longest_known_context() {
    let table = table(&[&[1, 2, 3, 9, 2, 3, 4, 2, 3, 4], &[7, 3, 4]], 2, 1);
    let next = |tokens: &[u32]| table.next(tokens).map(|(token, _)| token);
    assert_eq!(next(&[8, 2, 3]), Some(4), "twice 4, once 9");
    assert_eq!(next(&[1, 2]), Some(3));
    assert_eq!(next(&[6, 9]), Some(2), "9 is known, 6 9 is not");
    assert_eq!(next(&[4]), Some(2), "the end of a text is followed by nothing");
    assert_eq!((next(&[]), next(&[8])), (None, None));
    assert_eq!((table.info.tokens, table.info.order), (13, 2));
}

#[test]
fn rare_contexts_have_lower_confidence() {
    let often: Vec<u32> = [1, 2].repeat(50);
    let table = table(&[&often, &[5, 6], &[1, 3]], 1, 1);
    let probability = |token: u32| table.next(&[token]).expect("known").1;
    assert!(
        (probability(1) - 50.0 / 52.0).abs() < 0.02 && (probability(5) - 0.5).abs() < 0.02,
        "{} {}",
        probability(1),
        probability(5)
    );
    let table = self::table(&[&often, &[5, 6]], 1, 2);
    assert_eq!(table.next(&[5]), None, "once is too rare");
    assert!(table.next(&[1]).is_some());
}

proptest! {
    #[test]
    fn table_of_any_texts_holds_their_counts(texts in prop::collection::vec(prop::collection::vec(0u32..6, 0..60), 0..8), order in 1usize..4, min_count in 1u32..4, buffer in 1usize..40) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t");
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        build(&path, &texts, order, min_count, buffer);
        let table = NgramTable::read(&path).expect("reads");
        let mut counts: HashMap<&[u32], HashMap<u32, u64>> = HashMap::new();
        for text in &texts {
            for (at, &token) in text.iter().enumerate() {
                for n in 1..=order.min(at) {
                    *counts.entry(&text[at - n..at]).or_default().entry(token).or_default() += 1;
                }
            }
        }
        counts.retain(|_, next| next.values().sum::<u64>() >= u64::from(min_count));
        prop_assert_eq!(table.info.entries, counts.len() as u64);
        for (context, next) in &counts {
            let (token, count) = next.iter().max_by_key(|(token, count)| (**count, std::cmp::Reverse(**token))).expect("some");
            let probability = *count as f32 / (next.values().sum::<u64>() + 1) as f32;
            let (found, confidence) = table.next(context).expect("known");
            prop_assert_eq!(found, *token);
            prop_assert!((confidence - probability).abs() <= 1.0 / 64.0);
        }
    }
}

#[test]
fn file_that_is_not_a_table_for_this_tokenizer_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t");
    build(&path, &[&[1, 2, 3, 1, 2, 3]], 3, 1, 100);
    let good = fs::read(&path).expect("read");
    let check = |bytes: &[u8], tokenizer: &str, expected: &str| {
        fs::write(&path, bytes).expect("written");
        let error = NgramTable::open(&path, tokenizer, "lark").expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&good, "another", "was made with the tokenizer of owl, which is not that of lark");
    check(b"hello", TOKENIZER, "is not an n-gram table");
    check(&good[..good.len() - 1], TOKENIZER, "its length is wrong");
    check(&good[..300], TOKENIZER, "damaged");
    for at in [4096, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        check(&bad, TOKENIZER, "its checksum is wrong");
    }
    fs::write(&path, &good).expect("written");
    assert!(NgramTable::open(&path, TOKENIZER, "lark").is_ok());
    let error = NgramTable::open(&folder.path().join("none"), TOKENIZER, "lark").expect_err("refused");
    assert!(matches!(error, NgramTableError::Read { .. }), "{error}");
    let mut builder = Builder::new(&path, 3, 1).expect("begins");
    assert!(matches!(builder.add(&[1, 1 << 20]), Err(NgramTableError::Token(_))));
}
