//! Memory of a graph on a busy machine. A test binary of its own: the peak is the process's.

use std::{thread, time::Duration};

use lanner_mlx::{Array, Dtype, OutputSpec, apply};

const COLUMNS: i32 = 1 << 18;
const BYTES: usize = COLUMNS as usize * 4;
const OPERATIONS: usize = 60;

/// A chain of operations, each with its own output, after one that blocks the stream.
fn chain() -> Array {
    let x = &Array::zeros(&[1, COLUMNS], Dtype::Float32) + 1.0;
    let output = OutputSpec { shape: vec![1, COLUMNS], dtype: Dtype::Float32 };
    let [mut x] = apply("slow", &[&x], [output], |inputs, outputs| {
        thread::sleep(Duration::from_millis(200));
        outputs[0].values::<f32>().copy_from_slice(inputs[0].values());
    });
    for _ in 0..OPERATIONS {
        let [head, tail] = [x.slice(1, 0, 100), x.slice(1, 100, COLUMNS)];
        x = Array::concatenate([&tail, &head], 1);
    }
    x.slice(1, 0, 8)
}

#[test]
fn set_run_ahead_bounds_memory_when_the_stream_is_slow() {
    lanner_mlx::use_gpu(false).expect("there is a CPU");
    let expected = chain().to_vec::<f32>().expect("evaluates");
    for pieces in [1, 4] {
        lanner_mlx::set_run_ahead(pieces * BYTES);
        let held = lanner_mlx::active_memory();
        lanner_mlx::reset_peak_memory();
        assert_eq!(chain().to_vec::<f32>().expect("evaluates"), expected);
        let taken = lanner_mlx::peak_memory() - held;
        // The inputs of one operation are live besides the queued outputs.
        let most = (pieces + 1) * BYTES + 10_000;
        assert!(taken <= most, "{taken} bytes, where {pieces} pieces of {BYTES} may run ahead");
    }
}
