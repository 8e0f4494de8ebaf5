//! Streams of consecutive threads. A test binary of its own: it counts the process's threads.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use lanner_mlx::{Array, Dtype, OutputSpec, Streams, apply};

/// Threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("Linux").count()
}

/// Whether there are at most `count` threads. The system may list a joined thread a little longer;
/// a stream's thread never ends.
fn threads_fall_to(count: usize) -> bool {
    let start = Instant::now();
    while threads() > count {
        if start.elapsed() > Duration::from_secs(60) {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Computes on a new thread; with an error if `fails`.
fn compute(fails: bool) {
    let work = move || {
        let _streams = Streams::lease().expect("streams");
        let x = &Array::zeros(&[4], Dtype::Float32) + 1.0;
        let output = OutputSpec { shape: vec![4], dtype: Dtype::Float32 };
        let [y] = apply("checked", &[&x], [output], move |inputs, outputs| {
            assert!(!fails, "fails on purpose");
            outputs[0].values::<f32>().copy_from_slice(inputs[0].values());
        });
        let y = y.to_vec::<f32>();
        assert_eq!(y.is_err(), fails);
        assert!(fails || y.is_ok_and(|y| y == [1.0; 4]));
    };
    thread::spawn(work).join().expect("computes");
}

#[cfg(target_os = "linux")]
#[test]
fn consecutive_threads_share_a_leased_stream() {
    lanner_mlx::use_gpu(false).expect("there is a CPU");
    compute(false);
    let before = threads();
    for i in 0..50 {
        // An error of one thread must not reach the next.
        compute(i % 3 == 0);
    }
    assert!(threads_fall_to(before), "{} threads, {before} before", threads());
    let together: Vec<_> = (0..4).map(|_| thread::spawn(|| (0..20).for_each(|_| compute(false)))).collect();
    together.into_iter().for_each(|thread| thread.join().expect("computes"));
    assert!(threads_fall_to(before + 3), "{} threads, {before} before", threads());
}
