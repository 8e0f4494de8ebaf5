//! Tests of the limits on reading and preparing requests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::{FutureExt, stream};
use tokio::runtime::Builder;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(100);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

#[test]
fn body_over_the_limit_is_413_declared_or_chunked() {
    let preparation = Preparation::new(1 << 20, TIMEOUT, None);
    let read = |body| block_on(preparation.read(body, BodyKind::Text)).map(|received| received.bytes.len());
    let status = |result: Result<usize, ApiError>| result.map_err(|error| error.status.as_u16());
    assert_eq!(status(read(Body::from(vec![b' '; 1 << 20]))), Ok(1 << 20));
    assert_eq!(status(read(Body::from(vec![b' '; (1 << 20) + 1]))), Err(413));
    let endless = stream::iter(std::iter::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 9999])));
    assert_eq!(status(read(Body::from_stream(endless))), Err(413));
}

#[test]
fn body_with_too_many_messages_is_rejected_early() {
    let preparation = Preparation::new(1 << 30, TIMEOUT, None);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let messages = stream::iter((0..1_000_000).map(move |_| {
        let text = if counted.fetch_add(1, Relaxed) == 0 { r#"{"messages": [{}"# } else { ", {}" };
        Ok::<_, std::io::Error>(text.as_bytes())
    }));
    let error = block_on(preparation.read(Body::from_stream(messages), BodyKind::Text)).err().unwrap();
    assert_eq!((error.status.as_u16(), error.body.param.as_deref()), (400, Some("messages")));
    assert!(sent.load(Relaxed) < 20_000, "{sent:?} of a million were read");
}

#[test]
fn stalled_body_times_out() {
    let preparation = Preparation::new(1 << 20, TIMEOUT, None);
    let stopped = stream::iter([Ok::<_, std::io::Error>(vec![b'{'])]).chain(stream::pending());
    let error = block_on(preparation.read(Body::from_stream(stopped), BodyKind::Text)).err().unwrap();
    assert_eq!((error.status.as_u16(), error.body.code), (408, Some("request_timeout")));
}

#[test]
fn large_bodies_are_limited_apart_from_small_ones() {
    let preparation = Preparation::new(1 << 20, TIMEOUT, Some((2 * MEMORY_DIVISOR) << 20));
    block_on(async {
        let large = || Body::from(vec![b' '; 1 << 20]);
        let held = [
            preparation.read(large(), BodyKind::Text).await.ok(),
            preparation.read(large(), BodyKind::Text).await.ok(),
        ];
        assert!(held.iter().flatten().all(|received| received.charge.lane() != Lane::Small));
        let error = preparation.read(large(), BodyKind::Text).await.err().unwrap();
        assert_eq!((error.status.as_u16(), error.body.code), (503, Some("busy")));
        let small = preparation.read(Body::from("{}"), BodyKind::Text).now_or_never().unwrap().ok().unwrap();
        assert_eq!(small.charge.lane(), Lane::Small);
        drop(held);
        // A body of unknown length keeps only the permits of its final length.
        let pieces = || stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(vec![b' '; SMALL_BODY / 10])));
        let read = || preparation.read(Body::from_stream(pieces()), BodyKind::Text);
        let held = [read().await.ok(), read().await.ok(), read().await.ok()];
        assert!(held.iter().flatten().all(|received| received.charge.lane() != Lane::Small));
        assert_eq!(held.iter().flatten().count(), 3);
    });
}

#[test]
fn small_body_does_not_wait_for_slow_ones_on_all_other_connections() {
    let preparation = Arc::new(Preparation::new(16 << 20, Duration::from_secs(600), None));
    block_on(async {
        for _ in 1..MAX_CONNECTIONS {
            let sent = stream::iter([Ok::<_, std::io::Error>(vec![b' '; SMALL_BODY])]);
            let (slow, preparation) = (Body::from_stream(sent.chain(stream::pending())), preparation.clone());
            tokio::spawn(async move { preparation.read(slow, BodyKind::Text).await.map(|_| ()) });
        }
        // Until each has read what was sent.
        while preparation.small_bytes.available_permits() > units(SMALL_BODY) {
            tokio::task::yield_now().await;
        }
        let chunked = Body::from_stream(stream::iter([Ok::<_, std::io::Error>("{}")]));
        assert!(preparation.read(chunked, BodyKind::Text).now_or_never().is_some_and(|body| body.is_ok()));
    });
}

#[test]
fn answers_count_until_they_are_sent() {
    let preparation = Preparation::new(1 << 20, TIMEOUT, None);
    let write = |length: usize| move || Ok::<Bytes, ApiError>(vec![b' '; length].into());
    block_on(async {
        let unread = preparation.answer(ANSWER_BYTES - UNIT, write(1)).await.unwrap();
        assert!(preparation.answer(UNIT, write(7)).await.is_ok_and(|answer| answer.len() == 7));
        let error = preparation.answer(2 * UNIT, write(1)).await.err().unwrap();
        assert_eq!((error.status.as_u16(), error.body.code), (503, Some("busy")));
        // A piece that is still to be sent holds all of it.
        let piece = unread.slice(0..1);
        drop(unread);
        assert!(preparation.answer(2 * UNIT, write(1)).await.is_err());
        drop(piece);
        assert!(preparation.answer(2 * ANSWER_BYTES, write(1)).await.is_ok(), "a large one goes alone");
    });
}

