use std::time::{Duration, Instant};

use lanner_store::{Limits, Period, RequestRecord, Store, now};

use crate::Fixture;

fn answered(id: usize, at: i64) -> RequestRecord {
    RequestRecord {
        at,
        id: format!("req_{id}"),
        route: "POST /v1/chat/completions".into(),
        status: 200,
        outcome: "answered".into(),
        model: "owl".into(),
        key: "ann".into(),
        finish_reason: "stop".into(),
        cache_miss: "differs".into(),
        prompt_tokens: 100,
        cached_tokens: 64,
        completion_tokens: 11,
        reasoning_tokens: 5,
        drafted: 8,
        accepted: 6,
        time_to_first_token_ms: Some(50.0),
        decode_ms: Some(200.0),
        tokens_per_second: Some(50.0),
        duration_ms: 300.0,
    }
}

#[test]
fn requests_are_read_as_they_were_recorded() {
    let fixture = Fixture::new();
    let at = now();
    let failed = RequestRecord { at, id: "req_x".into(), status: 404, ..RequestRecord::default() };
    fixture.store.record(answered(1, at));
    fixture.store.record(failed.clone());
    fixture.store.flush().unwrap();
    assert_eq!(fixture.store.requests(10).unwrap(), [failed, answered(1, at)]);
    assert_eq!(fixture.store.requests(1).unwrap().len(), 1);
}

#[test]
fn requests_are_stored_without_a_flush() {
    let fixture = Fixture::new();
    fixture.store.record(answered(1, now()));
    let started = Instant::now();
    while fixture.store.requests(1).unwrap().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    // The last ones are stored when the store is closed.
    fixture.store.record(answered(2, now()));
    let path = fixture.path();
    let _folder = fixture.close();
    assert_eq!(crate::open(&path).requests(10).unwrap().len(), 2);
}

#[test]
fn old_requests_go_and_their_sums_stay() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { requests: 10, request_age: Duration::from_secs(3600 * 24), ..Limits::default() };
    let store = Store::open_with(&folder.path().join("store.db"), limits).unwrap().store;
    let day = 24 * 3_600_000;
    (0..5).for_each(|id| store.record(answered(id, now() - 2 * day)));
    store.flush().unwrap();
    assert_eq!(store.requests(100).unwrap().len(), 0);
    (0..25).for_each(|id| store.record(answered(id, now())));
    store.flush().unwrap();
    let kept: Vec<String> = store.requests(100).unwrap().into_iter().map(|record| record.id).collect();
    assert_eq!((kept.len(), &*kept[0], &*kept[9]), (10, "req_24", "req_15"));
    let sums = store.usage(Period::Day, 0).unwrap();
    assert_eq!(sums.iter().map(|sum| sum.requests).sum::<u64>(), 30);
    // Sums have an age too.
    store.record(answered(0, now() - 1000 * day));
    store.flush().unwrap();
    assert_eq!(store.usage(Period::Day, 0).unwrap(), sums);
}

#[test]
fn usage_is_summed_by_hour_and_model() {
    let fixture = Fixture::new();
    let hour = 3_600_000;
    let base = now() / hour * hour - 5 * hour;
    let other =
        RequestRecord { model: "wren".into(), outcome: "failed".into(), status: 500, ..answered(0, base) };
    let left = RequestRecord { outcome: "cancelled".into(), ..answered(0, base) };
    let refused = RequestRecord { at: base, status: 401, ..RequestRecord::default() };
    for record in
        [answered(0, base), answered(1, base + hour - 1), answered(2, base + hour), other, left, refused]
    {
        fixture.store.record(record);
    }
    fixture.store.flush().unwrap();
    let sums = fixture.store.usage(Period::Hour, 0).unwrap();
    let shown: Vec<(i64, &str, u64, u64, u64)> =
        sums.iter().map(|sum| (sum.start, &*sum.model, sum.requests, sum.failed, sum.cancelled)).collect();
    let start = base / 1000;
    assert_eq!(
        shown,
        [
            (start, "", 1, 1, 0),
            (start, "owl", 3, 0, 1),
            (start, "wren", 1, 1, 0),
            (start + 3600, "owl", 1, 0, 0)
        ]
    );
    let owl = &sums[1];
    assert_eq!((owl.prompt_tokens, owl.cached_tokens, owl.completion_tokens), (300, 192, 33));
    assert_eq!((owl.reasoning_tokens, owl.drafted, owl.accepted), (15, 24, 18));
    assert_eq!(owl.mean_time_to_first_token_s, Some(0.05));
    assert!((owl.tokens_per_second.unwrap() - 50.0).abs() < 1e-9);
    assert_eq!(fixture.store.usage(Period::Hour, start + 3600).unwrap().len(), 1);
    let day = 24 * hour;
    fixture.store.record(answered(3, now() - 3 * day));
    fixture.store.flush().unwrap();
    // Some of the hours may lie before midnight.
    let recent = |days| fixture.store.days(days).unwrap().iter().map(|sum| sum.requests).sum::<u64>();
    assert_eq!((recent(2), recent(4), recent(5)), (6, 7, 7));
    let days = fixture.store.usage(Period::Day, start - 3600).unwrap();
    assert_eq!(days.iter().map(|sum| sum.requests).sum::<u64>(), 6);
    assert!(days.iter().all(|sum| sum.day.len() == 10 && sum.start % 60 == 0));
}
