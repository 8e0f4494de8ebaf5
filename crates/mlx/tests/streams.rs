//! Threads that compute, one after another. A test binary of its own, with one test: threads are counted.

use std::{fs, thread};

use mlx::{Array, Dtype, OutputSpec, Streams, apply};

/// Threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("Linux").count()
}

/// Computes on a thread of its own; with an error, if it is asked for.
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
fn threads_that_compute_one_after_another_share_a_stream() {
    mlx::use_gpu(false).expect("there is a CPU");
    compute(false);
    let before = threads();
    for i in 0..50 {
        // What one has failed at is not the next one's error.
        compute(i % 3 == 0);
    }
    assert_eq!(threads(), before);
    let together: Vec<_> = (0..4).map(|_| thread::spawn(|| (0..20).for_each(|_| compute(false)))).collect();
    together.into_iter().for_each(|thread| thread.join().expect("computes"));
    assert!(threads() <= before + 3, "as many as computed at a time");
}