#[test]
fn body_limit_is_a_part_of_the_memory_limit() {
    let preparation = Preparation::new(16 << 20, TIMEOUT, Some(8 << 20));
    let status = |length: usize| {
        block_on(preparation.read(Body::from(vec![b' '; length]), BodyKind::Text))
            .err()
            .map(|error| error.status.as_u16())
    };
    assert_eq!(status(1 << 20), None);
    assert_eq!(status((1 << 20) + 1), Some(413));
}

#[test]
fn body_with_many_values_uses_the_large_lane() {
    let preparation = Preparation::new(64 << 20, TIMEOUT, None);
    let lane = |body: Body| {
        block_on(preparation.read(body, BodyKind::Text)).ok().map(|received| received.charge.lane())
    };
    let values = |count: usize| Body::from(format!("{{\"a\": [{}]}}", vec!["0"; count].join(",")));
    assert_eq!(lane(values(SMALL_COUNT)), Some(Lane::Small));
    assert_eq!(lane(values(SMALL_COUNT + 1)), Some(Lane::Large { threads: 1 }));
    assert_eq!(lane(Body::from(vec![b' '; 2 * BYTES_PER_THREAD])), Some(Lane::Large { threads: 3 }));
    assert_eq!(Lane::Small.with(SMALL_BODY), Lane::Small);
    assert_eq!(Lane::Small.with(2 * BYTES_PER_THREAD), Lane::Large { threads: 3 });
}

#[test]
fn everyday_picture_uses_the_small_lane_and_larger_ones_do_not() {
    let memory = |megabytes: usize, pixels| ImageMemory { decoding: megabytes << 20, tensors: 0, pixels };
    for (megabytes, pixels, is_small) in [(60, 1 << 20, true), (65, 1 << 20, false), (9, 3 << 20, false)] {
        let lane = Lane::Small.with_images(memory(megabytes, pixels));
        assert_eq!(lane == Lane::Small, is_small, "{megabytes} MB, {pixels} pixels: {lane:?}");
    }
    let large = Lane::Large { threads: 2 };
    assert_eq!(large.with_images(memory(1, 1)), large, "its text is large");
    // A picture's base64 is parsed in the small lane, and its text decides where it is tokenised.
    let preparation = Preparation::new(64 << 20, TIMEOUT, None);
    let read = |length: usize, kind| {
        block_on(preparation.read(Body::from(vec![b' '; length]), kind)).ok().unwrap().charge
    };
    let charge = read(SMALL_IMAGE_BODY, BodyKind::WithImages);
    assert_eq!((charge.parsing_lane(), charge.lane()), (Lane::Small, Lane::Large { threads: 1 }));
    assert_eq!(charge.lane_of_text(SMALL_BODY), Lane::Small);
    assert_eq!(charge.lane_of_text(SMALL_BODY + 1), Lane::Large { threads: 1 });
    for (length, kind) in [(SMALL_IMAGE_BODY + 1, BodyKind::WithImages), (SMALL_BODY + 1, BodyKind::Text)] {
        assert_eq!(read(length, kind).parsing_lane(), Lane::Large { threads: 1 });
    }
}

#[test]
fn files_at_urls_are_charged_beside_large_bodies() {
    let preparation = Preparation::new(1 << 20, TIMEOUT, None);
    block_on(async {
        // A body that takes all memory for bodies.
        let body = Body::from(vec![b' '; LARGE_BYTES]);
        let body = preparation.read(body, BodyKind::WithImages).await.ok().unwrap();
        let mut files = preparation.charge_files(8, 20 << 20).await.unwrap();
        assert_eq!(files.bytes(), FILE_BYTES);
        let error = preparation.charge_files(1, 1).await.err().unwrap();
        assert_eq!((error.status, error.body.code), (StatusCode::SERVICE_UNAVAILABLE, Some("busy")));
        // The files are smaller than they might have been.
        files.shrink(1 << 20);
        assert_eq!(files.bytes(), 1 << 20);
        assert!(preparation.charge_files(7, 20 << 20).await.is_ok());
        drop(body);
    });
}

#[test]
fn small_lane_does_not_wait_for_large_lane() {
    let runtime = Builder::new_multi_thread().max_blocking_threads(threads()).enable_time().build().unwrap();
    let preparation = Arc::new(Preparation::new(1 << 20, TIMEOUT, None));
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    for _ in 0..3 * large_threads() {
        let (preparation, wait) = (preparation.clone(), wait.clone());
        runtime.spawn(async move {
            // Until the sender is dropped.
            let stuck = move || Ok(wait.lock().map(|wait| wait.recv().is_err()).unwrap_or(true));
            preparation.run(Lane::Large { threads: 9 }, stuck).await
        });
    }
    let small = runtime.block_on(preparation.run(Lane::Small, || Ok(7)));
    assert_eq!(small.ok(), Some(7));
    drop(release);
}
